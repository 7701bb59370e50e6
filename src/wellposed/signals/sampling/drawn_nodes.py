"""Drawn nodes: which nodes of a graph are run on draws, and how long states and draws are kept for them."""

from __future__ import annotations

import math

import numpy as np

from wellposed.graphs import Graph, Node
from wellposed.graphs.graph import once
from wellposed.operators.facts import ANY, facts_of
from wellposed.operators.product import is_product
from wellposed.operators.scores import logits_before_shift
from wellposed.operators.views import is_copy
from wellposed.signals.context.call import Pass
from wellposed.signals.distributions.alignment import align
from wellposed.signals.distributions.repeats import REPEATED
from wellposed.signals.integration import kernels
from wellposed.signals.registry import RULES
from wellposed.signals.sampling.codebooks import picks_from_codebook
from wellposed.signals.sampling.drawn_weights import is_power_of_input, meets_itself, picks_near
from wellposed.signals.sampling.joint_sources import (
    CLIMBED_FOR_SHAPE,
    LARGEST_IN_SCAN,
    could_run,
    in_loop,
    is_cell_met_again,
    is_constant,
    is_drawn_with_weight,
    is_too_large,
    share_sources,
)
from wellposed.signals.sampling.met_products import is_of_products, meets_its_sum
from wellposed.structure.bounds import bounds
from wellposed.structure.reach import derivatives
from wellposed.structure.tables import tied_readouts

CANCELLING_MEANS = 0.1
"""Product of two means, relative to the larger second moment, above which they cancel in a difference. Chosen."""


def is_drawn(run: Pass, node: Node) -> bool:
    """Whether a node is run on draws. May add its results to ``run.scanned`` (scans), or the node to ``run.too_large``.

    A softmax is not, unless the logits were drawn before a number of each query was subtracted. Others are, where they
    can be, if they choose among signals, pick or mask signals by indices or conditions found among them, subtract
    signals whose covariance no link gives, weigh or multiply signals of one source, take a second derivative, read
    values with draws, or are a step of a recurrent layer or of a narrow loop.
    """
    first = node.index not in _undrawn(run.graph) or (run.weights.repeated and facts_of(node.op).multiplies)
    may = bool(first or not run.drawn.isdisjoint(node.inputs))
    return in_loop(run, node) or (may and not _adds_undrawn(run, node) and _asked(run, node))


def _asked(run: Pass, node: Node) -> bool:
    """Whether `is_drawn` holds for a node that can be run on draws."""
    logits = logits_before_shift(run.graph).get(node.index)
    if logits is not None and logits not in run.drawn and run.scanned.isdisjoint(node.inputs):
        return False
    if picks_from_codebook(run, node):
        return True
    # conditions that ask for no moments come first
    asked = is_cell_met_again(run.graph, node) or _chooses(run, node) or _goes_along(run, node)
    apart = not asked and (_selects(run, node) or _cancels(run, node))
    if not (asked or apart or _meets_itself(run, node)) or not could_run(run, node):
        return False
    if large := is_too_large(run, node):
        run.too_large += [node.index] * (apart and node.index < run.last_weight)
    return not large


@once
def _undrawn(graph: Graph) -> frozenset[int]:
    """Return the indices of the nodes that are run on draws only if they read draws: most operators."""
    return frozenset([node.index for node in graph.nodes if not _may_be_first(graph, node)])


def _may_be_first(graph: Graph, node: Node) -> bool:
    """Whether `is_drawn` may hold for a node that reads no draws."""
    facts, values = facts_of(node.op), graph.values
    if facts.segments or facts.chooses or facts.subtracts or _is_running_sum(node) or _is_extreme(node):
        return True
    if is_product(node.op) or _has_outer_shape(graph, node) or node.index in derivatives(graph):
        return True
    if _adds_joined(graph, node):
        return True
    return is_cell_met_again(graph, node) or any(not values[_uncast(graph, v)].is_signal for v in node.inputs)


def _chooses(run: Pass, node: Node) -> bool:
    """Whether a node's result has no closed form, and is likely to meet its operands again; notes scans in ``run``."""
    if facts_of(node.op).segments:  # a maximum for each name: softmax over segments
        return node.args[4] in ("amax", "amin") and all(v in run.graph.known for v in node.inputs[:2])
    if _is_decay(run, node) or _is_running_extreme(run, node):
        run.scanned.update(node.outputs)
    elif not facts_of(node.op).chooses:
        return False
    return bool(run.dependent.get(node.inputs[0], 0))


def _is_decay(run: Pass, node: Node) -> bool:
    """Whether a node begins a scan that can be drawn: a running sum of logarithms of decays, never positive."""
    graph = run.graph
    if not _is_running_sum(node) or bounds(graph).get(node.inputs[0], ANY).sign != -1:
        return False
    open_ = list(node.outputs)
    while open_:  # down to the decays themselves, which may be one for each pair of times
        value = open_.pop()
        if math.prod(graph.values[value].shape) > LARGEST_IN_SCAN:
            return False
        for reader in (graph.nodes[at] for at in graph.users().get(value, ())):
            facts = facts_of(reader.op)
            if reader.op.is_view or facts.merges == "choice" or facts.subtracts:
                open_ += reader.outputs
    return True


def _is_running_extreme(run: Pass, node: Node) -> bool:
    """Whether a node begins a scan that keeps its numbers in range by a running maximum (minimum): it takes the larger
    of one position of a tensor and of a value that other positions of this tensor made.

    Everything that is divided by exp of this maximum depends on it.
    """
    if not _is_extreme(node) or not share_sources(run, node.inputs):
        return False
    makers = [run.graph.values[_uncast(run.graph, value)].node for value in node.inputs]
    views = [run.graph.nodes[at] for at in makers if at is not None and run.graph.nodes[at].op.is_view]
    return len(views) < len(makers) and any(_is_position(run, view) for view in views)


def _is_running_sum(node: Node) -> bool:
    """Whether a node sums up to each place of an axis."""
    facts = facts_of(node.op)
    return facts.along == "sum" and facts.extent == "running"


def _is_extreme(node: Node) -> bool:
    """Whether a node takes the larger or the smaller of two tensors' elements in each place."""
    facts = facts_of(node.op)
    return facts.elementwise and facts.picks == "order"


def _is_position(run: Pass, node: Node) -> bool:
    """Whether a view is one position of an axis."""
    before, after = (run.graph.values[value].shape for value in (node.inputs[0], node.outputs[0]))
    return len(after) < len(before) and math.prod(after) < math.prod(before)


def _adds_undrawn(run: Pass, node: Node) -> bool:
    """Whether a node adds undrawn signals at indexed places (results of experts for their tokens): its rule follows how
    such sums vary from token to token.
    """
    facts, values = facts_of(node.op), run.graph.values
    if not (facts.adds and facts.merges == "scatter"):
        return False
    signals = [value for value in node.inputs if values[value].is_signal]
    return run.drawn.isdisjoint(signals) and any(_is_of_weight(run, value) for value in signals)


def _is_of_weight(run: Pass, value: int) -> bool:
    """Whether a value is a contraction's result, or a concatenation or a multiple of such, and no pick from one."""
    for _ in range(CLIMBED_FOR_SHAPE):
        at = run.graph.values[value].node
        if at is None or facts_of(run.graph.nodes[at].op).indexed:
            return False
        if at in run.weights.weight_at:
            return True
        undrawn = [v for v in run.graph.nodes[at].inputs if v not in run.drawn and not is_constant(run, v)]
        if not undrawn:
            return False
        value = undrawn[0]
    return False


def _selects(run: Pass, node: Node) -> bool:
    """Whether a node picks or masks signals by indices or conditions that depend on the same signals."""
    values = run.graph.values
    chosen = [v for v in node.inputs if not values[_uncast(run.graph, v)].is_signal and run.dependent.get(v, 0)]
    if not chosen or not share_sources(run, node.inputs):
        return False
    states = [run.state(v) for v in node.inputs]
    bases = {state.gaussian_source()[0].serial for state in states if state is not None and kernels.nonzero(state.var)}
    return len(bases) != 1 or facts_of(node.op).indexed


def _weighs_by_products(run: Pass, node: Node) -> bool:
    """Whether a node weighs signals by products of signals (scores without a softmax) of the same source, whose
    correlations differ by pair: rules follow one such product, not two. Adds scans to ``run.scanned``.
    """
    if not is_product(node.op) or not share_sources(run, node.inputs):
        return False
    if not any(is_of_products(run, value) for value in node.inputs):
        return False
    states = [run.state(value) for value in node.inputs]
    if not any(state is not None and any(map(kernels.positions, state.corr.shape)) for state in states):
        return False
    run.scanned.update(node.outputs)
    return True


def _is_outer(run: Pass, node: Node) -> bool:
    """Whether a node multiplies every position of a signal with every one of another that depends on the same source
    (keys with keys, channel by channel): no state tells the pairs on the diagonal from the others.
    """
    return (
        _has_outer_shape(run.graph, node)
        and share_sources(run, node.inputs)
        and not any(is_constant(run, value) for value in node.inputs)
    )


def _meets_itself(run: Pass, node: Node) -> bool:
    """Whether a node multiplies signals of one source in a way that no rule follows; adds scans to ``run.scanned``."""
    ways = (
        _is_put_back,
        _weighs_by_products,
        _is_outer,
        _bends_again,
        meets_its_sum,
        meets_itself,
        is_power_of_input,
        picks_near,
    )
    return any(way(run, node) for way in ways)


def _is_put_back(run: Pass, node: Node) -> bool:
    """Whether a node adds a signal to a tensor assembled from its own parts at other places (even and odd positions,
    each corrected by the other), which no link connects to it.
    """
    if not _adds_joined(run.graph, node) or not share_sources(run, node.inputs):
        return False
    x, y = (run.state(value) for value in node.inputs)
    if x is None or y is None or x.blocks or y.blocks or x.roots & y.roots <= REPEATED:
        return False
    p, q, _ = align(x, y)
    return p.dims is None or q.dims is None or run.dependence.between(x, y, p.dims, q.dims) is None


def _adds_joined(graph: Graph, node: Node) -> bool:
    """Whether a node adds two tensors, one of which was assembled from several."""
    facts = facts_of(node.op)
    adds = len(node.inputs) == 2 and facts.elementwise and len(facts.terms) == 2
    return adds and any(_is_joined(graph, value) for value in node.inputs)


def _is_joined(graph: Graph, value: int) -> bool:
    """Whether a value is a concatenation, the result of writes, or a view of one."""
    for _ in range(CLIMBED_FOR_SHAPE):
        at = graph.values[value].node
        if at is None:
            return False
        node = graph.nodes[at]
        if facts_of(node.op).merges in ("cat", "stack", "write"):
            return True
        if not node.op.is_view:
            return False
        value = node.inputs[0]
    return False


def _bends_again(run: Pass, node: Node) -> bool:
    """Whether a node of a second derivative multiplies by a function of a signal what another function of this signal
    has multiplied before: tanh(z) and 1 - tanh(z)² of the derivatives of tanh(z), with what a weight makes beside them.
    """
    if node.index not in derivatives(run.graph) or len(node.inputs) != 2 or not facts_of(node.op).elementwise:
        return False
    first, second = (_elements_of(run, value) for value in node.inputs)
    return not first.isdisjoint(second) and len(first | second) > 2


def _elements_of(run: Pass, value: int) -> set[int]:
    """Return the value ids that a value depends on element by element, itself included; constants left out."""
    found, todo = set[int](), [value]
    while todo and len(found) < CLIMBED_FOR_SHAPE:
        at = todo.pop()
        index = run.graph.values[at].node
        if is_constant(run, at):
            continue
        found.add(at)
        if index is not None and facts_of(run.graph.nodes[index].op).elementwise:
            todo += run.graph.nodes[index].inputs
    return found


def _has_outer_shape(graph: Graph, node: Node) -> bool:
    """Whether a node multiplies two tensors each of which is broadcast along an axis of the other."""
    if not facts_of(node.op).multiplies or len(node.inputs) != 2:
        return False
    first, second = (graph.values[value].shape for value in node.inputs)
    pairs = list(zip(reversed(first), reversed(second), strict=False))
    return any(n == 1 < m for n, m in pairs) and any(m == 1 < n for n, m in pairs)


def _cancels(run: Pass, node: Node) -> bool:
    """Whether a node takes the difference of two signals whose means cancel, and which depend on one source, where no
    link between them tells a covariance: both are even in the source, as (sum x)² and sum x² are.
    """
    if not facts_of(node.op).subtracts or not share_sources(run, node.inputs):
        return False
    states = [run.state(value) for value in node.inputs]
    if len(states) != 2 or (x := states[0]) is None or (y := states[1]) is None or x.roots & y.roots <= REPEATED:
        return False
    alike = x.pooled_mean * y.pooled_mean > CANCELLING_MEANS * max(x.second_moment, y.second_moment)
    if not alike or x.gauss or y.gauss:
        return False
    p, q, _ = align(x, y)
    if p.dims is None or q.dims is None:
        return False
    found = run.dependence.between(x, y, p.dims, q.dims)
    scale = math.sqrt(kernels.average(x.var) * kernels.average(y.var))
    return scale > 0.0 and (found is None or float(np.abs(found).max()) < 1e-6 * scale)


def _uncast(graph: Graph, value: int) -> int:
    """Return the value id behind casts."""
    at = graph.values[value].node
    while at is not None and is_copy(graph.nodes[at].op):
        value = graph.nodes[at].inputs[0]
        at = graph.values[value].node
    return value


def _goes_along(run: Pass, node: Node) -> bool:
    """Whether a node reads values with draws, and otherwise only constants or values of the same sources.

    Where no weight follows (losses), and in a scan, it may read other signals too.
    """
    if run.drawn.isdisjoint(node.inputs):
        return False
    if node.index > run.last_weight or not run.scanned.isdisjoint(node.inputs):
        return True
    together = 0
    for value in node.inputs:
        if value in run.draws:
            together |= run.dependent.get(value, 0)
    return all(
        value in run.draws or is_constant(run, value) or run.dependent.get(value, 0) & together for value in node.inputs
    )


def last_needed(run: Pass) -> dict[int, list[int]]:
    """Return, by node index, the values whose states and draws no later node may need.

    The last node that may need a value is the last that reads it, or that may be run on draws together with it. A value
    that nothing reads is needed by its own node alone, and an output of the graph to the end.
    """
    ends = frozenset(run.graph.outputs)
    last = {out: node.index for node in run.graph.nodes for out in node.outputs if out not in ends}
    last |= {value: node.index for node in run.graph.nodes for value in node.inputs}
    last |= {value: max(at, last[value]) for at, value in logits_before_shift(run.graph).items()}
    tied = tied_readouts(run.graph).items()
    last |= {value: max(at, last[value]) for at, rows in tied for value in rows if value in last}
    if not run.independent:
        for value, at in _last_drawn(run).items():
            last[value] = max(last[value], at)
    gone: dict[int, list[int]] = {}
    for value, at in last.items():
        gone.setdefault(at, []).append(value)
    return gone


def _last_drawn(run: Pass) -> dict[int, int]:
    """Return, by value id, the index of the last node that may be run on draws together with the value."""
    graph = run.graph
    weighted = {at for at in run.weights.weight_at if not is_drawn_with_weight(run, graph.nodes[at])}
    may: set[int] = set()  # values that may have draws
    for node in graph.nodes:
        if node.index not in weighted and (
            not may.isdisjoint(node.inputs) or in_loop(run, node) or _may_start(run, node)
        ):
            may.update(node.outputs)
    needed: dict[int, int] = {}
    for node in reversed(graph.nodes):
        if node.index in weighted:
            continue
        until = max((needed.get(out, -1) for out in node.outputs), default=-1)
        if until < 0 and not may.isdisjoint(node.outputs):
            until = node.index
        for value in node.inputs:
            needed[value] = max(needed.get(value, -1), until)
    return needed


def _may_start(run: Pass, node: Node) -> bool:
    """Whether a node may be run on draws although nothing that it reads has any; `is_drawn` decides it with states."""
    rule, facts = RULES.get(node.op), facts_of(node.op)
    if rule is None or rule.tag == "sampled" or facts.chooses or facts.indexed or _is_running_sum(node):
        return True
    values = run.graph.values
    if any(not values[v].is_signal and v not in run.graph.known and values[v].node is not None for v in node.inputs):
        return True
    if _has_outer_shape(run.graph, node):
        return True
    several = len(node.inputs) > 1
    differs = (facts.subtracts, -1.0 in facts.powers, node.index in derivatives(run.graph))
    return several and (_adds_joined(run.graph, node) or any(differs) or _is_extreme(node) or is_product(node.op))
