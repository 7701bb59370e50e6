"""The verdict on a model: its comparisons, what is off among them, and how that is shown."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from wellposed.checks.own import Own
from wellposed.checks.strict_json import to_json
from wellposed.measuring.causes import Cause
from wellposed.measuring.comparison import DOUBT, ILL_CONDITIONED, Comparison
from wellposed.showing import ROWS, Shown, Summary, cell, visible
from wellposed.tables import Group, Table

SHOWN = 3
"""Causes that a summary names."""


@dataclass(frozen=True, slots=True, repr=False)
class Verdict(Shown):
    """The outcome of `wellposed.check`.

    Attributes:
        comparisons: every signal that was both predicted and measured, in execution order; then the gradients,
            in the order in which a backward pass makes them: by nodes, the last first, by inputs, by parameters. What
            a first look left in doubt is as fresh passes show it.
        unmatched: names that only one side knows, and what holds no finite element.
        model: class name of the model.
        draws: passes that were measured, ``again`` among them.
        weight_draws: different weights among them (1 where the model's own weights were kept).
        causes: what is off, each cause once, with the number of nodes that share it.
        heavy: names of what was not compared because no expectation means anything there.
        trunk: those of them that weights meet: what follows rests on them.
        ended: the first node that not every pass came to, as a shape depends on values; what follows is unmatched.
        again: fresh passes, which decided on what a first look left in doubt; 0 where it left nothing.
        confirmed, dismissed: names of what they found off, and of what they did not.
        remarks: what keeps the passes from showing the whole model, as the graph says it.
        inputs: where the example's numbers are not those that were assumed and drawn.
        own: what was found in the model's own parameters: NaN and infinities, and what is not as the plan says.
    """

    comparisons: tuple[Comparison, ...]
    unmatched: tuple[str, ...]
    model: str
    draws: int
    weight_draws: int
    causes: tuple[Cause, ...] = ()
    heavy: tuple[str, ...] = ()
    ended: str = ""
    again: int = 0
    confirmed: tuple[str, ...] = ()
    dismissed: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    trunk: tuple[str, ...] = ()
    own: Own = field(default_factory=Own)

    @property
    def ok(self) -> bool:
        """Whether something was compared, neither a second moment nor a predicted spread is off, weights meet no signal
        without an expectation, and nothing is wrong with the model's own parameters. What is off and meets neither a
        weight nor an output is a remark (`idle`), and so is the spread of what is off there.
        """
        rests = not self.causes or len(self.idle) < len(self.causes)
        spread_off = any(not c.off for c in self.spread_off)
        failed = (self.first is not None and rests) or spread_off or self.trunk or self.own.wrong
        return bool(self.comparisons) and not failed

    @property
    def idle(self) -> tuple[Cause, ...]:
        """The causes on which nothing rests: operators that follow undo what is off before a weight, or an output."""
        return tuple(cause for cause in self.causes if cause.idle)

    @property
    def first(self) -> Comparison | None:
        """The first that is off: where to look, since errors travel downstream (gradients' towards the inputs)."""
        return next((c for c in self.comparisons if c.off), None)

    @property
    def worst(self) -> Comparison | None:
        """The node furthest beyond what is allowed, or nearest to it where all are within; None for an empty graph."""
        return max(self.comparisons, key=lambda c: c.excess, default=None)

    @property
    def ill_conditioned(self) -> tuple[Comparison, ...]:
        """The signals whose second moment differs between weight draws by `ILL_CONDITIONED` or more.

        What was predicted counts, or what was measured where that is off.
        """
        return tuple(c for c in self.comparisons if _spread(c) >= ILL_CONDITIONED)

    @property
    def spread_off(self) -> tuple[Comparison, ...]:
        """The signals whose predicted spread between weight draws is not the measured one."""
        return tuple(c for c in self.comparisons if c.spread_off)

    @property
    def similarity_off(self) -> tuple[Comparison, ...]:
        """The signals whose predicted similarity of samples is not the measured one: a remark, which fails no check."""
        return tuple(c for c in self.comparisons if c.similarity_off)

    @property
    def doubted(self) -> tuple[Comparison, ...]:
        """What is off, or undecided: fresh passes tell, and `wellposed.check` makes them."""
        return tuple(c for c in self.comparisons if c.doubted)

    @property
    def undecided(self) -> tuple[Comparison, ...]:
        """What misses by more than an octave, in passes that scatter so much that it may be right."""
        return tuple(c for c in self.comparisons if c.excused)

    @property
    def one_set(self) -> tuple[Comparison, ...]:
        """What misses by more than an octave for weights that are the same in every pass, as for others of their sizes.

        That the prediction is right of all such weights, no passes of these can tell.
        """
        return tuple(c for c in self.comparisons if c.one_set)

    def percentile(self, percent: float) -> float:
        """Return the ``percent``-th percentile of |error| over the nodes, in octaves.

        NaN counts as infinite, zeros that agree as 0.
        """
        return _percentile([math.inf if math.isnan(c.error) else abs(c.error) for c in self.comparisons], percent)

    def __str__(self) -> str:
        return self.summary()

    def _summary(self) -> Summary:
        """Return the outcome, and what is nearest to or beyond what is allowed."""
        nearest = sorted(self.comparisons, key=lambda c: -c.excess)[:ROWS]
        return Summary(
            f"{'ok' if self.ok else 'not ok'}: {self.summary().partition(chr(10))[0]}",
            ("node", "predicted", "measured", "octaves", "allowed", ""),
            tuple(
                (
                    _named(c), f"{c.predicted:.3g}", f"{c.measured:.3g}", f"{c.error:+.2f}", f"{c.allowed:.2f}",
                    "off" if c.off else "",
                )
                for c in nearest
            ),
            len(self.comparisons) - len(nearest),
            "those nearest to or beyond what is allowed",
        )  # fmt: skip

    def summary(self) -> str:
        """Return the outcome in words: what was compared, percentiles, what is off and from where, the conditioning."""
        lines = (*self._compared(), *self.own.lines(), *self._wrong(), *self._scattered(), *self._left_out())
        return visible("\n".join(lines))

    def _compared(self) -> Iterator[str]:
        """Yield lines on how many signals were compared in how many passes, their errors, and the fresh passes."""
        gradients = sum(c.direction == "backward" for c in self.comparisons)
        counted = f"{len(self.comparisons) - gradients} nodes" + (f" and {gradients} gradients" if gradients else "")
        yield f"{self.model}: {counted}, {self.draws} passes, {self.weights}: {self._outcome()}"
        if self.comparisons:
            percentiles = (f"{p}th percentile {self.percentile(p):.2f}" for p in (50, 95, 100))
            yield f"error in octaves: {', '.join(percentiles)}"
        if alike := [abs(c.similarity_error) for c in self.comparisons if math.isfinite(c.similarity_error)]:
            percentiles = (f"{p}th percentile {_percentile(alike, p):.2f}" for p in (50, 95, 100))
            yield f"error in similarity of samples: {', '.join(percentiles)}"
        if self.again:
            doubted = len(self.confirmed) + len(self.dismissed)
            yield (
                f"in doubt after {self.draws - self.again} passes, and decided by {self.again} fresh ones: {doubted}, "
                f"of which {len(self.confirmed) or 'none'} confirmed"
            )

    def _wrong(self) -> Iterator[str]:
        """Yield lines on the first causes of errors and on spreads that are off, then on zeros that were predicted."""
        failed = [cause for cause in self.causes if not cause.idle]
        for place, cause in enumerate(failed[:SHOWN]):
            yield from _told(cause, "also off, by itself" if place else "first off", own=self.weight_draws == 1)
        for cause in self.idle[:1]:
            yield from _told(cause, "a remark, as no weight and no output meets it", own=self.weight_draws == 1)
        if wrong := self.spread_off:
            yield _wrong_spread(wrong)
        if unlike := self.similarity_off:
            first = unlike[0]
            yield (
                f"a remark, which fails no check: similarity of samples is off at {len(unlike)}, the first "
                f"{first.name}: predicted {first.similarity:.2f}, measured {first.similarity_measured:.2f} (allowed "
                f"±{first.similarity_allowed:.2f})"
            )
        if zeros := sum(c.zero for c in self.comparisons):
            backward = any(c.direction == "backward" for c in self.comparisons)
            why = "zero-initialised gates or readouts" + (", biases before norms" if backward else "")
            yield f"zero, as predicted ({why}): {zeros}"

    def _scattered(self) -> Iterator[str]:
        """Yield lines on signals whose second moment scatters between draws, too much to judge some of them."""
        if ill := self.ill_conditioned:
            widest = max(ill, key=_spread)
            how = "varies" if widest.spread_off else "is predicted to vary"
            yield (
                f"ill-conditioned: {len(ill)}; their second moment {how} by up to {_spread(widest):.1f} octaves "
                f"between weight draws ({widest.name})"
            )
        if undecided := self.undecided:
            yield (
                f"undecided: {len(undecided)} miss by more than {DOUBT:g} octave, as the passes do among themselves, "
                f"the first {undecided[0].name}; more draws tell"
            )
        if one_set := self.one_set:
            yield (
                f"of one set of weights: {len(one_set)} miss by more than {DOUBT:g} octave, as others of such sizes "
                f"do among themselves, the first {one_set[0].name}; no draws of these tell"
            )

    def _left_out(self) -> Iterator[str]:
        """Yield lines on what was not compared, not repeated, not seen whole or is on one side alone."""
        if self.heavy:
            yield f"not compared, as no expectation means anything there: {len(self.heavy)}, the first {self.heavy[0]}"
        if self.ended:
            yield f"not repeated from {self.ended} on: it depends on values how many elements meet there"
        yield from (f"not seen whole: {remark}" for remark in self.remarks)
        yield from self.inputs
        if self.unmatched:
            yield f"without a counterpart: {len(self.unmatched)}, the first {self.unmatched[0]}"

    @property
    def weights(self) -> str:
        """Which weights were checked, in words."""
        return "the model's own weights" if self.weight_draws == 1 else f"{self.weight_draws} weight draws of the plan"

    def _outcome(self) -> str:
        """Return in words what was found."""
        if not self.comparisons:
            return "nothing was compared"
        failed = [cause for cause in self.causes if not cause.idle]
        off, idle = sum(cause.count for cause in failed), sum(cause.count for cause in self.idle)
        parts = [f"{off} off" + (f", of {_causes(len(failed))}" if off > 1 else "")] if off else []
        if self.spread_off:
            parts.append(f"{len(self.spread_off)} with another spread than predicted")
        if self.trunk:
            parts.append(f"{len(self.trunk)} without an expectation, which weights meet")
        if wrong := self.own.wrong:
            parts.append(f"{len(wrong)} of the model's own parameters wrong")
        met = "; ".join(parts) or "all as predicted"
        return met + (f"; {idle} off that no weight and no output meets" if idle else "")

    def table(self, limit: int = 10) -> Group:
        """Return a rich renderable: the ``limit`` nodes nearest to or beyond what is allowed, and the summary."""
        table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
        table.add_column("node", overflow="fold", ratio=1)
        columns = ("predicted", "measured", "error", "allowed", *(["passes"] if self.again else []))
        for column in columns:
            table.add_column(column, justify="right", no_wrap=True)
        for c in sorted(self.comparisons, key=lambda c: -c.excess)[:limit]:
            style = "red" if c.off else None
            figures = (f"{c.predicted:.2g}", f"{c.measured:.2g}", f"{c.error:+.2f}", f"{c.allowed:.2f}", str(c.passes))
            table.add_row(cell(_named(c)), *figures[: len(columns)], style=style)
        return Group(table, cell(self.summary()))

    def to_json(self) -> str:
        """Return the verdict as JSON; numbers that JSON does not have are the strings "inf", "-inf" and "nan"."""
        nodes = [
            {field: getattr(c, field) for field in (*Comparison.__dataclass_fields__, *_SAID)} for c in self.comparisons
        ]
        document = {
            "model": self.model,
            "ok": self.ok,
            "draws": self.draws,
            "weight_draws": self.weight_draws,
            "again": self.again,
            "confirmed": self.confirmed,
            "dismissed": self.dismissed,
            "undecided": [c.name for c in self.undecided],
            "one_set": [c.name for c in self.one_set],
            "percentiles": {str(p): self.percentile(p) for p in (50, 95, 100)},
            "first": None if self.first is None else self.first.name,
            "worst": None if self.worst is None else self.worst.name,
            "causes": [_as_json(cause) for cause in self.causes],
            "unmatched": self.unmatched,
            "heavy": self.heavy,
            "trunk": self.trunk,
            "ended": self.ended,
            "remarks": self.remarks,
            "inputs": self.inputs,
            "own": {
                "planned": self.own.planned,
                "applied": self.own.applied,
                "trained": self.own.trained,
                "wrong": {one.name: one.words for one in self.own.wrong},
                "deviations": {one.name: one.words for one in self.own.deviations},
            },
            "nodes": nodes,
        }
        return to_json(document)


_SAID = ("off", "spread_off", "similarity_off", "zero")
"""What a comparison says of itself, beside its fields."""


def _percentile(errors: Sequence[float], percent: float) -> float:
    return float(np.percentile(errors, percent, method="higher")) if errors else 0.0


def _as_json(cause: Cause) -> dict[str, object]:
    at = {"name": cause.first.name, "direction": cause.first.direction, "nodes": cause.count}
    return {**at, "undone": cause.undone, "idle": cause.idle}


def _named(item: Comparison) -> str:
    return item.name if item.direction == "forward" else f"∂/∂ {item.name}"


def _spread(item: Comparison) -> float:
    """Return how much a second moment varies between weight draws: as predicted, or as measured where that is off."""
    return item.spread_measured if item.spread_off else item.spread


def _causes(count: int) -> str:
    return "one cause" if count == 1 else f"{count} causes"


def _told(cause: Cause, what: str, own: bool) -> list[str]:
    """Return in words one cause of errors, and how to have its first node explained."""
    gradient = cause.first.direction == "backward"
    lines = [f"{what}: {'the gradient with respect to ' if gradient else ''}{cause.first}"]
    if cause.undone:
        lines.append(f"undone before the outputs: from {cause.undone} on, all that follows from it is as predicted")
    if not gradient:
        name = cause.first.name
        plan, options = ("", "") if own else (", plan=plan", ", with the options of the plan")
        command = f"wellposed explain MODEL {shlex.quote(name)}{options}"
        lines.append(f"why: wp.explain(model, {name!r}, ...{plan}), or {command}")
    return lines


def _wrong_spread(wrong: Sequence[Comparison]) -> str:
    """Return in words how far predicted spreads are off, at the first node and at the worst."""
    worst = max(wrong, key=lambda c: max(c.spread - c.spread_most, c.spread_least - c.spread))
    return (
        f"spread between weight draws off: {len(wrong)}, the first {wrong[0].name}; at {worst.name} {worst.spread:.2f} "
        f"octaves were predicted, and {worst.spread_measured:.2f} measured, for which {worst.spread_least:.2f} to "
        f"{worst.spread_most:.2f} pass"
    )
