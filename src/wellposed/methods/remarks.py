"""What a plan warns of after the pass that chose its scales."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from operator import attrgetter

from wellposed.errors import joined
from wellposed.graphs import Graph
from wellposed.methods.prescribing import words_on_doubt
from wellposed.methods.roles import op_of
from wellposed.signals import Signals
from wellposed.signals.context.call import Pass
from wellposed.signals.weights.planned import PlannedWeights
from wellposed.structure.reach import behind, depending

APART = 2.0
"""Ratio of the second moments of a weight's outputs at its uses from which on a plan warns. Chosen."""
UNSTEADY = 3.0
"""Predicted standard deviation of a second moment over weight draws, in octaves, from which a plan warns."""


def remarks_on(
    graph: Graph,
    weights: PlannedWeights,
    run: Pass,
    signals: Signals,
    given: Collection[str],
    without: Sequence[str],
) -> Iterator[str]:
    """Yield the warnings of a plan.

    Args:
        graph: from `wellposed.trace`.
        weights: those that chose their scales in the pass.
        run: the pass.
        signals: of it.
        given: the weights whose scales were not chosen in it.
        without: the weights that meet nothing but zeros, also once gates that start closed have opened.
    """
    yield from _zeros_met(graph, weights, without)
    yield from _doubted(graph, weights)
    yield from _uses_apart(graph, weights, given)
    yield from _assumptions(graph, run)
    yield from _uncontrolled(graph, weights, signals)


def unsteady(signals: Signals) -> list[str]:
    """Return the names of signals whose second moment is predicted to vary too much between weight draws."""
    return [signal.name for signal in signals if signal.log2_std > UNSTEADY and signal.tag != "heavy"]


def _zeros_met(graph: Graph, weights: PlannedWeights, names: Sequence[str]) -> tuple[str, ...]:
    """Return a warning that names the weights that meet nothing but zeros, or none."""
    if not names:
        return ()
    listed = joined((f"{name!r} at {op_of(graph.nodes[weights.unmet[name]])}" for name in names), separator="; ")
    zeros = _zeros_before(graph, [weights.unmet[name] for name in names])
    why = (
        f"The example holds nothing but zeros in {joined(map(repr, zeros))}, which counts as it is: give one that lets "
        "signals through"
        if zeros
        else "Zero constants, or norms of one element, are before them; zero_signal='error' raises an error there"
    )
    return (f"weights that meet a signal of zeros, whose variance is ν / fan-in: {listed}. {why}",)


def _doubted(graph: Graph, weights: PlannedWeights) -> tuple[str, ...]:
    """Return a warning that names the weights whose signal did not choose their scale, or none."""
    if not weights.doubts:
        return ()
    listed = joined((f"{name!r} ({words_on_doubt(graph, weights, name)})" for name in weights.doubts), separator="; ")
    return (
        f"weights whose scale no signal tells, so that their variance is ν / fan-in: {listed}. A norm, a bounded "
        "function or a constant factor before them makes signals that do; strict=True raises an error there",
    )


def _zeros_before(graph: Graph, nodes: Sequence[int]) -> list[str]:
    """Return the inputs whose example is taken as it is and is 0, and which all of some nodes depend on."""
    found = []
    for value in graph.inputs:
        if value in graph.known and not bool(graph.known[value].any()):
            reached = behind(graph, {value})
            if all(not reached.isdisjoint(graph.nodes[index].inputs) for index in nodes):
                found.append(graph.values[value].name)
    return found


def _uses_apart(graph: Graph, weights: PlannedWeights, given: Collection[str]) -> Iterator[str]:
    """Yield warnings that name weights whose outputs differ between their uses by more than `APART`. For weights that
    met zeros first, whose scale is for the last use, the uses after that are compared.
    """
    for uses_of, rest in ((weights.again.met, "these ask for in the mean"), (weights.again.later, "the last asks for")):
        told = []
        for name, met in uses_of.items():
            uses = [use for use in met.values() if not _makes_a_weight(graph, weights, use.node, name)]
            low, high = (end(uses or met.values(), key=attrgetter("after")) for end in (min, max))
            if name not in given and high.after > APART * low.after:
                at = (f"{use.after:.3g} at {graph.nodes[use.node].name}" for use in (low, high))
                told.append(f"{name!r} at {len(uses)} uses, with E[x²] of its output from {' to '.join(at)}")
        if told:
            yield (
                f"weights that meet signals of different size at their uses, and have the scale that {rest}: "
                f"{joined(told, 3, '; ', room=120)}. A weight for each use, a norm before it, or a state that starts "
                "at the size of later ones would bring all of them to the target"
            )


def _makes_a_weight(graph: Graph, weights: PlannedWeights, node: int, name: str) -> bool:
    """Whether a node computes, from a weight and constants, the weight of another contraction (keys of relative
    positions, which queries meet).
    """
    others = [use.weight for use in weights.uses if use.parameter == name and use.node != node]
    return not behind(graph, graph.nodes[node].outputs).isdisjoint(others)


def _assumptions(graph: Graph, run: Pass) -> Iterator[str]:
    """Yield warnings of what the pass took for granted: operators without a rule, values of parameters on meta."""
    without = [o for o in run.outcomes if o.tag == "assumed" and o.note and not o.failed and o.node < run.last_weight]
    ops = Counter(graph.nodes[o.node].op_name for o in without)
    if ops:
        listed = ", ".join(f"{op} ({count})" for op, count in ops.most_common(8))
        yield f"operators without a rule, assumed to leave the signal unchanged: {listed}"
    if run.too_large:
        yield (
            f"{len(run.too_large)} operators are too large to be run on draws of operands that depend on one another, "
            f"the first {op_of(graph.nodes[run.too_large[0]])}, so that these count as independent: an example of "
            "fewer samples plans the same model without that"
        )
    failed = [f"{op_of(graph.nodes[o.node])}: {o.note}" for o in run.outcomes if o.failed]
    if failed:
        yield f"a rule of wellposed failed, which should not be; please report it: {joined(failed, separator='; ')}"
    if run.weights.assumed:
        taken = (f"{name!r} ({value})" for name, value in run.weights.assumed.items())
        yield (
            f"on the meta device, and made again by no method of the model, so that values are assumed: {joined(taken)}"
        )


def _uncontrolled(graph: Graph, weights: PlannedWeights, signals: Signals) -> Iterator[str]:
    """Yield warnings of signals that no scale controls: without an expectation, or unsteady between weight draws, where
    some meet a weight or are the first output, before any norm or bounded function.
    """
    ends = {graph.values[value].name for value in (*(use.data for use in weights.uses), *graph.outputs[:1])}
    heavy = [signal.name for signal in signals if signal.tag == "heavy"]
    if not ends.isdisjoint(heavy):
        yield (
            f"no expectation means anything at {len(heavy)} of {len(signals)} signals, first at {heavy[0]}: the second "
            "moment is infinite, or rests on elements that hardly a batch has; a norm or a bounded function ends that"
        )
    drawn = {graph.values[value].name for value in depending(graph, weights.decisions.keys() & graph.parameters.keys())}
    names = [name for name in unsteady(signals) if name in drawn]
    if not ends.isdisjoint(names):
        yield (
            f"{len(names)} of {len(signals)} signals vary by more than {UNSTEADY:g} octaves between weight "
            f"draws, first at {names[0]}: no initial scale controls the variance there; normalisation or "
            "scaled residual branches do"
        )
