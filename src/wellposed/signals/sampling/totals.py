"""Sums over draws of one tensor, each worked out once for all that asks."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

MANY_ELEMENTS, HEAVY_SHARE = 512, 0.25
"""Least number of elements of which one with this share of all squares shows a heavy tail. Chosen."""


class Totals(NamedTuple):
    """What draws of one tensor sum up to, over finite elements: by draw the number of these, their sum and the sum of
    their squares; and over all draws the largest magnitude, whether some elements are infinite, and whether some are
    NaN or plus infinity.
    """

    counts: list[int]
    sums: list[float]
    squares: list[float]
    largest: float
    infinite: bool
    undefined: bool

    @property
    def heavy(self) -> bool:
        """Whether one of many elements has a quarter of all squares, or some are no numbers."""
        if self.undefined:
            return True
        return sum(self.counts) >= MANY_ELEMENTS and self.largest**2 > HEAVY_SHARE * math.fsum(self.squares) > 0.0

    @property
    def mean(self) -> float:
        """The mean of all finite elements."""
        return math.fsum(self.sums) / max(sum(self.counts), 1)

    @property
    def second_moment(self) -> float:
        """The mean square of all finite elements."""
        return math.fsum(self.squares) / max(sum(self.counts), 1)


def totals_of(draws: list[torch.Tensor]) -> Totals:
    """Return the totals of draws, tensors of one shape; of complex numbers, those of their real parts."""
    size = draws[0].numel()
    if not size:
        return Totals([0] * len(draws), [0.0] * len(draws), [0.0] * len(draws), 0.0, infinite=False, undefined=False)
    each = [draw.real if draw.is_complex() else draw for draw in draws]
    stacked = torch.stack(each).reshape(len(draws), size)
    values = stacked.to(torch.float64)
    sums, counts, infinite, undefined = values.sum(dim=1).tolist(), [size] * len(draws), False, False
    if not all(map(math.isfinite, sums)):
        finite = values.isfinite()
        infinite = not bool(finite.all())
        undefined = bool((values.isnan() | (values == math.inf)).any())
        values, counts = values.where(finite, 0.0), finite.sum(dim=1).tolist()
        sums, stacked = values.sum(dim=1).tolist(), values
    low, high = stacked.aminmax()
    squares = [float(row @ row) for row in values.numpy()]
    return Totals(counts, sums, squares, max(abs(float(low)), abs(float(high))), infinite, undefined)
