"""Rehearsal: a plan is tried on real passes before it is given, and what these contradict is corrected.

Rules tell what operators make of what they know. Where signals have something in common that no rule follows, the plan
would rest on a wrong number without a word. A pass or two of a small model cost less than its plan does, and show it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from wellposed.errors import InputError, PlanError, RuleError, RunError, UnsupportedError
from wellposed.graphs import Graph
from wellposed.measuring.batches import Batches
from wellposed.measuring.comparison import TOLERANCE, Comparison, log2_ratio
from wellposed.measuring.look import look
from wellposed.measuring.measure import drawing, passes
from wellposed.operators.contraction import contractions
from wellposed.operators.product import is_product
from wellposed.operators.scale_parameters import parameter_values
from wellposed.plans import Plan
from wellposed.signals import Signals, propagate
from wellposed.signals.context.corrections import OCTAVE, Correction
from wellposed.signals.distributions.state import State
from wellposed.signals.examples import Described
from wellposed.signals.passes.forward import run_pass, variance_by_draws
from wellposed.signals.signal import Signal
from wellposed.signals.weights.prescribed import PrescribedWeights

FEW, MORE = 2, 16
"""Passes of a first look, and fresh ones that decide on every plan after it left something in doubt. Chosen."""
ROUNDS = 5
"""Most plans that are held against passes, each made with what those of the one before showed. Chosen for cost."""
SEED = 0x5EED0
"""Of all that is drawn for it, far from the seeds that users give: a check looks at other draws. Chosen."""
CHEAP, DEAR = 1e9, 2e10
"""Most work of one pass, in multiplications, of a model that is rehearsed unasked: of one that rules follow
throughout, and of one in which something is drawn or assumed, which foretells most faults. Chosen: 20 ms, 0.5 s."""
UNCERTAIN = ("sampled", "assumed", "heavy")
"""Tags of what is drawn or assumed."""
OF_ELEMENT, OF_DRAW = 20.0, 250.0
"""Work of an element that is made, and of a weight that is drawn, in multiplications. Chosen, as measured."""
SCATTERED = 2.0
"""Spread between draws, in octaves, beyond which few passes tell nothing of a prediction, and more do not tell what a
second moment is. Chosen."""
DOUBT = 3.0
"""Standard deviations between draws by which a first look may be off beside the tolerance. Chosen."""
ENOUGH, TIGHT = 0.8, 0.5
"""Shares of a check's tolerance: beyond the one, a plan is made again; what is beyond the other then, is corrected. The
draws of a check are others, which may find as much as chance makes of it. Chosen."""
UNABLE = (InputError, PlanError, RuleError, RunError, UnsupportedError, torch.OutOfMemoryError)
"""Why a model cannot be run on draws, or followed with corrections: it is on meta, or sharded, or does not fit."""


def work_of(graph: Graph) -> float:
    """Return about how many multiplications one pass with drawn weights takes."""
    sizes = [math.prod(value.shape) for value in graph.values]
    fans = {use.node: use.fan_in for use in contractions(graph)}
    drawn = sum(math.prod(parameter.shape) for parameter in graph.parameters.values())
    total = OF_DRAW * drawn
    for node in graph.nodes:
        made = sum(sizes[out] for out in node.outputs)
        total += OF_ELEMENT * made
        if node.index in fans:
            total += float(made) * fans[node.index]
        elif is_product(node.op):
            total += math.sqrt(float(made) * math.prod(float(sizes[value]) for value in node.inputs[:2]))
    return total


def is_worth_it(graph: Graph, plan: Plan) -> bool:
    """Whether passes of a graph are cheap beside what they may show of a plan."""
    return work_of(graph) <= (DEAR if any(plan.coverage.get(tag) for tag in UNCERTAIN) else CHEAP)


class Rehearsal:
    """Real passes of one graph, which plans are held against.

    Args:
        graph: from `wellposed.trace`.
        inputs: what is known of the inputs, as the method was told.
    """

    def __init__(self, graph: Graph, inputs: Described = None) -> None:
        self._graph, self._inputs = graph, inputs
        self._given: list[Mapping[int, Tensor]] = []
        self._fixed: set[str] = {graph.values[value].name for value in parameter_values(graph)}
        self.passes = 0

    def contradicted(self, plan: Plan, known: Mapping[str, Correction]) -> dict[str, Correction] | None:
        """Return the corrections by name with which a plan expects what real passes of it show; None where it does.

        Args:
            plan: how the weights are drawn, with the corrections that are ``known``.
            known: those, by name.

        Raises:
            InputError, PlanError, RunError, UnsupportedError: the graph cannot be run on draws.
        """
        predicted = propagate(self._graph, inputs=self._inputs, weights=plan)
        predicted = replace(predicted, items=tuple(one for one in predicted if one.name not in self._fixed))
        if not self.passes and not self._doubts(predicted, self._measured(plan, 0, FEW)):
            return None
        given, measured = self._batches(FEW, MORE), self._measured(plan, FEW, MORE)
        found = look(self._graph, predicted, measured, given, plan, SEED, first=FEW)
        if not any(one.spread_off or _held(one, ENOUGH).off for one in found.comparisons):
            return None
        weights = PrescribedWeights.of(self._graph, plan)
        weights.corrections = correcting = _Correcting(found.comparisons, measured, known)
        run_pass(self._graph, weights, inputs=self._inputs)
        return correcting.found

    def _batches(self, first: int, count: int) -> Sequence[Mapping[int, Tensor]]:
        """Return the inputs of some passes."""
        if len(self._given) < first + count:
            self._given += Batches(self._graph, self._inputs, SEED).take(range(len(self._given), first + count))
        return self._given[first : first + count]

    def _measured(self, plan: Plan, first: int, count: int) -> Signals:
        """Return what some passes show, under weights drawn from a plan."""
        self.passes += count
        with torch.no_grad():
            return passes(self._graph, self._batches(first, count), drawing(self._graph, plan, SEED), SEED, first=first)

    def _doubts(self, predicted: Signals, measured: Signals) -> bool:
        """Whether few passes are far from what was expected of one of their signals."""
        seen = {signal.name: signal for signal in measured}
        for told in predicted:
            shown = seen.get(told.name)
            if shown is None or told.tag == "heavy":
                continue
            scatter = told.log2_std if shown.log2_std > 0.0 else 0.0  # what weights do not reach is alike in all passes
            allowed = ENOUGH * TOLERANCE[told.tag] + DOUBT * scatter / math.sqrt(FEW)
            off = not abs(log2_ratio(told.second_moment, shown.second_moment)) <= allowed
            if off or told.log2_std > SCATTERED:
                return True
        return False


class _Correcting:
    """Corrections that are found while a pass runs: each value's by what passes showed of it, given those before it.

    Args:
        comparisons: of the values, without these corrections.
        measured: what the passes showed.
        known: corrections that were found earlier.
    """

    def __init__(self, comparisons: Sequence[Comparison], measured: Signals, known: Mapping[str, Correction]) -> None:
        self._held = {one.name: _held(one, TIGHT) for one in comparisons if one.direction == "forward"}
        self._shown = {signal.name: signal for signal in measured}
        self._known = known
        self.found: dict[str, Correction] = {}

    def of(self, name: str, state: State) -> Correction | None:
        """Return how a value of some name differs from its rule's state; None where it does not."""
        known, held, shown = self._known.get(name), self._held.get(name), self._shown.get(name)
        if held is not None and shown is not None and state.tag != "heavy":
            expected, spread = state.second_moment, math.sqrt(variance_by_draws(state)) / OCTAVE
            if known is not None:
                spread = spread if known.spread is None else known.spread
                expected = known.mean**2 + known.var if known.octaves is None else expected * 2.0**known.octaves
            one = replace(held, predicted=expected, error=log2_ratio(expected, held.measured), spread=spread)
            if (new := _correction(one, shown)) is not None:
                known = new.after(known)
        if known is not None:
            self.found[name] = known
        return known


def _held(one: Comparison, share: float) -> Comparison:
    """Return a comparison that allows a share of its tolerance, at least that of exact rules, beside chance."""
    tolerance = max(share * one.tolerance, min(TOLERANCE["exact"], one.tolerance))
    return replace(one, tolerance=tolerance, allowed=one.allowed - one.tolerance + tolerance)


def _correction(one: Comparison, shown: Signal) -> Correction | None:
    """Return what a comparison says of the rule behind it; None where that is nothing."""
    if not math.isfinite(shown.second_moment) or math.isnan(one.error):
        return None
    spread = round(shown.log2_std, 2) if one.spread_off and math.isfinite(shown.log2_std) else None
    # what scatters too much is decided by the largest of the passes alone
    wrong = one.off and shown.log2_std <= SCATTERED
    octaves = (round(-one.error, 2) if math.isfinite(one.error) else None) if wrong else 0.0
    mean, var = (float(f"{level:.4g}") for level in (shown.mean, shown.var))
    return None if octaves == 0.0 and spread is None else Correction(octaves, mean, var, spread)
