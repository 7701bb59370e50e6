"""Weights that are drawn with what they make: for what they decide in common, which no state of one tensor tells.

Mostly a weight ends dependence: what is drawn together begins behind it (`joint_sources`). In five cases it does not,
and everything from the model's inputs on is run on draws of the inputs and of the weights:

- Results of one encoder for several inputs meet (two towers, matching, correlation volumes). f(a) and f(b) are alike in
  ways that one draw of f decides.
- A maximum over neighbours that were found among the signals. How alike they are differs by channel, as a filter of few
  numbers sees what they share, or what differs.
- Powers of a matrix that enters the model, the links of a graph at every layer. Its leading directions grow.
- What layers made of an input is picked by an index that was found in this input. What is near is alike.
- A signal without draws meets what was drawn in one of these ways.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from wellposed.graphs import Graph, Node
from wellposed.operators.facts import facts_of
from wellposed.operators.product import is_product
from wellposed.signals.context.call import Pass
from wellposed.signals.registry import RULES
from wellposed.signals.sampling.joint_sources import is_constant
from wellposed.structure.meetings import Uses, behind_picks, fed_back, picks_beyond_weights, powers_of_inputs

MOST_WITH_WEIGHTS = 256
"""Most nodes that are run on draws of weights for one result. Chosen for cost."""
LARGEST_WITH_WEIGHTS = 1 << 20
"""Most elements of a tensor among them. Chosen for cost."""
LEAST_WITH_WEIGHTS = 4
"""Fewest draws of them. Chosen for cost."""
MOST_FED_BACK = 8
"""Most nodes at which weights meet what they made themselves. Chosen for cost: since the first step of a loop,
everything is run again at each."""


def draws_weights(run: Pass, node: Node) -> bool:
    """Whether a node's results are told by draws of the weights before it."""
    ways = (
        meets_itself,
        is_power_of_input,
        picks_near,
        _meets_such,
        lambda run, node: is_largest_of_picked(run.graph, node),
    )
    return not run.independent and any(way(run, node) for way in ways)


def _meets_such(run: Pass, node: Node) -> bool:
    """Whether a node reads a value drawn with its weights beside an undrawn signal, whose state does not tell what both
    have in common by the weights: a query and the nearest of the keys that one encoder made.
    """
    others = [value for value in node.inputs if value not in run.draws and not is_constant(run, value)]
    return bool(others) and not run.with_weights.isdisjoint(node.inputs)


def meets_itself(run: Pass, node: Node) -> bool:
    """Whether results of one encoder for several inputs meet in a product, or in an operator without a rule.

    The operands depend on one weight met at different nodes. Either nothing lies between, so that both depend on this
    weight, or other weights do, and positions of both have the same finite-width correlation, which sums of products
    over positions consist of. Products and differences element by element are left to links for inputs of one shape,
    unless the products are summed.
    """
    weights, rule = run.weights, RULES.get(node.op)
    if run.independent or not weights.repeated or node.index in weights.weight_at:
        return False
    if len(fed_back(run.graph) & weights.repeated) > MOST_FED_BACK:
        return False
    if "uses" not in run.memo:
        run.memo["uses"] = Uses(run.graph, weights.repeated, weights.weight_at, weights.same)
    uses: Uses = run.memo["uses"]
    if rule is None or rule.tag == "sampled":
        return uses.meet(node)
    if _is_pair(node):
        return uses.meet_in_other_shapes(node) or (_is_summed(run.graph, node) and uses.meet(node))
    return is_product(node.op) and (uses.meet(node) or uses.meet_apart(node))


def _is_pair(node: Node) -> bool:
    """Whether a node multiplies or subtracts two tensors element by element."""
    facts = facts_of(node.op)
    return len(node.inputs) == 2 and facts.elementwise and (facts.multiplies or facts.subtracts)


def _is_summed(graph: Graph, node: Node) -> bool:
    """Whether a node is an elementwise product that a sum or a mean reads next: a product of two vectors."""
    readers = [facts_of(graph.nodes[at].op) for out in node.outputs for at in graph.users().get(out, ())]
    return facts_of(node.op).multiplies and any(facts.along == "sum" and facts.extent == "axis" for facts in readers)


def is_largest_of_picked(graph: Graph, node: Node) -> bool:
    """Whether a node takes a maximum over neighbours that were found among signals, after layers acted on them."""
    facts = facts_of(node.op)
    if facts.along != "order" or facts.extent != "axis" or behind_picks(graph).isdisjoint(node.inputs):
        return False
    return not any(graph.users().get(out) for out in node.outputs if not graph.values[out].is_signal)


def is_power_of_input(run: Pass, node: Node) -> bool:
    """Whether a node multiplies an input by what an earlier product with the same input made."""
    if "powers" not in run.memo:
        run.memo["powers"] = powers_of_inputs(run.graph, run.weights.weight_at)
    return not run.independent and node.index in run.memo["powers"]


def picks_near(run: Pass, node: Node) -> bool:
    """Whether a node picks from results of weights by an index found in the same input: near points are alike."""
    if run.independent or not facts_of(node.op).indexed or run.drawn.isdisjoint(node.inputs):
        return False
    return not run.drawn.isdisjoint(_picks(run).get(node.index, ()))


def _picks(run: Pass) -> Mapping[int, frozenset[int]]:
    if "picks" not in run.memo:
        run.memo["picks"] = picks_beyond_weights(run.graph, run.weights.weight_at)
    found: Mapping[int, frozenset[int]] = run.memo["picks"]
    return found


def nodes_from_inputs(run: Pass, node: Node) -> list[Node] | None:
    """Return the nodes between the model's inputs and a node, in the graph's order; None for too many or too large
    ones.
    """
    graph, indices = run.graph, frozenset[int]().union(*_picks(run).values())
    inner: dict[int, Node] = {}
    open_ = list(node.inputs)
    while open_:
        value = open_.pop()
        at = graph.values[value].node
        if at is None or at in inner or is_constant(run, value):
            continue
        if value in indices and value in run.draws:  # made of inputs alone, whose draws are always the same
            continue
        inner[at] = graph.nodes[at]
        if len(inner) > MOST_WITH_WEIGHTS or _is_too_large(graph, inner[at]):
            return None
        open_ += graph.nodes[at].inputs
    return [inner[at] for at in sorted(inner)]


def _is_too_large(graph: Graph, node: Node) -> bool:
    return any(math.prod(graph.values[v].shape) > LARGEST_WITH_WEIGHTS for v in (*node.inputs, *node.outputs))
