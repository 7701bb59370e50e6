"""Which tensors of a graph have a gradient: they depend on a parameter or an input, and an output depends on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator

from wellposed.graphs import Graph, Node
from wellposed.graphs.graph import once
from wellposed.graphs.operators import traits
from wellposed.operators.contraction import Contraction
from wellposed.operators.norms import NORMS
from wellposed.operators.scale_parameters import parameter_values


def stops(graph: Graph, node: Node) -> bool:
    """Whether no gradient passes a node: its result is a new tensor or is known before the model runs."""
    effects = traits(node.op)
    return effects.fills or effects.factory or all(out in graph.known for out in node.outputs)


def differentiable(graph: Graph, outputs: Collection[int]) -> frozenset[int]:
    """Return the values that have a gradient of ``outputs``, as automatic differentiation sees it (zeros included).

    Args:
        graph: from `wellposed.trace`.
        outputs: value ids.
    """
    values = graph.values
    live = {v for v in graph.inputs if values[v].is_signal}
    live |= {p.value for p in graph.parameters.values() if values[p.value].is_signal}
    passing = [node for node in graph.nodes if not stops(graph, node)]
    for node in passing:
        if not live.isdisjoint(node.inputs):
            live.update(out for out in node.outputs if values[out].is_signal)
    reached = live.intersection(outputs)
    for node in reversed(passing):
        if not reached.isdisjoint(node.outputs):
            reached.update(live.intersection(node.inputs))
    return frozenset(reached)


def depending(graph: Graph, parameters: Collection[str]) -> frozenset[int]:
    """Return the values that depend on some parameters, by name."""
    return behind(graph, {graph.parameters[name].value for name in parameters})


def behind(graph: Graph, values: Collection[int]) -> frozenset[int]:
    """Return ``values`` and all values that depend on them."""
    found = set(values)
    for node in graph.nodes:
        if not found.isdisjoint(node.inputs):
            found.update(node.outputs)
    return frozenset(found)


@once
def derivatives(graph: Graph) -> frozenset[int]:
    """Return the nodes that act on derivatives taken inside the forward pass: what follows backward operators, or
    weights that meet the ones with which a derivative begins; and what is computed from these ones and weights alone.
    """
    fixed = parameter_values(graph)
    known, ones = fixed | graph.known.keys(), _ones(graph)
    begun = {
        out
        for node in graph.nodes
        if "_backward" in node.op_name or _meets_ones(node, fixed, ones)
        for out in node.outputs
    }
    reached = behind(graph, begun)
    return frozenset(
        node.index
        for node in graph.nodes
        if begun and node.inputs and (not reached.isdisjoint(node.inputs) or known.issuperset(node.inputs))
    )


def _meets_ones(node: Node, fixed: Collection[int], ones: Collection[int]) -> bool:
    """Whether a node multiplies weights by the ones with which a derivative begins."""
    others = set(node.inputs) - set(ones)
    return len(others) == 1 < len(set(node.inputs)) and others.issubset(fixed)


def _ones(graph: Graph) -> frozenset[int]:
    """Return the tensors of ones with which the derivative of a computed single number begins, and their views."""
    computed = depending(graph, graph.parameters)
    made = {
        node.outputs[0]
        for node in graph.nodes
        if node.op_name == "ones_like.default" and node.inputs[0] in computed and not graph.values[node.inputs[0]].shape
    }
    return behind(graph, made) & graph.known.keys() if made else frozenset()


Entry = tuple[str, str, int]
"""Module path, operator and value id of one signal."""


def node_entries(graph: Graph) -> Iterator[Entry]:
    """Yield what every node makes, in execution order."""
    return ((node.module, node.op_name, out) for node in graph.nodes for out in node.outputs)


def parameter_entries(graph: Graph) -> Iterator[Entry]:
    """Yield every parameter, under the module that holds it."""
    return ((name.rpartition(".")[0], "parameter", p.value) for name, p in graph.parameters.items())


def input_entries(graph: Graph) -> Iterator[Entry]:
    """Yield every input of the model."""
    return (("", "input", value) for value in graph.inputs)


CANCELS = 1e-4
"""Share of the power of its summands below which a sum of gradients counts as 0: the kernels of a prediction do not
resolve more of one that cancels."""


def cancelling(graph: Graph, added: Iterable[Added], second_moment: Callable[[int], float]) -> Iterator[int]:
    """Yield the ids of parameters whose gradients cancel: of a bias before a norm, for one.

    The gradient of such a parameter sums numel(result) / numel(parameter) gradients of results for each element. If
    they were unrelated, their squares would add up.

    Args:
        graph: from `wellposed.trace`.
        added: from `added_parameters`.
        second_moment: of the gradient, by value id.
    """
    summands: dict[int, float] = {}
    for value, out in added:
        count = math.prod(graph.values[out].shape) / max(math.prod(graph.values[value].shape), 1)
        summands[value] = summands.get(value, 0.0) + count * second_moment(out)
    for value, power in summands.items():
        if 0.0 < second_moment(value) < CANCELS * power:
            yield value


Added = tuple[int, int]
"""A parameter and the result that it is added to, or that it scales after a norm: value ids."""


def added_parameters(graph: Graph, uses: Iterable[Contraction]) -> tuple[Added, ...]:
    """Return the biases of contractions, and the gains and shifts of norms, with the results that they enter.

    Args:
        graph: from `wellposed.trace`.
        uses: its contractions.
    """
    pairs = [(graph.parameters[u.bias].value, graph.nodes[u.node].outputs[0]) for u in uses if u.bias is not None]
    for node in graph.nodes:
        norm = NORMS.get(node.op)
        for value in () if norm is None else (norm.gain_of(node), norm.shift_of(node)):
            if value is not None and graph.values[value].kind == "parameter":
                pairs.append((value, node.outputs[0]))
    return tuple(pairs)
