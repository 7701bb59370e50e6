"""Positions along one axis as combinations of another axis's, and what that makes of covariances."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from wellposed.arrays import distinct
from wellposed.signals.integration import kernels, windows
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.windows import Axis, Indices

FAR = 16
"""Displacements that stand for all those beyond a kernel's profile. Chosen, for speed."""


@dataclass(frozen=True, slots=True, eq=False)
class Taps:
    """New positions y_p = sum_k weights[p, k] x[index[p, k]] along an axis of ``size`` positions; padding weighs 0."""

    index: Indices
    weights: Array
    size: int

    def of(self, inner: Taps) -> Taps:
        """Return the composition: these combinations of the positions that ``inner`` makes."""
        if self.index.shape[1] * inner.index.shape[1] > inner.size:  # the same positions again and again
            return of_matrix(self.matrix() @ inner.matrix())
        index = inner.index[self.index].reshape(len(self.index), -1)
        weights = (self.weights[..., None] * inner.weights[self.index]).reshape(len(self.index), -1)
        return Taps(index, weights, inner.size)

    def matrix(self) -> Array:
        """Return the weights as a matrix (new positions, positions)."""
        weights = np.zeros((len(self.index), self.size))
        np.add.at(weights, (np.arange(len(self.index))[:, None], self.index), self.weights)
        return weights

    def averaged(self) -> Taps:
        """Return the mean of all new positions."""
        return Taps(self.index.reshape(1, -1), self.weights.reshape(1, -1) / len(self.index), self.size)

    def total(self) -> float:
        """Return the sum of weights, averaged over new positions."""
        return float(self.weights.sum()) / len(self.index)


@lru_cache(maxsize=256)
def whole(size: int) -> Taps:
    """Return combinations that are all positions, each alone."""
    return picks(np.arange(size), size)


def picks(source: Indices, size: int) -> Taps:
    """Return combinations that are single positions ``source`` of ``size``; -1 is padding."""
    index = np.asarray(source, dtype=np.int64)[:, None]
    return Taps(index, (index >= 0).astype(np.float64), size)


def times(numbers: Array) -> Taps:
    """Return combinations that are positions times ``numbers``."""
    return Taps(np.arange(numbers.size)[:, None], numbers[:, None], numbers.size)


@lru_cache(maxsize=1024)
def of_windows(axis: Axis, include_padding: bool) -> Taps:
    """Return averages over windows."""
    return Taps(windows.table(axis), windows.averaging(axis, include_padding), axis.size)


def of_matrix(weights: Array) -> Taps:
    """Return the combinations whose weights are the rows of a matrix (new positions, positions)."""
    count = int((weights != 0.0).sum(axis=1).max(initial=1))
    index = np.sort(np.argpartition(-np.abs(weights), count - 1, axis=1)[:, :count], axis=1)
    return Taps(index, np.take_along_axis(weights, index, axis=1), weights.shape[1])


def covariances(kernel: Array, dim: int, first: Taps, second: Taps, lags: int) -> Array:
    """Return the covariances of two combinations of positions along one axis, by displacement (``lags``, the last one
    for all beyond): sum over k and l of v_pk w_ql Cov(x_i, x_j), averaged over pairs of positions p and q.

    Args:
        kernel: covariance kernel on the grid that both combine.
        dim: its dimension along the axis.
        first: combinations of positions, p.
        second: the same number of them, q.
        lags: number of displacements.
    """
    if kernels.positions(kernel.shape[dim]) == first.size:
        matrix = kernels.matrix_of(kernel, dim, first.size)
        return kernels.by_lags(first.matrix() @ matrix @ second.matrix().T, dim, lags)
    kernel = kernels.by_displacement(kernel, (dim,))
    return windows.along(_table(first, second, kernel.shape[dim], lags), kernel, dim)


@lru_cache(maxsize=256)
def _table(first: Taps, second: Taps, length: int, lags: int) -> Array:
    """Return M[d, l]: the total weight of pairs of taps at distance l, in combinations at displacement d, averaged."""
    size, positions = len(first.index), first.size
    rows = np.zeros((lags, length))
    pairs = np.zeros(lags)
    far = distinct(np.linspace(lags - 1, size - 1, min(size - lags + 1, FAR)).astype(np.int64))
    many = size * first.index.shape[1] * second.index.shape[1] > positions * positions
    apart = np.abs(np.subtract.outer(np.arange(positions), np.arange(positions))) if many else np.zeros(0, np.int64)
    whole_of = [(taps.matrix() if many else None) for taps in (first, second)]
    for lag in (*range(lags - 1), *far):
        row = min(int(lag), lags - 1)
        for (one, left), (other, right) in itertools.permutations(zip((first, second), whole_of, strict=True)):
            if left is not None and right is not None:
                weights, distance = left[: size - lag].T @ right[lag:], apart
            else:
                i, j = one.index[: size - lag, :, None], other.index[lag:, None, :]
                weights, distance = one.weights[: size - lag, :, None] * other.weights[lag:, None, :], np.abs(i - j)
            distance = np.minimum(distance, length - 1 if length > 1 else positions)
            found = np.bincount(distance.ravel(), weights.ravel(), minlength=length)
            rows[row] += found[:length]
            pairs[row] += size - lag
    return np.asarray(rows / pairs[:, None])
