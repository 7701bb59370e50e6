"""Functions of a Gaussian whose local scale varies from position to position."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from wellposed.signals.distributions.expansion import Expanded, Expansion, conditioning, expand, is_scalable, moments_at
from wellposed.signals.distributions.functions import Pointwise
from wellposed.signals.distributions.groups import Groups, average_of, grouped, rounded
from wellposed.signals.distributions.lazy import Lazy, evaluated
from wellposed.signals.distributions.state import State
from wellposed.signals.distributions.tails import clip_unseen_tails, is_mostly, outgrows_powers
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.special import gamma_quantile

UNEVEN = 0.03
"""Relative variance of the local scale from which on functions are integrated over it. Chosen."""
SHARED_BY = 8
"""Elements that one random factor multiplies from which on it is their local scale. Chosen."""
LARGEST_VARIANCE = 8.0
"""Variance of a local scale, relative to its mean's square, up to which it is followed. Chosen."""
RARE = 1e-3
"""Share of positions and samples whose local scale is larger than any in a batch. Chosen."""


@lru_cache(maxsize=1024)
def gamma_nodes(kappa: float, count: int = 6) -> tuple[Array, Array]:
    """Return ``count`` nodes and their weights for a Gamma-distributed scale with mean 1 and variance kappa.

    Six nodes give E sqrt(scale) to 2e-9 for kappa = 0.03, to 2e-4 for 0.3, 8e-3 for 1, and 0.09 for 4.

    Source: Golub & Welsch 1969, with the recurrence of the orthonormal Laguerre polynomials.
    """
    # scipy's own nodes come with scipy.linalg, the import of which takes longer than most plans
    k = np.arange(count)
    middle, beside = 2.0 * k + 1.0 / kappa, np.sqrt(k * (k - 1.0 + 1.0 / kappa))
    nodes = np.linalg.eigvalsh(np.diag(middle) + np.diag(beside[1:], -1))
    values = np.zeros((count + 1, count))
    values[1] = 1.0
    for n in range(1, count):
        values[n + 1] = ((nodes - middle[n - 1]) * values[n] - beside[n - 1] * values[n - 1]) / beside[n]
    weights = 1.0 / (values * values).sum(axis=0)
    return nodes * kappa, weights / weights.sum()


@lru_cache(maxsize=1024)
def _usual_scales(kappa: float) -> tuple[Array, Array]:
    """Return eight nodes and weights for a Gamma scale of mean 1 and variance kappa below its quantile 1 - `RARE`."""
    nodes, weights = np.polynomial.legendre.leggauss(8)
    return gamma_quantile(1.0 / kappa, (1.0 - RARE) * (nodes + 1.0) / 2.0) * kappa, np.asarray(weights / 2.0)


def scales_of_squares(x: State, scales: Lazy | None) -> Array | None:
    """Return the covariance kernel of E[x² | local scale] / E x²: a known mean does not scale."""
    kernel = evaluated(scales)
    if kernel is None or x.function is not None or not kernels.nonzero(x.mean):
        return kernel
    return np.asarray(kernel * (kernels.average(x.var) / x.second_moment) ** 2)


def given_scales(corr: Array, shared: Array, kappa: float) -> Array:
    """Return the correlation kernel of the Gaussians g in elements sqrt(tau) g, given that of the elements.

    Cov(x, y) = E[sqrt(tau tau')] Cov(g, g'): all of it where the two share tau, E[sqrt(tau)]² where they do not.

    Args:
        corr: correlation kernel of the elements.
        shared: correlation kernel of tau, of the same shape.
        kappa: variance of tau, whose mean is 1.
    """
    scales, weights = gamma_nodes(float(f"{min(kappa, LARGEST_VARIANCE):.3g}"))
    apart = float(weights @ np.sqrt(scales)) ** 2
    return np.clip(corr / (apart + (1.0 - apart) * np.clip(shared, 0.0, 1.0)), -1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Mixture:
    """A function of sqrt(tau) times a Gaussian, tau with mean 1 and variance kappa.

    Attributes:
        average: the expansion averaged over tau (``powers`` of the averaged coefficients).
        own: variances of the coefficients over tau, n = 0..ORDER: they count where two elements share tau.
        kappa: relative variance of E[g² | tau].
        heavy: whether the expectation rests on scales that hardly a batch has, and was taken without them.
    """

    average: Expansion
    own: Array
    kappa: float
    heavy: bool = False


def expand_mixture(function: Pointwise, mean: Array, std: Array, kappa: float) -> Mixture:
    """`expand` for a Gaussian whose local scale varies (signals.md 5.7), less scales that occur in no batch (5.3)."""
    kappa = float(f"{min(kappa, 8.0):.3g}")
    scales, weights = gamma_nodes(kappa)
    if is_scalable(function, mean):
        whole = expand(function, mean, std)
        level, roots = kernels.average(whole.second), np.sqrt(scales)
        average = replace(
            whole, mean=float(weights @ roots) * whole.mean, second=float(weights @ scales) * whole.second
        )
        return _mixed(average, weights, level * scales, np.multiply.outer(roots, np.sqrt(whole.powers)))
    at = grouped(mean, std)
    parts = _at_scales(function, mean, std, at, scales)
    carried = weights * np.array([p.second @ at.shares for p in parts])
    widest = rounded(kernels.average(mean), math.sqrt(kernels.average(std * std) * float(scales.max())))
    heavy = is_mostly(carried, weights < RARE) and outgrows_powers(function, *widest)
    if heavy:
        scales, weights = _usual_scales(kappa)
        parts = _at_scales(function, mean, std, at, scales)
    least = std * math.sqrt(float(scales[0]))
    average = Expansion(
        at.by_position(weights @ np.array([p.mean for p in parts])),
        at.by_position(weights @ np.array([p.second for p in parts])),
        float(weights @ (scales * np.array([p.slope for p in parts]))),
        parts[0].powers,
        *conditioning(clip_unseen_tails(function, mean, least), *average_of(mean, least))[:2],
    )
    levels = np.array([p.second @ at.shares for p in parts])
    return _mixed(average, weights, levels, np.sqrt(np.array([p.powers for p in parts])), heavy)


def _mixed(average: Expansion, weights: Array, levels: Array, coefficients: Array, heavy: bool = False) -> Mixture:
    """Return the mixture over local scales of probability ``weights``, each with its second moment (``levels``) and
    coefficients (scales, orders).

    Coefficients keep their sign over the scales that matter: their absolute values are averaged.
    """
    averages = weights @ coefficients
    own = np.maximum(weights @ coefficients**2 - averages**2, 0.0)
    level = float(weights @ levels)
    kappa = float(weights @ (levels / level - 1.0) ** 2) if level > 0 else 0.0
    return Mixture(replace(average, powers=averages**2), own, kappa, heavy)


def _at_scales(function: Pointwise, mean: Array, std: Array, at: Groups, scales: Array) -> list[Expanded]:
    """Return the moments at each local scale, of the function with its tails cut off where no element lies."""
    return [
        moments_at(clip_unseen_tails(function, mean, std * root), at, at.stds * root, None)
        for root in np.sqrt(scales).tolist()
    ]
