"""Functions of one number, applied to every element: integrated against the Gaussian that they come from."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from wellposed.operators.facts import FACTS, facts_of
from wellposed.operators.spectral import turns
from wellposed.signals.algebra.complex_numbers import modulus, turned
from wellposed.signals.algebra.elementwise_products import multiply
from wellposed.signals.algebra.mixtures import function_within
from wellposed.signals.algebra.pointwise import apply_pointwise, elementary
from wellposed.signals.algebra.positive import kept_positive
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.functions import Pointwise
from wellposed.signals.distributions.state import State
from wellposed.signals.distributions.views import pooled
from wellposed.signals.integration import kernels
from wellposed.signals.registry import overloads, rule
from wellposed.signals.sampling.joint_sources import can_run

OTHERS = ("pow.Tensor_Scalar", "pow_.Scalar", "floor_divide.Scalar")
"""Overloads for numbers of operators that have others for tensors."""


def _elementwise(call: Call, x: State, *rest: Any, **kwargs: Any) -> State | None:
    """An operator of one tensor and numbers."""
    if not isinstance(x, State) or any(not _plain(r) for r in (*rest, *kwargs.values())):
        return None
    if call.graph.values[call.node.inputs[0]].dtype.is_complex:
        return turned(call, x) if turns(call.graph, call.node) else modulus(call, pooled(x))
    kwargs.pop("out", None)
    function = elementary(call.node.op, *rest, **kwargs)
    domain = facts_of(call.node.op).domain
    starts, ends = math.isfinite(domain.low), math.isfinite(domain.high)
    if starts and not ends:  # it matters that what is positive stays so
        x = kept_positive(call, x, 0)
    # between two bounds it rises without end, or steeply, towards these
    if starts and ends and _leaves_bounds(x, function) and can_run(call.run, call.node):
        return None
    return function_within(call, x, function) or apply_pointwise(call, x, function)


def _leaves_bounds(x: State, function: Pointwise) -> bool:
    """Whether ``function`` is undefined three standard deviations from the mean of x, or of the Gaussian that x is a
    function of; False where the transport of that is known.
    """
    base, inner = x.gaussian_source()
    if base.transport is not None or not kernels.nonzero(base.var):
        return False
    ends = base.pooled_mean + np.array([-3.0, 3.0]) * math.sqrt(base.pooled_var)
    return not np.isfinite((function if inner is None else inner.then(function))(ends)).all()


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, (int, float, bool, str))


_FUNCTIONS = [name for name, facts in FACTS.items() if facts.function]
rule(
    overloads(*(f"{name}.default" for name in _FUNCTIONS), *OTHERS),
    overloads(*(f"{name}_.default" for name in _FUNCTIONS), optional=True),  # some have no in-place form
    family="pointwise",
    source="signals: 5.3 (quadrature)",
    blockwise=True,
    elementwise=True,
)(_elementwise)


@rule(overloads("pow.Scalar"), source="signals: 5.3 (quadrature)", blockwise=True, elementwise=True)
def power_of(call: Call, number: float, x: State) -> State:
    """number ** x."""
    return apply_pointwise(call, x, Pointwise(("power of", float(number)), lambda t: torch.pow(float(number), t)))


@rule(overloads("prelu.default"), source="AutoInit, appendix A (PReLU)", elementwise=True)
def prelu(call: Call, x: State, weight: State) -> State:
    """max(x, 0) + a min(x, 0), with the weight's mean as a."""
    slope = weight.pooled_mean
    return apply_pointwise(call, x, Pointwise(("prelu", slope), lambda t: torch.where(t > 0, t, slope * t)))


@rule(
    overloads("rrelu.default", "rrelu_.default"),
    tag="approximate",
    source="definition, at the mean slope",
    elementwise=True,
)
def rrelu(
    call: Call, x: State, lower: float = 0.125, upper: float = 1 / 3, training: bool = False, generator: Any = None
) -> State:
    """Leaky ReLU with a random slope."""
    slope = 0.5 * (lower + upper)
    return apply_pointwise(call, x, Pointwise(("rrelu", slope), lambda t: torch.where(t > 0, t, slope * t)))


_SLOPES = overloads(
    *(
        f"{name}_backward.default"
        for name in ("elu", "gelu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "mish", "sigmoid", "silu",
                     "softplus", "tanh", "threshold")
    ),
    optional=True,
)  # fmt: skip


@rule(
    _SLOPES, tag="approximate", source="the chain rule: a gradient times the derivative, a function of the same signal"
)
def with_slope(call: Call, gradient: Any, *rest: Any) -> State | None:
    """Return a gradient inside a forward pass, times a function's derivative at a signal, or at its value."""
    at = next((i for i, item in enumerate(rest) if isinstance(item, State)), None)
    if at is None or not isinstance(gradient, State):
        return None
    op, before, after = call.node.op, rest[:at], rest[at + 1 :]

    def slope(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = op(torch.ones_like(x), *before, x, *after)
        return found

    return multiply(call, gradient, apply_pointwise(call, rest[at], Pointwise((op, before, after), slope)))
