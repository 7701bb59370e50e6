"""Maps by position: their averages over pairs, and covariances with means over positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from wellposed.signals.integration.kernels import (
    Array,
    at_zero,
    autocorrelation,
    average,
    by_pair,
    matrix_of,
    mean_over,
    pair_mean,
    positions,
    with_lags,
)


def mean_of_product(u: Array, v: Array) -> float:
    """Return the average of u v over positions; of maps of different shape the product of their averages."""
    return average(u * v) if u.shape == v.shape else average(u) * average(v)


def products_at_pairs(u: Array, v: Array, lengths: Sequence[int]) -> Array:
    """Return the average of u_p v_{p+d} by displacement, for kernels of these lengths."""
    if u.shape != v.shape:
        return np.full((1,) * len(lengths), average(u) * average(v)) * np.ones(tuple(lengths))
    half, other = 0.5 * (u + v), 0.5 * (u - v)
    plus, minus = autocorrelation(half, lengths), autocorrelation(other, lengths)
    return np.asarray((plus - minus) * np.ones(tuple(lengths)))


@lru_cache(maxsize=512)
def _ends(size: int, length: int) -> Array:
    """Return P[d, p], array (length, size): the share of position p among the ends of pairs at displacement d."""
    position, lag = np.arange(size)[None, :], np.arange(length)[:, None]
    matrix = (position < size - lag).astype(np.float64) + (position >= lag)
    # the last row stands for all displacements from length - 1 on
    first = length - 1
    matrix[first] = np.maximum(size - first - position[0], 0) + np.maximum(position[0] - first + 1, 0)
    matrix /= matrix.sum(axis=1, keepdims=True)
    matrix.setflags(write=False)
    return matrix


def mean_at_pairs(values: Array, lengths: Sequence[int]) -> Array:
    """Return the average of a map over the ends of pairs at each displacement (far pairs lie near the borders)."""
    values = mean_over(values, [dim for dim, length in enumerate(lengths) if length == 1])
    for dim, length in enumerate(lengths):
        size = values.shape[dim]
        if size > 1 and positions(length):
            ends = np.moveaxis(values, dim, -1)
            values = by_pair(0.5 * (ends[..., :, None] + ends[..., None, :]), dim)
        elif size > 1:
            values = (values.swapaxes(dim, -1) @ _ends(size, length).T).swapaxes(dim, -1)
    return values


def covariance_with_mean(std: Array, corr: Array, sizes: Sequence[int], over: Sequence[int]) -> Array:
    """Return C(p), the covariance of position p with the mean over the atoms ``over``, at lag 0 along the others.

    C(p) = s_p mean_q s_q R(p - q). Profiles are summed by FFT, along short axes by matrices; along atoms of
    ``over`` where the kernel has length 1 or 2, C(p) / s_p is constant.
    """
    kernel = at_zero(corr, [dim for dim in range(corr.ndim) if dim not in over])
    paired = [dim for dim in over if positions(kernel.shape[dim])]
    if paired:
        return _covariance_with_mean_by_pair(std, kernel, sizes, over, paired[0])
    profiles = [dim for dim in over if kernel.shape[dim] > 2]
    kernel = pair_mean(kernel, sizes, [dim for dim in over if dim not in profiles])
    if not profiles:
        return np.asarray(std * mean_over(std, over) * kernel)
    return _covariance_with_mean_by_lag(std, kernel, sizes, over, profiles)


def _covariance_with_mean_by_lag(
    std: Array, kernel: Array, sizes: Sequence[int], over: Sequence[int], profiles: Sequence[int]
) -> Array:
    """Return `covariance_with_mean` where the kernel has profiles along the atoms ``profiles`` alone."""
    extents = [sizes[dim] if dim in profiles else 1 for dim in range(kernel.ndim)]
    field = np.broadcast_to(std, np.broadcast_shapes(std.shape, tuple(extents)))
    around = _summed_around_few if max(extents) <= FEW else _summed_around
    total = around(field, kernel, profiles)
    rest = [dim for dim in over if dim not in profiles and total.shape[dim] > 1]
    return np.asarray(field * mean_over(total, rest) / math.prod(extents))


def _covariance_with_mean_by_pair(
    std: Array, kernel: Array, sizes: Sequence[int], over: Sequence[int], dim: int
) -> Array:
    """Return `covariance_with_mean` where the kernel is by pair along one atom, and has no profile elsewhere."""
    rest = [other for other in over if other != dim]
    kernel = pair_mean(kernel, sizes, rest)
    matrix = matrix_of(at_zero(kernel, [other for other in range(kernel.ndim) if other != dim]), dim, sizes[dim])
    matrix = matrix.reshape(sizes[dim], sizes[dim])
    far = np.broadcast_to(std, [sizes[dim] if i == dim else n for i, n in enumerate(std.shape)])
    total = np.moveaxis(np.tensordot(mean_over(far, rest), matrix, axes=([dim], [1])), -1, dim) / sizes[dim]
    return np.asarray(std * total)


FEW = 64
"""Positions along each dimension up to which matrices sum faster than Fourier transforms. Chosen, for speed."""


def _summed_around(field: Array, kernel: Array, dims: Sequence[int]) -> Array:
    """Return the sum over q of field(q) kernel(p - q) along some dimensions."""
    for dim in dims:  # displacements of both signs, for a sum around a ring of twice the size
        size = field.shape[dim]
        kernel = kernel if kernel.shape[dim] >= size else with_lags(kernel, dim, size)
        rows = kernel.swapaxes(dim, 0)
        kernel = np.concatenate([rows, rows[-1:], rows[:0:-1]]).swapaxes(dim, 0)
    shape = [2 * field.shape[dim] for dim in dims]
    spectrum = np.fft.rfftn(field, shape, axes=dims) * np.fft.rfftn(kernel, axes=dims)
    total = np.fft.irfftn(spectrum, shape, axes=dims)
    return total[tuple([slice(n) if dim in dims else slice(None) for dim, n in enumerate(field.shape)])]


def _summed_around_few(field: Array, kernel: Array, dims: Sequence[int]) -> Array:
    """Return `_summed_around` by the cosines and sines that make up a kernel on a ring."""
    if len(dims) == 2 and dims[0] < dims[1] and field.size == field.shape[dims[0]] * field.shape[dims[1]]:
        return _summed_around_plane(field, kernel, dims)
    bases = []
    for dim in dims:
        waves, weights = _waves(field.shape[dim], kernel.shape[dim])
        bases.append(waves)
        field, kernel = _applied(waves, field, dim), _applied(weights, kernel, dim)
    total = field * kernel
    for dim, waves in zip(dims, bases, strict=True):
        total = _applied(waves.T, total, dim)
    return total


def _summed_around_plane(field: Array, kernel: Array, dims: Sequence[int]) -> Array:
    """`_summed_around_few` of a map that varies along two dimensions alone, as products of matrices."""
    rows, columns = (field.shape[dim] for dim in dims)
    near = kernel.reshape([kernel.shape[dim] for dim in dims])
    (down, over_rows), (across, over_columns) = _waves(rows, near.shape[0]), _waves(columns, near.shape[1])
    spectrum = (down @ field.reshape(rows, columns) @ across.T) * (over_rows @ near @ over_columns.T)
    return np.asarray(down.T @ spectrum @ across).reshape(field.shape)


def _applied(matrix: Array, array: Array, dim: int) -> Array:
    """Apply a matrix to one dimension."""
    return (array.swapaxes(dim, -1) @ matrix.T).swapaxes(dim, -1)


@lru_cache(maxsize=512)
def _waves(size: int, length: int) -> tuple[Array, Array]:
    """Return cosines and sines on a ring of 2 ``size`` positions, and the weights w with k(p - q) = sum_w w wave(p)
    wave(q) for a kernel given by a profile of ``length``.
    """
    order, lag = np.arange(size + 1)[:, None], np.arange(size)
    angles = math.pi * order * lag / size
    even = np.cos(angles) * np.where(lag == 0, 1.0, 2.0)
    even[:, -1] += np.cos(math.pi * order[:, 0])  # opposite positions, which none of these are, have any value
    even *= np.where((order == 0) | (order == size), 0.5, 1.0) / size
    if length < size:  # the last entry stands for all that are farther
        even = np.concatenate([even[:, : length - 1], even[:, length - 1 :].sum(axis=1, keepdims=True)], axis=1)
    waves = np.concatenate([np.cos(angles), np.sin(angles[1:-1])])
    weights = np.concatenate([even, even[1:-1]])
    waves.setflags(write=False)
    weights.setflags(write=False)
    return waves, weights
