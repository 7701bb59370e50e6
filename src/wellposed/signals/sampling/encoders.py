"""Encoders: layers that several inputs pass through, each by itself, whose results meet (two towers, matching).

What f(a) and f(b) have in common by the weights of f no state of one of them tells: every pair of positions is alike,
in ways that one draw of the weights decides. Where two results of one encoder meet in an operator, its weights are
drawn as well, once for all inputs, and everything from the inputs on is run on these draws.
"""

from __future__ import annotations

import math
from functools import reduce
from operator import or_
from wellposed.graphs import Graph, Node, Ref
from wellposed.graphs.graph import once
from wellposed.graphs.operators import traits
from wellposed.operators.facts import facts_of
from wellposed.operators.product import is_product
from wellposed.signals.context.call import Pass
from wellposed.signals.registry import RULES
from wellposed.signals.sampling.joint_sources import is_constant

MOST_IN_ENCODERS = 256
"""Most nodes that are run on draws of the weights of encoders. Chosen for cost."""
LARGEST_IN_ENCODERS = 1 << 20
"""Most elements of a tensor among them. Chosen for cost."""
LEAST_OF_ENCODERS = 4
"""Fewest draws of them. Chosen for cost."""
MOST_FED_BACK = 8
"""Most nodes at which weights meet what they made themselves. Chosen for cost."""


def meets_itself(run: Pass, node: Node) -> bool:
    """Whether results of one encoder for several inputs meet in a product, or in an operator without a rule.

    Its operands are made of what one weight made at different nodes: directly, so that they have this weight in common,
    or with other weights in between, so that positions are alike in both by the same chance, of which a sum of products
    over positions consists. Long loops are left to the rules, as everything since their first step would be run again
    at each.
    """
    weights, rule = run.weights, RULES.get(node.op)
    facts, free = facts_of(node.op), node.index not in weights.weight_at
    pair = len(node.inputs) == 2 and facts.elementwise and (facts.multiplies or facts.subtracts)
    product = free and (is_product(node.op) or pair)
    if run.independent or not weights.repeated or not (product or rule is None or rule.tag == "sampled"):
        return False
    if len(_fed_back(run.graph) & weights.repeated) > MOST_FED_BACK:
        return False
    if "uses" not in run.memo:
        run.memo["uses"] = _uses_behind(run)
    direct, far, groups = run.memo["uses"]
    if facts.elementwise and rule is not None:
        return _of_two_uses(node, direct, groups, apart=True) and _is_untold(run, node)
    return _of_two_uses(node, direct, groups) or (product and _of_two_uses(node, far, groups, apart=True))


def _is_untold(run: Pass, node: Node) -> bool:
    """Whether no link tells the covariance of a node's two operands (results for inputs of other lengths)."""
    x, y = (run.state(value) for value in node.inputs[:2])
    if x is None or y is None or x.lengths != y.lengths:
        return x is not None and y is not None
    same = tuple(range(len(x.lengths)))
    return run.dependence.between(x, y, same, same) is None


def _of_two_uses(node: Node, behind: dict[int, int], groups: set[int], *, apart: bool = False) -> bool:
    """Whether two operands depend on several nodes of one weight (``groups``): ``apart``, not on the same ones."""
    made = [behind.get(value, 0) for value in dict.fromkeys(node.inputs)]
    pairs = [(a, b) for i, a in enumerate(made) for b in made[:i] if a and b and (a != b or not apart)]
    for group in groups:
        for a, b in ((a & group, b & group) for a, b in pairs):
            if a and b and (a | b).bit_count() > 1 and not (apart and a & b):
                return True
    return False


def is_largest_of_picked(run: Pass, node: Node) -> bool:
    """Whether a node takes the largest of what layers made of neighbours, which were found among the signals.

    How alike neighbours are differs by channel: a filter of few numbers sees what they share, or what differs.
    """
    facts = facts_of(node.op)
    if run.independent or facts.along != "order" or facts.extent != "axis" or not node.outputs:
        return False
    if any(run.graph.users().get(out) for out in node.outputs if not run.graph.values[out].is_signal):
        return False
    return not behind_picks(run.graph).isdisjoint(node.inputs)


def is_power_of_input(run: Pass, node: Node) -> bool:
    """Whether a node multiplies by an input what was multiplied by the same input before: powers of a matrix, whose
    leading directions grow (the links of a graph at every layer, with weights in between or not).
    """
    if "powers" not in run.memo:
        run.memo["powers"] = powers_of_inputs(run.graph, frozenset(run.weights.weight_at))
    return not run.independent and node.index in run.memo["powers"]


def powers_of_inputs(graph: Graph, weighted: frozenset[int]) -> frozenset[int]:
    """Return the products of a matrix that enters the model with what a product with it made earlier; ``weighted`` are
    the nodes that meet weights.
    """
    plain = {value: 1 << i for i, value in enumerate(graph.inputs) if value not in graph.known}
    multiplied: dict[int, int] = {}
    found = set[int]()
    for node in graph.nodes:
        before = own = 0
        for value in node.inputs:
            before |= multiplied.get(value, 0)
        if is_product(node.op) and not facts_of(node.op).elementwise and node.index not in weighted:
            own = reduce(or_, (plain.get(value, 0) for value in node.inputs))
            if any(plain.get(value, 0) & multiplied.get(other, 0) for value in node.inputs for other in node.inputs):
                found.add(node.index)
        free = [value for value in node.inputs if value not in graph.known]
        if len(free) == 1 and free[0] in plain and node.index not in weighted and len(node.outputs) == 1:
            plain[node.outputs[0]] = plain[free[0]]
        multiplied |= dict.fromkeys(node.outputs, before | own)
    return frozenset(found)


@once
def behind_picks(graph: Graph) -> frozenset[int]:
    """Return the values that depend on what an index picks which is found among signals."""
    values, found = graph.values, set[int]()
    for node in graph.nodes:
        picks = facts_of(node.op).indexed and any(
            not values[value].is_signal and value not in graph.known and values[value].node is not None
            for value in node.inputs
        )
        if picks or not found.isdisjoint(node.inputs):
            found.update(node.outputs)
    return frozenset(found)


def _uses_behind(run: Pass) -> tuple[dict[int, int], dict[int, int], set[int]]:
    """Return by value, as bits, the nodes at which it was made by a weight that others meet as well, with no weight and
    with any in between, and for each such weight the bits of all its nodes.
    """
    graph, weights = run.graph, run.weights
    bits = {at: 1 << i for i, at in enumerate(sorted(weights.repeated))}
    groups: dict[object, int] = {}
    direct: dict[int, int] = {}
    far: dict[int, int] = {}
    for node in graph.nodes:
        near = made = 0
        for value in node.inputs:
            made |= far.get(value, 0)
            near |= direct.get(value, 0)
        if node.index in weights.weight_at:
            near = bits.get(node.index, 0)
        if node.index in bits:
            key = (node.op, weights.same.key(Ref(weights.weight_at[node.index])))
            groups[key] = groups.get(key, 0) | near
        for out in node.outputs:
            direct[out], far[out] = near, made | near
    return direct, far, {*groups.values()}


def nodes_of_encoders(run: Pass, node: Node) -> list[Node] | None:
    """Return the nodes between the inputs of the model and a node that results of one encoder meet at; None where they
    are too many, or too large, or a weight has no scale yet.
    """
    graph = run.graph
    inner: dict[int, Node] = {}
    open_ = list(node.inputs)
    while open_:
        value = open_.pop()
        at = graph.values[value].node
        if at is None or at in inner or value in graph.known or is_constant(run, value):
            continue
        inner[at] = graph.nodes[at]
        if len(inner) > MOST_IN_ENCODERS or _is_too_large(graph, inner[at]):
            return None
        open_ += graph.nodes[at].inputs
    return [inner[at] for at in sorted(inner)]


def _is_too_large(graph: Graph, node: Node) -> bool:
    return any(math.prod(graph.values[v].shape) > LARGEST_IN_ENCODERS for v in (*node.inputs, *node.outputs))


@once
def _fed_back(graph: Graph) -> frozenset[int]:
    """Return the nodes at which a parameter meets what depends on it already."""
    names = {parameter.value: i for i, parameter in enumerate(graph.parameters.values())}
    behind: dict[int, int] = {}
    found = set[int]()
    for node in graph.nodes:
        own = sum(1 << names[value] for value in {*node.inputs} if value in names)
        before = 0
        for value in node.inputs:
            before |= behind.get(value, 0)
        if own & before and not traits(node.op).fills:
            found.add(node.index)
        for out in node.outputs:
            behind[out] = own | before
    return frozenset(found)
