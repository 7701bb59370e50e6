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
        open_ways = reached_by_gradients(graph, frozenset(graph.parameters[name].value for name in zeros))
        gradients = moments_by_name(measured.gradients)
        weighted = {use.node for use in contractions(graph) if use.parameter is not None}
        found |= {
            index
            for index in weighted
            if gradients.get(graph.nodes[index].name) == 0.0 and not open_ways.isdisjoint(graph.nodes[index].outputs)
        }
    return tuple(graph.nodes[index].name for index in sorted(found)), bool(still)
