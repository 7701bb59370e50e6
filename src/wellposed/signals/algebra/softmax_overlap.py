"""How much the softmax weights of two queries overlap, where their logits are correlated."""

from __future__ import annotations

import math

import numpy as np

from wellposed.signals.algebra.softmax import SHARPEST, interpolated_participations
from wellposed.signals.integration.kernels import Array

OWN_PART = (1.5, 0.76, 0.5, 1.7, 0.4, 0.4)
"""How much the part of two queries' logits that each has for itself flattens what they share (`_flattening`). Fitted:
of 2 to 512 keys, and variances of .5 to 60, ln E sum_j a_j a'_j is off by .02 octaves on average and .2 at most."""
STEPS, LEAST_STEP = 4, -24
"""Variances by octave between which the logarithm of an overlap is interpolated, and the first one's number. Chosen."""


def overlap(correlation: Array | float, variance: float, keys: Array | float, second: Array | float) -> Array:
    """Return T E sum_j a_j a'_j for the weights a, a' of two queries: 1 where they have nothing in common, and T times
    ``second`` where they are equal.

    What each query has for itself is noise on what both share, so that the mean weights given the shared part are the
    softmax of that part, flattened: E sum_j a_j a'_j is the E sum_j a_j² of logits of variance r σ² / (1 + k (1 - r)
    σ²), as for a sigmoid with k = π / 8 (MacKay 1992, "The evidence framework applied to classification networks",
    eq. 10).

    Args:
        correlation: r of the two queries' logits, any shape.
        variance: σ² of the logits.
        keys: T, one number or one for each query.
        second: E sum_j a_j² of one query, likewise; where the logits are no Gaussians it is not that of σ².

    Returns:
        Of the shape of ``correlation``, with an axis of queries behind it where there are several numbers of keys.
    """
    one = np.ndim(keys) == 0
    count, r = np.atleast_1d(np.asarray(keys, dtype=np.float64)), np.asarray(correlation, dtype=np.float64)
    size = np.minimum(np.abs(r), 1.0)
    flat = _flattening(math.exp(float(np.log(count).mean())), variance, size)
    made = _logarithm(count, size * variance / (1.0 + flat * (1.0 - size) * variance))
    whole = _logarithm(count, np.asarray(variance))
    power = np.log(np.maximum(count * np.atleast_1d(second), 1.0)) / np.maximum(whole, 1e-12)
    result = np.exp(np.where(r < 0.0, -1.0, 1.0)[..., None] * made * np.where(whole > 1e-12, power, 1.0))
    return np.asarray(result[..., 0] if one else result)


def _flattening(keys: float, variance: float, correlation: Array) -> Array:
    """Return k of `overlap`: of many keys, whose weights are flat, sums over keys hardly vary, and it goes to 0."""
    a, power, b, level, start, fall = OWN_PART
    many = math.log(max(keys, 2.0))
    sharp = max(1.0 - 4.0 / keys, 0.0) * variance / (variance + level * many) / many**fall
    return np.asarray(a * max(keys, 1.0) ** -power + b * sharp * (start + correlation))


def _logarithm(keys: Array, variance: Array) -> Array:
    """Return ln(T E sum_j a_j²) of Gaussian logits, of shape (*variances, keys), interpolated between few variances."""
    variance = np.minimum(variance, SHARPEST)
    least = 2.0 ** (LEAST_STEP / STEPS)
    step = np.floor(STEPS * np.log2(np.maximum(variance, least))).astype(int)
    known = {at: _at_step(keys, at) for at in {*step.ravel().tolist(), *(step.ravel() + 1).tolist()}}
    low, high = 2.0 ** (step / STEPS), 2.0 ** ((step + 1) / STEPS)
    before, after = (np.array([known[at] for at in each.ravel().tolist()]) for each in (step, step + 1))
    before, after = (each.reshape(*variance.shape, len(keys)) for each in (before, after))
    part = ((variance - low) / (high - low))[..., None]
    below = (variance / least)[..., None] * before
    return np.asarray(np.where((variance < least)[..., None], below, before + part * (after - before)))


def _at_step(keys: Array, step: int) -> Array:
    return np.asarray(np.log(keys * interpolated_participations(keys, 2.0 ** (step / STEPS))))
