"""Views, copies and casts: the same elements in another order."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from wellposed.arrays import array_of
from wellposed.operators.steps import Cut, Expand, Permute, Regroup, Steps
from wellposed.operators.views import view_of, views
from wellposed.signals.algebra.arithmetic import masked, operand, shut_out
from wellposed.signals.algebra.expert_dispatch import remember_pick
from wellposed.signals.algebra.linear_maps import from_sources, mapped, picked_links
from wellposed.signals.algebra.local_scales import sizes_of_picks
from wellposed.signals.algebra.skewed_views import followed
from wellposed.signals.algebra.statistics import remember_parts
from wellposed.signals.algebra.unfolding import unfolded
from wellposed.signals.context.arguments import known_state
from wellposed.signals.context.call import Call, Unknown
from wellposed.signals.distributions.blocks import MOST_PARTS, concatenate, select
from wellposed.signals.distributions.expansion import own_chance
from wellposed.signals.distributions.spread import Spread, source
from wellposed.signals.distributions.state import LinearMap, State, exchangeable, make_state
from wellposed.signals.distributions.views import expand, merge_atoms, permute, pooled, reshape
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.windows import Axis, Indices
from wellposed.signals.registry import overloads, rule
from wellposed.signals.sampling.samples import outside
from wellposed.structure.patches import merged_positions

_SPECIAL = overloads("unfold.default")
"""Views in some cases alone, with rules of their own."""
LITTLE = 1e-6
"""Variance of ln(second moment) that is not worth a source of its own."""


@rule(
    [op for op in views() if op not in _SPECIAL],
    source="definition; AutoInit, Appendix A (crop, split)",
    tensors=True,
    pairs=True,
    additive=True,
)
def viewed(call: Call, x: Any, *rest: Any, **kwargs: Any) -> State | tuple[State, ...] | None:
    """The same elements under other indices, as the table of views has it."""
    steps = view_of(call.graph, call.node)
    if isinstance(x, torch.Tensor):
        x = known_state(x.to(torch.float64), call.root())
    elif isinstance(x, Unknown):
        x = x.state
    if steps is None or not isinstance(x, State):
        return None
    if len(steps) == 1:
        return _merged(call, _seen_through(call, x, steps[0]))
    return tuple([through(call, x, chain) for chain in steps])


def _seen_through(call: Call, x: State, steps: Steps) -> State:
    """Return the state after a view: where axes ended inside others, a part is found in what these views began with."""
    chain = followed(call, x, steps)
    part = chain.result() if chain.crossed and any(isinstance(step, Cut) for step in steps) else None
    return part or through(call, x, steps, chain.result)


def _merged(call: Call, x: State) -> State:
    """Return a state whose features may be those of several positions: by chance they are alike each on its own."""
    count = merged_positions(call.graph).get(call.node.index, 1)
    return (
        x.amended(finite_width_correlation=x.finite_width_correlation.times(count**-0.5))
        if count > 1 and x.finite_width_correlation.amounts.size
        else x
    )


def through(call: Call, x: State, steps: Steps, across: Callable[[], State | None] | None = None) -> State:
    """Return the state after a chain of views; ``across`` gives it where axes end inside others."""
    for step in steps:
        if isinstance(step, Regroup):
            x = _regrouped(call, x, step, across if step is steps[-1] else None)
        elif isinstance(step, Permute):
            x = permute(x, step.order)
        elif isinstance(step, Expand):
            x = expand(x, step.shape)
        elif isinstance(step, Cut):
            x = _cut(call, x, step)
        else:
            x = reordered(x, step.axis, step.source)
    return x


def _regrouped(call: Call, x: State, step: Regroup, across: Callable[[], State | None] | None) -> State:
    """Return a tensor under other axes: where these are made of parts of the old ones, twice alike is one tensor."""
    key = (step, x.serial, x.axes, x.scale_parameter, x.tag)
    made = call.run.alive.get(key)
    if made is None:
        made = reshape(x, step.shape, across)
        if made.serial != x.serial and not (x.blocks or x.scores):
            call.run.alive[key] = made
    return made


def _cut(call: Call, x: State, step: Cut) -> State:
    """Return a part of a tensor: the same part, cut out twice, is one tensor."""
    key = (step, x.serial, x.axes, x.scale_parameter, x.tag)
    if key not in call.run.memo:
        part = select(x, step.axis, step.start, step.stop, step.step, drop=step.drop)
        whole = call.run.memo.setdefault(("pooled", x.serial, x.axes), pooled(x))
        part = _with_own_chance(call, x, _apart(call, x, part, step.axis))
        call.run.memo[key] = _as_rows(whole, part, step)
    found: State = call.run.memo[key]
    return found


def _as_rows(whole: State, part: State, step: Cut) -> State:
    """Return a part of an axis of correlated elements as a linear map of the whole: it does not add to another part, or
    differ from it, like a stranger.
    """
    at = whole.axes[step.axis]
    if part.layout == whole.layout or len(at) != 1 or part.linear_map is not None or not whole.roots:
        return part
    if whole.corr.shape[at[0]] == 1 or whole.linear_map is not None or whole.lengths[at[0]] > kernels.MOST:
        return part
    rows = np.eye(whole.lengths[at[0]])[step.start : step.stop : step.step]
    return part.amended(linear_map=LinearMap(whole, at[0], rows)) if step.drop or len(rows) > 1 else part


def _apart(call: Call, whole: State, part: State, axis: int) -> State:
    """Return a part that is independent of the others, if it is cut out of an axis of uncorrelated elements."""
    if part is whole or not whole.roots or any(whole.corr.shape[i] > 1 for i in whole.axes[axis]):
        return part
    return part.amended(roots=part.roots | call.root())


def _with_own_chance(call: Call, whole: State, part: State) -> State:
    """Return a part with the spread of what its fewer elements do not average out: no other part has that chance."""
    spread = part.spread
    if part is whole or part.blocks or not spread.own.amounts.size:
        return part
    key = ("own chance", whole.serial, whole.finite_width_correlation.variance)
    if key not in call.run.memo:  # of many parts of one tensor, as the times of a scan are
        call.run.memo[key] = own_chance(whole)
    before, after = call.run.memo[key], own_chance(part)
    more = spread.own.variance * (after / before - 1.0) if before > 0.0 else 0.0
    if not more > LITTLE:
        return part
    return part.amended(spread=Spread(spread.inherited, spread.own + source(call.source(), more), spread.drift))


@rule(overloads("broadcast_tensors.default"), source="definition", tensors=True, pairs=True)
def broadcast(call: Call, tensors: Any) -> tuple[State, ...]:
    """Every tensor expanded to their common shape."""
    return tuple(expand(_as_state(call, t), call.shape(i)) for i, t in enumerate(tensors))


def _as_state(call: Call, value: Any) -> State:
    given = operand(call, value)
    return given if isinstance(given, State) else make_state((), given, 0.0)


@rule(
    overloads("cat.default"),
    additive=True,
    source="definition; AutoInit, Appendix A (concatenate)",
    tensors=True,
    pairs=True,
)
def cat(call: Call, tensors: Any, dim: int = 0) -> State:
    """Tensors one after another."""
    parts = [_as_state(call, t) for t in tensors]
    rank = len(call.shape())
    parts = [p for p in parts if len(p.axes) == rank and p.shape[dim] > 0]
    whole = _merged(call, concatenate(parts, dim, between=call.covariance if len(parts) > MOST_PARTS else None))
    if all(p.mask is None or p.scores is None for p in parts):
        return remember_parts(call, whole)
    # scores that are shut out of a softmax stay so beside others
    masks = [torch.ones((), dtype=torch.bool) if p.mask is None else p.mask for p in parts]
    mask = torch.cat([m.expand(p.shape) for m, p in zip(masks, parts, strict=True)], dim)
    scores = concatenate([p if p.mask is None or p.scores is None else p.scores for p in parts], dim, apart=False)
    return masked(scores, mask, whole.pooled_mean - scores.pooled_mean, max(whole.pooled_var - scores.pooled_var, 0.0))


@rule(overloads("stack.default"), source="definition", tensors=True, pairs=True)
def stack(call: Call, tensors: Any, dim: int = 0) -> State:
    """Tensors along a new axis."""
    rank = len(call.shape())
    at = dim % rank
    parts = []
    for tensor in tensors:
        state = _as_state(call, tensor)
        parts.append(reshape(state, (*state.shape[:at], 1, *state.shape[at:])))
    return concatenate(parts, at, between=call.covariance if len(parts) > MOST_PARTS else None)


def reordered(x: State, axis: int, source: Indices) -> State:
    """Return the state whose position p along an axis is position ``source[p]`` of x."""
    x = merge_atoms(x, axis) if len(x.axes[axis]) > 1 else pooled(x)
    if not x.axes[axis]:
        return x
    i = x.axes[axis][0]
    corr = x.corr
    if kernels.positions(corr.shape[i]):
        return mapped(x, axis, np.eye(x.lengths[i])[source], pairs=True)
    if corr.shape[i] > 2 and (np.abs(np.diff(source)) != 1).any():
        corr = from_sources(corr, i, source)
    mean, var = (np.take(m, source, axis=i) if m.shape[i] > 1 else m for m in (x.mean, x.var))
    return x.changed(mean=mean, var=var, corr=corr, base=None, fn=None, links=picked_links(x, i, source))


@rule(
    overloads("gather.default", "index_select.default", "take_along_dim.default"),
    tag="approximate",
    source="elements picked by index, alike",
    tensors=True,
    pairs=True,
)
def gather(call: Call, x: State, *rest: Any, **kwargs: Any) -> State:
    """Elements picked by an index: along one axis, where it is the same at all other positions, else anyhow."""
    if (scores := x.scores) is not None and (seen := _seen(call, x, *rest, **kwargs)) is not None:
        return _shown(gather(call, scores, *rest, **kwargs), x, seen)
    dim, index = (rest[0], rest[1]) if isinstance(rest[0], int) else (kwargs.get("dim", rest[1:2] or None), rest[0])
    dim = dim[0] if isinstance(dim, tuple) else dim
    shape = call.shape()
    if dim is None or not x.axes:
        return _picked(call, x)
    axis = dim % len(x.axes)
    names = names_along(index, axis) if isinstance(index, torch.Tensor) else None
    whole = len(index.shape) < 2 or names is not None
    alike = all(n == m for a, (n, m) in enumerate(zip(x.shape, shape, strict=True)) if a != axis)
    if not (whole and alike and x.axes[axis]):
        return _picked(call, x)
    if names is not None and names.numel() and bool((names.diff() == 1).all()) and int(names[0]) >= 0:
        return _seen_through(call, x, (Cut(axis, int(names[0]), int(names[-1]) + 1),))
    return picked_along(x, axis, (shape[axis],), shape, names)


def names_along(index: torch.Tensor, axis: int) -> torch.Tensor | None:
    """Return an index along an axis that is the same at all other positions; None for another one."""
    if index.ndim < 2:
        return index.flatten()
    first = index
    for a in range(index.ndim):
        if a != axis:
            first = first.narrow(a, 0, min(1, index.shape[a]))
    return first.flatten() if bool((index == first).all()) else None


@rule(overloads("index.Tensor"), tag="approximate", source="elements picked by index, alike", tensors=True, pairs=True)
def index(call: Call, x: Any, indices: Any) -> State | None:
    """Advanced indexing: axes without an index are kept, the others are picked from."""
    if not isinstance(x, State):
        return None
    if (scores := x.scores) is not None and (seen := _seen(call, x, indices)) is not None:
        picked = index(call, scores, indices)
        return None if picked is None else _shown(picked, x, seen)
    where = [i for i, item in enumerate(indices) if item is not None]
    if len(where) == 1:
        axis = where[0]
        item = indices[axis]
        shape = call.shape()
        if isinstance(item, torch.Tensor) and item.dtype == torch.bool and item.ndim == 1:
            item = item.nonzero().flatten()
        if hasattr(item, "shape") and getattr(item, "dtype", None) != torch.bool and x.axes[axis]:
            names = item.flatten() if isinstance(item, torch.Tensor) else None
            picked = picked_along(x, axis, tuple(item.shape), shape, names)
            if names is None and len(item.shape) == 1:
                remember_pick(call, call.node.args[1][axis].value, x, axis, picked)
            return picked
    return _picked_at(x, indices, where, call.shape()) or _picked(call, x)


@rule(
    overloads("diagonal.default", "diag.default"),
    tag="approximate",
    source="elements picked by index, alike",
    tensors=True,
    pairs=True,
)
def diagonal(call: Call, x: State, offset: int = 0, dim1: int = 0, dim2: int = 1) -> State | None:
    """A diagonal of two axes, which comes last."""
    rank, shape = len(x.axes), call.shape()
    if rank < 2:
        return None
    if (scores := x.scores) is not None and (seen := _seen(call, x, offset, dim1, dim2)) is not None:
        picked = diagonal(call, scores, offset, dim1, dim2)
        return None if picked is None else _shown(picked, x, seen)
    pair = [dim1 % rank, dim2 % rank]
    others = [axis for axis in range(rank) if axis not in pair]
    along = torch.arange(shape[-1])
    picks = [along + max(-offset, 0), along + max(offset, 0)]
    x = permute(x, [*others, *pair])
    return _picked_at(x, [None] * len(others) + picks, [rank - 2, rank - 1], shape) or _picked(call, x)


def _seen(call: Call, x: State, *rest: Any, **kwargs: Any) -> torch.Tensor | None:
    """Return whether a mask lets each of the elements through that known indices pick; None elsewhere."""
    given = [item for arg in (*rest, *kwargs.values()) for item in (arg if isinstance(arg, (list, tuple)) else [arg])]
    if x.mask is None or any(isinstance(item, (State, Unknown)) for item in given):
        return None
    arguments = len(call.node.op._schema.arguments) - 1 - len(kwargs)
    seen: torch.Tensor = call.node.op(x.mask.expand(x.shape), *rest[:arguments], **kwargs)
    return seen


def _shown(picked: State, x: State, seen: torch.Tensor) -> State:
    """Return elements picked from scores that a mask shuts out in part: those that are shut out are its numbers."""
    return picked if bool(seen.all()) else shut_out(picked, seen, outside(x))


def _picked_at(x: State, indices: Any, where: list[int], shape: tuple[int, ...]) -> State | None:
    """Return elements picked by indices of neighbouring axes together (a triangle of a matrix, tokens of each sample),
    else None; the other axes stay as they are.
    """
    picks = [indices[axis] for axis in where]
    if len(where) < 2 or where != list(range(where[0], where[-1] + 1)):
        return None
    if any(getattr(item, "dtype", torch.bool) == torch.bool for item in picks):
        return None
    first, after = where[0], x.shape[where[-1] + 1 :]
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


def picked_along(
    x: State,
    axis: int,
    index_shape: tuple[int, ...],
    shape: tuple[int, ...],
    names: torch.Tensor | None = None,
    *,
    once: bool = False,
) -> State:
    """Return elements picked by index along one axis, each as that which it is where the index (``names``) is known;
    the other axes stay as they are. With ``once`` picks of one element stand for different ones.
    """
    x = merge_atoms(x, axis) if len(x.axes[axis]) > 1 else pooled(x)
    flat, i = math.prod(index_shape), x.axes[axis][0]
    size = x.lengths[i]
    places = None if names is None else array_of(names, torch.int64) % size
    if places is not None and _by_pair(x.corr, i, places, once):
        return reshape(mapped(x, axis, np.eye(size)[places], pairs=True), shape)
    if places is None:
        mean = x.mean.mean(axis=i, keepdims=True)
        var = np.maximum((x.mean**2 + x.var).mean(axis=i, keepdims=True) - mean**2, 0.0)
        # two picks hit the same element with probability 1/size when there are more picks than elements
        chance = 1.0 / size if flat > size else 0.0
    else:
        mean, var = (np.take(m, places, axis=i) if m.shape[i] > 1 else m for m in (x.mean, x.var))
        times = np.bincount(places, minlength=size) if not once else np.ones(1)
        chance = float((times * (times - 1.0)).sum()) / max(flat * (flat - 1), 1)
    other = kernels.off_diagonal_mean(x.corr, x.lengths, i)
    same = np.take(x.corr, [0], axis=i)
    parts = [same, other + chance * (same - other)] if flat > 1 and (other.any() or chance) else [same]
    gone = [i] if flat == 1 else []
    moments = {"mean": mean, "var": var, "corr": np.concatenate(parts, axis=i)}
    state = x.changed(
        layout=x.layout.resized(i, flat).without(gone),
        **{name: kernels.without(array, gone) for name, array in moments.items()},  # type: ignore[arg-type]
        marginal=sizes_of_picks(x, i, gone, apart=places is None),
        links=() if places is None else picked_links(x, i, places, gone),
    )
    return reshape(state, shape)


def _by_pair(corr: Array, atom: int, places: Indices, once: bool) -> bool:
    """Whether pairs of what is picked are told apart: where some pick the same, or pairs were told apart before."""
    if not kernels.LEAST <= places.size <= kernels.MOST:
        return False
    return bool(kernels.positions(corr.shape[atom])) or (not once and np.unique(places).size < places.size)


def _picked(call: Call, x: State) -> State:
    """Elements picked anyhow: pooled moments, and the correlation of an average pair."""
    shape = call.shape()
    if x.shape == shape and not x.mean.any():
        return pooled(x).changed(links=(), base=None, fn=None)
    total = 1
    for n in x.lengths:
        total *= n
    covariance = float(kernels.pair_mean(x.covariance(), x.lengths).ravel()[0]) if total > 1 else 0.0
    var = kernels.average(x.var)
    rho = max((covariance * total - var) / max(total - 1, 1), 0.0) / var if var > 0 else 0.0
    state = exchangeable(shape, x.pooled_mean, x.pooled_var, rho if rho > 1e-3 else 0.0)
    return state.amended(roots=x.roots | call.root(), spread=x.spread, tag=x.tag, scale_parameter=x.scale_parameter)


@rule(overloads("unfold.default"), source="definition: every element at each tap that reads it", tensors=True)
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


@rule(overloads("channel_shuffle.default"), source="definition: channels are alike", tensors=True)
def shuffle(call: Call, x: State, groups: int) -> State:
    """Channels in another order."""
    return x


def _blank(call: Call, *rest: Any, **kwargs: Any) -> State:
    """A tensor whose content does not depend on the input."""
    name = call.node.op._schema.name.removeprefix("aten::")
    value = 1.0 if "ones" in name else 0.0
    if "full" in name or name == "fill_":
        numbers = [r for r in rest if isinstance(r, (int, float))]
        value = float(numbers[-1]) if numbers else 0.0
        value = value if np.isfinite(value) else 0.0
    return make_state(call.shape(), value, 0.0)


rule(
    overloads(
        "zeros_like.default", "ones_like.default", "empty_like.default", "new_zeros.default", "new_ones.default",
        "new_empty.default", "zeros.default", "ones.default", "empty.memory_format", "new_full.default",
        "full_like.default", "full.default", "zero_.default", "fill_.Scalar", "scalar_tensor.default",
        "_efficientzerotensor.default",
    ),
    family="shape",
    source="definition", tensors=True
)(_blank)  # fmt: skip
