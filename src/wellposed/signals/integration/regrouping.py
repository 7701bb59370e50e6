"""Kernels whose atoms are split, or merged."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from wellposed.signals.integration.kernels import (
    LEAST,
    Array,
    at_zero,
    by_displacement,
    lag_cap,
    matrix_of,
    pair_mean,
    positions,
)

Indices = npt.NDArray[np.int64]


def split_profile(kernel: Array, dim: int, outer: int, inner: int, cap: int) -> Array:
    """Replace an atom of size outer * inner by two atoms (position = inner * outer index + inner index)."""
    if positions(kernel.shape[dim]):
        return _split_pairs(kernel, dim, outer, inner)
    length = kernel.shape[dim]
    if length == 1:
        return np.expand_dims(kernel, dim)
    lags_outer, lags_inner = (2, 2) if length == 2 else (min(outer, cap), min(inner, cap))
    lags_outer, lags_inner = min(lags_outer, outer), min(lags_inner, inner)
    forward, backward = _displaced(length, inner, lags_outer, lags_inner)
    # a pair in different outer cells may lie on either side; the pair (different outer, ...) is never the same element
    mixed = 0.5 * (np.take(kernel, forward, axis=dim) + np.take(kernel, backward, axis=dim))
    return np.asarray(mixed.reshape(*kernel.shape[:dim], lags_outer, lags_inner, *kernel.shape[dim + 1 :]))


@lru_cache(maxsize=512)
def _displaced(length: int, inner: int, lags_outer: int, lags_inner: int) -> tuple[Indices, Indices]:
    """Return, for each pair of outer and inner displacement, two indices into a profile of ``length``: for steps of
    both in one direction, and in opposite ones. ``inner`` is the inner atom's size.
    """
    big, small = np.meshgrid(np.arange(lags_outer), np.arange(lags_inner), indexing="ij")
    forward = np.minimum(inner * big + small, length - 1).ravel()
    return forward, np.minimum(np.abs(inner * big - small), length - 1).ravel()


def _split_pairs(kernel: Array, dim: int, outer: int, inner: int) -> Array:
    """Return `split_profile` of a kernel by pair: by pair along each new atom of `LEAST` positions or more, averaged
    over pairs along smaller ones.
    """
    pairs = matrix_of(kernel, dim, outer * inner).reshape(*np.delete(kernel.shape, dim), outer, inner, outer, inner)
    pairs = np.moveaxis(pairs, -2, -3).reshape(*pairs.shape[:-4], outer * outer, inner * inner)
    for last, size in ((-2, outer), (-1, inner)):
        if size < LEAST:
            equal = np.eye(size).ravel()
            weights = np.stack([equal / size, (1.0 - equal) / max(size * (size - 1), 1)][: min(size, 2)])
            pairs = np.moveaxis(np.tensordot(pairs, weights, axes=(last, 1)), -1, last)
    return np.moveaxis(pairs, (-2, -1), (dim, dim + 1))


def merge_profiles(kernel: Array, dim: int, sizes: Sequence[int]) -> Array:
    """Replace the atoms ``dim`` and ``dim + 1`` by one (position = inner size * outer index + inner index).

    It knows displacements where one of the two does, or the inner one is copies of the outer one, else only equal and
    different positions. The mean over pairs stays as it is.
    """
    outer, inner = kernel.shape[dim], kernel.shape[dim + 1]
    a, b = sizes[dim], sizes[dim + 1]
    if max(outer, inner) > 2 or (outer == 2 and _is_copied(kernel, dim + 1)):
        return _displacements(by_displacement(kernel, (dim, dim + 1)), dim, a, b)
    same: Array = np.squeeze(at_zero(kernel, (dim, dim + 1)), axis=dim + 1)
    if outer == 1 and inner == 1:
        return same
    mean = np.squeeze(pair_mean(kernel, sizes, (dim, dim + 1)), axis=dim + 1)
    total = a * b
    other = (mean * total - same) / (total - 1)
    return np.concatenate([same, other], axis=dim)


def _is_copied(kernel: Array, dim: int) -> bool:
    """Whether the kernel says that all positions along an atom are equal."""
    first, last = np.take(kernel, 0, axis=dim), np.take(kernel, -1, axis=dim)
    return bool(np.array_equal(first, last))


def _displacements(kernel: Array, dim: int, a: int, b: int) -> Array:
    """Merge an outer atom of size a and an inner one of size b, by displacement."""
    others = [length for i, length in enumerate(kernel.shape) if i not in (dim, dim + 1)]
    lags = min(a * b, lag_cap(sum(length > 2 for length in others) + 1))
    for i in (dim, dim + 1):
        if kernel.shape[i] == 1:
            kernel = np.concatenate([kernel, np.zeros_like(kernel)], axis=i)
    outer, inner = kernel.shape[dim], kernel.shape[dim + 1]
    flat = kernel.reshape(*kernel.shape[:dim], outer * inner, *kernel.shape[dim + 2 :])
    merged = np.tensordot(_shares_of_cells(a, b, outer, inner, lags), flat, axes=(1, dim))
    return np.ascontiguousarray(np.moveaxis(merged, 0, dim))


@lru_cache(maxsize=512)
def _shares_of_cells(a: int, b: int, outer: int, inner: int, lags: int) -> Array:
    """Return the share of the pairs at each displacement of a merged atom that have each displacement of the outer atom
    (size a) and of the inner one (size b): array (lags, outer * inner).
    """
    # displacement b q + r: q cells and r places on, or q + 1 cells on and b - r places back
    cells, rest = np.divmod(np.arange(a * b), b)
    weights = np.zeros((lags, outer * inner))
    counts = np.zeros(lags)
    for apart, places, pairs in (
        (cells, rest, (b - rest) * (a - cells)),
        (cells + 1, b - rest, rest * (a - cells - 1)),
    ):
        at = np.minimum(apart, outer - 1) * inner + np.minimum(places, inner - 1)
        row = np.minimum(np.arange(a * b), lags - 1)
        np.add.at(weights, (row, at), pairs)
        np.add.at(counts, row, pairs)
    shares: Array = weights / counts[:, None]
    shares.setflags(write=False)
    return shares
