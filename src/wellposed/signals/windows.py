"""Sliding windows along one axis: which input positions an output position reads, and what follows for maps and lags."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from wellposed.signals.kernels import Array

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a window: ``size`` input positions, ``out`` output positions.

    A transposed axis (up-convolution) reads input p at output positions p * stride + tap * dilation - before.
    """

    size: int
    out: int
    kernel: int
    stride: int = 1
    before: int = 0
    dilation: int = 1
    transposed: bool = False

    @property
    def padded(self) -> bool:
        """Whether some output position has fewer taps than others."""
        if self.transposed:
            return True
        last = (self.out - 1) * self.stride - self.before + (self.kernel - 1) * self.dilation
        return self.before > 0 or last >= self.size


@lru_cache(maxsize=1024)
def table(axis: Axis) -> Indices:
    """Return the input position of every (output position, tap), -1 in the padding: array (out, kernel)."""
    out, tap = np.arange(axis.out)[:, None], np.arange(axis.kernel)[None, :]
    if axis.transposed:
        offset = out + axis.before - tap * axis.dilation
        index = np.where(offset % axis.stride == 0, offset // axis.stride, -1)
    else:
        index = out * axis.stride - axis.before + tap * axis.dilation
    index = np.where((index < 0) | (index >= axis.size), -1, index)
    index.setflags(write=False)
    return np.asarray(index, dtype=np.int64)


@lru_cache(maxsize=1024)
def counts(axis: Axis) -> Array:
    """Return how often each output position reads each input position: array (out, size)."""
    index = table(axis)
    matrix = np.zeros((axis.out, axis.size))
    rows = np.broadcast_to(np.arange(axis.out)[:, None], index.shape)
    valid = index >= 0
    np.add.at(matrix, (rows[valid], index[valid]), 1.0)
    matrix.setflags(write=False)
    return matrix


def summed(q: Array, dim: int, axis: Axis) -> Array:
    """Sum a map over the taps of each output position along one dimension (length 1 stays 1 where nothing varies)."""
    if q.shape[dim] == 1:
        totals = counts(axis).sum(axis=1)
        if not np.ptp(totals):
            return q * totals[0]
        shape = [1] * q.ndim
        shape[dim] = axis.out
        return q * totals.reshape(shape)
    moved = np.tensordot(q, counts(axis), axes=([dim], [1]))
    return np.moveaxis(moved, -1, dim)


@lru_cache(maxsize=4096)
def _shared(axis: Axis, weights: bytes, lags: int) -> Array:
    """Return F(d) = <sum_a u(p a) u((p + d) a)> / <sqrt Q(p) sqrt Q(p + d)>, Q(p) = sum_a u(p a)², d = 0..lags-1."""
    u = np.frombuffer(weights)
    index = table(axis)
    taps = np.where(index >= 0, u[np.maximum(index, 0)] if u.size > 1 else u[0], 0.0)
    gram = taps @ taps.T
    root = np.sqrt(np.diag(gram))
    limit = np.outer(root, root)
    result = np.empty(lags)
    total = limit.sum()
    if total == 0.0:
        return np.ones(lags)
    for d in range(lags - 1):
        scale = limit.diagonal(d).sum()
        result[d] = gram.diagonal(d).sum() / scale if scale > 0 else 1.0
    far = np.triu(limit, lags - 1).sum()
    result[lags - 1] = np.triu(gram, lags - 1).sum() / far if far > 0 else 1.0
    result.setflags(write=False)
    return result


def shared_taps(axis: Axis, q_root: Array, lags: int) -> Array:
    """Return the share of products that two outputs at displacement d have in common, for a map of sqrt(q) values.

    Zero padding takes taps away near the borders, from one output and not from the other; without padding it is 1.
    """
    return _shared(axis, np.ascontiguousarray(np.round(q_root / max(float(q_root.max()), 1e-300), 9)).tobytes(), lags)


def strided(kernel: Array, dim: int, axis: Axis, lags: int) -> Array:
    """Return kernel(s d) for output displacements d = 0..lags-1 (d / s and 0 between, for a transposed axis)."""
    length = kernel.shape[dim]
    if length == 1:
        return kernel
    d = np.arange(lags)
    if axis.transposed:
        picked = np.take(kernel, np.minimum(d // axis.stride, length - 1), axis=dim)
        shape = [1] * kernel.ndim
        shape[dim] = lags
        return picked * (d % axis.stride == 0).reshape(shape)
    return np.take(kernel, np.minimum(d * axis.stride, length - 1), axis=dim)


@lru_cache(maxsize=1024)
def pair_table(taps: tuple[float, ...], stride: int, dilation: int, lags_in: int, lags_out: int) -> Array:
    """Return M[d, l] = sum over taps a, b of w_a w_b [|s d + (a - b) dilation| = l] (the last l holds all beyond)."""
    w = np.array(taps)
    k = w.size
    matrix = np.zeros((lags_out, lags_in))
    for a in range(k):
        for b in range(k):
            lag = np.minimum(np.abs(np.arange(lags_out) * stride + (a - b) * dilation), lags_in - 1)
            np.add.at(matrix, (np.arange(lags_out), lag), w[a] * w[b])
    matrix.setflags(write=False)
    return matrix


def along(matrix: Array, array: Array, dim: int) -> Array:
    """Apply a matrix to one dimension."""
    return np.moveaxis(np.tensordot(array, matrix, axes=([dim], [1])), -1, dim)


def output_size(size: int, kernel: int, stride: int, before: int, after: int, dilation: int, ceil: bool = False) -> int:
    """Return the number of output positions of a window (torch's rule, with ``ceil_mode``)."""
    span = size + before + after - dilation * (kernel - 1) - 1
    out = -(-span // stride) + 1 if ceil else span // stride + 1
    if ceil and (out - 1) * stride >= size + before:
        out -= 1
    return out
