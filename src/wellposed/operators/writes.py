"""Which part of a tensor an operator overwrites, as stretches of its axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from wellposed.graphs import Graph, Node
from wellposed.graphs.operators import VIEW_WRITE
from wellposed.operators.schema import named_arguments, ref_of

aten: torch._ops._OpNamespace = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Stretch:
    """Indices ``start, start + step, ...`` below ``stop`` of one axis; ``dropped`` where what is written lacks it."""

    axis: int
    start: int
    stop: int
    step: int = 1
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class Box:
    """Stretches of a tensor's axes, without those that are whole, and the ``order`` in which what is written to them
    has its axes as the tensor has them.
    """

    stretches: tuple[Stretch, ...]
    order: tuple[int, ...]

    @property
    def longest_step(self) -> int:
        """Longest step of a stretch."""
        return max((stretch.step for stretch in self.stretches), default=1)


def box_of(graph: Graph, node: Node) -> Box | None:
    """Return the box that a node's second argument is written to, None where it is none."""
    given = [ref_of(argument) for argument in node.args[:2]]
    if given[0] is None or given[1] is None:
        return None
    base, written = (graph.values[value].shape for value in given if value is not None)
    named = named_arguments(node)
    if node.op is VIEW_WRITE:
        if graph.values[given[0]].dtype != graph.values[given[1]].dtype:
            return None
        return _of_view(base, written, named["base_stride"], named["stride"], named["offset"])
    axis, order = named["dim"] % len(base), tuple(range(len(written)))
    if node.op is aten.select_scatter.default:
        at = named["index"] % base[axis]
        return Box((Stretch(axis, at, at + 1, dropped=True),), order)
    low, high, step = slice(named["start"], named["end"], named["step"]).indices(base[axis])
    whole = (low, step) == (0, 1) and high == base[axis]
    return Box(() if whole else (Stretch(axis, low, high, step),), order)


def _of_view(
    base: Sequence[int], written: Sequence[int], base_stride: Sequence[int], stride: Sequence[int], offset: int
) -> Box | None:
    """Return the box of a view, whose axes may lie in another order than those of its base."""
    found = _in_memory(base, written, base_stride, stride, offset)
    if found is not None:
        return Box(found, tuple(range(len(written))))
    axes = sorted(range(len(base)), key=lambda axis: -base_stride[axis])
    own = sorted(range(len(written)), key=lambda axis: -stride[axis])
    found = _in_memory(
        [base[i] for i in axes], [written[i] for i in own], [base_stride[i] for i in axes], [stride[i] for i in own],
        offset,
    )  # fmt: skip
    return None if found is None else _in_order(found, axes, own)


def _in_order(found: Sequence[Stretch], axes: Sequence[int], own: Sequence[int]) -> Box:
    """Return the box of stretches along axes that are sorted by stride, those of the base and the view's own."""
    dropped = {stretch.axis for stretch in found if stretch.dropped}
    kept = [axis for at, axis in enumerate(axes) if at not in dropped]
    order = tuple(own[kept.index(axis)] for axis in sorted(kept))
    return Box(tuple(sorted((replace(s, axis=axes[s.axis]) for s in found), key=lambda s: s.axis)), order)


def _start(base: Sequence[int], base_stride: Sequence[int], offset: int) -> list[int] | None:
    """Return the indices of the element that lies at an offset in the memory of a base; None where none does."""
    start = [0] * len(base)
    for axis in sorted(range(len(base)), key=lambda axis: -base_stride[axis]):
        if base[axis] > 1 and base_stride[axis] > 0:
            start[axis], offset = divmod(offset, base_stride[axis])
    return None if offset or any(low >= size for low, size in zip(start, base, strict=True)) else start


def _in_memory(
    base: Sequence[int], written: Sequence[int], base_stride: Sequence[int], stride: Sequence[int], offset: int
) -> tuple[Stretch, ...] | None:
    """Return the stretches of a view, told by how it lies in the memory of its base."""
    start = _start(base, base_stride, offset)
    if start is None:
        return None
    found, at = [], 0
    for axis, size in enumerate(base):
        kept = at < len(written) and _fits(written[at], stride[at], size - start[axis], base_stride[axis])
        if kept and len(written) - at < len(base) - axis and written[at] == 1 < size:
            kept = False  # an axis of length 1 may as well be one that is missing
        if not kept:
            found.append(Stretch(axis, start[axis], start[axis] + 1, dropped=True))
            continue
        step = stride[at] // base_stride[axis] if written[at] > 1 else 1
        stop = start[axis] + (written[at] - 1) * step + 1
        if (start[axis], stop, step) != (0, size, 1):
            found.append(Stretch(axis, start[axis], stop, step))
        at += 1
    return tuple(found) if at == len(written) else None


def _fits(count: int, stride: int, room: int, unit: int) -> bool:
    """Whether so many indices with this stride lie in one axis, of which ``room`` indices are left."""
    return count == 1 or (unit > 0 and stride % unit == 0 and stride > 0 and (count - 1) * (stride // unit) < room)
