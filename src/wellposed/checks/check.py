"""The check: predicted signals against those of the running model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from wellposed.checks.batches import Inputs, batches, described, is_described
from wellposed.checks.measure import passes
from wellposed.checks.verdict import Verdict, compare
from wellposed.errors import OptionError
from wellposed.graphs import Graph, graph_of
from wellposed.plans import Plan
from wellposed.signals import propagate
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

    A node is off where the absolute log2(predicted / measured) exceeds tolerance + 2 standard errors. The standard
    error is that of the measurement, or the one that the predicted spread between weight draws implies, whichever is
    larger. Signals that are zero on both sides (zero-initialised gates and readouts) agree.

    Args:
        model: the model, or its graph (which was made with ``args``, ``kwargs`` and ``training`` of its own).
        *args: example inputs.
        plan: how the weights are drawn, anew for every pass; None checks the model's current weights.
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
    given: Iterable[dict[int, Tensor]] = batches(graph, inputs, draws, seed)
    if is_described(inputs):
        descriptors = inputs
    else:
        given = list(given)
        descriptors = described(graph, given)
    weights = "current" if plan is None else plan
    predicted = propagate(graph, inputs=descriptors, weights=weights, backward=backward, cotangents=cotangents)
    variances = cotangent_variances(graph, cotangents, backward)
    measured = passes(graph, given, plan, seed, variances)
    weight_draws = 1 if plan is None else draws
    return compare(predicted, measured, model=graph.model, draws=draws, weight_draws=weight_draws, tolerance=tolerance)
