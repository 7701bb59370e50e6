"""What torch runs for each primitive of JAX.

A rule takes the operands, tensors or Python numbers, and by name what the primitive is bound with, and returns a tensor
or several. Keys of random generators are zeros of their shape: numbers come from torch's own generator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from wellposed.errors import OptionError, UnsupportedError
from wellposed.frontends.jax.dtypes import torch_dtype

Rule = Callable[..., Any]

RULES: dict[str, Rule] = {}
"""Rules by name of the primitive, or of the function of JAX that is one step (`program.NAMED`)."""

NUMBERS: set[str] = set()
"""Names of the rules that take Python numbers; others are given tensors."""

def rule(name: str, *, numbers: bool = False) -> Callable[[Rule], Rule]:
    """Register what torch runs for a primitive of JAX; a rule that was there is replaced.

    >>> @rule("my_primitive")  # doctest: +SKIP
    ... def _(x, *, factor):
    ...     return x * factor

    Args:
        name: of the primitive (``primitive.name``).
        numbers: whether the rule takes operands that are Python numbers; else they come as tensors.

    Returns:
        A decorator. The function takes the primitive's operands as tensors, and the parameters that it is bound with by
        name; it returns a tensor, or a sequence for a primitive of several results.

    Raises:
        OptionError: the name is no string.
    """
    if not isinstance(name, str):
        raise OptionError(f"a rule is registered by the name of a primitive, received {name!r}; pass primitive.name")

    def register(function: Rule) -> Rule:
        RULES[name] = function
        (NUMBERS.add if numbers else NUMBERS.discard)(name)
        return function

    return register


# ---- one number at a time -------------------------------------------------------------------------------------------


def _dropping(function: Rule) -> Rule:
    """Return a rule that calls a function of tensors and leaves the primitive's parameters aside."""

    def call(*operands: Any, **_params: Any) -> Any:
        return function(*operands)

    return call


_ELEMENTWISE: dict[str, Rule] = {
    "abs": torch.abs, "acos": torch.acos, "acosh": torch.acosh, "add": torch.add, "add_any": torch.add,
    "asin": torch.asin, "asinh": torch.asinh, "atan": torch.atan, "atanh": torch.atanh,
    "ceil": torch.ceil, "conj": torch.conj, "cos": torch.cos, "cosh": torch.cosh, "digamma": torch.digamma, "div": torch.div, "eq": torch.eq,
    "erf": torch.erf, "erfc": torch.erfc, "erf_inv": torch.erfinv, "exp": torch.exp, "exp2": torch.exp2,
    "expm1": torch.expm1, "floor": torch.floor, "ge": torch.ge, "gt": torch.gt, "imag": torch.imag,
    "is_finite": torch.isfinite, "le": torch.le, "lgamma": torch.lgamma, "log": torch.log, "log1p": torch.log1p,
    "logistic": torch.sigmoid, "lt": torch.lt, "mul": torch.mul, "ne": torch.ne, "neg": torch.neg, "pow": torch.pow,
    "real": torch.real, "rem": torch.fmod, "rsqrt": torch.rsqrt, "sign": torch.sign, "sin": torch.sin,
    "sinh": torch.sinh, "sqrt": torch.sqrt, "square": torch.square, "stop_gradient": torch.Tensor.detach,
    "sub": torch.sub, "tan": torch.tan, "tanh": torch.tanh,
}  # fmt: skip
for _name, _function in _ELEMENTWISE.items():
    rule(_name, numbers=True)(_dropping(_function))
for _name, _function in (("atan2", torch.atan2), ("complex", torch.complex), ("nextafter", torch.nextafter)):
    rule(_name)(_dropping(_function))

_LOGICAL: dict[str, tuple[Rule, Rule]] = {
    "and": (torch.logical_and, torch.bitwise_and),
    "or": (torch.logical_or, torch.bitwise_or),
    "xor": (torch.logical_xor, torch.bitwise_xor),
}


def _logical(of_truths: Rule, of_bits: Rule) -> Rule:
    def call(a: Tensor, b: Tensor, **_params: Any) -> Any:
        return (of_truths if a.dtype == torch.bool else of_bits)(a, b)

    return call


for _name, _pair in _LOGICAL.items():
    rule(_name)(_logical(*_pair))


@rule("not")
def _not(x: Tensor, **_params: Any) -> Tensor:
    return torch.logical_not(x) if x.dtype == torch.bool else torch.bitwise_not(x)


@rule("shift_left", numbers=True)
def _shift_left(x: Any, y: Any) -> Any:
    return x << y


@rule("shift_right_logical", numbers=True)
@rule("shift_right_arithmetic", numbers=True)
def _shift_right(x: Any, y: Any) -> Any:
    return x >> y


@rule("div", numbers=True)
def _div(x: Any, y: Any) -> Any:
    if any(isinstance(value, float) or _is_inexact(value) for value in (x, y)):
        return _two(torch.div, x, y)
    return torch.div(x, y, rounding_mode="trunc")


def _is_inexact(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def _two(function: Rule, x: Any, y: Any) -> Any:
    """Call a function whose first argument must be a tensor."""
    return function(x if isinstance(x, Tensor) else torch.full_like(y, x), y)


@rule("sub", numbers=True)
def _sub(x: Any, y: Any) -> Any:
    return x - y


@rule("max", numbers=True)
def _max(x: Any, y: Any) -> Any:
    if not isinstance(x, Tensor):
        x, y = y, x
    if isinstance(y, Tensor):
        return torch.maximum(x, y)
    return torch.relu(x) if y == 0 and x.is_floating_point() else torch.clamp(x, min=y)


@rule("min", numbers=True)
def _min(x: Any, y: Any) -> Any:
    if not isinstance(x, Tensor):
        x, y = y, x
    return torch.minimum(x, y) if isinstance(y, Tensor) else torch.clamp(x, max=y)


@rule("clamp", numbers=True)
def _clamp(least: Any, x: Tensor, most: Any) -> Tensor:
    if isinstance(least, Tensor) or isinstance(most, Tensor):
        return torch.minimum(torch.maximum(x, torch.as_tensor(least)), torch.as_tensor(most))
    return torch.clamp(x, least, most)


def _swapped(function: Rule, mirror: Rule) -> Rule:
    """Return a comparison that takes a number first as well."""

    def call(x: Any, y: Any, **_params: Any) -> Any:
        return function(x, y) if isinstance(x, Tensor) else mirror(y, x)

    return call


for _name, _function, _mirror in (
    ("add", torch.add, torch.add),
    ("mul", torch.mul, torch.mul),
    ("eq", torch.eq, torch.eq),
    ("ne", torch.ne, torch.ne),
    ("lt", torch.lt, torch.gt),
    ("le", torch.le, torch.ge),
    ("gt", torch.gt, torch.lt),
    ("ge", torch.ge, torch.le),
):
    rule(_name, numbers=True)(_swapped(_function, _mirror))


@rule("integer_pow")
def _integer_pow(x: Tensor, *, y: int) -> Tensor:
    return torch.square(x) if y == 2 else torch.pow(x, y)


@rule("cbrt")
def _cbrt(x: Tensor, **_params: Any) -> Tensor:
    return torch.sign(x) * torch.abs(x) ** (1 / 3)


@rule("round")
def _round(x: Tensor, *, rounding_method: Any) -> Tensor:
    if int(rounding_method) == 0:  # halves away from zero
        return torch.trunc(x + 0.5 * torch.sign(x))
    return torch.round(x)


@rule("logaddexp", numbers=True)
def _logaddexp(x: Any, y: Any, **_params: Any) -> Any:
    if not isinstance(y, Tensor) and y == 0:
        return functional.softplus(x)
    return _two(torch.logaddexp, x, y)


@rule("select_n", numbers=True)
def _select_n(which: Tensor, *cases: Any) -> Any:
    if which.dtype == torch.bool:
        otherwise, chosen = cases
        return torch.where(which, chosen, otherwise)
    result = cases[0]
    for index, case in enumerate(cases[1:], 1):
        result = torch.where(which == index, case, result)
    return result


@rule("convert_element_type")
def _convert(x: Tensor, *, new_dtype: Any, **_params: Any) -> Tensor:
    return x.to(torch_dtype(new_dtype))


@rule("copy")
@rule("copy_p")
@rule("reduce_precision")
@rule("sharding_constraint")
def _same(x: Tensor, **_params: Any) -> Tensor:
    return x


@rule("device_put")
@rule("optimization_barrier")
def _all_the_same(*operands: Tensor, **_params: Any) -> tuple[Tensor, ...]:
    return operands


# ---- elements in other places ---------------------------------------------------------------------------------------


@rule("reshape")
def _reshape(x: Tensor, *, new_sizes: Sequence[int], **_params: Any) -> Tensor:
    return x.reshape(tuple(new_sizes))


@rule("squeeze")
def _squeeze(x: Tensor, *, dimensions: Sequence[int]) -> Tensor:
    return x.reshape([size for axis, size in enumerate(x.shape) if axis not in dimensions])


@rule("transpose")
def _transpose(x: Tensor, *, permutation: Sequence[int]) -> Tensor:
    return x.permute(tuple(permutation))


@rule("broadcast_in_dim")
def _broadcast(
    x: Tensor, *_sizes: Any, shape: Sequence[int], broadcast_dimensions: Sequence[int], **_params: Any
) -> Tensor:
    spread = [1] * len(shape)
    for axis, place in enumerate(broadcast_dimensions):
        spread[place] = x.shape[axis]
    spread_x = x if tuple(spread) == tuple(x.shape) else x.reshape(spread)
    return spread_x if tuple(spread) == tuple(shape) else spread_x.expand(tuple(shape))


@rule("slice")
def _slice(
    x: Tensor, *, start_indices: Sequence[int], limit_indices: Sequence[int], strides: Sequence[int] | None
) -> Tensor:
    steps = strides or [1] * x.ndim
    parts = [slice(*part) for part in zip(start_indices, limit_indices, steps, strict=True)]
    for axis, part in enumerate(parts):
        if part != slice(0, x.shape[axis], 1):
            x = x[(slice(None),) * axis + (part,)]
    return x


@rule("dynamic_slice")
def _dynamic_slice(x: Tensor, *starts: Tensor, slice_sizes: Sequence[int]) -> Tensor:
    for axis, (start, size) in enumerate(zip(starts, slice_sizes, strict=True)):
        if size != x.shape[axis]:
            x = x.narrow(axis, max(0, min(int(start), x.shape[axis] - size)), size)
    return x


@rule("dynamic_update_slice")
def _dynamic_update_slice(x: Tensor, update: Tensor, *starts: Tensor) -> Tensor:
    written = x.clone()
    places = []
    for start, whole, size in zip(starts, x.shape, update.shape, strict=True):
        first = 0 if whole == size else max(0, min(int(start), whole - size))
        places.append(slice(first, first + size))
    written[tuple(places)] = update
    return written


@rule("concatenate")
def _concatenate(*parts: Tensor, dimension: int) -> Tensor:
    return torch.cat(parts, dimension)


@rule("tile")
def _tile(x: Tensor, *, reps: Sequence[int]) -> Tensor:
    return x.repeat(tuple(reps))


@rule("split")
def _split(x: Tensor, *, sizes: Sequence[int], axis: int) -> Sequence[Tensor]:
    return torch.split(x, list(sizes), axis)


@rule("rev")
def _rev(x: Tensor, *, dimensions: Sequence[int]) -> Tensor:
    return x.flip(tuple(dimensions))


@rule("pad")
def _pad(x: Tensor, value: Tensor, *, padding_config: Sequence[tuple[int, int, int]]) -> Tensor:
    for axis, (_, _, interior) in enumerate(padding_config):
        if interior:
            apart = x.unsqueeze(axis + 1)
            apart = functional.pad(apart, _last_first([0] * (axis + 1) + [interior], apart.ndim), value=value.item())
            x = apart.flatten(axis, axis + 1).narrow(axis, 0, apart.shape[axis] * (interior + 1) - interior)
    edges: list[int] = []
    for low, high, _ in reversed(padding_config):
        edges += [low, high]
    return functional.pad(x, edges, value=value.item()) if any(edges) else x


def _last_first(after: Sequence[int], rank: int) -> list[int]:
    """Return what `torch.nn.functional.pad` takes to add elements after each axis."""
    edges: list[int] = []
    for high in reversed([*after, *[0] * (rank - len(after))]):
        edges += [0, high]
    return edges


@rule("iota")
def _iota(*, dtype: Any, shape: Sequence[int], dimension: int, **_params: Any) -> Tensor:
    spread = [1] * len(shape)
    spread[dimension] = shape[dimension]
    return torch.arange(shape[dimension], dtype=torch_dtype(dtype)).reshape(spread).expand(tuple(shape))


@rule("gather")
def _gather(
    x: Tensor, indices: Tensor, *, dimension_numbers: Any, slice_sizes: Sequence[int], **_params: Any
) -> Tensor:
    numbers = dimension_numbers
    whole = [size == x.shape[axis] for axis, size in enumerate(slice_sizes)]
    mapped = tuple(numbers.start_index_map)
    batch = indices.shape[:-1]
    single = len(mapped) == 1 and tuple(numbers.collapsed_slice_dims) == mapped and not numbers.operand_batching_dims
    if single and all(is_whole for axis, is_whole in enumerate(whole) if axis != mapped[0]):
        (axis,) = mapped
        rows = indices.squeeze(-1).clamp(0, x.shape[axis] - 1)
        in_place = tuple(numbers.offset_dims) == tuple(
            place for place in range(x.ndim - 1 + len(batch)) if not axis <= place < axis + len(batch)
        )
        if in_place and axis == 0 and x.ndim == 2:
            return functional.embedding(rows, x)
        if in_place:
            return x.index_select(axis, rows.flatten()).reshape(*x.shape[:axis], *batch, *x.shape[axis + 1 :])
    rank = len(batch) + len(numbers.offset_dims)
    return x[_positions(x.shape, indices, numbers, tuple(numbers.offset_dims), tuple(slice_sizes), rank)]


def _positions(
    shape: Sequence[int],
    indices: Tensor,
    numbers: Any,
    window_dims: tuple[int, ...],
    sizes: tuple[int, ...],
    rank: int,
) -> tuple[Tensor, ...]:
    """Return for each axis of an operand where the elements of slices lie: of a gather's result, a scatter's updates.

    Args:
        shape: the operand's.
        indices: where slices start; the last axis holds the axes that are indexed.
        numbers: the primitive's ``dimension_numbers``.
        window_dims: the axes of result or updates that run through a slice.
        sizes: of a slice, along every axis of the operand.
        rank: of result or updates.
    """
    mapped = getattr(numbers, "start_index_map", None) or getattr(numbers, "scatter_dims_to_operand_dims", ())
    dropped = getattr(numbers, "collapsed_slice_dims", None)
    dropped = getattr(numbers, "inserted_window_dims", ()) if dropped is None else dropped
    batching = tuple(numbers.operand_batching_dims)
    partners = getattr(numbers, "start_indices_batching_dims", None)
    partners = getattr(numbers, "scatter_indices_batching_dims", ()) if partners is None else partners
    batch_dims = [axis for axis in range(rank) if axis not in window_dims]

    def along(vector: Tensor, axes: Sequence[int]) -> Tensor:
        spread = [1] * rank
        for axis, size in zip(axes, vector.shape, strict=True):
            spread[axis] = size
        return vector.reshape(spread)

    windows = iter(window_dims)
    places: list[Tensor] = []
    for axis, size in enumerate(sizes):
        place = torch.zeros([1] * rank, dtype=torch.int64)
        if axis in mapped:
            start = indices[..., tuple(mapped).index(axis)].to(torch.int64).clamp(0, shape[axis] - size)
            place = place + along(start, batch_dims)
        if axis in batching:
            partner = tuple(partners)[batching.index(axis)]
            place = place + along(torch.arange(shape[axis]), [batch_dims[partner]])
        elif axis not in dropped:
            place = place + along(torch.arange(size), [next(windows)])
        places.append(place)
    return tuple(places)


def _scatter(accumulates: bool) -> Rule:
    def call(x: Tensor, indices: Tensor, updates: Tensor, *, dimension_numbers: Any, **_params: Any) -> Tensor:
        numbers = dimension_numbers
        windows = iter(numbers.update_window_dims)
        dropped = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
        sizes = tuple(1 if axis in dropped else updates.shape[next(windows)] for axis in range(x.ndim))
        places = _positions(x.shape, indices, numbers, tuple(numbers.update_window_dims), sizes, updates.ndim)
        return x.index_put(tuple(torch.broadcast_tensors(*places)), updates, accumulate=accumulates)

    return call


rule("scatter")(_scatter(accumulates=False))
for _name in ("scatter-add", "scatter_add"):
    rule(_name)(_scatter(accumulates=True))


# ---- many numbers to few --------------------------------------------------------------------------------------------


@rule("reduce_sum")
def _reduce_sum(x: Tensor, *, axes: Sequence[int], **_params: Any) -> Tensor:
    return x.sum(tuple(map(int, axes)), dtype=x.dtype) if axes else x


@rule("reduce_max")
def _reduce_max(x: Tensor, *, axes: Sequence[int], **_params: Any) -> Tensor:
    return x.amax(tuple(map(int, axes))) if axes else x


@rule("reduce_min")
def _reduce_min(x: Tensor, *, axes: Sequence[int], **_params: Any) -> Tensor:
    return x.amin(tuple(map(int, axes))) if axes else x


def _one_by_one(function: Rule) -> Rule:
    """Return a reduction over several axes by one that takes one axis."""

    def call(x: Tensor, *, axes: Sequence[int], **_params: Any) -> Tensor:
        for axis in sorted(map(int, axes), reverse=True):
            x = function(x, axis)
        return x

    return call


rule("reduce_prod")(_one_by_one(torch.prod))
rule("reduce_and")(_one_by_one(torch.all))
rule("reduce_or")(_one_by_one(torch.any))


def _arg(function: Rule) -> Rule:
    def call(x: Tensor, *, axes: Sequence[int], index_dtype: Any, **_params: Any) -> Any:
        return function(x, int(axes[0])).to(torch_dtype(index_dtype))

    return call


rule("argmax")(_arg(torch.argmax))
rule("argmin")(_arg(torch.argmin))


def _running(function: Rule) -> Rule:
    """Return a rule for a running total, from the other end too."""

    def call(x: Tensor, *, axis: int, reverse: bool, **_params: Any) -> Any:
        seen = function(x.flip(axis) if reverse else x, axis)
        result = seen[0] if isinstance(seen, tuple) else seen
        return result.flip(axis) if reverse else result

    return call


for _name, _function in (
    ("cumsum", torch.cumsum),
    ("cumprod", torch.cumprod),
    ("cummax", torch.cummax),
    ("cummin", torch.cummin),
    ("cumlogsumexp", torch.logcumsumexp),
):
    rule(_name)(_running(_function))


@rule("top_k")
def _top_k(x: Tensor, *, k: int, **params: Any) -> tuple[Tensor, Tensor]:
    values, places = torch.topk(x, k, int(params.get("axis", -1)))
    return values, places


@rule("sort")
def _sort(*operands: Tensor, dimension: int, num_keys: int, **_params: Any) -> list[Tensor]:
    if num_keys != 1:
        raise UnsupportedError(f"sort by {num_keys} keys has no rule; sort by one, or give a rule (wj.rule('sort'))")
    key, *others = operands
    ordered, places = torch.sort(key, dimension, stable=True)
    return [ordered, *(other.gather(dimension, places) for other in others)]


def _over_windows(pool: Callable[..., Tensor], empty: float) -> Rule:
    """Return a rule for windows that slide: pooling over the last axes of ``[N, C, ...]``."""

    def call(
        x: Tensor,
        *,
        window_dimensions: Sequence[int],
        window_strides: Sequence[int],
        padding: Sequence[tuple[int, int]],
        base_dilation: Sequence[int],
        window_dilation: Sequence[int],
        **_params: Any,
    ) -> Tensor:
        if set(base_dilation) != {1}:
            raise UnsupportedError("windows over a dilated operand have no rule; give one (wj.rule('reduce_window'))")
        slid = [
            axis
            for axis, (size, step, edges) in enumerate(zip(window_dimensions, window_strides, padding, strict=True))
            if (size, step, tuple(edges)) != (1, 1, (0, 0))
        ]
        if not slid:
            return x
        order = [axis for axis in range(x.ndim) if axis not in slid] + slid
        moved = x.permute(order)
        edges = [edge for axis in reversed(slid) for edge in padding[axis]]
        if any(edges):
            moved = functional.pad(moved, edges, value=empty)
        kept = moved.shape[: x.ndim - len(slid)]
        samples, channels = math.prod(kept[:-1]), math.prod(kept[-1:])
        flat = moved if len(kept) == 2 else moved.reshape(samples, channels, *moved.shape[len(kept) :])
        pooled = pool(
            flat,
            [window_dimensions[axis] for axis in slid],
            [window_strides[axis] for axis in slid],
            [window_dilation[axis] for axis in slid],
        )
        back = [order.index(axis) for axis in range(x.ndim)]
        return pooled.reshape(*kept, *pooled.shape[2:]).permute(back)

    return call


def _max_pool(x: Tensor, sizes: list[int], strides: list[int], dilation: list[int]) -> Tensor:
    pool = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}[len(sizes)]
    pooled: Tensor = pool(x, sizes, strides, 0, dilation)
    return pooled


def _min_pool(x: Tensor, sizes: list[int], strides: list[int], dilation: list[int]) -> Tensor:
    return -_max_pool(-x, sizes, strides, dilation)


def _sum_pool(x: Tensor, sizes: list[int], strides: list[int], dilation: list[int]) -> Tensor:
    if set(dilation) != {1}:
        raise UnsupportedError("sums over dilated windows have no rule; give one (wj.rule('reduce_window_sum'))")
    pool: Rule = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}[len(sizes)]
    mean: Tensor = pool(x if x.is_floating_point() else x.float(), sizes, strides)
    return (mean * math.prod(sizes)).to(x.dtype)


rule("reduce_window_max")(_over_windows(_max_pool, -math.inf))
rule("reduce_window_min")(_over_windows(_min_pool, math.inf))
rule("reduce_window_sum")(_over_windows(_sum_pool, 0.0))


# ---- products -------------------------------------------------------------------------------------------------------

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@rule("dot_general")
def _dot_general(
    x: Tensor, y: Tensor, *, dimension_numbers: Any, preferred_element_type: Any = None, **_params: Any
) -> Tensor:
    (summed, batch) = dimension_numbers
    letters = iter(_LETTERS)
    left, right = [""] * x.ndim, [""] * y.ndim
    for of_left, of_right in (*zip(*batch, strict=True), *zip(*summed, strict=True)):
        left[of_left] = right[of_right] = next(letters)
    left = [letter or next(letters) for letter in left]
    right = [letter or next(letters) for letter in right]
    made = [left[axis] for axis in batch[0]]
    made += [letter for letter in left if letter not in right]
    made += [letter for letter in right if letter not in left]
    if preferred_element_type is not None:
        wanted = torch_dtype(preferred_element_type)
        x, y = x.to(wanted), y.to(wanted)
    return torch.einsum(f"{''.join(left)},{''.join(right)}->{''.join(made)}", x, y)


def linear(
    x: Tensor, weight: Tensor, bias: Tensor, *, summed: tuple[Any, Any], batch: tuple[Any, Any], weight_first: bool
) -> Tensor:
    """Return a product with a weight whose outputs take a bias: ``dot_general`` and what is added to it.

    Args:
        x: the data.
        weight: the weight.
        bias: one number for each output of the weight, and of every weight where there are several.
        summed: the axes that are summed over, of data and weight.
        batch: the axes that number several weights, of data and weight.
        weight_first: whether the outputs of the weight are before those of the data in the result.
    """
    (of_x, of_weight), (shared_x, shared_weight) = (
        tuple([*map(int, axes)] for axes in pair) for pair in (summed, batch)
    )
    free_x = [axis for axis in range(x.ndim) if axis not in of_x + shared_x]
    free_weight = [axis for axis in range(weight.ndim) if axis not in of_weight + shared_weight]
    shared = [x.shape[axis] for axis in shared_x]
    rows, outputs = [x.shape[axis] for axis in free_x], [weight.shape[axis] for axis in free_weight]
    data = _ordered(x, shared_x + free_x + of_x)
    if shared:
        matrices = _ordered(weight, shared_weight + of_weight + free_weight)
        count, inner = math.prod(shared), math.prod(x.shape[axis] for axis in of_x)
        bias = bias.reshape(count, 1, -1)
        made = torch.baddbmm(bias, data.reshape(count, -1, inner), matrices.reshape(count, inner, -1))
        made = made.reshape([*shared, *rows, *outputs])
    else:
        matrix = _ordered(weight, free_weight + of_weight)
        if len(of_x) > 1:
            data, matrix = data.flatten(-len(of_x)), matrix.flatten(-len(of_x))
        if len(outputs) > 1:
            matrix = matrix.flatten(0, len(outputs) - 1)
        made = functional.linear(data, matrix, bias.flatten() if bias.ndim > 1 else bias)
        if len(outputs) > 1:
            made = made.unflatten(-1, outputs)
    if not weight_first or not free_x:
        return made
    start, middle = len(shared), len(shared) + len(free_x)
    return made.permute([*range(start), *range(middle, made.ndim), *range(start, middle)])


def _ordered(x: Tensor, order: list[int]) -> Tensor:
    return x if order == list(range(x.ndim)) else x.permute(order)


@rule("conv_general_dilated")
def convolution(
    x: Tensor,
    kernel: Tensor,
    bias: Tensor | None = None,
    *,
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    dimension_numbers: Any,
    feature_group_count: int,
    batch_group_count: int,
    **_params: Any,
) -> Tensor:
    """Return a convolution of JAX, transposed where the data are dilated; with a bias for each channel of the result."""
    rank = len(window_strides)
    if batch_group_count != 1:
        raise UnsupportedError("a convolution in groups of samples has no rule; give one (wj.rule)")
    if not 1 <= rank <= 3:
        raise UnsupportedError(f"a convolution over {rank} axes has no rule; give one (wj.rule)")
    x = _ordered(x, list(dimension_numbers.lhs_spec))
    kernel = _ordered(kernel, list(dimension_numbers.rhs_spec))
    if any(step != 1 for step in lhs_dilation):
        made = _transposed(x, kernel, bias, window_strides, padding, lhs_dilation, rhs_dilation, feature_group_count)
    else:
        both = all(low == high >= 0 for low, high in padding)
        if not both:
            x = functional.pad(x, [edge for edges in reversed(padding) for edge in edges])
        run: Rule = (functional.conv1d, functional.conv2d, functional.conv3d)[rank - 1]
        made = run(
            x, kernel, bias, list(window_strides), [low for low, _ in padding] if both else 0, list(rhs_dilation),
            feature_group_count,
        )  # fmt: skip
    spec = list(dimension_numbers.out_spec)
    return _ordered(made, [spec.index(axis) for axis in range(made.ndim)])


def _transposed(
    x: Tensor, kernel: Tensor, bias: Tensor | None, strides: Sequence[int], padding: Sequence[tuple[int, int]],
    steps: Sequence[int], dilation: Sequence[int], groups: int,
) -> Tensor:  # fmt: skip
    """Return the convolution of data with zeros between them: a transposed one, whose kernel is the other way round."""
    if any(step != 1 for step in strides):
        raise UnsupportedError("a convolution with strides over dilated data has no rule; give one (wj.rule)")
    reach = [size_step * (size - 1) for size, size_step in zip(kernel.shape[2:], dilation, strict=True)]
    cut = [(far - low, far - high) for far, (low, high) in zip(reach, padding, strict=True)]
    kernel = kernel.flip(tuple(range(2, kernel.ndim)))
    kernel = kernel.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1) if groups > 1 else kernel.transpose(0, 1)
    run: Rule = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)[len(reach) - 1]
    trimmed = [max(0, min(edges)) for edges in cut]
    extra = [max(0, low - high) if high >= 0 else 0 for low, high in cut]
    fits = all(
        trim == low and more == low - high and more < max(step, size_step)
        for trim, more, (low, high), step, size_step in zip(trimmed, extra, cut, steps, dilation, strict=True)
    )
    if not fits:
        trimmed, extra = [0] * len(reach), [0] * len(reach)
    grows = not fits and any(min(edges) < 0 for edges in cut)
    made: Tensor = run(x, kernel, None if grows else bias, list(steps), trimmed, extra, groups, list(dilation))
    if not fits:
        made = functional.pad(made, [edge for low, high in reversed(cut) for edge in (-low, -high)])
    if grows and bias is not None:  # the border that is added holds the bias alone
        made = made + bias.reshape(-1, *[1] * len(reach))
    return made


@rule("fft")
def _fft(x: Tensor, *, fft_type: Any, fft_lengths: Sequence[int], **_params: Any) -> Tensor:
    kind = str(getattr(fft_type, "name", fft_type)).lower()
    run: Rule = {"fft": torch.fft.fftn, "ifft": torch.fft.ifftn, "rfft": torch.fft.rfftn, "irfft": torch.fft.irfftn}[
        kind
    ]
    axes = tuple(range(-len(fft_lengths), 0))
    made: Tensor = run(x, tuple(fft_lengths), axes)
    return made


# ---- random numbers -------------------------------------------------------------------------------------------------


@rule("random_bits")
def _bits(_key: Tensor, *, shape: Sequence[int], bit_width: int) -> Tensor:
    return torch.randint(0, 2 ** min(bit_width, 62), tuple(shape))


@rule("random_seed")
@rule("random_clone")
def _seed(seeds: Tensor, **_params: Any) -> Tensor:
    return torch.zeros(seeds.shape, dtype=torch.int64)


@rule("random_fold_in")
def _fold_in(keys: Tensor, _data: Tensor) -> Tensor:
    return keys


@rule("random_split")
def _random_split(keys: Tensor, *, shape: Sequence[int]) -> Tensor:
    return torch.zeros((*keys.shape, *shape), dtype=torch.int64)


@rule("random_wrap")
def _wrap(keys: Tensor, **_params: Any) -> Tensor:
    return torch.zeros(keys.shape[:-1], dtype=torch.int64)


@rule("random_unwrap")
def _unwrap(keys: Tensor) -> Tensor:
    return torch.zeros((*keys.shape, 2), dtype=torch.int64)


@rule("_uniform", numbers=True)
def _uniform(_key: Any, low: Any, high: Any, *, shape: Sequence[int], dtype: torch.dtype) -> Any:
    numbers = torch.rand(tuple(shape), dtype=dtype)
    return numbers if (low, high) == (0.0, 1.0) else low + numbers * (high - low)


@rule("_bernoulli", numbers=True)
def _bernoulli(_key: Any, chance: Any, *, shape: Sequence[int], dtype: torch.dtype) -> Any:
    assert dtype == torch.bool
    return torch.rand(tuple(shape)) < chance


@rule("_normal")
@rule("_normal_real")
def _normal(_key: Tensor, *, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.randn(tuple(shape), dtype=dtype)


@rule("_truncated_normal")
def _truncated_normal(_key: Tensor, low: Tensor, high: Tensor, *, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    below, above = (torch.erf(edge.to(dtype) / math.sqrt(2.0)) for edge in (low, high))
    return math.sqrt(2.0) * torch.erfinv(below + torch.rand(tuple(shape), dtype=dtype) * (above - below))


@rule("_gumbel")
def _gumbel(_key: Tensor, *, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return -torch.log(-torch.log(torch.rand(tuple(shape), dtype=dtype)))


@rule("_exponential")
def _exponential(_key: Tensor, *, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return -torch.log1p(-torch.rand(tuple(shape), dtype=dtype))


@rule("_randint")
def _randint(_key: Tensor, low: Tensor, high: Tensor, *, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return low + (torch.rand(tuple(shape)) * (high - low)).to(dtype)


@rule("_shuffle")
def _shuffle(_key: Tensor, x: Tensor, *, axis: int = 0, **_params: Any) -> Tensor:
    return x.index_select(axis, torch.randperm(x.shape[axis]))
