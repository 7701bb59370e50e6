"""Covariances between states of one pass."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from wellposed.signals.distributions.state import IDENTITY, Dims, Operate, Pointwise, State, Statistic
from wellposed.signals.integration import kernels
from wellposed.signals.integration.gaussian import hermite
from wellposed.signals.integration.kernels import Array


class Dependence:
    """Covariances between states of one pass, found by following links from the later state to the earlier one."""

    def __init__(self) -> None:
        self._memo: dict[tuple[int, int, Dims], Array | None] = {}
        self._next_root = 0
        self._next_source = 0

    def root(self) -> int:
        """Return a bit that no state has yet."""
        bit = 1 << self._next_root
        self._next_root += 1
        return bit

    def source(self) -> int:
        """Return a number that no random number of a `Spread` has yet."""
        self._next_source += 1
        return self._next_source - 1

    def between(self, x: State, y: State, x_dims: Dims, y_dims: Dims) -> Array | None:
        """Return the covariance kernel of two states in common atoms, or None when they are independent.

        ``x_dims`` and ``y_dims`` give each common atom's place in the states (see `Aligned`).
        """
        if not (x.roots & y.roots):
            return None
        kernel = self._covariance(x, y, _places(x_dims, y_dims, len(y.sizes)), 0)
        return None if kernel is None else kernels.placed(kernel, x_dims)

    def _covariance(self, x: State, y: State, where: Dims, depth: int) -> Array | None:
        # the kernel is in x's atoms; ``where`` says which of them each of y's atoms is
        if not (x.roots & y.roots) or depth > 200:
            return None
        if x.serial == y.serial:
            return _as_told(x.covariance(), y) if where == tuple(range(len(where))) else None
        key = (x.serial, y.serial, where)
        if key not in self._memo:
            found = self._of_functions(x, y, where, depth + 1)
            found = self._of_maps(x, y, where, depth + 1) if found is None else found
            found = _of_means(x, y, where) if found is None else found
            if found is None:
                through = self._through_links_of_y if y.serial > x.serial else self._through_links_of_x
                parts = list(through(x, y, where, depth + 1))
                found = kernels.total(*parts) if parts else None
            self._memo[key] = found
        return self._memo[key]

    def _of_functions(self, x: State, y: State, where: Dims, depth: int) -> Array | None:
        """Return the covariance of two functions of Gaussian tensors, Σ aₙ bₙ rⁿ; None where they are no such."""
        functions = [_hermite_of(state) for state in (x, y)]
        if functions[0] is None or functions[1] is None or x.base is None or y.base is None:
            return None
        kernel = self._covariance(x.base, y.base, where, depth)
        if kernel is None:
            return None
        (a, std), (b, other) = functions[0], functions[1]
        coefficients = a * b
        coefficients[0] = 0.0
        return kernels.polynomial(coefficients, np.clip(kernel / (std * other), -1.0, 1.0))

    def _through_links_of_y(self, x: State, y: State, where: Dims, depth: int) -> Iterator[Array]:
        for link in y.links:
            dims = link.dims if link.dims is not None else tuple(range(len(y.sizes)))
            places = _places(where, dims, len(link.parent.sizes))
            kernel = self._covariance(x, link.parent, places, depth)
            if kernel is not None:
                yield link.operate(_as_told(kernel, link.parent), places)

    def _through_links_of_x(self, x: State, y: State, where: Dims, depth: int) -> Iterator[Array]:
        for link in x.links:
            dims = link.dims if link.dims is not None else tuple(range(len(x.sizes)))
            inner = tuple(None if i is None else dims[i] for i in where)
            kernel = self._covariance(link.parent, y, inner, depth)
            if kernel is not None:
                kernel = link.operate(_as_told(kernel, link.parent), tuple(range(len(link.parent.sizes))))
                yield kernels.placed(kernel, dims)

    def _of_maps(self, x: State, y: State, where: Dims, depth: int) -> Array | None:
        """Return the covariance of two linear maps along one atom of tensors that depend on each other: the two ends of
        a graph's edges. None where they are no such.
        """
        one, other = x.running, y.running
        if one is None or other is None or not (one.pairs and other.pairs) or where != tuple(range(len(x.sizes))):
            return None
        size = one.weights.shape[1]
        if one.atom != other.atom or x.sizes != y.sizes or one.weights.shape != other.weights.shape:
            return None
        kernel = self._covariance(one.parent, other.parent, tuple(range(len(one.parent.sizes))), depth)
        if kernel is None:
            return None
        matrix = one.weights @ kernels.matrix_of(kernel, one.atom, size) @ other.weights.T
        return kernels.by_pair(0.5 * (matrix + matrix.swapaxes(-1, -2)), one.atom)


class _Mean(NamedTuple):
    """A multiple of the mean of a function of one tensor over some of its atoms."""

    of: Statistic
    function: Pointwise
    factor: float


def _mean_of(x: State) -> _Mean | None:
    """Return what a state is a multiple of the mean of; None where it is no such."""
    of = x.statistic
    if of is None or len(of.means) != 1 or None in of.places:
        return None
    at = [float(of.function(torch.tensor(number, dtype=torch.float64))) for number in (0.0, 1.0, -2.0)]
    if at[0] != 0.0 or not math.isclose(at[2], -2.0 * at[1], rel_tol=1e-9):
        return None
    return _Mean(of, of.means[0][0], at[1])


def _of_means(x: State, y: State, where: Dims) -> Array | None:
    """Return the covariance of two means of functions of one Gaussian tensor over the same atoms, or of a function of
    its mean and such a mean: (sum x)² and sum x² in a factorisation machine. None elsewhere.

    With aₙ and bₙ the coefficients of the two functions it is the mean of Σ aₙ bₙ rⁿ over pairs; for a function of the
    tensor's own mean, r is the correlation of that mean with one element.
    """
    if where != tuple(range(len(x.sizes))) or x.sizes != y.sizes:
        return None
    for one, other in ((x, y), (y, x)):
        inner = one if one.base is None or one.fn is None else one.base
        first, second = _mean_of(inner), _mean_of(other)
        if first is None or second is None or other.fn is not None or inner.sizes != one.sizes:
            continue
        of = first.of
        if (of.source.serial, of.over, of.places) != (second.of.source.serial, second.of.over, second.of.places):
            continue
        return _of_two_means(one, inner, first, second)
    return None


def _of_two_means(x: State, inner: State, first: _Mean, second: _Mean) -> Array | None:
    source, over = first.of.source, sorted(first.of.over)
    centre, std = kernels.average(source.mean), math.sqrt(kernels.average(source.var))
    if not (std > 0.0 and source.transport is None and source.scales is None):
        return None
    b, _ = hermite(second.function, centre, std)
    covariance = source.covariance()
    if inner is x:
        a, _ = hermite(first.function, centre, std)
        coefficients = a * b * (first.factor * second.factor)
        coefficients[0] = 0.0
        kernel = kernels.polynomial(coefficients, np.clip(covariance / std**2, -1.0, 1.0))
        kernel = kernels.pair_mean(kernel, source.sizes, over)
    else:
        own = math.sqrt(kernels.average(inner.var))
        if first.function.key != IDENTITY.key or x.fn is None or not own > 0.0:
            return None
        a, _ = hermite(x.fn, kernels.average(inner.mean), own)
        coefficients = a * b * second.factor
        coefficients[0] = 0.0
        common = kernels.pair_mean(covariance, source.sizes, over) * first.factor
        kernel = kernels.polynomial(coefficients, np.clip(common / (own * std), -1.0, 1.0))
    return kernels.rearranged(kernel, first.of.places)


def _hermite_of(x: State) -> tuple[Array, float] | None:
    """Return the Hermite coefficients of a function of a Gaussian tensor, at the average position, and the standard
    deviation of that tensor; None for what is no such function.
    """
    base, fn = x.base, x.fn
    if base is None or fn is None or base.sizes != x.sizes or base.transport is not None or base.scales is not None:
        return None
    std = math.sqrt(kernels.average(base.var))
    if not std > 0.0:
        return None
    coefficients, _ = hermite(fn, kernels.average(base.mean), std)
    return coefficients, std


def _as_told(kernel: Array, state: State) -> Array:
    """Return a covariance with a state, telling pairs of positions apart only where the state does."""
    return kernel if any(map(kernels.positions, state.corr.shape)) else kernels.by_displacement(kernel)


def _places(where: Dims, dims: Dims, count: int) -> Dims:
    """Return for each of ``count`` atoms of a parent the dimension that it is, given for each atom of the child that
    dimension and the parent's atom.
    """
    places: list[int | None] = [None] * count
    for i, j in zip(where, dims, strict=True):
        if j is not None:
            places[j] = i
    return tuple(places)


def scaled_by(factor: float) -> Operate:
    """Return the link operator of a multiplication by a number."""
    return lambda kernel, _where: kernel * factor
