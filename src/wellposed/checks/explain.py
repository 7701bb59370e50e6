"""Why a node is off: its rule run on the prediction, and on what real passes show of the states that enter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from wellposed.checks.check import trial, verdict_on
from wellposed.checks.explained import Explained
from wellposed.checks.explanation import Explanation
from wellposed.checks.observed import Observed, observe
from wellposed.errors import InputError, OptionError, near_matches
from wellposed.graphs import Graph, Node, graph_of
from wellposed.measuring.batches import Batches, Inputs
from wellposed.operators.contraction import contractions
from wellposed.operators.scale_parameters import parameter_values
from wellposed.options import check_not_negative
from wellposed.plans import Plan
from wellposed.signals.passes.forward import run_pass
from wellposed.signals.signal import Signals
from wellposed.signals.weights.prescribed import PrescribedWeights
from wellposed.surroundings import settled


@settled()
def explain(
    model: nn.Module | Graph,
    node: str | None = None,
    *args: Any,
    plan: Plan | None = None,
    draws: int = 8,
    tolerance: float | None = None,
    inputs: Inputs = None,
    seed: int = 0,
    training: bool = True,
    **kwargs: Any,
) -> Explanation:
    """Explain one node of a model: what enters and leaves it, and whether its error was made there or came in.

    The node's rule runs twice: on the predicted states, and on states whose moments, correlations and dependence are
    those of the real tensors that entered it. Where the second is right and the first is not, the error came in; where
    both are wrong, the rule or what it assumes is at fault.

    Args:
        model: the model, or its graph (which was made with ``args``, ``kwargs`` and ``training`` of its own).
        node: its name, or that of one of its results, as `wellposed.check` and reports show it; None takes the first
            whose signal `wellposed.check` finds off, or the one nearest to it.
        *args: example inputs.
        plan: how the weights are drawn, anew for every pass; None takes the model's current weights.
        draws: number of real passes, >= 2: the same as those of `wellposed.check` with these arguments.
        tolerance: octaves; by default that of the prediction's tag (`wellposed.checks.TOLERANCE`).
        inputs: as for `wellposed.measure`.
        seed: of weights, inputs and random operators.
        training: the mode to trace in.
        **kwargs: example inputs by keyword.

    Raises:
        OptionError: fewer than 2 draws, a tolerance that is not a number >= 0, or a node that is no name.
        InputError: a node that the graph does not have, or that makes no floating-point signal; inputs that do not fit
            the graph.
        PlanError: parameters without values (a model on meta) that the plan does not draw.
    """
    if draws < 2:
        raise OptionError(f"an explanation needs at least 2 draws to know its own error, got {draws}")
    if tolerance is not None:
        check_not_negative(tolerance=tolerance)
    check_name(node)
    graph = graph_of(model, args, kwargs, training)
    source = Batches(graph, inputs, seed)
    if node is None:
        verdict = trial(graph, source, plan, seed, tolerance).verdict(draws)
        chosen = verdict.first or verdict.worst
        if chosen is None:
            raise InputError(f"{graph.model} makes no floating-point signal: there is nothing to explain")
        node = chosen.name
    asked, given = node_named(graph, node), list(source.take(range(draws)))
    return explain_nodes(graph, [asked], plan, given, source.description(given), seed, tolerance)[0]


def check_name(node: object) -> None:
    """Raise `OptionError` for inputs in the place of a node's name."""
    if node is not None and not isinstance(node, str):
        raise OptionError(
            f"node is a name, or None for the first node that is off, received {type(node).__name__}: inputs come "
            "after it, explain(model, None, x)"
        )


def node_named(graph: Graph, name: str) -> Node:
    """Return the node of a name, or the one that makes the value of that name.

    Raises:
        InputError: there is none, with the nearest names, or it makes no floating-point signal.
    """
    makers = {graph.values[value].name: node for node in graph.nodes for value in node.outputs}
    node = makers.get(name)
    if node is None:
        known = [n.name for n in graph.nodes if any(graph.values[v].is_signal for v in n.outputs)]
        raise InputError(f"the graph of {graph.model} has no node {name!r}{near_matches(name, known)}")
    if not any(graph.values[value].is_signal for value in node.outputs):
        readers = [graph.nodes[i].name for value in node.outputs for i in graph.users().get(value, [])]
        hint = f"; explain a node that reads it: {', '.join(map(repr, readers[:3]))}" if readers else ""
        raise InputError(
            f"node {name!r} ({node.op_name}) of {graph.model} makes no floating-point signal, so that there is no "
            f"prediction for it{hint}"
        )
    return node


def explain_nodes(
    graph: Graph,
    nodes: Sequence[Node],
    plan: Plan | None,
    given: Sequence[Mapping[int, Tensor]],
    descriptors: Any,
    seed: int,
    tolerance: float | None = None,
) -> list[Explanation]:
    """Return what `explain` does for several nodes, from one prediction and the same real passes for all of them.

    Args:
        graph: the graph.
        nodes: its nodes.
        plan: how the weights are drawn; None keeps the model's.
        given: the inputs of each pass, by value id.
        descriptors: what is known of the inputs.
        seed: of weights and random operators.
        tolerance: as for `explain`.
    """
    weights = PrescribedWeights.of(graph, plan)
    predicted, prediction = run_pass(graph, weights, inputs=descriptors, keep=True)
    uses, fixed = contractions(graph), parameter_values(graph)
    seen = [Observed(prediction, node) for node in nodes]
    observe(graph, seen, plan, given, seed)
    short = replace(graph, nodes=graph.nodes[: 1 + max((node.index for node in nodes), default=-1)], outputs=())
    names = {name for of_node in seen for name in of_node.names()}
    compared = verdict_on(
        short,
        Signals(tuple(signal for signal in predicted if signal.name in names)),
        Signals(tuple(signal for of_node in seen for signal in of_node.leaving())),
        given, plan, seed, tolerance,
    ).comparisons  # fmt: skip
    explanations = []
    for node, of_node in zip(nodes, seen, strict=True):
        mine = [item for item in compared if item.name in of_node.names()]
        explanations.append(Explained(prediction, node, plan, of_node, uses, fixed, tolerance).explanation(mine))
        of_node.tensors.clear()
    return explanations
