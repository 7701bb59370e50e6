"""Kernel rules: the rate from the tangent kernel of several inputs, what they share of it and what they do not.

Derived here. Residuals of a cross-entropy are bounded, so that features and readout grow together, as the square of the
rate times the kernel: the rate goes as the kernel's power -1/2. What inputs share of the kernel corrects itself from
step to step, what they do not share is noise to one another. Weights whose scale a norm takes away
(`wellposed.signals.structure.scale_free`) are left out unless asked for: in narrow nets they do not limit the rate, as
measured; in wide ones they do. The kernel is that of Jacot, Gabriel & Hongler 2018 (arXiv 1806.07572), of the net below
a random readout and of the readout itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from wellposed.errors import OptionError, RateError
from wellposed.graphs import Graph
from wellposed.options import check_integer
from wellposed.plans import Plan
from wellposed.rates.passes import (
    Readout,
    body,
    find_readout,
)
from wellposed.rates.random_outputs import SAMPLES, ExpectedOutputs, no_readout, random_outputs
from wellposed.rates.rate import RelativeRate
from wellposed.signals.inputs import Described
from wellposed.signals.operators.norms import over_the_batch
from wellposed.signals.structure import scale_free as structure

NAME = "kernel"
ALIKE = 0.95
"""Mean cosine between what the readout receives of different inputs from which on they look alike."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """The tangent kernel of f(x) = <w, h(x)>, h what the readout receives at one position and w random, E|w|² = 1.

    Attributes:
        own: K, its mean over inputs with themselves.
        shared: K̄, its mean over pairs of different inputs.
        alike: the mean of h_i·h_j over pairs of different inputs, over that of |h_i|².
    """

    own: float
    shared: float
    alike: float = 0.0

    def rate(self, noise: float) -> float:
        """Return K^(-1/2) (K̄/K)^(1/4) (1 - K̄/K)^(-3 noise / 4)."""
        shared = max(self.shared / self.own, 1.0 / SAMPLES)
        return float(self.own**-0.5 * shared**0.25 * max(1.0 - shared, 1.0 / SAMPLES) ** (-0.75 * noise))


def kernel(
    graph: Graph,
    *,
    plan: Plan | None = None,
    samples: int = SAMPLES,
    predict: bool = False,
    scale_free: bool = False,
    noise: float = 0.0,
    inputs: Described = None,
    seed: int = 0,
) -> RelativeRate:
    """Return the relative rate K^(-1/2) (K̄/K)^(1/4), from the tangent kernels K of one input and K̄ of two.

    With h_i what the readout receives of input i at one position, w a random readout with E|w|² = 1 and g_i the
    gradient of <w, h_i> with respect to the parameters before the readout whose scale matters,
    K_ij = g_i·g_j + h_i·h_j; K is the mean over i = j and K̄ over i ≠ j (without a readout, the second term is missing).
    One forward and backward pass for each input, and no derivative of the features. Only the gradients' sum is kept.

    Dropout is off. A batch norm in training mode uses the statistics of the batch that the graph was traced with.

    Args:
        graph: from `wellposed.trace`.
        plan: draw the weights from it instead of taking the model's current ones.
        samples: number of random inputs.
        predict: work K and K̄ out from the graph alone, in expectation over weights and inputs, by backward signals
            whose cotangents are the same for all inputs: no passes, and a model on meta will do. The graph must hold
            two samples or more, which `wellposed.rates.relative` sees to.
        scale_free: count parameters whose scale norms take away as well: better where all nets have norms, and at
            width 512; worse where nets 64 wide with norms and without are compared.
        noise: 0; 1 adds (1 - K̄/K)^(-3/4), which makes it λ^(1/4) κ^(-3/4), λ the mean and κ the centred trace of K_ij:
            then only what inputs do not share limits the rate.
        inputs: descriptors as for `wellposed.propagate`; by default white of variance 1, and random indices.
        seed: of inputs and the readout.

    Returns:
        The rate; ``figures`` hold K (``own``) and K̄ (``shared``).

    Raises:
        OptionError: fewer than two samples, or ``noise`` outside of [0, 1].
        RateError: no trained parameter lies before the readout, nothing depends on them, or their effect overflows.
    """
    check_integer(2, samples=samples)
    if not 0.0 <= noise <= 1.0:
        raise OptionError(f"noise must be between 0 and 1, received {noise!r}")
    readout = find_readout(graph)
    part, every = body(graph, readout)
    free = frozenset[str]() if scale_free else frozenset[str]().union(*structure.scale_free(part))
    names = tuple(name for name in every if name not in free)
    found = (
        _predicted(graph, part, names, readout, plan, inputs)
        if predict
        else _measured(graph, part, names, readout, plan, samples, inputs, seed)
    )
    if not math.isfinite(found.own) or found.own <= 0.0:
        raise RateError(
            f"the tangent kernel below the readout of {graph.model} is {found.own}: its signals die or explode; draw "
            "its weights from a plan first (plan=wellposed.plan(...)), or look for the node with wellposed.propagate"
        )
    where = ", ".join(graph.values[value].name for value in readout.values)
    how = "predicted" if predict else f"measured on {samples} random inputs"
    formula = "K^(-1/2) (K̄/K)^(1/4)" + (f" (1 - K̄/K)^(-{0.75 * noise:g})" if noise else "")
    return RelativeRate(
        value=found.rate(noise),
        rule=NAME,
        reason=(
            f"{formula}, K = {found.own:.4g} the tangent kernel of one input below a random readout ({where}) and "
            f"K̄ = {found.shared:.4g} that of two, {how}, over {len(names)} parameters"
            + (
                f" ({left_out} whose scale norms take away are left out)"
                if (left_out := len(every) - len(names))
                else ""
            )
        ),
        figures={"own": found.own, "shared": found.shared, "noise": float(noise), "samples": float(samples)},
        warnings=_warnings(graph, readout, found),
    )


def _warnings(graph: Graph, readout: Readout, found: Kernel) -> tuple[str, ...]:
    warnings = []
    if found.alike > ALIKE:
        warnings.append(
            f"inputs look alike to the readout of {graph.model} (a mean cosine of {found.alike:.3f}). If its signals "
            "die out, the kernel of now says little of that once they have grown: draw its weights from a plan first "
            "(wellposed.initialize_, or plan=). If it pools, white inputs are averaged away: give inputs="
        )
    warnings += no_readout(graph, readout)
    if any(over_the_batch(node) for node in graph.nodes):
        warnings.append(
            "with batch norms in training mode best rates hardly depended on the architecture, as measured (16 nets: "
            "one rate for all is off by .3 octaves in the median, this rule by 1.3): take the base's rate as it is"
        )
    return tuple(warnings)


# ---- measured -------------------------------------------------------------------------------------------------------


def _measured(
    graph: Graph,
    part: Graph,
    names: Sequence[str],
    readout: Readout,
    plan: Plan | None,
    samples: int,
    inputs: Described,
    seed: int,
) -> Kernel:
    diagonal, lengths, total, received = 0.0, 0.0, None, torch.zeros(())
    for gradients, features in random_outputs(graph, part, names, readout, plan, samples, inputs, seed):
        here = torch.cat([h.flatten().cpu() for h in features])
        received = received + here
        lengths += float(here.square().sum())
        parts = [*gradients, *(features if readout.weights else [])]
        diagonal += sum(float(part.square().sum()) for part in parts) / samples
        total = parts if total is None else [a + b for a, b in zip(total, parts, strict=True)]
    assert total is not None
    whole = sum(float(part.square().sum()) for part in total)
    alike = (float(received.square().sum()) - lengths) / ((samples - 1) * lengths) if lengths else 0.0
    return Kernel(diagonal, (whole - samples * diagonal) / (samples * (samples - 1)), alike)


# ---- predicted ------------------------------------------------------------------------------------------------------


def _predicted(
    graph: Graph, part: Graph, names: Sequence[str], readout: Readout, plan: Plan | None, inputs: Described
) -> Kernel:
    """Return both kernels from signals: squared norms of summed gradients, by what cotangents have in common.

    For B samples of T positions each, cotangents of independent elements give B·T·K, those that the positions of a
    sample share the sum over pairs within samples, and those that all share the sum over all pairs.
    """
    expected = ExpectedOutputs(graph, part, readout, plan, inputs)
    batch, positions = expected.batch, expected.positions

    def power(across: bool, within: bool) -> tuple[float, float]:
        """Return the sums of g_i·g_j and of h_i·h_j over pairs of positions, of different samples too or of one."""
        gradients, features = expected.summed(across, within)
        return sum(gradients.power(name) for name in names), features

    inside = power(across=False, within=True)
    single = inside if positions == 1 else power(across=False, within=False)
    whole = power(across=True, within=True)
    counted = 1.0 if readout.weights else 0.0
    one, two = batch * positions, batch * (batch - 1) * positions**2
    between = [(every - mine) / two for every, mine in zip(whole, inside, strict=True)]
    return Kernel(
        (single[0] + counted * single[1]) / one,
        between[0] + counted * between[1],
        between[1] * one / single[1] if single[1] else 0.0,
    )
