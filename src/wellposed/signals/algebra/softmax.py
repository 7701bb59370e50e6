"""The weights of a softmax of Gaussian logits: how many share it, and how they depend on each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from wellposed.arrays import distinct
from wellposed.signals.algebra.tokens import varying
from wellposed.signals.distributions.attention import EVEN, Law, Logits, Tokens
from wellposed.signals.distributions.mixtures import gamma_nodes
from wellposed.signals.distributions.state import State
from wellposed.signals.distributions.views import merge_atoms
from wellposed.signals.integration import kernels
from wellposed.signals.integration.gaussian import density
from wellposed.signals.integration.kernels import Array

SHARPEST = 400.0
"""Variance of logits above which a softmax counts as picking one key. Chosen: a standard deviation of 20."""
LARGEST_EXPONENT = 50.0
"""Largest x whose exp(x) is taken. Chosen: no query sees as many as exp(50) = 5e21 keys."""


def law_told(x: State) -> Law:
    """Return the `Law` of the logits x, or of the scores below the mask of x; () for tensors that are no logits."""
    if x.masked is not None:
        return () if x.masked.scores is None else law_told(x.masked.scores)
    return x.attention if isinstance(x.attention, tuple) else ()


def summed(terms: Sequence[tuple[float, Law]]) -> Law:
    """Return the `Law` of a sum of independent logits, given variance and law of each term; a bias has no law."""
    total = sum(variance for variance, _ in terms)
    laws = [(variance / total, Logits(0.0, *law)) for variance, law in terms if law] if total > 0.0 else []
    if not laws:
        return ()
    curved = sum(share**2 * law.curved for share, law in laws)
    uneven = sum(share**2 * law.uneven for share, law in laws)
    keys = sum(share**2 * law.keys for share, law in laws)
    shared = sum(share**2 * law.shared for share, law in laws)
    part = min(sum(share * law.part for share, law in laws), 1.0)
    return curved, uneven, keys, laws[0][1].along, shared, part, laws[0][1].tokens


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
    level = np.minimum(u[:, None] + sigma * z, LARGEST_EXPONENT)
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
def gathered(keys: tuple[float, ...], law: Logits) -> tuple[Array, Array, Array]:
    """Return three arrays by number of keys: A2 = E sum_j a_j²; the pull, how much of a mean of values lies along its
    query relative to the logits' variance; and E sum_j a_j² s_j - A2 for keys and values of sizes s_j.

    With x_j = l_j / sigma the pull is (E (sum_j a_j x_j)² - A2) / sigma² for Gaussian logits, and (E sum_{j != l} a_j
    a_l x_j x_l) / sigma² on a sphere, where tokens have no less across the query the more they have along it. Both are
    one-dimensional integrals as in `participations`, averaged over queries (a Gamma distribution of sigma²), and over
    sizes (another).
    """
    count = np.array(keys)
    second, pull, picked = (np.zeros_like(count) for _ in range(3))
    scales, weights, values = _variance_nodes(law)
    for scale, weight, size in zip(scales, weights, values, strict=True):
        variance = min(law.variance * scale, SHARPEST)
        sums = _expectations(keys, variance, law.curved, law.keys)
        second += weight * sums.second
        picked += weight * size * sums.picked
        pull += weight * size * sums.pull(bool(law.curved)) * scale / variance
    return np.clip(second, 1.0 / count, 1.0), np.clip(pull, 0.0, None), picked - second


@lru_cache(maxsize=4096)
def varied(keys: float, law: Logits, common: float, lifted: float) -> tuple[float, float]:
    """Return the variance of ln(squared norm of a query's result) that the weights add to that of the values, and the
    part of it that all heads share: some queries attend to fewer, or larger, keys than others.

    Values have the correlation ``common``; the part ``lifted`` of the squared norm lies along the query.
    """
    if law.variance <= 1e-8:
        return 0.0, 0.0
    scales, weights, values = _variance_nodes(law)
    variances = np.minimum(law.variance * scales, SHARPEST)
    sums = [_expectations((keys,), float(variance), law.curved, law.keys) for variance in variances]
    picked, squared, along = (
        np.array([float(row[0]) for row in rows])
        for rows in zip(*((each.picked, each.squared, each.pull(bool(law.curved))) for each in sums), strict=True)
    )
    along = np.clip(along, 0.0, None) * scales / variances
    pull = lifted * along / max(float(weights @ along), 1e-300)
    rest = (1.0 - lifted) / (common + (1.0 - common) * float(weights @ picked))
    energy = rest * (common + (1.0 - common) * picked) + pull
    chance = (rest * (1.0 - common)) ** 2 * np.maximum(squared - picked**2, 0.0)
    mean, level = float(weights @ (values * energy)), float(weights @ values**2)
    own = max(math.log(float(weights @ (values**2 * (energy**2 + chance))) / mean**2 / level), 0.0)
    if len(scales) == 1 or law.shared < EVEN:
        return own, 0.0
    # by the size of a query alone: averaged over what each head adds
    tokens, of_tokens = _gamma(law.shared)
    heads, of_heads = _gamma((1.0 + law.uneven) / (1.0 + law.shared) - 1.0)
    known = np.log(energy)
    by_token = np.exp(np.interp(np.log(np.outer(tokens, heads)), np.log(scales), known)) @ of_heads
    return own, min(math.log(float(of_tokens @ by_token**2) / float(of_tokens @ by_token) ** 2), own)


def _variance_nodes(law: Logits) -> tuple[Array, Array, Array]:
    """Return quadrature over queries: factors of the logits' variance, weights, and mean sizes of the values."""
    scales, weights = _gamma(law.uneven)
    values = scales**law.along
    return scales, weights, np.asarray(values / (weights @ values))


def _gamma(kappa: float) -> tuple[Array, Array]:
    """Return nodes and weights for a Gamma variable of mean 1 and variance kappa; one node if that is small."""
    return gamma_nodes(kappa, QUERY_NODES) if kappa >= EVEN else (np.ones(1), np.ones(1))


QUERY_NODES = 5
"""Nodes of the Gamma quadrature over queries. Chosen for cost."""


class Expectations(NamedTuple):
    """Expectations for the softmax of logits sigma y_j, y_j = sqrt(s_j) x_j with x_j of one law and sizes s_j.

    Attributes:
        second: E sum_j a_j².
        picked: E sum_j a_j² s_j.
        own: E sum_j a_j² y_j².
        cross: E sum_{j != l} a_j a_l y_j y_l.
        squared: E (sum_j a_j² s_j)².
    """

    second: Array
    picked: Array
    own: Array
    cross: Array
    squared: Array

    def pull(self, curved: bool) -> Array:
        """Return how far values follow the query."""
        return self.cross if curved else self.cross + self.own - self.picked


@lru_cache(maxsize=4096)
def _expectations(keys: tuple[float, ...], sigma2: float, curved: float, uneven: float) -> Expectations:
    """Return the `Expectations` for each number of keys, where sizes of keys have the variance ``uneven``."""
    count = np.array(keys)
    sigma = math.sqrt(sigma2)
    if curved > 1.0 / 400.0:
        angle = np.linspace(0.0, np.pi, 2 * LAW_POINTS + 1)[1:-1]
        z, w = np.cos(angle) / math.sqrt(curved), np.sin(angle) ** max(1.0 / curved - 2.0, 0.0)
    else:
        z = np.linspace(-8.0, 8.0, min(2 * LAW_POINTS + 1 + 2 * math.ceil(20.0 * max(sigma - 1.0, 0.0)), 321))
        w = density(z)
    sizes, shares = _gamma(uneven)
    z, w = np.outer(np.sqrt(sizes), z).ravel(), np.outer(shares, w / w.sum()).ravel()
    large = np.repeat(sizes, z.size // sizes.size)
    far = 8.0 * sigma * math.sqrt(float(sizes.max()))
    u = np.linspace(-far - math.log(float(count.max())) - 8.0, far + 6.0, 400)
    level = np.minimum(u[:, None] + sigma * z, LARGEST_EXPONENT)
    power = np.exp(level)
    fall = np.exp(-power)
    alone = np.log(np.maximum(fall @ w, 1e-300))
    squared = power * power * fall
    first, second, along = (power * fall) @ (w * z), squared @ w, squared @ (w * z * z)
    picked, fourth = squared @ (w * large), (squared * power * power) @ (w * large * large)

    def expected(values: Array, others: float) -> Array:
        return np.asarray(count * np.trapezoid(values * np.exp((count[:, None] - others) * alone), u, axis=1))

    every = (expected(fourth, 1.0) + (count - 1.0) * expected(picked * picked, 2.0)) / 6.0
    cross = (count - 1.0) * expected(first * first, 2.0)
    return Expectations(expected(second, 1.0), expected(picked, 1.0), expected(along, 1.0), cross, every)


LAW_POINTS = 30
"""Points on either side of the mean at which the law of logits is summed. Chosen for cost."""


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
    unique = distinct(keys)
    return distinct(np.round(np.geomspace(unique[0], unique[-1], 12), 3)) if unique.size > 12 else unique


def interpolated(keys: Array, law: Logits) -> tuple[Array, Array, Array]:
    """Return the three arrays of `gathered` for many numbers of keys, interpolated where these are many.

    For Gaussian logits alike for all queries the pull is 1 - 7 A2 + 6 A3 + 6 E sum_{jl} (a_j d_jl - a_j a_l)², by
    Gaussian integration by parts: 1 for flat weights of many keys, 0 where one key is picked.
    """
    law = law.coarse()
    if max(law.curved, law.uneven, law.keys) == 0.0 or law.variance <= 1e-8:
        second = interpolated_participations(keys, law.variance)
        third, moved = interpolated_choices(keys, law.variance)
        return second, np.clip(1.0 - 7.0 * second + 6.0 * (third + moved), 0.0, 1.0), np.zeros_like(second)
    unique = typical_keys(keys)
    second, *others = gathered(tuple(unique.tolist()), law)
    at, known = np.log(keys), np.log(unique)
    pull, picked = (np.interp(at, known, table) for table in others)
    return np.exp(np.interp(at, known, np.log(second))), pull, picked


def interpolated_participations(keys: Array, sigma2: float) -> Array:
    """`participations` for many numbers of keys, interpolated in log-log where there are many."""
    unique = typical_keys(keys)
    table = participations(tuple(unique.tolist()), float(f"{sigma2:.6g}"))
    return np.asarray(np.exp(np.interp(np.log(keys), np.log(unique), np.log(table))))


def variance_of(keys: Array, second: Array) -> float:
    """Return the variance of Gaussian logits whose E sum_j a_j², averaged over ``keys``, is the average of ``second``:
    it stands for known biases of the logits.
    """
    column = [float(interpolated_participations(keys, float(variance)).mean()) for variance in BIAS_VARIANCES]
    return float(np.interp(float(second.mean()), np.maximum.accumulate(column), BIAS_VARIANCES))


BIAS_VARIANCES = np.concatenate([[0.0], np.geomspace(1e-2, SHARPEST, 32)])
"""Variances between which that of a bias of logits is interpolated. Chosen: 7 by decade."""


def interpolated_choices(keys: Array, sigma2: float) -> tuple[Array, Array]:
    """`choices` for many numbers of keys, interpolated in ln T as multiples of 1/T² and of 1/T."""
    unique = typical_keys(keys)
    third, spread = choices(tuple(unique.tolist()), float(f"{sigma2:.6g}"))
    at, known = np.log(keys), np.log(unique)
    return np.interp(at, known, third * unique**2) / keys**2, np.interp(at, known, spread * unique) / keys


def law_of(variance: float, queries: State, keys: State, at: Places, width: int, tokens: Tokens | None) -> Logits:
    """Return the law of logits of this variance, to which the covariance of the sizes of queries and keys is added.

    Both have ``width`` features and the axes ``at``; ``tokens`` are the correlations of keys.

    A query's logits have the variance q' S q, S the covariance of keys, which for few features, or few dimensions that
    they were computed from, has long and short axes: 2 / width + 2 / D relative to its square. Of tokens that differ in
    size, by chance or by position, D says no more than the sizes of queries and of all keys of one query; and what
    sizes Gaussian tokens of D dimensions have, 2 / D, leaves logits Gaussian over the keys.
    """
    (of_q, mean_q), (of_k, mean_k) = (varying(x, axis) for x, axis in ((queries, at.query), (keys, at.key)))
    both = (
        queries.local_scale_sources.covariance(keys.local_scale_sources) / math.sqrt(of_q * of_k)
        if of_q and of_k
        else 0.0
    )
    both *= math.sqrt(mean_q * mean_k)
    own, other = _by_position(queries, keys, at)
    shared = math.exp(of_q + mean_k + 2.0 * both) * (1.0 + own) - 1.0
    uneven = 2.0 / width + (1.0 + 2.0 * keys.finite_width_correlation.variance) * (1.0 + shared) - 1.0
    along = (mean_k + both) / math.log1p(uneven)
    beyond = math.exp(of_k - mean_k) * (1.0 + other) / (1.0 + 2.0 * keys.finite_width_correlation.variance) - 1.0
    return Logits(
        variance * math.exp(both), keys.equal_norm_inverse_dim, uneven, max(beyond, 0.0), along, shared, 1.0, tokens
    )


class Places(NamedTuple):
    """The axis of tokens of queries and of keys, and the labels of the axes of both."""

    query: int
    key: int
    of_query: Sequence[str]
    of_key: Sequence[str]


def is_uneven(x: State, axis: int) -> bool:
    """Whether positions along an axis differ in size: by local scales, or by known variances."""
    return x.local_scales is not None or (any(x.var.shape[i] > 1 for i in x.axes[axis]) and _varies(x.var))


def _by_position(queries: State, keys: State, at: Places) -> tuple[float, float]:
    """Return the variance over queries of a query's logits, and over the keys of one query of the sizes of keys, both
    relative to the square of their mean, as far as they follow from variances that are known by position.
    """
    if not (_varies(queries.var) or _varies(keys.var)):
        return 0.0, 0.0
    labels = tuple(dict.fromkeys((*at.of_query, *at.of_key)))
    q, k = (_labelled(x, own, labels) for x, own in ((queries, at.of_query), (keys, at.of_key)))
    key = labels.index(at.of_key[at.key])
    mean = k.mean(axis=key, keepdims=True)
    rows = q * mean
    squares = kernels.average(mean * mean)
    own = float(np.var(rows)) / kernels.average(rows) ** 2 if rows.any() else 0.0
    return own, kernels.average(k * k) / squares - 1.0 if squares > 0.0 else 0.0


def _varies(var: Array) -> bool:
    return var.size > 1 and bool(np.ptp(var))


def _labelled(x: State, own: Sequence[str], labels: Sequence[str]) -> Array:
    """Return the variance by position with one dimension for each label."""
    for axis in range(len(x.axes)):
        x = merge_atoms(x, axis) if len(x.axes[axis]) > 1 else x
    order = [x.axes[own.index(label)][0] for label in labels if label in own and x.axes[own.index(label)]]
    lacking = [at for at, label in enumerate(labels) if label not in own or not x.axes[own.index(label)]]
    return np.expand_dims(x.var.transpose(order), lacking)


def off_diagonal(x: State, axis: int) -> float:
    """Mean correlation of elements at different positions of one axis (equal otherwise)."""
    members = x.axes[axis]
    if not members:
        return 0.0
    x = merge_atoms(x, axis) if len(members) > 1 else x
    i = x.axes[axis][0]
    index = tuple(slice(None) if k == i else 0 for k in range(x.corr.ndim))
    return float(kernels.off_diagonal_mean(x.corr[index], [x.lengths[i]], 0)[0])
