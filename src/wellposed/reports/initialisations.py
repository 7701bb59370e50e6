"""The signals of a report: under the model's own weights and under the plan, predicted, measured and compared."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor

from wellposed.checks import Explanation, Verdict
from wellposed.checks.check import Trial
from wellposed.checks.explain import explain_nodes, node_named
from wellposed.graphs import Graph, Node
from wellposed.measuring.batches import Batches, Inputs
from wellposed.measuring.measure import drawing, passes
from wellposed.plans import Plan
from wellposed.ranks import is_held
from wellposed.reports.gates import opened
from wellposed.reports.likeness import differing, foreseen
from wellposed.reports.parts import Stages
from wellposed.reports.record import Differing, Initialisation, Label
from wellposed.reports.spans import hidden_names, sensitivity
from wellposed.reports.structure import Structure
from wellposed.reports.unreached import unreached
from wellposed.shaping.fitting import unshaped
from wellposed.signals import Signals, propagate
from wellposed.signals.examples import Described
from wellposed.signals.passes.propagation import cotangent_variances, in_two_steps

SHARE = 0.1
"""Share of the budget that real passes under one way of drawing the weights may take; one is made anyhow."""
EXPLAINED = 10
"""Operations that are off and are explained, for each initialisation; others can be asked for."""
LOOKED_AT = 2**25
"""Elements of real passes that explanations are made from, for each initialisation."""


BACK_EACH = 2
"""Of the real passes every how many-th also goes back. Chosen for speed: a pass back takes as long as one forward, and
what is told of gradients are their sizes."""


@dataclass(frozen=True, slots=True)
class Passes:
    """What all initialisations are worked out from.

    Attributes:
        graph: of the model.
        structure: of the graph.
        source: of the batches.
        given: the inputs of the first real passes, by value id; none where none are made.
        assumed: what predictions assume of the inputs.
        draws: real passes; 0 for none.
        seed: of weights and random operators.
    """

    graph: Graph
    structure: Structure
    source: Batches
    given: Sequence[Mapping[int, Tensor]]
    assumed: Described
    draws: int
    seed: int


def initialisations_of(
    graph: Graph, structure: Structure, plan: Plan | None, inputs: Inputs, draws: int, seed: int, stages: Stages
) -> tuple[Initialisation, ...]:
    """Return the signals under the model's own weights, where it has any, and under the plan.

    What tells most in little time comes first, as the time may run out: real passes under the model's own weights,
    what the plan is predicted to do, real passes under it, then the prediction for the model's own weights, then the
    gradients that are predicted, which take longest, then how the one compares with the other.

    Raises:
        InputError: inputs that do not fit the graph.
    """
    source = Batches(graph, inputs, seed)
    given: Sequence[Mapping[int, Tensor]] = ()
    if draws or not source.drawn:
        given = list(source.take(range(max(draws, 1))))
    made = Passes(graph, structure, source, given, source.description(given), draws, seed)
    labels: list[tuple[Label, Plan | None]] = [("own", None)]
    if not all(is_held(parameter.tensor) for parameter in graph.parameters.values()):
        stages.notes.append(
            "current weights: the model is on the meta device or sharded, and its parameters have no values to look at"
        )
        labels.clear()
    if plan is not None:
        labels.append(("plan", plan))
    begun = [_Begun(label, weights, made, stages) for label, weights in labels]
    for item in begun:
        if item.plan is None:
            item.measure()
    for item in reversed(begun):
        item.predict()
        if item.plan is not None:
            item.measure()
    for item in begun:
        item.predict_gradients()
    for item in begun:
        item.compare()
    return tuple([item.initialisation for item in begun])


class _Begun:
    """One way of drawing the weights, while its signals are worked out."""

    def __init__(self, label: Label, plan: Plan | None, made: Passes, stages: Stages) -> None:
        self.label, self.plan, self.made, self.stages = label, plan, made, stages
        self.title = "the plan" if plan is not None else "the model's current weights"
        self.predicted: Signals | None = None
        self.measured: Signals | None = None
        self.verdict: Verdict | None = None
        self.differing: Differing | None = None
        self.explanations: tuple[Explanation, ...] = ()
        self.unreached: tuple[str, ...] = ()
        self.asleep = False
        self.opened: Signals | None = None
        self.crowds = 0.0
        self.draws = 0
        self._onwards: Callable[[], Signals] | None = None

    @property
    def initialisation(self) -> Initialisation:
        """The signals, verdict and explanations so far."""
        return Initialisation(
            self.label,
            self.predicted,
            self.measured,
            self.verdict,
            self.explanations,
            self.differing,
            self.unreached,
            self.asleep,
            self.opened,
            self.crowds,
        )

    @property
    def _weights(self) -> Any:
        return "current" if self.plan is None else self.plan

    def predict(self) -> None:
        """Predict signals."""
        call = partial(in_two_steps, self.made.graph, inputs=self.made.assumed, weights=self._weights)
        with self.stages.stage("predicting"):
            found = self.stages.attempt(f"predicted signals under {self.title}", call)
        if found is not None:
            self.predicted, self._onwards = found
            self.crowds = unshaped(self.made.graph, self.predicted)
            if not self.made.draws:
                self.differing = foreseen(self.predicted, hidden_names(self.made.structure))

    def predict_gradients(self) -> None:
        """Predict gradients too, from where the prediction of signals ended."""
        if self._onwards is None:
            return
        with self.stages.stage("predicting"):
            both = self.stages.attempt(f"predicted gradients under {self.title}", self._onwards)
        self.predicted, self._onwards = both or self.predicted, None

    def measure(self) -> None:
        """Measure signals and gradients on real passes, what differs between their inputs, and what no gradient
        reaches.
        """
        if self.made.draws:
            self._measure()
        prescriptions = None if self.plan is None else self.plan.prescriptions
        self.unreached, self.asleep = unreached(self.made.graph, prescriptions, self.measured)

    def _measure(self) -> None:
        """Measure signals, gradients and what differs between inputs."""
        made = self.made
        weights = drawing(made.graph, self.plan, made.seed)

        def seen(backward: bool) -> Signals:
            variances = cotangent_variances(made.graph, 1.0, backward)
            given = self._while_there_is_time()
            return passes(made.graph, given, weights, made.seed, variances, back_each=BACK_EACH)

        with self.stages.stage("measuring"):
            self.measured = _both_ways(self.stages, f"measured {{}} under {self.title}", seen)
            if self.measured is not None:
                names = hidden_names(made.structure)
                look = partial(differing, made.graph, names, weights(0), made.given[0], made.seed)
                self.differing = self.stages.attempt(f"what differs between inputs under {self.title}", look)
                self._open()

    def _open(self) -> None:
        """Measure again with small scales of branches at 1, where gradients are uneven."""
        made, seen = self.made, self.measured
        if seen is None or seen.gradients is None or sensitivity(made.structure, seen).level == "good":
            return
        weights = opened(made.graph, drawing(made.graph, self.plan, made.seed)(0))
        if weights is not None:
            variances = cotangent_variances(made.graph, 1.0, True)
            look = partial(passes, made.graph, made.given[:1], lambda _: weights, made.seed, variances)
            self.opened = self.stages.attempt(f"gradients through open branches under {self.title}", look)

    def _while_there_is_time(self) -> Iterator[Mapping[int, Tensor]]:
        """Yield the inputs of one pass after the other, as long as all of them take no more than their share."""
        begun, share = time.process_time(), self.stages.share(SHARE)
        self.draws = 0
        for batch in self.made.given:
            spent = time.process_time() - begun
            if self.draws and share is not None and spent * (self.draws + 1) / self.draws > share:
                left = len(self.made.given) - self.draws
                self.stages.left_out.append(f"{left} real pass{'es' * (left != 1)} under {self.title}")
                return
            self.draws += 1
            yield batch

    def compare(self) -> None:
        """Hold predicted signals against measured ones, and explain what is off.

        Gradients are shown side by side: their prediction is experimental, and to decide what is off in it would take
        more passes than all else in a report.
        """
        made = self.made
        if self.predicted is None or self.measured is None or self.draws < 2:  # one pass does not know its own error
            return
        forward = replace(self.measured, gradients=None, parameter_gradients=None, input_gradients=None)

        def predict(told: Described) -> Signals:
            return propagate(made.graph, inputs=told, weights=self._weights)

        trial = Trial(made.graph, made.source, self.plan, predict, made.seed)
        with self.stages.stage("measuring"):
            ask = partial(trial.verdict, self.draws, self.predicted, forward)
            self.verdict = self.stages.attempt(f"comparison under {self.title}", ask)
        off = [c.name for c in self.initialisation.off]
        if nodes := _explained(made.graph, off, made.draws):
            explain = partial(explain_nodes, made.graph, nodes, self.plan, made.given, made.assumed, made.seed)
            with self.stages.stage("explaining"):
                self.explanations = tuple(self.stages.attempt(f"explanations under {self.title}", explain) or ())


def _explained(graph: Graph, off: Sequence[str], draws: int) -> list[Node]:
    """Return the nodes that are explained: the first, each once, as many as can be looked at in little time."""
    nodes: dict[int, Node] = {}
    left = LOOKED_AT
    for node in (node_named(graph, name) for name in off):
        if node.index not in nodes:
            left -= draws * sum(math.prod(graph.values[value].shape) for value in node.inputs)
            if len(nodes) == EXPLAINED or (nodes and left < 0):
                break
            nodes[node.index] = node
    return list(nodes.values())


def _both_ways(stages: Stages, what: str, call: Callable[[bool], Signals]) -> Signals | None:
    """Return signals with gradients, or without them where those fail, or None; with notes."""
    both = stages.attempt(what.format("gradients"), lambda: call(True))
    if both is not None:
        return both
    return stages.attempt(what.format("signals"), lambda: call(False))
