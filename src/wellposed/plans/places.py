"""Where a part of a parameter lies in its stream: runs of neighbouring elements, and the blocks that they meet."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from wellposed.plans.streams import BLOCK, Chosen

Box: TypeAlias = Sequence[tuple[int, int]]
"""First index and the one after the last, for each axis."""

_FEW = 256
"""Runs in a block up to which they are cut out one by one."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What a part of a parameter has of one block.

    Attributes:
        block: its number.
        first: where the piece begins in the part, in row-major order.
        count: its elements.
        chosen: these elements of the block; None for its first ``count`` ones.
    """

    block: int
    first: int
    count: int
    chosen: Chosen | None


def whole(shape: Sequence[int]) -> Box:
    """Return the box of all elements of an array."""
    return tuple((0, size) for size in shape)


class Runs:
    """The elements of a box of an array, in row-major order: ``count`` runs of ``length`` neighbours each.

    Nothing is held for each of them: where a run starts is worked out when it is asked for.
    """

    def __init__(self, shape: Sequence[int], box: Box) -> None:
        self.length: int = 1
        offset, inner, merged = 0, 1, True
        lead: list[tuple[int, int]] = []  # indices of an axis, and elements from one to the next; the innermost first
        for size, (first, end) in zip(reversed(shape), reversed(box), strict=True):
            if merged:  # every axis behind this one is whole
                self.length *= end - first
            else:
                lead.append((end - first, inner))
            merged = merged and end - first == size
            offset, inner = offset + first * inner, inner * size
        self._lead = lead
        self._offset = offset
        self.count: int = math.prod(count for count, _ in lead) if self.length else 0

    def start(self, run: int) -> int:
        """Return where a run starts in the array."""
        at = self._offset
        for count, stride in self._lead:
            run, index = divmod(run, count)
            at += index * stride
        return at

    def end(self, run: int) -> int:
        """Return where a run has ended."""
        return self.start(run) + self.length

    def starts(self, first: int, end: int) -> npt.NDArray[np.int64]:
        """Return where some runs start in the array."""
        runs, at = np.arange(first, end, dtype=np.int64), np.full(end - first, self._offset, dtype=np.int64)
        for count, stride in self._lead:
            runs, index = np.divmod(runs, count)
            at += index * stride
        return at

    def pieces(self) -> Iterator[Piece]:
        """Yield what the box has of each block that it meets, in order."""
        every, at = range(self.count), 0
        while (run := bisect_right(every, at, key=self.end)) < self.count:
            begin = max(at, self.start(run)) // BLOCK * BLOCK
            at = begin + BLOCK
            behind = bisect_left(every, at, lo=run, key=self.start)
            starts = self.starts(run, behind)
            lows, highs = np.maximum(starts - begin, 0), np.minimum(starts + self.length - begin, BLOCK)
            first = run * self.length + int(lows[0] - (starts[0] - begin))
            yield Piece(begin // BLOCK, first, int((highs - lows).sum()), _chosen(lows, highs))


def _chosen(lows: npt.NDArray[np.int64], highs: npt.NDArray[np.int64]) -> Chosen | None:
    """Return the elements of the ranges that begin at ``lows`` and end before ``highs``."""
    if len(lows) == 1:
        return None if lows[0] == 0 else slice(int(lows[0]), int(highs[0]))
    if len(lows) <= _FEW:
        return [slice(low, high) for low, high in zip(lows.tolist(), highs.tolist(), strict=True)]
    widths = highs - lows
    return np.repeat(lows - np.cumsum(widths) + widths, widths) + np.arange(int(widths.sum()))
