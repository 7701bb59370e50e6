"""Views, copies and casts: the same elements in another order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from wellposed.signals.algebra.arithmetic import mixture, operand
from wellposed.signals.algebra.maps import from_sources
from wellposed.signals.context.arguments import known_state
from wellposed.signals.context.call import Call, Unknown
from wellposed.signals.distributions.blocks import concatenate, select
from wellposed.signals.distributions.state import State, exchangeable, make_state
from wellposed.signals.distributions.views import expand, merge_atoms, permute, pooled, reshape
from wellposed.signals.integration import kernels
from wellposed.signals.integration.windows import Indices
from wellposed.signals.registry import overloads, rule

_SAME = (
    "contiguous.default", "clone.default", "to.dtype", "to.device", "to.dtype_layout", "to.other", "_to_copy.default",
    "type_as.default", "lift_fresh_copy.default",
)  # fmt: skip


@rule(overloads(*_SAME), source="definition", blockwise=False, tensors=True)
def same(call: Call, x: Any, *rest: Any, **kwargs: Any) -> State | None:
    """The same values."""
    if isinstance(x, torch.Tensor):
        return known_state(x.to(torch.float64), call.root())
    if isinstance(x, Unknown):
        x = x.state
    return x if isinstance(x, State) and x.shape == call.shape() else None


@rule(
    overloads(
        "view.default", "reshape.default", "_unsafe_view.default", "flatten.using_ints", "unflatten.int",
        "view_as.default", "reshape_as.default", "squeeze.default", "squeeze.dim", "squeeze.dims", "squeeze_.dims",
        "squeeze_.dim", "unsqueeze.default", "unsqueeze_.default", "ravel.default",
    ),
    source="definition", tensors=True
)  # fmt: skip
def regroup(call: Call, x: State, *rest: Any, **kwargs: Any) -> State:
    """Elements keep their order; only the axes change."""
    return reshape(x, call.shape())


@rule(
    overloads("t.default", "numpy_T.default", "mT.default", "mH.default", "matrix_H.default", "t_.default"),
    source="definition",
    tensors=True,
)
def transpose_matrix(call: Call, x: State) -> State:
    """Swap the last two axes (all axes, for numpy_T)."""
    rank = len(x.axes)
    if rank < 2:
        return x
    if call.node.op is torch.ops.aten.numpy_T.default:
        return permute(x, list(range(rank))[::-1])
    return permute(x, [*range(rank - 2), rank - 1, rank - 2])


@rule(
    overloads("transpose.int", "transpose_.default", "swapaxes.default", "swapdims.default"),
    source="definition",
    tensors=True,
)
def transpose(call: Call, x: State, first: int, second: int) -> State:
    """Swap two axes."""
    order = list(range(len(x.axes)))
    order[first], order[second] = order[second], order[first]
    return permute(x, order)


@rule(overloads("permute.default"), source="definition", tensors=True)
def permuted(call: Call, x: State, dims: Any) -> State:
    """Reorder axes."""
    return permute(x, dims)


@rule(overloads("movedim.int", "movedim.intlist"), source="definition", tensors=True)
def movedim(call: Call, x: State, source: Any, destination: Any) -> State:
    """Move axes."""
    rank = len(x.axes)
    sources = [s % rank for s in (source if isinstance(source, (list, tuple)) else [source])]
    targets = [d % rank for d in (destination if isinstance(destination, (list, tuple)) else [destination])]
    order: list[int | None] = [None] * rank
    for s, d in zip(sources, targets, strict=True):
        order[d] = s
    rest = iter(i for i in range(rank) if i not in sources)
    return permute(x, [next(rest) if i is None else i for i in order])


@rule(overloads("expand.default", "expand_as.default"), source="definition", tensors=True)
def expanded(call: Call, x: State, *rest: Any, **kwargs: Any) -> State:
    """Repeat along new or single indices: perfectly correlated there."""
    return expand(x, call.shape())


@rule(overloads("broadcast_tensors.default"), source="definition", tensors=True)
def broadcast(call: Call, tensors: Any) -> tuple[State, ...]:
    """Every tensor expanded to their common shape."""
    return tuple(expand(_as_state(call, t), call.shape(i)) for i, t in enumerate(tensors))


@rule(overloads("select.int"), source="definition", tensors=True)
def pick(call: Call, x: State, dim: int, index: Any) -> State:
    """One index of an axis."""
    size = x.shape[dim]
    at = int(index) % size if not isinstance(index, State) else 0
    return _part(call, x, select(x, dim, at, at + 1, 1, drop=True), dim)


def _part(call: Call, whole: State, part: State, dim: int) -> State:
    """Parts of an axis of uncorrelated elements are independent of each other."""
    if part is whole:
        return part
    members = whole.axes[dim % len(whole.axes)]
    correlated = any(whole.corr.shape[i] > 1 for i in members)
    return part if correlated or not whole.roots else part.amended(roots=part.roots | call.root())


@rule(overloads("slice.Tensor", "narrow.default"), source="definition; AutoInit, Appendix A (crop)", tensors=True)
def cut(call: Call, x: State, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> State:
    """A stretch of an axis."""
    size = x.shape[dim]
    if call.node.op is torch.ops.aten.narrow.default:
        low, high = int(start) % size, int(start) % size + int(end)
    else:
        low, high, step = slice(start, end, step).indices(size)
    return _part(call, x, select(x, dim, low, high, step, drop=False), dim)


@rule(
    overloads(
        "chunk.default",
        "split.Tensor",
        "split_with_sizes.default",
        "tensor_split.sections",
        "tensor_split.indices",
        "split.sizes",
    ),
    source="definition; AutoInit, Appendix A (split)",
    tensors=True,
)
def split(call: Call, x: State, sizes: Any = None, dim: int = 0) -> tuple[State, ...]:
    """Consecutive stretches of an axis."""
    parts, at = [], 0
    for index in range(len(call.node.outputs)):
        width = call.shape(index)[dim]
        parts.append(_part(call, x, select(x, dim, at, at + width, 1, drop=False), dim))
        at += width
    return tuple(parts)


@rule(overloads("unbind.int"), source="definition", tensors=True)
def unbind(call: Call, x: State, dim: int = 0) -> tuple[State, ...]:
    """Every index of an axis."""
    return tuple(_part(call, x, select(x, dim, at, at + 1, 1, drop=True), dim) for at in range(len(call.node.outputs)))


def _as_state(call: Call, value: Any) -> State:
    found = operand(call, value)
    return found if isinstance(found, State) else make_state((), found, 0.0)


@rule(
    overloads("cat.default", "concat.default", "concatenate.default"),
    source="definition; AutoInit, Appendix A (concatenate)",
    tensors=True,
)
def cat(call: Call, tensors: Any, dim: int = 0) -> State:
    """Tensors behind each other."""
    parts = [_as_state(call, t) for t in tensors]
    rank = len(call.shape())
    parts = [p for p in parts if len(p.axes) == rank and p.shape[dim] > 0]
    return concatenate(parts, dim)


@rule(overloads("stack.default"), source="definition", tensors=True)
def stack(call: Call, tensors: Any, dim: int = 0) -> State:
    """Tensors along a new axis."""
    rank = len(call.shape())
    at = dim % rank
    parts = []
    for tensor in tensors:
        state = _as_state(call, tensor)
        parts.append(reshape(state, (*state.shape[:at], 1, *state.shape[at:])))
    return concatenate(parts, at)


@rule(overloads("flip.default"), source="definition", tensors=True)
def flip(call: Call, x: State, dims: Any) -> State:
    """Positions in reverse: maps are reversed, correlations by displacement stay."""
    for dim in dims:
        x = _reordered(x, dim, np.arange(x.shape[dim])[::-1])
    return x


@rule(overloads("roll.default"), source="definition", tensors=True)
def roll(call: Call, x: State, shifts: Any, dims: Any = ()) -> State:
    """Positions shifted in a circle: neighbours across the seam are far from each other."""
    shifts = shifts if isinstance(shifts, (list, tuple)) else [shifts]
    if not dims:  # all axes as one
        return reshape(
            _reordered(reshape(x, (math.prod(x.shape),)), 0, np.roll(np.arange(math.prod(x.shape)), shifts[0])), x.shape
        )
    for shift, dim in zip(shifts, dims if isinstance(dims, (list, tuple)) else [dims], strict=True):
        x = _reordered(x, dim, np.roll(np.arange(x.shape[dim]), shift))
    return x


def _reordered(x: State, axis: int, source: Indices) -> State:
    """Return the state whose position p along an axis is position ``source[p]`` of x."""
    x = merge_atoms(x, axis) if len(x.axes[axis]) > 1 else pooled(x)
    if not x.axes[axis]:
        return x
    i = x.axes[axis][0]
    corr = x.corr
    if corr.shape[i] > 2 and (np.abs(np.diff(source)) != 1).any():
        corr = from_sources(corr, i, source)
    mean, var = (np.take(m, source, axis=i) if m.shape[i] > 1 else m for m in (x.mean, x.var))
    return x.changed(mean=mean, var=var, corr=corr, base=None, fn=None, links=())


@rule(overloads("repeat.default", "tile.default", "repeat_interleave.self_int"), source="definition", tensors=True)
def repeated(call: Call, x: State, *rest: Any, **kwargs: Any) -> State:
    """Copies along axes: equal elements at different positions."""
    x = pooled(x)
    shape = call.shape()
    have = (1,) * (len(shape) - len(x.shape)) + x.shape
    if all(a in (1, b) for a, b in zip(have, shape, strict=True)):
        return expand(reshape(x, have), shape)
    inner = call.node.op is torch.ops.aten.repeat_interleave.self_int
    wide, narrow = [], []
    for a, b in zip(have, shape, strict=True):
        copies = b // max(a, 1)
        narrow += [a, 1] if inner else [1, a]
        wide += [a, copies] if inner else [copies, a]
    return reshape(expand(reshape(x, have and tuple(narrow)), tuple(wide)), shape)


@rule(
    overloads("gather.default", "index_select.default", "take_along_dim.default"),
    tag="approximate",
    source="elements picked by index, alike",
    tensors=True,
)
def gather(call: Call, x: State, *rest: Any, **kwargs: Any) -> State:
    """Elements picked by an index: same moments, correlations of a random pair."""
    return _picked(call, x)


@rule(overloads("index.Tensor"), tag="approximate", source="elements picked by index, alike", tensors=True)
def index(call: Call, x: Any, indices: Any) -> State | None:
    """Advanced indexing: axes without an index are kept, the others are picked from."""
    if not isinstance(x, State):
        return None
    where = [i for i, item in enumerate(indices) if item is not None]
    if len(where) == 1:
        axis = where[0]
        item = indices[axis]
        shape = call.shape()
        if hasattr(item, "shape") and getattr(item, "dtype", None) != torch.bool and x.axes[axis]:
            return _picked_axis(call, x, axis, tuple(item.shape), shape)
    return _picked(call, x)


def _picked_axis(call: Call, x: State, axis: int, index_shape: tuple[int, ...], shape: tuple[int, ...]) -> State:
    """Pick along one axis: the other axes stay as they are."""
    x = merge_atoms(x, axis) if len(x.axes[axis]) > 1 else pooled(x)
    flat = 1
    for n in index_shape:
        flat *= n
    i = x.axes[axis][0]
    size = x.sizes[i]
    mean = x.mean.mean(axis=i, keepdims=True)
    second = (x.mean**2 + x.var).mean(axis=i, keepdims=True)
    other = kernels.off_diagonal_mean(x.corr, x.sizes, i)
    same = np.take(x.corr, [0], axis=i)
    # two picks hit the same element with probability 1/size when there are more picks than elements
    chance = 1.0 / size if flat > size else 0.0
    corr = (
        np.concatenate([same, other + chance * (same - other)], axis=i)
        if flat > 1 and (other.any() or chance)
        else same
    )
    if flat == 1:
        keep = [k for k in range(len(x.sizes)) if k != i]
        where = {old: new for new, old in enumerate(keep)}
        axes = tuple(tuple(where[k] for k in ax if k != i) for ax in x.axes)
        state = x.changed(
            sizes=tuple(x.sizes[k] for k in keep), axes=axes, mean=np.squeeze(mean, i),
            var=np.squeeze(np.maximum(second - mean**2, 0.0), i), corr=np.squeeze(corr, i),
            base=None, fn=None, links=(),
        )  # fmt: skip
    else:
        sizes = tuple(flat if k == i else a for k, a in enumerate(x.sizes))
        state = x.changed(
            sizes=sizes, mean=mean, var=np.maximum(second - mean**2, 0.0), corr=corr, base=None, fn=None, links=()
        )
    return reshape(state, shape)


def _picked(call: Call, x: State) -> State:
    """Elements picked anyhow: pooled moments, and the correlation of an average pair."""
    shape = call.shape()
    if x.shape == shape and not x.mean.any():
        return pooled(x).changed(links=(), base=None, fn=None)
    total = 1
    for n in x.sizes:
        total *= n
    covariance = float(kernels.pair_mean(x.covariance(), x.sizes).ravel()[0]) if total > 1 else 0.0
    var = kernels.average(x.var)
    rho = max((covariance * total - var) / max(total - 1, 1), 0.0) / var if var > 0 else 0.0
    state = exchangeable(shape, x.pooled_mean, x.pooled_var, rho if rho > 1e-3 else 0.0)
    return state.amended(roots=x.roots | call.root(), inherited=x.inherited, own=x.own, tag=x.tag, lever=x.lever)


@rule(
    overloads(
        "copy_.default", "index_put_.default", "index_put.default", "masked_fill.Tensor", "masked_scatter.default",
        "slice_scatter.default", "select_scatter.default", "scatter.src",
    ),
    torch.ops.wellposed.view_write.default,
    tag="approximate",
    source="mixture of two signals", tensors=True
)  # fmt: skip
def write(call: Call, x: Any, *rest: Any, **kwargs: Any) -> State | None:
    """Part of a tensor is overwritten: a mixture by the shares of positions."""
    name = call.node.op._schema.name.rpartition("::")[2]
    if name == "copy_":
        source = operand(call, rest[0])
        if isinstance(source, float):
            return make_state(call.shape(), source, 0.0)
        return source if source.shape == call.shape() else expand(source, call.shape())
    target = operand(call, x)
    sources = [r for r in rest if isinstance(r, State)]
    if not sources or not isinstance(target, State):
        return None
    source = sources[-1]
    total = math.prod(call.shape())
    share = min(_written(name, rest, source, target) / max(total, 1), 1.0)
    whole = make_state(call.shape(), source.pooled_mean, source.pooled_var, roots=source.roots, tag=source.tag)
    return mixture(call, whole, target, share)


def _written(name: str, rest: tuple[Any, ...], source: State, target: State) -> float:
    """Return how many elements are overwritten."""
    total = math.prod(target.shape)
    if name.startswith("masked"):
        return _share_of(rest[0]) * total
    if name.startswith("index_put"):
        count = float(total)
        picked = [(axis, item) for axis, item in enumerate(rest[0]) if item is not None]
        for axis, item in picked:
            sizes = target.shape[axis : axis + len(item.shape)] if item.dtype == torch.bool else (target.shape[axis],)
            count /= math.prod(sizes)
        masks = [_share_of(item) * math.prod(item.shape) for _, item in picked if item.dtype == torch.bool]
        places = [math.prod(item.shape) for _, item in picked if item.dtype != torch.bool]
        return count * max([*masks, *places], default=1)
    if name == "scatter":
        return float(math.prod(rest[1].shape))
    return math.prod(source.shape)


def _share_of(mask: Any) -> float:
    """Share of a mask that holds; a half where its values are not known."""
    return float(mask.double().mean()) if isinstance(mask, torch.Tensor) and mask.numel() else 0.5


@rule(overloads("unfold.default"), source="definition, windows as elements picked alike", tensors=True)
def unfold(call: Call, x: State, dimension: int, size: int, step: int) -> State:
    """Windows of one axis, laid out along a new one."""
    rank = len(x.shape)
    axis = dimension % rank
    if size == step:  # windows side by side: the axis is cut
        count = call.shape()[axis]
        x = select(x, axis, 0, count * size, 1, drop=False)
        cut_up = reshape(x, (*x.shape[:axis], count, size, *x.shape[axis + 1 :]))
        return permute(cut_up, [*(i for i in range(rank + 1) if i != axis + 1), axis + 1])
    return _picked(call, x)


@rule(
    overloads("pixel_shuffle.default", "pixel_unshuffle.default", "channel_shuffle.default"),
    source="definition",
    tensors=True,
)
def shuffle(call: Call, x: State, factor: int) -> State:
    """Exchange channels and positions: neighbours come from different channels."""
    n, c, h, w = x.shape
    name = call.node.op._schema.name
    if "channel_shuffle" in name:
        return x
    if "unshuffle" in name:
        split = reshape(pooled(x), (n, c, h // factor, factor, w // factor, factor))
        return reshape(permute(split, [0, 1, 3, 5, 2, 4]), call.shape())
    split = reshape(pooled(x), (n, c // factor**2, factor, factor, h, w))
    return reshape(permute(split, [0, 1, 4, 2, 5, 3]), call.shape())


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
