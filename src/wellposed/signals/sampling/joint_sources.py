"""Joint sources: which signals an operator's operands are drawn from, and which nodes lie between.

The operands of an operator that is run on draws may depend on one another ((a - mu)² / σ² where a was drawn with that
mu and σ, p log p, an index that was found among the very values that it picks). They are drawn together: one climbs
from them to *sources*, signals that are independent of one another and whose states tell their distribution. The
sources are drawn from their states, and every node in between is run on these draws (`joint_draws`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch

from wellposed.graphs import Graph, Node
from wellposed.graphs.operators import traits
from wellposed.graphs.run import dense
from wellposed.operators.facts import facts_of
from wellposed.operators.product import is_product
from wellposed.signals.context.arguments import state_of
from wellposed.signals.context.call import Pass
from wellposed.signals.distributions.marginals import has_shape
from wellposed.signals.distributions.state import State
from wellposed.signals.integration import kernels
from wellposed.structure.loops import narrow_loop

LARGEST_DRAWN = 1 << 21
"""Most elements of a tensor that is drawn together with others. Chosen for cost."""
LARGEST_IN_SCAN = 1 << 21
"""Most elements of a tensor in a scan, which may hold the decays of all pairs of times. Chosen for cost."""
CLIMBED_FOR_SHAPE = 16
"""Most nodes that are climbed past to a signal whose state tells its distribution better. Chosen for cost."""
MOST_CLIMBED = 96
"""Most nodes that are climbed past to signals that are independent of one another. Chosen for cost."""


def can_run(run: Pass, node: Node) -> bool:
    """Whether a node may be run on draws: its tensors are small, and it meets no weight whose scale or draw counts."""
    return not is_too_large(run, node) and could_run(run, node)


def could_run(run: Pass, node: Node) -> bool:
    """Whether a node may be run on draws, but for its size."""
    values, again = run.graph.values, is_drawn_with_weight(run, node)
    weight = run.weights.weight_at.get(node.index)
    table = weight is not None and facts_of(node.op).looks_up and is_constant(run, weight)
    if run.independent or (weight is not None and not again and not table):
        return False
    return again or all(values[v].kind != "parameter" or is_constant(run, v) for v in node.inputs)


def _may_be_climbed(run: Pass, node: Node) -> bool:
    """Whether a node between sources may be run on draws, with draws of the parameters that it reads but no contraction
    sums with there (centres that distances are taken to).
    """
    if can_run(run, node):
        return True
    return not (run.independent or node.index in run.weights.weight_at or is_too_large(run, node))


def is_too_large(run: Pass, node: Node) -> bool:
    """Whether a node's tensors have more elements than are drawn."""
    largest = max(LARGEST_IN_SCAN if run.scanned else 0, LARGEST_DRAWN)
    return any(math.prod(run.graph.values[value].shape) > largest for value in (*node.inputs, *node.outputs))


def is_cell_met_again(graph: Graph, node: Node) -> bool:
    """Whether a node is a recurrent layer, or a step of one, whose weights other nodes meet too.

    One draw of the weights serves all its steps, and the state of an earlier step depends on it.
    """
    if not facts_of(node.op).recurrent:
        return False
    met = [parameter for parameter in graph.parameters.values() if parameter.value in node.inputs]
    return bool(met) and all(len(set(parameter.uses)) > 1 for parameter in met)


def in_loop(run: Pass, node: Node) -> bool:
    """Whether a node belongs to a narrow loop, all of which is drawn, weights included."""
    if "loop" not in run.memo:
        weights, nodes = run.weights, run.graph.nodes
        cells = [at for at in weights.weight_at if is_cell_met_again(run.graph, nodes[at])]
        again = weights.repeated.union(cells)
        run.memo["loop"] = frozenset() if run.independent else narrow_loop(run.graph, weights.weight_at, again)
    return node.index in run.memo["loop"]


def is_drawn_with_weight(run: Pass, node: Node) -> bool:
    """Whether a node is run on draws of the weights that it meets."""
    return is_cell_met_again(run.graph, node) or in_loop(run, node)


def meets_in_loop(run: Pass, node: Node) -> bool:
    """Whether a node of a narrow loop meets a weight, other than as a recurrent layer's step."""
    return node.index in run.weights.weight_at and in_loop(run, node) and not is_cell_met_again(run.graph, node)


def nodes_into_loop(run: Pass, node: Node) -> list[Node]:
    """Return the nodes between a node of a loop and the loop's sources: inputs, results of weights met once, random
    numbers, and weights.
    """
    graph, inner, open_ = run.graph, dict[int, Node](), [*node.inputs]
    while open_:
        value = open_.pop()
        at = graph.values[value].node
        if at is None or at in inner or _is_at_hand(run, value) or at in run.weights.weight_at:
            continue
        if not (_is_origin(run, graph.nodes[at]) or is_too_large(run, graph.nodes[at])):
            inner[at] = graph.nodes[at]
            open_ += graph.nodes[at].inputs
    return [inner[at] for at in sorted(inner)]


def is_constant(run: Pass, value: int) -> bool:
    """Whether a value is the same in every draw."""
    graph = run.graph
    info = graph.values[value]
    if value in graph.known or info.kind == "buffer":
        return True
    if info.node is not None and traits(graph.nodes[info.node].op).fills:
        return True
    if not info.is_signal or (value in run.postponed and _differ(run.draws.get(value, ()))):
        return False
    state = state_of(run, value) if info.node is None else run.state(value)
    return state is not None and state.scale_parameter is None and not kernels.nonzero(state.var)


def _differ(draws: Sequence[torch.Tensor]) -> bool:
    """Whether draws differ in a finite element: their state, which takes longer, then has a variance."""
    between = dense(draws[0]) - dense(draws[-1]) if draws else torch.zeros(())
    return bool((between.isfinite() & (between != 0)).any())


def nodes_between(run: Pass, node: Node) -> list[Node] | None:
    """Return the nodes between a node and the sources of its operands, in the order of the graph; None of too many.

    Values that have draws, and constants, are sources too.
    """
    graph = run.graph
    inner: dict[int, Node] = {}
    open_ = {value for value in node.inputs if not _is_at_hand(run, value)}
    while (value := _to_climb(run, open_, len(inner))) is not None:
        at = graph.values[value].node
        assert at is not None
        inner[at] = graph.nodes[at]
        open_ = (open_ - set(inner[at].outputs)) | {v for v in inner[at].inputs if not _is_at_hand(run, v)}
        if len(inner) > MOST_CLIMBED:
            return None
    return [inner[at] for at in sorted(inner)]


def _is_at_hand(run: Pass, value: int) -> bool:
    return value in run.draws or is_constant(run, value)


def _to_climb(run: Pass, open_: set[int], climbed: int) -> int | None:
    """Return the last made of the ``open_`` values that is no source, whose node has to be run; None if all are
    sources.

    ``climbed`` is the number of nodes to be run so far.
    """
    for value in sorted(open_, key=lambda v: _place(run, v), reverse=True):
        at = run.graph.values[value].node
        if at is None or not _may_be_climbed(run, run.graph.nodes[at]) or _is_origin(run, run.graph.nodes[at]):
            continue
        if not _is_source(run, value, at, open_, climbed):
            return value
    return None


def _place(run: Pass, value: int) -> int:
    at = run.graph.values[value].node
    return -1 if at is None else at


def _is_origin(run: Pass, node: Node) -> bool:
    """Whether a node makes random numbers out of nothing."""
    return traits(node.op).random and all(is_constant(run, value) for value in node.inputs)


def _is_source(run: Pass, value: int, at: int, open_: set[int], climbed: int) -> bool:
    """Whether a value, made by the node ``at``, is drawn from its state and not computed from draws of its operands.

    It is not where it depends on earlier draws, or on other ``open_`` values, as its state does not tell how. Otherwise
    it is where draws of its state are accurate and draws of its operands' states are not; and where so many nodes were
    ``climbed`` that the search ends.
    """
    state = run.state(value)
    if not run.graph.values[value].is_signal or state is None:
        return False
    earlier = run.sources
    for other in open_:
        if other != value and _place(run, other) <= at:
            earlier |= run.dependent.get(other, 0)
    if run.dependent.get(value, 0) & earlier:
        return False
    # by its moments alone, weights of a softmax may be negative
    true_to_state = has_shape(state) and _has_no_profile(state) and _enters_by_profile(run, run.graph.nodes[at])
    true_to_state = true_to_state and not _stands_in(run, at, state)
    return climbed >= CLIMBED_FOR_SHAPE or true_to_state


def _has_no_profile(state: State) -> bool:
    """Whether no correlation of a state varies with the displacement; draws reproduce all others."""
    return all(n <= 2 or kernels.positions(n) for n in state.corr.shape)


def _enters_by_profile(run: Pass, node: Node) -> bool:
    """Whether a state with correlations by displacement enters a node."""
    entering = [run.state(value) for value in node.inputs]
    return not all(state is None or _has_no_profile(state) for state in entering)


def _stands_in(run: Pass, at: int, state: State) -> bool:
    """Whether a state, made by the node ``at``, is a Gaussian in place of a sum of few products; the sum itself may
    never be negative, as divisors of linear attention are not.
    """
    product = state.gauss and state.tag != "exact" and at not in run.weights.weight_at
    return product and is_product(run.graph.nodes[at].op) and kernels.nonzero(state.mean)


def share_sources(run: Pass, values: Iterable[int]) -> bool:
    """Whether two of some values depend on one source."""
    seen = 0
    for value in dict.fromkeys(values):
        bits = run.dependent.get(value, 0)
        if bits & seen:
            return True
        seen |= bits
    return False
