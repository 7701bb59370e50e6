"""What a norm per channel makes of random filters: expectations of ratios of quadratic forms.

A channel of a convolution is one random filter w. Its variance is w'Sw, its covariance at displacement d is w'A(d)w, S
and A(d) the covariance of two patches of the input. Dividing each channel by its own variance gives
E[w'A(d)w / w'Sw], not the ratio of the expectations: smooth filters have the larger variance where the input is
smooth, and lose by the division.

Source: E[w'Aw / w'Sw] = int_0^inf tr(A (I + 2tS)^-1) det(I + 2tS)^-1/2 dt for Gaussian w (Magnus 1986).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from wellposed.signals.kernels import Array
from wellposed.signals.windows import Indices

LARGEST = 128
"""Largest number of taps, and the number of filter dimensions above which a channel's variance hardly varies."""


def excess(
    kernel: Array,
    dims: list[int],
    taps: list[int],
    steps: list[int],
    dilations: list[int],
    lags: list[int],
    channels: int,
    rho: float,
) -> Array | None:
    """Return E[w'A(d)w / w'Sw] - E[w'A(d)w] / E[w'Sw] by output displacement, or None where it is negligible.

    Args:
        kernel: centred covariance kernel of the input; only ``dims`` have length > 1.
        dims: spatial dimensions of the kernel.
        taps: window size per spatial dimension.
        steps: stride per spatial dimension.
        dilations: dilation per spatial dimension.
        lags: profile length of the result per spatial dimension.
        channels: input channels that one filter spans.
        rho: correlation of two input channels.
    """
    count = math.prod(taps)
    if count == 1 or count > LARGEST or (channels > LARGEST and rho == 0.0) or kernel.ravel()[0] <= 0.0:
        return None
    profile = kernel[tuple(slice(None) if d in dims else 0 for d in range(kernel.ndim))]
    order = np.argsort(np.argsort(dims))
    profile = profile.transpose(order) / float(profile.ravel()[0])
    offset, differences, index = _tap_pairs(tuple(taps), tuple(dilations))
    matrix = _lookup(profile, offset) / count
    values, vectors = np.linalg.eigh(matrix)
    values = np.maximum(values, 0.0)
    shared, own = (1 + (channels - 1) * rho) / channels, (1 - rho) / channels
    falls = _falls(values, shared, own, channels)
    gains = shared * _ratio(falls, values * shared)
    if channels > 1:
        gains = gains + (channels - 1) * own * _ratio(falls, values * own)
    weights = (vectors * (gains - 1.0)) @ vectors.T / count
    if float(np.abs(weights).sum()) < 1e-4:
        return None
    # sum over pairs of taps with one difference, then over the differences
    sums = np.bincount(index, weights.ravel(), minlength=len(differences))
    spans = [(lag - 1) * step + 1 for lag, step in zip(lags, steps, strict=True)]
    reach = differences.max(axis=0)
    around = [np.abs(np.arange(-far, span + far)) for far, span in zip(reach, spans, strict=True)]
    field = _lookup(profile, np.stack(np.meshgrid(*around, indexing="ij"), axis=-1))
    result: Array = np.zeros(lags)
    for difference, weight in zip(differences + reach, sums, strict=True):
        result += weight * field[tuple(map(slice, difference, difference + spans, steps))]
    shape = [1] * kernel.ndim
    for dim, length in zip(dims, result.shape, strict=True):
        shape[dim] = length
    placed = result.transpose(np.argsort(dims)).reshape(shape)
    placed[(0,) * placed.ndim] = 0.0
    return np.asarray(placed)


@lru_cache(maxsize=256)
def _tap_pairs(taps: tuple[int, ...], dilations: tuple[int, ...]) -> tuple[Indices, Indices, Indices]:
    """Return the distances of all pairs of taps (tap, tap, dimension), the differences that occur, and which is
    whose.
    """
    places = np.stack([g.ravel() for g in np.meshgrid(*(np.arange(t) for t in taps), indexing="ij")], axis=1)
    offset = (places[:, None, :] - places[None, :, :]) * np.asarray(dilations)
    differences, index = np.unique(offset.reshape(-1, len(taps)), axis=0, return_inverse=True)
    return np.abs(offset), differences, index.ravel()


def _lookup(profile: Array, lag: Indices) -> Array:
    index, zero = [], np.zeros(lag.shape[:-1], dtype=bool)
    for axis, length in enumerate(profile.shape):
        index.append(np.minimum(lag[..., axis], length - 1))
        if length == 1:
            zero |= lag[..., axis] > 0
    return np.where(zero, 0.0, profile[tuple(index)])


_LOG_T = np.linspace(np.log(1e-3), np.log(1e5), 240)
_T = np.exp(_LOG_T)


def _falls(values: Array, shared: float, own: float, channels: int) -> Array:
    """Return t det(I + 2tS)^-1/2 at the nodes t; S has ``values`` x channel spectrum."""
    at = 2 * _T[:, None] * values
    log_det = np.log1p(at * shared).sum(axis=1)
    if channels > 1:
        log_det = log_det + (channels - 1) * np.log1p(at * own).sum(axis=1)
    return np.asarray(np.exp(_LOG_T - 0.5 * log_det))


def _ratio(falls: Array, at: Array) -> Array:
    """Return int_0^inf (1 + 2t a)^-1 det(I + 2tS)^-1/2 dt for each a in ``at``."""
    integrand = falls[:, None] / (1 + 2 * _T[:, None] * at)
    return np.asarray(np.trapezoid(integrand, _LOG_T, axis=0) + _T[0])
