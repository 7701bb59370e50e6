"""Operations of weights that no gradient reaches, now or after a step: dead branches."""

from __future__ import annotations

from collections.abc import Mapping

from wellposed.graphs import Graph
from wellposed.methods.unmet import zeros_under
from wellposed.operators.contraction import contractions
from wellposed.plans import Prescription
from wellposed.reports.spans import moments_by_name
from wellposed.signals import Signals
from wellposed.structure.asleep import asleep, reached_by_gradients


def unreached(
    graph: Graph, prescriptions: Mapping[str, Prescription] | None, measured: Signals | None
) -> tuple[tuple[str, ...], bool]:
    """Return the operations that read parameters which stay at zero, and those of weights whose gradients are zero; and
    whether there are any of the first kind.

    A gradient that only waits for a weight at zero to learn is none of these.

    Args:
        graph: from `wellposed.trace`.
        prescriptions: of a plan; None stands for the values that the model has now.
        measured: on real passes, with gradients; without them the first kind alone is found.
    """
    zeros = zeros_under(graph, prescriptions)
    still = {graph.parameters[name].value for name in asleep(graph, zeros)}
    found = {node.index for node in graph.nodes if not still.isdisjoint(node.inputs)}
    if measured is not None and measured.gradients is not None:
        gradients = moments_by_name(measured.gradients)
        weighted = {use.node for use in contractions(graph) if use.parameter is not None}
        waiting = _waiting(graph, frozenset(graph.parameters[name].value for name in zeros))
        for index in weighted:
            node = graph.nodes[index]
            if gradients.get(node.name) == 0.0 and waiting.isdisjoint(node.outputs):
                found.add(index)
    return tuple(graph.nodes[index].name for index in sorted(found)), bool(still)


def _waiting(graph: Graph, zero: frozenset[int]) -> set[int]:
    """Return the values that no gradient can reach, and those that one may reach only after a weight at zero has
    learned.
    """
    reached = reached_by_gradients(graph, zero)
    behind = reached_by_gradients(graph, frozenset()) - reached
    for node in reversed(graph.nodes):
        if not behind.isdisjoint(node.outputs):
            behind.update(node.inputs)
    outputs = {value for node in graph.nodes for value in node.outputs}
    return behind | (outputs - reached)
