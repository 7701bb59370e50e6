"""Many numbers to few: sums, orders, windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from wellposed.errors import UnsupportedError
from wellposed.frontends.jax.dtypes import torch_dtype
from wellposed.frontends.jax.primitives.registry import Rule, rule


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
        result: Tensor = seen[0] if isinstance(seen, tuple) else seen
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
    """Return the first operand sorted along an axis, and the others in its order."""
    if num_keys != 1:
        raise UnsupportedError(f"sort by {num_keys} keys has no rule; sort by one, or give a rule (wj.rule('sort'))")
    key, *others = operands
    ordered, places = torch.sort(key, dim=dimension, stable=True)
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
        """Reduce windows by torch's pooling, over the axes along which they move."""
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
    """Return sums over windows: torch's means times the number of elements in one."""
    if set(dilation) != {1}:
        raise UnsupportedError("sums over dilated windows have no rule; give one (wj.rule('reduce_window_sum'))")
    pool: Rule = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}[len(sizes)]
    mean: Tensor = pool(x if x.is_floating_point() else x.float(), sizes, strides)
    return (mean * math.prod(sizes)).to(x.dtype)


rule("reduce_window_max")(_over_windows(_max_pool, -math.inf))
rule("reduce_window_min")(_over_windows(_min_pool, math.inf))
rule("reduce_window_sum")(_over_windows(_sum_pool, 0.0))
