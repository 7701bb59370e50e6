"""Joint draws: sources are drawn from their states, and nodes are run on these draws.

The draws of a value are a list of tensors, each of the value's own shape: one for a constant, and otherwise as many as
its size allows. All values that are drawn together have draws in one order, so that the i-th draws of two values belong
to one pass of the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from wellposed.graphs import Node, Ref
from wellposed.graphs.operators import traits
from wellposed.graphs.run import call_apart
from wellposed.random_states import seeded
from wellposed.signals.context.arguments import kept_pattern, state_of
from wellposed.signals.context.call import Pass
from wellposed.signals.distributions.making import rescaled
from wellposed.signals.distributions.state import State
from wellposed.signals.integration import kernels
from wellposed.signals.sampling.codebooks import nodes_of_codebook, picks_from_codebook
from wellposed.signals.sampling.drawn_weights import LEAST_WITH_WEIGHTS, draws_weights, nodes_from_inputs
from wellposed.signals.sampling.joint_sources import in_loop, nodes_between, nodes_into_loop
from wellposed.signals.sampling.positive import as_positive
from wellposed.signals.sampling.samples import FAILURES, sample_state
from wellposed.signals.sampling.totals import totals_of
from wellposed.structure.widths import channels

Made = TypeVar("Made")
LEAST_DRAWS, MOST_DRAWS = 8, 128
"""Draws of one tensor that varies, at least and at most. Chosen for cost."""
ELEMENTS_OF_DRAWS = 1 << 18
"""Elements of all draws of one tensor, where that gives between `LEAST_DRAWS` and `MOST_DRAWS`. Chosen for cost."""


def draw_together(run: Pass, node: Node) -> bool:
    """Run a node on draws of its operands, and keep the draws of its results in ``run.draws``.

    The sources of its operands are drawn, and the nodes in between are run first. Results of a node that reads from a
    scan belong to the scan.

    Returns:
        Whether all of them could be drawn and run.
    """
    if draws_weights(run, node) and _draw_with_weights(run, node):
        return True
    if in_loop(run, node):
        run.scanned.update(node.outputs)
        return _run_together(run, node, _at_its_scales(run, nodes_into_loop(run, node), node))
    inner = nodes_of_codebook(run, node) if picks_from_codebook(run, node) else nodes_between(run, node)
    return inner is not None and _run_together(run, node, inner)


def _at_its_scales(run: Pass, inner: list[Node], node: Node) -> list[Node]:
    """Discard draws of weights whose scale has changed (those that met zeros first), and return the nodes to be run
    before ``node``.
    """
    for value in {value for each in (*inner, node) for value in each.inputs if value in run.weights.fixed}:
        name = None if (state := state_of(run, value)) is None else state.scale_parameter
        scale = None if name is None else run.weights.known_scale(name, settled=False)
        if run.memo.setdefault(("drawn at", value), scale) != scale:
            run.memo["drawn at", value] = scale
            run.draws.pop(value, None)
    return nodes_into_loop(run, node)


def _draw_with_weights(run: Pass, node: Node) -> bool:
    """Run a node, and all before it, on draws of the model's inputs and weights.

    Draws that are made on the way are discarded: made again, they are the same. They are cached for the next such node
    (`_again`).

    Returns:
        Whether all of them could be drawn and run.
    """
    inner, before = nodes_from_inputs(run, node), {*run.draws}
    run.memo["drawn now"] = {}
    made = inner is not None and _run_together(run, node, inner, LEAST_WITH_WEIGHTS)
    run.memo["drawn before"] = run.memo.pop("drawn now")
    if made:
        run.with_weights.update(node.outputs)
    for value in run.draws.keys() - before - (set(node.outputs) if made else set[int]()):
        del run.draws[value]
    return made


def _again(run: Pass, key: tuple[Any, ...], make: Callable[[], Made]) -> Made:
    """Return ``make()``, cached under ``key`` within `_draw_with_weights` and for the next node there.

    Keys name the lists of draws that a result was computed from, by identity.
    """
    if (now := run.memo.get("drawn now")) is None:
        return make()
    if key not in now:
        now[key] = run.memo.get("drawn before", {}).get(key) or make()
    made: Made = now[key]
    return made


def _run_together(run: Pass, node: Node, inner: Sequence[Node], least: int = 2) -> bool:
    """Draw, at least ``least`` times, what ``inner`` and ``node`` read from outside, and run these nodes on the draws.

    Returns:
        Whether all of them could be drawn and run.
    """
    sources = dict.fromkeys(value for each in (*inner, node) for value in each.inputs)
    made = {value for each in inner for value in each.outputs}
    count = _count(run, (*inner, node), sources, least)
    if not all(value in made or _draw(run, value, count) for value in sources):
        return False
    if not all(_run_on_draws(run, each, least) for each in inner):
        return False
    if len(set(node.inputs)) == 1 and not _drawn_as_known(run, node.inputs[0], count):
        return False
    if not _run_on_draws(run, node, least):
        return False
    for made in (run.scanned, run.with_weights):
        if not made.isdisjoint(node.inputs):
            made.update(node.outputs)
    return True


def _drawn_as_known(run: Pass, value: int, count: int) -> bool:
    """Draw a node's only operand from its own state where its second moment in joint draws is off by more than a factor
    of 2: dependent sources (f(x + h) and f(x)) were drawn as independent ones.

    Returns:
        Whether the value has draws.
    """
    outline = run.outline(value)
    if outline is None or outline.tag not in ("exact", "approximate") or (state := run.state(value)) is None:
        return True
    drawn, known = totals_of(run.draws[value]).second_moment, state.second_moment
    if not (known > 0.0 and drawn > 0.0) or abs(math.log2(drawn / known)) <= 1.0:
        return True
    del run.draws[value]
    return _draw(run, value, count)


def _count(run: Pass, nodes: Iterable[Node], sources: Iterable[int], least: int) -> int:
    """Return the number of draws to make of sources: what the largest tensor allows, and existing draws have."""
    known = [len(run.draws[value]) for value in sources if value in run.draws and len(run.draws[value]) > 1]
    return min([_affordable(run, (v for node in nodes for v in (*node.inputs, *node.outputs)), least), *known])


def _affordable(run: Pass, values: Iterable[int], least: int) -> int:
    """Return the number of joint draws of some values that memory allows, at least ``least``: the largest value
    decides, above `ELEMENTS_OF_DRAWS` elements by holding no more than `LEAST_DRAWS` draws of that many.
    """
    largest = max((math.prod(run.graph.values[value].shape) for value in values), default=1)
    if largest > ELEMENTS_OF_DRAWS and not run.scanned:
        return max(least, LEAST_DRAWS * ELEMENTS_OF_DRAWS // largest)
    return max(LEAST_DRAWS, min(MOST_DRAWS, ELEMENTS_OF_DRAWS // max(largest, 1)))


def _draw(run: Pass, value: int, count: int) -> bool:
    """Draw a value ``count`` times from its state (once if constant), and keep the draws in ``run.draws``.

    Returns:
        Whether the value is known or has a state to draw from.
    """
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
    if (kept := kept_pattern(run, value)) is not None:
        run.draws[value] = [kept]
        return True
    state = _state_to_draw(run, value)
    if state is None:
        return False
    count = count if kernels.nonzero(state.var) else 1
    generator = torch.Generator().manual_seed(value)
    made = channels(graph).get(value, ())
    within = [axis for axis, is_channel in enumerate(made) if is_channel]
    drawn = as_positive(graph, value, state)
    run.draws[value] = _again(
        run,
        (value, "drawn", count, state.pooled_mean, state.pooled_var),
        lambda: [sample_state(drawn, generator, info.dtype, within) for _ in range(count)],
    )
    run.sources |= run.dependent.get(value, state.roots)
    return True


def _state_to_draw(run: Pass, value: int) -> State | None:
    """Return the state that a value is drawn from, a weight's at its scale; None of one that has none, or none yet."""
    info = run.graph.values[value]
    state = state_of(run, value) if info.node is None else run.state(value)
    if state is None or not info.is_signal or state.scale_parameter is None:
        return state if info.is_signal else None
    scale = run.weights.known_scale(state.scale_parameter, settled=False) if info.kind == "parameter" else None
    return None if scale is None else rescaled(state, scale)


def _run_on_draws(run: Pass, node: Node, least: int = 2) -> bool:
    """Run one node on the draws of its operands, and keep those of its results.

    All draws go through the operator in one call where it takes a batch of them, and otherwise one after another.

    Returns:
        Whether it could be run, with results of the shapes that the graph tells.
    """
    columns = {value: run.draws[value] for value in dict.fromkeys(node.inputs)}
    random = traits(node.op).random
    count = min((len(column) for column in columns.values() if len(column) > 1), default=MOST_DRAWS if random else 1)
    count = min(count, _affordable(run, (*columns, *node.outputs), least))

    def make() -> tuple[Any, list[list[torch.Tensor]] | None]:
        with torch.no_grad(), seeded(node.index):
            made = None if random or count <= LEAST_DRAWS else _at_once(node, columns, count)
            made = _one_by_one(node, columns, count) if made is None else made
            for at, factor in held:
                made = made and [*made[:at], [factor * drawn for drawn in made[at]], *made[at + 1 :]]
            return columns, made

    held = [(at, run.held[out]) for at, out in enumerate(node.outputs) if out in run.held]
    values, known = run.graph.values, run.graph.known
    drawn = [id(column) for v, column in columns.items() if v not in known and values[v].kind != "buffer"]
    made = _again(run, (node.index, count, *drawn, *held), make)[1]
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
    """Make `torch.vmap` raise, inside the block, for an operator that takes no batch, not loop with a warning.

    PyTorch has no public switch for that loop. Yields whether the loop could be switched off.
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
            made = torch.vmap(lambda *drawn: tuple(results_of(node, dict(zip(columns, drawn, strict=True)))))(*stacked)
        except FAILURES:
            return None
    return [list(each.unbind()) for each in made]


def _one_by_one(node: Node, columns: dict[int, list[torch.Tensor]], count: int) -> list[list[torch.Tensor]] | None:
    """Run a node on each draw; None where it fails on one."""
    try:
        rows = [results_of(node, {value: c[at % len(c)] for value, c in columns.items()}) for at in range(count)]
    except FAILURES:
        return None
    return [list(column) for column in zip(*rows, strict=True)]


def results_of(node: Node, env: dict[int, torch.Tensor]) -> list[torch.Tensor]:
    """Return those results of a node that the graph has values for, for one draw of each value it reads (``env``)."""
    args = [_bound(a, env) for a in node.args]
    made = call_apart(node.op, args, {key: _bound(a, env) for key, a in node.kwargs.items()})
    return list(made)[: len(node.outputs)]


def _bound(arg: Any, env: dict[int, torch.Tensor]) -> Any:
    """Return an argument with tensors in place of references, all on the CPU."""
    if isinstance(arg, Ref):
        return env[arg.value]
    if type(arg) in (list, tuple):
        return type(arg)([_bound(item, env) for item in arg])
    return torch.device("cpu") if isinstance(arg, torch.device) else arg


def forget_read(run: Pass, node: Node) -> None:
    """Discard the draws of a scan's values that no later node reads, once all results computed from them have draws."""
    graph, users = run.graph, run.graph.users()
    for value in run.scanned.intersection(node.inputs):
        readers = users[value]
        if readers[-1] == node.index and all(run.drawn.issuperset(graph.nodes[at].outputs) for at in readers):
            run.draws.pop(value, None)
