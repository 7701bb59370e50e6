"""From the runs of a search to its result: the rate with its interval, reason and warnings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wellposed import ranks
from wellposed.errors import DivergedError, RateError
from wellposed.rates.grid import lowest, plateau, refined
from wellposed.rates.rate import Conditions, Point, Rate


@dataclass(frozen=True, slots=True)
class Exploration:
    """What the runs of a search gave.

    Attributes:
        curve: every rate that was tried, ascending.
        starts: first loss of every draw of the weights, in the order of the points' losses.
        widened: how often the grid was extended.
    """

    curve: tuple[Point, ...]
    starts: tuple[float, ...]
    widened: int

    @property
    def means(self) -> dict[float, float | None]:
        """The mean loss at every rate; None where a run diverged."""
        return {point.rate: point.mean for point in self.curve}

    @property
    def start(self) -> float:
        """The mean loss before training."""
        return float(np.mean(self.starts))

    @property
    def refined_by_draw(self) -> list[float]:
        """The best rate of every draw of the weights that did not always diverge."""
        losses = [{point.rate: point.losses[index] for point in self.curve} for index in range(len(self.starts))]
        bests = [refined(own, start) for own, start in zip(losses, self.starts, strict=True)]
        return [rate for rate in bests if rate is not None]


def answer(exploration: Exploration, conditions: Conditions, how: str, warnings: Sequence[str]) -> Rate:
    """Return the rate with the smallest loss.

    Args:
        exploration: what the runs gave.
        conditions: under what they were tried.
        how: how the runs were trained, in words.
        warnings: what is known already; what the curve warns of is added.

    Raises:
        DivergedError: every run diverged.
        RateError: no rate changes the loss.
    """
    curve, means, start = exploration.curve, exploration.means, exploration.start
    rates = sorted(means)
    steps = f"{conditions.steps} step{'s' * (conditions.steps != 1)}"
    tried = f"{len(rates)} learning rates from {rates[0]:.3g} to {rates[-1]:.3g}, {steps} each"
    best, value = lowest(means), refined(means, start)
    if best is None or value is None:
        raise DivergedError(
            f"every run diverged ({tried}, first loss {start:.4g}): try a grid of smaller rates, fewer steps, another "
            "initialisation (wellposed.plan), or check that the loss is bounded below"
        )
    if all(len(set(losses)) == 1 for losses in zip(*(point.losses for point in curve), strict=True)):
        raise RateError(f"the loss is {start:.6g} at every rate ({tried}): it depends on no trained parameter")
    bests = exploration.refined_by_draw
    draws = len(exploration.starts)
    diverged = sum(point.mean is None for point in curve)
    reason = (
        f"{tried} of {conditions.optimizer}, {draws} draw{'s' * (draws > 1)} of the weights, trained {how}: the mean "
        f"training loss is smallest, {means[best]:.4g} ({start:.4g} before training), at rate {best:.3g}"
        + (f", refined to {value:.3g} by a parabola in log rate" if value != best else "")
        + (f"; {diverged} rates diverged" if diverged else "")
        + (f"; the grid was extended {exploration.widened} times" if exploration.widened else "")
    )
    return Rate(
        value=value,
        interval=(min(bests), max(bests)) if len(bests) > 1 else None,
        reason=reason,
        curve=curve,
        conditions=conditions,
        warnings=(*warnings, *_warnings(means, best, start)),
    )


def _warnings(means: dict[float, float | None], best: float, start: float) -> list[str]:
    """Return where the best rate means less than it seems."""
    warnings = []
    if best in (min(means), max(means)):
        warnings.append(f"the smallest loss is at an edge of the grid, {best:.3g}: extend the grid, or increase widen")
    if (flat := plateau(means, start)) is not None:
        warnings.append(
            f"the losses at {flat[0]:.3g} and {flat[1]:.3g} are nearly the same: the best rate is not determined "
            "between them; more steps or seeds may decide"
        )
    smallest = means[best]
    assert smallest is not None
    if smallest >= start:
        warnings.append(f"no rate lowered the loss below that of the first batch ({start:.4g})")
    if ranks.ungrouped():
        warnings.append(
            "several processes, but no process group: each searched by itself, on its own batches "
            "(torch.distributed.init_process_group joins them)"
        )
    return warnings
