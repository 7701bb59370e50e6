"""The state of one tensor: what its rules need to know of its distribution, and how views change it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypedDict, Unpack

import numpy as np
import torch

from wellposed.signals import kernels
from wellposed.signals.kernels import Array
from wellposed.signals.signal import Tag

_ORDER: dict[Tag, int] = {"exact": 0, "approximate": 1, "sampled": 2, "assumed": 3, "measured": 0}
_labels = itertools.count(1)
_serial = itertools.count(1)


def weakest(*tags: Tag) -> Tag:
    """Return the weakest of some tags: exact, approximate, sampled, assumed."""
    return max(tags, key=_ORDER.__getitem__)


class Atom(NamedTuple):
    """An index of a tensor: ``label`` tells the same index in different tensors, ``size`` is its range."""

    label: int
    size: int


def new_label() -> int:
    """Return a label that no atom has yet."""
    return next(_labels)


@dataclass(frozen=True, slots=True)
class Pointwise:
    """A function of one number, as operators compose it; ``key`` tells equal functions."""

    key: tuple[object, ...]
    call: Callable[[torch.Tensor], torch.Tensor] = field(compare=False)

    def __call__(self, x: Array) -> Array:
        """Return the function's values at an array of points."""
        with torch.no_grad():
            return np.asarray(self.call(torch.from_numpy(np.ascontiguousarray(x))).numpy(), dtype=np.float64)

    def then(self, outer: Pointwise) -> Pointwise:
        """Return the composition outer(self(x))."""
        inner_call, outer_call = self.call, outer.call
        return Pointwise((outer.key, self.key), lambda x: outer_call(inner_call(x)))


Dims = tuple["int | None", ...]
Operate = Callable[[Array, Dims], Array]


@dataclass(frozen=True, slots=True)
class Link:
    """How a state follows its parent linearly: x - E x = operate(parent - E parent) + what is independent of it.

    ``operate`` maps a covariance kernel with the parent to one with the child; its second argument says which dimension
    of the kernel belongs to each of the parent's atoms. ``dims`` gives for each of the child's atoms the parent's (None
    where the parent is broadcast); left out, they are the same.
    """

    parent: State
    operate: Operate
    dims: Dims | None = None


class Fields(TypedDict, total=False):
    """Fields of a state beside its atoms, axes and arrays."""

    tag: Tag
    gauss: bool
    base: State | None
    fn: Pointwise | None
    links: tuple[Link, ...]
    roots: int
    lever: str | None
    inherited: float
    own: float
    drift: float
    excess: Array | None
    mask: torch.Tensor | None
    scores: State | None
    softmax: tuple[float, float] | None
    blocks: tuple[State, ...]
    block_axis: int


class Changes(Fields, total=False):
    """Fields of a state that a copy may be given."""

    atoms: tuple[Atom, ...]
    axes: tuple[tuple[int, ...], ...]
    mean: Array
    var: Array
    corr: Array


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """The distribution of one tensor over inputs, weight draws and elements.

    Attributes:
        atoms: the independent indices; every array below has one dimension per atom.
        axes: for every axis of the tensor, the atoms (by position in ``atoms``) that lie in it, outermost first.
        mean: mean by position (length 1 along atoms where it does not vary).
        var: variance by position.
        corr: correlation kernel (see `kernels`): Cov(p, p + d) = s_p s_{p+d} corr(d).
        tag: exact, approximate, sampled or assumed.
        gauss: whether the marginal is Gaussian.
        base, fn: where the tensor is a function of one Gaussian tensor, that tensor and the function.
        links: linear dependence on earlier states; with none, the state is independent of all others.
        roots: bit set of the independent sources that the tensor depends on.
        serial: order of making.
        lever: parameter that scales this value linearly and whose scale is still to be chosen.
        inherited: variance of ln(second moment) that comes from weight draws before the last contraction.
        own: the same from the last contraction's draw.
        drift: mean of ln(second moment) over weight draws, less the logarithm of the prediction.
        excess: what a norm per channel adds to the correlation (see `quadratic`).
        mask, scores: for scores that are masked before a softmax, where they are let through, and what they are there.
        softmax: for the result of a softmax, the variance of its logits and E sum a².
        blocks: states of which this one is the concatenation along ``block_axis`` (then the arrays are pooled).
    """

    atoms: tuple[Atom, ...]
    axes: tuple[tuple[int, ...], ...]
    mean: Array
    var: Array
    corr: Array
    tag: Tag = "exact"
    gauss: bool = False
    base: State | None = None
    fn: Pointwise | None = None
    links: tuple[Link, ...] = ()
    roots: int = 0
    serial: int = field(default_factory=lambda: next(_serial))
    lever: str | None = None
    inherited: float = 0.0
    own: float = 0.0
    drift: float = 0.0
    excess: Array | None = None
    mask: torch.Tensor | None = None
    scores: State | None = None
    softmax: tuple[float, float] | None = None
    blocks: tuple[State, ...] = ()
    block_axis: int = -1

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of the atoms."""
        return tuple(atom.size for atom in self.atoms)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        return tuple(math.prod(self.atoms[i].size for i in axis) for axis in self.axes)

    @property
    def second_moment(self) -> float:
        """E x², pooled over positions."""
        return float(np.mean(self.mean * self.mean + self.var))

    @property
    def pooled_mean(self) -> float:
        """E x, pooled over positions."""
        return float(np.mean(self.mean))

    @property
    def pooled_var(self) -> float:
        """Variance, pooled over positions."""
        return max(0.0, self.second_moment - self.pooled_mean**2)

    @property
    def is_constant(self) -> bool:
        """Whether the tensor is one known number everywhere."""
        return self.mean.size == 1 and not bool(self.var.any())

    def std(self) -> Array:
        """Standard deviation by position."""
        return np.sqrt(self.var)

    def covariance(self) -> Array:
        """Centred covariance kernel, averaged over positions."""
        return np.asarray(self.corr * kernels.autocorrelation(self.std(), self.corr.shape))

    def changed(self, **changes: Unpack[Changes]) -> State:
        """Return a copy with other fields and a serial of its own; ``excess`` is dropped unless it is given."""
        fields: Changes = {"excess": None, **changes}
        return replace(self, serial=next(_serial), **fields)

    def as_new(self, roots: int = 0) -> State:
        """Return a copy that depends on nothing before it."""
        return self.changed(base=None, fn=None, links=(), roots=roots, blocks=())


def ones(count: int) -> Array:
    """Array of ``count`` dimensions of length 1, holding 1."""
    return np.ones((1,) * count)


def make_state(
    shape: Sequence[int],
    mean: float = 0.0,
    var: float = 1.0,
    *,
    pairs: Sequence[float | None] | None = None,
    **fields: Unpack[Fields],
) -> State:
    """Return a state with one fresh atom per axis longer than 1 and the same mean and variance everywhere.

    ``pairs`` gives for each axis the correlation of elements that differ along that axis only (None: uncorrelated);
    elements that differ along several axes get the product.
    """
    atoms: list[Atom] = []
    axes: list[tuple[int, ...]] = []
    corr = np.ones(())
    for axis, size in enumerate(shape):
        if size == 1:
            axes.append(())
            continue
        axes.append((len(atoms),))
        atoms.append(Atom(new_label(), size))
        other = None if pairs is None else pairs[axis]
        profile = np.ones(1) if other is None else np.array([1.0, other])
        corr = np.multiply.outer(corr, profile)
    count = len(atoms)
    return State(
        tuple(atoms),
        tuple(axes),
        np.full((1,) * count, float(mean)),
        np.full((1,) * count, float(var)),
        corr,
        **fields,
    )


def exchangeable(shape: Sequence[int], mean: float, var: float, rho: float) -> State:
    """Return a state any two elements of which have the correlation ``rho``."""
    state = make_state(shape, mean, var)
    if rho == 0.0 or not state.atoms:
        return state
    corr = np.full((2,) * len(state.atoms), rho)
    corr[(0,) * corr.ndim] = 1.0
    return replace(state, corr=corr)


# ---- views ----------------------------------------------------------------------------------------------------------


def pooled(state: State) -> State:
    """Return a concatenation as one state whose elements come from all blocks alike (others are returned as is)."""
    return replace(state, blocks=(), block_axis=-1) if state.blocks else state


def permute(state: State, dims: Sequence[int]) -> State:
    """Reorder the tensor's axes; the arrays stay as they are."""
    rank = len(state.axes)
    order = [int(d) % rank for d in dims]
    axes = tuple(state.axes[d] for d in order)
    if state.blocks:
        return replace(
            state,
            axes=axes,
            blocks=tuple(permute(block, dims) for block in state.blocks),
            block_axis=order.index(state.block_axis),
        )
    return replace(state, axes=axes)


def split_atom(state: State, atom: int, outer: int, inner: int) -> State:
    """Split one atom into an outer and an inner one."""
    label = state.atoms[atom].label

    def cut(array: Array) -> Array:
        shape = array.shape
        pieces = (1, 1) if shape[atom] == 1 else (outer, inner)
        return array.reshape(*shape[:atom], *pieces, *shape[atom + 1 :])

    profiles = sum(length > 2 for length in state.corr.shape) + 1
    corr = kernels.split_profile(state.corr, atom, outer, inner, kernels.lag_cap(profiles))
    atoms = (
        *state.atoms[:atom],
        Atom(hash((label, outer, inner, "outer")), outer),
        Atom(hash((label, outer, inner, "inner")), inner),
        *state.atoms[atom + 1 :],
    )
    axes = tuple(
        tuple(j for i in axis for j in ((atom, atom + 1) if i == atom else (i + (i > atom),))) for axis in state.axes
    )
    return _derived(state, atoms, axes, cut(state.mean), cut(state.var), corr)


def _derived(
    state: State, atoms: tuple[Atom, ...], axes: tuple[tuple[int, ...], ...], mean: Array, var: Array, corr: Array
) -> State:
    # the atoms are others than before: what earlier states knew of this one is no longer expressed in its own indices
    return state.changed(
        atoms=atoms, axes=axes, mean=mean, var=var, corr=corr,
        base=None, fn=None, links=(), blocks=(), block_axis=-1,
    )  # fmt: skip


def merge_atoms(state: State, axis: int) -> State:
    """Make one atom of all those in an axis."""
    state = pooled(state)
    while len(state.axes[axis]) > 1:
        members = state.axes[axis]
        # bring the last two next to each other in the arrays, then merge them
        order = [i for i in range(len(state.atoms)) if i not in members[-2:]] + list(members[-2:])
        state = _reorder(state, order)
        dim = len(state.atoms) - 2
        a, b = state.atoms[dim].size, state.atoms[dim + 1].size

        def join(array: Array, dim: int = dim, a: int = a, b: int = b) -> Array:
            if array.shape[dim] == 1 and array.shape[dim + 1] == 1:
                return array[..., 0]
            full = np.broadcast_to(array, (*array.shape[:dim], a, b))
            return full.reshape(*array.shape[:dim], a * b)

        corr = kernels.merge_profiles(state.corr, dim, state.sizes)
        label = hash((state.atoms[dim].label, state.atoms[dim + 1].label, "merged"))
        axes = tuple(tuple(i for i in ax if i != dim + 1) for ax in state.axes)
        state = _derived(state, (*state.atoms[:dim], Atom(label, a * b)), axes, join(state.mean), join(state.var), corr)
    return state


def _reorder(state: State, order: Sequence[int]) -> State:
    where = {old: new for new, old in enumerate(order)}
    return replace(
        state,
        atoms=tuple(state.atoms[i] for i in order),
        axes=tuple(tuple(where[i] for i in axis) for axis in state.axes),
        mean=state.mean.transpose(order),
        var=state.var.transpose(order),
        corr=state.corr.transpose(order),
        excess=None,
        base=None,
        fn=None,
        links=(),
    )


def reshape(state: State, shape: Sequence[int]) -> State:
    """Regroup the atoms into new axes, splitting atoms where an axis ends inside one."""
    shape = tuple(shape)
    if shape == state.shape:
        return state
    if state.blocks:
        state = _reshape_blocks(state, shape)
        if state.shape == shape:
            return state
        state = pooled(state)
    queue = [i for axis in state.axes for i in axis]
    groups: list[tuple[int, ...]] = []
    position = 0
    for size in shape:
        group: list[int] = []
        have = 1
        while have < size:
            if position >= len(queue):
                return _collapsed(state, shape)
            atom = queue[position]
            extent = state.atoms[atom].size
            if size % (have * extent) == 0:
                group.append(atom)
                have *= extent
                position += 1
                continue
            inner_needed = size // have
            if size % have or extent % inner_needed:
                return _collapsed(state, shape)
            state = split_atom(state, atom, inner_needed, extent // inner_needed)
            groups = [tuple(i + (i > atom) for i in g) for g in groups]
            group = [i + (i > atom) for i in group]
            queue = [j for i in queue for j in ((atom, atom + 1) if i == atom else (i + (i > atom),))]
        groups.append(tuple(group))
    return replace(state, axes=tuple(groups))


def _reshape_blocks(state: State, shape: tuple[int, ...]) -> State:
    # a concatenation survives a reshape that leaves its axis alone
    before, after = state.shape, shape
    axis = state.block_axis
    lead = math.prod(before[:axis])
    running = 1
    for new_axis, size in enumerate(after):
        if running == lead and size == before[axis]:
            parts = tuple(
                reshape(block, (*after[:new_axis], block.shape[axis], *after[new_axis + 1 :])) for block in state.blocks
            )
            whole = reshape(pooled(state), shape)
            return replace(whole, blocks=parts, block_axis=new_axis)
        running *= size
    return state


def _collapsed(state: State, shape: tuple[int, ...]) -> State:
    """Reshape across index boundaries: keep pooled moments and one average correlation of different elements."""
    total = math.prod(state.sizes)
    mean, second = state.pooled_mean, state.second_moment
    raw = float(kernels.pair_mean(state.covariance(), state.sizes).ravel()[0])
    var = max(second - mean * mean, 0.0)
    rest = (raw * total - float(np.mean(state.var))) / max(total - 1, 1) / var if var > 0 else 0.0
    fresh = exchangeable(shape, mean, var, rest if rest > 1e-6 else 0.0)
    return replace(
        fresh,
        tag=weakest(state.tag, "approximate"),
        roots=state.roots,
        lever=state.lever,
        inherited=state.inherited,
        own=state.own,
        drift=state.drift,
    )


def expand(state: State, shape: Sequence[int]) -> State:
    """Broadcast to a larger shape: elements along a new index are equal."""
    shape = tuple(shape)
    if shape == state.shape:
        return state
    state = pooled(state)
    extra = len(shape) - len(state.axes)
    axes: list[tuple[int, ...]] = [()] * extra + list(state.axes)
    atoms = list(state.atoms)
    mean, var, corr = state.mean, state.var, state.corr
    have = (1,) * extra + state.shape
    for axis, (old, new) in enumerate(zip(have, shape, strict=True)):
        if new in (old, -1) or old != 1:
            continue
        axes[axis] = (len(atoms),)
        atoms.append(Atom(new_label(), new))
        mean, var = mean[..., None], var[..., None]
        corr = np.stack([corr, corr], axis=-1)
    return replace(
        state,
        atoms=tuple(atoms),
        axes=tuple(axes),
        mean=mean,
        var=var,
        corr=corr,
        serial=next(_serial),
        links=(),
        excess=None,
        base=None,
        fn=None,
    )


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
        return replace(state, axes=(*state.axes[:axis], *state.axes[axis + 1 :])) if drop else state
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
        remaining = [i for i in range(len(state.atoms)) if i != atom]
        mean, var = mean.reshape([mean.shape[i] for i in remaining]), var.reshape([var.shape[i] for i in remaining])
        corr = np.take(corr, 0, axis=atom)
        atoms = tuple(state.atoms[i] for i in remaining)
        shift = {old: new for new, old in enumerate(remaining)}
        axes = tuple(tuple(shift[i] for i in ax if i != atom) for ax in state.axes)
        if drop:
            axes = (*axes[:axis], *axes[axis + 1 :])
    else:
        label = hash((state.atoms[atom].label, start, stop, step))
        atoms = tuple(Atom(label, count) if i == atom else a for i, a in enumerate(state.atoms))
        axes = state.axes
    return replace(
        state,
        atoms=atoms,
        axes=axes,
        mean=mean,
        var=var,
        corr=corr,
        serial=next(_serial),
        links=(),
        excess=None,
        base=None,
        fn=None,
    )


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


def concatenate(states: Sequence[State], axis: int) -> State:
    """Put states behind each other along an axis.

    Along an axis of uncorrelated elements (channels) the parts are kept as blocks. Otherwise (tokens, positions) one
    state remains: means and variances by position, one average correlation of different positions.
    """
    axis %= len(states[0].axes)
    if len(states) == 1:
        return states[0]
    shape = list(states[0].shape)
    shape[axis] = sum(s.shape[axis] for s in states)
    flat = [merge_atoms(s, axis) if len(s.axes[axis]) > 1 else pooled(s) for s in states]
    weights = np.array([s.shape[axis] for s in states], dtype=np.float64) / shape[axis]
    aligned, axes, atoms = align_many(flat, skip=axis)
    count = len(atoms)
    lengths = [max(a.corr.shape[i] for a in aligned) for i in range(count)]
    iid = all(a.cat_corr is None or a.cat_corr.shape[-1] == 1 for a in aligned)
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
                rho = kernels.off_diagonal_mean(
                    kernels.promote(a.cat_corr, [*lengths, 1]), [*(x.size for x in atoms), n], count
                )[..., 0]
                between = between + w * w * rho * kernels.autocorrelation(np.sqrt(a.var), lengths)
        covariance0 = sum(w * c for w, c in zip(weights, covariances, strict=True))
        covariance = np.stack([covariance0, np.broadcast_to(between, covariance0.shape)], axis=-1)
    lengths_all = covariance.shape
    scale = kernels.autocorrelation(np.sqrt(var), lengths_all)
    with np.errstate(all="ignore"):
        corr = np.where(scale > 0, covariance / np.where(scale > 0, scale, 1.0), 0.0)
    corr = np.array(np.clip(corr, -1.0, 1.0))
    corr[(0,) * corr.ndim] = 1.0
    full_axes = tuple((count,) if i == axis else ax for i, ax in enumerate(axes))
    result = State(
        (*atoms, Atom(new_label(), shape[axis])),
        full_axes,
        mean,
        var,
        corr,
        tag=weakest(*(s.tag for s in states)),
        roots=_union(states),
        gauss=all(s.gauss for s in states) and not varying,
        **joint_spread([(w * s.second_moment, s) for w, s in zip(weights, states, strict=True)]),
        lever=states[0].lever if len({s.lever for s in states}) == 1 else None,
    )
    if iid:
        parts = tuple(
            itertools.chain.from_iterable(s.blocks if s.blocks and s.block_axis == axis else (s,) for s in states)
        )
        result = replace(result, blocks=parts, block_axis=axis)
    return result


class Spread(TypedDict):
    """Fields of a state that say how its second moment varies over weight draws."""

    inherited: float
    own: float
    drift: float


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
        a.mean.shape != first.mean.shape or not np.allclose(a.mean, first.mean) or not np.allclose(a.var, first.var)
        for a in aligned[1:]
    )


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


# ---- alignment ------------------------------------------------------------------------------------------------------


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
) -> tuple[list[Aligned], tuple[tuple[int, ...], ...], tuple[Atom, ...]]:
    """Write states of broadcastable shapes in common atoms.

    Returns the arrays of each, and the axes and atoms of the common layout. Along an index that a state lacks it is
    constant. The axis ``skip`` is left out (it may differ in length).
    """
    first = states[0]
    if skip is None and all(s.axes == first.axes and s.sizes == first.sizes for s in states[1:]):
        same = tuple(range(len(first.atoms)))
        return [Aligned(s.mean, s.var, s.corr, same) for s in states], first.axes, first.atoms
    states = [pooled(s) for s in states]
    rank = max(len(s.axes) for s in states)
    states = [replace(s, axes=((),) * (rank - len(s.axes)) + s.axes) for s in states]
    serials = [s.serial for s in states]
    for axis in range(rank):
        if axis == skip:
            continue
        states = _common_atoms(states, axis)
    atoms: list[Atom] = []
    axes: list[tuple[int, ...]] = []
    sources: list[list[int | None]] = [[] for _ in states]
    for axis in range(rank):
        if axis == skip:
            axes.append(())
            continue
        owner = next((s for s in states if s.axes[axis]), None)
        members = () if owner is None else tuple(owner.atoms[i] for i in owner.axes[axis])
        axes.append(tuple(range(len(atoms), len(atoms) + len(members))))
        atoms.extend(members)
        for s, source in zip(states, sources, strict=True):
            source.extend(s.axes[axis] or (None,) * len(members))
    result = []
    for s, source, serial in zip(states, sources, serials, strict=True):
        skipped = list(s.axes[skip]) if skip is not None else []
        used = [i for i in source if i is not None]
        order = used + skipped

        def place(array: Array, constant: bool, order: list[int] = order, source: list[int | None] = source) -> Array:
            moved = array.transpose(order)
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
            mean, var = mean.mean(axis=-1), (mean**2 + var).mean(axis=-1) - mean.mean(axis=-1) ** 2
        dims = tuple(source) if s.serial == serial else None
        result.append(Aligned(mean, var, corr, dims, cat_corr))
    return result, tuple(axes), tuple(atoms)


def _common_atoms(states: list[State], axis: int) -> list[State]:
    layouts = {tuple(s.atoms[i].size for i in s.axes[axis]) for s in states if s.axes[axis]}
    if len(layouts) <= 1:
        return states
    finest = max(layouts, key=len)
    refined = []
    for s in states:
        sizes = tuple(s.atoms[i].size for i in s.axes[axis])
        if sizes and sizes != finest:
            refined.append(_refined(s, axis, finest))
        else:
            refined.append(s)
    if len({tuple(s.atoms[i].size for i in s.axes[axis]) for s in refined if s.axes[axis]}) > 1:
        return [merge_atoms(s, axis) if len(s.axes[axis]) > 1 else s for s in states]
    return refined


def _refined(state: State, axis: int, sizes: tuple[int, ...]) -> State:
    shape = state.shape
    fine = reshape(state, (*shape[:axis], *sizes, *shape[axis + 1 :]))
    inner = tuple(i for a in range(axis, axis + len(sizes)) for i in fine.axes[a])
    return replace(fine, axes=(*fine.axes[:axis], inner, *fine.axes[axis + len(sizes) :]))


def align(x: State, y: State) -> tuple[Aligned, Aligned, tuple[tuple[int, ...], ...], tuple[Atom, ...]]:
    """`align_many` for two states."""
    (a, b), axes, atoms = align_many((x, y))
    return a, b, axes, atoms


# ---- dependence between states --------------------------------------------------------------------------------------


class Dependence:
    """Covariances between states of one pass, found by following links from the later state to the earlier one."""

    def __init__(self) -> None:
        self._memo: dict[tuple[int, int, Dims], Array | None] = {}
        self._next_root = 0

    def root(self) -> int:
        """Return a bit that no state has yet."""
        bit = 1 << self._next_root
        self._next_root += 1
        return bit

    def between(self, x: State, y: State, x_dims: Dims, y_dims: Dims) -> Array | None:
        """Return the covariance kernel of two states in common atoms, or None when they are independent.

        ``x_dims`` and ``y_dims`` give each common atom's place in the states (see `Aligned`).
        """
        if not (x.roots & y.roots):
            return None
        where: list[int | None] = [None] * len(y.atoms)
        for i, j in zip(x_dims, y_dims, strict=True):
            if j is not None:
                where[j] = i
        kernel = self._expand(x, y, tuple(where), 0)
        return None if kernel is None else _placed(kernel, x_dims)

    def _expand(self, x: State, y: State, where: Dims, depth: int) -> Array | None:
        # the kernel is in x's atoms; ``where`` says which of them each of y's atoms is
        if not (x.roots & y.roots) or depth > 200:
            return None
        if x.serial == y.serial:
            return x.covariance() if where == tuple(range(len(where))) else None
        key = (x.serial, y.serial, where)
        if key in self._memo:
            return self._memo[key]
        result: Array | None = None
        if y.serial > x.serial:
            for link in y.links:
                dims = link.dims if link.dims is not None else tuple(range(len(y.atoms)))
                places: list[int | None] = [None] * len(link.parent.atoms)
                for i, j in zip(where, dims, strict=True):
                    if j is not None:
                        places[j] = i
                part = self._expand(x, link.parent, tuple(places), depth + 1)
                if part is not None:
                    part = link.operate(part, tuple(places))
                    result = part if result is None else _add(result, part)
        else:
            for link in x.links:
                dims = link.dims if link.dims is not None else tuple(range(len(x.atoms)))
                inner = tuple(None if i is None else dims[i] for i in where)
                part = self._expand(link.parent, y, inner, depth + 1)
                if part is not None:
                    part = _placed(link.operate(part, tuple(range(len(link.parent.atoms)))), dims)
                    result = part if result is None else _add(result, part)
        self._memo[key] = result
        return result


def _placed(kernel: Array, dims: Dims) -> Array:
    """Reorder a kernel's dimensions; along an index that it lacks it is constant."""
    if dims == tuple(range(kernel.ndim)):
        return kernel
    used = [i for i in dims if i is not None]
    missing = [i for i in range(kernel.ndim) if i not in used]
    kernel = kernel[tuple(0 if i in missing else slice(None) for i in range(kernel.ndim))]
    kernel = kernel.transpose([sum(j not in missing for j in range(i)) for i in used])
    for at, i in enumerate(dims):
        if i is None:
            kernel = np.expand_dims(kernel, at)
            kernel = np.concatenate([kernel, kernel], axis=at)
    return np.asarray(kernel)


def _add(a: Array, b: Array) -> Array:
    lengths = [max(m, n) for m, n in zip(a.shape, b.shape, strict=True)]
    return kernels.promote(a, lengths) + kernels.promote(b, lengths)


def scaled_by(factor: float) -> Operate:
    """Return the link operator of a multiplication by a number."""
    return lambda kernel, _where: kernel * factor
