"""Sums, differences, products and quotients of two tensors."""

from __future__ import annotations

import math
from typing import Any

import torch

from wellposed.operators.spectral import imaginary_operand
from wellposed.signals.algebra.affine import linear, reciprocal_of, scaled
from wellposed.signals.algebra.complex_numbers import of_parts
from wellposed.signals.algebra.elementwise_products import divide, multiply
from wellposed.signals.algebra.masked_scores import shut_out
from wellposed.signals.algebra.mixtures import chosen, extreme, function_within, mixture, zero_where_shut_out
from wellposed.signals.algebra.operands import broadcast, filled, fused, operand
from wellposed.signals.algebra.pointwise import apply_pointwise, scalar_pointwise
from wellposed.signals.algebra.positive import kept_positive
from wellposed.signals.algebra.sums import combine
from wellposed.signals.context.arguments import MASKED
from wellposed.signals.context.call import Call, Unknown
from wellposed.signals.distributions.functions import Pointwise
from wellposed.signals.distributions.state import State
from wellposed.signals.registry import overloads, rule

aten: torch._ops._OpNamespace = torch.ops.aten


@rule(
    overloads("add.Tensor", "add_.Tensor", "add.Scalar", "add_.Scalar", "add.out"),
    source="signals: sums, 5.4",
    tensors=True,
    pairs=True,
)
def add(call: Call, x: Any, y: Any, *, alpha: float = 1, out: Any = None) -> State:
    """x + alpha y."""
    a, b = operand(call, x), operand(call, y)
    if isinstance(b, float):
        return linear(call, filled(call, a), 1.0, float(alpha) * b)
    if isinstance(a, float):
        return linear(call, b, float(alpha), a)
    at = imaginary_operand(call.graph, call.node) if abs(alpha) == 1 else None
    made = None if at is None else of_parts(call, *((a, b) if at else (b, a)))
    return made or combine(call, a, b, 1.0, float(alpha))


@rule(
    overloads("sub.Tensor", "sub_.Tensor", "sub.Scalar", "sub_.Scalar"),
    source="signals: sums, 5.4",
    tensors=True,
    pairs=True,
)
def subtract(call: Call, x: Any, y: Any, *, alpha: float = 1) -> State:
    """x - alpha y."""
    return add(call, x, y, alpha=-float(alpha))


@rule(overloads("rsub.Scalar", "rsub.Tensor"), source="signals: sums, 5.4", tensors=True, pairs=True)
def reverse_subtract(call: Call, x: Any, y: Any, alpha: float = 1) -> State:
    """y - alpha x."""
    return add(call, y, x, alpha=-float(alpha))


@rule(
    overloads("mul.Tensor", "mul_.Tensor", "mul.Scalar", "mul_.Scalar"),
    source="signals: products, 5.4",
    tensors=True,
    pairs=True,
)
def mul(call: Call, x: Any, y: Any) -> State:
    """x y."""
    a, b = operand(call, x), operand(call, y)
    if isinstance(a, float):
        a, b = b, a
    if isinstance(b, float):
        return scaled(call, filled(call, a), b)
    return multiply(call, filled(call, a), b)


@rule(
    overloads("div.Tensor", "div_.Tensor", "div.Scalar", "div_.Scalar", "div.out"),
    tag="approximate",
    source="signals: products, 5.4",
    tensors=True,
    pairs=True,
)
def div(call: Call, x: Any, y: Any, *, out: Any = None) -> State | None:
    """x / y: of two functions of one tensor as one function; else by a tensor through the moments of its reciprocal."""
    a, b = operand(call, x), operand(call, y)
    if isinstance(b, float):
        return scaled(call, filled(call, a), 1.0 / b) if b else None
    if b.is_constant:
        number = b.pooled_mean
        if isinstance(a, State) and a.shape == call.shape() and number != 0.0:
            return scaled(call, a, 1.0 / number)
    b = kept_positive(call, b, 1)
    if isinstance(a, State):
        return divide(call, a, b)
    reciprocal = reciprocal_of(call, b)
    return None if reciprocal is None else linear(call, reciprocal, a)


@rule(overloads("addcmul.default"), source="signals: products, 5.4", tensors=True, pairs=True)
def addcmul(call: Call, x: Any, a: Any, b: Any, *, value: float = 1) -> State:
    """x + value a b."""
    return add(call, x, mul(call, a, b), alpha=value)


@rule(overloads("lerp.Scalar", "lerp_.Scalar"), source="signals: sums, 5.4", tensors=True, pairs=True)
def lerp(call: Call, x: State, y: State, weight: float) -> State:
    """x + weight (y - x)."""
    return combine(call, x, y, 1.0 - float(weight), float(weight))


@rule(
    overloads("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar"),
    tag="approximate",
    source="mixture of two signals",
    tensors=True,
    pairs=True,
)
def where(call: Call, condition: Any, x: Any, y: Any) -> State | None:
    """Take x where the condition holds and y elsewhere: a mixture with the condition's share, or masked scores."""
    shape = call.shape()
    operands = [operand(call, value) for value in (x, y)]
    a, b = (broadcast(call, value, shape) for value in operands)
    if isinstance(condition, torch.Tensor):
        for (other, value), kept in zip(
            ((a, operands[1]), (b, operands[0])), (condition.bool(), ~condition.bool()), strict=True
        ):
            number = _shutting(value)
            if _is_zero(value) and (again := zero_where_shut_out(call, other, kept)) is not None:
                return again
            if number is not None:
                return shut_out(other, kept, number)
    if isinstance(condition, Unknown) and condition.state is not None:
        return chosen(call, condition.state, a, b)
    share = 0.5
    if isinstance(condition, torch.Tensor):
        share = float(condition.double().mean()) if condition.numel() else 1.0
    return mixture(call, a, b, share)


def _is_zero(value: State | float) -> bool:
    return value == 0.0 if isinstance(value, float) else value.is_constant and value.pooled_mean == 0.0


def _shutting(value: State | float) -> float | None:
    """Return the number with which an operand shuts scores out wherever it is taken; None of one that does not."""
    if not isinstance(value, State):
        return float(value) if value <= MASKED else None
    masked = value.masked
    if masked is None or masked.scores is not None or bool(masked.mask.any()):
        return None
    return value.pooled_mean if value.pooled_mean < 0.0 else -math.inf


@rule(
    overloads(
        "maximum.default", "minimum.default", "fmod.Scalar", "remainder.Scalar", "atan2.default", "pow.Tensor_Tensor"
    ),
    tag="approximate",
    source="definition",
    tensors=True,
    pairs=True,
)
def two_operands(call: Call, x: Any, y: Any) -> State | None:
    """Other functions of two operands: exact for a constant second operand or one common ancestor.

    Of two other signals the larger is one of them plus what the other has beyond it (Clark 1961); the rest is sampled.
    """
    a, b = operand(call, x), operand(call, y)
    op = call.node.op
    either = op in (aten.maximum.default, aten.minimum.default)
    if either and isinstance(a, State) and a.is_constant:
        a, b = b, a
    if isinstance(a, State) and (isinstance(b, float) or b.is_constant):
        return _with_number(call, a, b if isinstance(b, float) else b.pooled_mean)
    if isinstance(a, State) and isinstance(b, State):
        one = fused(call, a, b, (str(op),), lambda p, q: op(p, q))
        if one is not None or not either or call.independent:
            return one
        return extreme(call, a, b, 1.0 if op is aten.maximum.default else -1.0)
    return None


def _with_number(call: Call, x: State, number: float) -> State | None:
    """Return an operator's result with a number as its second operand."""
    op = call.node.op
    if x.shape != call.shape():
        return None
    if op._overloadname == "Scalar":
        return scalar_pointwise(call, x, op, number)
    function = Pointwise((str(op), number), lambda t: op(t, torch.full_like(t, number)))
    return function_within(call, x, function) or apply_pointwise(call, x, function)
