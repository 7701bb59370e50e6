"""How zero padding sets the border of a channel apart from its mean, where the input has a mean.

A convolution of a signal with mean m gives every channel an offset sum_a w_a m(p + a), constant inside and another one
at the border, where taps fall into the padding. Two positions inside share it wholly, one inside and one at the border
in part: their covariance is not of the form s_p s_q R(p - q) that the state keeps. Norms subtract nearly all of it, so
that what is left depends on the exact covariance of each position with the mean (signals.md 5.5).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from wellposed.signals.integration import windows
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.windows import Axis

LONGEST = 512
"""Axis length above which the border is too small a part to matter. Chosen."""
SMALLEST_LEVEL = 1e-2
"""Square of the mean over positions, relative to the mean square over them, from which on there is a margin. Chosen."""


def margin(mean: Array, total: Array, dims: list[int], steps: list[Axis], channels: int) -> Array | None:
    """Return the covariance of each output position with the mean over positions, less that of the kernel s_p s_q R(p -
    q).

    For weights of unit variance: C(p) = sum over taps a of m(p + a) <m(q + a)>_q, with m as a product of one factor for
    each axis.

    Args:
        mean: map of the input's mean.
        total: map of the output's second moment.
        dims: spatial dimensions of the maps.
        steps: the window along each.
        channels: input channels that one output spans.

    Returns:
        A map over ``dims``; None where nothing is padded, an axis is too long, the input has no mean, or its mean over
        positions is small beside its differences (no product of factors).
    """
    if not mean.any() or not any(step.padded for step in steps) or any(step.out > LONGEST for step in steps):
        return None
    level = float(np.mean(mean))
    if level * level <= SMALLEST_LEVEL * float(np.mean(mean * mean)):
        return None
    exact, stationary = np.ones((1,) * mean.ndim), np.ones((1,) * mean.ndim)
    for dim, step in zip(dims, steps, strict=True):
        others = tuple(d for d in range(mean.ndim) if d != dim)
        factor = mean.mean(axis=others) / level
        spread = np.sqrt(total).mean(axis=others)
        here, pooled = _along(step, _key(factor), _key(spread / float(spread.max())))
        shape = [1] * mean.ndim
        shape[dim] = step.out
        exact, stationary = exact * here.reshape(shape), stationary * pooled.reshape(shape)
    return np.asarray(channels * level * level * (exact - stationary))


def _key(values: Array) -> bytes:
    return np.ascontiguousarray(np.round(values, 9)).tobytes()


@lru_cache(maxsize=512)
def _along(step: Axis, mean: bytes, spread: bytes) -> tuple[Array, Array]:
    """Return <G(p, q)>_q by output position p, G the sum over taps of m m; and that of G as a stationary kernel."""
    m, s = np.frombuffer(mean), np.frombuffer(spread)
    index = windows.table(step)
    taps = np.where(index >= 0, m[np.maximum(index, 0)] if m.size > 1 else m[0], 0.0)
    s = s if s.size == step.out else np.full(step.out, s[0])
    products, scale = taps @ taps.T, np.outer(s, s)
    lag = np.abs(np.arange(step.out)[:, None] - np.arange(step.out))
    sums = np.bincount(lag.ravel(), products.ravel()), np.bincount(lag.ravel(), scale.ravel())
    corr = np.divide(sums[0], sums[1], out=np.zeros(step.out), where=sums[1] > 0.0)
    return products.mean(axis=1), (scale * corr[lag]).mean(axis=1)
