"""The weights of a softmax of Gaussian logits: how many share it, and how they depend on each other."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from wellposed.signals.distributions.expansion import gamma_nodes
from wellposed.signals.distributions.state import State
from wellposed.signals.distributions.views import merge_atoms
from wellposed.signals.integration import kernels
from wellposed.signals.integration.gaussian import density
from wellposed.signals.integration.kernels import Array

SHARPEST = 400.0
"""Logit variance above which a softmax counts as picking one key."""
EVEN = 0.04
"""Variation of the logits' variance, and curvature of their law, below which logits count as Gaussian alike for all
queries."""


class Logits(NamedTuple):
    """How the logits of one query are distributed over its keys.

    Attributes:
        variance: their variance, averaged over queries.
        curved: 1 / D where keys lie on a sphere of so many dimensions (tokens that a norm has given one size): a logit
            is then one coordinate of a point of the sphere; 0 for Gaussian ones.
        uneven: variance over queries of the variance, relative to its square (few features have long and short axes).
    """

    variance: float
    curved: float = 0.0
    uneven: float = 0.0

    def coarse(self) -> Logits:
        """Return the law with few digits, so that what is worked out for it serves its like."""
        if max(self.curved, self.uneven) < EVEN:
            return Logits(float(f"{self.variance:.6g}"))
        return Logits(float(f"{self.variance:.3g}"), float(f"{self.curved:.2g}"), float(f"{self.uneven:.2g}"))


@lru_cache(maxsize=2)
def _laplace(sigma: float, most: float) -> tuple[Array, Array, Callable[[int], Array]]:
    """Return a grid in u = ln t, ln E[e^{-t e^x}] on it, and the function that gives t^p E[e^{px} e^{-t e^x}] for p.

    x ~ N(0, sigma²); the grid serves sums over at most ``most`` such terms.
    """
    # steps of at most 0.4 in z and in the logit resolve the density and e^{-t e^x}: 1e-9 relative
    z = np.linspace(-8.0, 8.0, min(1 + 2 * math.ceil(20.0 * max(sigma, 1.0)), 321))
    w = density(z)
    w /= w.sum()
    u = np.linspace(-8.0 * sigma - math.log(most) - 8.0, 8.0 * sigma + 6.0, 900)
    level = np.minimum(u[:, None] + sigma * z, 50.0)
    power = np.exp(level)
    fall = np.log(np.maximum(np.exp(-power) @ w, 1e-300))
    return u, fall, lambda p: np.exp(p * level - power) @ w


@lru_cache(maxsize=4096)
def participations(keys: tuple[float, ...], sigma2: float) -> Array:
    """Return A2 = E sum_j a_j² for the softmax of T independent N(0, sigma2) logits, for each T in ``keys`` (T >= 1).

    A2 = T int_0^inf t E[e^{2x} e^{-t e^x}] (E[e^{-t e^x}])^{T-1} dt, on one logarithmic grid in t for all T: only the
    power depends on T.
    """
    count = np.array(keys)
    if sigma2 <= 1e-8:
        return np.asarray(1.0 / count)
    u, fall, moment = _laplace(math.sqrt(min(sigma2, SHARPEST)), max(keys))
    values = count * np.trapezoid(moment(2) * np.exp((count[:, None] - 1.0) * fall), u, axis=1)
    return np.clip(values, 1.0 / count, 1.0)


@lru_cache(maxsize=4096)
def gathered(keys: tuple[float, ...], law: Logits) -> tuple[Array, Array]:
    """Return A2 = E sum_j a_j² and how far the softmax pulls a mean along its query, relative to the logits' variance.

    With x_j = l_j / sigma the pull is (E (sum_j a_j x_j)² - A2) / sigma² for Gaussian logits, and (E sum_{j != l} a_j
    a_l x_j x_l) / sigma² on a sphere, where tokens have no less across the query the more they have along it. Both are
    one-dimensional integrals as in `participations`, averaged over queries (a Gamma distribution of sigma²).
    """
    count = np.array(keys)
    second, pull = np.zeros_like(count), np.zeros_like(count)
    scales = zip(*gamma_nodes(law.uneven, NODES), strict=True) if law.uneven >= EVEN else ((1.0, 1.0),)
    for scale, weight in scales:
        variance = min(law.variance * scale, SHARPEST)
        a, own, cross = _sums(count, variance, law.curved)
        second += weight * a
        pull += weight * (cross if law.curved else cross + own - a) * scale / variance
    return np.clip(second, 1.0 / count, 1.0), np.clip(pull, 0.0, None)


NODES = 5
"""Variances of logits that queries are averaged over."""


def _sums(count: Array, sigma2: float, curved: float) -> tuple[Array, Array, Array]:
    """Return E sum_j a_j², E sum_j a_j² x_j² and E sum_{j != l} a_j a_l x_j x_l for logits sigma x_j of one law."""
    sigma = math.sqrt(sigma2)
    if curved > 1.0 / 400.0:
        angle = np.linspace(0.0, np.pi, 2 * REACH + 1)[1:-1]
        z, w = np.cos(angle) / math.sqrt(curved), np.sin(angle) ** max(1.0 / curved - 2.0, 0.0)
    else:
        z = np.linspace(-8.0, 8.0, min(2 * REACH + 1 + 2 * math.ceil(20.0 * max(sigma - 1.0, 0.0)), 321))
        w = density(z)
    w = w / w.sum()
    u = np.linspace(-8.0 * sigma - math.log(float(count.max())) - 8.0, 8.0 * sigma + 6.0, 400)
    level = np.minimum(u[:, None] + sigma * z, 50.0)
    power = np.exp(level)
    fall = np.exp(-power)
    alone = np.log(np.maximum(fall @ w, 1e-300))
    squared = power * power * fall
    first, second, along = (power * fall) @ (w * z), squared @ w, squared @ (w * z * z)

    def expected(values: Array, others: float) -> Array:
        return np.asarray(np.trapezoid(values * np.exp((count[:, None] - others) * alone), u, axis=1))

    cross = count * (count - 1.0) * expected(first * first, 2.0)
    return count * expected(second, 1.0), count * expected(along, 1.0), cross


REACH = 30
"""Points on either side of the mean at which the law of logits is summed."""


@lru_cache(maxsize=4096)
def choices(keys: tuple[float, ...], sigma2: float) -> tuple[Array, Array]:
    """Return A3 = E sum_j a_j³ and E sum_{jl} (a_j d_jl - a_j a_l)², as `participations` does A2.

    The second is the squared size of the softmax's derivative, A2 - 2 A3 + E (sum_j a_j²)²: 0 where one key is picked.
    """
    count = np.array(keys)
    if sigma2 <= 1e-8:
        return 1.0 / count**2, (1.0 - 1.0 / count) / count
    u, fall, moment = _laplace(math.sqrt(min(sigma2, SHARPEST)), max(keys))

    def expected(values: Array, others: float) -> Array:
        return np.asarray(np.trapezoid(values * np.exp((count[:, None] - others) * fall), u, axis=1))

    third = count * expected(moment(3), 1.0) / 2.0
    squared = (count * expected(moment(4), 1.0) + count * (count - 1.0) * expected(moment(2) ** 2, 2.0)) / 6.0
    second = participations(keys, sigma2)
    return np.clip(third, 1.0 / count**2, second), np.maximum(second - 2.0 * third + squared, 0.0)


def typical_keys(keys: Array) -> Array:
    """Return the numbers of keys, without repetition, from which those of all queries are interpolated."""
    unique = np.unique(keys)
    return np.unique(np.round(np.geomspace(unique[0], unique[-1], 12), 3)) if unique.size > 12 else unique


def interpolated(keys: Array, law: Logits) -> tuple[Array, Array]:
    """Return A2 and the pull (see `gathered`) for many numbers of keys, interpolated where there are many.

    For Gaussian logits alike for all queries the pull is 1 - 7 A2 + 6 A3 + 6 E sum_{jl} (a_j d_jl - a_j a_l)², by
    Gaussian integration by parts: 1 for flat weights of many keys, 0 where one key is picked.
    """
    law = law.coarse()
    if max(law.curved, law.uneven) == 0.0 or law.variance <= 1e-8:
        second = interpolated_participations(keys, law.variance)
        third, moved = interpolated_choices(keys, law.variance)
        return second, np.clip(1.0 - 7.0 * second + 6.0 * (third + moved), 0.0, 1.0)
    unique = typical_keys(keys)
    second, pull = gathered(tuple(unique.tolist()), law)
    at, known = np.log(keys), np.log(unique)
    return np.exp(np.interp(at, known, np.log(second))), np.interp(at, known, pull)


def interpolated_participations(keys: Array, sigma2: float) -> Array:
    """`participations` for many numbers of keys, interpolated in log-log where there are many."""
    unique = typical_keys(keys)
    table = participations(tuple(unique.tolist()), float(f"{sigma2:.6g}"))
    return np.asarray(np.exp(np.interp(np.log(keys), np.log(unique), np.log(table))))


def interpolated_choices(keys: Array, sigma2: float) -> tuple[Array, Array]:
    """`choices` for many numbers of keys, interpolated in ln T as multiples of 1/T² and of 1/T."""
    unique = typical_keys(keys)
    third, spread = choices(tuple(unique.tolist()), float(f"{sigma2:.6g}"))
    at, known = np.log(keys), np.log(unique)
    return np.interp(at, known, third * unique**2) / keys**2, np.interp(at, known, spread * unique) / keys


def law_of(variance: float, keys: State, width: int) -> Logits:
    """Return the law of logits of this variance, products of queries and keys of ``width`` features.

    A query's logits have the variance q' S q, S the covariance of keys, which for few features, or few dimensions that
    they were computed from, has long and short axes: 2 / width + 2 / D relative to its square.
    """
    return Logits(variance, keys.even, 2.0 / width + 2.0 * keys.alike.variance)


def off_diagonal(x: State, axis: int) -> float:
    """Mean correlation of elements at different positions of one axis (equal otherwise)."""
    members = x.axes[axis]
    if not members:
        return 0.0
    x = merge_atoms(x, axis) if len(members) > 1 else x
    i = x.axes[axis][0]
    index = tuple(slice(None) if k == i else 0 for k in range(x.corr.ndim))
    return float(kernels.off_diagonal_mean(x.corr[index], [x.sizes[i]], 0)[0])
