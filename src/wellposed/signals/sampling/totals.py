"""Sums over draws of one tensor, each worked out once for all that asks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

MANY_ELEMENTS, HEAVY_SHARE = 512, 0.25
"""Least number of elements, or of rows, of which one with this share of all squares shows a heavy tail. Chosen."""


class Totals(NamedTuple):
    """Sums over draws of one tensor. ``counts``, ``sums`` and ``squares`` are the number of finite elements, their sum
    and the sum of their squares, by draw. ``largest_share`` is the largest share of all squares that one element has,
    or one row, if there are `MANY_ELEMENTS`. ``infinite`` and ``undefined`` say whether an element is infinite, or NaN
    or plus infinity.
    """

    counts: list[int]
    sums: list[float]
    squares: list[float]
    largest_share: float
    infinite: bool
    undefined: bool

    @property
    def heavy(self) -> bool:
        """Whether one of many elements, or rows, has a quarter of all squares, or some are no numbers."""
        return self.undefined or self.largest_share > HEAVY_SHARE

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
        sums = values.sum(dim=1).tolist()
    squares = [float(row @ row) for row in values.numpy()]
    return Totals(counts, sums, squares, _largest_share(values, draws[0].shape, counts), infinite, undefined)


def _largest_share(values: torch.Tensor, shape: Sequence[int], counts: list[int]) -> float:
    """Return the largest share of all squares of ``values`` (draws, size) that one element or row has; a row lies along
    the last axes of ``shape``. Few draws have no rows, as each may hold most in the same one.
    """
    parts, largest, found = values.square(), 0.0, sum(counts) >= MANY_ELEMENTS
    total = float(parts.sum())
    for length in reversed((1, *shape)):
        if found and total > 0.0:
            largest = max(largest, float(parts.max()) / total)
        parts = parts.reshape(-1, length).sum(1) if length > 1 else parts
        found = parts.numel() >= MANY_ELEMENTS and len(counts) * HEAVY_SHARE > 1.0
    return largest
