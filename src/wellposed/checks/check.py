"""The check: predicted signals against those of the running model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from wellposed.checks.batches import Inputs, batches, described, is_described
from wellposed.checks.measure import drawing, passes, shuffling
from wellposed.checks.verdict import Verdict, compare
from wellposed.errors import OptionError
from wellposed.graphs import Graph, graph_of
from wellposed.plans import Plan
from wellposed.signals import Signals, propagate
from wellposed.signals.passes.propagation import Cotangents, cotangent_variances


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
    **kwargs: Any,
) -> Verdict:
    """Hold the predicted second moment of every signal against the measured one, and return the verdict.

    A node is off where the prediction lies further than the tolerance outside the 99 % confidence interval of the
    measured mean: one of a log-normal variable, whose scatter is the one that the passes show
    (`docs/check-mathematics.md`). The predicted spread between weight draws is compared with the measured one.
    Signals that are zero on both sides (zero-initialised gates and readouts) agree; masked elements do not count.

    Args:
        model: the model, or its graph (which was made with ``args``, ``kwargs`` and ``training`` of its own).
        *args: example inputs.
        plan: how the weights are drawn, anew for every pass; None checks the model's current weights, as ``wellposed
            check MODEL`` does.
        draws: number of real passes, >= 2.
        tolerance: octaves; by default that of the prediction's tag (`wellposed.checks.TOLERANCE`).
        inputs: as for `wellposed.measure`; the prediction takes the same, or what is measured on the batches.
        seed: of weights, inputs and random operators.
        training: the mode to trace in.
        backward: also compare the gradients with respect to every tensor, parameter and input.
        cotangents: what a backward pass starts from, as for `wellposed.propagate`.
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
    given = list(batches(graph, inputs, draws, seed))
    descriptors = inputs if is_described(inputs) else described(graph, given)
    weights = "current" if plan is None else plan
    predicted = propagate(graph, inputs=descriptors, weights=weights, backward=backward, cotangents=cotangents)
    variances = cotangent_variances(graph, cotangents, backward)
    measured = passes(graph, given, drawing(graph, plan, seed), seed, variances)
    return verdict_on(graph, predicted, measured, given, plan is None, seed, tolerance, variances)


def verdict_on(
    graph: Graph,
    predicted: Signals,
    measured: Signals,
    given: Sequence[Mapping[int, Tensor]],
    own: bool,
    seed: int,
    tolerance: float | None = None,
    cotangents: Mapping[int, float] | None = None,
) -> Verdict:
    """Return the verdict on a prediction and a measurement.

    One set of weights does not show how far it may be from the mean over all. Where something is off under the
    model's own weights, as many passes are made with the same weights in random order, whose scatter then counts.

    Args:
        graph: what was predicted and measured.
        predicted: the one side.
        measured: the other.
        given: the inputs of each pass, by value id.
        own: whether the weights were the model's own, and not drawn for every pass.
        seed: of the measurement.
        tolerance: as for `check`.
        cotangents: what the measured backward passes started from.
    """
    ask = partial(
        compare, predicted, measured, model=graph.model, draws=len(given), weight_draws=1 if own else len(given),
        tolerance=tolerance, graph=graph,
    )  # fmt: skip
    verdict = ask()
    if own and verdict.first is not None:
        verdict = ask(scatter=passes(graph, given, shuffling(graph, seed), seed, cotangents))
    return verdict
