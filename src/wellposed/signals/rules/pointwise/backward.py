"""Functions of one number, backwards: the gradient times the derivative, a function of the same Gaussian tensor."""

from __future__ import annotations

from typing import Any

import torch

from wellposed.signals.algebra.terms import Adjoint, Gradients, Sent, Term, derivative, source_of, times
from wellposed.signals.distributions.state import Pointwise, State
from wellposed.signals.registry import RULES, adjoint, overloads
from wellposed.signals.rules.shape.backward import source

_OTHERS = overloads("pow.Scalar", "prelu.default", "rrelu.default", "rrelu_.default")
"""Functions of one number whose arguments are others than the tensor first and then numbers."""
_UNDIFFERENTIATED = overloads("acosh_.default", "asinh_.default", "atanh_.default", "floor_divide.Scalar")
"""Functions that PyTorch does not differentiate."""


@adjoint(
    [op for op, rule in RULES.items() if rule.elementwise and op not in (*_OTHERS, *_UNDIFFERENTIATED)],
    source="chain rule; signals: 9",
)
def elementwise(call: Adjoint, gradients: Gradients, x: Any, *rest: Any, **kwargs: Any) -> Sent | None:
    """f(x): the gradient times f'(x)."""
    term, op = gradients[0], call.node.op
    if term is None or not isinstance(x, State) or any(isinstance(r, (State, torch.Tensor)) for r in rest):
        return None
    kwargs.pop("out", None)

    def run(t: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = op(t.clone(), *rest, **kwargs)
        return result

    function = Pointwise((str(op), rest, tuple(sorted(kwargs.items()))), run)
    return [(source(call), through(call, term, x, function))]


@adjoint(overloads("rrelu.default", "rrelu_.default"), source="chain rule; signals: 9")
def mean_slope(
    call: Adjoint, gradients: Gradients, x: State, lower: float = 0.125, upper: float = 1 / 3, *rest: Any
) -> Sent | None:
    """Leaky ReLU with a random slope, at its mean."""
    term, slope = gradients[0], 0.5 * (lower + upper)
    if term is None:
        return None
    function = Pointwise(("rrelu", slope), lambda t: torch.where(t > 0, t, slope * t))
    return [(source(call), through(call, term, x, function))]


def through(call: Adjoint, term: Term, x: State, function: Pointwise) -> Term:
    """Return the term times the derivative of a function of ``x``."""
    base, fn = source_of(x)
    return times(call, term, base, fn.then(derivative(function)))
