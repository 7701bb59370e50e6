"""Several states written in common indices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np

from wellposed.signals.distributions.layout import Dims, Layout
from wellposed.signals.distributions.lazy import LocalScales, applied
from wellposed.signals.distributions.state import State
from wellposed.signals.distributions.views import merge_atoms, pooled, reshape
from wellposed.signals.integration import bounding, kernels
from wellposed.signals.integration.kernels import Array

ROUNDING = 1e-12
"""Difference of correlations that counts as rounding. Chosen."""


class Aligned(NamedTuple):
    """A state's arrays written in the atoms of a common layout.

    ``dims`` gives for each common atom the state's own (None where it is broadcast), or is None where the state had to
    be rewritten. The axis that `align_many` skips stays as the last dimension of ``cat_corr`` (correlation kernel), of
    ``along`` (mean and variance), and of ``local_scales``.
    """

    mean: Array
    var: Array
    corr: Array
    dims: Dims | None
    cat_corr: Array | None = None
    local_scales: LocalScales | None = None
    along: tuple[Array, Array] | None = None


def align_many(states: Sequence[State], skip: int | None = None) -> tuple[list[Aligned], Layout]:
    """Return the arrays of states of broadcastable shapes in common atoms, and the common layout.

    Along an index that a state lacks it is constant. The axis ``skip``, whose length may differ, is left out.
    """
    first = states[0].layout
    if skip is None and all(s.layout == first for s in states[1:]):
        same = tuple(range(len(first.lengths)))
        plain = [Aligned(s.mean, s.var, s.corr, same, local_scales=s.local_scales) for s in states]
        return _of_bounded_size(plain, first), first
    rank = max(len(s.axes) for s in states)
    given = [_with_rank(pooled(s), rank) for s in states]
    axes = [axis for axis in range(rank) if axis != skip]
    refined = reduce(_common_atoms, axes, given)
    layout = _common_layout(refined, axes, rank)
    aligned = []
    for s, before in zip(refined, given, strict=True):
        written = _written(s, _dims(s, axes, layout), () if skip is None else s.axes[skip])
        aligned.append(written if s.serial == before.serial else written._replace(dims=None))
    return _of_bounded_size(aligned, layout), layout


def _of_bounded_size(aligned: list[Aligned], layout: Layout) -> list[Aligned]:
    """Return aligned states whose kernels, once promoted to common lengths, hold at most `MOST_ENTRIES` numbers."""
    if math.prod(kernel_shape(aligned)) <= bounding.MOST_ENTRIES:
        return aligned
    return [
        one._replace(
            corr=bounding.bounded(one.corr, layout.lengths),
            local_scales=applied(one.local_scales, lambda kernel: bounding.bounded(kernel, layout.lengths)),
        )
        for one in aligned
    ]


def common_layout(states: Sequence[State], skip: int) -> Layout | None:
    """Return the common layout of `align_many` for states of one rank; None where a state has to be rewritten."""
    rank = len(states[0].axes)
    if any(len(s.axes) != rank or s.masked is not None for s in states):
        return None
    axes = [axis for axis in range(rank) if axis != skip]
    for axis in axes:
        if len({tuple([s.lengths[i] for i in s.axes[axis]]) for s in states if s.axes[axis]}) > 1:
            return None
    return _common_layout(states, axes, rank)


def dims_in(states: Sequence[State], skip: int, layout: Layout) -> list[Dims]:
    """Return, for each state and common atom, the state's own atom; the axis ``skip`` is left out of ``layout``."""
    axes = [axis for axis in range(len(layout.axes)) if axis != skip]
    return [_dims(s, axes, layout) for s in states]


def _with_rank(state: State, rank: int) -> State:
    missing = rank - len(state.axes)
    return state.amended(axes=((),) * missing + state.axes) if missing else state


def _dims(state: State, axes: Sequence[int], layout: Layout) -> Dims:
    """Return for each atom of the common layout the state's own, None where it lacks the index."""
    return tuple(i for axis in axes for i in (state.axes[axis] or (None,) * len(layout.axes[axis])))


def _common_layout(states: Sequence[State], axes: Sequence[int], rank: int) -> Layout:
    """Return the layout of a tensor whose atoms are those that some of the states have."""
    members: list[tuple[int, ...]] = [()] * rank
    for axis in axes:
        owner = next((s for s in states if s.axes[axis]), None)
        members[axis] = () if owner is None else tuple(owner.lengths[i] for i in owner.axes[axis])
    places = itertools.count()
    return Layout(
        tuple(itertools.chain.from_iterable(members)), tuple(tuple(next(places) for _ in own) for own in members)
    )


def _written(state: State, dims: Dims, skipped: tuple[int, ...]) -> Aligned:
    """Return a state's arrays with dimensions ``dims`` (None: a new one); over ``skipped`` atoms as a mixture."""
    order = (*dims, *skipped)
    mean, var = kernels.rearranged(state.mean, order), kernels.rearranged(state.var, order)
    corr = kernels.placed(state.corr, order)
    scales = applied(state.local_scales, lambda kernel: kernels.placed(kernel, order))
    if not skipped:
        return Aligned(mean, var, corr, dims, local_scales=scales)
    centre, total = kernels.mean_over(mean, (-1,)), kernels.mean_over(var, (-1,))
    if mean.shape[-1] > 1:
        total = total + kernels.mean_over((mean - centre) ** 2, (-1,))
    return Aligned(centre[..., 0], total[..., 0], corr[..., 0], dims, corr, scales, (mean, var))


def covariances(aligned: Sequence[Aligned], least: int = 1) -> list[Array]:
    """Return the covariance kernels of aligned states, all of the same profile lengths (``least`` or more)."""
    lengths = kernel_shape(aligned, least)
    return [kernels.promote(a.corr, lengths) * kernels.autocorrelation(np.sqrt(a.var), lengths) for a in aligned]


def kernel_shape(aligned: Sequence[Aligned], least: int = 1) -> tuple[int, ...]:
    """Return for each atom the longest profile among aligned states, ``least`` or more."""
    return tuple([max(least, *at) for at in zip(*(a.corr.shape for a in aligned), strict=True)])


def _common_atoms(states: list[State], axis: int) -> list[State]:
    """Return states whose atoms in an axis have the same lengths: split as in the state with most atoms there, or
    merged where that is impossible.
    """
    layouts = {tuple(s.lengths[i] for i in s.axes[axis]) for s in states if s.axes[axis]}
    if len(layouts) <= 1:
        return states
    finest = max(layouts, key=len)
    refined = []
    for s in states:
        sizes = tuple(s.lengths[i] for i in s.axes[axis])
        if sizes and sizes != finest:
            refined.append(_refined(s, axis, finest))
        else:
            refined.append(s)
    if len({tuple(s.lengths[i] for i in s.axes[axis]) for s in refined if s.axes[axis]}) > 1:
        return [merge_atoms(s, axis) for s in states]
    return refined


def _refined(state: State, axis: int, sizes: tuple[int, ...]) -> State:
    shape = state.shape
    fine = reshape(state, (*shape[:axis], *sizes, *shape[axis + 1 :]))
    inner = tuple(i for a in range(axis, axis + len(sizes)) for i in fine.axes[a])
    return fine.amended(axes=(*fine.axes[:axis], inner, *fine.axes[axis + len(sizes) :]))


def without_repeats(x: State, y: State) -> tuple[State, State]:
    """Return two states with axes merged to one atom where one of them repeats its positions and their atoms differ, so
    that their covariance can be told by position.
    """
    for back in range(1, min(len(x.axes), len(y.axes)) + 1):
        first, second = (tuple(s.lengths[i] for i in s.axes[-back]) for s in (x, y))
        if first == second or x.shape[-back] != y.shape[-back]:
            continue
        if _repeats(x, -back) or _repeats(y, -back):
            x, y = (merge_atoms(s, len(s.axes) - back) if len(s.axes[-back]) > 1 else s for s in (x, y))
    return x, y


def _repeats(x: State, axis: int) -> bool:
    """Whether all elements along some atom of an axis are equal (the tensor was broadcast along it)."""
    return (
        bool(x.links)
        and len(x.axes[axis]) > 1
        and any(x.corr.shape[i] == 2 and not np.ptp(x.corr, axis=i).any() for i in x.axes[axis])
    )


def align(x: State, y: State) -> tuple[Aligned, Aligned, Layout]:
    """`align_many` for two states."""
    (a, b), layout = align_many((x, y))
    return a, b, layout
