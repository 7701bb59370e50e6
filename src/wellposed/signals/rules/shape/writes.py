"""Writes: part of a tensor is replaced, or added to, at places that are stretches of axes, masks or indices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from wellposed.arrays import array_of
from wellposed.operators.writes import Box, Stretch, box_of
from wellposed.signals.algebra.affine import linear
from wellposed.signals.algebra.elementwise_products import multiply
from wellposed.signals.algebra.expert_dispatch import put_back
from wellposed.signals.algebra.linear_maps import mapped
from wellposed.signals.algebra.local_scales import sizes_of_picks
from wellposed.signals.algebra.mixtures import chosen, mixture
from wellposed.signals.algebra.operands import filled, operand
from wellposed.signals.algebra.sums import combine
from wellposed.signals.context.arguments import known_state
from wellposed.signals.context.call import Call, Unknown
from wellposed.signals.distributions.blocks import MOST_TIMES, concatenate, one_after_another, select
from wellposed.signals.distributions.state import Layout, State, make_state
from wellposed.signals.distributions.views import expand, merge_atoms, permute, pooled, reshape
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.windows import Indices
from wellposed.signals.registry import overloads, rule
from wellposed.signals.rules.shape.forward import names_along, picked_along, reordered
from wellposed.signals.sampling.samples import sample_operator

BLOCKS = 8
"""Most parts of a tensor that are kept apart; beyond them its positions are told apart by their moments alone."""
STEPS = 64
"""Longest step of a stretch whose positions are told apart from those between them."""


# ---- stretches ------------------------------------------------------------------------------------------------------


@rule(
    overloads("slice_scatter.default", "select_scatter.default"),
    torch.ops.wellposed.view_write.default,
    tag="approximate",
    family="shape",
    source="definition: the parts of a tensor one after another",
    tensors=True,
)
def write(call: Call, x: Any, y: Any, *rest: Any, **kwargs: Any) -> State | None:
    """A box of a tensor is overwritten: what is before it, in it and behind it."""
    target, source = (_as_state(call, value) for value in (x, y))
    box = box_of(call.graph, call.node)
    if box is None or box.longest_step > STEPS:
        share = math.prod(source.shape) / max(math.prod(target.shape), 1)
        return _mixed(call, target, source, share)
    frequencies = call.graph.values[call.node.outputs[0]].dtype.is_complex
    source = permute(source, box.order) if source.axes else source
    parts = {} if frequencies or call.independent else _positions(call, target, source, box)
    axis = box.stretches[0].axis if parts else 0
    if parts and len(parts) == target.shape[axis] > 1:
        return concatenate([parts[at] for at in sorted(parts)], axis, apart=False, between=call.covariance)
    result = replaced(target, source, box, frequencies=frequencies)
    if parts:
        call.run.memo["positions", axis, result.serial] = parts
    return result


def _positions(call: Call, target: State, source: State, box: Box) -> dict[int, State]:
    """Return by index what the positions of an axis hold that were written one by one, as a loop over time does, once
    this one is; nothing where a node writes something else.
    """
    if len(box.stretches) != 1 or (at := box.stretches[0]).stop - at.start != 1 or target.shape[at.axis] > MOST_TIMES:
        return {}
    if at.dropped:
        source = reshape(source, (*source.shape[: at.axis], 1, *source.shape[at.axis :]))
    before = call.run.memo.pop(("positions", at.axis, target.serial), {})
    shape = (*target.shape[: at.axis], 1, *target.shape[at.axis + 1 :])
    return {**before, at.start: expand(source, shape)}


def _as_state(call: Call, value: Any) -> State:
    found = operand(call, value)
    return found if isinstance(found, State) else make_state((), found, 0.0)


def _mixed(call: Call, target: State, source: State, share: float) -> State:
    """Return a tensor of which a share, taken for random positions, is overwritten."""
    whole = make_state(target.shape, source.pooled_mean, source.pooled_var, roots=source.roots, tag=source.tag)
    return mixture(call, whole, target, min(share, 1.0))


def replaced(target: State, source: State, box: Box, *, frequencies: bool = False) -> State:
    """Return a tensor with other elements in a box, in the order of its axes; ``frequencies`` are told apart one by
    one.
    """
    stretches = box.stretches
    for stretch in stretches:
        if stretch.dropped:
            source = reshape(source, (*source.shape[: stretch.axis], 1, *source.shape[stretch.axis :]))
    return _replaced(target, source, stretches, apart=len(stretches) == 1, frequencies=frequencies)


def _replaced(target: State, source: State, stretches: tuple[Stretch, ...], *, apart: bool, frequencies: bool) -> State:
    # parts of a box in several axes are told apart by position: blocks lie along one axis
    if not stretches:
        return expand(source, target.shape)
    (axis, start, stop, step), rest = _bounds(stretches[0]), stretches[1:]
    size = target.shape[axis]
    inner = _replaced(
        select(target, axis, start, stop, step, drop=False), source, rest, apart=apart, frequencies=frequencies
    )
    if step == 1:
        before, behind = ((0, start), (stop, size))
        around = [
            [select(target, axis, *ends, 1, drop=False)] if ends[0] < ends[1] else [] for ends in (before, behind)
        ]
        parts = [*around[0], inner, *around[1]]
        if frequencies:
            return one_after_another(parts, axis)
        return concatenate(parts, axis, apart=apart and sum(len(part.blocks) or 1 for part in parts) <= BLOCKS)
    others = [range(first, size, step) for first in range(step) if first != start % step and first < size]
    ends = [range(first, min(first + step, size), step) for first in range(start % step, size, step)]
    others += [end for end in ends if end.start < start or end.start >= stop]
    parts = [inner, *(select(target, axis, at.start, at.stop, step, drop=False) for at in others)]
    whole = concatenate(parts, axis, apart=False)
    return reordered(whole, axis, np.argsort(np.concatenate([np.arange(start, stop, step), *others])))


def _bounds(stretch: Stretch) -> tuple[int, int, int, int]:
    return stretch.axis, stretch.start, stretch.stop, stretch.step


# ---- masks and indices ----------------------------------------------------------------------------------------------


@rule(overloads("copy_.default"), family="shape", source="definition", tensors=True)
def copy(call: Call, x: Any, y: Any, *rest: Any) -> State:
    """All of a tensor is overwritten."""
    return expand(filled(call, operand(call, y)), call.shape())


@rule(
    overloads("masked_fill.Tensor", "masked_scatter.default"),
    tag="approximate",
    family="shape",
    source="mixture of two signals",
    tensors=True,
)
def write_by_mask(call: Call, x: Any, mask: Any, y: Any) -> State:
    """The elements where a mask holds are overwritten."""
    target, source = (filled(call, operand(call, value)) for value in (x, y))
    by_condition = _where(call, mask, source, target)
    return _mixed(call, target, source, _share_of(mask)) if by_condition is None else by_condition


def _where(call: Call, mask: Any, source: State, target: State) -> State | None:
    """Return elements like those of ``source`` where a condition on signals holds; None for another mask."""
    shape = call.shape()
    if not isinstance(mask, Unknown) or mask.state is None or len(mask.shape) > len(shape):
        return None
    whole = make_state(shape, source.pooled_mean, source.pooled_var, roots=source.roots, tag=source.tag)
    return chosen(call, expand(mask.state, shape), whole, expand(target, shape))


def _share_of(mask: Any) -> float:
    """Share of a mask that holds; a half where its values are not known."""
    return float(mask.double().mean()) if isinstance(mask, torch.Tensor) and mask.numel() else 0.5


@rule(
    overloads("index_put_.default", "index_put.default"),
    tag="approximate",
    family="shape",
    source="mixture of two signals",
    tensors=True,
    pairs=True,
)
def index_put(call: Call, x: Any, indices: Any, y: Any, accumulate: bool = False) -> State | None:
    """Elements at some indices are overwritten."""
    target, source = (filled(call, operand(call, value)) for value in (x, y))
    if accumulate:
        axes = [axis for axis, item in enumerate(indices) if item is not None]
        index = indices[axes[0]] if len(axes) == 1 else None
        if index is None or index.dtype == torch.bool or len(index.shape) != 1:
            return None
        shape = (*target.shape[: axes[0]], index.shape[0], *target.shape[axes[0] + 1 :])
        return _added(call, target, expand(source, shape), axes[0], index, "sum")
    by_position = _along_an_axis(call, target, indices, source)
    if by_position is not None:
        return by_position
    if len(indices) == 1 and tuple(indices[0].shape) == target.shape:
        by_condition = _where(call, indices[0], source, target)
        if by_condition is not None:
            return by_condition
    return _mixed(call, target, source, _indexed(indices, target.shape) / max(math.prod(target.shape), 1))


def _along_an_axis(call: Call, target: State, indices: Any, source: State) -> State | None:
    """Return a tensor that is overwritten at known places of one axis, position by position; None of other writes."""
    picked = [(axis, item) for axis, item in enumerate(indices) if item is not None]
    if len(picked) != 1 or not isinstance(picked[0][1], torch.Tensor) or picked[0][1].ndim != 1 or call.independent:
        return None
    axis, places = picked[0]
    places = places.nonzero().flatten() if places.dtype == torch.bool else places
    size = target.shape[axis]
    if not 0 < len(places) == len(places.unique()) or size > BLOCKS * BLOCKS:
        return None
    rows = expand(source, (*target.shape[:axis], len(places), *target.shape[axis + 1 :]))
    which = torch.zeros(size, dtype=torch.long)
    which[places] = torch.arange(len(places))
    written = torch.zeros(size, dtype=torch.float64).index_fill(0, places, 1.0)
    extent = [size if a == axis else 1 for a in range(len(target.axes))]
    whole = (
        picked_along(rows, axis, (size,), target.shape, which, once=True)
        if rows.axes[axis]
        else expand(rows, target.shape)
    )
    inside = multiply(call, whole, _mask_of(call, written, extent))
    outside = multiply(call, target, _mask_of(call, 1.0 - written, extent))
    return combine(call, inside, outside, 1.0, 1.0)


def _mask_of(call: Call, written: torch.Tensor, extent: list[int]) -> State:
    return known_state(written.reshape(extent), call.root())


def _indexed(indices: Any, shape: tuple[int, ...]) -> float:
    """Return how many elements some indices pick."""
    count = float(math.prod(shape))
    picked = [(axis, item) for axis, item in enumerate(indices) if item is not None]
    for axis, item in picked:
        sizes = shape[axis : axis + len(item.shape)] if item.dtype == torch.bool else (shape[axis],)
        count /= math.prod(sizes)
    masks = [_share_of(item) * math.prod(item.shape) for _, item in picked if item.dtype == torch.bool]
    places = [math.prod(item.shape) for _, item in picked if item.dtype != torch.bool]
    return count * max([*masks, *places], default=1)


@rule(
    overloads("scatter.src", "scatter_.src", "scatter.value", "scatter_.value"),
    tag="approximate",
    family="shape",
    source="mixture of two signals",
    tensors=True,
)
def scatter(call: Call, x: Any, dim: int, index: Any, y: Any) -> State:
    """Elements at some indices of an axis are overwritten."""
    target, source = (filled(call, operand(call, value)) for value in (x, y))
    if source.is_constant and source.pooled_mean == -math.inf:  # the others are what a softmax sees
        return target
    count = math.prod(index.shape)
    if isinstance(index, torch.Tensor):
        count = int(torch.zeros(target.shape).scatter_(dim, index, 1.0).sum())
    return _mixed(call, target, source, count / max(math.prod(target.shape), 1))


@rule(
    overloads("index_fill.int_Scalar", "index_fill_.int_Scalar", "index_copy.default", "index_copy_.default"),
    tag="approximate",
    family="shape",
    source="mixture of two signals",
    tensors=True,
    pairs=True,
)
def write_rows(call: Call, x: Any, dim: int, index: Any, y: Any) -> State:
    """Whole rows at some indices of an axis are overwritten."""
    target, source = (filled(call, operand(call, value)) for value in (x, y))
    if not isinstance(index, torch.Tensor):
        return _mixed(call, target, source, math.prod(index.shape) / max(target.shape[dim], 1))
    axis, size = dim % len(target.axes), target.shape[dim]
    if len(index.unique()) < index.numel():
        return _mixed(call, target, source, len(index.unique()) / max(size, 1))
    shape = (*target.shape[:axis], index.numel(), *target.shape[axis + 1 :])
    rows = make_state(shape, source.pooled_mean, 0.0) if source.is_constant else expand(source, shape)
    written = torch.zeros(size, dtype=torch.float64).index_fill(0, index, 1.0)
    left = (1.0 - written).reshape([size if a == axis else 1 for a in range(len(target.axes))])
    kept = multiply(call, target, known_state(left, call.root()))
    return _added(call, kept, rows, axis, index, "sum")


# ---- sums by index --------------------------------------------------------------------------------------------------


@rule(
    overloads("scatter_add.default", "scatter_add_.default"),
    tag="approximate",
    family="shape",
    source="definition: sums over what has one index, signals: 5.5",
    tensors=True,
    pairs=True,
)
def scatter_add(call: Call, x: Any, dim: int, index: Any, y: Any) -> State:
    """Elements are added to those that their indices name."""
    return _added(call, filled(call, operand(call, x)), filled(call, operand(call, y)), dim, index, "sum")


@rule(
    overloads("index_add.default", "index_add_.default"),
    tag="approximate",
    family="shape",
    source="definition: sums over what has one index, signals: 5.5",
    tensors=True,
    pairs=True,
)
def index_add(call: Call, x: Any, dim: int, index: Any, y: Any, *, alpha: float = 1) -> State:
    """Rows are added to those that their indices name."""
    source = filled(call, operand(call, y))
    return _added(call, filled(call, operand(call, x)), linear(call, source, float(alpha)), dim, index, "sum")


@rule(
    overloads(
        "scatter_reduce.two", "scatter_reduce_.two", "index_reduce.default", "index_reduce_.default", optional=True
    ),
    tag="sampled",
    family="shape",
    source="sums and means over what has one index; other statistics on samples",
    tensors=True,
    pairs=True,
)
def scatter_reduce(
    call: Call, x: Any, dim: int, index: Any, y: Any, reduce: str, *, include_self: bool = True
) -> State | None:
    """Sums, means, maxima, minima and products over what has one index."""
    target, source = (filled(call, operand(call, value)) for value in (x, y))
    if reduce in ("sum", "mean") and isinstance(index, torch.Tensor) and not (include_self and reduce == "mean"):
        if include_self or not target.var.any():
            return _added(call, target, source, dim, index, reduce)
    args = (target, dim, index, source, reduce)
    results = sample_operator(call.graph, call.node, args, {"include_self": include_self}, call.root, pairs=dim)
    found = results[0] if results else None
    return None if found is None else found.amended(spread=source.spread, roots=found.roots | source.roots)


def _added(call: Call, target: State, source: State, dim: int, index: Any, kind: str) -> State:
    """Return a tensor to which sums (means) of another one's elements are added, by their index along an axis."""
    axis = dim % len(target.axes)
    names = index if isinstance(index, torch.Tensor) else None
    if names is not None and names.ndim > 1:
        names = names_along(names, axis)
    shape = tuple(index.shape) if len(index.shape) > 1 else source.shape
    for a, size in enumerate(shape):
        source = select(source, a, 0, size, 1, drop=False)
    if names is None:
        sums = _random_sums(call, source, axis, target.shape[axis])
        if len(index.shape) == 1:
            sums = put_back(call, call.node.args[2].value, call.node.args[3].value, source, sums, axis)
    else:
        sums = _sums(call, source, axis, array_of(names, torch.int64), target.shape[axis], mean=kind == "mean")
    if sums.shape != target.shape:
        sums = _mixed(call, filled(call, 0.0), sums, math.prod(sums.shape) / max(math.prod(target.shape), 1))
    return combine(call, target, sums, 1.0, 1.0)


def _with_atom(x: State, axis: int) -> tuple[State, int]:
    """Return a state with one atom in an axis, and which."""
    x = pooled(x)
    if len(x.axes[axis]) > 1:
        x = merge_atoms(x, axis)
    if x.axes[axis]:
        return x, x.axes[axis][0]
    layout = Layout((*x.lengths, 1), (*x.axes[:axis], (len(x.lengths),), *x.axes[axis + 1 :]))
    x = x.with_moments(layout=layout, mean=x.mean[..., None], var=x.var[..., None], corr=x.corr[..., None])
    return x, len(x.lengths) - 1


def _sums(call: Call, x: State, axis: int, names: Indices, count: int, *, mean: bool) -> State:
    """Return the sums (means) of the positions along an axis that have one name, for each name.

    With s_j the standard deviations and r the average correlation of two positions, the variance of a sum is
    sum s_j² (1 - r) + (sum s_j)² r.
    """
    x, atom = _with_atom(x, axis)
    size = x.lengths[atom]
    each = np.bincount(names, minlength=count)
    weight = 1.0 / np.maximum(each, 1) if mean else np.ones(count)
    if kernels.positions(x.corr.shape[atom]):
        return mapped(x, axis, np.eye(count)[names].T * weight[:, None], pairs=True)

    def by_name(array: Array, power: int) -> Array:
        full = np.moveaxis(
            np.broadcast_to(array, [size if i == atom else n for i, n in enumerate(array.shape)]), atom, 0
        )
        sums = np.zeros((count, *full.shape[1:]))
        np.add.at(sums, names, full)
        return np.moveaxis(sums * (weight**power).reshape(-1, *(1,) * (sums.ndim - 1)), 0, atom)

    together = by_name(x.std(), 1)
    over = tuple(i for i in range(together.ndim) if i != atom)
    along = np.sqrt((together**2).mean(axis=over))
    apart = float((along.sum() ** 2 - (along**2).sum()) / max(count * (count - 1), 1))
    return _summed(call, x, atom, count, by_name(x.mean, 1), by_name(x.var, 2), together**2, apart)


def _summed(
    call: Call,
    x: State,
    atom: int,
    count: int,
    mean: Array,
    alone: Array,
    squares: Array,
    apart: float,
    counts: tuple[Array, float] = (np.zeros(1), 0.0),
) -> State:
    """Return sums given their mean, the sum of the variances (``alone``), the ``squares`` of the sum of the standard
    deviations, and the product of two different ones of these (``apart``); and the variance and the covariance that
    the means add where nobody knows how many are summed (``counts``).
    """
    same = np.take(x.corr, [0], axis=atom)
    other = kernels.off_diagonal_mean(x.corr, x.lengths, atom)
    rho = float(other.ravel()[0])
    var = np.maximum(alone + rho * (squares - alone) + counts[0], 0.0)
    parts = [alone.mean() * same + (squares - alone).mean() * other + counts[0].mean()]
    if count > 1 and (other.any() or counts[1]):
        parts.append(apart * other + counts[1])
    kernel = np.concatenate(parts, axis=atom)
    gone = [atom] if count == 1 else []
    moments = {"mean": mean, "var": var, "corr": kernels.correlation(kernel, var)}
    return x.with_moments(
        layout=x.layout.resized(atom, count).without(gone),
        **{name: kernels.without(array, gone) for name, array in moments.items()},  # type: ignore[arg-type]
        scale_parameter=None,
        roots=x.roots | call.root(),
    )


def _random_sums(call: Call, x: State, axis: int, count: int) -> State:
    """Return the sums of the positions along an axis that have one name, where names are random: n of N have each."""
    x, atom = _with_atom(x, axis)
    load = x.lengths[atom] / count
    pairs = x.lengths[atom] * (x.lengths[atom] - 1) / count**2
    m, v, s = (a.mean(axis=atom, keepdims=True) for a in (x.mean, x.var, x.std()))
    counts = (load + pairs - load * load) * m**2, (pairs - load * load) * float((m**2).mean())
    squares, apart = load * s**2 + pairs * s**2, pairs * float((s**2).mean())
    summed = _summed(call, x, atom, count, load * m, load * v, squares, apart, counts)
    # what has one name comes from one place: it was dispatched from there
    return summed.amended(marginal=sizes_of_picks(x, atom, [atom] if count == 1 else [], apart=False))
