"""Weights of a softmax along an axis: what a mask and known means of its logits make of them.

Source: signals.md 5.8.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from wellposed.arrays import array_of
from wellposed.operators.facts import facts_of
from wellposed.signals.algebra.softmax import variance_of
from wellposed.signals.algebra.softmax_overlap import overlap
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.state import State
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array
from wellposed.signals.sampling.samples import outside
from wellposed.structure.patches import unviewed

LARGEST_EVEN = 4.0
"""Largest variance of logits that even weights are corrected for: E exp(x)² / (E exp x)² is exp of it. Chosen."""


def covariance_of_weights(
    x: State, axis: int, rho: Array, variance: float, second: Array, known: tuple[Array, float]
) -> Array:
    """Return the covariance kernel of the weights of a softmax along an axis.

    Of one key E[a a'] T is what logits of a ``variance`` and a correlation ``rho`` have in common (`overlap`), times
    the products of known shares; of two keys what is left, as weights sum to 1.

    Args:
        x: the logits.
        axis: along which the weights sum to 1.
        rho: correlation kernel of the logits of one key.
        variance: of what differs between keys, known means aside.
        second: T E a², by query where these differ.
        known: `known_shares`.
    """
    at, total, query = x.axes[axis][0], x.shape[axis], x.axes[axis - 1] if axis else ()
    # along indices where the logits are independent the weights still share what is known of them
    rho = kernels.promote(rho, [1 if k == at else min(2, size) for k, size in enumerate(x.lengths)])
    same = (overlap(rho, variance, 1.0 / known[0], second) * known[0]).mean(axis=-1)
    if len(query) == 1 and rho.shape[query[0]] > 1:
        level, typical = float(np.exp(np.log(known[0]).mean())), kernels.average(second)
        others = np.minimum(overlap(rho, variance, 1.0 / level, typical) * known[1], np.maximum(typical, known[1]))
        first = (slice(None),) * query[0]
        same = np.concatenate([same[(*first, slice(1))], others[(*first, slice(1, None))]], axis=query[0])
    same[(0,) * same.ndim] = kernels.average(second)
    raw_same = same / total
    raw_other = (1.0 - same) / (total * (total - 1.0)) if total > 1 else np.zeros_like(same)
    return np.asarray(np.concatenate([raw_same, raw_other], axis=at) - 1.0 / total**2)


def known_shares(x: State, axis: int, shown: Array | None, variance: float) -> tuple[Array, float]:
    """Return sum over keys of the product of two queries' mean weights under a mask and known means of logits: for one
    query in two samples (queries,) or (1,), and the mean for two queries.

    A ``variance`` of logits makes mean weights flatter: means count with 1 / sqrt(1 + π variance / 8), as of a sigmoid
    (MacKay 1992, "The evidence framework applied to classification networks", eq. 10).
    """
    at, query = x.axes[axis][0], x.axes[axis - 1] if axis else ()
    level = 1.0 / x.shape[axis]
    if len(query) != 1 or (shown is None and x.mean.shape[at] == 1):
        return np.full(1, level), level
    weights = _known_weights(x.mean / math.sqrt(1.0 + math.pi / 8.0 * variance), at, query[0], shown)
    if weights.shape[at] == 1:
        return np.full(1, level), level
    weights = np.moveaxis(weights, (query[0], at), (-2, -1))
    weights = weights / np.maximum(weights.sum(axis=-1, keepdims=True), 1e-300)
    same = (weights**2).sum(axis=-1).reshape(-1, weights.shape[-2]).mean(axis=0)
    count = len(same)
    if count == 1:
        return same, float(same[0])
    whole = float((weights.sum(axis=-2) ** 2).sum(axis=-1).mean())
    return same, max((whole - float(same.sum())) / (count * (count - 1.0)), level**2)


def _known_weights(mean: Array, at: int, query: int | None, shown: Array | None) -> Array:
    """Return exp(known means of logits) times the average of the mask over samples: weights that are not normalised."""
    weights = np.exp(mean - mean.max(axis=at, keepdims=True))
    if shown is None or query is None or shown.ndim < 2:
        return np.asarray(weights)
    table = shown.reshape(-1, *shown.shape[-2:]).mean(axis=0)
    return np.asarray(
        weights * np.moveaxis(table.reshape(*table.shape, *(1,) * (weights.ndim - 2)), (0, 1), (query, at))
    )


def variance_of_weights(x: State, axis: int, shares: Array) -> Array:
    """Return the variance of softmax weights along an axis, of shape that broadcasts over the atoms of x; ``shares`` is
    T E a², for each query or for all.
    """
    query, total = x.axes[axis - 1] if axis else (), x.shape[axis]
    extent = [1] * len(x.lengths)
    if shares.size > 1 and len(query) == 1 and shares.size == x.lengths[query[0]]:
        extent[query[0]] = shares.size
    else:
        shares = np.full(1, kernels.average(shares))
    mean = 1.0 / total
    return np.maximum(shares / total - mean * mean, 0.0).reshape(extent)


def keys_shown(mask: torch.Tensor | None, x: State, axis: int) -> Array | None:
    """Return a mask of keys along the last axis of the logits as numbers; None for other axes."""
    last = axis == len(x.shape) - 1
    return array_of(mask) if mask is not None and last and mask.shape[-1] == x.shape[axis] else None


def is_one_number(call: Call, x: State) -> bool:
    """Whether masked logits are all one number: written over, or so large that single precision loses the scores."""
    at = call.graph.values[unviewed(call.graph, call.node.inputs[0])].node
    if at is not None and facts_of(call.graph.nodes[at].op).merges == "choice":
        return True
    scores = None if x.masked is None else x.masked.scores
    return scores is None or abs(outside(x)) > LARGEST_EXACT * math.sqrt(scores.pooled_var)


LARGEST_EXACT = 2.0**24
"""Ratio of two numbers from which on a sum in single precision keeps nothing of the smaller. Source: IEEE 754."""


def with_all_for_none(mask: torch.Tensor | None) -> torch.Tensor | None:
    """Return a mask that shows all keys to queries that see none: their scores are one number, as for padding, and
    weights even.
    """
    if mask is None or mask.dtype != torch.bool or not mask.ndim:
        return mask
    return mask | ~mask.any(dim=-1, keepdim=True)


def keys_seen(x: State, axis: int, shown: Array | None, variance: float) -> Array:
    """Return the number of keys that each query sees along an axis under a mask, averaged over samples
    (`over_samples`): (queries,), or (1,) where all see the same number.

    Queries that see none weigh all keys evenly (`with_all_for_none`), and count as in `masks.keys_of_queries`.
    """
    if shown is None:
        return np.array([float(x.shape[axis])])
    counts = shown.sum(axis=-1)
    counts = np.where(counts > 0.0, np.maximum(counts, 1.0), x.shape[axis] * math.exp(min(variance, LARGEST_EVEN)))
    if counts.ndim and axis and counts.shape[-1] in (1, x.shape[axis - 1]):  # 1: a mask alike for all queries
        counts = over_samples(counts.reshape(-1, counts.shape[-1]))
    return np.asarray(counts, dtype=np.float64).ravel()


def over_samples(counts: Array) -> Array:
    """Return the harmonic mean of ``counts`` (samples, queries) over samples without zeros: a mean of n values has
    their variance over n.
    """
    some = counts > 0.0
    inverse = (some / np.maximum(counts, 1.0)).sum(axis=0) / np.maximum(some.sum(axis=0), 1)
    return np.asarray(1.0 / np.where(inverse > 0.0, inverse, 1.0))


def variance_of_means(x: State, axis: int, shown: Array | None, counts: Array) -> float:
    """Return the variance of Gaussian logits whose softmax is as uneven as the known means of x make it along an axis,
    where queries see ``counts`` keys; 0 for equal means.
    """
    at, query = x.axes[axis][0], x.axes[axis - 1] if axis else ()
    if x.mean.shape[at] == 1 or not np.ptp(x.mean, axis=at).any():
        return 0.0
    weights = _known_weights(x.mean, at, query[0] if len(query) == 1 else None, shown)
    second = (weights**2).sum(axis=at) / np.maximum(weights.sum(axis=at) ** 2, 1e-300)
    kept = query[0] - (query[0] > at) if len(query) == 1 else None
    second = np.asarray(second.mean(axis=tuple(i for i in range(second.ndim) if i != kept))).ravel()
    same = counts.size == second.size
    return variance_of(counts if same else np.full(second.size, np.exp(np.log(counts).mean())), second)
