"""Means and sums over axes, backwards: every element receives the same share."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from wellposed.signals.algebra.gradient_terms import Adjoint, Sent, Term, broadcast, scaled_state, settled
from wellposed.signals.algebra.linear_maps import mapped
from wellposed.signals.algebra.reduction import axes_of
from wellposed.signals.distributions.state import State
from wellposed.signals.integration.kernels import Array
from wellposed.signals.registry import adjoint_of_one, overloads
from wellposed.signals.rules.reduction import statistics
from wellposed.signals.rules.shape.backward import source


def _spread(call: Adjoint, term: Term, x: State, dim: Any, scale: float) -> Sent:
    state = scaled_state(settled(call, term), scale)
    return [(source(call), Term(broadcast(state, x.shape, axes_of(x, dim))))]


@adjoint_of_one(overloads("mean.dim", "mean.default"), source="definition")
def mean(
    call: Adjoint, term: Term, x: State, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Sent | None:
    """Mean over axes."""
    count = math.prod(x.shape[a] for a in axes_of(x, dim))
    return _spread(call, term, x, dim, 1.0 / count)


@adjoint_of_one(overloads("sum.dim_IntList", "sum.default"), source="definition")
def summed(
    call: Adjoint, term: Term, x: State, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Sent | None:
    """Sum over axes."""
    return None if not isinstance(x, State) else _spread(call, term, x, dim, 1.0)


@adjoint_of_one(overloads("tril.default", "triu.default"), source="definition")
def triangle(call: Adjoint, term: Term, x: State, diagonal: int = 0) -> Sent | None:
    """A product with a constant."""
    return [(source(call), Term(statistics.triangle(call, settled(call, term), diagonal)))]


def _along(call: Adjoint, term: Term, dim: int, weights: Array) -> Sent | None:
    """Return the gradient with respect to the input of a linear map along one axis; ``weights`` is (output, input)."""
    if min(weights.shape) < 2 or max(weights.shape) > statistics.LONGEST_MAP:
        return None
    state = settled(call, term)
    return [(source(call), Term(mapped(state, dim % len(state.axes), weights.T)))]


@adjoint_of_one(overloads("cumsum.default", "cumsum_.default"), source="definition")
def cumsum(call: Adjoint, term: Term, x: State, dim: int, *, dtype: Any = None) -> Sent | None:
    """Sums over all later positions."""
    if not x.shape:
        return [(source(call), term)]
    return _along(call, term, dim, np.tril(np.ones((x.shape[dim],) * 2)))


@adjoint_of_one(overloads("diff.default"), source="definition")
def diff(
    call: Adjoint, term: Term, x: State, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None
) -> Sent | None:
    """Differences of neighbours, the other way round."""
    if n != 1 or prepend is not None or append is not None:
        return None
    return _along(call, term, dim, np.diff(np.eye(x.shape[dim]), axis=0))
