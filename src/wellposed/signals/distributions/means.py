"""Means over atoms: links to them, and covariances of means of functions of one Gaussian tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from wellposed.signals.distributions.functions import IDENTITY, Pointwise
from wellposed.signals.distributions.layout import Dims
from wellposed.signals.distributions.state import Link, Operate, Scaled, State, Statistic
from wellposed.signals.integration import gaussian, kernels, taps
from wellposed.signals.integration.gaussian import hermite
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.taps import Taps

LONGEST = 4096
"""Positions of an axis up to which means over its blocks are followed. Chosen, for memory."""


class _Mean(NamedTuple):
    """A multiple of the mean of a function of one tensor over some of its atoms."""

    of: Statistic
    function: Pointwise
    factor: float


def _mean_of(x: State) -> _Mean | None:
    """Return the mean that a state is a multiple of; None where it is a multiple of none."""
    of = x.statistic
    if of is None or len(of.means) != 1 or None in of.places:
        return None
    at = [float(of.function(torch.tensor(number, dtype=torch.float64))) for number in (0.0, 1.0, -2.0)]
    if at[0] != 0.0 or not math.isclose(at[2], -2.0 * at[1], rel_tol=1e-9):
        return None
    return _Mean(of, of.means[0][0], at[1])


def of_means(x: State, y: State, where: Dims) -> Array | None:
    """Return the covariance of two means of functions of one Gaussian tensor over the same atoms, or of a function of
    its mean and such a mean: (sum x)² and sum x² in a factorisation machine. None elsewhere.

    With aₙ and bₙ the coefficients of the two functions it is the mean of Σ aₙ bₙ rⁿ over pairs; for a function of the
    tensor's own mean, r is the correlation of that mean with one element.
    """
    if where != tuple(range(len(x.lengths))) or x.lengths != y.lengths:
        return None
    for one, other in ((x, y), (y, x)):
        inner = one if one.base is None or one.fn is None else one.base
        first, second = _mean_of(inner), _mean_of(other)
        if first is None or second is None or other.fn is not None or inner.lengths != one.lengths:
            continue
        of = first.of
        if (of.source.serial, of.over, of.places) != (second.of.source.serial, second.of.over, second.of.places):
            continue
        return _of_two_means(one, inner, first, second)
    return None


def _of_two_means(x: State, inner: State, first: _Mean, second: _Mean) -> Array | None:
    """Return the covariance, in the atoms of x, of the mean ``second`` and of x: the mean ``first``, or a function of
    ``inner``, which is then that mean. None where their source is no Gaussian tensor.
    """
    source, over = first.of.source, sorted(first.of.over)
    centre, std = kernels.average(source.mean), math.sqrt(kernels.average(source.var))
    if not (std > 0.0 and source.transport is None and source.local_scales is None):
        return None
    b, _ = hermite(second.function, centre, std)
    covariance = source.covariance()
    if inner is x:
        a, _ = hermite(first.function, centre, std)
        coefficients = a * b * (first.factor * second.factor)
        coefficients[0] = 0.0
        kernel = gaussian.polynomial(coefficients, np.clip(covariance / std**2, -1.0, 1.0))
        kernel = kernels.pair_mean(kernel, source.lengths, over)
    else:
        own = math.sqrt(kernels.average(inner.var))
        if first.function.key != IDENTITY.key or x.fn is None or not own > 0.0:
            return None
        a, _ = hermite(x.fn, kernels.average(inner.mean), own)
        coefficients = a * b * second.factor
        coefficients[0] = 0.0
        common = kernels.pair_mean(covariance, source.lengths, over) * first.factor
        kernel = gaussian.polynomial(coefficients, np.clip(common / (own * std), -1.0, 1.0))
    return kernels.rearranged(kernel, first.of.places)


def of_own_mean(x: State, y: State, where: Dims) -> Array | None:
    """Return the covariance of a tensor, or a function of it, with a mean of a function of it over some of its atoms;
    None elsewhere. Along these it is constant. It is the mean of Σ aₙ bₙ rⁿ over pairs, as in `of_means`.
    """
    source, fn = x.gaussian_source()
    of = y.statistic
    if of is None or of.source.serial != source.serial or source.lengths != x.lengths or where != of.places:
        return None
    mean = _mean_of(y)
    if mean is None:
        return None
    function, kernel = mean.function, source.covariance()
    if fn is not None or function.key != IDENTITY.key:
        centre, std = kernels.average(source.mean), math.sqrt(kernels.average(source.var))
        if not (std > 0.0 and source.transport is None and source.local_scales is None):
            return None
        product = hermite(fn or IDENTITY, centre, std)[0] * hermite(function, centre, std)[0]
        product[0] = 0.0
        kernel = gaussian.polynomial(product, np.clip(kernel / std**2, -1.0, 1.0))
    return averaging(source.lengths, sorted(of.over), mean.factor)(kernel, tuple(range(kernel.ndim)))


def averaging(sizes: Sequence[int], over: Sequence[int], factor: float = 1.0) -> Operate:
    """Return the link operator of a mean over some atoms (times a number): alike at all positions, it is the average
    over them.
    """

    def operate(kernel: Array, where: Dims) -> Array:
        """Return a kernel averaged over pairs along the atoms, which keep length 2 there: all positions alike."""
        for atom in over:
            dim = where[atom]
            if dim is not None:
                kernel = kernels.pair_mean(kernel, [sizes[atom]] * kernel.ndim, [dim])
                kernel = np.concatenate([kernel, kernel], axis=dim)
        return np.asarray(kernel * factor)

    return operate


def to_mean_of(x: State, over: Sequence[int], factor: float = 1.0) -> tuple[Link, ...]:
    """Return the links of a mean of x over some atoms, times a number."""
    kept = tuple(i for i in range(len(x.lengths)) if i not in over)
    return (Link(x, averaging(x.lengths, over, factor), kept, over), *_to_blocks(x, over, factor)) if x.roots else ()


def _to_blocks(x: State, over: Sequence[int], factor: float) -> tuple[Link, ...]:
    """Return the link of a mean of x over some atoms to the tensor whose atoms views cut in two, where of each one part
    is averaged: a mean over blocks, or over positions that lie a step apart.
    """
    kept, gone = [i for i in range(len(x.lengths)) if i not in over], set(over)
    combined: dict[int, Taps] = {}
    while x.whole is not None:
        whole, atom = x.whole
        both = gone & {atom, atom + 1}
        if not both or {atom, atom + 1} & combined.keys() or whole.lengths[atom] > LONGEST:
            return ()
        combined = {i - (i > atom): taken for i, taken in combined.items()}
        if len(both) == 1:
            parts = np.arange(whole.lengths[atom]).reshape(x.lengths[atom : atom + 2])
            parts = parts if atom + 1 in both else parts.T
            combined[atom] = Taps(parts, np.full(parts.shape, 1.0 / parts.shape[1]), parts.size)
        gone = {i - (i > atom) for i in gone if i not in both or len(both) == 2}
        kept = [i - (i > atom) for i in kept]
        x = whole
    if not combined or any(x.lengths[i] > LONGEST for i in gone):
        return ()
    averages = {i: taps.whole(x.lengths[i]).averaged() for i in gone}
    return (Link(x, Scaled(factor), tuple(kept), taps=tuple((combined | averages).items())),)
