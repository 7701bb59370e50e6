"""A graph with constant factors in it: what a model would run if values that some nodes read were multiplied first."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import torch

from wellposed.graphs.graph import Graph, Node, Ref, Value

aten: torch._ops._OpNamespace = torch.ops.aten


def with_factors(graph: Graph, factors: Mapping[int, tuple[float, Collection[int]]]) -> Graph:
    """Return a graph in which values are multiplied by a constant before some nodes read them.

    Args:
        graph: from `wellposed.trace`; it is only read.
        factors: by value id, the constant and the indices of the nodes that read the product.

    Returns:
        The graph; ids of the values that were there are the same, and the indices of nodes are not.
    """
    before: dict[int, list[int]] = {}
    read_as: dict[int, dict[int, int]] = {}
    values = list(graph.values)
    for value, (_, readers) in factors.items():
        product = len(values)
        old = graph.values[value]
        values.append(Value(product, f"{old.name}:factor", "intermediate", old.shape, old.dtype, -1))
        before.setdefault(min(readers), []).append(product)
        for reader in readers:
            read_as.setdefault(reader, {})[value] = product
    source = {product: value for value, product in zip(factors, range(len(graph.values), len(values)), strict=True)}
    nodes: list[Node] = []
    moved: dict[int, int] = {}
    for node in graph.nodes:
        for product in before.get(node.index, ()):
            value = source[product]
            args = (Ref(value), factors[value][0])
            name = values[product].name
            nodes.append(
                replace(
                    node,
                    index=len(nodes),
                    name=name,
                    op=aten.mul.Tensor,
                    args=args,
                    kwargs={},
                    inputs=(value,),
                    outputs=(product,),
                )
            )
            values[product] = replace(values[product], node=nodes[-1].index)
        moved[node.index] = len(nodes)
        instead = read_as.get(node.index)
        changed = replace(node, index=len(nodes))
        if instead is not None:
            changed = replace(
                changed,
                args=_replaced(node.args, instead),
                kwargs={name: _replaced(argument, instead) for name, argument in node.kwargs.items()},
                inputs=tuple(instead.get(value, value) for value in node.inputs),
            )
        nodes.append(changed)
    kept = [
        value if value.node is None or value.id in source else replace(value, node=moved[value.node])
        for value in values
    ]
    return replace(
        graph,
        nodes=tuple(nodes),
        values=tuple(kept),
        parameters={
            name: replace(parameter, uses=tuple(moved[use] for use in parameter.uses))
            for name, parameter in graph.parameters.items()
        },
        dead_nodes=tuple(moved[index] for index in graph.dead_nodes),
    )


def _replaced(argument: Any, instead: Mapping[int, int]) -> Any:
    """Return an argument with other values in the place of some."""
    if isinstance(argument, Ref):
        return Ref(instead.get(argument.value, argument.value))
    if isinstance(argument, (list, tuple)):
        return type(argument)(_replaced(item, instead) for item in argument)
    return argument
