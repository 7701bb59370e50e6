"""Rule for steps whose size does not follow the gradient's, as Adam's: how far one step moves what a net computes.

Derived here. A step of Adam moves every parameter by about the rate, in the direction of its gradient's sign, so that
an output f changes by the rate times the 1-norm of its gradient. The rate for which that is a given part of the size of
f is the criterion of maximal updates (Yang & Hu 2021, arXiv 2011.14522), for such steps. Weights whose scale norms take
away count like all others: their steps are no smaller where their gradient is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from wellposed.errors import RateError
from wellposed.graphs import Graph
from wellposed.options import check_integer, check_positive
from wellposed.plans import Plan
from wellposed.rates.passes import Readout, body, find_readout
from wellposed.rates.random_outputs import SAMPLES, ExpectedOutputs, no_readout, random_outputs
from wellposed.rates.rate import RelativeRate
from wellposed.signals.examples import Described

NAME = "signed"


def signed(
    graph: Graph,
    *,
    plan: Plan | None = None,
    exponent: float = 2 / 3,
    samples: int = SAMPLES,
    predict: bool = False,
    inputs: Described = None,
    seed: int = 0,
) -> RelativeRate:
    """Return the relative rate (F/D)^exponent for Adam and the like, F the size of an output and D of its change.

    With h what the readout receives at one position, w a random readout with E|w|² = 1 and g the gradient of <w, h>
    with respect to the parameters before the readout: F² = E<w, h>², and D = Σ √E[g²] over all their elements, which is
    the 1-norm of the gradient of a batch whose samples pull at random, up to a constant. One forward and backward pass
    for each input; only the mean squares of the gradients' elements are kept.

    Dropout is off. A batch norm in training mode uses the statistics of the batch that the graph was traced with.

    Args:
        graph: from `wellposed.trace`.
        plan: draw the weights from it instead of taking the model's current ones.
        exponent: 1 is a change by a fixed part of F in the first step; best rates as measured follow powers of 0.4
            (small GPTs under AdamW) to 1 and more (perceptrons), and 2/3 is within a third of an octave on each.
        samples: number of random inputs.
        predict: work F and D out from the graph alone, in expectation over weights and inputs, by backward signals: no
            passes, and a model on meta will do. Elements of one parameter are taken for alike, which makes D larger,
            by a quarter to a third. The graph must hold two samples or more, which `wellposed.rates.relative` sees to.
        inputs: descriptors as for `wellposed.propagate`; by default white of variance 1, and random indices.
        seed: of inputs and the readout.

    Returns:
        The rate; ``figures`` hold F (``size``) and D (``change``).

    Raises:
        OptionError: no sample, or an exponent that is no positive number.
        RateError: no trained parameter lies before the readout, nothing depends on them, or their effect overflows.
    """
    check_positive(exponent=exponent)
    check_integer(1, samples=samples)
    readout = find_readout(graph)
    part, names = body(graph, readout)
    size, change = (
        _predicted(graph, part, names, readout, plan, inputs)
        if predict
        else _measured(graph, part, names, readout, plan, samples, inputs, seed)
    )
    if not (0.0 < change < math.inf and 0.0 < size < math.inf):
        raise RateError(
            f"what the readout of {graph.model} receives has the size {size:.4g}, and a step changes it by "
            f"{change:.4g}: its signals die or explode; draw its weights from a plan first "
            "(plan=wellposed.plan(...)), or look for the node with wellposed.propagate"
        )
    where = ", ".join(graph.values[value].name for value in readout.values)
    how = "predicted" if predict else f"measured on {samples} random inputs"
    return RelativeRate(
        value=(size / change) ** exponent,
        rule=NAME,
        reason=(
            f"(F/D)^{exponent:g}, F = {size:.4g} the size of a random readout ({where}) and D = {change:.4g} the "
            f"1-norm of its gradient, {how}, over {len(names)} parameters; for Adam, whose steps have a size of their "
            "own"
        ),
        figures={"size": size, "change": change, "exponent": float(exponent), "samples": float(samples)},
        warnings=no_readout(graph, readout),
    )


def _measured(
    graph: Graph,
    part: Graph,
    names: Sequence[str],
    readout: Readout,
    plan: Plan | None,
    samples: int,
    inputs: Described,
    seed: int,
) -> tuple[float, float]:
    """Return the root mean square of the features, and the sum of √E[g²] over elements of the gradients, by real
    passes.
    """
    squares: list[Tensor] | None = None
    power = 0.0
    for gradients, features in random_outputs(graph, part, names, readout, plan, samples, inputs, seed):
        power += sum(float(h.square().mean()) for h in features) / samples
        here = [g.square_() for g in gradients]
        squares = here if squares is None else [a.add_(b) for a, b in zip(squares, here, strict=True)]
    assert squares is not None
    return math.sqrt(power), sum(float(torch.sqrt(each / samples).sum()) for each in squares)


def _predicted(
    graph: Graph, part: Graph, names: Sequence[str], readout: Readout, plan: Plan | None, inputs: Described
) -> tuple[float, float]:
    """Return the same two figures in expectation, from signals."""
    expected = ExpectedOutputs(graph, part, readout, plan, inputs)
    gradients, _ = expected.summed(across=False, within=False)
    outputs = expected.batch * expected.positions
    counts = {name: graph.parameters[name].tensor.numel() for name in names}
    change = sum(math.sqrt(count * gradients.power(name) / outputs) for name, count in counts.items())
    return math.sqrt(expected.power), change
