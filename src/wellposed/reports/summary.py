"""What the plots and checks of a report show, in words: for captions, screen readers and terminals."""

from __future__ import annotations

import math
import shlex

from wellposed.options import DEFAULT_METHOD
from wellposed.reports.data import Kind, signals_of
from wellposed.reports.judge import RATE, SHAPE
from wellposed.reports.pictures import series
from wellposed.reports.record import Direction, Initialisation, Record
from wellposed.reports.spans import (
    differing_by_name,
    factor_text,
    figures,
    fold_text,
    hidden_names,
    judged_names,
    share_text,
    span_of,
)

_KINDS: tuple[Kind, ...] = ("measured", "predicted")
_MEASURES: dict[Direction, tuple[str, str]] = {
    "forward": ("E[x²]", "of the outputs of weights"),
    "backward": ("(‖x‖ ‖g‖)²", "along the trunk, before the readout,"),
}
_WORDS = {"forward": "signals", "backward": "gradients"}


def depth_summary(report: Record, direction: Direction) -> str:
    """Return what a plot over depth shows: the range of each initialisation, and where it breaks."""
    names = judged_names(report.structure, direction)
    measure, where = _MEASURES[direction]
    parts = []
    for item in report.initialisations:
        for kind in _KINDS:
            signals = item.predicted if kind == "predicted" else item.measured
            if signals is None or signals_of(item, direction, kind) is None:
                continue
            extremes = span_of([(value, name) for name, value in figures(signals, direction).items() if name in names])
            if extremes.low is not None and extremes.high is not None:
                text = (
                    f"{item.title} ({kind}): {measure} {where} from {factor_text(extremes.low[0])} at "
                    f"{extremes.low[1]} to {factor_text(extremes.high[0])} at {extremes.high[1]}"
                )
            else:
                text = f"{item.title} ({kind}): no finite {measure} above zero {where}"
            if extremes.zeros:
                text += f", {extremes.zeros} exactly zero"
            if extremes.broken:
                text += f", {len(extremes.broken)} infinite or NaN, the first at {extremes.broken[0]}"
            parts.append(text)
            break
    return (". ".join(parts) if parts else f"No {_WORDS[direction]} are known") + "."


def depth_words(report: Record, direction: Direction) -> str:
    """Return how far apart a plot's figures lie under each initialisation, as factors in their own units."""
    parts = []
    for title, levels in series(report, direction).items():
        extremes = span_of(list(zip(levels.values(), levels, strict=True)))
        if extremes.broken:
            parts.append(f"{title}: infinite or NaN from {extremes.broken[0 if direction == 'forward' else -1]} on")
        elif extremes.low is None or extremes.high is None:
            parts.append(f"{title}: zero everywhere")
        else:
            factor = fold_text((extremes.high[0] / extremes.low[0]) ** 0.5)
            parts.append(f"{title}: the largest of the {_WORDS[direction]} is {factor} times the smallest")
    return (". ".join(_capital(part) for part in parts) if parts else f"No {_WORDS[direction]} are known") + "."


def alike_summary(report: Record) -> str:
    """Return what the plot of what differs between inputs shows: the range along the trunk of each initialisation."""
    names, parts = hidden_names(report.structure), []
    for item in report.initialisations:
        shares = [differing_by_name(signals or ()) for signals in (item.measured, item.predicted)]
        kind, known = next(((k, found) for k, found in zip(_KINDS, shares, strict=True) if found), ("", {}))
        seen = [(share, name) for name, share in known.items() if name in names]
        if seen:
            (low, least), (high, most) = min(seen), max(seen)
            parts.append(
                f"{_capital(item.title)} ({kind}): between inputs differs from {share_text(low)} of E[x²] at {least} "
                f"to {share_text(high)} at {most}"
            )
    return (". ".join(parts) if parts else "Nothing along the trunk tells inputs apart") + "."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def check_summary(report: Record) -> list[str]:
    """Return one line for each initialisation that was checked, and one where nothing was measured."""
    lines = []
    for item in report.initialisations:
        if item.verdict is None:
            continue
        checked = item.verdict
        off = sum(comparison.off for comparison in checked.comparisons)
        octaves = checked.percentile(95)
        lines.append(
            f"{item.title}: {len(checked.comparisons):,} predictions compared with {checked.draws} real passes, "
            + (f"{off:,} off" if off else "all as predicted")
            + (f"; 95 % within a factor of {2**octaves:.2g}" if math.isfinite(octaves) else "")
        )
    if not lines and any(item.measured is not None for item in report.initialisations):
        lines.append("Nothing was compared: one real pass does not know its own error. What it showed is shown.")
    elif not lines and report.initialisations:
        lines.append("Nothing was compared with real passes: what is shown is predicted.")
    return lines + [
        f"{item.title}: {share_text(item.differing.share)} of E[x²] differs between inputs at {item.differing.name}, "
        "the least along the trunk"
        for item in report.initialisations
        if item.differing is not None
    ]


def explain_command(report: Record, item: Initialisation, name: str) -> str:
    """Return the command or call that explains an operation, with the options that the report was made with."""
    asked = _asked(report)
    if asked is None:
        weights = ", plan=plan" if item.label == "plan" else ""
        return f"wp.explain(model, {name!r}, ...{weights})"
    model, kept = asked
    if item.label == "own":
        seed = kept[kept.index("--seed") :][:2] if "--seed" in kept else []
        kept = seed
    elif not {"--plan", "--method"} & set(kept):
        kept += ["--method", DEFAULT_METHOD]
    return shlex.join(["wellposed", "explain", model, name, *kept])


def remedies(report: Record) -> list[str]:
    """Return what does what the verdict asks for: the call, and the command where the report was made by one."""
    said, asked = report.judgement, _asked(report)
    if not said.call or asked is None or SHAPE in said.call:  # no command shapes a model
        return [said.call] if said.call else []
    if said.call == RATE:
        return [said.call, "wellposed lr FILE.py:FUNCTION --find"]
    model, kept = asked
    zeros = ["--zeros", "write"] if "zeros=" in said.call else []
    return [said.call, shlex.join(["wellposed", "init", model, *kept, *zeros, "-o", "weights.pt"])]


def _asked(report: Record) -> tuple[str, list[str]] | None:
    """Return the model of a command that made a report, and the options that other commands have too; None where no
    command made it, or one that others do not repeat.
    """
    words = shlex.split(report.provenance.command)
    if words[:2] != ["wellposed", "report"] or "--training" in words or "--meta" in words:
        return None
    pairs = zip(words[3::2], words[4::2], strict=False)  # every other option of the command has a value
    of_reports = ("--output", "--draws", "--budget", "--transfer")
    return words[2], [word for option, value in pairs if option not in of_reports for word in (option, value)]


def agreement_summary(report: Record) -> str:
    """Return the agreement of gradients in words."""
    titles = {item.label: item.title for item in report.initialisations}
    return (
        "; ".join(
            f"{titles.get(label, label)}: GradCosine {scores.cosine:.3g} over the whole model, loss {scores.loss:.4g}"
            for label, scores in report.agreement.items()
        )
        + "."
    )
