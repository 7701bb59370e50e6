"""From the runs of a search to its result: the rate with its interval, reason and warnings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wellposed import ranks
from wellposed.errors import DivergedError, RateError
from wellposed.rates.grid import lowest, refined
from wellposed.rates.rate import Conditions, Definition, Plateau, Point, Rate
from wellposed.rates.valley import SHARE, Valley, valley


@dataclass(frozen=True, slots=True)
class Exploration:
    """What the runs of a search gave.

    Attributes:
        curve: every rate that was tried, ascending.
        starts: first loss of every draw of the weights, in the order of the points' losses.
        widened: how often the grid was extended.
        given: the loss without training, if it was given.
        stopped: runs that were stopped, as they lagged.
        gradients: how many all runs took.
    """

    curve: tuple[Point, ...]
    starts: tuple[float, ...]
    widened: int
    given: float | None = None
    stopped: int = 0
    gradients: int = 0

    @property
    def means(self) -> dict[float, float | None]:
        """The mean loss at every rate; None where a run diverged."""
        return {point.rate: point.mean for point in self.curve}

    @property
    def start(self) -> float:
        """The mean loss before training."""
        return float(np.mean(self.starts))

    @property
    def references(self) -> tuple[float, ...]:
        """The loss from which gains are counted, of every draw."""
        return self.starts if self.given is None else (self.given,) * len(self.starts)

    @property
    def by_seed(self) -> list[dict[float, float | None]]:
        """The losses of every draw of the weights, by rate."""
        return [{point.rate: point.losses[index] for point in self.curve} for index in range(len(self.starts))]

    @property
    def valleys(self) -> list[Valley | None]:
        """The valley of every draw of the weights; None where no rate lowers the loss."""
        return [valley(losses, start) for losses, start in zip(self.by_seed, self.references, strict=True)]

    @property
    def argmins(self) -> list[float]:
        """The rate with the smallest loss of every draw of the weights that did not always diverge."""
        bests = [refined(own, start) for own, start in zip(self.by_seed, self.starts, strict=True)]
        return [rate for rate in bests if rate is not None]


def answer(
    exploration: Exploration, conditions: Conditions, how: str, warnings: Sequence[str], definition: Definition
) -> Rate:
    """Return the rate at the centre of the plateau, or the one with the smallest loss.

    Where no draw has a plateau, as no rate lowers its loss, it is the latter.

    Args:
        exploration: what the runs gave.
        conditions: under what they were tried.
        how: how the runs were trained, in words.
        warnings: what is known already; what the curve warns of is added.
        definition: which of the rates is wanted.

    Raises:
        DivergedError: every run diverged.
        RateError: no rate changes the loss.
    """
    curve, means, start = exploration.curve, exploration.means, exploration.start
    rates = sorted(means)
    steps = f"{conditions.steps} step{'s' * (conditions.steps != 1)}"
    tried = f"{len(rates)} learning rates from {rates[0]:.3g} to {rates[-1]:.3g}, {steps} each"
    best, least = lowest(means), refined(means, start)
    if best is None or least is None:
        raise DivergedError(
            f"every run diverged ({tried}, first loss {start:.4g}): try a grid of smaller rates, fewer steps, another "
            "initialisation (wellposed.plan), or check that the loss is bounded below"
        )
    if all(len(set(losses)) == 1 for losses in zip(*(point.losses for point in curve), strict=True)):
        raise RateError(f"the loss is {start:.6g} at every rate ({tried}): it depends on no trained parameter")
    found = [one for one in exploration.valleys if one is not None]
    flat = _plateau(found)
    chosen = definition if flat is not None else "argmin"
    if chosen == "plateau" and flat is not None:
        value, bests = flat.centre, [2.0**one.centre for one in found]
        told = (
            f"the rates from {flat.low:.3g} to {flat.high:.3g} train within {SHARE:.0%} of what the best one gains, "
            f"{value:.3g} is their centre; the mean training loss is smallest, {means[best]:.4g} ({start:.4g} before "
            f"training), at {least:.3g}"
        )
    else:
        value, bests = least, exploration.argmins
        told = (
            f"the mean training loss is smallest, {means[best]:.4g} ({start:.4g} before training), at rate {best:.3g}"
            + (f", refined to {least:.3g} by a parabola in log rate" if least != best else "")
        )
    draws = len(exploration.starts)
    trained = f"{tried} of {conditions.optimizer}, {draws} draw{'s' * (draws > 1)} of the weights, trained {how}"
    return Rate(
        value=value,
        interval=(min(bests), max(bests)) if len(bests) > 1 else None,
        definition=chosen,
        plateau=flat,
        argmin=least,
        reason=f"{trained}: {told}{_course(exploration)}",
        curve=curve,
        conditions=conditions,
        warnings=(*warnings, *_warnings(exploration, best)),
    )


def _course(exploration: Exploration) -> str:
    """Return in words how many rates diverged and how often the grid was extended."""
    diverged = sum(point.mean is None for point in exploration.curve)
    return (
        (f"; {diverged} rates diverged" if diverged else "")
        + (f"; {exploration.stopped} runs lagged and were stopped" if exploration.stopped else "")
        + (
            f"; the grid was extended {'once' if exploration.widened == 1 else f'{exploration.widened} times'}"
            if exploration.widened
            else ""
        )
        + (f"; {exploration.gradients} gradients in all" if exploration.gradients else "")
    )


def _plateau(found: Sequence[Valley]) -> Plateau | None:
    """Return the mean of valleys in log rate; None where there is none."""
    if not found:
        return None
    low, high = (float(np.mean([getattr(one, end) for one in found])) for end in ("low", "high"))
    return Plateau(low=2.0**low, high=2.0**high, share=SHARE)


def _warnings(exploration: Exploration, best: float) -> list[str]:
    """Return warnings that limit what the found rate means."""
    means, start = exploration.means, exploration.start
    warnings = []
    found = [one for one in exploration.valleys if one is not None]
    ends = [end for end in ("below", "above") if any(getattr(one, end) for one in found)]
    if ends:
        edges = {"below": min(means), "above": max(means)}
        told = " and ".join(f"{edges[end]:.3g}" for end in ends)
        warnings.append(
            f"rates at an edge of the grid, {told}, train nearly as well as the best one: extend the grid, or increase "
            "widen"
        )
    elif best in (min(means), max(means)):
        warnings.append(f"the smallest loss is at an edge of the grid, {best:.3g}: extend the grid, or increase widen")
    smallest = means[best]
    assert smallest is not None
    if smallest >= start:
        warnings.append(f"no rate lowered the loss below that of the first batch ({start:.4g})")
    missing = len(exploration.starts) - len(found)
    if found and missing:
        warnings.append(f"no rate lowered the loss of {missing} of {len(exploration.starts)} seeds: they do not count")
    if ranks.ungrouped():
        warnings.append(
            "several processes, but no process group: each searched by itself, on its own batches "
            "(torch.distributed.init_process_group joins them)"
        )
    return warnings
