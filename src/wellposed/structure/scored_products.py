"""Products of two signals that a function takes in, or that leave the model: scores, whose size their length sets."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from wellposed.graphs import Graph, Node, Ref
from wellposed.graphs.graph import once
from wellposed.operators.arithmetic import factors_of, is_homogeneous, terms_of, times_number
from wellposed.operators.contraction import contractions
from wellposed.operators.facts import facts_of
from wellposed.operators.product import describe
from wellposed.operators.scale_parameters import parameter_values
from wellposed.operators.schema import named_arguments, ref_of
from wellposed.operators.scores import multiplied_signals
from wellposed.operators.views import is_view
from wellposed.structure.carriers import scaling_of
from wellposed.structure.residual_branches import other_use
from wellposed.walks import reached


@dataclass(frozen=True, slots=True)
class Side:
    """One factor of a product of signals.

    Attributes:
        value: id of the factor.
        node: of the product.
        carriers: names of the parameters whose factor is a factor of this value, and of nothing else.
    """

    value: int
    node: int
    carriers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ScoredProduct:
    """Scalar products of two signals, as of queries and keys.

    Attributes:
        node: index of the node that multiplies them.
        factors: ids of the two signals.
        length: number of elementwise products in each sum.
        constant: factor on the sums before a function reads them.
        leaves: whether they are outputs of the model, or no later node contracts signals.
        scores: for outputs, how many are scored together.
        sides: the factors that have carriers.
        shared: whether there are none because what makes a factor makes other things too: one layer for q, k and v.
    """

    node: int
    factors: tuple[int, int]
    length: int
    constant: float
    leaves: bool
    scores: int
    sides: tuple[Side, ...]
    shared: bool


@once
def scored_products(graph: Graph) -> tuple[ScoredProduct, ...]:
    """Return the scalar products of signals that a function takes in, or that leave the model, in execution order."""
    fixed = parameter_values(graph)
    mixing = {use.node for use in contractions(graph)}
    found = []
    for node in graph.nodes:
        factors = None if node.index in graph.dead_nodes else _factors(graph, node, fixed)
        if factors is None:
            continue
        if facts_of(node.op).attends:
            scale = named_arguments(node).get("scale")
            length = graph.values[factors[0]].shape[-1]
            constant = length**-0.5 if scale is None else float(scale)
            found.append(_product(graph, node, factors, length, constant, leaves=False))
            continue
        end = _end(graph, node, mixing)
        if end is not None:
            length, constant, leaves = end
            found.append(_product(graph, node, factors, length, constant, leaves=leaves))
    return tuple(found)


def _factors(graph: Graph, node: Node, fixed: Collection[int]) -> tuple[int, int] | None:
    """Return the two signals that a node multiplies, none of them a parameter or known beforehand."""
    pair = multiplied_signals(graph, node)
    operands = factors_of(node)
    if [power for _, power in operands] == [1.0, 1.0]:
        first, second = (ref_of(one) for one, _ in operands)
        pair = None if first is None or second is None else (first, second)
    if pair is None or any(v in fixed or v in graph.known or not graph.values[v].is_followed for v in pair):
        return None
    return pair


def _end(graph: Graph, node: Node, mixing: Collection[int]) -> tuple[int, float, bool] | None:
    """Return the number of summed terms, the constant factor that follows, and whether the sums leave the model; None
    where something other than a function reads them, or nothing is summed.
    """
    length, constant = _summed(graph, node)
    at, leaves = node.outputs[0], True
    while at not in graph.outputs:
        reader = _only_reader(graph, at)
        if reader is None:
            return None
        if _takes_in(reader):
            leaves = _leaves(graph, reader, mixing)
            break
        times = times_number(graph, reader)
        if times is not None and times[0] == Ref(at):
            constant *= times[1]
        elif facts_of(reader.op).along == "sum" and length == 1:
            length = _count(graph, at) // max(1, _count(graph, reader.outputs[0]))
        elif not _passes(reader):
            return None
        at = reader.outputs[0]
    return (length, constant, leaves) if length > 1 else None


def _summed(graph: Graph, node: Node) -> tuple[int, float]:
    """Return how many terms a product sums, and what it multiplies the sums by."""
    product = describe(graph, node)
    if product is None:
        return 1, 1.0
    sizes = dict(zip(product.left_axes, graph.values[product.left].shape, strict=True))
    return math.prod(sizes.get(label, 1) for label in product.summed), product.scale


def _only_reader(graph: Graph, value: int) -> Node | None:
    """Return the one node that reads a value; None where there are several, or none."""
    readers = [graph.nodes[index] for index in graph.users().get(value, ()) if index not in graph.dead_nodes]
    return readers[0] if len(readers) == 1 else None


def _takes_in(node: Node) -> bool:
    """Whether a node is a function of single elements, or a softmax."""
    facts = facts_of(node.op)
    return (facts.function and facts.active) or facts.along == "exponentials"


def _passes(node: Node) -> bool:
    """Whether a node passes a factor on, adds to what it reads, or masks it."""
    return is_view(node.op) or is_homogeneous(node) or bool(terms_of(node)) or facts_of(node.op).merges == "choice"


def _count(graph: Graph, value: int) -> int:
    return math.prod(graph.values[value].shape)


def _leaves(graph: Graph, node: Node, mixing: Collection[int]) -> bool:
    """Whether no node that depends on this one contracts signals."""

    def readers(index: int) -> list[int]:
        found = [at for out in graph.nodes[index].outputs for at in graph.users().get(out, ())]
        return [at for at in found if at not in graph.dead_nodes]

    after = reached(readers(node.index), readers)
    return all(index not in mixing and describe(graph, graph.nodes[index]) is None for index in after)


def _product(
    graph: Graph, node: Node, factors: tuple[int, int], length: int, constant: float, *, leaves: bool
) -> ScoredProduct:
    """Return the product with its `Side`s."""
    fixed, dead = parameter_values(graph), frozenset(graph.dead_nodes)
    found = [scaling_of(graph, value, frozenset((node.index,)), 0) for value in factors]
    ends = frozenset().union(*(carriers.uses for carriers in found))
    sides = [
        Side(value, node.index, carriers.parameters)
        for value, carriers in zip(factors, found, strict=True)
        if carriers.parameters
        and all(other_use(graph, name, ends, fixed, dead) is None for name in carriers.parameters)
    ]
    shape = graph.values[node.outputs[0]].shape
    scores = shape[-1] if describe(graph, node) is not None and len(shape) > 1 else 1
    parts = (carriers.shared and _is_part(graph, value) for value, carriers in zip(factors, found, strict=True))
    shared = not sides and all(parts)
    return ScoredProduct(node.index, factors, length, constant, leaves, scores, tuple(sides), shared)


def _is_part(graph: Graph, value: int) -> bool:
    """Whether a value is a view or a multiple of a contraction's result."""
    mixing = {use.node for use in contractions(graph)}
    while (index := graph.values[value].node) is not None and index not in mixing:
        node = graph.nodes[index]
        times = times_number(graph, node)
        if not is_view(node.op) and times is None:
            return False
        value = node.inputs[0]
    return index is not None
