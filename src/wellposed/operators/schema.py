"""What schemas say of operators: their plain names, and the arguments of a node by name."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from wellposed.graphs import Graph, Node, Ref


@cache
def plain_name(op: torch._ops.OpOverload) -> str:
    """Return the name of an operator without namespace, overload and the mark of in-place forms: ``"add"``."""
    name = op._schema.name.rpartition("::")[2]
    return name if name.endswith("__") else name.rstrip("_")


@cache
def position_of(op: torch._ops.OpOverload, name: str) -> int | None:
    """Return the position of the argument of that name, None where the operator has none."""
    names = [argument.name for argument in op._schema.arguments]
    return names.index(name) if name in names else None


def named_arguments(node: Node) -> dict[str, Any]:
    """Return all arguments of a node by the names of the schema, defaults included."""
    given: dict[str, Any] = {}
    args, kwargs = node.args, node.kwargs
    for position, (name, by_name, default) in enumerate(_arguments(node.op)):
        if position < len(args) and not by_name:
            given[name] = args[position]
        else:
            given[name] = kwargs.get(name, default)
    return given


@cache
def _arguments(op: torch._ops.OpOverload) -> tuple[tuple[str, bool, Any], ...]:
    """Return the name of each argument of an operator, whether it is given by name alone, and its default."""
    return tuple([(one.name, one.kwarg_only, one.default_value) for one in op._schema.arguments])


def argument_of(node: Node, position: int, name: str, default: Any = None) -> Any:
    """Return an operator's argument by position or by name."""
    if len(node.args) > position:
        return node.args[position]
    return node.kwargs.get(name, default)


def ref_of(value: Any) -> int | None:
    """Return the id of the value that an argument refers to, or None."""
    return value.value if isinstance(value, Ref) else None


def number_of(graph: Graph, argument: Any) -> float | None:
    """Return the number that an argument is, or that all elements of a known tensor or of a buffer are."""
    if isinstance(argument, (int, float)):
        return float(argument)
    value = ref_of(argument)
    if value is None:
        return None
    known = graph.known.get(value)
    if known is None and graph.values[value].kind == "buffer":
        known = graph.buffer_tensors[graph.values[value].name]
    if known is None or known.is_meta or not known.numel() or known.is_complex():
        return None
    first = known.flatten()[0]
    return None if bool((known != first).any()) else float(first)
