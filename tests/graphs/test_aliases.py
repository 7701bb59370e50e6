"""Operators that arrive under a second name are recorded under the first."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import wellposed as wp
from wellposed.errors import OptionError
from wellposed.graphs import run
from wellposed.graphs.operators import ALIASES

aten = torch.ops.aten


GRID = torch.linspace(0.1, 0.9, 9, dtype=torch.float64).reshape(3, 3)
VALUES = {
    "number": 0.5,
    "Optional[number]": 0.5,
    "Optional[float]": 0.5,
    "List[int]": [0],
    "bool": False,
    "Optional[int]": None,
    "Optional[str]": "floor",
}
"""Arguments by the type that schemas give them."""


def arguments(alias, tensor):
    """Arguments for an operator: by position, and by keyword."""
    axes = iter((0, 1))
    given = []
    for argument in alias._schema.arguments:
        kind = str(argument.type)
        if kind in ("Tensor", "Optional[Tensor]"):
            value = tensor.clone()
        elif kind == "List[Tensor]":
            value = [tensor.clone(), tensor.clone()]
        else:
            value = next(axes) if kind == "int" else VALUES[kind]
        given.append((argument, value))
    return [v for a, v in given if not a.kwarg_only], {a.name: v for a, v in given if a.kwarg_only}


@pytest.mark.parametrize("alias", ALIASES, ids=str)
def test_an_alias_is_the_operator_that_it_is_recorded_as(alias):
    """Both take the same arguments by position and give the same result: PyTorch itself is the reference."""
    first = ALIASES[alias]
    assert [str(a.type) for a in alias._schema.arguments] == [str(a.type) for a in first._schema.arguments]
    tensor = GRID
    if "bitwise" in str(first):
        tensor = (10 * GRID).int()
    elif "outer" in str(first):
        tensor = GRID[0]
    positional, named = arguments(alias, tensor)
    if tensor.dtype == torch.int32:
        positional = [3 if isinstance(v, float) else v for v in positional]
    again = [v.clone() if isinstance(v, torch.Tensor) else v for v in positional]
    got, expected = alias(*positional, **named), first(*again, **named)
    assert torch.equal(torch.nan_to_num(got), torch.nan_to_num(expected))


class Aliased(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.multiply(torch.subtract(x, 1.0), 2.0)
        y = torch.true_divide(torch.concat([y, y]), 3.0).swapaxes(0, 1).arctan()
        return torch.where(torch.greater_equal(y, 0.0), y.negative(), y.absolute_())


def test_graphs_know_one_name_only():
    graph = wp.trace(Aliased(), torch.zeros(4, 3))
    assert [node.op_name for node in graph.nodes] == [
        "sub.Tensor", "mul.Tensor", "cat.default", "div.Tensor", "transpose.int", "atan.default", "ge.Scalar",
        "neg.default", "abs_.default", "where.self",
    ]  # fmt: skip
    x = torch.randn(4, 3)
    parameters: dict[str, torch.Tensor] = {}
    (out,) = run(graph, parameters=parameters, inputs={graph.inputs[0]: x})
    assert torch.equal(out, Aliased()(x))


def test_a_rule_for_an_alias_would_never_be_asked():
    with pytest.raises(OptionError, match=r"aten\.arctan\.default is recorded as aten\.atan\.default: register"):
        wp.rule(aten.arctan.default, source="definition")(lambda call, x: x)
