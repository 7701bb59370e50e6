"""Codebooks: rows of a parameter that are picked by how near they are to a signal (vector quantisation)."""

from __future__ import annotations

from wellposed.graphs import Node
from wellposed.signals.context.call import Pass
from wellposed.signals.sampling.joint_sources import MOST_CLIMBED, is_constant, is_too_large, share_sources
from wellposed.structure.meetings import codebook_picks
from wellposed.structure.reach import behind


def picks_from_codebook(run: Pass, node: Node) -> bool:
    """Whether a node picks from a codebook, whose rows are drawn together with the index."""
    return not run.independent and node.index in codebook_picks(run.graph) and not is_too_large(run, node)


def nodes_of_codebook(run: Pass, node: Node) -> list[Node] | None:
    """Return the nodes between a pick from a codebook and the signals that it quantises, which weights made. None where
    there are too many, or these signals depend on one another. Draws of an index made apart from the codebook's are
    discarded.
    """
    graph, made = run.graph, behind(run.graph, codebook_picks(run.graph)[node.index])
    inner: dict[int, Node] = {}
    sources: list[int] = []
    open_ = list(node.inputs)
    while open_:
        value = open_.pop()
        at = graph.values[value].node
        if at is None or at in inner or (value not in made and _is_source(run, value, at)):
            sources += [value] * (at in run.weights.weight_at)
            continue
        inner[at] = graph.nodes[at]
        if len(inner) > MOST_CLIMBED or is_too_large(run, inner[at]):
            return None
        open_ += graph.nodes[at].inputs
    if share_sources(run, [value for value in sources if value not in made]):
        return None
    for at in inner:
        for value in inner[at].outputs:
            run.draws.pop(value, None)
    return [inner[at] for at in sorted(inner)]


def _is_source(run: Pass, value: int, at: int) -> bool:
    """Whether draws begin at a value, made by the node ``at`` from no codebook: a weight's result, a constant, or a
    value with draws from which its state was estimated. Draws of other values, made on the way to the index, may be
    unrelated to what these were computed from.
    """
    return at in run.weights.weight_at or (value in run.drawn and value in run.draws) or is_constant(run, value)
