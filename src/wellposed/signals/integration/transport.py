"""Marginals of sums that are no Gaussians: the increasing function of a Gaussian that has the sum's distribution.

A rectified signal and an independent branch add up to a skewed sum. With F its distribution function, t(z) = F⁻¹(Φ(z))
turns a standard Gaussian into it; functions of the sum are then integrated as g(m + s t(z)) (signals.md 5.7).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
import torch

from wellposed.signals.integration import gaussian
from wellposed.signals.integration.gaussian import NODES, WEIGHTS, hermite_table
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.special import gamma_quantile, ndtr, ndtri

STEP = 1 / 32
"""Spacing of the grid that distributions are convolved on, in standard deviations of the sum. Chosen: t of a ReLU plus
a Gaussian is exact to 1e-3 within 4.5 standard deviations, as with half the spacing."""
QUANTILES = 96
"""Quantiles of each of two dependent summands. Chosen for cost."""
REACH = 1024
"""Steps from the mean at which a distribution's tails are cut. Chosen: 32 standard deviations."""
NEGLIGIBLE = 1e-3
"""Share of the variance beyond the linear term of t below which a sum counts as Gaussian. Chosen."""

CUT = 2.0
"""Where a truncated normal distribution is cut, in its standard deviations. Chosen: as initialisers do."""
SKEWED = 0.005
"""Relative variance from which on a mean of what is never negative counts as no Gaussian. Chosen."""
LARGEST_UNEVENNESS = 8.0
"""Var / E² of a sum or mean of one sign above which its shape does not change. Chosen."""


@dataclass(frozen=True, slots=True, eq=False)
class Transport:
    """The standardised quantile function t of a marginal: E t(Z) = 0, E t(Z)² = 1.

    Attributes:
        values: t at the nodes of the common table (`gaussian.NODES`).
        coefficients: Hermite coefficients of t, n = 0..ORDER.
    """

    values: Array
    coefficients: Array

    def __call__(self, z: Array) -> Array:
        """Return t(z), continued linearly beyond the table."""
        inside = np.interp(z, NODES, self.values)
        slope = (self.values[-1] - self.values[-2]) / (NODES[-1] - NODES[-2])
        return np.asarray(inside + np.where(np.abs(z) > NODES[-1], slope * (z - np.clip(z, NODES[0], NODES[-1])), 0.0))

    def negated(self) -> Transport:
        """Return the quantile function of the negative."""
        return standardised(-self.values[::-1])

    def latent(self, corr: Array) -> Array:
        """Return the correlation that the underlying Gaussian must have: sum over n of t_n² r^n = corr, for r."""
        powers = np.square(self.coefficients)
        powers[0] = 0.0
        powers[-1] += max(1.0 - float(powers.sum()), 0.0)
        return np.asarray(np.interp(corr, gaussian.polynomial(powers, _GRID), _GRID))


class Postponed(Transport):
    """A transport that is worked out when it is first asked for: few read the shape of a product."""

    __slots__ = ("_made", "_make")
    _made: Transport | None
    _make: Callable[[], Transport]

    def __init__(self, make: Callable[[], Transport]) -> None:
        object.__setattr__(self, "_make", make)
        object.__setattr__(self, "_made", None)

    def _settled(self) -> Transport:
        """Return the transport, which is worked out once."""
        made = self._made
        if made is None:
            made = self._make()
            object.__setattr__(self, "_made", made)
        return made

    @property
    def values(self) -> Array:
        """t at the nodes."""
        return self._settled().values

    @property
    def coefficients(self) -> Array:
        """Hermite coefficients of t."""
        return self._settled().coefficients

    def negated(self) -> Transport:
        """Return the quantile function of the negative, later."""
        return Postponed(lambda: self._settled().negated())


LARGEST_NUMBER = 1e150
"""Largest numbers that have a distribution here: their squares can still be summed. Chosen."""
_GRID = np.linspace(-1.0, 1.0, 401)


def standardised(values: Array) -> Transport:
    """Return the transport with these values at the nodes, brought to mean 0 and variance 1."""
    centred = values - WEIGHTS @ values
    scaled = centred / np.sqrt(WEIGHTS @ (centred * centred))
    return Transport(scaled, hermite_table() @ scaled)


def of_values(values: Array) -> Transport | None:
    """Return the transport of a variable given as a function of a Gaussian at the nodes; None where it is all but
    Gaussian, constant or not finite.
    """
    if not np.isfinite(values).all() or float(values.max() - values.min()) <= 0.0:
        return None
    return _of_values(_rounded(values))


@lru_cache(maxsize=256)
def _of_values(values: bytes) -> Transport | None:
    """`of_values` of rounded values, which are put into increasing order: the same distribution."""
    x = np.frombuffer(values)
    order = np.argsort(x, kind="stable")
    if (np.diff(x) < 0.0).any():
        below = np.cumsum(WEIGHTS[order]) - 0.5 * WEIGHTS[order]
        x = np.interp(ndtr(NODES), below, x[order])
    transport = standardised(x)
    return None if transport.coefficients[1] ** 2 > 1.0 - NEGLIGIBLE else transport


def of_sum(first: Array, second: Array) -> Transport | None:
    """Return the transport of x + y for independent x and y, or None where the sum is all but Gaussian.

    ``first`` and ``second`` are x and y as functions of a standard Gaussian each, at the nodes. Both distributions are
    laid on one grid and convolved there.
    """
    if not (has_values(first) and has_values(second)):
        return None
    return _of_sum(_rounded(first), _rounded(second))


def of_sum_of_functions(
    functions: Sequence[Callable[[torch.Tensor], torch.Tensor]],
    moments: Sequence[tuple[float, float]],
    factors: tuple[float, float],
    rho: float,
) -> Transport:
    """Return the transport of a f(u) + b g(v) for Gaussian u and v that correlate by ``rho``, given mean and standard
    deviation of each: all pairs of quantiles, in order.
    """
    quantiles = torch.from_numpy(ndtri((np.arange(QUANTILES) + 0.5) / QUANTILES))
    first, second = quantiles[:, None], rho * quantiles[:, None] + math.sqrt(1.0 - rho * rho) * quantiles
    (f, g), ((m, s), (n, t)), (a, b) = functions, moments, factors
    ordered = (a * f(m + s * first) + b * g(n + t * second)).flatten().sort().values.numpy()
    if not ordered[0] < ordered[-1]:
        return standardised(NODES)
    return standardised(np.interp(ndtr(NODES), (np.arange(len(ordered)) + 0.5) / len(ordered), ordered))


def has_values(values: Array) -> bool:
    """Whether a function has values at all nodes: a root has none below 0."""
    return bool(np.abs(values).max() < LARGEST_NUMBER)


def _rounded(values: Array) -> bytes:
    scale = float(np.abs(values).max()) or 1.0
    return np.round(values, 9 - int(np.floor(np.log10(scale)))).tobytes()


@lru_cache(maxsize=256)
def _of_sum(first: bytes, second: bytes) -> Transport | None:
    """`of_sum` of rounded values."""
    x, y = np.frombuffer(first), np.frombuffer(second)
    centres = float(WEIGHTS @ x), float(WEIGHTS @ y)
    x, y = x - centres[0], y - centres[1]
    step = STEP * float(np.sqrt(WEIGHTS @ (x * x + y * y)))
    if step == 0.0:
        return None
    shares = np.convolve(_laid(x / step), _laid(y / step))
    grid = np.arange(shares.size) - 0.5 * (shares.size - 1)
    below, above = np.cumsum(shares), np.cumsum(shares[::-1])[::-1] - shares
    # each half from its own tail, where the probabilities are still resolved
    with np.errstate(divide="ignore"):
        z = np.where(below < 0.5, ndtri(np.minimum(below, 1.0)), -ndtri(np.clip(above, 0.0, 1.0)))
    kept = np.isfinite(z)
    z, first_of = np.unique(z[kept], return_index=True)
    transport = standardised(np.interp(NODES, z, grid[kept][first_of]))
    return None if transport.coefficients[1] ** 2 > 1.0 - NEGLIGIBLE else transport


def of_mixture(parts: Sequence[Array], shares: Sequence[float]) -> Transport | None:
    """Return the transport of a mixture of variables, each given as a function of a Gaussian at the nodes, and
    standardised; ``shares`` are the probabilities. None where the mixture is all but Gaussian.
    """
    shapes = [made.values if (made := of_values(part)) is not None else NODES for part in parts]
    values = np.concatenate(shapes)
    order = np.argsort(values, kind="stable")
    mass = np.concatenate([share * WEIGHTS for share in shares])[order]
    return of_values(np.interp(ndtr(NODES), np.cumsum(mass) - 0.5 * mass, values[order]))


FACTORS = 16
"""Every how many of the nodes a product's factors are taken at. Chosen, for speed: t of a product of two Gaussians is
exact to 0.01 on average, to 0.08 at 4.5 standard deviations."""


def of_product(first: Array, second: Array, rho: float = 0.0) -> Transport:
    """Return the transport of x y for x and y given as for `of_sum`; a Gaussian's where the product has no
    distribution.

    The Gaussians behind x and y correlate by ``rho``, with the sign that falling functions give it.
    """
    if not (has_values(first) and has_values(second)):
        return standardised(NODES)
    falls = float(WEIGHTS @ (NODES * first)) * float(WEIGHTS @ (NODES * second)) < 0.0
    rho = min(max(-rho if falls else rho, -1.0), 1.0)
    return _of_product(_rounded(first), _rounded(second), round(rho, 3))


@lru_cache(maxsize=256)
def _of_product(first: bytes, second: bytes, rho: float) -> Transport:
    """Return `of_product` of rounded values, averaged over groups of neighbouring nodes (x alone for ``rho`` != 0)."""
    groups = np.arange(0, WEIGHTS.size, FACTORS)
    weights = np.add.reduceat(WEIGHTS, groups)

    def grouped(values: Array) -> Array:
        return np.asarray(np.add.reduceat(WEIGHTS * values, groups) / weights)

    x, y = (np.frombuffer(values) for values in (first, second))
    if rho:
        z = grouped(NODES)
        beside = np.interp(rho * z[:, None] + math.sqrt(1.0 - rho * rho) * z, NODES, y)
        products = (grouped(x)[:, None] * beside).ravel()
    else:
        products = np.outer(grouped(x), grouped(y)).ravel()
    shares = np.outer(weights, weights).ravel()
    order = np.argsort(products, kind="stable")
    shares = shares[order]
    below = np.cumsum(shares) - 0.5 * shares
    above = np.cumsum(shares[::-1])[::-1] - 0.5 * shares
    # each half from its own tail, where the probabilities are still resolved
    z = np.where(below < 0.5, ndtri(np.minimum(below, 1.0)), -ndtri(np.minimum(above, 1.0)))
    return standardised(np.interp(NODES, z, products[order]))


def _laid(values: Array) -> Array:
    """Return the probabilities of a variable on a grid of unit spacing about 0, shared between neighbouring points."""
    values = np.clip(values, -REACH, REACH)
    half = int(np.ceil(np.abs(values).max())) + 1
    place = np.floor(values).astype(np.int64)
    ahead = values - place
    result = np.bincount(place + half, WEIGHTS * (1.0 - ahead), minlength=2 * half + 1)
    return np.asarray(result + np.bincount(place + half + 1, WEIGHTS * ahead, minlength=2 * half + 1), dtype=np.float64)


@lru_cache(maxsize=256)
def of_mean_of_squares(relative_variance: float) -> Transport:
    """Return the transport of a mean of squares of Gaussians (Gamma-distributed, to two moments), given Var / E²."""
    shape = 1.0 / relative_variance
    tails = np.maximum(ndtr(-np.abs(NODES)), 1e-280)  # each half from its own tail, where it is still resolved
    below, above = (gamma_quantile(shape, tails, above=above) for above in (False, True))
    return standardised(np.where(NODES < 0.0, below, above) / shape)


@lru_cache(maxsize=64)
def of_few(free: int) -> Transport:
    """Return the transport of one of several Gaussians divided by their root mean square, ``free`` of them independent:
    its square is ``free`` times a Beta variable, 1 for ``free`` = 1.
    """
    if free < 2:
        return standardised(np.sign(NODES) + 0.0)
    from scipy.special import betaincinv  # slow to import

    inside = 1.0 - 2.0 * ndtr(-np.abs(NODES))
    return standardised(np.sign(NODES) * np.sqrt(free * betaincinv(0.5, 0.5 * (free - 1), inside)))


def excess_kurtosis(values: Array) -> float:
    """Return the excess kurtosis of a function of a standard Gaussian, by its values at the nodes."""
    centred = values - WEIGHTS @ values
    var = float(WEIGHTS @ (centred * centred))
    return float(WEIGHTS @ centred**4) / var**2 - 3.0 if 0.0 < var < LARGEST_NUMBER else 0.0


def skewness(values: Array) -> float:
    """Return the skewness of a variable that is a function of a standard Gaussian, by its values at the nodes."""
    centred = values - WEIGHTS @ values
    var = float(WEIGHTS @ (centred * centred))
    return float(WEIGHTS @ centred**3) / var**1.5 if 0.0 < var < LARGEST_NUMBER else 0.0


@lru_cache(maxsize=256)
def of_log_normal(relative_variance: float) -> Transport:
    """Return the transport of a log-normal variable, given Var / E²."""
    return standardised(np.exp(np.sqrt(np.log1p(relative_variance)) * NODES))


def is_heavy(values: Array) -> bool:
    """Whether means of a positive variable, given as in `of_values`, are nearer to a log-normal one than to a Gamma.

    Skewness over std / mean is that of the means, however many count: 2 of a Gamma variable, at least 3 of log-normal.
    """
    mean = float(WEIGHTS @ values)
    centred = values / mean - 1.0 if mean > 0.0 else values
    return bool(WEIGHTS @ centred**3 > 2.5 * (WEIGHTS @ centred**2) ** 2)


@cache
def of_draws(distribution: str) -> Transport | None:
    """Return the transport of draws from the named distribution of a parameter's elements; None for normal ones."""
    if distribution == "uniform":
        return of_values(ndtr(NODES) - 0.5)
    if distribution == "truncated_normal":
        tail = ndtr(-CUT)
        return of_values(ndtri(tail + (1.0 - 2.0 * tail) * ndtr(NODES)))
    return None
