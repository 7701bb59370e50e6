"""Functions of one number, backwards: the gradient times the derivative, a function of the same Gaussian tensor."""

from __future__ import annotations

from typing import Any

import torch

from wellposed.signals.algebra.gradient_terms import (
    Adjoint,
    Sent,
    Term,
    derivative,
    reduced,
    settled,
    source_of,
    times,
)
from wellposed.signals.distributions.functions import Pointwise
from wellposed.signals.distributions.parts import select
from wellposed.signals.distributions.state import State
from wellposed.signals.distributions.views import pooled
from wellposed.signals.registry import RULES, adjoint_of_one, overloads
from wellposed.signals.rules.pooling.resize import pad
from wellposed.signals.rules.shape.backward import source

_OTHERS = overloads("pow.Scalar", "prelu.default", "rrelu.default", "rrelu_.default")
"""Functions of one number whose arguments are others than the tensor first and then numbers."""
_UNDIFFERENTIATED = overloads("acosh_.default", "asinh_.default", "atanh_.default", "floor_divide.Scalar")
"""Functions that PyTorch does not differentiate."""


@adjoint_of_one(
    [op for op, rule in RULES.items() if rule.elementwise and op not in (*_OTHERS, *_UNDIFFERENTIATED)],
    source="chain rule; signals: 9",
)
def elementwise(call: Adjoint, term: Term, x: Any, *rest: Any, **kwargs: Any) -> Sent | None:
    """f(x): the gradient times f'(x)."""
    op = call.node.op
    if not isinstance(x, State) or any(isinstance(r, (State, torch.Tensor)) for r in rest):
        return None
    kwargs.pop("out", None)

    def run(t: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = op(t.clone(), *rest, **kwargs)
        return result

    function = Pointwise((str(op), rest, tuple(sorted(kwargs.items()))), run)
    return [(source(call), through(call, term, x, function))]


@adjoint_of_one(overloads("rrelu.default", "rrelu_.default"), source="chain rule; signals: 9")
def mean_slope(
    call: Adjoint, term: Term, x: State, lower: float = 0.125, upper: float = 1 / 3, *rest: Any
) -> Sent | None:
    """Leaky ReLU with a random slope, at its mean."""
    slope = 0.5 * (lower + upper)
    function = Pointwise(("rrelu", slope), lambda t: torch.where(t > 0, t, slope * t))
    return [(source(call), through(call, term, x, function))]


@adjoint_of_one(overloads("pow.Scalar"), source="chain rule; signals: 9")
def power_of(call: Adjoint, term: Term, number: float, x: State) -> Sent | None:
    """number ** x."""
    value, base = call.value_of(1), float(number)
    if value is None:
        return None
    return [(value, through(call, term, x, Pointwise(("power of", base), lambda t: torch.pow(base, t))))]


_NEGATIVE = Pointwise(("negative part",), lambda t: t.clamp(max=0.0))


@adjoint_of_one(overloads("prelu.default"), source="He et al. 2015, eq. 9; signals: 9")
def prelu(call: Adjoint, term: Term, x: State, weight: State) -> Sent | None:
    """max(x, 0) + a min(x, 0), at a's mean; a receives the gradient times min(x, 0), summed over its channel."""
    slope, value = weight.pooled_mean, call.value_of(1)
    function = Pointwise(("prelu", slope), lambda t: torch.where(t > 0, t, slope * t))
    sent = [(source(call), through(call, term, x, function))]
    if value is not None:
        base, fn = source_of(x)
        channel = min(1, len(x.axes) - 1)
        narrow = tuple(weight.shape[0] if i == channel else 1 for i in range(len(x.axes)))
        state = settled(call, reduced(call, times(call, term, base, fn.then(_NEGATIVE)), narrow))
        sent.append((value, Term(state.amended(axes=(state.axes[channel],)))))
    return sent


_SIGMOID = Pointwise(("sigmoid",), torch.sigmoid)


@adjoint_of_one(overloads("glu.default"), source="chain rule, for two independent halves; signals: 9")
def glu(call: Adjoint, term: Term, x: State, dim: int = -1) -> Sent | None:
    """a sigmoid(b): a receives the gradient times sigmoid(b), b the gradient times a sigmoid'(b)."""
    axis = dim % len(x.axes)
    half, later = x.shape[axis] // 2, 2 * (len(x.axes) - 1 - axis)
    (a, first), (b, second) = (
        source_of(pooled(select(x, axis, at, at + half, 1, drop=False)).changed(roots=call.root())) for at in (0, half)
    )
    parts = (
        times(call, term, b, second.then(_SIGMOID)),
        times(call, times(call, term, a, first), b, second.then(derivative(_SIGMOID))),
    )
    widths = ([0, half], [half, 0])
    return [
        (source(call), Term(pad(call.into(x.shape), settled(call, part), [*[0] * later, *width])))
        for part, width in zip(parts, widths, strict=True)
    ]


def through(call: Adjoint, term: Term, x: State, function: Pointwise) -> Term:
    """Return the term times the derivative of a function of ``x``."""
    base, fn = source_of(x)
    return times(call, term, base, fn.then(derivative(function)))
