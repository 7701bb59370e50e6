"""What the plots and checks of a report say, in words: for captions, screen readers and terminals."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING

from wellposed.reports.data import Direction, Kind, signals_of
from wellposed.reports.judge import span, weighted_names

if TYPE_CHECKING:
    from wellposed.reports.record import Initialisation, Report

_KINDS: tuple[Kind, ...] = ("measured", "predicted")
_WORDS = {"forward": "signals", "backward": "gradients"}


def depth_summary(report: Report, direction: Direction) -> str:
    """Return what a plot over depth shows: the range of each initialisation, and where it breaks."""
    names = weighted_names(report.structure)
    parts = []
    for item in report.initialisations:
        for kind in _KINDS:
            signals = signals_of(item, direction, kind)
            if signals is None:
                continue
            found = span(signals, names)
            if found.low is not None and found.high is not None:
                text = (
                    f"{item.title} ({kind}): second moments of the outputs of weights from {found.low[0]:.3g} at "
                    f"{found.low[1]} to {found.high[0]:.3g} at {found.high[1]}"
                )
            else:
                text = f"{item.title} ({kind}): no finite second moment above zero"
            if found.zeros:
                text += f", {found.zeros} exactly zero"
            if found.broken:
                text += f", {len(found.broken)} infinite or NaN, the first at {found.broken[0]}"
            parts.append(text)
            break
    return (". ".join(parts) if parts else f"No {_WORDS[direction]} are known") + "."


def check_summary(report: Report) -> list[str]:
    """Return one line for each initialisation that was checked, and one where nothing was measured."""
    lines = []
    for item in report.initialisations:
        if item.verdict is None:
            continue
        checked = item.verdict
        off = sum(comparison.off for comparison in checked.comparisons)
        octaves = checked.percentile(95)
        lines.append(
            f"{item.title}: {len(checked.comparisons):,} predictions held against {checked.draws} real passes, "
            + (f"{off:,} beyond their allowance" if off else "all within their allowance")
            + (f"; 95 % within a factor of {2**octaves:.2g}" if math.isfinite(octaves) else "")
        )
    if not lines and report.initialisations:
        lines.append("Nothing was held against real passes: what is shown is predicted.")
    return lines


def explain_command(report: Report, item: Initialisation, name: str) -> str:
    """Return what to ask for the explanation of an operation, as the report itself was asked for."""
    words = shlex.split(report.provenance.command)
    if words[:2] != ["wellposed", "report"] or "--training" in words or "--meta" in words:
        weights = ", plan=plan" if item.label == "plan" else ""
        return f"wp.explain(model, {name!r}, ...{weights})"
    told = zip(words[3::2], words[4::2], strict=False)  # every other option of the command has a value
    kept = [word for option, value in told if option not in ("--output", "--draws") for word in (option, value)]
    if item.label == "own":
        seed = kept[kept.index("--seed") :][:2] if "--seed" in kept else []
        kept = ["--own", *seed]
    return shlex.join(["wellposed", "explain", words[2], name, *kept])


def agreement_summary(report: Report) -> str:
    """Return the agreement of gradients in words."""
    titles = {item.label: item.title for item in report.initialisations}
    return (
        "; ".join(
            f"{titles.get(label, label)}: GradCosine {found.cosine:.3g} over the whole model, loss {found.loss:.4g}"
            for label, found in report.agreement.items()
        )
        + "."
    )
