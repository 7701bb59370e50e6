"""Means and sums over axes, backwards: every element gets the same share."""

from __future__ import annotations

import math
from typing import Any

from wellposed.signals.algebra.reduction import axes_of
from wellposed.signals.algebra.terms import Adjoint, Gradients, Sent, Term, broadcast, scaled_state, settled
from wellposed.signals.distributions.state import State
from wellposed.signals.registry import adjoint, overloads
from wellposed.signals.rules.shape.backward import source


def _spread(call: Adjoint, term: Term, x: State, dim: Any, scale: float) -> Sent:
    state = scaled_state(settled(call, term), scale)
    return [(source(call), Term(broadcast(state, x.shape, axes_of(x, dim))))]


@adjoint(overloads("mean.dim", "mean.default"), source="definition")
def mean(
    call: Adjoint, gradients: Gradients, x: State, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Sent | None:
    """Mean over axes."""
    term = gradients[0]
    count = math.prod(x.shape[a] for a in axes_of(x, dim))
    return None if term is None else _spread(call, term, x, dim, 1.0 / count)


@adjoint(overloads("sum.dim_IntList", "sum.default"), source="definition")
def summed(
    call: Adjoint, gradients: Gradients, x: State, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Sent | None:
    """Sum over axes."""
    term = gradients[0]
    return None if term is None or not isinstance(x, State) else _spread(call, term, x, dim, 1.0)
