"""The verdict on a model: predicted signals held against measured ones, node by node, and how that is shown."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from wellposed.checks.causes import Cause, find_causes
from wellposed.checks.chance import STEADY, Share, shares, without_rounding
from wellposed.checks.comparison import DOUBT, ILL_CONDITIONED, Comparison, Direction, compare_one
from wellposed.checks.intervals import ERROR_RATE
from wellposed.checks.strict_json import to_json
from wellposed.errors import InputError, OptionError
from wellposed.graphs import Graph
from wellposed.graphs.operators import uninitialised
from wellposed.showing import ROWS, Shown, Summary, cell, visible
from wellposed.signals.signal import Signal, Signals
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
        ended: the first node that not every pass came to, as a shape depends on values; what follows is unmatched.
        again: fresh passes, which decided on what a first look left in doubt; 0 where it left nothing.
        confirmed, dismissed: names of what they found off, and of what they did not.
        remarks: what keeps the passes from showing the whole model, as the graph says it.
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

    @property
    def ok(self) -> bool:
        """Whether something was compared, and neither a second moment nor a predicted spread is off."""
        return bool(self.comparisons) and self.first is None and not self.spread_off

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
    def doubted(self) -> tuple[Comparison, ...]:
        """What is off, or undecided: fresh passes tell, and `wellposed.check` makes them."""
        return tuple(c for c in self.comparisons if c.off or c.spread_off or c.excused)

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
        errors = [math.inf if math.isnan(c.error) else abs(c.error) for c in self.comparisons]
        return float(np.percentile(errors, percent, method="higher")) if errors else 0.0

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
        zeros = sum(c.zero for c in self.comparisons)
        gradients = sum(c.direction == "backward" for c in self.comparisons)
        counted = f"{len(self.comparisons) - gradients} nodes" + (f" and {gradients} gradients" if gradients else "")
        lines = [
            f"{self.model}: {counted}, {self.draws} passes, {self.weights}: {self._outcome()}",
        ]
        if self.comparisons:
            percentiles = (f"{p}th percentile {self.percentile(p):.2f}" for p in (50, 95, 100))
            lines.append(f"error in octaves: {', '.join(percentiles)}")
        if self.again:
            doubted = len(self.confirmed) + len(self.dismissed)
            lines.append(
                f"in doubt after {self.draws - self.again} passes, and decided by {self.again} fresh ones: {doubted}, "
                f"of which {len(self.confirmed) or 'none'} confirmed"
            )
        for place, cause in enumerate(self.causes[:SHOWN]):
            lines += _told(cause, "also off, by itself" if place else "first off", own=self.weight_draws == 1)
        if wrong := self.spread_off:
            lines.append(_wrong_spread(wrong))
        if zeros:
            why = "zero-initialised gates or readouts" + (", biases before norms" if gradients else "")
            lines.append(f"zero, as predicted ({why}): {zeros}")
        if ill := self.ill_conditioned:
            widest = max(ill, key=_spread)
            how = "varies" if widest.spread_off else "is predicted to vary"
            lines.append(
                f"ill-conditioned: {len(ill)}; their second moment {how} by up to {_spread(widest):.1f} octaves "
                f"between weight draws ({widest.name})"
            )
        if undecided := self.undecided:
            lines.append(
                f"undecided: {len(undecided)} miss by more than {DOUBT:g} octave, as the passes do among themselves, "
                f"the first {undecided[0].name}; more draws tell"
            )
        if one_set := self.one_set:
            lines.append(
                f"of one set of weights: {len(one_set)} miss by more than {DOUBT:g} octave, as others of such sizes "
                f"do among themselves, the first {one_set[0].name}; no draws of these tell"
            )
        if self.heavy:
            lines.append(
                f"not compared, as no expectation means anything there: {len(self.heavy)}, the first {self.heavy[0]}"
            )
        if self.ended:
            lines.append(f"not repeated from {self.ended} on: it depends on values how many elements meet there")
        lines += [f"not seen whole: {remark}" for remark in self.remarks]
        if self.unmatched:
            lines.append(f"without a counterpart: {len(self.unmatched)}, the first {self.unmatched[0]}")
        return visible("\n".join(lines))

    @property
    def weights(self) -> str:
        """Which weights were checked, in words."""
        return "the model's own weights" if self.weight_draws == 1 else f"{self.weight_draws} weight draws of the plan"

    def _outcome(self) -> str:
        """Return in words what was found."""
        if not self.comparisons:
            return "nothing was compared"
        off = sum(cause.count for cause in self.causes)
        parts = [f"{off} off" + (f", of {_causes(len(self.causes))}" if off > 1 else "")] if off else []
        if self.spread_off:
            parts.append(f"{len(self.spread_off)} with another spread than predicted")
        return "; ".join(parts) or "all as predicted"

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
            {field: getattr(c, field) for field in (*Comparison.__dataclass_fields__, "off", "spread_off", "zero")}
            for c in self.comparisons
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
            "causes": [
                {"name": c.first.name, "direction": c.first.direction, "nodes": c.count, "undone": c.undone}
                for c in self.causes
            ],
            "unmatched": self.unmatched,
            "heavy": self.heavy,
            "ended": self.ended,
            "remarks": self.remarks,
            "nodes": nodes,
        }
        return to_json(document)


def compare(
    predicted: Signals,
    measured: Signals,
    *,
    model: str = "",
    draws: int,
    weight_draws: int,
    tolerance: float | None = None,
    graph: Graph | None = None,
    scatter: Signals | None = None,
    before: Verdict | None = None,
) -> Verdict:
    """Hold predicted signals against measured ones of the same names, and their gradients where both have them.

    A node is off where the prediction lies further than ``tolerance`` outside the confidence interval of the measured
    mean (`intervals.log_normal_mean`). What the interval rests on is the scatter that the passes show; the predicted
    one, ``log2_std``, allows nothing, and is compared as well. Uninitialised memory is no signal, and left out.

    Args:
        predicted: the one side.
        measured: the other.
        model: class name of the model.
        draws: passes that were measured.
        weight_draws: different weights among them.
        tolerance: octaves; by default `TOLERANCE` of the prediction's tag.
        graph: tells which nodes that are off share a cause; without it each has its own.
        scatter: of what one set of weights was measured of, what as many passes show with others of its moments.
        before: the verdict of a first look, if these are fresh passes: they alone decide on what it left in doubt, and
            all else stands. Their error rate is the square of `ERROR_RATE`: of twice as many passes, an interval as
            wide as the first.

    Raises:
        OptionError: a tolerance that is not a number >= 0.
        InputError: no signal is in both.
    """
    if tolerance is not None and not tolerance >= 0:
        raise OptionError(f"tolerance must be a number of octaves >= 0, got {tolerance!r}")
    earlier = {} if before is None else {_key(c): c for c in before.comparisons}
    doubted = set() if before is None else {_key(c) for c in before.doubted}
    rate = ERROR_RATE if before is None else ERROR_RATE**2
    comparisons: list[Comparison] = []
    unmatched: list[str] = []
    heavy: list[str] = []
    for direction, foreseen, seen, scattered in _sides(predicted, measured, scatter):
        masks: dict[str, Share] = {}
        if graph is not None and direction == "forward":
            expected = {signal.name: signal for signal in foreseen}
            masks, seen = shares(graph, expected, draws), without_rounding(graph, expected, seen)
        for signal in foreseen:
            name = signal.name
            known = earlier.get((direction, signal.op, name))
            if known is not None and not (name in seen and _key(known) in doubted):
                comparisons.append(known)
            elif name in seen and signal.tag == "heavy":
                heavy.append(name)
            elif name in seen:
                scattering = scattered.get(name, seen[name] if weight_draws > 1 else None)
                chance = scattering, masks.get(name, STEADY), rate
                comparisons.append(compare_one(signal, seen[name], direction, draws, tolerance, *chance))
            else:
                unmatched.append(name)
        predicted_names = {signal.name for signal in foreseen}
        unmatched += [name for name in seen if name not in predicted_names]
    if not comparisons and not heavy and (len(predicted) or len(measured)):
        raise InputError("no signal is both predicted and measured; were both made from the same graph?")
    causes = find_causes(comparisons, graph)
    verdict = Verdict(
        tuple(comparisons), tuple(unmatched), model, draws, weight_draws, causes, tuple(heavy), measured.ended,
        remarks=() if graph is None else graph.remarks,
    )  # fmt: skip
    return verdict if before is None else _after(before, verdict)


def _after(before: Verdict, verdict: Verdict) -> Verdict:
    """Return a verdict on fresh passes as that on all passes."""
    doubted = {_key(c) for c in before.doubted}
    decided = [c for c in verdict.comparisons if _key(c) in doubted]
    return replace(
        before,
        comparisons=verdict.comparisons,
        causes=verdict.causes,
        draws=before.draws + verdict.draws,
        weight_draws=before.weight_draws + verdict.weight_draws if before.weight_draws > 1 else 1,
        again=verdict.draws,
        confirmed=tuple(c.name for c in decided if c.off or c.spread_off),
        dismissed=tuple(c.name for c in decided if not (c.off or c.spread_off)),
    )


def _key(item: Comparison) -> tuple[Direction, str, str]:
    """Return what a comparison is told from all others by."""
    return item.direction, item.op, item.name


Named = dict[str, Signal]


def _sides(
    predicted: Signals, measured: Signals, scatter: Signals | None
) -> Iterator[tuple[Direction, list[Signal], Named, Named]]:
    """Yield what is to be compared: the signals, then, where both sides have them, the gradients."""
    for field in ("", "gradients", "input_gradients", "parameter_gradients"):
        mine, theirs, others = (
            side if side is None or not field else getattr(side, field) for side in (predicted, measured, scatter)
        )
        if mine is not None and theirs is not None:
            foreseen = [signal for signal in mine if not uninitialised(signal.op)]
            seen, scattered = (
                {signal.name: signal for signal in side or () if not uninitialised(signal.op)}
                for side in (theirs, others)
            )
            order = list(reversed(foreseen)) if field == "gradients" else foreseen
            yield "backward" if field else "forward", order, seen, scattered


def _named(item: Comparison) -> str:
    return item.name if item.direction == "forward" else f"∂/∂ {item.name}"


def _spread(item: Comparison) -> float:
    """Return how much a second moment varies between weight draws: as predicted, or as measured where that is off."""
    return item.spread_measured if item.spread_off else item.spread


def _causes(count: int) -> str:
    return "one cause" if count == 1 else f"{count} causes"


def _told(cause: Cause, what: str, own: bool) -> list[str]:
    """Return in words what is off together."""
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
    """Return in words what is wrong about predicted spreads."""
    worst = max(wrong, key=lambda c: max(c.spread - c.spread_most, c.spread_least - c.spread))
    return (
        f"spread between weight draws off: {len(wrong)}, the first {wrong[0].name}; at {worst.name} {worst.spread:.2f} "
        f"octaves were predicted, and {worst.spread_measured:.2f} measured, for which {worst.spread_least:.2f} to "
        f"{worst.spread_most:.2f} pass"
    )
