"""Attention scores in a graph: where queries meet keys, and which parameters set the scale of the queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wellposed.graphs import Graph, Node
from wellposed.graphs.graph import once
from wellposed.operators.contraction import Contraction, contractions
from wellposed.operators.facts import facts_of
from wellposed.operators.norms import NORMS
from wellposed.operators.product import describe
from wellposed.operators.scale_parameters import parameter_values
from wellposed.operators.schema import ref_of
from wellposed.operators.views import is_copy

_NORMS = {op: norm for op, norm in NORMS.items() if not norm.by_channel}
"""Norms along the head."""


@dataclass(frozen=True, slots=True)
class Scores:
    """One product of queries and keys.

    Attributes:
        node: index of the node that multiplies them.
        head_dim: terms summed into one score.
        query: parameters that scale the queries linearly and nothing else (a weight and its bias, or the gain and shift
            of a norm of the queries); empty where there are none, as in a fused projection.
    """

    node: int
    head_dim: int
    query: tuple[str, ...]


def attention_scores(graph: Graph) -> tuple[Scores, ...]:
    """Return every product of two signals that a softmax takes in, in execution order."""
    fixed = parameter_values(graph)
    users = graph.users()
    uses: dict[int, Contraction] = {use.node: use for use in contractions(graph)}
    products = []
    for node in graph.nodes:
        pair = multiplied_signals(graph, node)
        if pair is None or not (facts_of(node.op).attends or _enters_softmax(graph, node.outputs[0], users)):
            continue
        query, key = pair
        mine, others = _sources(graph, query, fixed, uses), _sources(graph, key, fixed, uses)
        alone = len(mine) == 1 and not mine & others and _feeds_only(graph, min(mine, default=0), node, users)
        names = _scale(graph, graph.nodes[min(mine)], uses) if alone else ()
        products.append(Scores(node.index, graph.values[query].shape[-1], names))
    return tuple(products)


def multiplied_signals(graph: Graph, node: Node) -> tuple[int, int] | None:
    """Return the two signals of which a node forms scalar products, of attention queries and keys; None of others."""
    if facts_of(node.op).attends:
        return node.args[0].value, node.args[1].value
    product = describe(graph, node)
    if product is None or product.window is not None or {product.left, product.right} & parameter_values(graph):
        return None
    return product.left, product.right


@once
def score_products(graph: Graph) -> frozenset[int]:
    """Return the nodes that multiply two tensors, signals or learned ones, to what a softmax takes in."""
    users, products = graph.users(), ((node, describe(graph, node)) for node in graph.nodes)
    return frozenset(
        node.index
        for node, product in products
        if product is not None and product.window is None and _enters_softmax(graph, node.outputs[0], users)
    )


def _enters_softmax(graph: Graph, value: int, users: Mapping[int, Sequence[int]]) -> bool:
    """Whether ``value`` reaches a softmax through operators that keep its shape (scale, mask, bias, cast)."""
    size = graph.values[value].shape[-2:]
    todo, seen = [value], set()
    while todo:
        at = todo.pop()
        for index in users.get(at, ()):
            node = graph.nodes[index]
            if facts_of(node.op).along == "exponentials":
                return True
            if index not in seen and describe(graph, node) is None:
                seen.add(index)
                todo += [out for out in node.outputs if graph.values[out].shape[-2:] == size]
    return False


@once
def logits_before_shift(graph: Graph) -> dict[int, int]:
    """Return, by the index of each softmax that it holds for, the logits before the same number was added to all of one
    query: their maximum is taken out for the sake of rounding, and the weights are as they were.
    """
    found = {}
    for node in graph.nodes:
        if facts_of(node.op).along != "exponentials":
            continue
        axis = node.args[1] % len(graph.values[node.inputs[0]].shape) if graph.values[node.inputs[0]].shape else 0
        value, shifted = node.inputs[0], False
        while (before := _unshifted(graph, value, axis)) is not None:
            shifted |= before[1]
            value = before[0]
        if shifted:
            found[node.index] = value
    return found


def _unshifted(graph: Graph, value: int, axis: int) -> tuple[int, bool] | None:
    """Return what a value is a copy of, or a sum of with the same number at all places along an axis, and whether it is
    the latter; None of others.
    """
    at = graph.values[value].node
    if at is None:
        return None
    node = graph.nodes[at]
    if is_copy(node.op):
        return node.inputs[0], False
    terms, shape = facts_of(node.op).terms, graph.values[value].shape
    operands = [found for arg in node.args[:2] if (found := ref_of(arg)) is not None]
    if len(terms) != 2 or len(operands) != 2 or node.kwargs.get("alpha", 1) != 1:
        return None
    for sign, one, other in zip(terms, operands, reversed(operands), strict=True):
        whole, shift = (graph.values[v].shape for v in (one, other))
        of_axis = shift[axis - len(shape)] if len(shift) >= len(shape) - axis else 1
        if sign == 1.0 and whole == shape and of_axis == 1 < shape[axis]:
            return one, True
    return None


def _sources(graph: Graph, value: int, fixed: frozenset[int], uses: dict[int, Contraction]) -> set[int]:
    """Return the nodes that set the scale of ``value``: the first weights, or norms with a gain, on every path back."""
    nodes: set[int] = set()
    todo, seen = [value], set()
    while todo:
        at = todo.pop()
        index = graph.values[at].node
        if index is None or at in fixed or index in seen:
            continue
        seen.add(index)
        node = graph.nodes[index]
        if index in uses or node.op in _NORMS:
            nodes.add(index)
        else:
            todo.extend(node.inputs)
    return nodes


def _feeds_only(graph: Graph, source: int, target: Node, users: Mapping[int, Sequence[int]]) -> bool:
    """Whether what the node ``source`` makes is used on paths to ``target`` alone."""
    todo, seen = list(graph.nodes[source].outputs), set()
    while todo:
        for index in users.get(todo.pop(), ()):
            if index == target.index or index in seen:
                continue
            if index > target.index:
                return False
            seen.add(index)
            if not users.get(graph.nodes[index].outputs[0]) and graph.nodes[index].outputs[0] in graph.outputs:
                return False
            todo += graph.nodes[index].outputs
    return True


def _scale(graph: Graph, node: Node, uses: dict[int, Contraction]) -> tuple[str, ...]:
    """Return the parameters that scale the output of ``node`` linearly, when all of them are scaled."""
    if node.op in _NORMS:
        names = {parameter.value: name for name, parameter in graph.parameters.items()}
        norm = _NORMS[node.op]
        return tuple(names[value] for value in (norm.gain_of(node), norm.shift_of(node)) if value in names)
    use = uses[node.index]
    own = [name for name in (use.parameter, use.bias) if name is not None]
    return tuple(own) if use.parameter is not None and use.kind != "embedding" else ()
