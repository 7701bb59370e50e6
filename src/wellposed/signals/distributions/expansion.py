"""A function of a Gaussian tensor: moments by position, Hermite coefficients for correlations, its conditioning."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from wellposed.signals.distributions.functions import IDENTITY, Pointwise
from wellposed.signals.distributions.groups import Groups, average_of, grouped, rounded
from wellposed.signals.distributions.layout import Dims
from wellposed.signals.distributions.state import State
from wellposed.signals.integration import kernels
from wellposed.signals.integration.gaussian import (
    NODES,
    ORDER,
    WEIGHTS,
    gaussian_moments,
    hermite,
    hermite_many,
    hermite_table,
)
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.transport import Transport


@dataclass(frozen=True, slots=True)
class Expansion:
    """Moments and Hermite powers of g(x) for Gaussian x with means and standard deviations by position.

    Attributes:
        mean: E g by position.
        second: E g² by position.
        slope: Bussgang coefficient E[g'(x)], averaged over positions.
        powers: <a_n²> for n = 0..ORDER, averaged over positions; the last entry holds the tail above ORDER as well.
        sensitivity: d ln E g² / d ln E x² at the average position.
        square_powers: b_n² of g² relative to (E g²)², n = 0..ORDER: how the second moment of a sample fluctuates.
    """

    mean: Array
    second: Array
    slope: float
    powers: Array
    sensitivity: float
    square_powers: Array

    @property
    def var(self) -> Array:
        """Variance by position."""
        return np.maximum(self.second - self.mean**2, 0.0)


@lru_cache(maxsize=4096)
def is_homogeneous(function: Pointwise) -> bool:
    """Whether g(c x) = c g(x) for c > 0 (ReLU, leaky ReLU, |x|)."""
    x = NODES[::40]
    with np.errstate(all="ignore"):
        y = function(x)
        return bool(np.isfinite(y).all() and np.allclose(function(3.0 * x), 3.0 * y, rtol=1e-12, atol=1e-14))


@lru_cache(maxsize=8192)
def _at_point(function: Pointwise, mean: float, std: float) -> tuple[float, float, Array]:
    """Exact mean and second moment, and Hermite coefficients, at one (mean, std)."""
    coefficients, rough = hermite(function, mean, std)
    first, second = gaussian_moments(function, mean, std)
    if not (np.isfinite(first) and np.isfinite(second)):
        first, second = float(coefficients[0]), rough
    coefficients = coefficients.copy()
    coefficients[0] = first
    return first, second, coefficients


@lru_cache(maxsize=8192)
def conditioning(
    function: Pointwise, mean: float, std: float, transport: Transport | None = None
) -> tuple[float, Array, Array]:
    """Return d ln E g(x)² / d ln E x² for x = ``mean`` + ``std`` t(Z), and the squared Hermite coefficients, by order n
    = 0..ORDER, of g² / E g² and of x² / E x².
    """
    x = mean + std * (NODES if transport is None else transport.values)
    with np.errstate(all="ignore"):
        # points where the function is not defined count as 0: a root of a signal whose Gaussian tail alone is negative
        squares = np.nan_to_num(function(x) ** 2, nan=0.0, posinf=np.inf)
        q = float(WEIGHTS @ squares)
        step, (centre, share) = 1e-3, moved(mean, std, transport)
        q_up, q_down = (
            float(WEIGHTS @ np.nan_to_num(function(centre + scale * (x - centre)) ** 2, nan=0.0, posinf=np.inf))
            for scale in (1 + step, 1 - step)
        )
    if not (q > 0 and q_up > 0 and q_down > 0 and np.isfinite(q_up)):
        return 1.0, np.zeros(ORDER + 1), np.zeros(ORDER + 1)
    sensitivity = float(np.log(q_up / q_down) / (2 * share * np.log((1 + step) / (1 - step))))
    own = (hermite_table() @ squares) / q
    same = (hermite_table() @ (x * x)) / (mean * mean + std * std)
    return sensitivity, own * own, same * same


def moved(mean: float, std: float, transport: Transport | None) -> tuple[float, float]:
    """Return the point about which elements scale when the scale of a signal changes, and the share of E x² that
    scales.

    The mean of a Gaussian is a known shift, such as a bias, and stays; the mean of another shape grows with the scale.
    """
    whole = mean * mean + std * std
    share = std * std / whole if whole > 0.0 else 1.0
    return (mean, share) if transport is None and share > LITTLE else (0.0, 1.0)


LITTLE = 1e-6
"""Share of the variance in a second moment from which on only the variance scales, the mean being a shift. Chosen."""


@dataclass(frozen=True, slots=True, eq=False)
class Coefficients:
    """Hermite coefficients of a function of a Gaussian tensor; that of order 0, the mean, is set to 0.

    Attributes:
        values: (ORDER + 1, groups of positions).
        at: the groups of positions; None where one group holds all.
    """

    values: Array
    at: Groups | None = None

    def products(self, other: Coefficients, where: Dims) -> Array:
        """Return a_n b_n by order, averaged over positions; ``where`` places the atoms of ``other`` in this one."""
        p, q = self.at, other.at
        if p is not None and q is not None:
            if p.shape == q.shape and where == tuple(range(len(where))) and np.array_equal(p.groups, q.groups):
                return np.asarray((self.values * other.values) @ p.shares)
            count = other.values.shape[1]
            pairs = p.groups.reshape(p.shape) * count + q.placed(where, len(p.shape))
            found, times = np.unique(pairs, return_counts=True)
            return np.asarray((self.values[:, found // count] * other.values[:, found % count]) @ (times / pairs.size))
        return self._average() * other._average()

    def _average(self) -> Array:
        return self.values[:, 0] if self.at is None else np.asarray(self.values @ self.at.shares)


def coefficients_at(x: State) -> Coefficients:
    """Return the Hermite coefficients of x as a function of its Gaussian source, by groups of positions where means
    differ. Where the source has local scales, they are scaled so that their squares add up to the variance of x.
    """
    base, fn = x.gaussian_source()
    function, std = fn or IDENTITY, np.sqrt(base.var)
    quantiles = None if base.transport is None else base.transport.values
    if base.mean.size > 1 and base.local_scales is None and not is_scalable(function, base.mean):
        at = grouped(base.mean, std)
        values = hermite_many(function, at.means, at.stds, quantiles)[0]
        values[0] = 0.0
        return Coefficients(values, at)
    mean, deviation = average_of(base.mean, std)
    if quantiles is None:
        a = _at_point(function, mean, deviation)[2].copy()
    else:
        a = hermite_many(function, np.array([mean]), np.array([deviation]), quantiles)[0][:, 0]
    a[0] = 0.0
    if base.local_scales is not None and quantiles is None and (whole := float(a @ a)) > 0.0:
        a *= math.sqrt(kernels.average(x.var) / whole)
    return Coefficients(a[:, None])


class Expanded(NamedTuple):
    """The first fields of an `Expansion`: mean and second moment by group of positions, slope and powers averaged."""

    mean: Array
    second: Array
    slope: float
    powers: Array


def moments_at(function: Pointwise, at: Groups, stds: Array, transport: Transport | None) -> Expanded:
    """Return the moments of a function at groups of positions of these means and standard deviations."""
    if at.groups.size == 1 and transport is None:
        first, second, a = _at_point(function, *rounded(float(at.means[0]), float(stds[0])))
        mean, square, a = np.full(1, first), np.full(1, second), a[:, None]
    else:
        a, square = hermite_many(function, at.means, stds, None if transport is None else transport.values)
        mean = a[0]
    powers = (a * a) @ at.shares
    linear = a[1] if transport is None else transport.coefficients @ a
    slopes = linear / np.maximum(stds, 1e-300)
    powers[ORDER] += max(float(square @ at.shares) - float(powers.sum()), 0.0)
    return Expanded(mean, np.maximum(square, mean**2), float(slopes @ at.shares), np.maximum(powers, 0.0))


def expand(function: Pointwise, mean: Array, std: Array, transport: Transport | None = None) -> Expansion:
    """Expand g(x) for x ~ N(mean, std²) by position (arrays that broadcast against each other).

    One position, or a homogeneous function of zero-mean x, is exact; several are integrated on a fixed grid, and where
    very many differ, in groups of nearly equal mean and standard deviation. Given a transport t, x is mean + std t(Z).
    """
    if transport is None and is_scalable(function, mean):
        first, second, a = _at_point(function, 0.0, 1.0)
        power = kernels.average(std * std)
        powers = a * a * power
        powers[ORDER] += max((second - float((a * a).sum())) * power, 0.0)
        return Expansion(std * first, std * std * second, float(a[1]), powers, *conditioning(function, 0.0, 1.0)[:2])
    at = grouped(mean, std)
    made = moments_at(function, at, at.stds, transport)
    rest = conditioning(function, *average_of(mean, std), transport)[:2]
    return Expansion(at.by_position(made.mean), at.by_position(made.second), made.slope, made.powers, *rest)


def is_scalable(function: Pointwise, mean: Array) -> bool:
    """Whether a function of a signal is proportional to the signal's standard deviation."""
    return not kernels.nonzero(mean) and is_homogeneous(function)


@lru_cache(maxsize=8192)
def is_power(function: Pointwise) -> bool:
    """Whether g(c x) = c^k g(x) for c > 0 and some k (ReLU, x², |x|³)."""
    x = NODES[::40]
    with np.errstate(all="ignore"):
        y, larger = function(x), function(3.0 * x)
        at = int(np.argmax(np.abs(y)))
        return bool(np.isfinite(larger).all() and y[at] and np.allclose(larger, larger[at] / y[at] * y, rtol=1e-9))
