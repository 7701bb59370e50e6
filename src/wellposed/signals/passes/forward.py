"""The forward pass over a graph: from the states of inputs and parameters to those of every tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np
import torch

from wellposed.collection import paused_collection
from wellposed.errors import OptionError, RuleError
from wellposed.graphs import Graph, Node, Ref
from wellposed.graphs.operators import traits
from wellposed.limit import walked
from wellposed.signals.algebra.local_scales import average_of_scales
from wellposed.signals.algebra.similarity import similarity
from wellposed.signals.context.arguments import resolve, state_of, unmade
from wellposed.signals.context.call import Outcome, Pass
from wellposed.signals.context.parameters import Weights
from wellposed.signals.distributions.later import is_made
from wellposed.signals.distributions.spread import STEADY
from wellposed.signals.distributions.state import State
from wellposed.signals.examples import describe_inputs
from wellposed.signals.inputs import Input
from wellposed.signals.passes.application import apply_rule, follow_condition
from wellposed.signals.passes.correcting import correct
from wellposed.signals.passes.validation import entering
from wellposed.signals.registry import RULES
from wellposed.signals.sampling.drawn_nodes import last_needed
from wellposed.signals.sampling.joint_draws import forget_read
from wellposed.signals.signal import Signal, Signals
from wellposed.signals.weights.shared_weights import note_twins
from wellposed.structure.samples import samples_of
from wellposed.threads import one_thread

Assumptions = Literal["full", "independent"]


@np.errstate(all="ignore")  # the states show what is not finite
@paused_collection()
@one_thread()
@torch.no_grad()
def run_pass(
    graph: Graph,
    weights: Weights,
    *,
    inputs: Input | torch.Tensor | Mapping[str, Input | torch.Tensor] | None = None,
    state: Assumptions = "full",
    strict: bool = False,
    visit: Callable[[Pass, Node], None] | None = None,
    keep: bool = False,
    moments: bool = True,
) -> tuple[Signals, Pass]:
    """`wellposed.propagate` with a given source of weights; also returns the pass, for what it recorded.

    ``visit`` is called before each node whose signals are followed, and may change the states that enter it. With
    ``keep`` the pass holds every state to its end, in place of letting each go after its last use. Without ``moments``
    the signals tell their tags and spreads alone; what was drawn then has a state only where a rule reads it.
    """
    if state not in ("full", "independent"):
        raise OptionError(f"state is 'full' or 'independent', not {state!r}")
    if strict:
        of_signals = [node for node in graph.nodes if _has_signals(graph, node)]
        RULES.require(graph, [node for node in of_signals if not graph.known.keys() >= set(node.outputs)])
    run = Pass(graph, weights, describe_inputs(graph, inputs), independent=state == "independent", strict=strict)
    run.postpones = not (keep or moments)
    gone = last_needed(run)
    signals: list[Signal] = []
    unread: dict[int, int] = {}
    _enter(run)
    for node in walked(graph.nodes):
        if _has_signals(graph, node):
            if visit is not None:
                visit(run, node)
            _follow(run, node)
            _tell(run, node, moments, signals, unread)
        else:
            follow_condition(run, node)
        _note_sources(run, node)
        forget_read(run, node)
        letting = gone.get(node.index, ())
        _tell_spreads(run, [value for value in letting if value in unread], signals, unread)
        _let_go(run, letting, keep)
    _tell_spreads(run, list(unread), signals, unread)
    return Signals(tuple(signals), "predicted"), run


def _has_signals(graph: Graph, node: Node) -> bool:
    """Whether some result of a node is a floating-point tensor that states follow."""
    return any(graph.values[out].is_followed for out in node.outputs)


def _enter(run: Pass) -> None:
    """Make the states of inputs and of known buffers, and note what they depend on.

    Constants are made together: between the rules' arrays, PyTorch's kernels would be out of the processor's cache.
    """
    graph = run.graph
    for value in (*graph.inputs, *(value for value in graph.buffers.values() if value in graph.known)):
        given = state_of(run, value)
        run.dependent[value] = 0 if given is None else given.roots


def _let_go(run: Pass, values: Iterable[int], keep: bool) -> None:
    """Let go of the draws of values that nothing reads any more, and of their states unless these are kept."""
    for value in values:
        run.draws.pop(value, None)
        if not keep and value not in run.graph.inputs:
            run.forget(value)


def _follow(run: Pass, node: Node) -> None:
    """Keep the states of a node's results, marked with the scales that are open in them, and note how they were found.

    Raises:
        RuleError: its rule fails with an `ArithmeticError`.
    """
    try:
        results, tag, note = apply_rule(run, node)
    except ArithmeticError as error:
        raise RuleError(f"{node.name} ({node.op_name}): the rule failed with {error}; {entering(run, node)}") from error
    lost = unmade(run.graph)
    if lost and (unknown := {lost[value]: "any mask or index" for value in node.inputs if value in lost}):
        run.weights.assumed.update(unknown)
        results, tag = [None if result is None else result.amended(tag="assumed") for result in results], "assumed"
    if note or tag != "exact":
        run.outcomes.append(Outcome(node.index, tag, note))
    operand = partial(_at_scale, run)
    note_twins(run, node, results)
    for out, result in zip(node.outputs, results, strict=True):
        if out not in run.postponed:
            run.states[out] = None if result is None else run.weights.marked(out, result, operand)
    if run.weights.corrections is not None:
        correct(run, node, run.weights.corrections)


def _at_scale(run: Pass, value: int) -> State | None:
    """Return the state of an operand, multiplied by the scale that has been chosen for it, if any."""
    found = resolve(run, Ref(value))
    return found if isinstance(found, State) else state_of(run, value)


def _note_sources(run: Pass, node: Node) -> None:
    """Note the sources that a node's results depend on: those of its operands, unless a weight or a random number comes
    between, and those that its rule names.
    """
    sources, effects = 0, traits(node.op)
    if not (node.index in run.weights.weight_at or effects.random or effects.fills):
        for value in node.inputs:
            sources |= run.dependent.get(value, 0)
    for out in node.outputs:
        state = run.outline(out)
        run.dependent[out] = 0 if out in run.graph.known else sources | (0 if state is None else state.roots)


def _tell(run: Pass, node: Node, moments: bool, signals: list[Signal], unread: dict[int, int]) -> None:
    """Append the `Signal` of each of a node's results to ``signals``, with mean and variance NaN without ``moments``.

    Moments that no rule has asked for are not computed. Such values are noted in ``unread`` with their place in
    ``signals``.
    """
    for out in node.outputs:
        known, value = run.outline(out), run.graph.values[out]
        if known is None:
            continue
        mean, var, variance, alike = math.nan, math.nan, 0.0, math.nan
        if not moments and isinstance(known, State) and not is_made(known.moments):
            unread[out] = len(signals)
        elif (moments or isinstance(known, State)) and (state := run.state(out)) is not None:
            if moments:
                mean, var = state.pooled_mean, state.pooled_var
                alike = math.nan if run.independent else similarity(state, samples_of(run.graph).get(out))
            variance = variance_by_draws(state)
        elif known.spread is not STEADY and any(map(torch.Tensor.any, run.draws[out])):  # draws tell no sizes
            variance = known.spread.variance
        std = math.sqrt(variance) / math.log(2.0)
        signals.append(
            Signal(value.name, node.module, node.op_name, value.shape, mean, var, known.tag, std, similarity=alike)
        )


def variance_by_draws(state: State) -> float:
    """Return the variance of ln(second moment) over weight draws; zeros stay zeros."""
    return state.spread.variance + average_of_scales(state) if state.second_moment > 0.0 else 0.0


def _tell_spreads(run: Pass, values: Iterable[int], signals: list[Signal], unread: dict[int, int]) -> None:
    """Set `log2_std` of the ``unread`` signals whose moments some rule has asked for since; in place."""
    for value in values:
        at, state = unread.pop(value), run.state(value)
        if state is not None and is_made(state.moments):
            signals[at] = replace(signals[at], log2_std=math.sqrt(variance_by_draws(state)) / math.log(2.0))
