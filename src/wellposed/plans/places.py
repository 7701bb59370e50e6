"""Where a part of a parameter lies in its stream: runs of neighbouring elements, and the blocks that they meet.

A block of a stream is a tile of the parameter, seen as a matrix whose columns are the last axis; so that what is cut
along rows and what is cut along columns both meet few blocks beyond their own.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from wellposed.plans.streams import BLOCK, Floats, Stream

Box: TypeAlias = Sequence[tuple[int, int]]
"""First index and the one after the last, for each axis."""


Chosen: TypeAlias = slice | npt.NDArray[np.int64]
"""Rows or columns of a tile, in order: of one range, or by index."""

TILE = (256, 512)
"""Rows and columns of a tile where a parameter has as many; part of the format, as `BLOCK` is."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """What a part has of one tile along rows, or along columns.

    Attributes:
        tile: its number.
        first: where the stretch begins in the part.
        count: how many rows (columns) it has.
        chosen: which of the tile's they are.
    """

    tile: int
    first: int
    count: int
    chosen: Chosen


@dataclass(frozen=True, slots=True)
class Piece:
    """What a part of a parameter has of one block: some rows and columns of a tile ``width`` columns wide."""

    block: int
    width: int
    rows: Stretch
    columns: Stretch

    def draw(self, stream: Stream, out: Floats) -> None:
        """Write the numbers of the piece; ``out`` is as many rows and columns."""
        last = self.rows.chosen
        reach = int(last.stop if isinstance(last, slice) else last[-1] + 1)
        bits = stream.bits(self.block, reach * self.width).reshape(reach, self.width)
        stream.numbers(bits[self.rows.chosen][:, self.columns.chosen], out)


def whole(shape: Sequence[int]) -> Box:
    """Return the box of all elements of an array."""
    return tuple((0, size) for size in shape)


def within(ranges: Sequence[tuple[int, int]] | None, box: Box) -> list[Box]:
    """Return the parts of a box that lie in some ranges of the first axis; the box itself where there are none."""
    if ranges is None:
        return [box]
    first, end = box[0]
    cut = [(max(low, first), min(high, end)) for low, high in ranges]
    return [((low, high), *box[1:]) for low, high in cut if low < high]


class Runs:
    """The elements of a box of an array, in row-major order: ``count`` runs of ``length`` neighbours each.

    Nothing is held for each of them: where a run starts is worked out when it is asked for.
    """

    def __init__(self, shape: Sequence[int], box: Box) -> None:
        """Merge the innermost axes that are whole into one run, and keep counts and strides of the others."""
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

    def stretches(self, size: int) -> Iterator[Stretch]:
        """Yield what the box has of each tile of ``size`` elements of the array that it meets, in order."""
        every, at = range(self.count), 0
        while (run := bisect_right(every, at, key=self.end)) < self.count:
            begin = max(at, self.start(run)) // size * size
            at = begin + size
            behind = bisect_left(every, at, lo=run, key=self.start)
            starts = self.starts(run, behind)
            lows, highs = np.maximum(starts - begin, 0), np.minimum(starts + self.length - begin, size)
            first = run * self.length + int(lows[0] - (starts[0] - begin))
            yield Stretch(begin // size, first, int((highs - lows).sum()), _chosen(lows, highs))


def _chosen(lows: npt.NDArray[np.int64], highs: npt.NDArray[np.int64]) -> Chosen:
    """Return the elements of the ranges that begin at ``lows`` and end before ``highs``."""
    if len(lows) == 1:
        return slice(int(lows[0]), int(highs[0]))
    widths = highs - lows
    return np.repeat(lows - np.cumsum(widths) + widths, widths) + np.arange(int(widths.sum()))


class Tiles:
    """A box of a parameter as a matrix of ``rows`` and ``columns``, and the pieces of blocks that make it.

    A parameter with fewer rows or columns than a tile is one row, which the blocks follow in order.
    """

    def __init__(self, shape: Sequence[int], box: Box) -> None:
        """Cut the axes into those of rows and those of columns (the last axis)."""
        high, wide = TILE
        cut = max(len(shape) - 1, 0)
        if math.prod(shape[:cut]) < high or math.prod(shape[cut:]) < wide:
            cut, high, wide = 0, 1, BLOCK
        self._rows, self._columns = Runs(shape[:cut], box[:cut]), Runs(shape[cut:], box[cut:])
        self._high, self._wide, self._width = high, wide, math.prod(shape[cut:])
        self.rows: int = self._rows.count * self._rows.length
        self.columns: int = self._columns.count * self._columns.length

    def pieces(self) -> Iterator[Piece]:
        """Yield what the box has of each block that it meets, in order."""
        across = -(-self._width // self._wide)
        columns = list(self._columns.stretches(self._wide))
        for rows in self._rows.stretches(self._high):
            for each in columns:
                width = min(self._wide, self._width - each.tile * self._wide)
                yield Piece(rows.tile * across + each.tile, width, rows, each)
