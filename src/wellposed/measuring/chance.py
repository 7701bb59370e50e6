"""What chance alone does to a comparison beside the scatter between passes: random masks of few elements, rounding."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from wellposed.graphs import Graph, Node
from wellposed.graphs.operators import traits
from wellposed.measuring.intervals import ERROR_RATE
from wellposed.operators.facts import facts_of
from wellposed.operators.norms import NORMS
from wellposed.operators.schema import named_arguments
from wellposed.operators.views import is_copy
from wellposed.signals.integration.special import ndtri
from wellposed.signals.signal import Signal

ROUNDING = 1e-12
"""Share of the second moment of what an operator reads below which its result is rounding. Chosen: single precision has
24 bits, and sums lose some."""
_MANY = 10_000
"""Elements from which on a binomial count is normal."""


class Share(NamedTuple):
    """How far a random mask's share of ones goes by chance, in octaves: below what is expected, and above."""

    below: float
    above: float


STEADY = Share(0.0, 0.0)
"""The share of no random mask."""


def shares(graph: Graph, predicted: Mapping[str, Signal], draws: int) -> dict[str, Share]:
    """Return by name how far what random masks let through differs from the expected share by chance alone.

    Whole samples that are dropped (stochastic depth) are so few that all of them may be kept in every pass, which then
    show no scatter at all. The number of ones is binomial; its interval is that of the masks, and of what they are
    multiplied with.

    Args:
        graph: what was predicted.
        predicted: its signals by name.
        draws: passes that were measured.
    """
    found: dict[int, Share] = {}
    random: dict[int, int] = {}
    named: dict[str, Share] = {}
    for node in graph.nodes:
        elements = _drawn(graph, node, random)
        masking = _passes_masks_on(node)
        for out in node.outputs:
            name = graph.values[out].name
            signal = predicted.get(name)
            parts = [found[i] for i in node.inputs if i in found] if masking else []
            if elements:
                random[out] = elements
            if elements and signal is not None and _is_mask(signal):
                found[out] = named[name] = _binomial(signal.mean, elements * draws)
            elif parts:
                found[out] = named[name] = Share(sum(p.below for p in parts), sum(p.above for p in parts))
    return named


def _passes_masks_on(node: Node) -> bool:
    """Whether the share of ones in a mask that a node reads is the share of the signal behind it."""
    facts = facts_of(node.op)
    return node.op.is_view or is_copy(node.op) or bool(facts.powers) or facts.merges == "choice"


def _drawn(graph: Graph, node: Node, random: Mapping[int, int]) -> int:
    """Return how many random numbers a node's result is made of; 0 of a result that depends on anything else."""
    kind = traits(node.op)
    given = [i for i in node.inputs if i not in graph.known]
    if kind.random and (kind.fills or kind.factory or not given):
        return max((math.prod(graph.values[out].shape) for out in node.outputs), default=0)
    return 0 if kind.random else min((random.get(i, 0) for i in given), default=0)


def _is_mask(signal: Signal) -> bool:
    """Whether a signal is 0 or 1, as its moments tell."""
    return 0.0 < signal.mean < 1.0 and math.isclose(signal.mean, signal.second_moment, rel_tol=1e-9)


def _binomial(expected: float, elements: int) -> Share:
    """Return how far the share of ones among so many elements may lie from the one expected, in octaves."""
    if elements > _MANY:
        reach = float(ndtri(1.0 - ERROR_RATE / 2)) * math.sqrt((1.0 - expected) / (expected * elements)) / math.log(2.0)
        return Share(reach, reach)
    from scipy import special  # slow to import

    counts = np.arange(elements + 1)
    at_most = special.bdtr(counts, elements, expected)
    least = int(np.searchsorted(at_most, ERROR_RATE / 2))
    most = int(np.searchsorted(at_most, 1.0 - ERROR_RATE / 2))
    below = math.log2(expected * elements / least) if least else math.inf
    return Share(below, math.log2(most / (expected * elements)))


def without_rounding(
    graph: Graph, predicted: Mapping[str, Signal], measured: Mapping[str, Signal]
) -> dict[str, Signal]:
    """Return measurements in which second moments of rounding are as predicted, where that is rounding too or 0."""
    result = dict(measured)
    rounded: dict[int, float] = {}
    for node in graph.nodes:
        level = _level_before(graph, node, measured, rounded)
        for out in node.outputs:
            name = graph.values[out].name
            told, seen = predicted.get(name), measured.get(name)
            least = ROUNDING * level if _cancels(node) else 0.0
            if told is None or seen is None or told.second_moment > least:
                if parts := [rounded[i] for i in node.inputs if i in rounded]:
                    rounded[out] = max(parts)  # a concatenation may be split again
            elif 0.0 < seen.second_moment <= ROUNDING * level:
                rounded[out] = level
                second = told.second_moment
                log2_mean = math.log2(second) if second else -math.inf
                result[name] = replace(seen, mean=told.mean, var=told.var, log2_mean=log2_mean, log2_error=0.0)
    return result


def _cancels(node: Node) -> bool:
    """Whether a node adds up what it reads, so that little may be left of much: a mean of what has none."""
    facts = facts_of(node.op)
    return facts.along == "sum" or len(facts.terms) > 1


def _level_before(graph: Graph, node: Node, measured: Mapping[str, Signal], rounded: Mapping[int, float]) -> float:
    """Return the second moment of which a node's result may be the rounding: the largest that it reads, or what that is
    the rounding of.
    """
    named = ((i, measured.get(graph.values[i].name)) for i in node.inputs)
    level = max((rounded.get(i, signal.second_moment) for i, signal in named if signal is not None), default=0.0)
    for i in node.inputs if level == 0.0 else ():
        values = graph.parameters[graph.values[i].name].values if graph.values[i].kind == "parameter" else None
        if values is not None and values.numel():
            level = max(level, float(values.detach().abs().double().square().mean()))
    if node.op in NORMS:  # of equal numbers it returns the rounding of their differences over √ε
        level /= max(float(named_arguments(node).get("eps") or 1.0), ROUNDING)
    return level
