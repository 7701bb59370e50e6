"""What queries have in common that see keys of their own, as under causal masks (signals.md 5.8)."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import torch

from wellposed.signals.distributions.state import State
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array

LONGEST = 256
"""Most tokens whose results are told apart by pair."""


def flat_weights(mask: torch.Tensor | None, is_causal: bool, queries: int, keys: int) -> Array | None:
    """Return the weights of queries that weigh alike all keys that they see, where not all see the same."""
    if not kernels.LEAST <= queries <= LONGEST or keys > LONGEST:
        return None
    if is_causal:
        shown = np.tri(queries, keys)
    elif mask is not None and mask.shape[-2:] == (queries, keys):
        shown = mask.to(torch.float64).reshape(-1, queries, keys).mean(dim=0).numpy()
    else:
        return None
    return np.asarray(shown / np.maximum(shown.sum(axis=1, keepdims=True), 1e-300))


def common_of_seen(v: State, token: int, flat: Array) -> Array:
    """Return for each query the mean correlation of the values that it sees."""
    at = v.axes[token][0]
    index = tuple(slice(None) if i == at else 0 for i in range(v.corr.ndim))
    pairs = kernels.matrix_of(v.corr[index], 0, v.sizes[at])
    own = (flat**2).sum(axis=1)
    every = ((flat @ pairs) * flat).sum(axis=1)
    return np.where(own < 1.0, (every - own) / np.maximum(1.0 - own, 1e-300), 0.0)


def levels_of_seen(v: State, token: int, flat: Array | None) -> Array:
    """Return for each query the variance of the values that it sees, relative to that of all."""
    if flat is None or v.var.shape[at := v.axes[token][0]] == 1:
        return np.ones(1)
    by_key = v.var.mean(axis=tuple(i for i in range(v.var.ndim) if i != at))
    return np.asarray(flat @ by_key / max(kernels.average(by_key), 1e-300))


def kernel_by_pair(
    made: State, v: State, token: int, flat: Array, ratio: Array, met: float, features: int = -1
) -> Array:
    """Return the correlation kernel of results of queries that see keys of their own, by pair: what they see in common
    they have in common, and more where they weigh it alike (``met``).
    """
    at, root = v.axes[token][0], np.sqrt(np.broadcast_to(ratio, len(flat)))
    scale = np.maximum(np.multiply.outer(root, root), 1e-300)

    def over(pairs: Array) -> Array:
        return np.asarray(flat @ pairs @ flat.T)

    def between(moved: Array) -> Array:
        return (over(kernels.matrix_of(moved.ravel(), 0, v.sizes[at])) / scale).ravel()

    index = tuple(slice(None) if i == at else 0 for i in range(v.corr.ndim))
    own = over(kernels.matrix_of(v.corr[index], 0, v.sizes[at])) + met * (flat @ flat.T)
    own = np.clip(own / scale, -1.0, 1.0)
    np.fill_diagonal(own, 1.0)
    return kernel_of_queries(made, v, token, own.ravel(), between, features)


def kernel_of_queries(
    made: State, v: State, token: int, own: Array, between: Callable[[Array], Array], features: int = -1
) -> Array:
    """Return a kernel over queries, ``own`` those of one sample, and ``between`` those of different samples, or heads
    that share values, made of the kernel of their values: each weighs these in its own way. ``features`` is the axis
    that holds those of a head.
    """
    axes, count = made.axes, len(made.sizes)
    others = [axis for axis in range(len(axes)) if axis not in (token, features % len(axes)) and axes[axis]]
    apart = [axis for axis in others if any(v.corr.shape[i] > 1 for i in v.axes[axis])]
    lengths = [1] * count
    for axis in apart:
        lengths[axes[axis][0]] = 2
    if axes[token]:
        lengths[axes[token][0]] = len(own)
    kernel = np.zeros(lengths)
    for steps in itertools.product((0, 1), repeat=len(apart)):
        where: list[int | slice] = [0] * count
        moved = v.corr
        for axis, step in zip(apart, steps, strict=True):
            where[axes[axis][0]] = step
            moved = kernels.off_diagonal_mean(moved, v.sizes, v.axes[axis][0]) if step else moved
        where[axes[token][0] if axes[token] else 0] = slice(None) if axes[token] else 0
        keep = v.axes[token]
        moved = kernels.at_zero(moved, [i for i in range(moved.ndim) if i not in keep])
        made_of = between(moved) if any(steps) else own
        kernel[tuple(where)] = made_of if axes[token] else made_of[0]
    return kernel
