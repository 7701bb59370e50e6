"""Known linear maps along one axis: interpolation, windows of unequal size, running sums."""

from __future__ import annotations

import numpy as np

from wellposed.signals.distributions.state import Moments, State
from wellposed.signals.distributions.views import merge_atoms
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.windows import Indices


def mapped(x: State, axis: int, weights: Array) -> State:
    """Return y_i = sum_j w_ij x_j along one axis (longer than 1); ``weights`` is (new size, old size).

    Cov(y_i, y_k) = sum over j, l of w_ij w_kl s_j s_l R(|j - l|), the variance along the axis taken as one factor.
    """
    x = merge_atoms(x, axis)
    at = x.axes[axis][0]
    size, old = weights.shape
    covariance = _mapped_covariance(x, at, weights)
    gain = np.maximum(np.diagonal(covariance[(0,) * (len(x.sizes) - 1)]), 0.0)
    level = x.var.mean(axis=at, keepdims=True)
    share = level / level.mean() if level.any() else np.ones_like(level)
    var = gain.reshape([size if i == at else 1 for i in range(len(x.sizes))]) * share
    lags = min(size, kernels.lag_cap(sum(n > 2 for n in x.corr.shape) + 1))
    near = [np.diagonal(covariance, d, axis1=-2, axis2=-1).mean(axis=-1) for d in range(lags - 1)]
    kernel = np.stack([*near, covariance[(..., *np.triu_indices(size, lags - 1))].mean(axis=-1)], axis=-1)
    full = np.broadcast_to(x.mean, [old if i == at else n for i, n in enumerate(x.mean.shape)])
    mean = np.moveaxis(np.tensordot(full, weights, axes=([at], [1])), -1, at)
    kernel = np.moveaxis(kernel, -1, at)
    corr = kernels.correlation(kernel * kernels.autocorrelation(np.sqrt(share), kernel.shape), var)
    gone = [at] if size == 1 else []
    moments = Moments(*(kernels.without(array, gone) for array in (mean, var, corr)))
    return x.with_moments(layout=x.layout.resized(at, size).without(gone), moments=moments, lever=None)


def _mapped_covariance(x: State, at: int, weights: Array) -> Array:
    """Return the covariances of all pairs of new positions along one atom, by displacement in the others."""
    old = weights.shape[1]
    others = tuple(i for i in range(len(x.sizes)) if i != at)
    along = np.sqrt(np.broadcast_to(x.var.mean(axis=others), (old,)))
    profile = np.moveaxis(x.corr, at, -1)
    lag = np.abs(np.subtract.outer(np.arange(old), np.arange(old)))
    table = profile[..., np.minimum(lag, profile.shape[-1] - 1)]
    if profile.shape[-1] == 1:
        table = np.where(lag == 0, table, 0.0)
    return np.asarray(weights @ (table * np.multiply.outer(along, along)) @ weights.T)


def from_sources(corr: Array, dim: int, source: Indices) -> Array:
    """Correlation profile of positions that are copies of inner positions ``source``."""
    total = source.size
    length = corr.shape[dim]
    lags = min(total, max(length, 16))
    matrix = np.zeros((lags, max(length, 1)))

    def count(row: int, distances: Indices, weight: float) -> None:
        if length == 1:
            matrix[row, 0] += weight * float((distances == 0).sum())
        else:
            matrix[row] += weight * np.bincount(np.minimum(distances, length - 1), minlength=length)

    for lag in range(lags - 1):
        count(lag, np.abs(source[lag:] - source[: total - lag]), 1.0 / (total - lag))
    # the last entry stands for all that are farther: every displacement of a short axis, some of a long one
    far = np.unique(np.linspace(lags - 1, total - 1, min(total - lags + 1, 512)).astype(np.int64))
    pairs = float((total - far).sum())
    for lag in far:
        count(lags - 1, np.abs(source[lag:] - source[: total - lag]), 1.0 / pairs)
    return np.moveaxis(np.tensordot(corr, matrix, axes=([dim], [1])), -1, dim)
