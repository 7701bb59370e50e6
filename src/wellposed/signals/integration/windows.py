"""Sliding windows along one axis: what input positions an output position reads, and what follows for maps and lags."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.profiles import pair_sums

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a window: ``size`` input positions, ``out`` output positions.

    A transposed axis (up-convolution) reads input p at output positions p * stride + tap * dilation - before. Taps at
    ``end`` and beyond do not even lie in the padding (the last window of a pool with ``ceil_mode`` hangs over).
    """

    size: int
    out: int
    kernel: int
    stride: int = 1
    before: int = 0
    dilation: int = 1
    transposed: bool = False
    end: int | None = None

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
def reads(axis: Axis) -> Array:
    """Return how many taps of each output position lie inside the input: array (out,)."""
    totals: Array = (table(axis) >= 0).sum(axis=1).astype(np.float64)
    totals.setflags(write=False)
    return totals


@lru_cache(maxsize=1024)
def averaging(axis: Axis, include_padding: bool) -> Array:
    """Return the weight of every (output position, tap) in an average over windows: array (out, kernel).

    The average is over all taps that lie in the padded input, or over those in the input alone; weights in the padding
    are 0.
    """
    valid = table(axis) >= 0
    counted = valid
    if include_padding:
        place = np.arange(axis.out)[:, None] * axis.stride - axis.before + np.arange(axis.kernel) * axis.dilation
        counted = place < (axis.end if axis.end is not None else np.inf)
    weights = valid / np.maximum(counted.sum(axis=1, keepdims=True), 1)
    weights.setflags(write=False)
    return np.asarray(weights, dtype=np.float64)


def covering(size: int, count: int) -> Array:
    """Return the weights of averages over windows that cover an axis of ``size`` positions: array (count, size).

    Window i reads from floor(i size / count) to ceil((i + 1) size / count).
    """
    place = np.arange(count)
    first, last = place * size // count, -(-(place + 1) * size // count)
    inside = (np.arange(size) >= first[:, None]) & (np.arange(size) < last[:, None])
    return np.asarray(inside / inside.sum(axis=1, keepdims=True))


def summed(q: Array, dim: int, axis: Axis) -> Array:
    """Sum a map over the taps of each output position along one dimension (length 1 stays 1 where nothing varies)."""
    if q.shape[dim] == 1:
        totals = reads(axis)
        if not np.ptp(totals):
            return np.asarray(q * totals[0])
        shape = [1] * q.ndim
        shape[dim] = axis.out
        return np.asarray(q * totals.reshape(shape))
    last = (axis.out - 1) * axis.stride
    # positions first, in memory too; those beyond either end of the map hold 0
    moved = q.swapaxes(dim, -1)
    first = moved.transpose(moved.ndim - 1, *range(moved.ndim - 1))
    if axis.transposed:
        padded = np.zeros((axis.size + 1, *first.shape[1:]))
        padded[:-1] = first
        taps = [padded[place] for place in table(axis).T]
    else:
        whole = max(last + (axis.kernel - 1) * axis.dilation + 1, axis.before + axis.size)
        padded = np.zeros((whole, *first.shape[1:]))
        padded[axis.before : axis.before + axis.size] = first
        taps = [padded[at : at + last + 1 : axis.stride] for at in range(0, axis.kernel * axis.dilation, axis.dilation)]
    result: Array = taps[0].copy() if len(taps) == 1 else taps[0] + taps[1]
    for tap in taps[2:]:
        result += tap
    result = result.transpose(*range(1, result.ndim), 0)
    return result.swapaxes(dim, -1)


@lru_cache(maxsize=4096)
def _shared(axis: Axis, weights: bytes, lags: int) -> Array:
    """Return F(d) = <sum_a u(p a) u((p + d) a)> / <sqrt Q(p) sqrt Q(p + d)>, Q(p) = sum_a u(p a)², d = 0..lags-1."""
    u = np.frombuffer(weights)
    index = table(axis)
    taps = np.where(index >= 0, u[np.maximum(index, 0)] if u.size > 1 else u[0], 0.0)
    root = np.sqrt((taps * taps).sum(axis=1))
    # sums over all pairs of positions, of which the near ones are taken out one displacement at a time
    whole, limit = float((taps.sum(axis=0) ** 2).sum()), float(root.sum() ** 2)
    if limit == 0.0:
        return np.ones(lags)
    near = np.sum([pair_sums(column)[: lags - 1] for column in taps.T], axis=0)
    scale = pair_sums(root)[: lags - 1]
    both = np.full(lags - 1, 2.0)
    both[:1] = 1.0
    whole, limit = whole - float(both @ near), limit - float(both @ scale)
    far = np.clip(whole / limit, 0.0, 1.0) if limit > 1e-12 * axis.out else 1.0
    result = np.append(np.where(scale > 0, near / np.where(scale > 0, scale, 1.0), 1.0), far)
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
        return np.asarray(picked * (d % axis.stride == 0).reshape(shape))
    return np.asarray(np.take(kernel, np.minimum(d * axis.stride, length - 1), axis=dim))


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
    return (array.swapaxes(dim, -1) @ matrix.T).swapaxes(dim, -1)


def output_size(size: int, kernel: int, stride: int, before: int, after: int, dilation: int, ceil: bool = False) -> int:
    """Return the number of output positions of a window (torch's rule, with ``ceil_mode``)."""
    span = size + before + after - dilation * (kernel - 1) - 1
    out = -(-span // stride) + 1 if ceil else span // stride + 1
    if ceil and (out - 1) * stride >= size + before:
        out -= 1
    return out
