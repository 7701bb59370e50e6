"""Kernels of mean products of real tensors, and what samples show beyond chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from wellposed.signals.integration.kernels import Array

Kind: TypeAlias = Literal["alone", "pairs", "profile", "constant"]
"""What a kernel holds along one atom: nothing, one number for all pairs, a profile, or that the tensor is constant."""

THINNED = 1 << 20
"""Elements of one pass from which profiles are computed; of more, only evenly spaced maps are used."""
SIGNIFICANT = 3.0
"""Standard errors from which on elements that are predicted uncorrelated count as correlated."""


def mean_over(values: Tensor, dims: Sequence[int]) -> Tensor:
    """Average over some dimensions, which are kept as length 1."""
    return values.mean(dim=list(dims), keepdim=True) if dims else values


def stands_out(estimates: Array, least: float) -> bool:
    """Whether the mean over passes is farther from 0 than chance and ``least`` allow."""
    error = float(np.std(estimates, ddof=1)) / math.sqrt(len(estimates)) if len(estimates) > 1 else 0.0
    return abs(float(np.mean(estimates))) > max(SIGNIFICANT * error, least)


def pair_product(values: Tensor, atom: int) -> float:
    """Return the mean product of elements that differ along one axis only."""
    size = values.shape[atom]
    everywhere = float((values.mean(dim=atom) ** 2).mean())
    return (everywhere * size - float((values**2).mean())) / max(size - 1, 1)


def neighbour_product(values: Tensor, atom: int) -> float:
    """Return the mean product of elements that are neighbours along one axis."""
    return float(
        (values.narrow(atom, 0, values.shape[atom] - 1) * values.narrow(atom, 1, values.shape[atom] - 1)).mean()
    )


def differs_along(values: Sequence[Tensor], atom: int, power: int) -> bool:
    """Whether a moment differs by position along an atom beyond sampling error (Student's t, 6 sigma)."""
    draws, size = len(values), values[0].shape[atom]
    freedom = draws - 1
    if freedom < 7 or not 0 < size <= 4096:
        return False
    others = [i for i in range(values[0].ndim) if i != atom]
    each = torch.stack([mean_over(value.to(torch.float64) ** power, others).flatten() for value in values])
    error2 = each.var(dim=0) / draws
    if not bool(error2.any()):  # the same in every pass: nothing says what is chance
        return False
    off = (each.mean(dim=0) - each.mean()) ** 2
    if bool((off[error2 == 0] > 1e-12 * each.square().mean()).any()):  # padding, or what was never written
        return True
    statistic = float(torch.where(error2 > 0, off / error2.clamp(min=1e-300), 0.0).sum())
    mean = freedom / (freedom - 2)  # of t², as its variance
    variance = 3.0 * freedom**2 / ((freedom - 2) * (freedom - 4)) - mean**2
    return statistic > mean * size + 6.0 * math.sqrt(variance * size)


def product_kernel(x: Tensor, y: Tensor, sizes: Sequence[int], kinds: Sequence[Kind]) -> Array:
    """Return the kernel of mean products of x at one position and y at another, by atoms (see `kernels`).

    ``y`` has length 1 along atoms that it is constant along. Along pairs, the mean over all pairs of positions comes
    from sums over the atom; along profiles, the products at each displacement from Fourier transforms.
    """
    constant, pairs, profiles = (
        [i for i, kind in enumerate(kinds) if kind == wanted] for wanted in ("constant", "pairs", "profile")
    )
    return _over_pairs(mean_over(x, constant), y, sizes, pairs, constant, profiles)


def _over_pairs(
    x: Tensor, y: Tensor, sizes: Sequence[int], pairs: Sequence[int], constant: Sequence[int], profiles: Sequence[int]
) -> Array:
    """Return the kernel of `product_kernel`, taking one atom after another of those along which all pairs are alike."""
    if constant:
        kernel = _over_pairs(x, y, sizes, pairs, constant[1:], profiles)
        return np.concatenate([kernel, kernel], axis=constant[0])
    if not pairs:
        return _by_displacement(x, y, profiles)
    at, size = pairs[0], sizes[pairs[0]]
    same = _over_pairs(x, y, sizes, pairs[1:], (), profiles)
    every = _over_pairs(mean_over(x, [at]), mean_over(y, [at]), sizes, pairs[1:], (), profiles)
    return np.concatenate([same, (every * size - same) / (size - 1)], axis=at)


def _by_displacement(x: Tensor, y: Tensor, profiles: Sequence[int]) -> Array:
    """Return mean products by displacement along the axes ``profiles``, other axes kept as length 1."""
    if not profiles:
        return np.full((1,) * x.ndim, float((x * y).mean()))
    rest = [i for i in range(x.ndim) if i not in profiles]
    shape = torch.broadcast_shapes(x.shape, y.shape)
    sizes = [shape[i] for i in profiles]
    maps = [t.expand(shape).permute(*rest, *profiles).reshape(-1, *sizes) for t in (x, y)]
    step = -(-maps[0].numel() // THINNED)
    dims = list(range(1, 1 + len(sizes)))
    first, second = (torch.fft.rfftn(m[::step], [2 * n for n in sizes], dim=dims) for m in maps)
    spectrum = (first.conj() * second).mean(dim=0)
    sums = torch.fft.irfftn(spectrum, [2 * n for n in sizes]).numpy()
    for dim, n in enumerate(sizes):  # displacements of both signs are pooled
        ahead = np.take(sums, range(n), axis=dim)
        behind = np.take(sums, [0, *range(2 * n - 1, n, -1)], axis=dim)
        counts = (n - np.arange(n)).reshape([-1 if d == dim else 1 for d in range(sums.ndim)])
        sums = 0.5 * (ahead + behind) / counts
    # the axes ``profiles`` are in the order of the atoms
    return np.asarray(sums.reshape([shape[i] if i in profiles else 1 for i in range(x.ndim)]))
