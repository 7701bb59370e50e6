"""States that others are combinations of positions of: the same axes on other grids."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from wellposed.signals.distributions.layout import Dims
from wellposed.signals.distributions.repeats import REPEATED
from wellposed.signals.distributions.state import Link, Scaled, State
from wellposed.signals.integration import kernels, taps
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.taps import Taps

GRIDS = 64
"""Most states that are passed in search of one on the same grid. Chosen, for speed."""


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """An ancestor of a child state: child = ``factor`` times combinations of the ancestor's positions + an independent
    rest.

    Attributes:
        state: the ancestor.
        places: for each of its atoms the atom of a third state, that covariances are asked with; None without one.
        factor: a number.
        taps: by atom of the ancestor, the combinations of positions, for a child on another grid.
    """

    state: State
    places: Dims
    factor: float = 1.0
    taps: Mapping[int, Taps] = field(default_factory=dict)

    def behind(self, link: Link, sizes: Sequence[int]) -> Grid | None:
        """Return the parent of ``link``, a link of this ancestor, as an ancestor of the same child. ``sizes`` are the
        atoms' lengths of the third state. None where the link is no combination of positions times a number.
        """
        if not isinstance(link.operate, Scaled) or link.over:
            return None
        dims = link.places(len(self.state.lengths))
        factor, combined = self.factor * link.operate.factor, {}
        for atom, combinations in self.taps.items():
            inner = dims[atom]
            if inner is None:
                factor *= combinations.total()
            else:
                combined[inner] = combinations
        for atom, combinations in link.taps:
            combined[atom] = combined[atom].of(combinations) if atom in combined else combinations
        places = places_in(self.places, dims, len(link.parent.lengths))
        gone = [atom for atom, _ in link.taps if atom not in dims]
        places = matched(places, gone, link.parent.lengths, sizes, places)
        return Grid(link.parent, places, factor, combined)

    def fitting(self, sizes: Sequence[int]) -> Grid | None:
        """Return this grid if the third state, of these ``sizes``, has its positions along all combined atoms."""
        places = {self.places[atom]: self.state.lengths[atom] for atom in self.taps}
        return self if all(place is not None and sizes[place] == size for place, size in places.items()) else None

    def is_as(self, other: Grid) -> bool:
        """Whether two grids hold one state with each of its atoms at the same place."""
        pairs = zip(self.places, other.places, strict=True) if self.state.serial == other.state.serial else [(0, 1)]
        return all(i == j or i is None or j is None for i, j in pairs)

    def inverse(self, count: int) -> Dims:
        """Return for each of the third state's ``count`` atoms the atom of this state."""
        return places_in(tuple(range(len(self.places))), self.places, count)

    def by_place(self) -> dict[int, Taps]:
        """Return the combinations by atom of the third state."""
        return {place: taken for atom, taken in self.taps.items() if (place := self.places[atom]) is not None}


def combined(kernel: Array, one: Mapping[int, Taps], other: Mapping[int, Taps]) -> Array:
    """Return the covariance kernel of two combinations, by dimension, given that of what they combine."""
    for dim in sorted({*one, *other}):
        size = (one.get(dim) or other[dim]).size
        first, second = one.get(dim) or taps.whole(size), other.get(dim) or taps.whole(size)
        if len(first.index) == len(second.index):
            cap = kernels.lag_cap(sum(n > 2 for i, n in enumerate(kernel.shape) if i != dim) + 1)
            kernel = taps.covariances(kernel, dim, first, second, min(len(first.index), max(cap, 2)))
        else:  # one of them is alike everywhere
            kernel = taps.covariances(kernel, dim, first.averaged(), second.averaged(), 1)
            kernel = np.concatenate([kernel, kernel], axis=dim)
    return kernel


def places_in(where: Dims, dims: Dims, count: int) -> Dims:
    """Return the place of each of a parent's ``count`` atoms, from the place of each atom of the child (``where``) and
    the parent's atom for it (``dims``).
    """
    places: list[int | None] = [None] * count
    for i, j in zip(where, dims, strict=True):
        if j is not None:
            places[j] = i
    return tuple(places)


def matched(places: Dims, atoms: Sequence[int], sizes: Sequence[int], of: Sequence[int], taken: Dims) -> Dims:
    """Return ``places`` with a place also for those ``atoms`` that have none: the next of equal length among the places
    of lengths ``of`` that are not ``taken``. A wrong guess is noticed where two grids are compared (`is_as`).
    """
    free = [i for i in range(len(of)) if i not in taken]
    found = list(places)
    for atom in atoms:
        if found[atom] is None and (same := [i for i in free if of[i] == sizes[atom]]):
            found[atom] = same[0]
            free.remove(same[0])
    return tuple(found)


_End = TypeVar("_End")


def before(made: Container[int], x: State) -> list[Grid]:
    """Return the ancestors of x through combinations and numbers alone, x first. The walk ends at states in ``made``,
    results of repeated weights, and at states with several parents.
    """
    found = [Grid(x, tuple(range(len(x.lengths))))]
    while len(found) < GRIDS and found[-1].state.serial not in made and len(found[-1].state.links) == 1:
        parent = found[-1].behind(found[-1].state.links[0], x.lengths)
        if parent is None:
            break
        found.append(parent)
    return found


def behind(made: Container[int], x: State, start: Grid, ends: Callable[[Grid], _End | None]) -> list[tuple[Grid, _End]]:
    """Return, on each way back from ``start`` through combinations and numbers, the first ancestor for which ``ends``
    is not None, with what ``ends`` returned. Places are atoms of ``x``.
    """
    found: list[tuple[Grid, _End]] = []
    pending, steps = [start], 0
    while pending and (steps := steps + 1) < GRIDS:
        at = pending.pop()
        for link in at.state.links if at.state.serial not in made else ():
            parent = at.behind(link, x.lengths)
            if parent is None or parent.state.roots & x.roots <= REPEATED:
                continue
            end = ends(parent)
            if end is None:
                pending.append(parent)
            else:
                found.append((parent, end))
    return found
