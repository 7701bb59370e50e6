"""GradCosine of an initialisation as it is predicted: without a pass, a loss or data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import one_hot

from wellposed.errors import GradientError
from wellposed.graphs import Graph, graph_of
from wellposed.operators.norms import over_the_batch
from wellposed.options import check_integer
from wellposed.plans import Plan
from wellposed.signals import Input, Signal
from wellposed.signals.examples import Described
from wellposed.signals.passes.backward import gradients_of
from wellposed.signals.passes.forward import run_pass
from wellposed.signals.weights.prescribed import PrescribedWeights
from wellposed.surroundings import settled

PAIRS = 20_000
"""Pairs of samples whose logits are drawn for the gradients of the loss. Chosen: a percent of their second moments."""


@dataclass(frozen=True, slots=True)
class PredictedAgreement:
    """How well the gradients of samples agree, as predicted.

    Attributes:
        between: cosine of the gradients of two different samples: E[g·g'] / E[‖g‖²].
        norm: Euclidean norm of the gradient of one sample, sqrt(E[‖g‖²]).
    """

    between: float
    norm: float

    def gradcosine(self, samples: int) -> float:
        """Return the score of so many samples, which counts each with itself too (NIO, eq. 6).

        Raises:
            OptionError: ``samples`` < 1.
        """
        check_integer(1, samples=samples)
        return (1.0 + (samples - 1) * self.between) / samples


@settled()
def predicted_gradcosine(
    model: nn.Module | Graph,
    *args: Any,
    plan: Plan | None = None,
    inputs: Described = None,
    training: bool = True,
    **kwargs: Any,
) -> PredictedAgreement:
    """Predict how well the gradients of single samples agree, for cross-entropy with labels at random; none is taken.

    Of two samples, the gradient with respect to a weight has in common what the signals that enter it have, times what
    the gradients have that leave it. The latter begins at the logits: softmax(z) - y, of logits that are as alike as
    `Signal.similarity` says. Gradients are predicted twice, once for what samples have in common there, and once for
    samples that have nothing. *Experimental*, as the prediction of gradients is.

    Args:
        model: the model, or its graph; its one output are logits of shape (samples, classes).
        *args: example inputs, of two samples or more.
        plan: how the weights are drawn; None takes the model's own, by their second moments.
        inputs: descriptions, as for `wellposed.propagate`. ``similarity`` of `wellposed.Input` tells how alike samples
            are to begin with.
        training: the mode to trace in.
        **kwargs: example inputs by keyword.

    Raises:
        GradientError: an output that is no table of logits, or of which no similarity is known; batch norm in training
            mode; no gradient.
        InputError, PlanError, TraceError: as for `wellposed.propagate`.

    Source: Yang et al. 2022 (NIO), eq. 6, in expectation over labels, inputs and weights, at large width.
    """
    graph = graph_of(model, args, kwargs, training)
    logits = _logits(graph)
    weights = PrescribedWeights.of(graph, plan)
    signals, run = run_pass(graph, weights, inputs=inputs, keep=True)
    signal = signals[graph.values[logits].name]
    samples, classes = signal.shape
    if math.isnan(signal.similarity):
        raise GradientError(f"how alike the samples of {signal.name} are is not known: give an example of two or more")
    square, common = _of_the_loss(signal, classes)

    def squared_norm(similarity: float) -> float:
        """Return E‖Σ g‖² of the samples' gradients, where theirs at the logits have this in common."""
        back = gradients_of(run, {logits: Input.white(similarity=similarity).state(signal.shape, 0)})
        return sum(back.power(name) for name, parameter in graph.parameters.items() if parameter.tensor.requires_grad)

    apart = squared_norm(0.0)
    if not 0.0 < apart < math.inf:
        raise GradientError(f"the predicted gradient of {graph.model} is {apart}: no trained parameter has one to tell")
    together = squared_norm(common / square)
    return PredictedAgreement((together / apart - 1.0) / (samples - 1), math.sqrt(square * apart / samples))


def _logits(graph: Graph) -> int:
    """Return the output that holds logits.

    Raises:
        GradientError: there is no such, or another beside it; or batch norm makes a sample's gradient that of others.
    """
    coupled = next((node.name for node in graph if over_the_batch(node)), None)
    if coupled is not None:
        raise GradientError(
            f"{coupled} norms over the batch, so that no sample of {graph.model} has a gradient of its own"
        )
    signals = [value for value in graph.outputs if graph.values[value].is_signal]
    if len(signals) != 1 or len(graph.values[signals[0]].shape) != 2:
        shapes = [tuple(graph.values[value].shape) for value in signals]
        raise GradientError(f"{graph.model} gives {shapes}: predicted are gradients of logits (samples, classes)")
    return signals[0]


def _of_the_loss(logits: Signal, classes: int) -> tuple[float, float]:
    """Return E[c²] of the gradient c = softmax(z) - y at one logit, and E[c c'] of two samples, for random labels y."""
    generator = torch.Generator().manual_seed(0)
    shared = max(logits.similarity, 0.0)

    def drawn() -> torch.Tensor:
        return torch.randn(PAIRS, classes, generator=generator, dtype=torch.float64)

    both = shared**0.5 * drawn()
    gradients = []
    for _ in range(2):
        z = logits.second_moment**0.5 * (both + (1.0 - shared) ** 0.5 * drawn())
        y = torch.randint(classes, (PAIRS,), generator=generator)
        gradients.append(z.softmax(1) - one_hot(y, classes))
    first, second = gradients
    return float(first.square().mean()), max(float((first * second).mean()), 0.0)
