"""How the second moment of a tensor varies from one weight draw to another."""

from __future__ import annotations

import math

import numpy as np

from wellposed.signals.distributions.expansion import conditioning, is_homogeneous, moved
from wellposed.signals.distributions.functions import IDENTITY, Pointwise
from wellposed.signals.distributions.groups import rounded
from wellposed.signals.distributions.spread import Spread
from wellposed.signals.distributions.state import State
from wellposed.signals.integration import gaussian, kernels
from wellposed.signals.integration.gaussian import NODES, WEIGHTS, hermite_many
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.transport import Transport


def square_kernel(
    function: Pointwise | None, mean: float, std: float, corr: Array, transport: Transport | None = None
) -> Array:
    """Return Cov(x_p², x_q²) / (E x²)² by displacement, for x = g(z) of Gaussian z (or z itself)."""
    _, powers, same = conditioning(function or IDENTITY, *rounded(mean, std), transport)
    corr = corr if transport is None else transport.latent(corr)
    powers = (powers if function is not None else same).copy()
    powers[0] = 0.0
    kernel = gaussian.polynomial(powers, corr)
    if function is not None or transport is not None:  # orders above the last count within one element
        x = mean + std * (NODES if transport is None else transport.values)
        with np.errstate(all="ignore"):
            squares = (x if function is None else function(x)) ** 2
        mean_square = float(WEIGHTS @ squares)
        whole = float(WEIGHTS @ (squares * squares)) / max(mean_square * mean_square, 1e-300) - 1.0  # no error if large
        kernel[(0,) * kernel.ndim] = max(whole, float(kernel.ravel()[0]))
    return kernel


_Z, _W = np.polynomial.hermite_e.hermegauss(7)
_W = _W / _W.sum()
"""Seven nodes: ln(0.7 + 0.3 e^D) is integrated to 7e-5 for D of standard deviation 2, to 2e-3 for 3."""
SMALLEST = 1e-4
"""Least part of its variance that a signal keeps where draws make its second moment smaller. Chosen."""


def carried_spread(
    function: Pointwise,
    mean: float,
    std: float,
    variance: float,
    slope: float,
    transport: Transport | None = None,
) -> float:
    """Return the variance of ln(second moment) over weight draws behind a function, where it is ``variance`` before.

    Small spreads are multiplied by the slope d ln E f² / d ln E x²; large ones are followed at seven scales, because
    far from the prediction the slope is another one (a GELU is linear for small signals and a ReLU for large ones).
    """
    if variance < 1e-2 or (mean == 0.0 and is_homogeneous(function)):
        return slope * slope * variance
    offset = np.clip(np.sqrt(variance) * _Z, -60.0, 60.0)
    centre, share = moved(mean, std, transport)
    scale = np.sqrt(np.maximum(np.exp(offset) - 1.0 + share, SMALLEST * share) / share)
    means = centre + scale * (mean - centre)
    _, second = hermite_many(function, means, std * scale, None if transport is None else transport.values)
    if not np.isfinite(second).all() or (second <= 0).any():
        return slope * slope * variance
    logs = np.log(second)
    return float(_W @ (logs - float(_W @ logs)) ** 2)


def fluctuation(powers: Array, corr: Array, second: Array, sizes: tuple[int, ...]) -> float:
    """Return the relative variance of the mean of f² over a tensor, from the Hermite powers of f² (relative to E f²),
    the correlation kernel of the Gaussian, and E f² by position: few positions that hold most of it do not average out.
    """
    without_mean = powers[:9].copy()
    without_mean[0] = 0.0
    kernel = gaussian.polynomial(without_mean, corr)
    level = kernels.average(second)
    if second.size > 1 and 0.0 < level < math.inf:
        kernel = kernel * kernels.autocorrelation(second / level, kernel.shape)
    found = float(kernels.pair_mean(kernel, sizes).ravel()[0])
    return max(found, 0.0)  # a variance, but for rounding


def gaussian_fluctuation(x: State) -> float:
    """Return the relative variance of the mean square of a Gaussian tensor: 2 K² + 4 m m' K averaged over pairs, over
    (E x²)².
    """
    q = x.second_moment
    if q <= 0.0:
        return 0.0
    covariance = x.covariance()
    kernel = 2.0 * covariance * covariance
    if kernels.nonzero(x.mean):
        kernel = kernel + 4.0 * covariance * kernels.autocorrelation(x.mean, covariance.shape)
    return max(float(kernels.pair_mean(kernel, x.lengths).ravel()[0]), 0.0) / q / q  # q² may be below all numbers


def own_fluctuation(x: State) -> float:
    """Return the relative variance of the mean square of a product with a weight, up to a factor: the mean over pairs
    of elements of R², plus the finite-width correlation of different positions (signals.md 6).
    """
    corr = kernels.by_displacement(x.corr)
    seconds = x.mean**2 + x.var
    weights = kernels.autocorrelation(seconds, corr.shape) if seconds.size > 1 else np.square(seconds)
    apart = [i for i, length in enumerate(corr.shape) if length == 1]
    # where positions were all the same
    most = float(kernels.pair_mean(kernels.at_zero(np.ones(corr.shape) * weights, apart), x.lengths).ravel()[0])
    found = float(kernels.pair_mean(corr * corr * weights, x.lengths).ravel()[0])
    level = kernels.average(seconds) ** 2
    if not most > 0.0 or not level > 0.0:
        return 0.0
    left = max(1.0 - found / most, 0.0)
    return (found + most * min(x.finite_width_correlation.variance, 1.0) * left * left) / level


def with_own_fluctuation(before: State, after: State) -> Spread:
    """Return the spread of ``after``, a mean of elements of ``before``; its moments give the own part."""
    spread = before.spread
    variance = spread.own.variance
    if variance <= 0.0:
        return spread
    return Spread(spread.inherited, spread.own.times(math.sqrt(gaussian_fluctuation(after) / variance)))
