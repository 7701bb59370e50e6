"""The check: predicted signals against those of the running model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from wellposed.checks.matching import verdict_of
from wellposed.checks.own import own_parameters
from wellposed.checks.verdict import Verdict
from wellposed.errors import OptionError
from wellposed.graphs import Graph, graph_of
from wellposed.limit import walked
from wellposed.measuring.batches import Batches, Inputs
from wellposed.measuring.look import asked_of, look
from wellposed.measuring.measure import drawing, passes
from wellposed.plans import Plan
from wellposed.signals import Signals, propagate
from wellposed.signals.examples import Described
from wellposed.signals.passes.propagation import Cotangents, WeightsOf, cotangent_variances
from wellposed.surroundings import settled
from wellposed.tables import tracked

AGAIN = 2
"""Passes of a second look, as a multiple of those of the first."""


@settled()
def check(
    model: nn.Module | Graph,
    *args: Any,
    plan: Plan | None = None,
    draws: int = 8,
    tolerance: float | None = None,
    inputs: Inputs = None,
    seed: int = 0,
    training: bool = True,
    backward: bool = False,
    cotangents: Cotangents = 1.0,
    progress: bool = False,
    **kwargs: Any,
) -> Verdict:
    """Hold a model's parameters against a plan, and the predicted second moments of its signals against measured ones.

    With a plan, the model's own parameters are looked at first: number by number where the plan draws them, by size
    where it rescales them or leaves them alone. What no training and no other seed explains fails the check. A model
    that does not hold the plan yet, or was trained since, is said to be so. NaN and infinities in parameters fail it
    with and without a plan.

    A node is off where the prediction lies further than the tolerance outside the 99 % confidence interval of the
    measured mean: one of a log-normal variable, whose scatter is the one that the passes show
    (`docs/check-mathematics.md`). The predicted spread between weight draws is compared with the measured one. What is
    off, or misses by more than an octave, is measured again on twice as many fresh passes, which alone decide.
    Signals that are zero on both sides (zero-initialised gates and readouts) agree; masked elements do not count.

    Args:
        model: the model, or its graph (which was made with ``args``, ``kwargs`` and ``training`` of its own).
        *args: example inputs.
        plan: how the weights are drawn, anew for every pass; None checks the signals of the model's current weights, as
            ``wellposed check MODEL`` does.
        draws: number of real passes, >= 2; where something is in doubt after them, twice as many follow.
        tolerance: octaves; by default that of the prediction's tag (`wellposed.checks.TOLERANCE`).
        inputs: as for `wellposed.measure`; the prediction takes the same, or what is measured on the batches.
        seed: of weights, inputs and random operators.
        training: the mode to trace in.
        backward: also compare the gradients with respect to every tensor, parameter and input. *Experimental*: their
            prediction is off by more than half an octave on several nets, which counts as a failed check.
        cotangents: what a backward pass starts from, as for `wellposed.propagate`.
        progress: show a progress bar over the passes.
        **kwargs: example inputs by keyword.

    Raises:
        OptionError: fewer than 2 draws, a tolerance that is not a number >= 0, or cotangents that are no variances of
            outputs.
        InputError: inputs that do not fit the graph.
        PlanError: parameters without values (a model on meta) that the plan does not draw.
        UnsupportedError: an operator that cannot be differentiated, under ``backward``.
    """
    if draws < 2:
        raise OptionError(f"a check needs at least 2 draws to know its own error, got {draws}")
    graph = graph_of(model, args, kwargs, training)
    source = Batches(graph, inputs, seed)
    return trial(graph, source, plan, seed, tolerance, backward, cotangents, progress).verdict(draws)


def trial(
    graph: Graph,
    source: Batches,
    plan: Plan | None,
    seed: int,
    tolerance: float | None,
    backward: bool = False,
    cotangents: Cotangents = 1.0,
    progress: bool = False,
) -> Trial:
    """Return the trial that `check` runs: prediction, batches, plan, seed and tolerance for a graph."""
    weights: WeightsOf = "current" if plan is None else plan

    def predict(told: Described) -> Signals:
        return propagate(graph, inputs=told, weights=weights, backward=backward, cotangents=cotangents)

    variances = cotangent_variances(graph, cotangents, backward)
    return Trial(graph, source, plan, predict, seed, tolerance, variances, progress)


@dataclass(frozen=True)
class Trial:
    """A prediction that can be held against any number of passes.

    Attributes:
        graph: the graph.
        source: of the batches.
        plan: how the weights are drawn, None for the model's own.
        predict: makes the prediction, from a description of the inputs.
        seed: of all passes.
        tolerance: as for `check`.
        cotangents: what backward passes start from, by value id, where they are compared.
        progress: whether to show a progress bar over the passes.
    """

    graph: Graph
    source: Batches
    plan: Plan | None
    predict: Callable[[Described], Signals]
    seed: int = 0
    tolerance: float | None = None
    cotangents: Mapping[int, float] | None = None
    progress: bool = False

    def verdict(self, draws: int, predicted: Signals | None = None, measured: Signals | None = None) -> Verdict:
        """Return the verdict on so many passes, and on fresh ones where these leave something in doubt.

        Few passes show their own scatter badly where it is skewed, and among hundreds of nodes some are beyond any
        interval by chance. What passes of other weights, inputs and random numbers find off as well, by themselves,
        is. Under the model's own weights, inputs and random numbers are fresh, and the orders of the weights that show
        their scatter.

        Args:
            draws: passes, >= 2.
            predicted: the prediction for them, where it was made.
            measured: what they showed, where they were.
        """
        own, said = own_parameters(self.graph, self.plan), self.source.remarks()
        given = list(self.source.take(range(draws)))
        predicted = predicted or self.predict(self.source.description(given))
        first = self._look(predicted, measured or self._passes(given, self.cotangents), given)
        if not first.doubted:
            return replace(first, own=own, inputs=said)
        fresh = list(self.source.take(range(draws, (1 + AGAIN) * draws)))
        if not self.source.drawn:
            predicted = self.predict(self.source.description(fresh))
        again = self._passes(fresh, asked_of(first.doubted, self.cotangents), draws)
        return replace(self._look(predicted, again, fresh, first), own=own, inputs=said)

    def _passes(
        self, given: Sequence[Mapping[int, Tensor]], cotangents: Mapping[int, float] | None, first: int = 0
    ) -> Signals:
        """Return what passes show with these inputs, back from the cotangents too where any are given."""
        weights = drawing(self.graph, self.plan, self.seed)
        again = "measuring again what is in doubt"
        shown = tracked(given, again if first else "measuring", True) if self.progress else walked(given)
        return passes(self.graph, shown, weights, self.seed, cotangents, first)

    def _look(
        self,
        predicted: Signals,
        measured: Signals,
        given: Sequence[Mapping[int, Tensor]],
        before: Verdict | None = None,
    ) -> Verdict:
        """Return the verdict on one set of passes, with this trial's graph, plan, seed and tolerance."""
        return verdict_on(
            self.graph, predicted, measured, given, self.plan, self.seed, self.tolerance, self.cotangents, before
        )


def verdict_on(
    graph: Graph,
    predicted: Signals,
    measured: Signals,
    given: Sequence[Mapping[int, Tensor]],
    plan: Plan | None,
    seed: int,
    tolerance: float | None = None,
    cotangents: Mapping[int, float] | None = None,
    before: Verdict | None = None,
) -> Verdict:
    """Return the verdict on a prediction and a measurement, by `look` of `wellposed.measuring.look`.

    The arguments are those of `look`. ``before`` is the verdict on earlier passes, which left something in doubt.
    """
    earlier, first = (None, 0) if before is None else (before.comparisons, before.draws)
    found = look(graph, predicted, measured, given, plan, seed, tolerance, cotangents, earlier, first)
    weights = 1 if plan is None else len(given)
    return verdict_of(found, measured, graph.model, len(given), weights, graph, before)
