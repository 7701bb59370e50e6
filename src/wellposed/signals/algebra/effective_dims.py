"""The dimensions that positions fill once each is divided by the size of its own features (signals.md 5.8)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from wellposed.signals.context.call import Call
from wellposed.signals.distributions.lazy import evaluated
from wellposed.signals.distributions.spread import Sources
from wellposed.signals.distributions.state import State
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array

LEAST_CORRELATED = 0.02
"""Mean square of the correlation of two positions up to which a norm leaves their dimensions. Chosen."""
MOST_TERMS = 400
"""Correlated terms up to which all are told apart; of more, some stand for their neighbours. Chosen for cost."""


class _Terms:
    """The correlation kernels of the terms that products sum, by finite-width source; grows during one pass."""

    def __init__(self) -> None:
        self.own: Array = np.zeros(0)
        self.shrunk: Array = np.zeros(0)  # NaN where it has not been asked for
        self.kernels: dict[int, tuple[Array, tuple[int, ...]]] = {}

    def note(self, number: int, own: float, kernel: Array, sizes: tuple[int, ...]) -> None:
        """Record the terms' kernel of the source ``number``, and the finite-width correlation ``own`` of it."""
        if number >= self.own.size:
            longer = number + 1 - self.own.size + self.own.size // 2
            self.own = np.concatenate([self.own, np.zeros(longer)])
            self.shrunk = np.concatenate([self.shrunk, np.ones(longer)])
        self.own[number], self.shrunk[number] = own, math.nan
        self.kernels[number] = kernel, sizes

    def limits(self, correlation: Sources, power: float) -> Array:
        """Return the largest amount of each source of ``correlation`` after a norm, infinite for sources that were not
        recorded. Each is computed once.
        """
        part = slice(correlation.start, correlation.start + correlation.amounts.size)
        own = self.own[part]
        for place in np.flatnonzero(np.isnan(self.shrunk[part]) & (correlation.amounts[: own.size] != 0.0)):
            number = correlation.start + int(place)
            self.shrunk[number] = of_one_size(*self.kernels.pop(number))  # once for all norms
        most = np.full(correlation.amounts.size, np.inf)
        known = (own > 0.0) & ~np.isnan(self.shrunk[part])
        np.copyto(most[: own.size], np.sqrt(own * self.shrunk[part] ** power), where=known)
        return most


def _terms(call: Call) -> _Terms:
    terms: _Terms = call.run.memo.setdefault("terms", _Terms())
    return terms


def note_terms(call: Call, number: int, kernel: Array, sizes: Sequence[int], own: float) -> None:
    """Record the correlation ``kernel`` of the terms that a product sums, under its finite-width source ``number``."""
    if own >= LEAST_CORRELATED:
        _terms(call).note(number, own, kernel, tuple(sizes))


def finite_width_after_norm(call: Call, x: State) -> Sources:
    """Return the finite-width correlation of two positions once each is divided by its norm.

    Positions made of terms of the covariance C have the squared norm sum_i c_i z_i², c the eigenvalues of C: those that
    are large along long axes count for less once all norms are equal. Two of them then have the mean square correlation
    sum_i (E[c_i z_i² / sum_k c_k z_k²])², which no further norm reduces. Positions whose norms differ less keep more.
    """
    correlation, scales = x.finite_width_correlation, evaluated(x.local_scales)
    if correlation.variance < LEAST_CORRELATED or x.equal_norm_inverse_dim > 0.0:
        return correlation
    uneven = 1.0 if scales is None else min(float(scales.ravel()[0]) / (2.0 * correlation.variance), 1.0)
    most = _terms(call).limits(correlation, max(uneven, 0.0))
    return Sources(correlation.start, np.clip(correlation.amounts, -most, most))


def of_one_size(kernel: Array, sizes: Sequence[int]) -> float:
    """Return the ratio of the mean square correlation of two Gaussian vectors after each is divided by its norm to that
    before, given the correlation kernel of their elements; 1 for uncorrelated elements.

    E[c_i z_i² / sum_k c_k z_k²] = int_0^inf c_i / (1 + 2 c_i t) prod_k (1 + 2 c_k t)^{-1/2} dt.
    """
    parts = [(kernel, 1.0)]
    for dim, size in enumerate(sizes):
        if kernel.shape[dim] <= min(size, 2):  # what all its elements share, and what they differ by
            parts = [each for part, times in parts for each in _mean_and_differences(part, times, dim, size)]
    axes, times = (
        np.concatenate(each) for each in zip(*(_eigenvalues(part, sizes, n) for part, n in parts), strict=True)
    )
    axes = axes / (times @ axes)
    t = np.geomspace(1e-4, 1e6, 400)
    spans = 1.0 + 2.0 * np.outer(t, axes)
    others = np.exp(-0.5 * np.log(spans) @ times)
    shares = np.trapezoid((axes / spans) * (others * t)[:, None], np.log(t), axis=0)
    shares = shares / (times @ shares)
    return float(times @ shares**2 / (times @ axes**2))


def _mean_and_differences(kernel: Array, times: float, dim: int, size: int) -> list[tuple[Array, float]]:
    """Return the kernels of the mean over ``dim`` and of a difference from it, each with its multiplicity."""
    one = np.take(kernel, [0], axis=dim)
    other = np.take(kernel, [1], axis=dim) if kernel.shape[dim] == 2 else np.zeros_like(one)
    if size == 1 or not other.any():
        return [(one, times * size)]
    return [(one + (size - 1) * other, times), (one - other, times * (size - 1))]


def _eigenvalues(kernel: Array, sizes: Sequence[int], times: float) -> tuple[Array, Array]:
    """Return the eigenvalues of a covariance kernel (thinned out where it is large), and the multiplicity of each."""
    dims = [dim for dim, length in enumerate(kernel.shape) if length > 1]
    told = [sizes[dim] for dim in dims]
    step = math.ceil((math.prod(told) / MOST_TERMS) ** (1.0 / max(len(told), 1)))
    told = [max(size // step, 1) for size in told]
    matrix = kernel.reshape([kernel.shape[dim] for dim in dims])[(slice(None, None, step),) * len(dims)]
    for size in told:
        matrix = kernels.matrix_of(matrix, 0, size)
    order = [2 * i + side for side in (0, 1) for i in range(len(told))]
    count = math.prod(told)
    axes = np.clip(np.linalg.eigvalsh(matrix.transpose(order).reshape(count, count)), 0.0, None)
    return axes, np.full(count, times)
