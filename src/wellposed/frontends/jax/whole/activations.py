"""Functions of one number that JAX writes out, found by their values and put in as the one operator of torch.

A function of one value, whatever operators write it, is run on a grid and compared with the activations that torch has:
which of them it is follows from its numbers, not from its name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from wellposed.frontends.jax.primitives import NUMBERS, RULES, rule
from wellposed.frontends.jax.program import Number, Program, Step, Value

_FOLLOWED = 14
"""Operators in a row that are followed: those of the longest activation, with some to spare."""

_GRID = torch.cat([torch.linspace(-9.0, 9.0, 181, dtype=torch.float64), torch.tensor([-0.013, 0.017, 1.234, -2.345])])

_ELEMENTWISE = {
    "abs", "add", "and", "clamp", "copy", "div", "eq", "erf", "erfc", "exp", "expm1", "ge", "gt", "integer_pow", "le",
    "log", "log1p", "logaddexp", "logistic", "lt", "max", "min", "mul", "ne", "neg", "not", "or", "pow", "select_n",
    "sign", "sqrt", "square", "stop_gradient", "sub", "tanh",
}  # fmt: skip

Curve = tuple[Tensor, int]
"""Values on the grid, and the number of operators that made them."""


def with_activations(program: Program) -> None:
    """Replace the steps that write out an activation by torch's operator for it."""
    curves: dict[int, dict[int, tuple[Value, Curve]]] = {}
    made: dict[int, Step] = {}
    for place, step in enumerate(program.steps):
        if step.name not in _ELEMENTWISE or len(step.outputs) != 1:
            continue
        found = _curves(step, curves)
        if not found:
            continue
        curves[id(step.outputs[0])] = found
        for source, (values, count) in sorted(found.values(), key=_count):
            function = _activation(values) if count > 1 else None
            if function is not None and source.shape == step.outputs[0].shape:
                params = {"function": function}
                made[place] = Step("activation", params, [source], [], step.scopes, step.source)
    for place, activation in made.items():
        activation.outputs = program.steps[place].outputs
        activation.outputs[0].step = activation
        program.steps[place] = activation
    program.prune()


def _count(found: tuple[Value, Curve]) -> int:
    return found[1][1]


def _curves(step: Step, known: dict[int, dict[int, tuple[Value, Curve]]]) -> dict[int, tuple[Value, Curve]]:
    """Return a step's result as a function of each single value that determines it."""
    given = [value for value in step.inputs if value.number is None]
    if not given:
        return {}
    choices = [{**known.get(id(value), {}), id(value): (value, (_GRID, 0))} for value in given]
    common = set.intersection(*(set(choice) for choice in choices))
    found = {}
    for key in common:
        curves = iter([choice[key][1] for choice in choices])
        count = 1 + max(choice[key][1][1] for choice in choices)
        if count <= _FOLLOWED:
            operands = [next(curves)[0] if value.number is None else value.number for value in step.inputs]
            values = _run(step, operands)
            if values is not None:
                found[key] = choices[0][key][0], (values, count)
    return found


def _run(step: Step, operands: list[Tensor | Number]) -> Tensor | None:
    """Return a step's result on the grid; None where it is no function of one number."""
    if step.name not in NUMBERS:
        operands = [one if isinstance(one, Tensor) else torch.tensor(one) for one in operands]
    try:
        values = RULES[step.name](*operands, **step.params)
    except (RuntimeError, TypeError, ValueError):
        return None
    return values if isinstance(values, Tensor) and values.shape == _GRID.shape else None


# ---- what torch has -------------------------------------------------------------------------------------------------

Function = Callable[[Tensor], Tensor]

_KNOWN: tuple[Function, ...] = (
    functional.relu,
    functional.silu,
    partial(functional.gelu, approximate="tanh"),
    functional.gelu,
    functional.softplus,
    torch.sigmoid,
    functional.logsigmoid,
    functional.mish,
    functional.selu,
    functional.relu6,
    functional.hardtanh,
    functional.hardswish,
    functional.hardsigmoid,
    functional.softsign,
    torch.tanh,
)


def _leaky(values: Tensor) -> Function:
    return partial(functional.leaky_relu, negative_slope=round(_at(values, -9.0) / -9.0, 6))


def _elu(values: Tensor) -> Function:
    return partial(functional.elu, alpha=round(_at(values, -9.0) / math.expm1(-9.0), 6))


def _at(values: Tensor, place: float) -> float:
    return float(values[int((_GRID - place).abs().argmin())])


_OF_A_SLOPE: tuple[Callable[[Tensor], Function], ...] = (_leaky, _elu)


def _activation(values: Tensor) -> Function | None:
    """Return the activation of torch that has these values on the grid, to the rounding of float32."""
    if not (values.is_floating_point() and bool(values.isfinite().all())):
        return None
    for function, theirs in zip(_KNOWN, _THEIRS, strict=True):
        if _agree(values, theirs):
            return function
    if _agree(values[_GRID >= 0], _GRID[_GRID >= 0]) and not _agree(values, _GRID):
        for make in _OF_A_SLOPE:
            function = make(values)
            if _agree(values, function(_GRID)):
                return function
    return None


def _agree(one: Tensor, other: Tensor) -> bool:
    return bool(torch.allclose(one, other, rtol=1e-5, atol=1e-6))  # constants are written in float32


_THEIRS = [function(_GRID) for function in _KNOWN]


@rule("activation")
def _run_activation(x: Tensor, *, function: Function) -> Tensor:
    return function(x)
