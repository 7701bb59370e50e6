"""Predicted signals held against measured ones, node by node: the comparison itself, and how it is shown."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text
from scipy import special

from wellposed.checks.strict_json import to_json
from wellposed.errors import InputError, OptionError
from wellposed.graphs.operators import uninitialised
from wellposed.signals.signal import Signal, Signals, Tag

Direction = Literal["forward", "backward"]

TOLERANCE: Mapping[Tag, float] = MappingProxyType({"exact": 0.15, "approximate": 0.35, "sampled": 0.35, "assumed": 1.0})
"""Octaves by which a prediction may miss, by its tag.

Rules tagged exact are exact for infinitely many channels, and reach 0.15 on nets of ordinary width; approximate and
sampled ones leave the residual of nets without norm layers, 0.35; for a node that was only assumed neutral, a factor
of two.
"""

ILL_CONDITIONED = 1.0
"""Predicted spread, in octaves from one weight draw to the next, from which on a node is called ill-conditioned."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One signal, or the gradient with respect to one tensor: what was predicted and what was measured.

    Attributes:
        name, module, op, shape: as in `Signal`.
        direction: ``forward`` for a signal, ``backward`` for a gradient; that of a parameter or an input of the model
            has ``parameter`` or ``input`` as its op.
        tag: the prediction's tag.
        predicted, measured: second moments.
        error: log2(predicted / measured); 0 where both are zero or both infinite, ±inf where one of them is, NaN
            where one is NaN.
        standard_error: of log2 of ``measured``, in octaves: the larger of the one seen and the one that the predicted
            spread implies for as many weight draws.
        spread: predicted standard deviation of the second moment from one weight draw to the next, in octaves.
        allowed: tolerance + 2 standard errors; more of the one seen where few draws were made (Student's t).
    """

    name: str
    module: str
    op: str
    shape: tuple[int, ...]
    direction: Direction
    tag: Tag
    predicted: float
    measured: float
    error: float
    standard_error: float
    spread: float
    allowed: float

    @property
    def off(self) -> bool:
        """Whether the error is larger than allowed, or is not known (NaN)."""
        return not abs(self.error) <= self.allowed

    @property
    def excess(self) -> float:
        """Octaves beyond what is allowed (negative where it is within); infinite for NaN."""
        excess = abs(self.error) - self.allowed
        return math.inf if math.isnan(excess) else excess

    @property
    def zero(self) -> bool:
        """Whether the signal is zero, as predicted: a zero-initialised gate or readout, or what it multiplies."""
        return self.predicted == self.measured == 0

    def __str__(self) -> str:
        what = "E[x²]" if self.direction == "forward" else "E[g²]"
        return (
            f"{self.name} ({self.op}): predicted {what} = {self.predicted:.3g}, measured {self.measured:.3g}, "
            f"off by {self.error:+.2f} octaves (allowed ±{self.allowed:.2f})"
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of `wellposed.check`.

    Attributes:
        comparisons: every signal that was both predicted and measured, in execution order; then the gradients,
            in the order in which a backward pass makes them: by nodes, the last first, by inputs, by parameters.
        unmatched: names that only one side knows.
        model: class name of the model.
        draws: passes that were measured.
        weight_draws: different weights among them (1 where the model's own weights were kept).
    """

    comparisons: tuple[Comparison, ...]
    unmatched: tuple[str, ...]
    model: str
    draws: int
    weight_draws: int

    @property
    def ok(self) -> bool:
        """Whether no node is off."""
        return self.first is None

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
        """The signals whose second moment is predicted to differ between weight draws by `ILL_CONDITIONED` or more."""
        return tuple(c for c in self.comparisons if c.spread >= ILL_CONDITIONED)

    def percentile(self, percent: float) -> float:
        """Return the ``percent``-th percentile of |error| over the nodes, in octaves.

        NaN counts as infinite, zeros that agree as 0.
        """
        errors = [math.inf if math.isnan(c.error) else abs(c.error) for c in self.comparisons]
        return float(np.percentile(errors, percent, method="higher")) if errors else 0.0

    def summary(self) -> str:
        """Return the outcome in words: counts, percentiles, the first node that is off, and the conditioning."""
        off = sum(c.off for c in self.comparisons)
        zeros = sum(c.zero for c in self.comparisons)
        gradients = sum(c.direction == "backward" for c in self.comparisons)
        counted = f"{len(self.comparisons) - gradients} nodes" + (f" and {gradients} gradients" if gradients else "")
        lines = [
            f"{self.model}: {counted}, {self.draws} passes, {self.weight_draws} weight draw"
            f"{'' if self.weight_draws == 1 else 's'}: " + ("all as predicted" if self.ok else f"{off} off"),
            "error in octaves: " + ", ".join(f"{p}th percentile {self.percentile(p):.2f}" for p in (50, 95, 100)),
        ]
        if self.first is not None:
            gradient = "the gradient with respect to " if self.first.direction == "backward" else ""
            lines.append(f"first off: {gradient}{self.first}")
            if not gradient:
                name = self.first.name
                lines.append(f"why: wp.explain(model, {name!r}, ...), or wellposed explain MODEL {shlex.quote(name)}")
        if zeros:
            why = "zero-initialised gates or readouts" + (", biases before norms" if gradients else "")
            lines.append(f"zero, as predicted ({why}): {zeros}")
        if ill := self.ill_conditioned:
            widest = max(ill, key=lambda c: c.spread)
            lines.append(
                f"ill-conditioned: {len(ill)}; their second moment is predicted to vary by up to {widest.spread:.1f} "
                f"octaves between weight draws ({widest.name}); tolerances are widened accordingly"
            )
        if self.unmatched:
            lines.append(f"without a counterpart: {len(self.unmatched)}, the first {self.unmatched[0]}")
        return "\n".join(lines)

    def table(self, limit: int = 10) -> Group:
        """Return a rich renderable: the ``limit`` nodes nearest to or beyond what is allowed, and the summary."""
        table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
        table.add_column("node", overflow="fold", ratio=1)
        for column in ("predicted", "measured", "error", "allowed"):
            table.add_column(column, justify="right", no_wrap=True)
        for c in sorted(self.comparisons, key=lambda c: -c.excess)[:limit]:
            style = "red" if c.off else None
            figures = (f"{c.predicted:.2g}", f"{c.measured:.2g}", f"{c.error:+.2f}", f"{c.allowed:.2f}")
            table.add_row(Text(c.name if c.direction == "forward" else f"∂/∂ {c.name}"), *figures, style=style)
        return Group(table, Text(self.summary()))

    def to_json(self) -> str:
        """Return the verdict as JSON; numbers that JSON does not have are the strings "inf", "-inf" and "nan"."""
        nodes = [
            {field: getattr(c, field) for field in (*Comparison.__dataclass_fields__, "off", "zero")}
            for c in self.comparisons
        ]
        document = {
            "model": self.model,
            "ok": self.ok,
            "draws": self.draws,
            "weight_draws": self.weight_draws,
            "percentiles": {str(p): self.percentile(p) for p in (50, 95, 100)},
            "first": None if self.first is None else self.first.name,
            "worst": None if self.worst is None else self.worst.name,
            "unmatched": self.unmatched,
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
) -> Verdict:
    """Hold predicted signals against measured ones of the same names, and their gradients where both have them.

    A node is off where |log2(predicted / measured)| > tolerance + 2 standard errors. ``tolerance`` is in octaves, by
    default `TOLERANCE` of the prediction's tag. Two standard errors are those of the measurement, widened for few
    draws as Student's t is (`student`), or those that ``log2_std / sqrt(weight_draws)`` implies, whichever are larger:
    few draws of an ill-conditioned net show neither its mean nor its spread. Uninitialised memory is no signal, and
    left out.

    Raises:
        OptionError: a tolerance that is not a number >= 0.
        InputError: no signal is in both.
    """
    if tolerance is not None and not tolerance >= 0:
        raise OptionError(f"tolerance must be a number of octaves >= 0, got {tolerance!r}")
    comparisons: list[Comparison] = []
    unmatched: list[str] = []
    for direction, foreseen, seen in _pairs(predicted, measured):
        for signal in foreseen:
            if signal.name in seen:
                comparison = _compare_one(signal, seen[signal.name], direction, draws, weight_draws, tolerance)
                comparisons.append(comparison)
            else:
                unmatched.append(signal.name)
        known = {signal.name for signal in foreseen}
        unmatched += [name for name in seen if name not in known]
    if not comparisons and (len(predicted) or len(measured)):
        raise InputError("no signal is both predicted and measured; were both made from the same graph?")
    return Verdict(tuple(comparisons), tuple(unmatched), model, draws, weight_draws)


def _pairs(predicted: Signals, measured: Signals) -> Iterator[tuple[Direction, list[Signal], dict[str, Signal]]]:
    """Yield what is to be compared: the signals, then, where both sides have them, the gradients."""
    foreseen, seen = ([s for s in signals if not uninitialised(s.op)] for signals in (predicted, measured))
    yield "forward", foreseen, {signal.name: signal for signal in seen}
    for field in ("gradients", "input_gradients", "parameter_gradients"):
        mine: Signals | None = getattr(predicted, field)
        theirs: Signals | None = getattr(measured, field)
        if mine is not None and theirs is not None:
            order = list(reversed(mine)) if field == "gradients" else list(mine)
            yield "backward", order, {signal.name: signal for signal in theirs}


def log2_ratio(predicted: float, measured: float) -> float:
    """Return log2(predicted / measured) of two second moments; 0 where they are equal (also 0 and 0, inf and inf)."""
    if predicted == measured:
        return 0.0
    if math.isnan(predicted) or math.isnan(measured):
        return math.nan
    if predicted == 0 or math.isinf(measured):
        return -math.inf
    if measured == 0 or math.isinf(predicted):
        return math.inf
    return math.log2(predicted) - math.log2(measured)


def _compare_one(
    predicted: Signal, measured: Signal, direction: Direction, draws: int, weight_draws: int, tolerance: float | None
) -> Comparison:
    error = log2_ratio(predicted.second_moment, measured.second_moment)
    implied = predicted.log2_std / math.sqrt(weight_draws)
    seen = 0.0 if math.isnan(measured.log2_error) else measured.log2_error
    base = TOLERANCE[predicted.tag] if tolerance is None else tolerance
    return Comparison(
        name=predicted.name,
        module=predicted.module,
        op=predicted.op,
        shape=predicted.shape,
        direction=direction,
        tag=predicted.tag,
        predicted=predicted.second_moment,
        measured=measured.second_moment,
        error=error,
        standard_error=max(seen, implied),
        spread=predicted.log2_std,
        allowed=base + max(student(draws) * seen, 2 * implied),
    )


def student(draws: int) -> float:
    """Return how many seen standard errors are as unlikely to be exceeded as 2 known ones (95.4 %, Student's t)."""
    return float(special.stdtrit(draws - 1, special.ndtr(2.0))) if draws > 1 else 0.0
