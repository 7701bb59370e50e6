"""Views of a state: the same elements under other indices."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from wellposed.signals.distributions.layout import Dims
from wellposed.signals.distributions.lazy import applied
from wellposed.signals.distributions.making import exchangeable
from wellposed.signals.distributions.marginals import one_signed
from wellposed.signals.distributions.state import (
    WHOLE,
    Blocks,
    FunctionOf,
    Link,
    Marginal,
    Masked,
    Scaled,
    Split,
    State,
    Statistic,
    weakest,
)
from wellposed.signals.integration import kernels, regrouping
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.taps import picks

MOST_SHOWN = 1 << 24
"""Elements of a mask up to which it is written out for a view that needs it. Chosen, for memory: 16 MiB."""


def pooled(state: State) -> State:
    """Return a concatenation as one state without blocks, whose moments are pooled over them; others as they are."""
    return state.amended(blocks=WHOLE) if state.blocks else state


def unpaired(state: State, lags: int = 2) -> State:
    """Return a state without correlations by pair: by displacement, ``lags`` of them, the last one for all that are
    farther.
    """
    blocks, function = [unpaired(b, lags) for b in state.blocks], state.function
    if function is not None and (base := unpaired(function.base, lags)) is not function.base:
        function = FunctionOf(base, function.fn)
    pairs = any(map(kernels.positions, state.corr.shape))
    if not pairs and function is state.function and all(map(operator.is_, blocks, state.blocks)):
        return state
    corr = state.corr
    for dim in range(corr.ndim):
        corr = kernels.by_lag(corr, dim, lags) if lags > 2 else kernels.by_displacement(corr, (dim,))
    return state.amended(corr=corr, function=function, blocks=Blocks(blocks, state.blocks.axis))


def permute(state: State, dims: Sequence[int]) -> State:
    """Reorder the tensor's axes; the arrays stay as they are."""
    rank = len(state.axes)
    order = [int(d) % rank for d in dims]
    axes = tuple(state.axes[d] for d in order)
    if (masked := state.masked) is not None:
        mask = in_rank(masked.mask, rank).permute(order)
        return with_scores(state, masked, mask, lambda part: permute(part, dims))
    if state.blocks:
        blocks = [permute(block, dims) for block in state.blocks]
        return state.amended(axes=axes, blocks=Blocks(blocks, order.index(state.blocks.axis)))
    return state.amended(axes=axes)


def _with_scales(state: State, change: Callable[[Array], Array]) -> Marginal:
    """Return the marginal of a state in other atoms: ``change`` rewrites the kernel of its local scale."""
    return Marginal(state.gauss, transport=state.transport, local_scales=applied(state.local_scales, change))


def split_atom(state: State, atom: int, outer: int, inner: int) -> State:
    """Split one atom into an outer and an inner one."""

    def cut(array: Array) -> Array:
        shape = array.shape
        pieces = (1, 1) if shape[atom] == 1 else (outer, inner)
        return array.reshape(*shape[:atom], *pieces, *shape[atom + 1 :])

    profiles = sum(length > 2 for length in state.corr.shape) + 1
    cap = kernels.lag_cap(profiles)
    corr = regrouping.split_profile(state.corr, atom, outer, inner, cap)
    split = partial(regrouping.split_profile, dim=atom, outer=outer, inner=inner, cap=cap)
    scaled = _with_scales(state, split)
    sizes = (*state.lengths[:atom], outer, inner, *state.lengths[atom + 1 :])
    axes = tuple(
        tuple(j for i in axis for j in ((atom, atom + 1) if i == atom else (i + (i > atom),))) for axis in state.axes
    )
    result = _derived(state, sizes, axes, cut(state.mean), cut(state.var), corr, scaled)
    result = result.amended(filters=state.filters.viewed(split), origin=Split(state, atom) if state.roots else None)
    base, fn = state.gaussian_source()
    if fn is None or base.lengths != state.lengths:
        return result
    return result.amended(function=FunctionOf(split_atom(base, atom, outer, inner), fn))


def _derived(
    state: State,
    sizes: tuple[int, ...],
    axes: tuple[tuple[int, ...], ...],
    mean: Array,
    var: Array,
    corr: Array,
    marginal: Marginal,
) -> State:
    """Return a state with other atoms and these arrays, without any field that refers to atoms by number."""
    return state.with_moments(
        lengths=sizes, axes=axes, mean=mean, var=var, corr=corr, marginal=marginal,
        blocks=WHOLE)  # fmt: skip


def merge_atoms(state: State, axis: int) -> State:
    """Make one atom of all those in an axis."""
    state = pooled(state)
    links = _merged_links(state, axis)
    while len(state.axes[axis]) > 1:
        members = state.axes[axis]
        # bring the last two next to each other in the arrays, then merge them
        order = [i for i in range(len(state.lengths)) if i not in members[-2:]] + list(members[-2:])
        state = _reorder(state, order)
        dim = len(state.lengths) - 2
        a, b = state.lengths[dim], state.lengths[dim + 1]

        def join(array: Array, dim: int = dim, a: int = a, b: int = b) -> Array:
            if array.shape[dim] == 1 and array.shape[dim + 1] == 1:
                return array[..., 0]
            full = np.broadcast_to(array, (*array.shape[:dim], a, b))
            return full.reshape(*array.shape[:dim], a * b)

        corr = regrouping.merge_profiles(state.corr, dim, state.lengths)
        axes = tuple(tuple(i for i in ax if i != dim + 1) for ax in state.axes)
        scaled = _with_scales(state, partial(regrouping.merge_profiles, dim=dim, sizes=state.lengths))
        state = _derived(state, (*state.lengths[:dim], a * b), axes, join(state.mean), join(state.var), corr, scaled)
    return state.amended(links=links) if links else state


def _merged_links(state: State, axis: int) -> tuple[Link, ...]:
    """Return the links of a state whose atoms in an axis are merged, where all but one of them are repetitions: its
    positions are the parent's positions several times, one by one or in turns.
    """
    members = state.axes[axis]
    if len(members) < 2:
        return ()
    found, pending = [], list(state.links)
    while pending:
        link = pending.pop()
        dims = link.places(len(state.lengths))
        own = [i for i in members if dims[i] is not None]
        if not isinstance(link.operate, Scaled) or {atom for atom, _ in link.taps} & {dims[i] for i in own}:
            continue
        if len(own) > 1:
            pending += [further for inner in link.parent.links if (further := _behind(link, dims, inner)) is not None]
        elif own:
            found.append(_repeating(state, link, members, own[0]))
    return tuple(found)


def _repeating(state: State, link: Link, members: tuple[int, ...], member: int) -> Link:
    """Return a link of a state whose atoms ``members`` are merged: all but ``member`` repeat the parent, so that the
    merged atom, the last of all, reads each position of the parent's atom several times.
    """
    dims, sizes = link.places(len(state.lengths)), [state.lengths[i] for i in members]
    atom = dims[member]
    assert atom is not None
    places = np.unravel_index(np.arange(math.prod(sizes)), sizes)[members.index(member)]
    kept = tuple([dims[i] for i in range(len(dims)) if i not in members])
    taken = (*link.taps, (atom, picks(places, link.parent.lengths[atom])))
    return Link(link.parent, link.operate, (*kept, atom), taps=taken)


def _behind(link: Link, dims: Dims, inner: Link) -> Link | None:
    """Return the link to the parent of ``inner``, the composition of a link by a number with ``inner``, along atoms
    that only one of the two combines; None where both combine one, ``inner`` is a mean, or its parent lacks the atom.
    """
    further = inner.places(len(link.parent.lengths))
    factor = link.operate(np.ones(()), ())
    operate = Scaled(float(factor) * inner.operate.factor) if isinstance(inner.operate, Scaled) else inner.operate
    combined = dict(inner.taps)
    for atom, taken in link.taps:
        at = further[atom]
        if at is None or at in combined or inner.over:
            return None
        combined[at] = taken
    places = tuple(None if i is None else further[i] for i in dims)
    return Link(inner.parent, operate, places, inner.over, tuple(combined.items()))


def _reorder(state: State, order: Sequence[int]) -> State:
    """Return a state with its atoms in another order, the dimensions of all arrays with them."""
    where = {old: new for new, old in enumerate(order)}
    return state.with_moments(
        lengths=tuple(state.lengths[i] for i in order),
        axes=tuple(tuple(where[i] for i in axis) for axis in state.axes),
        mean=state.mean.transpose(order),
        var=state.var.transpose(order),
        corr=state.corr.transpose(order),
        marginal=_with_scales(state, lambda kernel: kernel.transpose(order)),
        filters=state.filters.viewed(lambda kernel: kernel.transpose(order)),
    )


def reshape(state: State, shape: Sequence[int], across: Callable[[], State | None] | None = None) -> State:
    """Return a state in another shape: atoms are split where an axis ends inside one. Where that is impossible,
    ``across`` may return the result; else moments are pooled.
    """
    shape = tuple(shape)
    if shape == state.shape:
        return state
    if (masked := state.masked) is None:
        return _reshaped(state, shape, across)
    mask = _mask_in(masked.mask, state.shape, shape)
    return with_scores(state, masked, mask, lambda part: _reshaped(part, shape, across))


def with_scores(state: State, before: Masked, mask: torch.Tensor, view: Callable[[State], State]) -> State:
    """Return ``view`` of a masked tensor and of the scores below its mask, with ``mask`` as the view of the mask."""
    return view(state.amended(attention=())).amended(attention=Masked(mask, before.scores and view(before.scores)))


def in_rank(mask: torch.Tensor, rank: int) -> torch.Tensor:
    """Return a mask with ``rank`` axes, new ones in front."""
    return mask.reshape((1,) * (rank - mask.ndim) + tuple(mask.shape))


def _mask_in(mask: torch.Tensor, before: Sequence[int], shape: Sequence[int]) -> torch.Tensor:
    """Return the mask of a tensor of shape ``before`` as one of the tensor in ``shape``, as small as broadcasting
    allows. A large one that cannot be viewed so, and keeps its last two axes (queries and keys), is reduced to these:
    true where it is for any index of the others.
    """
    whole = mask.broadcast_to(tuple(before))
    try:
        whole = whole.view(tuple(shape))
    except RuntimeError:  # axes are put together in only some of which it changes
        if whole.numel() > MOST_SHOWN and tuple(before[-2:]) == tuple(shape[-2:]):
            return mask.reshape(-1, *mask.shape[-2:]).any(dim=0)
        whole = whole.reshape(tuple(shape))
    return whole[tuple(slice(1) if step == 0 else slice(None) for step in whole.stride())]


def _reshaped(state: State, shape: tuple[int, ...], across: Callable[[], State | None] | None) -> State:
    """Return `reshape` of a state without a mask: by blocks, else by atoms, else with pooled moments."""
    if state.blocks:
        state = _reshape_blocks(state, shape)
        if state.shape == shape:
            return state
        state = pooled(state)
    state = _regrouped(state, shape)
    atoms = [i for axis in state.axes for i in axis]
    pieces, counts = _cuts([state.lengths[i] for i in atoms], shape)
    for at, cuts in enumerate(pieces):
        for inner in range(len(cuts) - 1):
            atom = atoms[at] + inner
            state = split_atom(state, atom, cuts[inner], math.prod(cuts[inner + 1 :]))
        atoms = [i + (len(cuts) - 1) * (i > atoms[at]) for i in atoms]
    if counts is None:
        return (None if across is None else across()) or _collapsed(state, shape)
    places = (i for axis in state.axes for i in axis)
    return state.amended(axes=tuple(tuple(itertools.islice(places, count)) for count in counts))


def _regrouped(state: State, shape: Sequence[int]) -> State:
    """Merge the atoms of the axes that new axes would end within (windows of 7 x 7 become patches of 2 x 2)."""
    if all(len(atoms) < 2 for atoms in state.axes):
        return state
    ends = sorted(set(itertools.accumulate(shape, operator.mul, initial=1)))
    for axis in range(len(state.axes)):
        atoms, start = state.axes[axis], math.prod(state.shape[:axis])
        stop = start * state.shape[axis]
        within = [b // a for a, b in itertools.pairwise(end for end in ends if start <= end <= stop)]
        if len(atoms) > 1 and start in ends and stop in ends:
            sizes = [state.lengths[i] for i in atoms]
            state = state if _cuts(sizes, within)[1] else merge_atoms(state, axis)
    return state


def _cuts(sizes: Sequence[int], shape: Sequence[int]) -> tuple[list[list[int]], list[int] | None]:
    """Return the lengths of the pieces that each atom is cut into so that axes end between pieces, and the number of
    pieces in each axis.

    The numbers are None where an axis would end inside a piece.
    """
    pieces: list[list[int]] = [[] for _ in sizes]
    counts: list[int] = []
    rest, at = list(sizes), 0
    for size in shape:
        have, count = 1, 0
        while have < size and at < len(rest):
            piece = rest[at] if size % (have * rest[at]) == 0 else size // have
            if size % (have * piece) or rest[at] % piece:
                break
            pieces[at].append(piece)
            rest[at] //= piece
            have, count, at = have * piece, count + 1, at + (rest[at] == 1)
        if have < size:
            break
        counts.append(count)
    pieces = [[*own, left] if left > 1 else own for own, left in zip(pieces, rest, strict=True)]
    return pieces, counts if len(counts) == len(shape) else None


def _reshape_blocks(state: State, shape: tuple[int, ...]) -> State:
    """Return a concatenation in another shape, block by block, where its axis stays or its parts get one of their own;
    else the state as it is.
    """
    before, after = state.shape, shape
    axis = state.blocks.axis
    lead = math.prod(before[:axis])
    running = 1
    for new_axis, size in enumerate(after):
        if running == lead and size == before[axis]:
            parts = [
                reshape(block, (*after[:new_axis], block.shape[axis], *after[new_axis + 1 :])) for block in state.blocks
            ]
            whole = reshape(pooled(state), shape)
            return whole.amended(blocks=Blocks(parts, new_axis))
        if running == lead and size == len(state.blocks) and _is_stack(state, shape, new_axis):
            parts = [reshape(block, (*after[:new_axis], 1, *after[new_axis + 1 :])) for block in state.blocks]
            return reshape(pooled(state), shape).amended(blocks=Blocks(parts, new_axis))
        running *= size
    return state


def _is_stack(state: State, shape: Sequence[int], axis: int) -> bool:
    """Whether a view gives the parts of a concatenation, all of one width, an axis of their own."""
    widths = {block.shape[state.blocks.axis] for block in state.blocks}
    return len(widths) == 1 and shape[axis + 1 : axis + 2] == (widths.pop(),)


def _collapsed(state: State, shape: tuple[int, ...]) -> State:
    """Return a state in another shape with pooled moments and one average correlation of different elements."""
    total = math.prod(state.lengths)
    mean, second = state.pooled_mean, state.second_moment
    raw = float(kernels.pair_mean(state.covariance(), state.lengths).ravel()[0])
    var = max(second - mean * mean, 0.0)
    rest = (raw * total - kernels.average(state.var)) / max(total - 1, 1) / var if var > 0 else 0.0
    fresh = exchangeable(shape, mean, var, rest if rest > 1e-6 else 0.0)
    return fresh.amended(
        tag=weakest(state.tag, "approximate"),
        roots=state.roots,
        scale_parameter=state.scale_parameter,
        spread=state.spread,
    )


def _broadcast(kernel: Array, count: int) -> Array:
    """Return a kernel with ``count`` more atoms, along which all elements are equal."""
    for _ in range(count):
        kernel = np.stack([kernel, kernel], axis=-1)
    return kernel


def expand(state: State, shape: Sequence[int]) -> State:
    """Broadcast to a larger shape: elements along a new index are equal."""
    shape = tuple(shape)
    if shape == state.shape:
        return state
    if (masked := state.masked) is not None:
        return with_scores(state, masked, masked.mask, lambda part: expand(part, shape))
    state = pooled(state)
    extra = len(shape) - len(state.axes)
    axes: list[tuple[int, ...]] = [()] * extra + list(state.axes)
    sizes = list(state.lengths)
    mean, var, corr = state.mean, state.var, state.corr
    have = (1,) * extra + state.shape
    for axis, (old, new) in enumerate(zip(have, shape, strict=True)):
        if new in (old, -1) or old != 1:
            continue
        axes[axis] = (len(sizes),)
        sizes.append(new)
        mean, var = mean[..., None], var[..., None]
    corr = _broadcast(corr, len(sizes) - len(state.lengths))
    extra = len(sizes) - len(state.lengths)
    shape_of_one = (
        one_signed(state) if state.local_scales is None else _with_scales(state, lambda k: _broadcast(k, extra))
    )
    dims = (*range(len(state.lengths)), *(None,) * extra)
    base, fn = state.gaussian_source()
    if fn is not None and base.lengths == state.lengths:
        base = expand(base.amended(axes=state.axes), shape)
        shape_of_one = replace(shape_of_one, function=FunctionOf(base, fn))
    wider = state.with_moments(
        lengths=tuple(sizes),
        axes=tuple(axes),
        mean=mean,
        var=var,
        corr=corr,
        marginal=shape_of_one,
        links=(Link(state, Scaled(1.0), dims),) if state.roots else (),
    )
    statistic = state.known_as(Statistic)
    return wider if statistic is None else wider.amended(origin=statistic.expanded(len(sizes)))
