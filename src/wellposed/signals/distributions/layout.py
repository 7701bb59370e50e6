"""How a tensor is indexed: atoms, and the axes that they lie in."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

from wellposed.signals.distributions.declared import EVERYTHING, NO_AXES, holds

Axes = tuple[tuple[int, ...], ...]
"""For every axis of a tensor the atoms that lie in it, outermost first."""
Dims = tuple["int | None", ...]
"""For every atom of a tensor the place of the same index in another one, None where that lacks it."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a tensor is indexed: by atoms, independent indices of it, some of which lie in each of its axes."""

    lengths: tuple[int, ...] = field(metadata=holds("how long each atom is", "one number per atom", EVERYTHING))
    axes: Axes = field(metadata=holds("the atoms that lie in each axis, outermost first", "atoms, per axis", NO_AXES))

    _shape: tuple[int, ...] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        if self._shape is None:
            sizes = self.lengths
            made = tuple([math.prod([sizes[i] for i in axis]) for axis in self.axes])
            object.__setattr__(self, "_shape", made)
            return made
        return self._shape

    def resized(self, atom: int, size: int) -> Layout:
        """Return the layout with another size of one atom."""
        return Layout((*self.lengths[:atom], size, *self.lengths[atom + 1 :]), self.axes)

    def without(self, gone: Collection[int]) -> Layout:
        """Return the layout without some atoms; their axes have length 1."""
        keep = [i for i in range(len(self.lengths)) if i not in gone]
        where = {old: new for new, old in enumerate(keep)}
        axes = tuple([tuple([where[i] for i in axis if i in where]) for axis in self.axes])
        return Layout(tuple([self.lengths[i] for i in keep]), axes)

    def dropping(self, over: Collection[int]) -> Layout:
        """Return the layout without the axes ``over``, none of which holds an atom."""
        return Layout(self.lengths, tuple([axis for i, axis in enumerate(self.axes) if i not in over]))
