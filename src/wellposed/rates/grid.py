"""Grids of learning rates: where the smallest loss lies, and where a grid is too narrow. Plain numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from wellposed.errors import OptionError

_ADAM = (-16.0, -4.75)
OCTAVES = {"sgd": (-9.0, 2.25), "momentum": (-12.0, -0.75)} | dict.fromkeys(
    ("adam", "adamw", "nadam", "radam", "adamax", "rmsprop", "lion"), _ADAM
)
"""log2 of the lowest and the highest rate of each family's default grid."""
_OTHERS = (-16.0, 2.0)
_STEP = 0.75


def default_grid(family: str) -> tuple[float, ...]:
    """Return the rates that are tried for an optimizer's family when none are given: factors of 2^0.75."""
    low, high = OCTAVES.get(family, _OTHERS)
    return tuple(float(2.0**octave) for octave in np.arange(low, high + _STEP / 2, _STEP))


def checked_octaves(rates: Sequence[float] | None, optimizer: str) -> tuple[float, ...]:
    """Return the rates to try in increasing order, by default six octaves up to the highest usual of the optimizer."""
    if rates is None:
        highest = math.floor(OCTAVES.get(optimizer, (-14.0, -2.0))[1])
        return tuple(2.0**octave for octave in range(highest - 5, highest + 1))
    ordered = tuple(sorted(float(rate) for rate in rates))
    proper = all(math.isfinite(rate) and rate > 0 for rate in ordered)
    if len(ordered) < 5 or len(set(ordered)) < len(ordered) or not proper:
        raise OptionError(
            f"rates must hold at least five different positive learning rates, received {list(rates)}; "
            "[2.0**k for k in range(-11, -5)] are some"
        )
    return ordered


def checked_grid(grid: Sequence[float]) -> tuple[float, ...]:
    """Return the rates in ascending order.

    Raises:
        OptionError: fewer than three rates, or one that is no positive number, or is there twice.
    """
    rates = tuple(sorted(float(rate) for rate in grid))
    if len(rates) < 3 or not all(math.isfinite(rate) and rate > 0 for rate in rates) or len(set(rates)) < len(rates):
        raise OptionError(
            f"grid must hold at least three different positive learning rates, not {list(grid)}; "
            "numpy.geomspace(low, high, count) makes one"
        )
    return rates


def lowest(losses: Mapping[float, float | None]) -> float | None:
    """Return the largest rate with the smallest loss (the paper's maximal learning rate); None where all diverged."""
    finite = [loss for loss in losses.values() if loss is not None]
    return max((rate for rate, loss in losses.items() if finite and loss == min(finite)), default=None)


def continued(rates: Sequence[float], beyond: tuple[bool, bool], count: int) -> tuple[float, ...]:
    """Return ``count`` rates by which a grid goes on below, above or both, by the mean factor between its rates."""
    ordered = sorted(rates)
    factor = (ordered[-1] / ordered[0]) ** (1 / (len(ordered) - 1))
    below = [ordered[0] * factor**-k for k in range(count, 0, -1)] if beyond[0] else []
    above = [ordered[-1] * factor**k for k in range(1, count + 1)] if beyond[1] else []
    return (*below, *above)


def refined(losses: Mapping[float, float | None], ceiling: float) -> float | None:
    """Return the rate at the vertex of the parabola in log rate through the smallest loss and its two neighbours.

    A loss above ``ceiling`` (what an untrained model has), or of a run that diverged, counts as ``ceiling``: how badly
    a run fails says nothing about where the smallest loss lies. At an edge of the grid, and where all three losses are
    the same, the grid's own rate is returned; None where every run diverged.
    """
    best = lowest(losses)
    if best is None:
        return None
    rates = sorted(losses)
    index = rates.index(best)
    if index in (0, len(rates) - 1):
        return best
    three = rates[index - 1 : index + 2]
    left, middle, right = (ceiling if (loss := losses[rate]) is None else min(loss, ceiling) for rate in three)
    below, above = (math.log(b / a) for a, b in pairwise(three))
    # Newton's divided differences of the three points, at log rates -below, 0 and above.
    slopes = (middle - left) / below, (right - middle) / above
    curvature = (slopes[1] - slopes[0]) / (below + above)
    if not curvature > 0:
        return best
    vertex = -(slopes[0] + curvature * below) / (2 * curvature)
    return best * math.exp(vertex)
