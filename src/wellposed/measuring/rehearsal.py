"""Rehearsal: a plan is tried on real passes before it is given, and what these contradict is corrected.

Rules tell what operators make of what they know. Where signals have something in common that no rule follows, the plan
would rest on a wrong number without a word. A pass or two of a small model cost less than its plan does, and show it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
from pydantic import JsonValue
from torch import Tensor

from wellposed.errors import InputError, PlanError, RunError, UnsupportedError
from wellposed.graphs import Graph, Node
from wellposed.graphs.graph import once
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
from wellposed.threads import one_thread

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
OF_PAIRS = ("attention", "cdist")
OF_MATRICES = ("linalg_inv", "linalg_solve", "linalg_svd", "linalg_eig", "linalg_qr", "linalg_lu", "matrix_exp")
"""Words in the names of operators that take each row with each, and that work on whole matrices."""
SCATTERED = 1.0
"""Spread between draws, in octaves, beyond which few passes tell nothing of a prediction, and more do not tell what a
second moment is: most show less than the mean, which rare ones make. Chosen."""
DOUBT = 3.0
"""Standard deviations between draws by which a first look may be off beside the tolerance. Chosen."""
ENOUGH, TIGHT = 0.8, 0.5
"""Shares of a check's tolerance: beyond the one, a plan is made again; what is beyond the other then, is corrected. The
draws of a check are others, which may find as much as chance makes of it. Chosen."""

UNABLE = (InputError, PlanError, RunError, UnsupportedError)
"""Why a model cannot be run on draws: it is on meta, or sharded, or an operator refuses them."""
FALLS_BACK = True
"""Whether another error ends the rehearsal alone; the tests set it to False, and see the errors."""


@once
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
        elif len(node.inputs) > 1 and any(word in node.op_name for word in OF_PAIRS):
            first, second = (graph.values[value].shape for value in node.inputs[:2])
            total += float(math.prod(first)) * math.prod(second[-2:-1])
        elif any(word in node.op_name for word in OF_MATRICES):
            total += OF_ELEMENT * sizes[node.inputs[0]] * max(graph.values[node.inputs[0]].shape, default=1)
    return total


def has_effects(graph: Graph) -> bool:
    """Whether a pass speaks to other processes, which may not make as many."""
    return any(node.op.namespace in ("c10d", "_c10d_functional", "c10d_functional") for node in graph.nodes)


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
        self._fixed: set[str] = {graph.values[value].name for value in parameter_values(graph)}
        self._cheap = work_of(graph) <= CHEAP
        self._passes = 0
        self._failed = ""

    def told(self) -> dict[str, JsonValue]:
        """Return the number of passes, the graph's nodes and mode, and why it failed where it did."""
        graph = self._graph
        told: dict[str, JsonValue] = {"passes": self._passes, "nodes": len(graph.nodes), "training": graph.training}
        return told | ({"failed": self._failed} if self._failed else {})

    def contradicted(self, plan: Plan, known: Mapping[str, Correction]) -> dict[str, Correction] | None:
        """Return the corrections by name with which a plan expects what real passes of it show; None where it does, or
        where no passes can be made (a model on meta, an operator that refuses what is drawn).

        Args:
            plan: how the weights are drawn, with the corrections that are ``known``.
            known: those, by name.
        """
        try:
            with one_thread() if self._cheap else nullcontext():  # threads gain nothing, and a fork does not take them
                return self._contradicted(plan, known)
        except Exception as error:  # operators raise whatever they like, and a plan needs no pass
            if not (FALLS_BACK or isinstance(error, UNABLE)):
                raise
            self._failed = f"{type(error).__name__}: {error}"
            return None

    def _contradicted(self, plan: Plan, known: Mapping[str, Correction]) -> dict[str, Correction] | None:
        """Return what `contradicted` does; every plan is held against passes of its own."""
        predicted = propagate(self._graph, inputs=self._inputs, weights=plan)
        predicted = replace(predicted, items=tuple(one for one in predicted if one.name not in self._fixed))
        if not self._passes and not self._doubts(predicted, self._measured(plan, FEW)[1]):
            return None
        first = self._passes
        given, measured = self._measured(plan, MORE)
        found = look(self._graph, predicted, measured, given, plan, SEED, first=first)
        if not any(one.spread_off or _held(one, ENOUGH).off for one in found.comparisons):
            return None
        weights = PrescribedWeights.of(self._graph, plan)
        weights.corrections = correcting = _Correcting(found.comparisons, measured, known)
        run_pass(self._graph, weights, inputs=self._inputs)
        return correcting.found

    def _measured(self, plan: Plan, count: int) -> tuple[Sequence[Mapping[int, Tensor]], Signals]:
        """Return the inputs of fresh passes, and what they show under weights drawn from a plan."""
        first, graph, default = self._passes, self._graph, torch.get_default_dtype()
        self._passes += count
        try:
            torch.set_default_dtype(torch.float32)  # what is drawn is the same under any
            given = list(Batches(graph, self._inputs, SEED).take(range(first, first + count)))
        finally:
            torch.set_default_dtype(default)
        with torch.no_grad():
            return given, passes(graph, given, drawing(graph, plan, SEED), SEED, first=first)

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
        self._left: dict[str, float] = {}
        self._scatter: dict[str, float] = {}
        self.found: dict[str, Correction] = {}

    def may(self, name: str) -> bool:
        """Whether a value was measured, so that it may be corrected."""
        return name in self._held and name in self._shown

    def of(self, name: str, state: State, graph: Graph, node: Node) -> Correction | None:
        """Return how a value differs from what its rule makes of what enters; None where it does not.

        An error that is no larger than what enters is left with is none of the rule's. Of what scattered values make,
        few passes tell nothing: rare ones may make the mean.
        """
        known, before = self._known.get(name), [graph.values[value].name for value in node.inputs]
        one, shown = self._expected(name, state, known), self._shown[name]
        new = None if state.tag == "heavy" else self._new(one, before)
        self._left[name] = one.error if new is None or not new.octaves else 0.0
        self._scatter[name] = max(one.spread if new is None or new.spread is None else new.spread, shown.log2_std)
        known = known if new is None else new.after(known)
        if known is not None:
            self.found[name] = known
        return known

    def _expected(self, name: str, state: State, known: Correction | None) -> Comparison:
        """Return the comparison of a value with what is expected of it, with all corrections before it and its own."""
        expected, spread = state.second_moment, math.sqrt(variance_by_draws(state)) / OCTAVE
        if known is not None:
            expected, spread = expected * known.factor, spread if known.spread is None else known.spread
        held = self._held[name]
        return replace(held, predicted=expected, error=log2_ratio(expected, held.measured), spread=spread)

    def _new(self, one: Comparison, before: Sequence[str]) -> Correction | None:
        """Return what a comparison says of the rule, whose operands are those ``before``."""
        came = max((self._left.get(name, 0.0) for name in before), key=abs, default=0.0)
        passed_on = one.error * came > 0.0 and abs(one.error) <= abs(came)
        if passed_on or abs(one.error - came) <= one.tolerance:
            one = replace(one, allowed=math.inf)
        steady = all(self._scatter.get(name, 0.0) <= SCATTERED for name in before)
        # rare events would not leave what agrees
        return _correction(one, self._shown[one.name]) if steady or abs(one.error) <= one.tolerance else None


def _held(one: Comparison, share: float) -> Comparison:
    """Return a comparison that allows a share of its tolerance, at least that of exact rules, beside chance."""
    tolerance = max(share * one.tolerance, min(TOLERANCE["exact"], one.tolerance))
    return replace(one, tolerance=tolerance, allowed=one.allowed - one.tolerance + tolerance)


def _correction(one: Comparison, shown: Signal) -> Correction | None:
    """Return what a comparison says of the rule behind it; None where that is nothing.

    Of what a rule takes for zeros, and of what all passes show as zeros, they tell nothing: it may be rare. So it is
    where a scattered value is larger than they show; where they show more, rare ones would only add to that.
    """
    if not math.isfinite(one.error) or not math.isfinite(shown.log2_std):
        return None
    seen = one.spread_measured if math.isfinite(one.spread_measured) else shown.log2_std
    spread = round(seen, 2) if one.spread_off else None
    rare = one.spread if spread is None and one.error > 0.0 else 0.0
    octaves = round(-one.error, 2) if one.off and max(seen, rare) <= SCATTERED else 0.0
    return Correction(octaves, float(f"{shown.mean:.4g}"), spread) if octaves or spread is not None else None
