"""Means over axes of a state."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from wellposed.signals.algebra.statistics import as_mean, is_centred
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.blocks import concatenate
from wellposed.signals.distributions.fluctuations import with_own_fluctuation
from wellposed.signals.distributions.lazy import evaluated
from wellposed.signals.distributions.marginals import marginal, of_uneven
from wellposed.signals.distributions.means import to_mean_of
from wellposed.signals.distributions.mixtures import UNEVEN, expand_mixture
from wellposed.signals.distributions.state import Marginal, State, weakest
from wellposed.signals.distributions.views import pooled
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.transport import (
    LARGEST_UNEVENNESS,
    SKEWED,
    excess_kurtosis,
    is_heavy,
    of_log_normal,
    of_mean_of_squares,
    skewness,
)
from wellposed.signals.signal import Tag

IMPRECISE = 1e-6
"""Share of a variance by which a mean of covariances may be below 0, beyond which elements count as independent.
Chosen: above rounding; correlations by displacement are averages, and may miss a variance that is near to 0."""
GAUSSIAN_COUNT = 8
"""Elements from which on their mean counts as Gaussian. Chosen."""


def averaged(call: Call, x: State, over: list[int], *, keepdim: bool, moments: bool = False) -> State:
    """Return the mean over whole axes: its variance is the average covariance over all pairs (signals.md 5.5).

    With ``moments`` the result has mean, variance and correlations alone.
    """
    if x.blocks and x.blocks.axis not in over:
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
    if is_centred(call, x, dims):
        x = x.with_moments(mean=np.zeros_like(x.mean), var=np.zeros_like(x.var))
    covariance, spread, var, tag = _covariance_of_means(call, x, dims, count)
    corr = _correlation(covariance, spread, _at_zero_displacement(covariance))

    def reduce(array: Array) -> Array:
        return array.reshape([n for i, n in enumerate(array.shape) if i not in dims])

    layout = x.layout.without(dims)
    result = x.with_moments(
        layout=layout if keepdim else layout.dropping(over),
        mean=reduce(kernels.mean_over(x.mean, dims)),
        var=reduce(var),
        corr=reduce(corr),
        gauss=x.gauss or count >= GAUSSIAN_COUNT,
        scale_parameter=None,
        tag=tag,
    )
    if call.independent or moments:
        return result
    call.run.memo[key] = result = _with_dependence(call, x, result, dims)
    return result


def _with_dependence(call: Call, x: State, mean: State, dims: list[int]) -> State:
    """Return the mean of x over some atoms with its spread, its shape, its link to x, and as a statistic of x."""
    mean = mean.amended(spread=with_own_fluctuation(x, mean))
    if call.wants_marginal:
        mean = mean.amended(marginal=_marginal(x, mean))
    return as_mean(x, dims, mean.amended(links=to_mean_of(x, dims)))


def _covariance_of_means(call: Call, x: State, dims: list[int], count: int) -> tuple[Array, Array, Array, Tag]:
    """Return the covariance kernel of the mean of x over the atoms ``dims`` (``count`` elements), its standard
    deviation by position up to a factor, its variance by position, and its tag.
    """
    alone = np.full((1,) * x.corr.ndim, kernels.average(x.var) / max(count, 1))
    if call.independent:
        return alone, alone, alone, x.tag
    tag, pairs = x.tag, kernels.pair_mean(x.covariance(), x.lengths, dims)
    covariance = kernels.total(pairs, *_by_shared_scale(x, dims))
    if _at_zero_displacement(covariance) < -IMPRECISE * kernels.average(x.var):
        covariance, tag = alone, weakest(tag, "approximate")
    spread = _std_of_means(x, dims, count)
    level = kernels.average(spread**2)
    here = max(_at_zero_displacement(covariance), 0.0)
    var = spread**2 * (here / level) if level > 0 else np.zeros_like(spread)
    return covariance, spread, np.broadcast_to(var, [1 if i in dims else n for i, n in enumerate(var.shape)]), tag


def _std_of_means(x: State, dims: list[int], count: int) -> Array:
    """Return the standard deviation of the mean of x over the atoms ``dims``, by position and up to a factor: of the
    correlated part of the elements deviations add up, of the uncorrelated part variances.
    """
    common = kernels.mean_over(x.std(), dims)
    if common.size == 1 or all(x.var.shape[i] == 1 for i in dims):
        return common
    share = float(kernels.pair_mean(kernels.at_zero(x.corr, [i for i in range(x.corr.ndim) if i not in dims]),
        x.lengths, dims).ravel()[0])  # fmt: skip
    alike = min(max((share * count - 1.0) / max(count - 1, 1), 0.0), 1.0)
    return np.sqrt(alike * common**2 + (1.0 - alike) / count * kernels.mean_over(x.var, dims))


def _at_zero_displacement(kernel: Array) -> float:
    """Return the entry of a kernel for displacement 0 along all atoms."""
    return float(kernels.at_zero(kernel, range(kernel.ndim)).ravel()[0])


def _correlation(covariance: Array, spread: Array, here: float) -> Array:
    """Return the correlation kernel of means of variance ``here``, given their standard deviations but for a factor."""
    if not here > 0.0:
        return np.ones((1,) * covariance.ndim)
    if any(map(kernels.positions, covariance.shape)):
        return kernels.correlation(covariance, spread**2 * (here / kernels.average(spread**2)))
    return np.clip(covariance / here, -1.0, 1.0)


def _by_shared_scale(x: State, dims: list[int]) -> list[Array]:
    """Return, in a list, what a shared local scale adds to the covariance kernel of a mean over otherwise independent
    elements: Var(E[x | tau]), which the correlations of x leave out (signals.md 5.7).
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
    """Return the marginal of ``result``, a mean of x.

    For a function x that is never negative it is a Gamma variable's, or a log-normal one's where x has heavier tails or
    a local scale, with the same zero. Else it is a Gamma variable's with the skewness of x times the ratio of the
    standard deviations (1 / √count for independent elements). Where either is nearly symmetric, it is a Gaussian's
    with local scales, with the excess kurtosis of x times the ratio of the variances.
    """
    before, after = kernels.average(x.var), kernels.average(result.var)
    if (x.function is None and x.transport is None) or x.gauss or after <= 0.0:
        return result.marginal
    shape = marginal(x)
    level = kernels.average(result.mean) ** 2
    if x.function is not None and bool((shape >= 0.0).all()):
        relative, skew = after / level if level > 0.0 else 0.0, 1.0
        heavy = is_heavy(shape) or evaluated(x.gaussian_source()[0].local_scales) is not None
    else:
        skew = skewness(shape) * math.sqrt(after / before)
        relative, heavy = skew * skew / 4.0, False
    if relative < SKEWED:
        kappa = excess_kurtosis(shape) * (after / before) / 3.0
        even = of_uneven(kappa)
        return result.marginal if even is None else replace(result.marginal, gauss=False, transport=even)
    relative = float(f"{min(relative, LARGEST_UNEVENNESS):.3g}")
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
    return x.blocks.axis - (0 if keepdim else sum(axis < x.blocks.axis for axis in over))
