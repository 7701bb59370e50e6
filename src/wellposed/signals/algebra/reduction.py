"""Means over axes of a state."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from wellposed.signals.algebra.statistics import as_mean, is_centred
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.blocks import concatenate
from wellposed.signals.distributions.fluctuations import with_own_fluctuation
from wellposed.signals.distributions.lazy import evaluated
from wellposed.signals.distributions.marginals import marginal
from wellposed.signals.distributions.means import to_mean_of
from wellposed.signals.distributions.mixtures import UNEVEN, expand_mixture
from wellposed.signals.distributions.state import Marginal, State, weakest
from wellposed.signals.distributions.views import pooled
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.transport import SKEWED, is_heavy, of_log_normal, of_mean_of_squares, skewness

IMPRECISE = 1e-6
"""Share of a variance by which a mean of covariances is below 0 where these are too rough to tell it: elements then
count as strangers, so that a norm over samples finds what differs between them."""


def averaged(call: Call, x: State, over: list[int], *, keepdim: bool, moments: bool = False) -> State:
    """Return the mean over whole axes: its variance is the average covariance over all pairs (signals.md 5.5).

    With ``moments`` nobody asks for more than mean, variance and correlations of the result.
    """
    if x.blocks and x.block_axis not in over:
        means = [averaged(call, block, over, keepdim=keepdim, moments=moments) for block in x.blocks]
        return concatenate(means, axis_after(x, over, keepdim=keepdim))
    x = pooled(x)
    key = ("mean", x.serial, x.axes, tuple(over), keepdim)
    if key in call.run.memo:  # worked out twice, it is one tensor
        again: State = call.run.memo[key]
        return again
    dims = [i for axis in over for i in x.axes[axis]]
    if not dims:  # of axes of length 1: the tensor itself
        return x if keepdim else x.amended(layout=x.layout.dropping(over))
    count = math.prod(x.lengths[i] for i in dims)
    if is_centred(x, dims):
        x = x.with_moments(mean=np.zeros_like(x.mean), var=np.zeros_like(x.var))
    tag, alone = x.tag, np.full((1,) * x.corr.ndim, kernels.average(x.var) / max(count, 1))
    if call.independent:
        covariance = var = spread = alone
    else:
        covariance = kernels.total(kernels.pair_mean(x.covariance(), x.lengths, dims), *_by_shared_scale(x, dims))
        if float(kernels.at_zero(covariance, range(covariance.ndim)).ravel()[0]) < -IMPRECISE * kernels.average(x.var):
            covariance, tag = alone, weakest(tag, "approximate")
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
        scale_parameter=None,
        tag=tag,
    )
    if call.independent or moments:
        return result
    result = result.amended(spread=with_own_fluctuation(x, result))
    if call.wants_marginal:
        result = result.amended(marginal=_marginal(x, result))
    result = result.amended(links=to_mean_of(x, dims))
    call.run.memo[key] = result = as_mean(x, dims, result)
    return result


def _correlation(covariance: Array, spread: Array, here: float) -> Array:
    """Return the correlation kernel of means of variance ``here``, given their standard deviations but for a factor."""
    if not here > 0.0:
        return np.ones((1,) * covariance.ndim)
    if any(map(kernels.positions, covariance.shape)):
        return kernels.correlation(covariance, spread**2 * (here / kernels.average(spread**2)))
    return np.clip(covariance / here, -1.0, 1.0)


def _by_shared_scale(x: State, dims: list[int]) -> list[Array]:
    """Return what elements that share nothing but their local scale add to the covariance kernel of a mean over them:
    the variance of E[x | scale], which the correlations of x leave out (signals.md 5.7).
    """
    base, fn = x.gaussian_source()
    scales = evaluated(base.local_scales)
    if fn is None or scales is None or base.lengths != x.lengths or float(scales.ravel()[0]) <= UNEVEN:
        return []
    apart = [i for i in dims if x.corr.shape[i] == 1 < scales.shape[i]]
    if not apart:
        return []
    level = float(scales.ravel()[0])
    shared = scales * (float(expand_mixture(fn, base.mean, base.std(), level).own[0]) / level)
    inside = kernels.pair_mean(kernels.at_zero(shared, apart), x.lengths, dims)
    return [kernels.pair_mean(shared, x.lengths, dims), -inside]


def _marginal(x: State, result: State) -> Marginal:
    """Return the shape of the distribution of a mean of x, where few count.

    Where x is never negative, it is that of a Gamma variable (for squares of Gaussians), or log-normal where x has
    heavier tails or a local scale, with the same zero; else a Gamma's with the skewness of x, divided by the root of
    how many count.
    """
    before, after = kernels.average(x.var), kernels.average(result.var)
    if (x.fn is None and x.transport is None) or x.gauss or after <= 0.0:
        return result.marginal
    shape = marginal(x)
    level = kernels.average(result.mean) ** 2
    if x.fn is not None and bool((shape >= 0.0).all()):
        relative, skew = after / level if level > 0.0 else 0.0, 1.0
        heavy = is_heavy(shape) or evaluated(x.gaussian_source()[0].local_scales) is not None
    else:
        skew = skewness(shape) * math.sqrt(after / before)
        relative, heavy = skew * skew / 4.0, False
    if relative < SKEWED:
        return result.marginal
    relative = float(f"{min(relative, 8.0):.3g}")
    made = of_log_normal(relative) if heavy else of_mean_of_squares(relative)
    return Marginal(transport=made if skew > 0.0 else made.negated())


def axes_of(x: State, dim: Any) -> list[int]:
    """Return the axes that a reduction over ``dim`` takes: all of them where there is none."""
    rank = len(x.axes)
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return list(range(rank))
    return sorted(int(d) % rank for d in (dim if isinstance(dim, (list, tuple)) else [dim]))


def axis_after(x: State, over: list[int], *, keepdim: bool) -> int:
    """Return the axis of a concatenation's parts after a reduction over others."""
    return x.block_axis - (0 if keepdim else sum(axis < x.block_axis for axis in over))
