"""A look at what real passes show of a prediction, with the scatter of weights that are the same in all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from wellposed.graphs import Graph
from wellposed.measuring.comparison import Comparison
from wellposed.measuring.matching import Matched, matched
from wellposed.measuring.measure import one_set_of, passes, shuffling
from wellposed.plans import Plan
from wellposed.signals import Signals


def look(
    graph: Graph,
    predicted: Signals,
    measured: Signals,
    given: Sequence[Mapping[int, Tensor]],
    plan: Plan | None,
    seed: int,
    tolerance: float | None = None,
    cotangents: Mapping[int, float] | None = None,
    earlier: Sequence[Comparison] | None = None,
    first: int = 0,
) -> Matched:
    """Hold a prediction against a measurement.

    One set of weights does not show how far it may be from the mean over all. Where something is in doubt under the
    model's own weights, or a plan keeps some, as many passes are made with these in random order, whose scatter then
    counts wherever signals depend on them.

    Args:
        graph: what was predicted and measured.
        predicted: the one side.
        measured: the other.
        given: the inputs of each pass, by value id.
        plan: how the weights were drawn for every pass, None for the model's own.
        seed: of the measurement.
        tolerance: as for `matched`.
        cotangents: what the measured backward passes started from.
        earlier: the comparisons on earlier passes, which left something in doubt.
        first: how many these were.
    """
    ask = partial(
        matched, predicted, measured, draws=len(given), weight_draws=1 if plan is None else len(given),
        tolerance=tolerance, graph=graph, earlier=earlier,
    )  # fmt: skip
    found = ask()
    doubted = [one for one in found.comparisons if one.doubted]
    reached = {graph.values[value].name for value in one_set_of(graph, plan)} if doubted else set()
    if any(one.name in reached or one.direction == "backward" for one in doubted):
        asked = asked_of(doubted, cotangents)
        scatter = passes(graph, given, shuffling(graph, plan, seed), seed, asked, first)
        found = ask(scatter=replace(scatter, items=tuple(signal for signal in scatter if signal.name in reached)))
    return found


def asked_of(doubted: Iterable[Comparison], cotangents: Mapping[int, float] | None) -> Mapping[int, float] | None:
    """Return what further passes run back from: nothing where no gradient is in doubt, as that takes most of a pass."""
    return cotangents if any(item.direction == "backward" for item in doubted) else None
