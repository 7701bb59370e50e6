"""What queries have in common that see keys of their own, as under causal masks (signals.md 5.8)."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import torch

from wellposed.arrays import array_of
from wellposed.signals.distributions.attention import Seen
from wellposed.signals.distributions.state import State
from wellposed.signals.distributions.views import merge_atoms, split_atom
from wellposed.signals.integration import kernels, regrouping
from wellposed.signals.integration.kernels import Array

MOST_TOKEN_GROUPS = 128
"""Most tokens, or groups of neighbouring tokens, whose results are told apart by pair. Chosen for cost."""


def flat_weights(mask: torch.Tensor | None, is_causal: bool, queries: int, keys: int) -> Seen | None:
    """Return the attention weights of queries that weigh all keys they see equally, averaged over samples; None without
    a mask by query and key, for too few queries, and for too many that do not fall into equal groups.
    """
    size = _group_size(queries, keys)
    if not size:
        return None
    if is_causal:
        shown = np.tri(queries, keys)
    elif mask is not None and mask.shape[-2:] == (queries, keys):
        shown = array_of(mask.to(torch.float64).reshape(-1, queries, keys).mean(dim=0))
    else:
        return None
    flat = np.asarray(shown / np.maximum(shown.sum(axis=1, keepdims=True), 1e-300))
    if size > 1:
        flat = flat.reshape(queries, -1, size).sum(axis=2)
    return Seen(flat, flat.reshape(-1, size, flat.shape[1]).mean(axis=1), size)


def _group_size(queries: int, keys: int) -> int:
    """Return how many neighbouring tokens form one group of `Seen`; 0 where there are too few queries, or too many that
    do not fall into equal groups.
    """
    if queries < kernels.LEAST:
        return 0
    if max(queries, keys) <= MOST_TOKEN_GROUPS:
        return 1
    if queries != keys:
        return 0
    sizes = (
        n for n in range(2, queries // kernels.LEAST + 1) if queries % n == 0 and queries // n <= MOST_TOKEN_GROUPS
    )
    return next(sizes, 0)


def _is_of_keys(mask: torch.Tensor, shape: tuple[int, ...], token: int) -> bool:
    """Whether a mask shuts out keys of this ``shape``, with tokens along the axis ``token``, the same ones for all
    queries: not by heads of queries, of which several share their keys.
    """
    alike = mask.ndim <= len(shape) and (mask.ndim < 2 or mask.shape[-2] == 1)
    ahead = mask.shape[:-2], shape[-mask.ndim : -2]
    return alike and mask.shape[-1] == shape[token] and all(n in (1, m) for n, m in zip(*ahead, strict=True))


def as_seen(x: State, token: int, mask: torch.Tensor | None) -> State:
    """Return keys or values whose variance is that of the tokens that a mask lets through, averaged over samples;
    unchanged unless all queries of a sample see the same tokens (samples padded with zeros).

    Args:
        x: of the axes (*batch, heads, tokens, features).
        token: the axis of tokens.
        mask: broadcasts over (*batch, heads, queries, tokens).
    """
    if mask is None or not _is_of_keys(mask, x.shape, token):
        return x
    merged = x
    for axis in range(len(x.axes)):
        merged = merge_atoms(merged, axis) if len(merged.axes[axis]) > 1 else merged
    if not merged.axes[token] or merged.var.shape[merged.axes[token][0]] == 1:
        return x
    order = [i for axis in merged.axes for i in axis]
    var = merged.var.transpose(order).reshape([merged.var.shape[a[0]] if a else 1 for a in merged.axes])
    shown = array_of(mask.double()).reshape([1] * (len(x.axes) - mask.ndim) + list(mask.shape)).swapaxes(-1, -2)
    shares = shown / np.maximum(shown.sum(axis=token, keepdims=True), 1e-300)
    level = kernels.average((var * shares).sum(axis=token))
    return x.with_moments(var=np.full((1,) * len(x.lengths), level)) if level > 0.0 else x


def common_of_seen(v: State, token: int, seen: Seen) -> Array:
    """Return the mean correlation of two different values that a query sees, by query."""
    pairs = _covariance_of_groups(
        kernels.at_zero(v.corr, [i for i in range(v.corr.ndim) if i not in v.axes[token]]), v, token, seen
    )
    own = (seen.queries**2).sum(axis=1) / seen.size
    every = ((seen.queries @ pairs) * seen.queries).sum(axis=1)
    return np.where(own < 1.0, (every - own) / np.maximum(1.0 - own, 1e-300), 0.0)


def _covariance_of_groups(kernel: Array, v: State, token: int, seen: Seen) -> Array:
    """Return the mean covariance of a token of one group and a token of another, (groups, groups), from the kernel of
    the values, whose dimensions beside those of the tokens have length 1.
    """
    atoms, groups = v.axes[token], seen.groups.shape[1]
    kernel = kernel.transpose([*atoms, *(i for i in range(kernel.ndim) if i not in atoms)])
    kernel, sizes = kernel.reshape(kernel.shape[: len(atoms)]), [v.lengths[i] for i in atoms]
    if len(atoms) == 1 and seen.size > 1:
        kernel, sizes = regrouping.split_profile(kernel, 0, groups, seen.size, kernels.LAGS[1]), [groups, seen.size]
    if len(sizes) > 1:
        kernel = kernels.pair_mean(kernel, sizes, [1])[:, 0]
    return kernels.matrix_of(kernel, 0, groups)


def grouped(v: State, token: int, seen: Seen | None) -> State:
    """Return values whose tokens are one index, or groups of neighbours and what lies within them."""
    apart = (
        seen is not None and seen.size > 1 and [v.lengths[i] for i in v.axes[token]] == [len(seen.groups), seen.size]
    )
    return v if apart else merge_atoms(v, token)


def levels_of_seen(v: State, token: int, seen: Seen | None) -> Array:
    """Return the mean variance of the values that a query sees, relative to that of all values, by query."""
    if seen is None or v.var.shape[at := v.axes[token][0]] == 1:
        return np.ones(1)
    by_key = v.var.mean(axis=tuple(i for i in range(v.var.ndim) if i != at))
    by_group = by_key.reshape(-1, seen.size).mean(axis=1)
    return np.asarray(seen.queries @ by_group / max(kernels.average(by_key), 1e-300))


def with_pairs(
    made: State, v: State, token: int, seen: Seen, ratio: Array, met: float, features: int = -1
) -> tuple[State, Array]:
    """Return the results of queries that see different keys, and their correlation kernel by pair of queries: that of
    the means over the values that they see, plus ``met`` times the overlap of their keys, as weights are correlated.
    ``v`` is from `grouped`.

    Where tokens are in groups, the tokens of the result are split into two atoms: groups (by pair), and tokens of a
    group.
    """
    weights = seen.groups
    root = np.sqrt(np.broadcast_to(ratio, len(seen.queries))).reshape(-1, seen.size).mean(axis=1)
    scale = np.maximum(np.multiply.outer(root, root), 1e-300)

    def over(pairs: Array) -> Array:
        return np.asarray(weights @ pairs @ weights.T, dtype=np.float64)

    def between(moved: Array) -> Array:
        return np.ravel(over(_covariance_of_groups(moved, v, token, seen)) / scale)

    kernel = kernels.at_zero(v.corr, [i for i in range(v.corr.ndim) if i not in v.axes[token]])
    own = over(_covariance_of_groups(kernel, v, token, seen)) + met * (weights @ weights.T) / seen.size
    own = np.clip(own / scale, -1.0, 1.0)
    if seen.size == 1:
        np.fill_diagonal(own, 1.0)
        return made, kernel_of_queries(made, v, token, own.ravel(), between, features)
    apart = kernel_of_queries(made, v, token, own.ravel(), between, features)
    at = made.axes[token][0]
    same = apart.copy()
    same[tuple(slice(None, None, len(own) + 1) if i == at else 0 for i in range(same.ndim))] = 1.0
    return split_atom(made, at, len(own), seen.size), np.stack([same, apart], axis=at + 1)


def kernel_of_queries(
    made: State, v: State, token: int, own: Array, between: Callable[[Array], Array], features: int = -1
) -> Array:
    """Return the correlation kernel of the results of attention. Two queries of one sample have the correlation
    ``own``; for queries of two samples, or of two heads that share values, ``between`` computes it from the values'
    kernel. ``features`` is the axis of a head's features.
    """
    axes, count = made.axes, len(made.lengths)
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
        for axis, step in zip(apart, steps, strict=True):
            where[axes[axis][0]] = step
        if axes[token]:
            where[axes[token][0]] = slice(None)
        made_of = between(_kernel_of_tokens(v, token, dict(zip(apart, steps, strict=True)))) if any(steps) else own
        kernel[tuple(where)] = made_of if axes[token] else made_of[0]
    return kernel


def _kernel_of_tokens(v: State, token: int, steps: dict[int, int]) -> Array:
    """Return the correlation kernel of the values along their tokens. ``steps`` says for each other axis whether it is
    taken at one index (0) or averaged over pairs of different indices (1).
    """
    kernel = v.corr
    for axis, step in steps.items():
        kernel = kernels.off_diagonal_mean(kernel, v.lengths, v.axes[axis][0]) if step else kernel
    return kernels.at_zero(kernel, [i for i in range(kernel.ndim) if i not in v.axes[token]])
