"""The table of views: how the elements of an operator's results are those of its first argument.

A view is a chain of `steps`: axes are regrouped, permuted, expanded, cut or reordered. Every reader of views derives
what it needs from these: the forward rule and the backward rule (`rules.shape`), the parameter that scales a value
(`scale_parameters`), the indices of tensors (`indices`), the consumers of a fused weight (`contraction`) and the
branches of a graph (`wellposed.structure.branches`). An operator is added here, once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from wellposed.graphs import Graph, Node
from wellposed.graphs.graph import once
from wellposed.operators.schema import named_arguments, ref_of
from wellposed.operators.steps import Cut, Expand, Permute, Regroup, Reorder, Shape, Steps

aten: torch._ops._OpNamespace = torch.ops.aten
Describe = Callable[..., "Sequence[Steps] | None"]
_VIEWS: dict[torch._ops.OpOverload, Describe] = {}


def view_of(graph: Graph, node: Node) -> Sequence[Steps] | None:
    """Return the steps from a node's first argument to each of its results; None for an operator that is no view."""
    describe = _VIEWS.get(node.op)
    if describe is None or not node.args:
        return None
    if not (node.index < len(graph.nodes) and graph.nodes[node.index] is node):
        return _described(graph, node, describe)
    known = _asked(graph)
    if node.index not in known or known[node.index][0] is not describe:
        known[node.index] = describe, _described(graph, node, describe)
    return known[node.index][1]


@once
def _asked(graph: Graph) -> dict[int, tuple[Describe, Sequence[Steps] | None]]:
    """Return the views of a graph that have been asked for, by index, each with its entry of the table."""
    return {}


def _described(graph: Graph, node: Node, describe: Describe) -> Sequence[Steps] | None:
    """Return what an entry of the table says of a node."""
    source = ref_of(node.args[0])
    if source is None:
        return None
    before = graph.values[source].shape
    after = [graph.values[out].shape for out in node.outputs]
    if not before and not any(after):  # a scalar, whatever axes are named
        return [()] * len(after)
    return describe(before, after, **named_arguments(node))


def describe_view(op: torch._ops.OpOverload, describe: Describe) -> None:
    """Add an overload to the table (see `wellposed.extend.view`)."""
    _VIEWS[op] = describe


def is_view(op: torch._ops.OpOverload) -> bool:
    """Whether an operator is in the table."""
    return op in _VIEWS


def views() -> tuple[torch._ops.OpOverload, ...]:
    """Return every overload in the table."""
    return tuple(_VIEWS)


def _view(*names: str) -> Callable[[Describe], Describe]:
    """Register a description for overloads by name, and for their in-place forms, where this torch has them."""

    def register(describe: Describe) -> Describe:
        for name in names:
            packet, _, overload = name.partition(".")
            for form in (packet, f"{packet}_"):
                op = getattr(getattr(aten, form, None), overload or "default", None)
                if isinstance(op, torch._ops.OpOverload):
                    _VIEWS[op] = describe
        return describe

    return register


def _axes(dims: int | Iterable[int] | None, rank: int) -> list[int]:
    """Return axes as numbers of at least 0; all of them for none."""
    if dims is None:
        return list(range(rank))
    return [d % max(rank, 1) for d in ([dims] if isinstance(dims, int) else dims)]


@_view(
    "contiguous", "clone", "to.dtype", "to.device", "to.dtype_layout", "to.other", "_to_copy", "type_as",
    "lift_fresh_copy",
)  # fmt: skip
def _same(before: Shape, after: Sequence[Shape], **_: Any) -> list[Steps]:
    return [()]


@_view(
    "view", "reshape", "_unsafe_view", "flatten.using_ints", "unflatten.int", "view_as",
    "reshape_as", "ravel", "squeeze", "squeeze.dim", "squeeze.dims", "unsqueeze", "atleast_1d", "atleast_2d",
    "atleast_3d",
)  # fmt: skip
def _regrouped(before: Shape, after: Sequence[Shape], **_: Any) -> list[Steps]:
    return [(Regroup(after[0]),)]


@_view("numpy_T")
def _reversed_axes(before: Shape, after: Sequence[Shape], **_: Any) -> list[Steps]:
    return [(Permute(tuple(range(len(before)))[::-1]),)]


@_view("t", "mT", "mH", "matrix_H")
def _transposed(before: Shape, after: Sequence[Shape], **_: Any) -> list[Steps]:
    rank = len(before)
    return [()] if rank < 2 else [(Permute((*range(rank - 2), rank - 1, rank - 2)),)]


@_view("transpose.int", "transpose")
def _swapped(before: Shape, after: Sequence[Shape], *, dim0: int, dim1: int, **_: Any) -> list[Steps]:
    order = list(range(len(before)))
    if order:
        order[dim0], order[dim1] = order[dim1], order[dim0]
    return [(Permute(tuple(order)),)]


@_view("permute")
def _permuted(before: Shape, after: Sequence[Shape], *, dims: Sequence[int], **_: Any) -> list[Steps]:
    return [(Permute(tuple(_axes(list(dims), len(before)))),)]


@_view("movedim.int", "movedim.intlist")
def _moved(before: Shape, after: Sequence[Shape], *, source: Any, destination: Any, **_: Any) -> list[Steps]:
    """Describe the permutation that takes axes from ``source`` to ``destination`` and keeps the others in order."""
    rank = len(before)
    order: list[int | None] = [None] * rank
    sources = _axes(source, rank)
    for start, end in zip(sources, _axes(destination, rank), strict=True):
        order[end] = start
    rest = iter(i for i in range(rank) if i not in sources)
    return [(Permute(tuple(next(rest) if i is None else i for i in order)),)]


@_view("expand", "expand_as", "broadcast_to")
def _expanded(before: Shape, after: Sequence[Shape], **_: Any) -> list[Steps]:
    return [(Expand(after[0]),)]


@_view("select.int")
def _selected(before: Shape, after: Sequence[Shape], *, dim: int, index: Any, **_: Any) -> list[Steps]:
    axis = dim % len(before)
    at = int(index) % before[axis]
    return [(Cut(axis, at, at + 1, drop=True),)]


@_view("slice.Tensor")
def _sliced(
    before: Shape, after: Sequence[Shape], *, dim: int, start: Any, end: Any, step: int, **_: Any
) -> list[Steps]:
    """Describe a slice of one axis, whose bounds follow Python's rules."""
    axis = dim % len(before)
    low, high, by = slice(start, end, step).indices(before[axis])
    return [(Cut(axis, low, high, by),)]


@_view("narrow")
def _narrowed(before: Shape, after: Sequence[Shape], *, dim: int, start: int, length: int, **_: Any) -> list[Steps]:
    axis = dim % len(before)
    low = int(start) % max(before[axis], 1)
    return [(Cut(axis, low, low + int(length)),)]


def _stretches(after: Sequence[Shape], axis: int) -> list[Steps]:
    """Return consecutive stretches of an axis, one for each result."""
    stretches: list[Steps] = []
    at = 0
    for shape in after:
        stretches.append((Cut(axis, at, at + shape[axis]),))
        at += shape[axis]
    return stretches


@_view(
    "chunk", "split.Tensor", "split.sizes", "split_with_sizes", "tensor_split.sections", "tensor_split.indices",
    "unsafe_chunk", "unsafe_split.Tensor", "unsafe_split_with_sizes",
)  # fmt: skip
def _split(before: Shape, after: Sequence[Shape], *, dim: int, **_: Any) -> list[Steps]:
    return _stretches(after, dim % len(before))


@_view("hsplit.int", "hsplit.array")
def _split_columns(before: Shape, after: Sequence[Shape], **_: Any) -> list[Steps]:
    return _stretches(after, min(1, len(before) - 1))


@_view("vsplit.int", "vsplit.array")
def _split_rows(before: Shape, after: Sequence[Shape], **_: Any) -> list[Steps]:
    return _stretches(after, 0)


@_view("dsplit.int", "dsplit.array")
def _split_depth(before: Shape, after: Sequence[Shape], **_: Any) -> list[Steps]:
    return _stretches(after, 2)


@_view("unbind.int")
def _unbound(before: Shape, after: Sequence[Shape], *, dim: int, **_: Any) -> list[Steps]:
    axis = dim % len(before)
    return [(Cut(axis, at, at + 1, drop=True),) for at in range(before[axis])]


def _backwards(before: Shape, dims: Iterable[int]) -> Steps:
    return tuple(Reorder(axis, np.arange(before[axis])[::-1]) for axis in dims)


@_view("flip")
def _flipped(before: Shape, after: Sequence[Shape], *, dims: Sequence[int], **_: Any) -> list[Steps]:
    return [_backwards(before, _axes(list(dims), len(before)))]


@_view("fliplr")
def _flipped_columns(before: Shape, after: Sequence[Shape], **_: Any) -> list[Steps]:
    return [_backwards(before, [1])]


@_view("flipud")
def _flipped_rows(before: Shape, after: Sequence[Shape], **_: Any) -> list[Steps]:
    return [_backwards(before, [0])]


@_view("rot90")
def _turned(before: Shape, after: Sequence[Shape], *, k: int, dims: Sequence[int], **_: Any) -> list[Steps]:
    """Describe ``k`` quarter turns in the plane of two axes."""
    first, second = _axes(list(dims), len(before))
    order = list(range(len(before)))
    order[first], order[second] = second, first
    swap = Permute(tuple(order))
    turns: list[Steps] = [
        (),
        (*_backwards(before, [second]), swap),
        _backwards(before, [first, second]),
        (*_backwards(before, [first]), swap),
    ]
    return [turns[k % 4]]


@_view("roll")
def _rolled(before: Shape, after: Sequence[Shape], *, shifts: Any, dims: Any, **_: Any) -> list[Steps]:
    """Describe a cyclic shift of each given axis, or of all elements in a row where none is given."""
    by = [int(s) for s in (shifts if isinstance(shifts, (list, tuple)) else [shifts])]
    if not dims:  # all axes as one
        count = math.prod(before)
        return [(Regroup((count,)), Reorder(0, np.roll(np.arange(count), by[0])), Regroup(before))]
    axes = _axes(dims, len(before))
    return [tuple(Reorder(a, np.roll(np.arange(before[a]), s)) for a, s in zip(axes, by, strict=True))]


@_view("repeat", "tile")
def _repeated(before: Shape, after: Sequence[Shape], **_: Any) -> list[Steps]:
    return [_copies(before, after[0], inner=False)]


@_view("repeat_interleave.self_int")
def _interleaved(before: Shape, after: Sequence[Shape], **_: Any) -> list[Steps]:
    rank = len(after[0])
    return [_copies(before if len(before) == rank else (math.prod(before),), after[0], inner=True)]


def _copies(before: Shape, after: Shape, *, inner: bool) -> Steps:
    """Return copies along axes: each element beside its own copies (``inner``), or whole axes one after another."""
    have = (1,) * (len(after) - len(before)) + before
    if all(a in (1, b) for a, b in zip(have, after, strict=True)):
        return (Regroup(have), Expand(after))
    counts = [b // max(a, 1) for a, b in zip(have, after, strict=True)]
    narrow = [pair for a in have for pair in ((a, 1) if inner else (1, a))]
    wide = [pair for a, n in zip(have, counts, strict=True) for pair in ((a, n) if inner else (n, a))]
    return (Regroup(tuple(narrow)), Expand(tuple(wide)), Regroup(after))


@_view("unfold")
def _windows(
    before: Shape, after: Sequence[Shape], *, dimension: int, size: int, step: int, **_: Any
) -> list[Steps] | None:
    """Describe adjacent windows of an axis: (..., count, ..., size); None where windows overlap or leave gaps."""
    rank = len(before)
    if size != step or not rank:  # windows overlap: elements are repeated
        return None
    axis = dimension % rank
    count = after[0][axis]
    cut_up = (*before[:axis], count, size, *before[axis + 1 :])
    last = Permute((*(i for i in range(rank + 1) if i != axis + 1), axis + 1))
    return [(Cut(axis, 0, count * size), Regroup(cut_up), last)]


@_view("pixel_shuffle")
def _to_pixels(before: Shape, after: Sequence[Shape], *, upscale_factor: int, **_: Any) -> list[Steps]:
    """Describe (..., c f f, h, w) as (..., c, h f, w f)."""
    *lead, c, h, w = before
    f, n = upscale_factor, len(before) - 3
    order = (*range(n), *(n + i for i in (0, 3, 1, 4, 2)))
    return [(Regroup((*lead, c // f**2, f, f, h, w)), Permute(order), Regroup(after[0]))]


@_view("pixel_unshuffle")
def _from_pixels(before: Shape, after: Sequence[Shape], *, downscale_factor: int, **_: Any) -> list[Steps]:
    """Describe (..., c, h f, w f) as (..., c f f, h, w)."""
    *lead, c, h, w = before
    f, n = downscale_factor, len(before) - 3
    order = (*range(n), *(n + i for i in (0, 2, 4, 1, 3)))
    return [(Regroup((*lead, c, h // f, f, w // f, f)), Permute(order), Regroup(after[0]))]


def is_copy(op: torch._ops.OpOverload) -> bool:
    """Whether an operator's result holds the elements of its first argument in their places, maybe of another type."""
    return _VIEWS.get(op) is _same


@cache
def is_cut(op: torch._ops.OpOverload) -> bool:
    """Whether an operator's results hold a part of the elements of its first argument."""
    return _VIEWS.get(op) in (
        _selected, _sliced, _narrowed, _split, _split_columns, _split_rows, _split_depth, _unbound,
    )  # fmt: skip
