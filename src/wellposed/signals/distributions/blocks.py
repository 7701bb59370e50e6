"""Parts of an axis, and tensors put behind each other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from wellposed.signals.distributions.alignment import Aligned, align_many
from wellposed.signals.distributions.state import Ancestry, Layout, Marginal, Moments, Spread, State, weakest
from wellposed.signals.distributions.views import merge_atoms, pooled
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array


def select(state: State, axis: int, start: int, stop: int, step: int, *, drop: bool) -> State:
    """Take part of an axis (a slice; ``drop`` removes the axis, as indexing by a number does)."""
    rank = len(state.axes)
    axis %= rank
    size = state.shape[axis]
    start, stop, step = slice(start, stop, step).indices(size)
    count = len(range(start, stop, step))
    if count == size and step == 1 and not drop:
        return state
    if state.blocks and axis == state.block_axis and step == 1 and not drop:
        picked = _pick_blocks(state, axis, start, stop)
        if picked is not None:
            return picked
    state = pooled(state)
    if not state.axes[axis]:
        return state.amended(axes=(*state.axes[:axis], *state.axes[axis + 1 :])) if drop else state
    if len(state.axes[axis]) > 1:
        state = merge_atoms(state, axis)
    atom = state.axes[axis][0]

    def take(array: Array) -> Array:
        if array.shape[atom] == 1:
            return array
        index = [slice(None)] * array.ndim
        index[atom] = slice(start, stop, step)
        return array[tuple(index)]

    mean, var, corr = take(state.mean), take(state.var), state.corr
    length = corr.shape[atom]
    if step > 1 and length > 2:
        corr = np.take(corr, np.minimum(np.arange(0, (length - 1) // step + 2) * step, length - 1), axis=atom)
    if corr.shape[atom] > count:  # displacements that the part still has
        corr = np.take(corr, range(max(count, 1)), axis=atom)
    if count == 1 or drop:
        remaining = [i for i in range(len(state.sizes)) if i != atom]
        mean, var = mean.reshape([mean.shape[i] for i in remaining]), var.reshape([var.shape[i] for i in remaining])
        corr = np.take(corr, 0, axis=atom)
        sizes = tuple(state.sizes[i] for i in remaining)
        shift = {old: new for new, old in enumerate(remaining)}
        axes = tuple(tuple(shift[i] for i in ax if i != atom) for ax in state.axes)
        if drop:
            axes = (*axes[:axis], *axes[axis + 1 :])
    else:
        sizes = tuple(count if i == atom else a for i, a in enumerate(state.sizes))
        axes = state.axes
    return state.with_moments(sizes=sizes, axes=axes, mean=mean, var=var, corr=corr)


def _pick_blocks(state: State, axis: int, start: int, stop: int) -> State | None:
    picked, at = [], 0
    for block in state.blocks:
        width = block.shape[axis]
        low, high = max(start - at, 0), min(stop - at, width)
        if high > low:
            picked.append(block if (low, high) == (0, width) else select(block, axis, low, high, 1, drop=False))
        at += width
    if len(picked) == 1:
        return picked[0]
    return concatenate(picked, axis)


def laid_out(state: State) -> State:
    """Return a concatenation whose parts differ as one state with means and variances by position, without blocks.

    What is added to all of it (a position embedding) ends its blocks, but a part may have another size for all that: a
    class token beside patches.
    """
    first = state.blocks[0] if state.blocks else state
    if all(math.isclose(b.second_moment, first.second_moment, rel_tol=1e-5) for b in state.blocks):
        return pooled(state)
    return concatenate(state.blocks, state.block_axis, apart=False)


def concatenate(states: Sequence[State], axis: int, *, apart: bool = True) -> State:
    """Put states behind each other along an axis.

    Along an axis of uncorrelated elements (channels) the parts are kept ``apart`` as blocks. Otherwise (tokens,
    positions) one state remains: means and variances by position, one average correlation of different positions.
    """
    axis %= len(states[0].axes)
    if len(states) == 1:
        return states[0]
    shape = list(states[0].shape)
    shape[axis] = sum(s.shape[axis] for s in states)
    flat = [merge_atoms(s, axis) if len(s.axes[axis]) > 1 else pooled(s) for s in states]
    weights = np.array([s.shape[axis] for s in states], dtype=np.float64) / shape[axis]
    aligned, axes, sizes = align_many(flat, skip=axis)
    count = len(sizes)
    lengths = [max(a.corr.shape[i] for a in aligned) for i in range(count)]
    iid = apart and all(a.cat_corr is None or a.cat_corr.shape[-1] == 1 for a in aligned)
    differ = _differ(aligned)
    varying = not iid or differ
    if iid and differ:
        # which block an element lies in is common to all positions: blocks' means add to the covariance
        lengths = [max(length, 2) for length in lengths]
    covariances = [kernels.promote(a.corr, lengths) * kernels.autocorrelation(np.sqrt(a.var), lengths) for a in aligned]
    # one more atom for the concatenated axis, placed last in the arrays
    if iid:
        mean = sum(w * a.mean for w, a in zip(weights, aligned, strict=True))[..., None]
        second = sum(w * (a.mean**2 + a.var) for w, a in zip(weights, aligned, strict=True))[..., None]
        var = np.maximum(second - mean**2, 0.0)
        raw = sum(
            w * (c + (kernels.autocorrelation(a.mean, lengths) if differ else 0.0))
            for w, c, a in zip(weights, covariances, aligned, strict=True)
        )
        covariance = (raw - (kernels.autocorrelation(mean[..., 0], lengths) if differ else 0.0))[..., None]
    else:
        mean, var = _stacked([a.mean for a in aligned], states, axis), _stacked([a.var for a in aligned], states, axis)
        between = 0.0
        for s, w, a in zip(states, weights, aligned, strict=True):
            n = s.shape[axis]
            if a.cat_corr is not None and n > 1:
                # inside a part: its own correlation at different positions, by displacement in the other atoms
                rho = kernels.off_diagonal_mean(kernels.promote(a.cat_corr, [*lengths, 1]), [*sizes, n], count)[..., 0]
                between = between + w * w * rho * kernels.autocorrelation(np.sqrt(a.var), lengths)
        covariance0 = sum(w * c for w, c in zip(weights, covariances, strict=True))
        covariance = np.stack([covariance0, np.broadcast_to(between, covariance0.shape)], axis=-1)
    lengths_all = covariance.shape
    scale = kernels.autocorrelation(np.sqrt(var), lengths_all)
    with np.errstate(all="ignore"):
        corr = np.asarray(np.clip(kernels.quotient(covariance, scale), -1.0, 1.0))
    corr[(0,) * corr.ndim] = 1.0
    full_axes = tuple((count,) if i == axis else ax for i, ax in enumerate(axes))
    result = State(
        Layout((*sizes, shape[axis]), full_axes),
        Moments(mean, var, corr),
        tag=weakest(*(s.tag for s in states)),
        marginal=Marginal(gauss=all(s.gauss for s in states) and not varying),
        ancestry=Ancestry((), _union(states), states[0].lever if len({s.lever for s in states}) == 1 else None),
        spread=joint_spread([(w * s.second_moment, s) for w, s in zip(weights, states, strict=True)]),
    )
    if iid:
        parts = tuple(
            itertools.chain.from_iterable(s.blocks if s.blocks and s.block_axis == axis else (s,) for s in states)
        )
        result = result.amended(blocks=parts, block_axis=axis)
    return result


def joint_spread(parts: Sequence[tuple[float, State]]) -> Spread:
    """Return the spread of ln(second moment) of a sum whose parts have these shares of the second moment.

    What parts inherit from earlier draws is common to them; what their own last contraction adds is not.
    """
    total = sum(share for share, _ in parts) or 1.0
    return Spread(
        inherited=float(sum(share / total * s.inherited**0.5 for share, s in parts) ** 2),
        own=float(sum((share / total) ** 2 * s.own for share, s in parts)),
        drift=float(sum(share / total * s.drift for share, s in parts)),
    )


def _differ(aligned: Sequence[Aligned]) -> bool:
    first = aligned[0]
    return any(
        a.mean.shape != first.mean.shape or not _close(a.mean, first.mean) or not _close(a.var, first.var)
        for a in aligned[1:]
    )


def _close(a: Array, b: Array) -> bool:
    return bool((np.abs(a - b) <= 1e-8 + 1e-5 * np.abs(b)).all())


def _stacked(arrays: Sequence[Array], states: Sequence[State], axis: int) -> Array:
    shape = np.broadcast_shapes(*(a.shape for a in arrays))
    columns = [
        np.repeat(np.broadcast_to(a, shape)[..., None], s.shape[axis], axis=-1)
        for a, s in zip(arrays, states, strict=True)
    ]
    whole = np.concatenate(columns, axis=-1)
    return whole[..., :1] if np.ptp(whole, axis=-1).max(initial=0.0) == 0.0 else whole


def _union(states: Sequence[State]) -> int:
    roots = 0
    for s in states:
        roots |= s.roots
    return roots
