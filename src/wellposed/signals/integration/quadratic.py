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
from operator import mul
from typing import NamedTuple

import numpy as np

from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.windows import Indices

MOST_TAPS = 128
"""Most taps, and most uncorrelated input channels, for which the variance of a channel is taken to vary. Chosen."""


def channel_norm_correction(
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
    if count == 1 or count > MOST_TAPS or (channels > MOST_TAPS and rho == 0.0) or kernel.ravel()[0] <= 0.0:
        return None
    profile = _profile(kernel, dims)
    _, index, counts = _tap_pairs(tuple(taps), tuple(dilations))
    values, vectors = _seen_by_taps(profile, tuple(taps), tuple(dilations))
    spectrum = _channel_factors(channels, rho)
    parts = _ratios(values, spectrum).reshape(len(spectrum), -1)
    gains = sum(factor * times * part for (factor, times), part in zip(spectrum, parts, strict=True))
    weights = (vectors * (gains - 1.0)) @ vectors.T / count
    if float(np.abs(weights).sum()) < 1e-4:
        return None
    # sum over pairs of taps with one difference, then over the differences: a window that slides over the profile
    sums = np.bincount(index, weights.ravel(), minlength=math.prod(counts)).reshape(counts)
    around, places = _windows(counts, tuple(dilations), tuple(lags), tuple(steps))
    field = _lookup(profile, around)
    result, part = np.zeros(lags), np.empty(lags)
    for total, place in zip(sums.ravel().tolist(), places, strict=True):
        result += np.multiply(field[place], total, out=part)
    shape = [1] * kernel.ndim
    for dim, length in zip(dims, result.shape, strict=True):
        shape[dim] = length
    placed = result.transpose(np.argsort(dims)).reshape(shape)
    placed[(0,) * placed.ndim] = 0.0
    return np.asarray(placed)


@lru_cache(maxsize=256)
def _windows(
    counts: tuple[int, ...], dilations: tuple[int, ...], lags: tuple[int, ...], steps: tuple[int, ...]
) -> tuple[list[Indices], list[tuple[slice, ...]]]:
    """Return the displacements along each dimension that output pairs at ``lags`` read through their taps, and for each
    of the ``counts`` differences of taps the slices of its own displacements among them.
    """
    around = []
    for count, dilation, lag, step in zip(counts, dilations, lags, steps, strict=True):
        reach = (count - 1) // 2 * dilation
        around.append(np.abs(np.arange(-reach, (lag - 1) * step + 1 + reach)))
    places = []
    for at in np.ndindex(*counts):
        begin = map(mul, at, dilations)
        ends = zip(begin, lags, steps, strict=True)
        places.append(tuple([slice(first, first + (lag - 1) * step + 1, step) for first, lag, step in ends]))
    return list(np.ix_(*around)), places


class Inverse(NamedTuple):
    """The factors on gradients of dividing each channel by its own variance w'Sw, relative to dividing all by the mean.

    ``alone`` is E[1 / w'Sw] E[w'Sw], n / (n - 2) for n uncorrelated products: for a channel's own gradient. ``through``
    is E[w'w / w'Sw] E[w'Sw] / E[w'w], 1 for uncorrelated products: for the gradient that went back through w as well.
    """

    alone: float
    through: float


def inverse_variance(
    kernel: Array, dims: list[int], taps: list[int], dilations: list[int], channels: int, rho: float
) -> Inverse:
    """Return `Inverse` for the filters of a convolution; arguments as for `channel_norm_correction`.

    Integrals end where a norm's epsilon ends them.
    """
    values, spectrum, often = _spectrum(kernel, dims, taps, dilations, channels, rho)
    alone = float(_falls(values, spectrum)[0].sum() + _T[0])
    return Inverse(alone, float(_ratios(values, spectrum) @ often) / (math.prod(taps) * channels))


def residual_share(
    kernel: Array, dims: list[int], taps: list[int], dilations: list[int], channels: int, rho: float
) -> float:
    """Return the share that a norm per channel leaves of the mean square correlation of two outputs, E[(w'Su)²] / (tr
    S)².

    E[(w'Su)² / (w'Sw u'Su)] = tr (S P)² with P = E[w w' / w'Sw]; arguments as for `channel_norm_correction`.
    """
    values, spectrum, often = _spectrum(kernel, dims, taps, dilations, channels, rho)
    before = np.concatenate([values * factor for factor, _ in spectrum])
    after = before * _ratios(values, spectrum)
    whole = float(before**2 @ often)
    return min(float(after**2 @ often) / whole, 1.0) if whole > 0.0 else 1.0


def _spectrum(
    kernel: Array, dims: list[int], taps: list[int], dilations: list[int], channels: int, rho: float
) -> tuple[Array, list[tuple[float, int]], Array]:
    """Return the eigenvalues (taps,) of the covariance that one channel's taps see, the eigenvalues over channels as
    (factor, multiplicity), and the multiplicity of each product. All are equal where there are too many taps.
    """
    count, spectrum = math.prod(taps), _channel_factors(channels, rho)
    values = np.full(count, 1.0 / count)
    if dims and 1 < count <= MOST_TAPS and kernel.ravel()[0] > 0.0:
        values, _ = _seen_by_taps(_profile(kernel, dims), tuple(taps), tuple(dilations))
    return values, spectrum, np.repeat([float(times) for _, times in spectrum], values.size)


def _seen_by_taps(profile: Array, taps: tuple[int, ...], dilations: tuple[int, ...]) -> tuple[Array, Array]:
    """Return eigenvalues and eigenvectors of the covariance of what one channel's taps see, scaled to trace 1."""
    offset, _, _ = _tap_pairs(taps, dilations)
    return _decomposed((_lookup(profile, list(np.moveaxis(offset, -1, 0))) / len(offset)).tobytes(), len(offset))


@lru_cache(maxsize=64)
def _decomposed(matrix: bytes, size: int) -> tuple[Array, Array]:
    """Return the eigenvalues, at least 0, and the eigenvectors of a matrix given by its bytes; cached."""
    values, vectors = np.linalg.eigh(np.frombuffer(matrix).reshape(size, size))
    return np.maximum(values, 0.0), vectors


def _profile(kernel: Array, dims: list[int]) -> Array:
    """Return the correlation by displacement along ``dims``, in the order in which they are given."""
    profile = kernel[tuple(slice(None) if d in dims else 0 for d in range(kernel.ndim))]
    return np.asarray(profile.transpose(np.argsort(np.argsort(dims))) / float(profile.ravel()[0]))


def _channel_factors(channels: int, rho: float) -> list[tuple[float, int]]:
    """Return (value, multiplicity) of the eigenvalues of ``channels`` correlated by ``rho``, over ``channels``."""
    shared = ((1 + (channels - 1) * rho) / channels, 1)
    return [shared, ((1 - rho) / channels, channels - 1)] if channels > 1 else [shared]


@lru_cache(maxsize=256)
def _tap_pairs(taps: tuple[int, ...], dilations: tuple[int, ...]) -> tuple[Indices, Indices, tuple[int, ...]]:
    """Return the distances of all pairs of taps (tap, tap, dimension), the index of each pair's difference, and the
    number of differences along each dimension.
    """
    places = np.stack([g.ravel() for g in np.meshgrid(*(np.arange(t) for t in taps), indexing="ij")], axis=1)
    difference = places[:, None, :] - places[None, :, :]
    counts = tuple(2 * t - 1 for t in taps)
    index = np.ravel_multi_index(tuple(np.moveaxis(difference + np.asarray(taps) - 1, -1, 0)), counts)
    return np.abs(difference * np.asarray(dilations)), index.ravel(), counts


def _lookup(profile: Array, lags: list[Indices]) -> Array:
    """Return a profile's entries at lags per dimension (arrays that broadcast against each other)."""
    values: Array = profile[tuple(np.minimum(lag, length - 1) for lag, length in zip(lags, profile.shape, strict=True))]
    for lag, length in zip(lags, profile.shape, strict=True):
        if length == 1:
            values = np.where(lag > 0, 0.0, values)
    return values


_LOG_T = np.linspace(np.log(1e-3), np.log(1e5), 240)
_T = np.exp(_LOG_T)
_STEPS = np.full(240, _LOG_T[1] - _LOG_T[0])
_STEPS[[0, -1]] /= 2
"""Trapezoid rule in ln t, 240 nodes: E[1 / w'Sw] is exact to 6e-9 for filters of 9 dimensions or more that are alike,
to 2e-5 for 4, to 4e-3 for 3."""


def _falls(values: Array, spectrum: list[tuple[float, int]]) -> tuple[Array, Array]:
    """Return det(I + 2tS)^-1/2 dt on the grid of t, and 1 + 2ta for the eigenvalues a of S.

    They are ``values`` times each of the spectrum's factors, each as often as the spectrum says.
    """
    growth = 1.0 + 2 * _T[:, None] * np.concatenate([values * factor for factor, _ in spectrum])
    often = np.repeat([float(times) for _, times in spectrum], values.size)
    return np.exp(_LOG_T - 0.5 * (np.log(growth) @ often)) * _STEPS, growth


def _ratios(values: Array, spectrum: list[tuple[float, int]]) -> Array:
    """Return int_0^inf (1 + 2t a)^-1 det(I + 2tS)^-1/2 dt for a = ``values`` times each of the spectrum's factors."""
    return _ratios_of(values.tobytes(), tuple(spectrum))


@lru_cache(maxsize=512)
def _ratios_of(values: bytes, spectrum: tuple[tuple[float, int], ...]) -> Array:
    """`_ratios` of eigenvalues by their bytes: those of one tap depend on the number of channels alone."""
    falls, growth = _falls(np.frombuffer(values), list(spectrum))
    result = np.asarray(falls @ (1.0 / growth) + _T[0])
    result.setflags(write=False)
    return result
