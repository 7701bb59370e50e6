"""The maximal update rule: the largest rate at which one step changes what the readout receives by order one.

Source: Chen, Wu, Wang & Hanin, *Principled Architecture-aware Scaling of Hyperparameters* (arXiv 2402.17440), whose
criterion (section 3.3) is measured here on random inputs instead of derived for one family of nets.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wellposed.errors import OptionError, RateError
from wellposed.graphs import Graph
from wellposed.limit import walked
from wellposed.options import check_integer, check_positive
from wellposed.plans import Plan, drawn_or_own
from wellposed.rates.passes import (
    GraphRun,
    Mode,
    Rows,
    batch_size,
    body,
    find_readout,
    random_stream,
    rows_of_samples,
    white_inputs,
)
from wellposed.rates.rate import RelativeRate
from wellposed.signals.examples import Described, describe_inputs
from wellposed.signals.inputs import Input
from wellposed.signals.sampling.drawing import draw_inputs

NAME = "maximal_update"
NOISY = 0.25
"""Standard error of the rate, in octaves, from which a warning says so."""


def maximal_update(
    graph: Graph,
    *,
    plan: Plan | None = None,
    samples: int = 24,
    draws: int = 1,
    exponent: float = 0.5,
    inputs: Described = None,
    seed: int = 0,
) -> RelativeRate:
    """Return the relative rate S^(-exponent / 2), S the mean squared change of the features under one step.

    For each of ``samples`` random inputs x_i, h_i is what the readout receives (the output of a network without one),
    w a random readout with E|w|² = 1, g_i the gradient of <w, h_i> with respect to the parameters before the readout,
    u_i = J_i g_i the change of h_i along it, and S = mean_i mean_j u_ij². Dropout is off. A batch norm in training mode
    uses the statistics of the batch that the graph was traced with, and its derivatives include them. A ``detach``
    inside the model is no operation of its graph: derivatives pass it.

    Args:
        graph: from `wellposed.trace`.
        plan: draw the weights from it instead of taking the model's current ones.
        samples: number of random inputs, for each draw of the weights.
        draws: number of draws of the weights from ``plan``.
        exponent: 1 is the criterion as derived; 1/2 is what best rates follow as measured (0.44 to 0.52, each
            of seven families held out; docs/results/rates.md).
        inputs: descriptors as for `wellposed.propagate`; by default white of variance 1, and random indices.
        seed: of inputs, readouts and draws.

    Returns:
        The rate; ``figures`` hold S (``update``) and its standard error (``update_error``), over inputs or, with
        several draws, over draws; ``log2_error`` is that of the rate in octaves.

    Raises:
        OptionError: a count below 1, an exponent that is no positive number, or several draws without a plan.
        RateError: no trained parameter lies before the readout, nothing depends on them, or their effect overflows.
    """
    _check(plan, samples, draws, exponent)
    readout = find_readout(graph)
    part, names = body(graph, readout)
    descriptors = describe_inputs(graph, white_inputs(graph) if inputs is None else inputs)
    measurement = _Measurement(part, names, descriptors, seed)
    own = {name: parameter.tensor.detach() for name, parameter in graph.parameters.items()}
    means = []
    for draw in range(draws):
        first = plan.seed if plan is not None else 0
        parameters = drawn_or_own(own, plan, random_stream(seed, draw) if draw else first, graph.model)
        means.append(measurement.squares(parameters, samples, draw))
    value, error = _mean_and_error([sum(m) / len(m) for m in means] if draws > 1 else means[0])
    _check_update(value, graph.model)
    figures = {"update": value, "exponent": float(exponent), "samples": float(samples), "draws": float(draws)}
    if not math.isnan(error):
        figures |= {"update_error": error, "log2_error": exponent / 2 * error / value / math.log(2)}
    where = ", ".join(graph.values[v].name for v in readout.values)
    received = f"what the readout receives ({where})" if readout.weights else f"the output ({where}; no readout found)"
    return RelativeRate(
        value=value ** (-exponent / 2),
        rule=NAME,
        reason=(
            f"S^(-{exponent:g}/2), S = {value:.4g} the mean squared change of {received} under one gradient step on "
            f"one random input ({samples} inputs, {draws} draw{'s' * (draws > 1)} of the weights): the maximal update "
            "criterion of arXiv 2402.17440, section 3.3, measured"
        ),
        figures=figures,
        warnings=_warnings(value, error, exponent),
    )


def _check(plan: Plan | None, samples: int, draws: int, exponent: float) -> None:
    check_integer(samples=samples, draws=draws)
    check_positive(exponent=exponent)
    if draws > 1 and plan is None:
        raise OptionError(f"draws={draws} needs a plan to draw the weights from (plan=)")


def _check_update(value: float, model: str) -> None:
    """Raise `RateError` where the mean squared change is 0, or overflows."""
    if not math.isfinite(value) or value <= 0:
        what = "nothing" if value == 0 else "more than its number format can hold"
        raise RateError(
            f"a step changes what the readout of {model} receives by {what} (S = {value}); "
            "draw its weights from a plan first (plan=wellposed.plan(...)), or look for a signal that dies or explodes "
            "with wellposed.propagate"
        )


@dataclass(slots=True)
class _Measurement:
    """What one step on one sample changes, over random samples."""

    graph: Graph
    names: Sequence[str]
    descriptors: Mapping[int, Input]
    seed: int
    mode: Mode = "forward"

    def squares(self, parameters: Mapping[str, Tensor], samples: int, draw: int) -> list[float]:
        """Return mean_j u_ij² for each sample i."""
        return [square for _, square in zip(walked(range(samples)), self._squares(parameters, draw), strict=False)]

    def _squares(self, parameters: Mapping[str, Tensor], draw: int) -> Iterator[float]:
        """Yield without end the squared change of what the readout receives, one for each sample."""
        for batch in itertools.count():
            generator = torch.Generator().manual_seed(random_stream(self.seed, draw, batch, 1))
            inputs = draw_inputs(self.graph, self.descriptors, generator)
            run = GraphRun(self.graph, parameters, self.names, inputs, random_stream(self.seed, draw, batch, 2))
            for rows in rows_of_samples(run.outputs, batch_size(self.graph)):
                yield self._square(run, rows, generator)

    def _square(self, run: GraphRun, rows: Sequence[Rows], generator: torch.Generator) -> float:
        """Return mean_j u_ij² for the sample that lies in these rows of the outputs."""
        count = sum(output[at].numel() for output, at in zip(run.outputs, rows, strict=True))
        cotangents = []
        for output, at in zip(run.outputs, rows, strict=True):
            readout = torch.zeros_like(output)
            noise = torch.randn(readout[at].shape, generator=generator) / math.sqrt(count)
            readout[at] = noise.to(readout)
            cotangents.append(readout)
        gradient = run.gradient(cotangents)
        length = math.sqrt(sum(float(g.double().square().sum()) for g in gradient))
        if length == 0.0 or not math.isfinite(length):
            return length
        changes = self._change(run, [g / length for g in gradient])
        total = sum(float(change[at].double().square().sum()) for change, at in zip(changes, rows, strict=True))
        return length * length * total / count

    def _change(self, run: GraphRun, tangents: Sequence[Tensor]) -> list[Tensor]:
        """Return the change along ``tangents``; operators without forward derivatives make it backwards twice."""
        if self.mode == "forward":
            try:
                return run.change(tangents, "forward")
            except (NotImplementedError, RuntimeError):
                self.mode = "double backward"
        try:
            return run.change(tangents, self.mode)
        except (NotImplementedError, RuntimeError) as error:
            raise RateError(
                f"{self.graph.model} runs an operator that PyTorch can differentiate neither forwards nor twice "
                f"backwards ({error}); rule='ntk' needs no derivatives"
            ) from error


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    mean = sum(values) / len(values)
    if len(values) < 2 or not math.isfinite(mean):
        return mean, math.nan
    return mean, math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values))


def _warnings(value: float, error: float, exponent: float) -> tuple[str, ...]:
    """Return a warning where the standard error is more than `NOISY` octaves of the rate."""
    octaves = exponent / 2 * error / value / math.log(2)
    if not octaves > NOISY:
        return ()
    return (
        f"the rate is known to {octaves:.2f} octaves only (one standard error): take more samples, or several draws "
        "from a plan",
    )
