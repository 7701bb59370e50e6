"""Where the valley of a loss over learning rates lies, and how far it moves. Plain numbers.

The argmin of a flat valley is chance. What is located here is the valley: the rates whose loss exceeds the smallest by
no more than a tenth of what training gains, and their geometric centre.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wellposed.signals.integration.special import ndtri, student_quantile

Curve = Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]

SHARE = 0.1
"""Share of what training gains by which a loss in the valley may exceed the smallest."""
_INTERPOLATED = 0.1
"""How far an edge may be from where it is interpolated, as a share of the gap between two rates."""


@dataclass(frozen=True, slots=True)
class Valley:
    """The rates whose losses are near the smallest, in octaves (log2 of a rate).

    Attributes:
        low: the lower edge; the lowest rate that was tried, where the valley is open below.
        high: the upper edge.
        error: standard deviation of the centre for want of rates between those that were tried.
        below: whether the valley goes on below the rates that were tried.
        above: whether it goes on above them.
        gaps: the neighbouring rates, as octaves, between which the edges lie.
    """

    low: float
    high: float
    error: float
    below: bool
    above: bool
    gaps: tuple[tuple[float, float], ...]

    @property
    def centre(self) -> float:
        """The middle of the valley, in octaves."""
        return (self.low + self.high) / 2


def valley(losses: Mapping[float, float | None], reference: float) -> Valley | None:
    """Return the valley of a curve; None where no rate has a loss below ``reference``.

    Between rates the curve is interpolated by a monotone cubic (Fritsch & Carlson 1980) in log rate. A loss above
    ``reference``, or of a run that diverged, counts as ``reference``; between such a rate and one in the valley lies a
    cliff, whose place is not known: the edge is put in the middle, and may be anywhere between.

    Args:
        losses: by rate, at least two; None where a run diverged.
        reference: the loss without training.
    """
    octaves, heights = _curve(losses, reference)
    floor = heights.min()
    if not floor < reference:
        return None
    limit = floor + SHARE * (reference - floor)
    inside = np.flatnonzero(heights <= limit)
    first, last = int(inside[0]), int(inside[-1])
    smooth = _interpolated(octaves, heights)
    edges: list[float] = []
    variance, gaps = 0.0, []
    for inner, outer in ((first, first - 1), (last, last + 1)):
        if not 0 <= outer < len(octaves):
            edges.append(float(octaves[inner]))
            continue
        near, far = float(octaves[inner]), float(octaves[outer])
        cliff = heights[outer] >= reference
        edges.append((near + far) / 2 if cliff else _crossing(smooth, near, far, float(limit)))
        variance += ((0.5 if cliff else _INTERPOLATED) * (far - near)) ** 2 / 3 / 4
        gaps.append((min(near, far), max(near, far)))
    return Valley(
        edges[0], edges[1], math.sqrt(variance), first == 0, last == len(octaves) - 1, tuple(dict.fromkeys(gaps))
    )


def loss_at(losses: Mapping[float, float | None], octave: float, reference: float) -> float:
    """Return the interpolated loss at a rate, given as its octave; at most ``reference``."""
    octaves, heights = _curve(losses, reference)
    return float(_interpolated(octaves, heights)(np.clip(octave, octaves[0], octaves[-1])))


def _curve(
    losses: Mapping[float, float | None], reference: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return octaves in increasing order and losses, those above the reference or of diverged runs as the reference."""
    rates = sorted(losses)
    heights = [reference if (loss := losses[rate]) is None else min(loss, reference) for rate in rates]
    return np.log2(rates), np.asarray(heights)


def _interpolated(octaves: npt.NDArray[np.float64], heights: npt.NDArray[np.float64]) -> Curve:
    """Return the curve through losses that is monotone between two of them."""
    from scipy.interpolate import PchipInterpolator  # slow to import

    curve: Curve = PchipInterpolator(octaves, heights)
    return curve


def _crossing(smooth: Curve, near: float, far: float, limit: float) -> float:
    """Return where a monotone piece crosses a level, from the side that is below it."""
    places = np.linspace(near, far, 257)
    return float(np.interp(limit, smooth(places), places))


def change(
    values: npt.NDArray[np.float64], confidence: float, resolution: float = 0.0
) -> tuple[float, tuple[float, float]]:
    """Return by how much the last row of values exceeds the first, the mean over columns, and its interval.

    The columns are seeds, which share batches and random numbers over all rows (sizes); what is left after the means of
    rows and columns are taken out is chance, and all rows tell how large it is: (rows - 1)(columns - 1) degrees of
    freedom, where a bootstrap over two or three seeds, or their differences alone, would have next to none. Student's
    interval is exact where chance is normal and of one size at all sizes. The uncertainty that all seeds share, as they
    are tried at the same rates, is added in quadrature.

    Args:
        values: ``[sizes, seeds]``, at least two of each.
        confidence: probability with which the interval is to cover the true difference.
        resolution: standard deviation of what all columns share.
    """
    rows, columns = values.shape
    left = values - values.mean(1, keepdims=True) - values.mean(0, keepdims=True) + values.mean()
    freedom = (rows - 1) * (columns - 1)
    error = math.sqrt(float((left**2).sum()) / freedom * 2 / columns)
    wide = student_quantile(freedom, 1.0 - confidence), float(ndtri((1.0 + confidence) / 2.0))
    room = math.hypot(wide[0] * error, wide[1] * resolution)
    difference = float(values[-1].mean() - values[0].mean())
    return difference, (difference - room, difference + room)


def further(valleys: Sequence[Valley | None], losses: Sequence[Mapping[float, float | None]]) -> tuple[bool, bool]:
    """Return whether curves have to be continued below, and above, the rates that were tried.

    A curve without a valley goes on where its smallest loss is at an edge, and below where all of it diverged.
    """
    below = above = False
    for found, curve in zip(valleys, losses, strict=True):
        if found is not None:
            below, above = below or found.below, above or found.above
            continue
        finite = {rate: loss for rate, loss in curve.items() if loss is not None}
        best = min(finite, key=lambda rate: finite[rate]) if finite else min(curve)
        below, above = below or best == min(curve), above or (bool(finite) and best == max(curve))
    return below, above
