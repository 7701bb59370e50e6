"""Means over axes of a state."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from wellposed.signals.algebra.statistics import as_mean
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.expansion import marginal, with_own_fluctuation
from wellposed.signals.distributions.state import Marginal, State
from wellposed.signals.distributions.views import pooled
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.transport import SKEWED, of_mean_of_squares


def averaged(call: Call, x: State, over: list[int], *, keepdim: bool) -> State:
    """Return the mean over whole axes: its variance is the average covariance over all pairs (signals.md 5.5)."""
    x = pooled(x)
    dims = [i for axis in over for i in x.axes[axis]]
    count = math.prod(x.sizes[i] for i in dims)
    if call.independent:
        covariance = var = spread = np.full((1,) * x.corr.ndim, kernels.average(x.var) / count)
    else:
        covariance = kernels.pair_mean(x.covariance(), x.sizes, dims)
        spread = kernels.mean_over(x.std(), dims)
        level = kernels.average(spread**2)
        here = float(kernels.at_zero(covariance, range(covariance.ndim)).ravel()[0])
        var = spread**2 * (max(here, 0.0) / level) if level > 0 else np.zeros_like(spread)
    here = float(kernels.at_zero(covariance, range(covariance.ndim)).ravel()[0])
    corr = _correlation(covariance, spread, here)

    def reduce(array: Array) -> Array:
        return array.reshape([n for i, n in enumerate(array.shape) if i not in dims])

    layout = x.layout.without(dims)
    result = x.with_moments(
        layout=layout if keepdim else layout.dropping(over),
        mean=reduce(kernels.mean_over(x.mean, dims)),
        var=reduce(np.broadcast_to(var, [1 if i in dims else n for i, n in enumerate(var.shape)])),
        corr=reduce(corr),
        gauss=x.gauss or count >= 8,
        lever=None,
    )
    if call.independent:
        return result
    return as_mean(x, dims, result.amended(spread=with_own_fluctuation(x, result), marginal=_marginal(x, result)))


def _correlation(covariance: Array, spread: Array, here: float) -> Array:
    """Return the correlation kernel of means of variance ``here``, given their standard deviations but for a factor."""
    if not here > 0.0:
        return np.ones((1,) * covariance.ndim)
    if any(map(kernels.positions, covariance.shape)):
        return kernels.correlation(covariance, spread**2 * (here / kernels.average(spread**2)))
    return np.clip(covariance / here, -1.0, 1.0)


def _marginal(x: State, result: State) -> Marginal:
    """Return the shape of the distribution of a mean of x: that of a Gamma where x is never negative, and few count."""
    level = kernels.average(result.mean) ** 2
    relative = kernels.average(result.var) / level if level > 0.0 else 0.0
    if x.fn is None or relative < SKEWED or not bool((marginal(x) >= 0.0).all()):
        return result.marginal
    return Marginal(transport=of_mean_of_squares(float(f"{min(relative, 8.0):.3g}")))


def axes_of(x: State, dim: Any) -> list[int]:
    """Return the axes that a reduction over ``dim`` takes: all of them where there is none."""
    rank = len(x.axes)
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return list(range(rank))
    return sorted(int(d) % rank for d in (dim if isinstance(dim, (list, tuple)) else [dim]))
