"""What a check of transfer returns: loss over rate for every size and way, and how far the best rate moves."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Literal, Self

import numpy as np
from pydantic import Field

from wellposed.plans.files import write_whole
from wellposed.rates.panels import Curve, Panel, drawing
from wellposed.rates.rate import Point, Record
from wellposed.rates.valley import change, loss_at
from wellposed.showing import ROWS, Shown, Summary, cell
from wellposed.tables import Table

Open = Literal["", "below", "above", "both"]
Verdict = Literal["carries", "moves", "undecided"]

_BOUNDS: dict[Open, str] = {"": "", "below": "≤ ", "above": "≥ ", "both": "? "}
COMPARATIVES = {"width": "wider", "depth": "deeper"}


class SizeCurve(Record):
    """Loss over rate at one size.

    Attributes:
        size: of the model.
        points: every rate of the sweep, ascending, with the loss of each seed.
        starts: loss of the first batch before training, of each seed.
        reference: the loss without training, from which gains are counted.
        rates: best rate of each seed: the geometric centre of the rates within a tenth of the gain.
        error: standard deviation of the best rate for want of rates between those that were tried, in octaves.
        open: at which ends the rates that were tried end inside of the valley, so that the best rate is a bound.
        carried: the rate that is best at the smallest size, trained at this one.
    """

    size: int
    points: tuple[Point, ...] = Field(strict=False)
    starts: tuple[float, ...] = Field(strict=False)
    reference: float
    rates: tuple[float, ...] = Field(strict=False)
    error: float
    open: Open
    carried: Point

    @property
    def rate(self) -> float:
        """The best rate: the geometric mean over seeds."""
        return math.exp(sum(math.log(rate) for rate in self.rates) / len(self.rates))

    @property
    def carried_loss(self) -> float:
        """Mean loss at the rate that is best at the smallest size; infinite where a run diverged."""
        return math.inf if self.carried.mean is None else self.carried.mean

    @property
    def best_loss(self) -> float:
        """The smallest mean loss at any rate that was tried."""
        return min((point.mean for point in (*self.points, self.carried) if point.mean is not None), default=math.inf)

    @property
    def own_loss(self) -> float:
        """Mean loss at the best rate of this size, interpolated between the rates that were tried."""
        return loss_at(self.losses, math.log2(self.rate), self.reference)

    @property
    def losses(self) -> dict[float, float | None]:
        """The mean loss at every rate of the sweep; None where a run diverged."""
        return {point.rate: point.mean for point in self.points}


class WayTransfer(Record):
    """How one way carries the best rate from the smallest size to the largest.

    Attributes:
        name: of the way.
        curves: loss over rate, by ascending size.
        shift: by how many octaves the best rate moves from the smallest size to the largest.
        interval: of the shift; None at an end that the rates which were tried do not bound.
        worsening: by how much the loss at the carried rate rises from the smallest size to the largest, with its
            interval; None where a run diverged there.
        verdict: ``"carries"`` where the whole interval of the shift is within the tolerance, ``"moves"`` where all of
            it is beyond, else ``"undecided"``.
    """

    name: str
    curves: tuple[SizeCurve, ...] = Field(strict=False)
    shift: float
    interval: tuple[float | None, float | None] = Field(strict=False)
    worsening: tuple[float, float, float] | None = Field(strict=False)
    verdict: Verdict

    @property
    def rate(self) -> float:
        """The best rate at the smallest size, which is carried."""
        return self.curves[0].rate

    @property
    def carried_loss(self) -> float:
        """Mean loss of the largest size at the rate that is best at the smallest; infinite where a run diverged."""
        return self.curves[-1].carried_loss

    @property
    def best_loss(self) -> float:
        """The smallest mean loss of the largest size at any rate that was tried."""
        return self.curves[-1].best_loss

    @property
    def own_loss(self) -> float:
        """Mean loss of the largest size at its own best rate."""
        return self.curves[-1].own_loss

    def moved(self) -> str:
        """Return the shift and its interval in words."""
        low, high = self.interval
        if low is None and high is None:
            return "best rate moves by an amount that the rates tried do not bound"
        if low is None or high is None:
            return f"best rate moves by at {'most' if low is None else 'least'} {self.shift:+.1f} octaves"
        return f"best rate moves {self.shift:+.1f} octaves [{low:+.1f}, {high:+.1f}]"


class TransferCheck(Shown, Record):
    """The result of `wellposed.check_transfer`.

    Attributes:
        axis: what the sizes are: ``"width"``, ``"depth"`` or another word.
        sizes: the sizes, ascending.
        ways: what was found for each way of initialising and of setting rates, by name.
        optimizer: the optimizer's family or class.
        steps: optimizer steps of each run.
        seeds: runs at each rate, each with its own weights and order of batches.
        schedule: how the rate changes over the steps.
        loss: what the losses are, in words.
        confidence: of the intervals.
        tolerance: the shift in octaves up to which a rate counts as carried.
        warnings: where figures mean less than they seem.
    """

    axis: str
    sizes: tuple[int, ...] = Field(strict=False)
    ways: dict[str, WayTransfer]
    optimizer: str
    steps: int
    seeds: int
    schedule: str
    loss: str
    confidence: float
    tolerance: float
    warnings: tuple[str, ...] = Field(default=(), strict=False)

    def __getitem__(self, name: str) -> WayTransfer:
        """Return what was found for a way."""
        return self.ways[name]

    def __str__(self) -> str:
        """Return how far the best rate moves with each way, in one line."""
        return f"from {self.axis} {self.sizes[0]} to {self.sizes[-1]}: " + "; ".join(
            f"{name}: {way.moved()}, {way.verdict}" for name, way in self.ways.items()
        )

    def _summary(self) -> Summary:
        """Return the ways with the smallest shifts."""
        least = sorted(self.ways.values(), key=lambda way: abs(way.shift))[:ROWS]
        return Summary(
            f"Transfer over {self.axis} {', '.join(map(str, self.sizes))}: {self.steps} steps of {self.optimizer}, "
            f"{self.seeds} seeds, schedule {self.schedule}; {self.loss}",
            ("way", "octaves", f"loss at {self.axis} {self.sizes[-1]}", "at its own best rate", ""),
            tuple(
                (way.name, _octaves(way), _number(way.carried_loss), _number(way.own_loss), way.verdict)
                for way in least
            ),
            len(self.ways) - len(least),
            "those that move the least",
        )

    def comparison(self, name: str) -> str:
        """Return in words whether larger models are better or worse at the rate that is carried to them."""
        way = self.ways[name]
        word, last = COMPARATIVES.get(self.axis, "larger"), f"{self.axis} {self.sizes[-1]}"
        if way.worsening is None:
            return f"{name}: runs diverge at the carried rate {way.rate:.3g} at {last} or before"
        rise, low, high = way.worsening
        how = "worse" if low > 0 else "better" if high < 0 else "neither better nor worse beyond chance"
        return (
            f"{name}: at the carried rate {way.rate:.3g} {word} is {how} ({rise:+.3g} [{low:+.2g}, {high:+.2g}]); "
            f"{last} has loss {way.carried_loss:.4g} there, {way.own_loss:.4g} at its own best rate "
            f"({way.best_loss:.4g} is the least at any)"
        )

    def summary(self) -> str:
        """Return all findings in words, a line for each, with the warnings."""
        lines = [self._summary().line]
        lines += [f"{name}: {way.moved()} ({way.verdict})" for name, way in self.ways.items()]
        lines += [self.comparison(name) for name in self.ways]
        return "\n".join([*lines, *(f"warning: {text}" for text in self.warnings)])

    def table(self) -> Table:
        """Return best rates and losses by way and size, as a rich table."""
        table = Table(title=cell(str(self)))
        first, *others = self.columns
        table.add_column(first, overflow="fold")
        for title in others:
            table.add_column(title, justify="right")
        rows = self.rows()
        for index, (name, *texts) in enumerate(rows):
            last = index + 1 == len(rows) or bool(rows[index + 1][0])
            table.add_row(cell(name), *texts, end_section=last)
        return table

    @property
    def columns(self) -> tuple[str, ...]:
        """The titles of `rows`."""
        return ("way", self.axis, "best rate", "octaves", "loss there", "least loss", "loss at carried rate")

    def rows(self) -> list[tuple[str, ...]]:
        """Return best rates and losses as texts, a row for each way and size; a way is named in its first row."""
        return [
            (
                "" if index else name,
                str(curve.size),
                f"{_BOUNDS[curve.open]}{curve.rate:.3g}",
                f"{math.log2(curve.rate / way.rate):+.2f}" if index else "",
                _number(curve.own_loss),
                _number(curve.best_loss),
                _number(curve.carried_loss),
            )
            for name, way in self.ways.items()
            for index, curve in enumerate(way.curves)
        ]

    def to_json(self) -> str:
        """Return the result as JSON; a loss of a run that diverged is null."""
        return self.model_dump_json(indent=2)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return a result from the text of `to_json`.

        Raises:
            pydantic.ValidationError: the text is none.
        """
        return cls.model_validate_json(text)

    def figure(self) -> str:
        """Return a picture as SVG: loss over rate, one panel for each way, one curve for each size.

        A dot marks the best rate of a size and its bar the rates between seeds; the dashed line is the rate that is
        best at the smallest size; a cross stands for runs that diverged.
        """
        panels = [
            Panel(
                name,
                way.moved(),
                tuple(
                    Curve(
                        f"{self.axis} {curve.size}",
                        {math.log2(rate): loss for rate, loss in curve.losses.items()},
                        math.log2(curve.rate),
                        (math.log2(min(curve.rates)), math.log2(max(curve.rates))),
                        curve.own_loss,
                        curve.reference,
                    )
                    for curve in way.curves
                ),
            )
            for name, way in self.ways.items()
        ]
        return drawing(panels, "learning rate, log₂", self.loss.partition(",")[0])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture (`figure`) to a file.

        Raises:
            OSError: the file cannot be written.
        """
        write_whole(path, self.figure())


def way_transfer(name: str, curves: Sequence[SizeCurve], confidence: float, tolerance: float) -> WayTransfer:
    """Return how the best rate moves over the sizes of one way, with its interval and verdict."""
    first, last = curves[0], curves[-1]
    octaves = np.log2([curve.rates for curve in curves])
    shift, (low, high) = change(octaves, confidence, math.hypot(first.error, last.error))
    falls = first.open in ("above", "both") or last.open in ("below", "both")  # the shift is at most that
    rises = first.open in ("below", "both") or last.open in ("above", "both")
    return WayTransfer(
        name=name,
        curves=tuple(curves),
        shift=shift,
        interval=(None if falls else low, None if rises else high),
        worsening=_worsening(curves, confidence),
        verdict=_verdict(None if falls else low, None if rises else high, tolerance),
    )


def _verdict(low: float | None, high: float | None, tolerance: float) -> Verdict:
    """Return what the interval of a shift in octaves says; an end is None where the shift may lie beyond it."""
    if (low is not None and low > tolerance) or (high is not None and high < -tolerance):
        return "moves"
    within = low is not None and high is not None and -tolerance <= low and high <= tolerance
    return "carries" if within else "undecided"


def _worsening(curves: Sequence[SizeCurve], confidence: float) -> tuple[float, float, float] | None:
    """Return how much the loss at the carried rate grows over the sizes, with its interval; None if a run diverged."""
    losses = [curve.carried.losses for curve in curves]
    if any(loss is None for row in losses for loss in row):
        return None
    rise, (least, most) = change(np.asarray(losses, dtype=float), confidence)
    return rise, least, most


def _octaves(way: WayTransfer) -> str:
    """Return in words the shift of a way's best rate, with the end of its interval that is open as ≤, ≥ or ?."""
    low, high = way.interval
    if low is None or high is None:
        sign = "?" if low is None and high is None else "≤" if low is None else "≥"
        return f"{sign} {way.shift:+.2f}"
    return f"{way.shift:+.2f} [{low:+.2f}, {high:+.2f}]"


def _number(loss: float) -> str:
    return f"{loss:.4g}" if math.isfinite(loss) else "diverged"
