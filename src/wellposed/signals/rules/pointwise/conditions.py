"""Comparisons of signals: 0 or 1, integrated like any function, for `where` and for masks made by the model itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from wellposed.arrays import distinct
from wellposed.signals.algebra.affine import linear
from wellposed.signals.algebra.elementwise_products import multiply
from wellposed.signals.algebra.operands import operand
from wellposed.signals.algebra.pointwise import apply_pointwise
from wellposed.signals.algebra.sums import combine
from wellposed.signals.context.call import Call, Unknown
from wellposed.signals.distributions.functions import Pointwise
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.state import State
from wellposed.signals.registry import overloads, rule

_SCALAR: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "gt": lambda t, c: t > c,
    "ge": lambda t, c: t >= c,
    "lt": lambda t, c: t < c,
    "le": lambda t, c: t <= c,
    "eq": lambda t, c: t == c,
    "ne": lambda t, c: t != c,
}


@rule(
    overloads(*(f"{name}.{kind}" for name in _SCALAR for kind in ("Scalar", "Tensor"))),
    source="signals: 5.3 (quadrature)",
    tensors=True,
    conditions=True,
)
def compare(call: Call, x: Any, y: Any) -> State | None:
    """1 where the comparison holds, 0 elsewhere; of two signals through their difference, where that is Gaussian."""
    if isinstance(x, Unknown) or isinstance(y, Unknown):
        return None
    a, b = operand(call, x), operand(call, y)
    name = call.node.op._schema.name.removeprefix("aten::")
    test, level = _SCALAR[name], 0.0
    if isinstance(a, State) and isinstance(b, float):
        difference, level = a, b
    elif isinstance(a, State) and isinstance(b, State):
        difference = combine(call, a, b, 1.0, -1.0)
        if not difference.gauss and difference.function is None and difference.var.any():
            return None
    else:
        return None
    if difference.shape != call.shape():
        return None
    return apply_pointwise(call, difference, Pointwise((name, level), lambda t: test(t, level).to(t.dtype)))


@rule(overloads("one_hot.default"), tag="approximate", source="definition", tensors=True, conditions=True)
def one_hot(call: Call, index: Any, classes: int = -1) -> State:
    """An index that is not known, written as a 1 among zeros: each place is as likely."""
    share = 1.0 / call.shape()[-1]
    return make_state(call.shape(), share, share - share**2, roots=call.root())


def _condition(value: Any) -> State | None:
    return value.state if isinstance(value, Unknown) else None


@rule(overloads("logical_not.default", "bitwise_not.default"), source="definition", tensors=True, conditions=True)
def negation(call: Call, x: Any) -> State | None:
    """1 - c."""
    c = _condition(x)
    return None if c is None else linear(call, c, -1.0, 1.0)


@rule(overloads("logical_and.default", "bitwise_and.Tensor"), source="definition", tensors=True, conditions=True)
def conjunction(call: Call, x: Any, y: Any) -> State | None:
    """Product of two conditions."""
    a, b = _condition(x), _condition(y)
    return None if a is None or b is None else multiply(call, a, b)


@rule(overloads("logical_or.default", "bitwise_or.Tensor"), source="definition", tensors=True, conditions=True)
def disjunction(call: Call, x: Any, y: Any) -> State | None:
    """1 - (1 - a) (1 - b)."""
    a, b = _condition(x), _condition(y)
    if a is None or b is None:
        return None
    return linear(call, multiply(call, linear(call, a, -1.0, 1.0), linear(call, b, -1.0, 1.0)), -1.0, 1.0)


@rule(
    overloads(*(f"{name}.{kind}" for name in ("any", "all") for kind in ("default", "dim", "dims"))),
    source="definition",
    tensors=True,
    conditions=True,
)
def of_several(call: Call, x: Any, *_: Any, **_options: Any) -> State | None:
    """Any or all of conditions that hold for certain, or for certain do not: steps that are padded by one number."""
    c = _condition(x)
    if c is None or c.var.any() or len(distinct(c.mean)) != 1:
        return None
    return make_state(call.shape(), c.pooled_mean, 0.0)
