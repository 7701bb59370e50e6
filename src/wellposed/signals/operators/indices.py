"""Indices of tensors, and how views regroup them: an axis is one index, or several that a reshape has merged."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from wellposed.graphs import Node

aten = torch.ops.aten

Axis: TypeAlias = "tuple[Atom, ...]"
Axes: TypeAlias = "tuple[Axis, ...]"


@dataclass(slots=True, eq=False)
class Dimension:
    """A node of a union-find structure; ``parts`` are the axes that a concatenation puts side by side.

    ``given``: an input has it; ``made``: a weight makes it; ``summed``: a product sums over it.
    """

    parent: Dimension | None = None
    given: bool = False
    made: bool = False
    summed: bool = False
    parts: list[Axis] = field(default_factory=list)

    def root(self) -> Dimension:
        """Return the representative of this dimension."""
        found = self
        while found.parent is not None:
            found = found.parent
        if self is not found:
            self.parent = found
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Atom:
    """An index inside an axis: several where a reshape has merged axes."""

    size: int
    dimension: Dimension


def fresh(size: int, dimension: Dimension | None = None) -> Axis:
    """Return an axis of one index, of a dimension of its own unless given; none for a size of 1."""
    return () if size == 1 else (Atom(size, dimension or Dimension()),)


def fresh_axes(shape: Iterable[int]) -> Axes:
    """Return axes of new dimensions."""
    return tuple(fresh(size) for size in shape)


def size_of(axis: Axis) -> int:
    """Return the length of an axis."""
    return math.prod(atom.size for atom in axis)


def unite(left: Axis, right: Axis) -> None:
    """Say that two axes are one index; of merged axes only where they are merged alike."""
    if [atom.size for atom in left] != [atom.size for atom in right]:
        return
    for a, b in zip(left, right, strict=True):
        one, other = a.dimension.root(), b.dimension.root()
        if one is not other:
            other.parent = one
            one.given |= other.given
            one.made |= other.made
            one.summed |= other.summed
            one.parts += other.parts


def mark(axis: Axis, *, made: bool = False, summed: bool = False) -> None:
    """Say of an axis that a weight makes it, or that a product sums over it."""
    for atom in axis:
        root = atom.dimension.root()
        root.made |= made
        root.summed |= summed


def members(whole: Dimension) -> list[Dimension]:
    """Return the representatives of a dimension and of all that are concatenated into it."""
    found, todo = [], [whole]
    while todo:
        root = todo.pop().root()
        if root not in found:
            found.append(root)
            todo += [atom.dimension for axis in root.parts for atom in axis]
    return found


def is_made(dimension: Dimension) -> bool:
    """Whether a weight makes a dimension, or a part of it."""
    return any(member.made for member in members(dimension))


# ---- views ----------------------------------------------------------------------------------------------------------


def _regroup(axes: Axes, node: Node, shapes: Sequence[tuple[int, ...]]) -> list[Axes]:
    """Follow a reshape: atoms are regrouped, and split where an axis ends inside one."""
    queue = [atom for axis in axes for atom in axis]
    out: list[Axis] = []
    for size in shapes[0]:
        group: list[Atom] = []
        have = 1
        while have < size:
            if not queue:
                return [fresh_axes(shapes[0])]
            atom = queue.pop(0)
            if size % (have * atom.size):
                need = size // have
                if size % have or atom.size % need:
                    return [fresh_axes(shapes[0])]
                queue.insert(0, Atom(atom.size // need, atom.dimension))
                atom = Atom(need, atom.dimension)
            group.append(atom)
            have *= atom.size
        out.append(tuple(group))
    return [tuple(out)]


def _transposed(axes: Axes, node: Node, shapes: Sequence[tuple[int, ...]]) -> list[Axes]:
    return [axes[::-1] if len(axes) == 2 else (*axes[:-2], axes[-1], axes[-2])]


def _swapped(axes: Axes, node: Node, shapes: Sequence[tuple[int, ...]]) -> list[Axes]:
    moved = list(axes)
    i, j = (int(a) % len(axes) for a in node.args[1:3])
    moved[i], moved[j] = moved[j], moved[i]
    return [tuple(moved)]


def _permuted(axes: Axes, node: Node, shapes: Sequence[tuple[int, ...]]) -> list[Axes]:
    return [tuple(axes[int(a) % len(axes)] for a in node.args[1])]


def _parts(axes: Axes, node: Node, shapes: Sequence[tuple[int, ...]]) -> list[Axes]:
    """Follow slices and splits: a part of an index is that index; an axis that is picked from is gone."""
    out = []
    for shape in shapes:
        kept = list(axes)
        if len(shape) < len(axes):
            names = [argument.name for argument in node.op._schema.arguments]
            at = names.index("dim")
            dim = node.args[at] if at < len(node.args) else node.kwargs.get("dim", 0)
            del kept[int(dim) % len(axes)]
        cut = []
        for axis, size in zip(kept, shape, strict=True):
            whole = len({id(atom.dimension.root()) for atom in axis}) == 1
            cut.append(axis if size_of(axis) == size else fresh(size, axis[0].dimension if whole else None))
        out.append(tuple(cut))
    return out


def _unsqueezed(axes: Axes, node: Node, shapes: Sequence[tuple[int, ...]]) -> list[Axes]:
    at = int(node.args[1]) % (len(axes) + 1)
    return [(*axes[:at], (), *axes[at:])]


def _expanded(axes: Axes, node: Node, shapes: Sequence[tuple[int, ...]]) -> list[Axes]:
    lead = len(shapes[0]) - len(axes)
    whole = (*((),) * lead, *axes)
    return [tuple(axis if size_of(axis) == size else fresh(size) for axis, size in zip(whole, shapes[0], strict=True))]


VIEWS = {
    **dict.fromkeys(
        (
            aten.view.default,
            aten.reshape.default,
            aten._unsafe_view.default,
            aten.flatten.using_ints,
            aten.unflatten.int,
            aten.squeeze.default,
            aten.squeeze.dim,
            aten.squeeze.dims,
        ),
        _regroup,
    ),
    **dict.fromkeys((aten.t.default, aten.numpy_T.default, aten.mT.default), _transposed),
    **dict.fromkeys((aten.transpose.int, aten.swapaxes.default), _swapped),
    aten.permute.default: _permuted,
    **dict.fromkeys(
        (
            aten.slice.Tensor,
            aten.narrow.default,
            aten.chunk.default,
            aten.split.Tensor,
            aten.split_with_sizes.default,
            aten.tensor_split.sections,
            aten.unbind.int,
            aten.select.int,
            aten.index_select.default,
        ),
        _parts,
    ),
    aten.unsqueeze.default: _unsqueezed,
    aten.expand.default: _expanded,
}
"""How the axes of an operator's results follow from those of its first argument."""
