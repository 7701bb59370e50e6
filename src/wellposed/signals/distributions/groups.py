"""Positions of a tensor in groups of nearly equal mean and standard deviation, each worth one integral."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from wellposed.arrays import distinct
from wellposed.signals.distributions.layout import Dims
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.windows import Indices

BINS = 12
"""Bins per direction (mean, standard deviation) where more than `MOST` positions differ. Chosen."""
MOST = 3 * BINS
"""Most groups of positions that get an integral each, and bins where one direction varies alone. Chosen."""
SEEN = 4096
"""Positions that are sorted first: most tensors of more than `MOST` groups show it in these. Chosen for speed."""
LEAST = 1e-300
"""Size in place of that of means, or standard deviations, that are all 0. Chosen: smaller than any of theirs."""
FIRST = 128
"""Positions that are looked at before those are sorted. Chosen for speed."""
DECADES = 30.0
"""Ratio of the largest to the tenth percentile from which on bins are even in the logarithm. Chosen."""


class Groups(NamedTuple):
    """Positions of one tensor, in groups of (nearly) equal mean and standard deviation.

    Attributes:
        means, stds, shares: arrays by group; shares are fractions of all positions.
        groups: index of the group of each position, flat.
        shape: the shape of the tensor by atoms.
    """

    means: Array
    stds: Array
    shares: Array
    groups: Indices
    shape: tuple[int, ...]

    def by_position(self, values: Array) -> Array:
        """Return values of groups at each position."""
        return np.asarray(values[self.groups].reshape(self.shape))

    def placed(self, where: Dims, count: int) -> Indices:
        """Return the group at each position of ``count`` atoms. ``where`` gives for each of the tensor's atoms its
        place among them; along atoms without a place the first position counts.
        """
        groups = self.groups.reshape(self.shape)
        groups = groups[tuple(0 if i is None else slice(None) for i in where)]
        kept = [i for i in where if i is not None]
        order = sorted(range(len(kept)), key=kept.__getitem__)
        sizes = [1] * count
        for atom, size in zip(kept, groups.shape, strict=True):
            sizes[atom] = size
        return groups.transpose(order).reshape(sizes)


def grouped(mean: Array, std: Array) -> Groups:
    """Group the positions of a tensor, given its means and standard deviations."""
    shape = np.broadcast_shapes(mean.shape, std.shape)
    centred = mean.size == 1 and mean.item() == 0.0
    mean, std = np.broadcast_to(mean, shape).ravel(), np.broadcast_to(std, shape).ravel()
    if mean.size == 1:
        return Groups(mean, std, np.ones(1), np.zeros(1, np.int64), shape)
    rows = [std] if centred else [mean, std]
    scales = [max(float(np.abs(row).max()), LEAST) for row in rows]
    keys = [np.rint(row / scale * 1e9).astype(np.int64) for row, scale in zip(rows, scales, strict=True)]
    joined = keys[0] if centred else keys[0] * (1 << 31) + keys[1]
    found = None
    # a few tell most often
    few = len(set(joined[:FIRST].tolist())) <= MOST
    if few and (joined.size <= SEEN or len(distinct(joined[:SEEN])) <= MOST):
        groups, *told = np.unique(joined, return_inverse=True, return_counts=True)
        found = told if len(groups) <= MOST else None
    inverse, counts = found or _binned(rows, scales)
    means = np.zeros(len(counts)) if centred else np.bincount(inverse, mean) / counts
    stds = np.sqrt(np.bincount(inverse, std * std) / counts)
    return Groups(means, stds, counts / mean.size, inverse, shape)


def _binned(rows: list[Array], scales: list[float]) -> tuple[Indices, Indices]:
    """Return the bin of each position in means (``rows``, unless they are 0) and standard deviations, and the number of
    positions in each bin.
    """
    varied = [np.ptp(row) > 1e-9 * scale for row, scale in zip(rows, scales, strict=True)]
    bins = BINS if len(rows) > 1 and all(varied) else MOST
    joined: Indices | int = 0
    for row, scale in zip(rows, scales, strict=True):
        # over decades (the frequencies of an embedding of time) the bins are as many to each
        small = _tenth_percentile(np.abs(row))
        wide = scale > max(DECADES * small, LEAST)
        at = np.arcsinh(row / max(small, 1e-6 * scale)) if wide else row
        low, high = kernels.extent(at)
        width = max(high - low, 1e-12 * max(-low, high, LEAST))
        joined = joined * MOST + np.minimum(((at - low) / width * bins).astype(np.int64), MOST - 1)
    counts = np.bincount(joined)
    used = np.flatnonzero(counts)
    number = np.zeros(len(counts), np.int64)
    number[used] = np.arange(len(used))
    return number[joined], counts[used]


def _tenth_percentile(sizes: Array) -> float:
    """Return the tenth percentile of some sizes, which `numpy.quantile` takes four times as long for."""
    at = 0.1 * (sizes.size - 1)
    below = int(at)
    low, high = np.partition(sizes, (below, below + 1))[below : below + 2].tolist()
    # from the nearer end, as NumPy does
    return float(low + (high - low) * (at - below) if at - below < 0.5 else high - (high - low) * (1.0 - (at - below)))


def rounded(mean: float, std: float) -> tuple[float, float]:
    """Return a mean and a standard deviation with 12 digits, so that layers that share a state share cached results."""
    return float(f"{mean:.12g}"), float(f"{std:.12g}")


def average_of(mean: Array, std: Array) -> tuple[float, float]:
    """Return the mean and the standard deviation at the average position."""
    return rounded(kernels.average(mean), math.sqrt(kernels.average(std * std)))
