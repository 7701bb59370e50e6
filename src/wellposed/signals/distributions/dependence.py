"""Covariances between states of one pass."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from wellposed.signals.distributions.state import Dims, Operate, State
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
