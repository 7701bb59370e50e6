"""Draws of signals that go through several operators together: what no rule knows, with all that it depends on.

The operands of an operator that is run on samples may depend on one another ((a - mu)² / σ² where a was drawn with that
mu and σ, p log p, an index that was found among the very values that it picks). They are drawn together: one climbs
from them to signals that are independent of one another and of a known distribution, draws these, and runs every
operator in between on the same draws. What is made of the results alone, or with what they depend on, goes along.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.special import ndtr

from wellposed.graphs import Graph, Node, Ref
from wellposed.graphs.operators import traits
from wellposed.graphs.run import call, dense
from wellposed.operators.facts import ANY, facts_of
from wellposed.operators.product import is_product
from wellposed.operators.views import is_copy
from wellposed.random_states import seeded
from wellposed.signals.context.arguments import is_mask, known_state, state_of
from wellposed.signals.context.call import Drawn, Pass
from wellposed.signals.distributions.alignment import align
from wellposed.signals.distributions.dependence import REPEATED
from wellposed.signals.distributions.spread import STEADY, Spread, mean_spread, source
from wellposed.signals.distributions.state import Marginal, State, make_state, new_serial
from wellposed.signals.integration import kernels
from wellposed.signals.integration.gaussian import NODES
from wellposed.signals.integration.transport import Postponed, Transport, standardised
from wellposed.signals.registry import RULES
from wellposed.signals.sampling.samples import sample_state, state_of_samples
from wellposed.signals.sampling.totals import Totals, totals_of
from wellposed.signals.signal import Tag
from wellposed.structure.bounds import bounds
from wellposed.structure.widths import channels

LARGEST = 1 << 18
"""Most elements of a tensor that is drawn together with others."""
WIDEST = 1 << 21
"""Most elements of one in a scan, which may hold the decays of all pairs of times."""
SHOWN = 4096
"""Elements of draws that tell the shape of their distribution."""
SMALL = 1 << 14
"""Most elements of a signal that is drawn for what follows a choice to meet."""
LEAST, MOST = 8, 128
"""Draws of one tensor."""
ELEMENTS = 1 << 18
"""Elements that the draws of one tensor have in all, where that is between `LEAST` and `MOST` draws."""
NEAR, FARTHEST = 16, 96
"""Operators that are climbed past for the shape of a distribution, and for what signals have in common."""
ALIKE = 0.1
"""Product of two means, relative to the larger second moment, from which on they cancel in a difference."""
FAILURES = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError)
"""What an operator raises on draws that it does not take."""


def draw_together(run: Pass, node: Node) -> bool:
    """Run a node on draws of what enters it and keep those of its results; False where it cannot be run."""
    inner = _between(run, node)
    if inner is None:
        return False
    sources = dict.fromkeys(value for each in (*inner, node) for value in each.inputs)
    made = {value for each in inner for value in each.outputs}
    count = _count(run, (*inner, node), sources)
    if not all(value in made or _draw(run, value, count) for value in sources):
        return False
    if not all(_run_on_draws(run, each) for each in (*inner, node)):
        return False
    if not run.scanned.isdisjoint(node.inputs):
        run.scanned.update(node.outputs)
    return True


def states_of_draws(run: Pass, node: Node) -> list[State | None]:
    """Return what the draws of a node's results tell of them: nothing of indices, and of what is postponed not yet."""
    results: list[State | None] = []
    entering, heavy, spread = 0, False, _spread_of(run, node)
    if facts_of(node.op).segments:
        run.segmented = node.args[1]
    for value in node.inputs:
        entering |= run.dependent.get(value, 0)
        state = run.outline(value)
        heavy |= value not in run.drawn and state is not None and state.tag == "heavy"
    for out in node.outputs:
        info = run.graph.values[out]
        if not (info.is_signal or info.dtype == torch.bool):
            results.append(None)
            continue
        found = _known(run, out, entering, heavy, spread)
        if isinstance(found, Drawn):
            run.postponed[out] = found
        results.append(found if isinstance(found, State) else None)
    run.drawn.update(node.outputs)
    return results


def _known(run: Pass, out: int, entering: int, heavy: bool, spread: Spread) -> State | Drawn:
    """Return what the draws of a value tell of it: its state, or what is known before anything asks for that."""
    draws, is_signal = [dense(draw) for draw in run.draws[out]], run.graph.values[out].is_signal
    tag: Tag = "sampled"
    totals = totals_of(draws)
    if heavy or totals.heavy:
        tag = "heavy" if is_signal else "assumed"
    roots = run.root() | entering
    if out in run.scanned:
        spread = _spread_among(run, totals)
        if _stays_drawn(run, out):
            mean = totals.mean
            var = max(totals.second_moment - mean * mean, 0.0)
            return make_state(draws[0].shape, mean, var, tag=tag, roots=roots, spread=spread)
    make = partial(_state_of, draws, roots, run.segmented, is_signal, tag, spread, new_serial())
    if not run.postpones or (draws[0].is_floating_point() and is_mask(draws[0])):
        return make()
    return Drawn(tag, roots, spread, make)


def _shape_of(values: torch.Tensor) -> Transport:
    """Return the shape of the marginal that values show."""
    ordered = values[torch.isfinite(values)].double().sort().values.numpy()
    if not (ordered.size and ordered[0] < ordered[-1]):
        return standardised(NODES)
    return standardised(np.interp(ndtr(NODES), (np.arange(len(ordered)) + 0.5) / len(ordered), ordered))


def _spread_of(run: Pass, node: Node) -> Spread:
    """Return the spread of elements of what a node reads, or of sums of two: draws have that of one state."""
    facts = facts_of(node.op)
    found = facts.picks in ("index", "order") or facts.pads or facts.joins or facts.segments
    if not found and len(facts.terms) < 2:
        return STEADY
    if all((known := run.outline(value)) is None or known.spread is STEADY for value in node.inputs):
        return STEADY
    states = [state for value in node.inputs if (state := run.state(value)) is not None]
    total = sum(state.second_moment for state in states)
    return mean_spread((state.second_moment / total, state.spread) for state in states) if total > 0.0 else STEADY


def _spread_among(run: Pass, totals: Totals) -> Spread:
    """Return the spread that the draws of a scan show: what its decays share goes through all of it."""
    if totals.infinite or min(totals.squares) <= 0.0:
        return STEADY
    logs = [math.log(square) for square in totals.squares]
    return Spread(inherited=source(run.dependence.source(), float(np.var(logs, ddof=1)) if len(logs) > 1 else 0.0))


def is_drawn(run: Pass, node: Node) -> bool:
    """Whether a node is run on draws: it chooses among its signals, picks or masks by what it found among them, takes
    a difference of what it does not know to be alike, or works on results that were drawn.
    """
    # what asks for no moments comes first
    either = _chooses(run, node) or _goes_along(run, node) or _selects(run, node) or _cancels(run, node)
    return (either or _weighs_by_products(run, node) or _is_outer(run, node)) and can_run(run, node)


def _chooses(run: Pass, node: Node) -> bool:
    """Whether a node's result has no closed form, and is likely to meet again what it was made of."""
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
    while open_:  # up to the decays themselves, which may be one for each pair of times
        value = open_.pop()
        if math.prod(graph.values[value].shape) > WIDEST:
            return False
        for reader in (graph.nodes[at] for at in graph.users().get(value, ())):
            facts = facts_of(reader.op)
            if reader.op.is_view or facts.merges == "choice" or facts.subtracts:
                open_ += reader.outputs
    return True


def _is_running_extreme(run: Pass, node: Node) -> bool:
    """Whether a node begins a scan that keeps its numbers in range by a running maximum (minimum), which all that is
    divided by exp of it depends on: of one position of a tensor and of what others of its positions made.
    """
    if not _is_extreme(node) or not share_sources(run, node.inputs):
        return False
    makers = [run.graph.values[_uncast(run, value)].node for value in node.inputs]
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


def _selects(run: Pass, node: Node) -> bool:
    """Whether a node picks or masks signals by indices or conditions that depend on the same signals."""
    values = run.graph.values
    chosen = [v for v in node.inputs if not values[_uncast(run, v)].is_signal and run.dependent.get(v, 0)]
    if not chosen or not share_sources(run, node.inputs):
        return False
    states = [run.state(v) for v in node.inputs]
    bases = {state.gaussian_source()[0].serial for state in states if state is not None and kernels.nonzero(state.var)}
    return len(bases) != 1 or facts_of(node.op).indexed


def _weighs_by_products(run: Pass, node: Node) -> bool:
    """Whether a node sums what products of the same source weigh (scores without a softmax), where how much positions
    have in common differs by pair: no rule for products follows that through two of them.
    """
    if not is_product(node.op) or not share_sources(run, node.inputs):
        return False
    if not any(_is_of_products(run, value) for value in node.inputs):
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
        and not any(_constant(run, value) for value in node.inputs)
    )


def _has_outer_shape(graph: Graph, node: Node) -> bool:
    """Whether a node is a product of two tensors each of which is broadcast along an axis of the other."""
    if not facts_of(node.op).multiplies or len(node.inputs) != 2:
        return False
    first, second = (graph.values[value].shape for value in node.inputs)
    pairs = list(zip(reversed(first), reversed(second), strict=False))
    return any(n == 1 < m for n, m in pairs) and any(m == 1 < n for n, m in pairs)


def _is_of_products(run: Pass, value: int) -> bool:
    """Whether a value is a product of two signals, but for views of it and known numbers."""
    for _ in range(NEAR):
        at = run.graph.values[value].node
        if at is None or at in run.weights.weight_at:
            return False
        node = run.graph.nodes[at]
        signals = [v for v in node.inputs if not _constant(run, v)]
        if is_product(node.op):
            return len(signals) > 1
        if len(signals) != 1 or not (node.op.is_view or is_copy(node.op) or facts_of(node.op).powers):
            return False
        value = signals[0]
    return False


def _cancels(run: Pass, node: Node) -> bool:
    """Whether a node takes the difference of two signals whose means cancel, and which depend on one source without any
    covariance that the links between them tell of, being even in it: (sum x)² and sum x² of elements of uneven sizes.
    """
    if not facts_of(node.op).subtracts or not share_sources(run, node.inputs):
        return False
    states = [run.state(value) for value in node.inputs]
    if len(states) != 2 or (x := states[0]) is None or (y := states[1]) is None or x.roots & y.roots <= REPEATED:
        return False
    alike = x.pooled_mean * y.pooled_mean > ALIKE * max(x.second_moment, y.second_moment)
    if not alike or x.gauss or y.gauss:
        return False
    p, q, _ = align(x, y)
    if p.dims is None or q.dims is None:
        return False
    found = run.dependence.between(x, y, p.dims, q.dims)
    scale = math.sqrt(kernels.average(x.var) * kernels.average(y.var))
    return scale > 0.0 and (found is None or float(np.abs(found).max()) < 1e-6 * scale)


def _uncast(run: Pass, value: int) -> int:
    """Return the value that one is a copy of in another type."""
    at = run.graph.values[value].node
    while at is not None and is_copy(run.graph.nodes[at].op):
        value = run.graph.nodes[at].inputs[0]
        at = run.graph.values[value].node
    return value


def _goes_along(run: Pass, node: Node) -> bool:
    """Whether a node works on results that were drawn, and otherwise on what these depend on, or on constants.

    Where no weight follows (losses), and in a scan, it may meet other signals too.
    """
    if run.drawn.isdisjoint(node.inputs):
        return False
    if node.index > run.last_weight or not run.scanned.isdisjoint(node.inputs):
        return True
    together = 0
    for value in node.inputs:
        if value in run.draws:
            together |= run.dependent.get(value, 0)
        elif math.prod(run.graph.values[value].shape) > SMALL and not _constant(run, value):
            return False  # experts' outputs, which their weights have made all but independent of what chose them
    return all(
        value in run.draws or _constant(run, value) or run.dependent.get(value, 0) & together for value in node.inputs
    )


def can_run(run: Pass, node: Node) -> bool:
    """Whether a node may be run on draws: it is small, and meets no weight whose scale or draw counts."""
    values = run.graph.values
    if node.index in run.weights.weight_at or run.independent:
        return False
    largest = WIDEST if run.scanned else LARGEST
    if any(math.prod(values[value].shape) > largest for value in (*node.inputs, *node.outputs)):
        return False
    return all(values[v].kind != "parameter" or _constant(run, v) for v in node.inputs)


def share_sources(run: Pass, values: Iterable[int]) -> bool:
    """Whether two of some values depend on one source."""
    seen = 0
    for value in dict.fromkeys(values):
        bits = run.dependent.get(value, 0)
        if bits & seen:
            return True
        seen |= bits
    return False


def _between(run: Pass, node: Node) -> list[Node] | None:
    """Return the nodes to run before ``node``, in their order, so that all is drawn from independent signals."""
    graph = run.graph
    inner: dict[int, Node] = {}
    open_ = {value for value in node.inputs if not _at_hand(run, value)}
    while (value := _to_climb(run, open_, len(inner))) is not None:
        at = graph.values[value].node
        assert at is not None
        inner[at] = graph.nodes[at]
        open_ = (open_ - set(inner[at].outputs)) | {v for v in inner[at].inputs if not _at_hand(run, v)}
        if len(inner) > FARTHEST:
            return None
    return [inner[at] for at in sorted(inner)]


def _to_climb(run: Pass, open_: set[int], climbed: int) -> int | None:
    """Return the value that is made last among those that are not to be drawn as they are."""
    values = run.graph.values
    for value in sorted(open_, key=lambda v: _place(run, v), reverse=True):
        at = values[value].node
        if at is None or not can_run(run, run.graph.nodes[at]) or _is_origin(run, run.graph.nodes[at]):
            continue
        state = run.state(value)
        if not values[value].is_signal or state is None:
            return value
        earlier = run.sources
        for other in open_:
            if other != value and _place(run, other) <= at:
                earlier |= run.dependent.get(other, 0)
        if run.dependent.get(value, 0) & earlier:
            return value
        stop = _has_shape(state) and _is_drawn_well(state) and _has_profiles(run, run.graph.nodes[at])
        stop = stop and not _stands_in(run, at, state)
        if climbed < NEAR and not stop:
            return value
    return None


def _place(run: Pass, value: int) -> int:
    at = run.graph.values[value].node
    return -1 if at is None else at


def _is_origin(run: Pass, node: Node) -> bool:
    """Whether a node makes random numbers out of nothing."""
    return traits(node.op).random and all(_constant(run, value) for value in node.inputs)


def _has_shape(state: State) -> bool:
    """Whether draws of a state have its distribution; by its moments alone, weights of a softmax may be negative."""
    return state.gauss or state.fn is not None or state.transport is not None


def _stands_in(run: Pass, at: int, state: State) -> bool:
    """Whether a state is the Gaussian in whose place few products of signals are, and that these may never be negative
    (linear attention divides by sums of positive keys).
    """
    product = state.gauss and state.tag != "exact" and at not in run.weights.weight_at
    return product and is_product(run.graph.nodes[at].op) and kernels.nonzero(state.mean)


def _is_drawn_well(state: State) -> bool:
    """Whether draws of a state are true to its correlations: none that vary with the displacement."""
    return all(n <= 2 or kernels.positions(n) for n in state.corr.shape)


def _has_profiles(run: Pass, node: Node) -> bool:
    entering = [run.state(value) for value in node.inputs]
    return not all(state is None or _is_drawn_well(state) for state in entering)


def _at_hand(run: Pass, value: int) -> bool:
    return value in run.draws or _constant(run, value)


def _constant(run: Pass, value: int) -> bool:
    """Whether a value is the same in every draw."""
    graph = run.graph
    info = graph.values[value]
    if value in graph.known or info.kind == "buffer":
        return True
    if info.node is not None and traits(graph.nodes[info.node].op).fills:
        return True
    state = state_of(run, value) if info.is_signal and info.node is None else run.state(value)
    return state is not None and info.is_signal and state.scale_parameter is None and not kernels.nonzero(state.var)


def _count(run: Pass, nodes: Iterable[Node], sources: Iterable[int]) -> int:
    """Return how many draws to make: by size, and no more than there are of what is at hand."""
    known = [len(run.draws[value]) for value in sources if value in run.draws and len(run.draws[value]) > 1]
    return min([_affordable(run, (v for node in nodes for v in (*node.inputs, *node.outputs))), *known])


def _affordable(run: Pass, values: Iterable[int]) -> int:
    """Return how many draws of some values are made at most."""
    largest = max((math.prod(run.graph.values[value].shape) for value in values), default=1)
    return max(LEAST, min(MOST, ELEMENTS // max(largest, 1)))


def _draw(run: Pass, value: int, count: int) -> bool:
    """Draw a value from its state, once where it is constant; False where nothing tells its distribution."""
    if value in run.draws:
        return True
    graph, info = run.graph, run.graph.values[value]
    if value in graph.known:
        run.draws[value] = [graph.known[value]]
        return True
    tensor = graph.buffer_tensors.get(info.name) if info.kind == "buffer" else None
    if tensor is not None and not tensor.is_meta:
        run.draws[value] = [tensor.detach()]
        return True
    state = state_of(run, value) if info.node is None else run.state(value)
    if state is None or not info.is_signal or state.scale_parameter is not None:
        return False
    count = count if kernels.nonzero(state.var) else 1
    generator = torch.Generator().manual_seed(value)
    made = channels(graph).get(value, ())
    within = [i for axis, is_channel in zip(state.axes, made, strict=False) if is_channel for i in axis]
    run.draws[value] = [sample_state(state, generator, info.dtype, within) for _ in range(count)]
    run.sources |= run.dependent.get(value, state.roots)
    return True


def _run_on_draws(run: Pass, node: Node) -> bool:
    columns = {value: run.draws[value] for value in dict.fromkeys(node.inputs)}
    random = traits(node.op).random
    count = min((len(column) for column in columns.values() if len(column) > 1), default=MOST if random else 1)
    count = min(count, _affordable(run, (*columns, *node.outputs)))
    with torch.no_grad(), seeded(node.index):
        made = None if random or count <= LEAST else _at_once(node, columns, count)
        if made is None:
            made = _one_by_one(node, columns, count)
    if made is None or any(
        tuple(draw.shape) != run.graph.values[out].shape
        for out, column in zip(node.outputs, made, strict=True)
        for draw in column
    ):
        return False
    run.draws.update(zip(node.outputs, made, strict=True))
    return True


@contextmanager
def _not_looping() -> Iterator[bool]:
    """Let `torch.vmap` raise, in the block, where an operator takes no batch; torch has no public switch for it.

    Where it is on, it loops over such operators, and warns of it. The block is given whether it could be put off.
    """
    looping, loop = (getattr(torch._C._functorch, f"_{verb}_vmap_fallback_enabled", None) for verb in ("is", "set"))
    if looping is None or loop is None:
        yield False
        return
    before = looping()
    try:
        loop(False)
        yield True
    finally:
        loop(before)


def _at_once(node: Node, columns: dict[int, list[torch.Tensor]], count: int) -> list[list[torch.Tensor]] | None:
    """Run a node on all draws in one call; None where its operator does not take a batch of arguments."""
    with _not_looping() as known:
        if not known:
            return None
        try:
            stacked = [
                torch.stack(column[:count]) if len(column) > 1 else column[0].expand(count, *column[0].shape)
                for column in columns.values()
            ]
            made = torch.vmap(lambda *drawn: tuple(_result(node, dict(zip(columns, drawn, strict=True)))))(*stacked)
        except FAILURES:
            return None
    return [list(each.unbind()) for each in made]


def _one_by_one(node: Node, columns: dict[int, list[torch.Tensor]], count: int) -> list[list[torch.Tensor]] | None:
    """Run a node on each draw; None where it fails on one."""
    try:
        rows = [_result(node, {value: c[at % len(c)] for value, c in columns.items()}) for at in range(count)]
    except FAILURES:
        return None
    return [list(column) for column in zip(*rows, strict=True)]


def _result(node: Node, env: dict[int, torch.Tensor]) -> list[torch.Tensor]:
    """Return a node's results; some operators give more than the graph has uses for."""
    args = [_bound(a, env) for a in node.args]
    made = call(node.op, args, {key: _bound(a, env) for key, a in node.kwargs.items()})
    return list(made)[: len(node.outputs)]


def _state_of(
    draws: list[torch.Tensor], root: int, pairs: int | None, is_signal: bool, tag: Tag, spread: Spread, serial: int
) -> State:
    """Return the state of a value's draws; where it is a mask to be added to scores, one draw stands for all."""
    if draws[0].is_floating_point() and is_mask(draws[0]):
        state = known_state(draws[0], root)
    else:
        state = state_of_samples(draws, root, pairs=pairs)
    shape = state.marginal
    if is_signal and kernels.nonzero(state.var) and state.mask is None:
        few = [draw.ravel()[:: max(draw.numel() * len(draws) // SHOWN, 1)] for draw in draws]
        shape = Marginal(transport=Postponed(partial(_shape_of, torch.cat(few))))
    return replace(state, spread=spread, tag=tag, marginal=shape, serial=serial)


def _stays_drawn(run: Pass, value: int) -> bool:
    """Whether all that reads a value of a scan is run on its draws, so that no rule asks for its correlations."""
    readers = run.graph.users().get(value, ())
    return bool(readers) and all(can_run(run, run.graph.nodes[at]) for at in readers)


def forget_read(run: Pass, node: Node) -> None:
    """Let go of the draws of a scan that a node was the last to read: what was made of them has draws of its own."""
    graph, users = run.graph, run.graph.users()
    for value in run.scanned.intersection(node.inputs):
        readers = users[value]
        if readers[-1] == node.index and all(run.drawn.issuperset(graph.nodes[at].outputs) for at in readers):
            run.draws.pop(value, None)


def _bound(arg: Any, env: dict[int, torch.Tensor]) -> Any:
    """Return an argument with tensors in the place of references, all on the CPU."""
    if isinstance(arg, Ref):
        return env[arg.value]
    if type(arg) in (list, tuple):
        return type(arg)([_bound(item, env) for item in arg])
    return torch.device("cpu") if isinstance(arg, torch.device) else arg


def last_needed(run: Pass) -> dict[int, list[int]]:
    """Return, by node index, the values whose state and draws no node after that one may need.

    That is the last one that reads them, or that may be run on draws together with them; of what nothing reads, the one
    that makes it, but for the graph's outputs.
    """
    ends = frozenset(run.graph.outputs)
    last = {out: node.index for node in run.graph.nodes for out in node.outputs if out not in ends}
    last |= {value: node.index for node in run.graph.nodes for value in node.inputs}
    if not run.independent:
        for value, at in _last_drawn(run).items():
            last[value] = max(last[value], at)
    gone: dict[int, list[int]] = {}
    for value, at in last.items():
        gone.setdefault(at, []).append(value)
    return gone


def _last_drawn(run: Pass) -> dict[int, int]:
    """Return the index of the last node that may be run on draws together with each value that is read."""
    graph, weighted = run.graph, run.weights.weight_at
    may: set[int] = set()  # values that may be drawn
    for node in graph.nodes:
        if node.index not in weighted and (not may.isdisjoint(node.inputs) or _may_start(run, node)):
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
    """Whether a node may be the first that is run on draws."""
    rule, facts = RULES.get(node.op), facts_of(node.op)
    if rule is None or rule.tag == "sampled" or facts.chooses or facts.indexed or _is_running_sum(node):
        return True
    values = run.graph.values
    if any(not values[v].is_signal and v not in run.graph.known and values[v].node is not None for v in node.inputs):
        return True
    if _has_outer_shape(run.graph, node):
        return True
    differs = facts.subtracts or -1.0 in facts.powers
    return (differs or _is_extreme(node) or is_product(node.op)) and len(node.inputs) > 1
