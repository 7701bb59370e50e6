"""Parts of an axis: slices, and single positions."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from wellposed.signals.distributions.blocks import concatenate
from wellposed.signals.distributions.lazy import LocalScales
from wellposed.signals.distributions.marginals import one_signed
from wellposed.signals.distributions.spread import NONE
from wellposed.signals.distributions.state import FunctionOf, LinearMap, Link, Marginal, Scaled, State
from wellposed.signals.distributions.views import in_rank, merge_atoms, with_scores
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.taps import picks


def select(state: State, axis: int, start: int, stop: int, step: int, *, drop: bool) -> State:
    """Take part of an axis (a slice; ``drop`` removes the axis, as indexing by a number does)."""
    axis %= len(state.axes)
    size = state.shape[axis]
    part = range(size)[start:stop:step]
    if len(part) == size and step == 1 and not drop:
        return state
    if state.masked is not None:
        mask = in_rank(state.masked.mask, len(state.axes))
        shown = part if mask.shape[axis] > 1 else range(1)
        mask = mask[(*(slice(None),) * axis, shown[0] if drop else slice(shown.start, shown.stop, shown.step))]
        return with_scores(state, state.masked, mask, lambda scores: select(scores, axis, start, stop, step, drop=drop))
    if state.blocks and axis != state.blocks.axis:
        parts = [select(block, axis, start, stop, step, drop=drop) for block in state.blocks]
        return concatenate(parts, state.blocks.axis - (drop and axis < state.blocks.axis))
    if state.blocks and step == 1:
        state = _part_of_blocks(state, axis, part)
    else:
        state = _part_of_axis(state, axis, part)
    return state.amended(layout=state.layout.dropping([axis])) if drop else state


def _part_of_blocks(state: State, axis: int, part: range) -> State:
    """Return consecutive positions of the axis along which blocks lie: whole blocks, and parts of the outer ones."""
    picked, at = [], 0
    for block in state.blocks:
        width = block.shape[axis]
        low, high = max(part.start - at, 0), min(part.stop - at, width)
        if high > low:
            picked.append(select(block, axis, low, high, 1, drop=False))
        at += width
    return concatenate(picked, axis)


def _part_of_axis(state: State, axis: int, part: range) -> State:
    """Return the positions ``part`` of an axis: of its outermost atom where both ends lie between rows of the inner
    ones, else of all its atoms merged.
    """
    row = math.prod([state.lengths[i] for i in state.axes[axis][1:]])
    if part.step == 1 and len(state.axes[axis]) > 1 and part.start % row == 0 == part.stop % row:
        part = range(part.start // row, part.stop // row)
    else:
        state = merge_atoms(state, axis)
    return _part_of_atom(state, _Part(state.axes[axis][0], part)) if state.axes[axis] else state


class _Part(NamedTuple):
    """Positions of one atom; a single position drops the atom."""

    atom: int
    places: range

    @property
    def gone(self) -> list[int]:
        """The atom if it goes."""
        return [self.atom] if len(self.places) == 1 else []

    def of_map(self, array: Array) -> Array:
        """Return the part of an array by position."""
        taken = slice(self.places.start, self.places.stop, self.places.step)
        picked = array if array.shape[self.atom] == 1 else array[(*(slice(None),) * self.atom, taken)]
        return kernels.without(picked, self.gone)

    def of_profile(self, kernel: Array) -> Array:
        """Return a kernel by displacement at the displacements that the positions have among themselves."""
        length, step = kernel.shape[self.atom], self.places.step
        if step > 1 and length > 2:
            lags = np.arange((length - 1) // step + 2) * step
            kernel = np.take(kernel, np.minimum(lags, length - 1), axis=self.atom)
        kept = kernel[(*(slice(None),) * self.atom, slice(max(len(self.places), 1)))]
        return kernels.without(kept, self.gone)

    def of_kernel(self, kernel: Array) -> Array:
        """Return a kernel of the positions, by pair if the kernel was and there are enough positions."""
        size = kernels.positions(kernel.shape[self.atom])
        if not size:
            return self.of_profile(kernel)
        places = np.array(self.places)
        pairs = kernels.matrix_of(kernel, self.atom, size)[..., places[:, None], places]
        few = len(places) < kernels.LEAST
        told = kernels.by_lags(pairs, self.atom, len(places)) if few else kernels.by_pair(pairs, self.atom)
        return kernels.without(told, self.gone)


def _part_of_atom(state: State, part: _Part) -> State:
    """Return some positions of one atom."""
    links: tuple[Link, ...] = ()
    if state.roots and (state.corr.shape[part.atom] > 1 or part.gone):
        dims = tuple([i for i in range(len(state.lengths)) if i not in part.gone])
        taps = (part.atom, picks(np.array(part.places), state.lengths[part.atom]))
        links = (Link(state, Scaled(1.0), dims, taps=(taps,)),)
    return state.with_moments(
        origin=_map_to_part(state, part),
        links=links,
        layout=state.layout.resized(part.atom, len(part.places)).without(part.gone),
        mean=part.of_map(state.mean),
        var=part.of_map(state.var),
        corr=part.of_kernel(state.corr),
        marginal=_marginal_of_part(state, part),
        filters=state.filters.viewed(part.of_profile),  # one filter made all of it
    )


def _map_to_part(state: State, part: _Part) -> LinearMap | None:
    """Return the part of a linear map as a linear map: of the same part of its parent along another atom, or by some
    rows of the weights; None for other states.
    """
    of = state.known_as(LinearMap)
    if of is None or state.lengths != of.parent.layout.resized(of.atom, len(of.weights)).lengths:
        return None
    if of.atom != part.atom:
        return replace(
            of, parent=_part_of_atom(of.parent, part), atom=of.atom - (bool(part.gone) and of.atom > part.atom)
        )
    return replace(of, weights=of.weights[part.places.start : part.places.stop : part.places.step], pairs=False)


def _marginal_of_part(state: State, part: _Part) -> Marginal:
    """Return the marginal of a part: local scales with their sources where all positions share them, without where they
    differ along the atom; a function of a Gaussian tensor is the function of its part.
    """
    found = one_signed(state)
    if state.local_scales is not None:
        sources = state.local_scales.sources if _is_shared(state.local_scales.get(), part.atom) else NONE
        found = replace(found, local_scales=LocalScales(state.local_scales.then(part.of_profile).get, sources))
    elif state.function is None:
        found = replace(found, transport=state.transport)
    base, fn = state.gaussian_source()
    if fn is not None and base.lengths == state.lengths:
        found = replace(found, function=FunctionOf(_part_of_atom(base, part), fn), transport=state.transport)
    return found


def _is_shared(kernel: Array | None, atom: int) -> bool:
    """Whether all elements along an atom have one local scale."""
    return kernel is None or (kernel.shape[atom] > 1 and not np.ptp(kernel, axis=atom).any())
