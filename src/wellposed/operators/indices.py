"""Indices of tensors, and how views regroup them: an axis is one index, or several that a reshape has merged."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from wellposed.walks import reached

Axis: TypeAlias = "tuple[Atom, ...]"
Axes: TypeAlias = "tuple[Axis, ...]"


@dataclass(slots=True, eq=False)
class Dimension:
    """A node of a union-find structure; ``parts`` are the axes that a concatenation puts side by side.

    ``given``: an input has it; ``made``: a weight makes it; ``summed``: a product sums over it. ``holds_made``: what
    `is_made` has found.
    """

    parent: Dimension | None = None
    given: bool = False
    made: bool = False
    summed: bool = False
    parts: list[Axis] = field(default_factory=list)
    holds_made: bool | None = None

    def root(self) -> Dimension:
        """Return the representative of this dimension."""
        at = self
        while at.parent is not None:
            at = at.parent
        if self is not at:
            self.parent = at
        return at


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
    return axis[0].size if len(axis) == 1 else math.prod([atom.size for atom in axis])


def unite(left: Axis, right: Axis) -> None:
    """Unite two axes as one index; merged axes only where they are merged alike."""
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
    """Mark an axis as made by a weight, or as summed over by a product."""
    for atom in axis:
        root = atom.dimension.root()
        root.made |= made
        root.summed |= summed


def members(whole: Dimension) -> list[Dimension]:
    """Return the representatives of a dimension and of all that are concatenated into it."""
    return list(reached([whole.root()], lambda root: [atom.dimension.root() for axis in root.parts for atom in axis]))


def is_made(dimension: Dimension) -> bool:
    """Whether a weight makes a dimension, or a part of it: asked once all operators of a graph have been followed."""
    root = dimension.root()
    if root.holds_made is None:
        root.holds_made = any(member.made for member in members(root))
    return root.holds_made


class Indices:
    """Carries axes through views: atoms are regrouped, and split where an axis ends inside one."""

    def fresh(self, size: int) -> Axis:
        """Return an axis of a dimension of its own."""
        return fresh(size)

    def regrouped(self, known: Sequence[Axis], before: tuple[int, ...], after: tuple[int, ...]) -> list[Axis]:
        """Return the axes of a reshape; new ones where it cuts across indices."""
        if 0 in before:
            return list(fresh_axes(after))
        queue = [atom for axis in known for atom in axis]
        out: list[Axis] = []
        for size in after:
            group: list[Atom] = []
            have = 1
            while have < size:
                if not queue:
                    return list(fresh_axes(after))
                atom = queue.pop(0)
                if size % (have * atom.size):
                    need = size // have
                    if size % have or atom.size % need:
                        return list(fresh_axes(after))
                    queue.insert(0, Atom(atom.size // need, atom.dimension))
                    atom = Atom(need, atom.dimension)
                group.append(atom)
                have *= atom.size
            out.append(tuple(group))
        return out

    def cut(self, known: Axis, before: int, after: int) -> Axis:
        """Return a part of an index, which is that index."""
        whole = len({id(atom.dimension.root()) for atom in known}) == 1
        return fresh(after, known[0].dimension if whole else None)
