"""Elements picked by index, or by a window that slides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from wellposed.arrays import array_of, distinct
from wellposed.graphs import Graph, Node
from wellposed.operators.facts import facts_of
from wellposed.operators.steps import Cut
from wellposed.operators.views import is_copy, is_view, view_of
from wellposed.signals.algebra.expert_dispatch import remember_pick
from wellposed.signals.algebra.linear_maps import mapped, picked_links
from wellposed.signals.algebra.local_scales import scales_of_picks
from wellposed.signals.algebra.masked_scores import shut_out
from wellposed.signals.algebra.unfolding import unfolded
from wellposed.signals.context.call import Call, Unknown
from wellposed.signals.distributions.making import exchangeable
from wellposed.signals.distributions.marginals import one_signed
from wellposed.signals.distributions.state import Standardised, State, Statistic
from wellposed.signals.distributions.views import merge_atoms, permute, pooled, reshape
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.windows import Axis, Indices
from wellposed.signals.registry import overloads, rule
from wellposed.signals.rules.shape.forward import seen_through, through
from wellposed.signals.sampling.samples import outside

picking = partial(
    rule, tag="approximate", family="shape", source="elements picked by index, alike", tensors=True, pairs=True
)
"""Registers a rule of an operator that picks elements."""
REPETITIONS = 8
"""Views and copies by which an index was repeated along axes, at most. Chosen."""
SMALL_CORRELATION = 1e-3
"""Correlation of elements picked anyhow up to which they count as uncorrelated. Chosen."""


@picking(overloads("gather.default", "index_select.default", "take_along_dim.default"))
def gather(call: Call, x: State, *rest: Any, **kwargs: Any) -> State:
    """Elements picked by an index: along one axis, where it is the same at all other positions, else anyhow."""
    if (seen := _seen(call, x, *rest, **kwargs)) is not None:
        return _shown(gather(call, seen[0], *rest, **kwargs), x, seen[1])
    dim, index = _dim_and_index(*rest, **kwargs)
    shape = call.shape()
    if dim is None or not x.axes:
        return _picked(call, x)
    axis = dim % len(x.axes)
    names = names_along(index, axis) if isinstance(index, torch.Tensor) else None
    rows = Rows((), False) if names is not None else _rows_of_samples(call.graph, call.node, axis)
    alike = all(n == m for a, (n, m) in enumerate(zip(x.shape, shape, strict=True)) if a != axis)
    if not (alike and x.axes[axis]) or rows is None:
        return _picked(call, x)
    return _rows_picked(call, x, axis, names, rows)


def _rows_picked(call: Call, x: State, axis: int, names: torch.Tensor | None, rows: Rows) -> State:
    """Return whole rows along an axis at the index ``names``, or at an unknown index (None) that ``rows`` describes."""
    shape = call.shape()
    if names is not None and _is_stretch(names):
        return seen_through(call, x, (Cut(axis, int(names[0]), int(names[-1]) + 1),))
    if rows.ordered and x.shape == shape and not x.blocks:
        return _shuffled(x, axis, rows.apart)
    return picked_along(x, axis, (shape[axis],), shape, names, apart=rows.apart)


class Rows(NamedTuple):
    """How an unknown index picks whole rows.

    Attributes:
        apart: the axes, beside the one that is picked from, along which the index differs (one order per sample).
        ordered: whether the index is a permutation of all positions.
    """

    apart: tuple[int, ...]
    ordered: bool


def _rows_of_samples(graph: Graph, node: Node, axis: int) -> Rows | None:
    """Return how the index of a node picks rows along an axis: it is the same along axes that it was broadcast to. None
    for an index of several axes that is broadcast along no other axis.
    """
    value = next(v for v in node.inputs if not graph.values[v].is_signal)
    shape = graph.values[value].shape
    value, repeated = _before_repetition(graph, value)
    if len(shape) > 1 and not repeated - {axis}:
        return None
    at = graph.values[value].node
    ordered = at is not None and facts_of(graph.nodes[at].op).along == "order"
    if len(shape) < 2:  # one index for all samples
        return Rows((), ordered)
    apart = tuple(a for a, size in enumerate(shape) if a != axis and a not in repeated and size > 1)
    return Rows(apart, ordered and axis not in repeated)


def _before_repetition(graph: Graph, value: int) -> tuple[int, set[int]]:
    """Return the value that another one is broadcast from, or itself, and the axes that it is broadcast along."""
    rank, repeated = len(graph.values[value].shape), set[int]()
    for _ in range(REPETITIONS):
        before = _seen_by_view(graph, value)
        wider = None if before is None else _widened(graph.values[before].shape, graph.values[value].shape, rank)
        if before is None or wider is None:
            break
        repeated, value = repeated | wider, before
    return value, repeated


def _seen_by_view(graph: Graph, value: int) -> int | None:
    """Return the value that another is a view or a copy of; None of others."""
    at = graph.values[value].node
    node = None if at is None else graph.nodes[at]
    return node.inputs[0] if node is not None and (is_view(node.op) or is_copy(node.op)) else None


def _widened(before: tuple[int, ...], after: tuple[int, ...], rank: int) -> set[int] | None:
    """Return the axes, of a tensor of ``rank``, that a view broadcasts; None for views that move elements."""
    if len(before) == len(after) == rank and all(n in (1, m) for n, m in zip(before, after, strict=True)):
        return {a for a, (n, m) in enumerate(zip(before, after, strict=True)) if n < m}
    return set[int]() if [n for n in before if n > 1] == [n for n in after if n > 1] else None


def _shuffled(x: State, axis: int, apart: Sequence[int]) -> State:
    """Return x with its rows along an axis in unknown orders, one for each index of the axes ``apart``. Moments by
    position stay as if the order were the old one; only correlations across ``apart`` are averaged.
    """
    corr = _mixed(x, x.corr, x.axes[axis], apart)
    return x.changed(corr=corr, links=(), origin=None, marginal=one_signed(x))


def _mixed(x: State, picked: Array, atoms: Sequence[int], apart: Sequence[int]) -> Array:
    """Return ``picked``, a kernel along some atoms of x, for one unknown index per position of the axes ``apart``: two
    such positions have the correlation of two random places of x.
    """
    at = kernels.equal_along(picked.shape, [atom for a in apart for atom in x.axes[a]])
    return np.where(at, picked, kernels.pair_mean(x.corr, x.lengths, atoms))


def _dim_and_index(*rest: Any, **kwargs: Any) -> tuple[int | None, Any]:
    """Return the axis and the index of a gather, which operators take in either order."""
    dim, index = (rest[0], rest[1]) if isinstance(rest[0], int) else (kwargs.get("dim", rest[1:2] or None), rest[0])
    return dim[0] if isinstance(dim, tuple) else dim, index


def _is_stretch(names: torch.Tensor) -> bool:
    """Whether an index names positions one after another."""
    return bool(names.numel()) and bool((names.diff() == 1).all()) and int(names[0]) >= 0


def names_along(index: torch.Tensor, axis: int) -> torch.Tensor | None:
    """Return the 1-D index along an axis, where it is the same at all positions of the other axes; else None."""
    if index.ndim < 2:
        return index.flatten()
    first = index
    for a in range(index.ndim):
        if a != axis:
            first = first.narrow(a, 0, min(1, index.shape[a]))
    return first.flatten() if bool((index == first).all()) else None


@picking(overloads("index.Tensor"))
def index(call: Call, x: Any, indices: Any) -> State | None:
    """Advanced indexing: axes without an index are kept, the others are picked from."""
    if not isinstance(x, State):
        return None
    if (seen := _seen(call, x, indices)) is not None:
        picked = index(call, seen[0], indices)
        return None if picked is None else _shown(picked, x, seen[1])
    where = [i for i, item in enumerate(indices) if item is not None]
    by_one = _picked_by_one(call, x, where[0], indices[where[0]]) if len(where) == 1 else None
    return by_one or _picked_at(x, indices, where, call.shape()) or _picked(call, x)


def _picked_by_one(call: Call, x: State, axis: int, item: Any) -> State | None:
    """Return elements picked by one index along an axis; None for a mask over several axes or an unknown one, and along
    an axis of length 1.
    """
    if isinstance(item, torch.Tensor) and item.dtype == torch.bool and item.ndim == 1:
        item = item.nonzero().flatten()
    if not hasattr(item, "shape") or getattr(item, "dtype", None) == torch.bool or not x.axes[axis]:
        return None
    names = item.flatten() if isinstance(item, torch.Tensor) else None
    picked = picked_along(x, axis, tuple(item.shape), call.shape(), names)
    if names is None and len(item.shape) == 1:
        remember_pick(call, call.node.args[1][axis].value, x, axis, picked)
    return picked


@picking(overloads("diagonal.default", "diag.default"))
def diagonal(call: Call, x: State, offset: int = 0, dim1: int = 0, dim2: int = 1) -> State | None:
    """A diagonal of two axes, which comes last."""
    rank, shape = len(x.axes), call.shape()
    if rank < 2:
        return None
    if (seen := _seen(call, x, offset, dim1, dim2)) is not None:
        picked = diagonal(call, seen[0], offset, dim1, dim2)
        return None if picked is None else _shown(picked, x, seen[1])
    pair = [dim1 % rank, dim2 % rank]
    others = [axis for axis in range(rank) if axis not in pair]
    along = torch.arange(shape[-1])
    picks = [along + max(-offset, 0), along + max(offset, 0)]
    x = permute(x, [*others, *pair])
    return _picked_at(x, [None] * len(others) + picks, [rank - 2, rank - 1], shape) or _picked(call, x)


def _seen(call: Call, x: State, *rest: Any, **kwargs: Any) -> tuple[State, torch.Tensor] | None:
    """Return the scores below a mask, and for each element that known indices pick whether the mask lets it through;
    None for other tensors, and for unknown indices.
    """
    given = [item for arg in (*rest, *kwargs.values()) for item in (arg if isinstance(arg, (list, tuple)) else [arg])]
    if x.masked is None or x.masked.scores is None or any(isinstance(item, (State, Unknown)) for item in given):
        return None
    arguments = len(call.node.op._schema.arguments) - 1 - len(kwargs)
    return x.masked.scores, call.node.op(x.masked.mask.expand(x.shape), *rest[:arguments], **kwargs)


def _shown(picked: State, x: State, seen: torch.Tensor) -> State:
    """Return ``picked``, elements of the masked scores x, under the mask ``seen``."""
    return picked if bool(seen.all()) else shut_out(picked, seen, outside(x))


def _picked_at(x: State, indices: Any, where: list[int], shape: tuple[int, ...]) -> State | None:
    """Return elements picked by one index for each of several neighbouring axes (a triangle of a matrix, tokens of each
    sample); None where axes are no neighbours, or an index is a mask. Other axes stay.
    """
    picks = [indices[axis] for axis in where]
    if len(where) < 2 or where != list(range(where[0], where[-1] + 1)):
        return None
    if any(getattr(item, "dtype", torch.bool) == torch.bool for item in picks):
        return None
    first, after = where[0], x.shape[where[-1] + 1 :]
    if len(where) == 2 and x.axes[first + 1] and _are_own(picks, x.shape[first]):
        count = shape[first + 1 : len(shape) - len(after)]
        return picked_along(x, first + 1, count, shape, apart=[first])
    sizes, picked = x.shape[first : where[-1] + 1], shape[first : len(shape) - len(after)]
    flat = reshape(x, (*x.shape[:first], math.prod(sizes), *after))
    if not flat.axes[first]:
        return None
    if not all(isinstance(item, torch.Tensor) for item in picks):
        return picked_along(flat, first, picked, shape)
    names = torch.zeros_like(torch.broadcast_tensors(*picks)[0])
    for item, size in zip(torch.broadcast_tensors(*picks), sizes, strict=True):
        names = names * size + torch.where(item < 0, item + size, item)
    return picked_along(flat, first, picked, shape, names.flatten())


def _are_own(picks: list[Any], size: int) -> bool:
    """Whether two indices pick elements of each sample from that sample: the first is known, arange(``size``) along
    axis 0, and the second is unknown.
    """
    first, second = picks
    if not isinstance(first, torch.Tensor) or isinstance(second, torch.Tensor) or first.ndim != len(second.shape):
        return False
    names = names_along(first, 0)
    return first.shape[0] == second.shape[0] == size and names is not None and names.tolist() == list(range(size))


def picked_along(
    x: State,
    axis: int,
    index_shape: tuple[int, ...],
    shape: tuple[int, ...],
    names: torch.Tensor | None = None,
    *,
    once: bool = False,
    apart: Sequence[int] = (),
) -> State:
    """Return elements picked by an index along one axis: with moments by position where the index ``names`` is known,
    else averaged. With ``once`` equal entries of ``names`` stand for different elements. Positions that differ along
    the axes ``apart`` have unknown indices of their own.
    """
    x = merge_atoms(x, axis) if len(x.axes[axis]) > 1 else pooled(x)
    flat, i = math.prod(index_shape), x.axes[axis][0]
    size = x.lengths[i]
    places = None if names is None else array_of(names, torch.int64) % size
    if places is not None and _by_pair(x.corr, i, places, once):
        return reshape(mapped(x, axis, np.eye(size)[places], pairs=True), shape)
    mean, var, chance = _random_picks(x, i, flat) if places is None else _known_picks(x, i, places, once)
    other = kernels.off_diagonal_mean(x.corr, x.lengths, i)
    same = np.take(x.corr, [0], axis=i)
    parts = [same, other + chance * (same - other)] if flat > 1 and (other.any() or chance) else [same]
    corr = np.concatenate(parts, axis=i)
    corr = _mixed(x, corr, [i], apart) if apart else corr
    gone = [i] if flat == 1 else []
    moments = {"mean": mean, "var": var, "corr": corr}
    state = x.changed(
        layout=x.layout.resized(i, flat).without(gone),
        **{name: kernels.without(array, gone) for name, array in moments.items()},  # type: ignore[arg-type]
        marginal=scales_of_picks(x, i, gone, apart=places is None),
        links=() if places is None else picked_links(x, i, places, gone),
        origin=None if isinstance(x.origin, (Statistic, Standardised)) else x.origin,
    )
    return reshape(state, shape)


def _random_picks(x: State, atom: int, count: int) -> tuple[Array, Array, float]:
    """Return mean and variance of ``count`` random picks along an atom, and the probability that two of them are one
    element (0, or 1 / size for more picks than elements).
    """
    size = x.lengths[atom]
    mean = x.mean.mean(axis=atom, keepdims=True)
    var = np.maximum((x.mean**2 + x.var).mean(axis=atom, keepdims=True) - mean**2, 0.0)
    return mean, var, 1.0 / size if count > size else 0.0


def _known_picks(x: State, atom: int, places: Indices, once: bool) -> tuple[Array, Array, float]:
    """Return mean and variance at known ``places`` along an atom, and the share of pairs that are one element (0 with
    ``once``).
    """
    mean, var = (np.take(m, places, axis=atom) if m.shape[atom] > 1 else m for m in (x.mean, x.var))
    times = np.bincount(places, minlength=x.lengths[atom]) if not once else np.ones(1)
    return mean, var, float((times * (times - 1.0)).sum()) / max(places.size * (places.size - 1), 1)


def _by_pair(corr: Array, atom: int, places: Indices, once: bool) -> bool:
    """Whether the kernel of picked elements is by pair: where some elements are picked twice, or it was before."""
    if not kernels.LEAST <= places.size <= kernels.MOST:
        return False
    return bool(kernels.positions(corr.shape[atom])) or (not once and distinct(places).size < places.size)


def _picked(call: Call, x: State) -> State:
    """Return elements picked in an unknown way: pooled mean and variance, average correlation of two elements."""
    shape, total = call.shape(), math.prod(x.lengths)
    if x.shape == shape and not x.mean.any():
        return pooled(x).changed(links=(), function=None)
    covariance = float(kernels.pair_mean(x.covariance(), x.lengths).ravel()[0]) if total > 1 else 0.0
    var = kernels.average(x.var)
    rho = max((covariance * total - var) / max(total - 1, 1), 0.0) / var if var > 0 else 0.0
    state = exchangeable(shape, x.pooled_mean, x.pooled_var, rho if rho > SMALL_CORRELATION else 0.0)
    return state.amended(roots=x.roots | call.root(), spread=x.spread, tag=x.tag, scale_parameter=x.scale_parameter)


@rule(
    overloads("unfold.default"),
    family="shape",
    source="definition: every element at each tap that reads it",
    tensors=True,
)
def unfold(call: Call, x: State, dimension: int, size: int, step: int) -> State:
    """Windows of one axis, laid out along a new one."""
    steps = view_of(call.graph, call.node)
    if steps is not None:
        return through(call, x, steps[0])
    axis = dimension % max(len(x.axes), 1)
    cut = unfolded(x, axis, Axis(x.shape[axis], call.shape()[axis], size, step)) if x.axes else None
    if cut is None:
        return _picked(call, x)
    return permute(cut, [k for k in range(len(cut.axes)) if k != axis] + [axis])
