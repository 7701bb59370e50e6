"""Means, sums and other reductions over axes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from wellposed.signals import kernels
from wellposed.signals.call import Call
from wellposed.signals.kernels import Array
from wellposed.signals.registry import overloads, rule
from wellposed.signals.rules.merge import linear
from wellposed.signals.rules.pointwise import scalar_pointwise
from wellposed.signals.state import State
from wellposed.signals.views import pooled


def averaged(call: Call, x: State, over: list[int], *, keepdim: bool) -> State:
    """Return the mean over whole axes: its variance is the average covariance over all pairs (signals.md 5.5)."""
    x = pooled(x)
    dims = [i for axis in over for i in x.axes[axis]]
    keep = [i for i in range(len(x.sizes)) if i not in dims]
    mean = kernels.mean_over(x.mean, dims)
    if call.independent:
        count = math.prod(x.sizes[i] for i in dims)
        covariance = np.full((1,) * x.corr.ndim, kernels.average(x.var) / count)
        var = covariance
    else:
        covariance = kernels.pair_mean(x.covariance(), x.sizes, dims)
        here = float(covariance.ravel()[0])
        spread = kernels.mean_over(x.std(), dims)
        level = kernels.average(spread**2)
        var = spread**2 * (max(here, 0.0) / level) if level > 0 else np.zeros_like(spread)
    here = float(covariance.ravel()[0])
    corr = np.clip(covariance / here, -1.0, 1.0) if here > 0 else np.ones((1,) * covariance.ndim)

    def reduce(array: Array) -> Array:
        return array.reshape([array.shape[i] for i in keep])

    where = {old: new for new, old in enumerate(keep)}
    axes: list[tuple[int, ...]] = []
    for axis, members in enumerate(x.axes):
        if axis in over:
            if keepdim:
                axes.append(())
            continue
        axes.append(tuple(where[i] for i in members))
    many = math.prod(x.sizes[i] for i in dims) >= 8
    return x.changed(
        sizes=tuple(x.sizes[i] for i in keep),
        axes=tuple(axes),
        mean=reduce(mean),
        var=reduce(np.broadcast_to(var, [n if i in keep else 1 for i, n in enumerate(var.shape)])),
        corr=reduce(corr),
        base=None,
        fn=None,
        links=(),
        gauss=x.gauss or many,
        lever=None,
    )


def axes_of(x: State, dim: Any) -> list[int]:
    """Return the axes that a reduction over ``dim`` takes: all of them where there is none."""
    rank = len(x.axes)
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return list(range(rank))
    return sorted(int(d) % rank for d in (dim if isinstance(dim, (list, tuple)) else [dim]))


@rule(overloads("mean.dim", "mean.default"), source="signals: 5.5; AutoInit, Appendix A (mean)")
def mean(call: Call, x: State, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> State:
    """Mean over axes."""
    return averaged(call, x, axes_of(x, dim), keepdim=keepdim)


@rule(overloads("sum.dim_IntList", "sum.default"), source="signals: 5.5; AutoInit, Appendix A (sum)")
def total(call: Call, x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> State | None:
    """Sum over axes."""
    if not isinstance(x, State):
        return None
    axes = axes_of(x, dim)
    count = math.prod(x.shape[a] for a in axes)
    result = averaged(call, x, axes, keepdim=keepdim)
    return linear(call, result, float(count)).changed(fn=None, base=None)


def _square(call: Call, x: State) -> State:
    return scalar_pointwise(call, x, torch.ops.aten.square.default)


@rule(overloads("var.dim", "var.correction", "var.default"), source="definition: E x² - (E x)², over the axes")
def variance(
    call: Call, x: State, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: Any = None
) -> State:
    """Variance over axes."""
    return _variance(call, x, dim, unbiased, keepdim, correction)


def _variance(call: Call, x: State, dim: Any, unbiased: bool, keepdim: bool, correction: Any) -> State:
    """Return the variance over axes; the estimate fluctuates as the mean squared distance to the mean does."""
    axes = axes_of(x, dim)
    x = linear(call, pooled(x), 1.0, -x.pooled_mean)
    second = averaged(call, _square(call, x), axes, keepdim=keepdim)
    first = averaged(call, x, axes, keepdim=keepdim)
    count = math.prod(x.shape[a] for a in axes)
    lost = float(correction) if correction is not None else float(unbiased)
    factor = count / (count - lost) if count > lost else 1.0
    level = max(second.pooled_mean - first.second_moment, 0.0) * factor
    return second.changed(
        mean=np.full((1,) * len(second.sizes), level), var=second.var * factor**2, links=(), base=None, fn=None
    )


@rule(overloads("std.dim", "std.correction", "std.default"), tag="approximate", source="square root of the variance")
def deviation(
    call: Call, x: State, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: Any = None
) -> State:
    """Standard deviation over axes."""
    return _root(call, _variance(call, x, dim, unbiased, keepdim, correction))


def _root(call: Call, x: State) -> State:
    level = max(x.pooled_mean, 0.0)
    value = math.sqrt(level)
    relative = x.pooled_var / (4 * level) if level > 0 else 0.0
    return x.changed(
        mean=np.full((1,) * len(x.sizes), value),
        var=np.full((1,) * len(x.sizes), relative),
        links=(),
        base=None,
        fn=None,
    )


@rule(overloads("linalg_vector_norm.default"), tag="approximate", source="square root of the sum of squares")
def vector_norm(
    call: Call, x: State, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> State | None:
    """Euclidean norm over axes."""
    if ord != 2:
        return None
    axes = axes_of(x, dim)
    count = math.prod(x.shape[a] for a in axes)
    squares = linear(call, averaged(call, _square(call, pooled(x)), axes, keepdim=keepdim), float(count))
    return _root(call, squares.changed(base=None, fn=None))
