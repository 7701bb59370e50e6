"""Sums, differences, products and quotients of two tensors, backwards."""

from __future__ import annotations

from typing import Any

import torch

from wellposed.graphs import Ref
from wellposed.signals.algebra.gradient_terms import (
    IDENTITY,
    Adjoint,
    Sent,
    Term,
    reduced,
    settled,
    source_of,
    times,
)
from wellposed.signals.algebra.operands import operand
from wellposed.signals.context.arguments import known_state
from wellposed.signals.context.call import Unknown
from wellposed.signals.distributions.functions import Pointwise
from wellposed.signals.distributions.state import State
from wellposed.signals.distributions.views import expand, pooled
from wellposed.signals.registry import adjoint_of_one, overloads


def _send(call: Adjoint, term: Term, position: int) -> list[tuple[int, Term]]:
    """Return what an operand receives of a term with the result's shape; nothing where it is a number."""
    value = call.value_of(position)
    if value is None:
        return []
    return [(value, reduced(call, term, call.graph.values[value].shape))]


@adjoint_of_one(overloads("add.Tensor", "add_.Tensor", "add.Scalar", "add_.Scalar", "add.out"), source="signals: 9")
def add(call: Adjoint, term: Term, x: Any, y: Any, *, alpha: float = 1, out: Any = None) -> Sent | None:
    """x + alpha y."""
    return _send(call, term, 0) + _send(call, term.scaled(float(alpha)), 1)


@adjoint_of_one(overloads("sub.Tensor", "sub_.Tensor", "sub.Scalar", "sub_.Scalar"), source="signals: 9")
def subtract(call: Adjoint, term: Term, x: Any, y: Any, *, alpha: float = 1) -> Sent | None:
    """x - alpha y."""
    return add(call, term, x, y, alpha=-float(alpha))


@adjoint_of_one(overloads("rsub.Scalar", "rsub.Tensor"), source="signals: 9")
def reverse_subtract(call: Adjoint, term: Term, x: Any, y: Any, alpha: float = 1) -> Sent | None:
    """y - alpha x."""
    return _send(call, term.scaled(-float(alpha)), 0) + _send(call, term, 1)


@adjoint_of_one(overloads("lerp.Scalar", "lerp_.Scalar"), source="signals: 9")
def lerp(call: Adjoint, term: Term, x: Any, y: Any, weight: float) -> Sent | None:
    """x + weight (y - x)."""
    return _send(call, term.scaled(1 - weight), 0) + _send(call, term.scaled(weight), 1)


def _factor(call: Adjoint, term: Term, other: Any, fn: Pointwise | None = None) -> Term:
    """Return the term times another operand, or times a function of it."""
    value = operand(call, other)
    if isinstance(value, float):
        return term.scaled(value if fn is None else float(fn(torch.full((1,), value).double().numpy())[0]))
    shape = term.core.shape
    value = pooled(value)
    base, own = source_of(value)
    whole = own if fn is None else own.then(fn)
    if value.shape != shape:
        base = expand(base, shape)
    return times(call, term, base, whole)


@adjoint_of_one(overloads("mul.Tensor", "mul_.Tensor", "mul.Scalar", "mul_.Scalar"), source="signals: 9")
def mul(call: Adjoint, term: Term, x: Any, y: Any) -> Sent | None:
    """x y: each operand receives the gradient times the other."""
    sent: list[tuple[int, Term]] = []
    if call.value_of(0) is not None:
        sent += _send(call, _factor(call, term, y), 0)
    if call.value_of(1) is not None:
        sent += _send(call, _factor(call, term, x), 1)
    return sent


_INVERSE = Pointwise(("inverse",), lambda t: 1.0 / t)
_INVERSE_SQUARE = Pointwise(("inverse square",), lambda t: -1.0 / (t * t))


@adjoint_of_one(overloads("div.Tensor", "div_.Tensor", "div.Scalar", "div_.Scalar", "div.out"), source="signals: 9")
def div(call: Adjoint, term: Term, x: Any, y: Any, *, out: Any = None) -> Sent | None:
    """x / y, by a number, or by a tensor that stays away from 0."""
    below = operand(call, y)
    if isinstance(below, State) and not below.is_constant:
        if float((below.var / below.mean**2).max(initial=0.0) if below.mean.all() else 1.0) > 0.25:
            return None
    sent = _send(call, _factor(call, term, y, _INVERSE), 0)
    if call.value_of(1) is not None:
        sent += _send(call, _factor(call, _factor(call, term, y, _INVERSE_SQUARE), x), 1)
    return sent


@adjoint_of_one(overloads("addcmul.default"), source="signals: 9")
def addcmul(call: Adjoint, term: Term, x: Any, a: Any, b: Any, *, value: float = 1) -> Sent | None:
    """x + value a b."""
    part = term.scaled(float(value))
    return _send(call, term, 0) + _send(call, _factor(call, part, b), 1) + _send(call, _factor(call, part, a), 2)


_COMPLEMENT = Pointwise(("complement",), lambda t: 1.0 - t)


def _kept(call: Adjoint, term: Term, condition: Any, *, where: bool) -> Term | None:
    """Return the term where a condition holds, or where it does not; None for a condition that is not followed."""
    if isinstance(condition, torch.Tensor):
        taken = known_state((condition if where else ~condition).to(torch.float64), call.root())
        return times(call, Term(settled(call, term)), expand(taken, term.core.shape), IDENTITY)
    if isinstance(condition, Unknown) and condition.state is not None:
        return _factor(call, term, condition.state, IDENTITY if where else _COMPLEMENT)
    return None


@adjoint_of_one(overloads("where.self", "where.ScalarOther", "where.ScalarSelf"), source="signals: 9")
def where(call: Adjoint, term: Term, condition: Any, x: Any, y: Any) -> Sent | None:
    """Each operand receives the gradient where it was selected."""
    sent: list[tuple[int, Term]] = []
    for position in (1, 2):
        if isinstance(call.node.args[position], Ref):
            part = _kept(call, term, condition, where=position == 1)
            if part is None:
                return None
            sent += _send(call, part, position)
    return sent


@adjoint_of_one(overloads("masked_fill.Scalar", "masked_fill_.Scalar", "masked_fill.Tensor"), source="signals: 9")
def masked_fill(call: Adjoint, term: Term, x: Any, mask: Any, value: Any) -> Sent | None:
    """Nothing flows back to what a mask has replaced."""
    part = _kept(call, term, mask, where=False)
    return None if part is None else _send(call, part, 0)
