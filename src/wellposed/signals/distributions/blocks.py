"""Tensors one after another along an axis."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache, reduce
from operator import or_
from weakref import WeakKeyDictionary

import numpy as np

from wellposed.signals.distributions.alignment import (
    Aligned,
    align_many,
    common_layout,
    covariances,
    dims_in,
    kernel_shape,
)
from wellposed.signals.distributions.later import LaterAncestry, LaterMarginal, LaterMoments, LaterSpread
from wellposed.signals.distributions.layout import Dims, Layout
from wellposed.signals.distributions.lazy import LocalScales, evaluated
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.marginals import has_shape, marginal
from wellposed.signals.distributions.moments import Moments
from wellposed.signals.distributions.spread import NONE, Sources, Spread, mean_spread
from wellposed.signals.distributions.state import WHOLE, Ancestry, Blocks, Link, Marginal, Scaled, State, weakest
from wellposed.signals.distributions.views import merge_atoms, pooled
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.taps import picks
from wellposed.signals.integration.transport import of_mixture

MOST_PARTS = 16
"""Parts of a concatenation up to which each is followed. Chosen, for speed."""
MOST_TIMES = 128
"""Positions, each a state of its own, up to which the covariance of every two is followed. Chosen, for speed."""
Between = Callable[[State, State, Dims, Dims], "Array | None"]
"""The covariance kernel of two states in common atoms (see `Dependence.between`)."""


def depend(blocks: Sequence[State]) -> bool:
    """Whether there are several blocks, no more than `MOST_PARTS`, some of which share sources."""
    return 1 < len(blocks) <= MOST_PARTS and any(a.roots & b.roots for a, b in itertools.combinations(blocks, 2))


def with_times(state: State, between: Between) -> State:
    """Return a concatenation of single, dependent positions (the times of a loop) with moments by position, computed on
    demand, and the covariance of every two positions from ``between``. Blocks stay; other states are returned as they
    are.
    """
    blocks, axis = state.blocks, state.blocks.axis
    if not _by_times(state):
        return state
    layout = common_layout(blocks, skip=axis)
    if layout is None or _with_last(layout, axis, len(blocks)) != state.layout:
        return state
    return state.amended(moments=LaterMoments(lambda: _concatenated(blocks, axis, False, between).moments))


def laid_out(state: State) -> State:
    """Return a concatenation whose parts differ as one state without blocks, with mean and variance by position.

    What is added to all of it (a position embedding) ends its blocks, but parts may differ in size all the same: a
    class token beside patches.
    """
    first, axis = state.blocks[0] if state.blocks else state, state.blocks.axis
    if all(math.isclose(b.second_moment, first.second_moment, rel_tol=1e-5) for b in state.blocks):
        return pooled(state)
    laid = concatenate(state.blocks, axis, apart=False)
    if not all(b.gauss for b in state.blocks):
        shares = [b.shape[axis] / state.shape[axis] for b in state.blocks]
        laid = laid.amended(transport=of_mixture(list(map(marginal, state.blocks)), shares))
    if laid.layout != state.layout:
        return laid
    # the same tensor still, which others may depend on; single positions that depend on one another know it already
    moments = state.moments if _by_times(state) else laid.moments
    return state.amended(moments=moments, marginal=laid.marginal, spread=laid.spread, blocks=WHOLE)


def _by_times(state: State) -> bool:
    """Whether a state's blocks are single positions that depend on one another, so that `with_times` applies."""
    return depend(state.blocks) and all(b.shape[state.blocks.axis] == 1 for b in state.blocks)


def concatenate(states: Sequence[State], axis: int, *, apart: bool = True, between: Between | None = None) -> State:
    """Return the concatenation of states along an axis.

    Along an axis of uncorrelated elements (channels) the states are kept ``apart`` as blocks. Otherwise (tokens,
    positions) the result is one state: mean and variance by position, and one average correlation of different
    positions. Single positions that depend on one another (times of a recurrence) have instead the covariance of every
    pair, as ``between`` returns it for two states.
    """
    axis %= len(states[0].axes)
    if len(states) == 1:
        return states[0]
    single = between is not None and all(s.shape[axis] == 1 for s in states)
    layout = common_layout(states, skip=axis) if apart and not single else None
    if layout is None or not all(_is_uncorrelated(s, axis) for s in states):
        return _concatenated(states, axis, apart, between if single else None)
    return _in_blocks(states, axis, layout)


def _in_blocks(states: Sequence[State], axis: int, layout: Layout) -> State:
    """Return a concatenation kept in blocks, whose parts have a common ``layout`` beside its axis."""
    whole = cache(lambda: _concatenated(states, axis, True, None))  # few rules ask for all moments
    return State(
        _with_last(layout, axis, sum(s.shape[axis] for s in states)),
        LaterMoments(lambda: whole().moments),
        tag=weakest(*(s.tag for s in states)),
        marginal=LaterMarginal(lambda: whole().marginal) if all(map(_may_be_gaussian, states)) else Marginal(),
        ancestry=_joint_ancestry(
            states, lambda: _part_links(list(map(pooled, states)), axis, dims_in(states, axis, layout))
        ),
        spread=LaterSpread(lambda: whole().spread),
        blocks=_parts(states, axis),
    )


def _may_be_gaussian(state: State) -> bool:
    """Whether elements may be Gaussian, without computing a postponed marginal."""
    return isinstance(state.marginal, LaterMarginal) or state.gauss


def _is_uncorrelated(state: State, axis: int) -> bool:
    """Whether positions along an axis of at most one atom are uncorrelated; False of others."""
    atoms = state.axes[axis]
    return not atoms or (len(atoms) == 1 and state.corr.shape[atoms[0]] == 1)


def _with_last(layout: Layout, axis: int, size: int) -> Layout:
    """Return a layout with a last atom, in an axis that has none."""
    axes = (*layout.axes[:axis], (len(layout.lengths),), *layout.axes[axis + 1 :])
    return Layout((*layout.lengths, size), axes)


def _concatenated(states: Sequence[State], axis: int, apart: bool, between: Between | None) -> State:
    """Return `concatenate` with all moments computed; ``between`` is given only where each state is one position."""
    widths = [s.shape[axis] for s in states]
    weights = np.array(widths, dtype=np.float64) / sum(widths)
    merged = [merge_atoms(s, axis) for s in states]
    aligned, layout = align_many(merged, skip=axis)
    told = None if between is None else _covariance_of_each(merged, aligned, between)
    in_blocks = told is None and apart and _are_uncorrelated(aligned)
    equal = _have_equal_moments(aligned)
    if in_blocks:
        mean, var, covariance = _mixed(merged, aligned, weights, equal)
    else:
        mean, var, covariance = _by_position(aligned, weights, widths, layout.lengths, told)
    parts = [w * s.var for w, s in zip(weights, states, strict=True)]
    return State(
        _with_last(layout, axis, sum(widths)),
        Moments(
            mean,
            var,
            kernels.correlation(covariance, var),
            finite_width_correlation_of_parts(zip(states, parts, strict=True), var),
        ),
        tag=weakest(*(s.tag for s in states)),
        marginal=_marginal_of_all(states, equal) if in_blocks else _marginal_by_position(states, aligned, weights),
        ancestry=_joint_ancestry(states, lambda: _part_links(merged, axis, [a.dims for a in aligned])),
        spread=spread_of_parts([(w * s.second_moment, s) for w, s in zip(weights, states, strict=True)]),
        blocks=_parts(states, axis) if in_blocks else WHOLE,
    )


def _are_uncorrelated(aligned: Sequence[Aligned]) -> bool:
    """Whether positions inside each part are uncorrelated along the axis of the concatenation."""
    return all(a.cat_corr is None or a.cat_corr.shape[-1] == 1 for a in aligned)


def _marginal_of_all(states: Sequence[State], equal: bool) -> Marginal:
    """Return the marginal of an element of any part: Gaussian where all are, with ``equal`` moments."""
    return Marginal(gauss=equal and all(s.gauss for s in states))


def _marginal_by_position(states: Sequence[State], aligned: Sequence[Aligned], weights: Array) -> Marginal:
    """Return a marginal whose local scales average those of the parts, independent between parts; parts of known values
    count as without.
    """
    if not all(s.local_scales is not None or not has_shape(s) or s.gauss for s in states):
        return Marginal()
    found = [
        # a part of one position has no atom of its own in the axis
        w * (kernel[..., None] if a.cat_corr is None else kernel[..., :1])
        for w, a in zip(weights, aligned, strict=True)
        if (kernel := evaluated(a.local_scales)) is not None
    ]
    return Marginal(local_scales=LocalScales.of(kernels.total(*found))) if found else Marginal()


def _parts(states: Sequence[State], axis: int) -> Blocks:
    blocks = [s.blocks if s.blocks and s.blocks.axis == axis else (s,) for s in states]
    return Blocks(itertools.chain.from_iterable(blocks), axis)


def _part_links(states: Sequence[State], axis: int, dims: Sequence[Dims | None]) -> tuple[Link, ...]:
    """Return a link from a concatenation to each part of several positions, whose taps are -1 outside of the part;
    ``dims`` gives the atoms of each part in the layout, None for a part that had to be rewritten.
    """
    linked = [s.roots and place is not None and s.axes[axis] for s, place in zip(states, dims, strict=True)]
    if sum(map(bool, linked)) > MOST_PARTS:
        return ()
    found, start, size = [], 0, sum(s.shape[axis] for s in states)
    for s, place, is_linked in zip(states, dims, linked, strict=True):
        width = s.shape[axis]
        if is_linked and place is not None:
            source = np.full(size, -1)
            source[start : start + width] = np.arange(width)
            (atom,) = s.axes[axis]
            found.append(Link(s, Scaled(1.0), (*place, atom), taps=((atom, picks(source, width)),)))
        start += width
    return tuple(found)


def _joint_ancestry(states: Sequence[State], links: Callable[[], tuple[Link, ...]] | None = None) -> Ancestry:
    names = {s.scale_parameter for s in states}
    roots, name = reduce(or_, (s.roots for s in states)), names.pop() if len(names) == 1 else None
    return Ancestry((), roots, name) if links is None else LaterAncestry(links, roots, name)


def _mixed(
    states: Sequence[State], aligned: Sequence[Aligned], weights: Array, equal: bool
) -> tuple[Array, Array, Array]:
    """Return mean, variance and covariance kernel of an element in a random part; the new atom, last, has length 1."""
    lengths = kernel_shape(aligned, least=1 if equal else 2)
    terms = [_second_moments(s, a, lengths, equal) for s, a in zip(states, aligned, strict=True)]
    mean = np.asarray(sum(w * a.mean for w, a in zip(weights, aligned, strict=True)))
    second = sum(w * of_part for w, (of_part, _) in zip(weights, terms, strict=True))
    raw = sum(w * of_part for w, (_, of_part) in zip(weights, terms, strict=True))
    common = 0.0 if equal else kernels.autocorrelation(mean, lengths)
    return mean[..., None], np.maximum(second - mean**2, 0.0)[..., None], np.asarray(raw - common)[..., None]


def _second_moments(state: State, a: Aligned, lengths: tuple[int, ...], equal: bool) -> tuple[Array, Array]:
    """Return E x² of one part by position, and the kernel that it adds to the concatenation's: raw, since all positions
    share the random part, or centred where means are ``equal``. Cached by state, as dense blocks share parts.
    """
    known = _TERMS.setdefault(state, {})
    key = (a.dims, lengths, equal)
    if a.dims is None or key not in known:
        covariance = kernels.promote(a.corr, lengths) * kernels.autocorrelation(np.sqrt(a.var), lengths)
        made = a.mean**2 + a.var, covariance + (0.0 if equal else kernels.autocorrelation(a.mean, lengths))
        if a.dims is None:
            return made
        known[key] = made
    return known[key]


_TERMS: WeakKeyDictionary[State, dict[tuple[Dims | None, tuple[int, ...], bool], tuple[Array, Array]]] = (
    WeakKeyDictionary()
)
"""What `_second_moments` has made of states that are still there."""


def _by_position(
    aligned: Sequence[Aligned],
    weights: Array,
    widths: Sequence[int],
    sizes: tuple[int, ...],
    told: Array | None = None,
) -> tuple[Array, Array, Array]:
    """Return mean and variance by position, and the covariance kernel; the new atom comes last. Pairs of positions
    share one covariance along it unless ``told`` gives a kernel by pair.
    """
    own = covariances(aligned)
    lengths = own[0].shape
    between: Array | float = 0.0
    for a, w, n in zip(aligned, weights, widths, strict=True):
        if a.cat_corr is not None and n > 1:
            # inside a part: its own correlation at different positions, by displacement in the other atoms
            kernel = kernels.promote(a.cat_corr, [*lengths, 1])
            rho = kernels.off_diagonal_mean(kernel, [*sizes, n], len(sizes))[..., 0]
            between = between + w * w * rho * kernels.autocorrelation(np.sqrt(a.var), lengths)
    here = np.asarray(sum(w * c for w, c in zip(weights, own, strict=True)))
    covariance = _covariance_by_pair(aligned, widths, lengths) if told is None else told
    if covariance is None:
        covariance = np.stack([here, np.broadcast_to(between, here.shape)], axis=-1)
    means, variances = zip(*(a.along or (a.mean[..., None], a.var[..., None]) for a in aligned), strict=True)
    return _stacked(means, widths), _stacked(variances, widths), covariance


def _covariance_by_pair(aligned: Sequence[Aligned], widths: Sequence[int], lengths: tuple[int, ...]) -> Array | None:
    """Return the covariance kernel by pair of positions of independent parts; None where the kernel of no part is by
    pair, or the positions are too few or too many for one.
    """
    total, start = sum(widths), 0
    told = any(a.cat_corr is not None and kernels.positions(a.cat_corr.shape[-1]) for a in aligned)
    if not told or not kernels.LEAST <= total <= kernels.MOST:
        return None
    covariance = np.zeros((*lengths, total, total))
    for a, n in zip(aligned, widths, strict=True):
        corr = kernels.promote(a.corr[..., None] if a.cat_corr is None else a.cat_corr, [*lengths, 1])
        level = kernels.autocorrelation(np.sqrt(a.var), lengths)[..., None, None]
        if a.along is not None and a.along[1].shape[-1] > 1:  # sizes by position
            root = np.sqrt(a.along[1].reshape(-1, n).mean(axis=0))
            level = level * np.multiply.outer(root, root) / max(float(np.mean(root**2)), 1e-300)
        covariance[..., start : start + n, start : start + n] = level * kernels.matrix_of(corr, len(lengths), n)
        start += n
    return kernels.by_pair(covariance, len(lengths))


def _covariance_of_each(states: Sequence[State], aligned: Sequence[Aligned], between: Between) -> Array | None:
    """Return the covariance kernel by pair of positions, each of them one state, from ``between`` of every two; None
    where all are independent, or there are too many.
    """
    count = len(states)
    if count > MOST_TIMES:
        return None
    found: dict[tuple[int, int], Array] = {(i, i): kernel for i, kernel in enumerate(covariances(aligned))}
    # in the order of making, so that the covariance of two times follows from that of the times before
    for i, (state, a) in enumerate(zip(states, aligned, strict=True)):
        for j, (other, b) in enumerate(zip(states[:i], aligned, strict=False)):
            if a.dims is None or b.dims is None or not state.roots & other.roots:
                continue
            kernel = between(state, other, a.dims, b.dims)
            if kernel is not None:
                found[i, j] = found[j, i] = kernel
    if len(found) == count:
        return None
    entries = dict(zip(found, kernels.common(*found.values()), strict=True))
    matrix = np.zeros((*entries[0, 0].shape, count, count))
    for (i, j), kernel in entries.items():
        matrix[..., i, j] = kernel
    at = matrix.ndim - 2
    return kernels.by_pair(matrix, at) if count >= kernels.LEAST else kernels.by_lags(matrix, at, count)


def spread_of_parts(parts: Sequence[tuple[float, State]]) -> Spread:
    """Return the spread of a tensor of independent parts, given as (share of the second moment, state)."""
    total = sum(share for share, _ in parts) or 1.0
    return mean_spread((share / total, s.spread) for share, s in parts)


def finite_width_correlation_of_parts(parts: Iterable[tuple[State, Array]], var: Array) -> Sources:
    """Return the finite-width correlation of parts put together, each given with its share of ``var``."""
    result, total = NONE, kernels.average(var)
    for state, share in parts:
        if state.finite_width_correlation.amounts.size and total > 0.0:
            result = result + state.finite_width_correlation.times(kernels.average(share) / total)
    return result


def _have_equal_moments(aligned: Sequence[Aligned]) -> bool:
    """Whether all parts have the same means and variances by position, to five digits."""
    first = aligned[0]
    return all(
        a.mean.shape == first.mean.shape and _close(a.mean, first.mean) and _close(a.var, first.var)
        for a in aligned[1:]
    )


def _close(a: Array, b: Array) -> bool:
    return bool((np.abs(a - b) <= 1e-8 + 1e-5 * np.abs(b)).all())


def _stacked(arrays: Sequence[Array], widths: Sequence[int]) -> Array:
    whole = _stretched(arrays, widths, arrays[0].ndim - 1)
    return whole[..., :1] if np.ptp(whole, axis=-1).max(initial=0.0) == 0.0 else whole


def one_after_another(states: Sequence[State], axis: int) -> State:
    """Return the concatenation of states along an axis as one state with mean and variance by position.

    Correlations along that axis are left out: its positions are frequencies.
    """
    parts = [one_after_another(s.blocks, s.blocks.axis) if s.blocks else s for s in states]
    for other in range(len(parts[0].axes)):
        parts = [merge_atoms(part, other) for part in parts]
    widths = [part.shape[axis] for part in parts]
    weights = np.array(widths, dtype=np.float64) / sum(widths)
    means, variances = ([_by_axes(p, p.mean) for p in parts], [_by_axes(p, p.var) for p in parts])
    covariance = kernels.total(
        *(w * kernels.at_zero(_by_axes(p, p.covariance()), [axis]) for w, p in zip(weights, parts, strict=True))
    )
    shape = (*parts[0].shape[:axis], sum(widths), *parts[0].shape[axis + 1 :])
    gone = [i for i, size in enumerate(shape) if size == 1]
    made = make_state(shape, tag=weakest(*(s.tag for s in states)))
    mean, var, kernel = (
        kernels.without(array, gone)
        for array in (_stretched(means, widths, axis), _stretched(variances, widths, axis), covariance)
    )
    spread = spread_of_parts([(w * s.second_moment, s) for w, s in zip(weights, states, strict=True)])
    corr = kernels.quotient(kernel, np.full((1,) * kernel.ndim, float(kernel.ravel()[0])))
    return made.changed(mean=mean, var=var, corr=corr, ancestry=_joint_ancestry(states), spread=spread)


def _by_axes(state: State, array: Array) -> Array:
    """Return an array of a state, each axis of which has at most one atom, with one dimension for each axis."""
    return kernels.rearranged(array, [members[0] if members else None for members in state.axes])


def _stretched(arrays: Sequence[Array], widths: Sequence[int], axis: int) -> Array:
    """Return the concatenation of arrays along an axis, each broadcast to the width of its part."""
    shape = np.broadcast_shapes(*([n for i, n in enumerate(a.shape) if i != axis] for a in arrays))
    full = [np.broadcast_to(a, (*shape[:axis], width, *shape[axis:])) for a, width in zip(arrays, widths, strict=True)]
    return np.concatenate(full, axis=axis)
