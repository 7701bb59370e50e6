"""Several states written in common indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from wellposed.signals.distributions.state import Dims, State
from wellposed.signals.distributions.views import merge_atoms, pooled, reshape
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array


class Aligned(NamedTuple):
    """A state's arrays written in the atoms of a common layout.

    ``dims`` gives for each common atom the state's own (None where it is broadcast), or is None where the state had to
    be rewritten. ``cat_corr`` keeps a skipped axis as last dimension.
    """

    mean: Array
    var: Array
    corr: Array
    dims: Dims | None
    cat_corr: Array | None = None


def align_many(
    states: Sequence[State], skip: int | None = None
) -> tuple[list[Aligned], tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Write states of broadcastable shapes in common atoms.

    Returns the arrays of each, and the axes and atoms of the common layout. Along an index that a state lacks it is
    constant. The axis ``skip`` is left out (it may differ in length).
    """
    first = states[0]
    if skip is None and all(s.axes == first.axes and s.sizes == first.sizes for s in states[1:]):
        same = tuple(range(len(first.sizes)))
        return [Aligned(s.mean, s.var, s.corr, same) for s in states], first.axes, first.sizes
    states = [pooled(s) for s in states]
    rank = max(len(s.axes) for s in states)
    states = [s.amended(axes=((),) * (rank - len(s.axes)) + s.axes) for s in states]
    serials = [s.serial for s in states]
    for axis in range(rank):
        if axis == skip:
            continue
        states = _common_atoms(states, axis)
    sizes: list[int] = []
    axes: list[tuple[int, ...]] = []
    sources: list[list[int | None]] = [[] for _ in states]
    for axis in range(rank):
        if axis == skip:
            axes.append(())
            continue
        owner = next((s for s in states if s.axes[axis]), None)
        members = () if owner is None else tuple(owner.sizes[i] for i in owner.axes[axis])
        axes.append(tuple(range(len(sizes), len(sizes) + len(members))))
        sizes.extend(members)
        for s, source in zip(states, sources, strict=True):
            source.extend(s.axes[axis] or (None,) * len(members))
    result = []
    for s, source, serial in zip(states, sources, serials, strict=True):
        skipped = list(s.axes[skip]) if skip is not None else []
        used = [i for i in source if i is not None]
        order = used + skipped

        def place(array: Array, constant: bool, order: list[int] = order, source: list[int | None] = source) -> Array:
            moved = array.transpose(order) if order != list(range(array.ndim)) else array
            for at, i in enumerate(source):
                if i is None:
                    moved = np.expand_dims(moved, at)
                    if constant:
                        moved = np.concatenate([moved, moved], axis=at)
            return moved

        mean, var, corr = place(s.mean, False), place(s.var, False), place(s.corr, True)
        cat_corr = None
        if skipped:
            cat_corr = corr
            corr = corr[..., 0]
            centre = kernels.mean_over(mean, (-1,))
            var = kernels.mean_over(var, (-1,))
            if mean.shape[-1] > 1:
                var = var + kernels.mean_over((mean - centre) ** 2, (-1,))
            mean, var = centre[..., 0], var[..., 0]
        dims = tuple(source) if s.serial == serial else None
        result.append(Aligned(mean, var, corr, dims, cat_corr))
    return result, tuple(axes), tuple(sizes)


def _common_atoms(states: list[State], axis: int) -> list[State]:
    layouts = {tuple(s.sizes[i] for i in s.axes[axis]) for s in states if s.axes[axis]}
    if len(layouts) <= 1:
        return states
    finest = max(layouts, key=len)
    refined = []
    for s in states:
        sizes = tuple(s.sizes[i] for i in s.axes[axis])
        if sizes and sizes != finest:
            refined.append(_refined(s, axis, finest))
        else:
            refined.append(s)
    if len({tuple(s.sizes[i] for i in s.axes[axis]) for s in refined if s.axes[axis]}) > 1:
        return [merge_atoms(s, axis) if len(s.axes[axis]) > 1 else s for s in states]
    return refined


def _refined(state: State, axis: int, sizes: tuple[int, ...]) -> State:
    shape = state.shape
    fine = reshape(state, (*shape[:axis], *sizes, *shape[axis + 1 :]))
    inner = tuple(i for a in range(axis, axis + len(sizes)) for i in fine.axes[a])
    return fine.amended(axes=(*fine.axes[:axis], inner, *fine.axes[axis + len(sizes) :]))


def align(x: State, y: State) -> tuple[Aligned, Aligned, tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """`align_many` for two states."""
    (a, b), axes, sizes = align_many((x, y))
    return a, b, axes, sizes
