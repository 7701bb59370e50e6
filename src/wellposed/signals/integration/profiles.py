"""Profiles over displacements along one axis: how many pairs of positions each entry stands for; maps that are summed
over pairs.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@lru_cache(maxsize=4096)
def pair_shares(length: int, size: int) -> Array:
    """Return the share of ordered pairs of ``size`` positions that each entry of a profile stands for: (length,)."""
    shares = np.zeros(length)
    if not size:
        return shares
    shares[0] = 1.0 / size
    if length > 1:
        counts = 2.0 * (size - np.arange(size)) / (size * size)
        shares[1 : length - 1] = counts[1 : length - 1]
        shares[length - 1] = counts[length - 1 :].sum()
    shares.setflags(write=False)
    return shares


@lru_cache(maxsize=4096)
def other_shares(length: int, size: int) -> Array:
    """Return `pair_shares` among pairs of different positions."""
    shares = pair_shares(length, size).copy()
    shares[0] = 0.0
    shares /= shares.sum()
    shares.setflags(write=False)
    return shares


def pair_sums(u: Array) -> Array:
    """Return S(d) = sum_p u_p u_{p+d} for d = 0..n-1."""
    n = u.shape[0]
    if n > 512:
        spectrum = np.fft.rfft(u, 2 * n)
        return np.asarray(np.fft.irfft((spectrum * spectrum.conj()).real, 2 * n)[:n])
    return np.correlate(u, u, mode="full")[n - 1 :]


@lru_cache(maxsize=4096)
def _pair_counts(size: int, length: int) -> Array:
    """Return how many pairs of positions each entry of a profile stands for."""
    counts = size - np.arange(size, dtype=np.float64)
    counts = np.append(counts[: length - 1], counts[length - 1 :].sum())
    counts.setflags(write=False)
    return counts


def profile_of(sums: Array, size: int, length: int) -> Array:
    """Turn pair sums, along the last dimension, into averages per displacement, the last over all that are farther."""
    if length == 1:
        return sums[..., :1] / size
    if length < size:
        far = np.add.reduce(sums[..., length - 1 :], axis=-1, keepdims=True)
        sums = np.concatenate([sums[..., : length - 1], far], axis=-1)
    return np.asarray(sums / _pair_counts(size, length))


class Map:
    """A map as a cache key. It is hashed by the sum of its squares: all bytes would cost what the cache saves."""

    __slots__ = ("content", "power", "shape")

    def __init__(self, u: Array) -> None:
        flat = u.ravel()
        self.power: float = float(flat.dot(flat))
        self.content: bytes = u.tobytes()
        self.shape: tuple[int, ...] = u.shape

    def __hash__(self) -> int:
        return hash(self.power)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Map) and self.shape == other.shape and self.content == other.content
