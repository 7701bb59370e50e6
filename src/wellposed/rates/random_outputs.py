"""What a random readout of a net depends on: gradients and features of single inputs, measured or expected.

Let h be what the readout receives at one position, w a random readout with E|w|² = 1, and f = <w, h> the output that
rate rules speak of.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from wellposed.errors import OptionError
from wellposed.graphs import Graph
from wellposed.limit import walked
from wellposed.plans import Plan, drawn_or_own
from wellposed.rates.passes import (
    GraphRun,
    Readout,
    Rows,
    batch_size,
    features_axis,
    random_stream,
    rows_of_samples,
    white_inputs,
)
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.state import State
from wellposed.signals.examples import Described, describe_inputs
from wellposed.signals.inputs import Input
from wellposed.signals.integration import kernels
from wellposed.signals.passes.backward import Gradients, gradients_of
from wellposed.signals.passes.forward import run_pass
from wellposed.signals.sampling.drawing import draw_inputs
from wellposed.signals.weights.prescribed import PrescribedWeights

SAMPLES = 24
"""Random inputs by default."""


def no_readout(graph: Graph, readout: Readout) -> tuple[str, ...]:
    """Return a warning where a net has no readout."""
    if readout.weights:
        return ()
    return (
        f"{graph.model} has no readout after which there is no other layer: its outputs are taken for what one would "
        "receive",
    )


# ---- measured -------------------------------------------------------------------------------------------------------


def random_outputs(
    graph: Graph,
    part: Graph,
    names: Sequence[str],
    readout: Readout,
    plan: Plan | None,
    samples: int,
    inputs: Described,
    seed: int,
) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Yield for each of some random inputs the gradient of f for each parameter, and h for each readout, in float64.

    Args:
        graph: the whole net.
        part: the part before the readout, from `wellposed.rates.passes.body`.
        names: of the parameters.
        readout: from `wellposed.rates.passes.find_readout`.
        plan: draw the weights from it instead of taking the model's current ones.
        samples: number of inputs.
        inputs: descriptors as for `wellposed.propagate`; None: white of variance 1, and random indices.
        seed: of inputs, positions and the readout.
    """
    descriptors = describe_inputs(graph, white_inputs(graph) if inputs is None else inputs)
    own = {name: parameter.tensor.detach() for name, parameter in graph.parameters.items()}
    parameters = drawn_or_own(own, plan, plan.seed if plan is not None else 0, graph.model)
    generator = torch.Generator().manual_seed(random_stream(seed, 0))
    heads = [_random_weights(graph, value, generator) for value in readout.values]
    passes = _passes(graph, part, names, parameters, descriptors, seed)
    for index, (run, rows) in zip(walked(range(samples)), passes, strict=False):
        places = torch.Generator().manual_seed(random_stream(seed, 3, index))
        cotangents, features = _one_position(run, rows, readout, graph, heads, places)
        gradients = [g.double() for g in run.gradient(cotangents)] if names else []
        yield gradients, [h.double() for h in features]


def _passes(
    graph: Graph,
    part: Graph,
    names: Sequence[str],
    parameters: Mapping[str, Tensor],
    descriptors: Mapping[int, Input],
    seed: int,
) -> Iterator[tuple[GraphRun, tuple[Rows, ...]]]:
    """Yield runs on random inputs, each with the rows of its outputs that belong to the first sample.

    Where a batch norm couples samples, those of one run have a mean of 0, and nothing in common.
    """
    for index in itertools.count():
        generator = torch.Generator().manual_seed(random_stream(seed, index, 1))
        drawn = draw_inputs(graph, descriptors, generator)
        run = GraphRun(part, parameters, names, drawn, random_stream(seed, index, 2))
        yield run, next(rows_of_samples(run.outputs, batch_size(graph)))


def _random_weights(graph: Graph, value: int, generator: torch.Generator) -> Tensor:
    """Return random weights of a readout of one output."""
    info = graph.values[value]
    count = info.shape[features_axis(graph, value)] if info.shape else 1
    return torch.randn(count, generator=generator) / math.sqrt(count)


def _one_position(
    run: GraphRun,
    rows: Sequence[Rows],
    readout: Readout,
    graph: Graph,
    heads: Sequence[Tensor],
    places: torch.Generator,
) -> tuple[list[Tensor], list[Tensor]]:
    """Return cotangents that are the readout's weights at one random position of a sample, and the features there."""
    cotangents, features = [], []
    for output, at, value, head in zip(run.outputs, rows, readout.values, heads, strict=True):
        cotangent = torch.zeros_like(output)
        if not output.ndim:
            cotangents.append(cotangent + head[0].to(output))
            features.append(output.detach().reshape(1))
            continue
        axis = features_axis(graph, value)
        mine, theirs = (tensor[at].movedim(axis, -1) for tensor in (cotangent, output.detach()))
        place = tuple(int(torch.randint(size, (), generator=places)) for size in mine.shape[:-1])
        mine[place] = head.to(output)
        cotangents.append(cotangent)
        features.append(theirs[place])
    return cotangents, features


# ---- expected -------------------------------------------------------------------------------------------------------


class ExpectedOutputs:
    """Gradients and features as of `random_outputs`, in expectation, from backward signals: a model on meta will do.

    Attributes:
        batch: the samples of the graph.
        positions: that a readout reads in each of them.
    """

    def __init__(self, graph: Graph, part: Graph, readout: Readout, plan: Plan | None, inputs: Described) -> None:
        """Run the forward signals, and count samples and positions; raises `OptionError` for one sample."""
        self.batch = batch_size(graph)
        if self.batch < 2:
            raise OptionError(
                f"predict=True needs a graph of two samples or more, and that of {graph.model} holds one: trace it "
                "with more, or give the model and an example with more"
            )
        weights = PrescribedWeights.of(part, plan)
        self._run = run_pass(part, weights, inputs=white_inputs(part) if inputs is None else inputs, keep=True)[1]
        self._shapes = {value: graph.values[value].shape for value in readout.values}
        self._axes = {value: features_axis(graph, value) for value in readout.values}
        each = ((shape, self._axes[value]) for value, shape in self._shapes.items())
        self.positions = max(math.prod(shape) // shape[axis] // self.batch for shape, axis in each)

    @property
    def power(self) -> float:
        """E f², the sum over readouts of the mean square of what they receive."""
        states = (self._run.states[value] for value in self._shapes)
        return sum(state.second_moment for state in states if state is not None)

    def summed(self, across: bool, within: bool) -> tuple[Gradients, float]:
        """Return gradients of the sum of f over all positions, and the sum of h_i·h_j over pairs of them.

        Pairs are of one position each, of all positions of a sample (``within``), or of different samples (``across``).
        """
        cotangents: dict[int, float | State] = {}
        features = 0.0
        for value, shape in self._shapes.items():
            mine = self._axes[value]
            shared = [axis != mine and (across if axis == 0 else within) for axis in range(len(shape))]
            pairs = [1.0 if each else None for each in shared]
            cotangents[value] = make_state(shape, 0.0, 1.0 / shape[mine], pairs=pairs)
            state = self._run.states[value]
            if state is not None:
                features += _pair_sum(state, [axis for axis, each in enumerate(shared) if each])
        return gradients_of(self._run, cotangents), features


def _pair_sum(state: State, over: Sequence[int]) -> float:
    """Return the sum of E[x_p x_q] over all pairs of elements that differ along some axes at most."""
    atoms = [atom for axis in over for atom in state.layout.axes[axis]]
    others = [atom for atom in range(len(state.lengths)) if atom not in atoms]
    covariance = kernels.pair_mean(kernels.at_zero(state.covariance(), others), state.lengths, atoms)
    mean = kernels.mean_over(state.mean, atoms)
    pairs = math.prod(state.lengths) * math.prod(state.lengths[atom] for atom in atoms)
    return pairs * (kernels.average(covariance) + kernels.average(mean * mean))
