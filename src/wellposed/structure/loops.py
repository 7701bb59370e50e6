"""Loops whose weights meet what they made themselves: recurrent cells that are written out, solvers, shared layers."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from wellposed.graphs import Graph, Node
from wellposed.graphs.operators import traits
from wellposed.operators.facts import facts_of
from wellposed.operators.scale_parameters import parameter_values
from wellposed.structure.meetings import fed_back

LEAST_FED_BACK = 4
"""Fewest nodes at which weights meet what they made themselves in a loop that is drawn. Chosen: of fewer, rules tell
what they have in common."""
MOST_IN_LOOP = 4096
"""Most nodes of a loop that is drawn. Chosen for cost."""
LARGEST_IN_LOOP = 1 << 14
"""Most elements of a weight in a loop that is drawn: larger ones are wide, and rules are true to them. Chosen."""
LARGEST_BATCH = 1 << 16
"""Most elements of another tensor in it, whatever the batch. Chosen for cost."""


def narrow_loop(graph: Graph, weight_at: Mapping[int, int], repeated: Collection[int]) -> frozenset[int]:
    """Return the nodes of narrow loops: where weights meet results of their own, the nodes between, and all that
    follows up to a weight that is met once. Empty where loops are short, or have too many or too large nodes.

    ``weight_at`` gives the weight (value id) of each node that meets one; ``repeated`` are the nodes whose weight other
    nodes meet too.
    """
    # what is added (one bias of scores in every layer) makes nothing of what it has made
    core = {at for at in fed_back(graph) if facts_of(graph.nodes[at].op).merges != "sum"}
    if len(core) < LEAST_FED_BACK:
        return frozenset()
    before = _before(graph, core)
    again, inside = before.intersection(repeated), frozenset[int]()
    while not inside or not again <= inside:
        inside = _from(graph, core | again, repeated, weight_at)
        met = {weight_at[at] for at in inside if at in weight_at}
        again |= {at for at in repeated if weight_at[at] in met}
    large = len(inside) > MOST_IN_LOOP or any(_is_large(graph, graph.nodes[at]) for at in inside)
    return frozenset() if large else inside & _of_samples(graph)


def _from(graph: Graph, first: Collection[int], repeated: Collection[int], weighted: Collection[int]) -> frozenset[int]:
    """Return some nodes and all that depend on them, without weights that are met once and what follows these."""
    inside, values = set[int](), set[int]()
    for node in graph.nodes:
        follows = not values.isdisjoint(node.inputs) and (node.index in repeated or node.index not in weighted)
        if follows or node.index in first:
            inside.add(node.index)
            values.update(node.outputs)
    return frozenset(inside)


def _before(graph: Graph, core: Collection[int]) -> set[int]:
    """Return the nodes that some nodes depend on."""
    needed = set(core)
    for node in reversed(graph.nodes):
        if node.index in needed:
            needed.update(at for value in node.inputs if (at := graph.values[value].node) is not None)
    return needed


def _is_large(graph: Graph, node: Node) -> bool:
    """Whether a node reads or makes a tensor that is too large for a loop to be drawn."""
    fixed = parameter_values(graph)
    return any(
        math.prod(graph.values[value].shape) > (LARGEST_IN_LOOP if value in fixed else LARGEST_BATCH)
        for value in (*node.inputs, *node.outputs)
    )


def _of_samples(graph: Graph) -> frozenset[int]:
    """Return the nodes that depend on an input or on random numbers; rules handle the others, alike for all samples."""
    values, found = set(graph.inputs), set[int]()
    for node in graph.nodes:
        if not values.isdisjoint(node.inputs) or traits(node.op).random:
            found.add(node.index)
            values.update(node.outputs)
    return frozenset(found)
