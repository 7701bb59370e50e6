"""What the runs of a search say: the curve, and the rate with its interval, reason and warnings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wellposed import ranks
from wellposed.errors import DivergedError, RateError
from wellposed.rates.grid import lowest, plateau, refined
from wellposed.rates.rate import Conditions, Point, Rate


def answer(
    curve: Sequence[Point],
    starts: Sequence[float],
    conditions: Conditions,
    how: str,
    widened: int,
    warnings: Sequence[str],
) -> Rate:
    """Return what the curve says.

    Args:
        curve: every rate that was tried, ascending.
        starts: first loss of every draw of the weights, in the order of the points' losses.
        conditions: under what they were tried.
        how: how the runs were trained, in words.
        widened: how often the grid was continued.
        warnings: what is known already; what the curve warns of is added.

    Raises:
        DivergedError: every run diverged.
        RateError: no rate changes the loss.
    """
    means = {point.rate: point.mean for point in curve}
    rates = sorted(means)
    tried = f"{len(rates)} learning rates from {rates[0]:.3g} to {rates[-1]:.3g}, {conditions.steps} steps each"
    best = lowest(means)
    start = float(np.mean(starts))
    if best is None:
        raise DivergedError(
            f"every run diverged ({tried}, first loss {start:.4g}): try a grid of smaller rates, fewer steps, another "
            "initialisation (wellposed.plan), or look for a loss that is unbounded below"
        )
    if all(len(set(losses)) == 1 for losses in zip(*(point.losses for point in curve), strict=True)):
        raise RateError(f"the loss is {start:.6g} at every rate ({tried}): no parameter that is trained reaches it")
    value = refined(means, start)
    assert value is not None
    each = [refined({point.rate: point.losses[index] for point in curve}, first) for index, first in enumerate(starts)]
    bests = [rate for rate in each if rate is not None]
    smallest = means[best]
    assert smallest is not None
    diverged = sum(point.mean is None for point in curve)
    reason = (
        f"{tried} of {conditions.optimizer} from {len(starts)} draw{'s' * (len(starts) > 1)} of the weights, trained "
        f"{how}: the smallest mean training loss, {smallest:.4g} (from {start:.4g}), is at {best:.3g}"
        + (f", refined by a parabola in log rate to {value:.3g}" if value != best else "")
        + (f"; {diverged} rates diverged" if diverged else "")
        + (f"; the grid was continued {widened} times" if widened else "")
    )
    warned = list(warnings)
    if best in (rates[0], rates[-1]):
        warned.append(
            f"the smallest loss is at an edge of the grid, {best:.3g}: give a grid that goes further, or a larger widen"
        )
    if (flat := plateau(means, start)) is not None:
        warned.append(
            f"the losses at {flat[0]:.3g} and {flat[1]:.3g} are nearly the same: the best rate is known no better "
            "than that; more steps or seeds may tell"
        )
    if smallest >= start:
        warned.append(f"no rate brought the loss below that of the first batch ({start:.4g})")
    if ranks.ungrouped():
        warned.append(
            "several processes, but no process group: each searched by itself, on its own batches "
            "(torch.distributed.init_process_group joins them)"
        )
    return Rate(
        value=value,
        interval=(min(bests), max(bests)),
        reason=reason,
        curve=tuple(curve),
        conditions=conditions,
        warnings=tuple(warned),
    )
