"""Codebooks: rows of a parameter that are picked by how near they are to a signal (vector quantisation)."""

from __future__ import annotations

from wellposed.graphs import Graph, Node
from wellposed.graphs.graph import once
from wellposed.operators.facts import facts_of
from wellposed.signals.context.call import Pass
from wellposed.signals.sampling.joint_sources import MOST_CLIMBED, is_constant, is_too_large, share_sources
from wellposed.structure.reach import behind


@once
def codebook_picks(graph: Graph) -> dict[int, frozenset[int]]:
    """Return the nodes that pick elements of what is made of parameters, by an index that depends on the same ones, and
    for each the values that depend on these parameters.
    """
    parameters = {parameter.value for parameter in graph.parameters.values()}
    made_of: dict[int, frozenset[int]] = {value: frozenset((value,)) for value in parameters}
    plain = set(parameters)  # made of parameters and constants alone
    found: dict[int, frozenset[int]] = {}
    for node in graph.nodes:
        sources = frozenset().union(*(made_of.get(value, frozenset()) for value in node.inputs))
        if len(node.inputs) and all(value in plain or value in graph.known for value in node.inputs):
            plain.update(node.outputs)
        made_of |= dict.fromkeys(node.outputs, sources)
        if not facts_of(node.op).indexed or facts_of(node.op).looks_up:
            continue
        tables = [made_of[value] for value in node.inputs if value in plain and value in made_of]
        indices = [made_of.get(v, frozenset()) for v in node.inputs if not graph.values[v].is_signal]
        shared = frozenset().union(*(table & index for table in tables for index in indices))
        if shared:
            found[node.index] = behind(graph, shared)
    return found


def picks_from_codebook(run: Pass, node: Node) -> bool:
    """Whether a node picks from a codebook by signals of which its rows are drawn together with the index."""
    return not run.independent and node.index in codebook_picks(run.graph) and not is_too_large(run, node)


def nodes_of_codebook(run: Pass, node: Node) -> list[Node] | None:
    """Return the nodes between a pick from a codebook and the signals that it quantises, which weights made; None where
    they are too many, or these signals depend on one another.
    """
    graph, dependent = run.graph, codebook_picks(run.graph)[node.index]
    inner: dict[int, Node] = {}
    sources: list[int] = []
    open_ = list(node.inputs)
    while open_:
        value = open_.pop()
        at = graph.values[value].node
        if at is None or at in inner or value in graph.known or value in sources:
            continue
        if value in run.draws and value not in dependent:
            continue
        if is_constant(run, value) and value not in dependent:
            continue
        if at in run.weights.weight_at and value not in dependent:
            sources.append(value)
            continue
        inner[at] = graph.nodes[at]
        if len(inner) > MOST_CLIMBED or is_too_large(run, inner[at]):
            return None
        open_ += graph.nodes[at].inputs
    if share_sources(run, sources):
        return None
    for at in inner:  # an index that was drawn apart from what it picks by is drawn anew
        for value in inner[at].outputs:
            run.draws.pop(value, None)
    return [inner[at] for at in sorted(inner)]
