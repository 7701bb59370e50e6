"""The weights of a softmax of Gaussian logits: how many share it, and how they depend on each other."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from wellposed.signals.distributions.state import State
from wellposed.signals.distributions.views import merge_atoms
from wellposed.signals.integration import kernels
from wellposed.signals.integration.gaussian import density
from wellposed.signals.integration.kernels import Array

SHARPEST = 400.0
"""Logit variance above which a softmax counts as picking one key."""


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


def interpolated_pull(keys: Array, sigma2: float) -> Array:
    """Return (E (sum_j a_j x_j)² - A2) / sigma2 for logits sigma x_j: how far a softmax pulls a mean along its query.

    By Gaussian integration by parts this is 1 - 7 A2 + 6 A3 + 6 E sum_{jl} (a_j d_jl - a_j a_l)²: 1 for flat weights of
    many keys, 0 where one key is picked.
    """
    second = interpolated_participations(keys, sigma2)
    third, moved = interpolated_choices(keys, sigma2)
    return np.clip(1.0 - 7.0 * second + 6.0 * (third + moved), 0.0, 1.0)


def off_diagonal(x: State, axis: int) -> float:
    """Mean correlation of elements at different positions of one axis (equal otherwise)."""
    members = x.axes[axis]
    if not members:
        return 0.0
    x = merge_atoms(x, axis) if len(members) > 1 else x
    i = x.axes[axis][0]
    index = tuple(slice(None) if k == i else 0 for k in range(x.corr.ndim))
    return float(kernels.off_diagonal_mean(x.corr[index], [x.sizes[i]], 0)[0])
