"""The map of correlations of a whole graph, for a given map of its activations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from wellposed.graphs import Graph, Node
from wellposed.graphs.operators import RUNNING
from wellposed.operators.facts import facts_of
from wellposed.operators.scale_parameters import parameter_values


def largest(
    graph: Graph,
    shaped: Collection[int],
    seconds: Mapping[int, float],
    start: float,
    local: Callable[[float], float],
) -> float:
    """Return the largest value that the map of a subgraph takes at ``start``: over all of them, from the inputs on.

    An activation applies its local map, a sum or a concatenation the mean of its operands' maps, weighed by their
    second moments, and every other operator hands on the largest of its operands'. As no local map is below the
    identity, what begins at the inputs is the largest. A batch norm takes out what samples share, and the map begins
    anew. For maps of correlations this is the subnetwork-maximising
    function of Zhang et al. 2022 (arXiv 2203.08120, appendix), with sums in place of maps that of curvatures.

    Args:
        graph: from `wellposed.trace`.
        shaped: indices of the nodes that are activations with the local map.
        seconds: second moments by value id, where they are known.
        start: value at the inputs.
        local: the activations' map.
    """
    fixed = parameter_values(graph)
    known: dict[int, float] = dict.fromkeys(graph.inputs, start)
    most = start
    for node in graph.nodes:
        operands = [value for value in dict.fromkeys(node.inputs) if value in known and value not in fixed]
        if not operands:
            continue
        value = start if node.op in RUNNING else _met(node, operands, known, seconds)
        if node.index in shaped:
            value = local(value)
        most = max(most, value)
        known.update(dict.fromkeys(node.outputs, value))
    return most


def _met(node: Node, operands: list[int], known: Mapping[int, float], seconds: Mapping[int, float]) -> float:
    """Return the map's value where an operator's operands meet."""
    facts = facts_of(node.op)
    weights = [seconds.get(value, 0.0) for value in operands]
    if len(operands) > 1 and (facts.merges == "sum" or facts.joins) and sum(weights) > 0.0:
        return sum(weight * known[value] for weight, value in zip(weights, operands, strict=True)) / sum(weights)
    return max(known[value] for value in operands)
