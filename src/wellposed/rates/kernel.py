"""Kernel rules: the rate from the tangent kernel of several inputs, what they share of it and what they do not.

Derived here. Residuals of a cross-entropy are bounded, so that features and readout grow together, as the square of the
rate times the kernel: the rate goes as the kernel's power -1/2. What inputs share of the kernel corrects itself from
step to step, what they do not share is noise to one another. Weights whose scale a norm takes away
(`wellposed.structure.scale_free`) are only turned by a step, and however large it is, by no more than half a
turn: they count in full where steps are small beside them, as in wide nets, and for less the larger steps are. The
kernel is that of Jacot, Gabriel & Hongler 2018 (arXiv 1806.07572), of the net below a random readout and of the readout
itself.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from wellposed.errors import OptionError, RateError
from wellposed.graphs import Graph
from wellposed.operators.norms import over_the_batch
from wellposed.options import check_integer
from wellposed.plans import Plan
from wellposed.rates.passes import (
    Readout,
    body,
    find_readout,
)
from wellposed.rates.random_outputs import SAMPLES, ExpectedOutputs, no_readout, random_outputs
from wellposed.rates.rate import RelativeRate
from wellposed.signals.examples import Described
from wellposed.signals.weights.prescribed import PrescribedWeights
from wellposed.structure import scale_free as structure

NAME = "kernel"
ALIKE = 0.95
"""Mean cosine between what the readout receives of different inputs from which on they look alike."""


TURNED = 1000.0
"""A weight's squared length over the most that its squared step counts for, where norms take its scale away.

Steps are in units of relative rates. On seven families of nets with norms 500 to 2,000 do about equally well
(benchmarks/turned.py).
"""
_FINE = 2.0**0.125
_FARTHEST = 512


@dataclass(frozen=True, slots=True)
class Kernel:
    """The tangent kernel of f(x) = <w, h(x)>, h what the readout receives at one position and w random, E|w|² = 1.

    Attributes:
        parts: by parameter the mean over inputs with themselves, and over pairs of different inputs.
        features: the same of the readout itself.
        alike: the mean of h_i·h_j over pairs of different inputs, over that of |h_i|².
    """

    parts: Mapping[str, tuple[float, float]]
    features: tuple[float, float]
    alike: float = 0.0

    def counted(self, weights: Mapping[str, float] | None = None) -> tuple[float, float]:
        """Return K and K̄, each parameter times its weight, or in full."""
        weights = weights or {}
        own, shared = self.features
        for name, part in self.parts.items():
            weight = weights.get(name, 1.0)
            own, shared = own + weight * part[0], shared + weight * part[1]
        return own, shared

    def turned(self, squares: Mapping[str, float], noise: float) -> dict[str, float]:
        """Return for what part each parameter in ``squares`` counts, by how far a step at the rate itself turns it.

        That is 1 / (1 + `TURNED` r² K_θ / |θ|²) at the rate r that comes out: the least one, if there are several.
        Without one nothing else limits the rate, and all count in full.

        Args:
            squares: squared lengths |θ|² of the parameters whose scale norms take away.
            noise: see `kernel`.
        """

        def weights(rate: float) -> dict[str, float]:
            steps = {name: rate**2 * self.parts[name][0] for name in squares}
            return {
                name: square / (square + TURNED * steps[name]) if square else 0.0 for name, square in squares.items()
            }

        def further(rate: float) -> bool:
            return rate_of(*self.counted(weights(rate)), noise) > rate

        low = rate_of(*self.counted(), noise)
        for _ in range(_FARTHEST):
            high = low * _FINE
            if not further(high):
                break
            low = high
        else:
            return dict.fromkeys(squares, 1.0)
        for _ in range(40):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if further(middle) else (low, middle)
        return weights(low)


def rate_of(own: float, shared: float, noise: float) -> float:
    """Return K^(-1/2) (K̄/K)^(1/4) (1 - K̄/K)^(-3 noise / 4)."""
    if not 0.0 < own < math.inf:
        return math.inf
    part = max(shared / own, 1.0 / SAMPLES)
    return float(own**-0.5 * part**0.25 * max(1.0 - part, 1.0 / SAMPLES) ** (-0.75 * noise))


def kernel(
    graph: Graph,
    *,
    plan: Plan | None = None,
    samples: int = SAMPLES,
    predict: bool = False,
    scale_free: bool | None = None,
    noise: float = 0.0,
    inputs: Described = None,
    seed: int = 0,
) -> RelativeRate:
    """Return the relative rate K^(-1/2) (K̄/K)^(1/4), from the tangent kernels K of one input and K̄ of two.

    With h_i what the readout receives of input i at one position, w a random readout with E|w|² = 1 and g_i the
    gradient of <w, h_i> with respect to the parameters before the readout, K_ij = g_i·g_j + h_i·h_j; K is the mean
    over i = j and K̄ over i ≠ j (without a readout, the second term is missing). Of a parameter θ whose scale norms take
    away the part counts that `Kernel.turned` gives. One forward and backward pass for each input, and no derivative of
    the features. Only the gradients' sum is kept.

    Dropout is off. A batch norm in training mode uses the statistics of the batch that the graph was traced with.

    Args:
        graph: from `wellposed.trace`.
        plan: draw the weights from it instead of taking the model's current ones.
        samples: number of random inputs.
        predict: work K and K̄ out from the graph alone, in expectation over weights and inputs, by backward signals
            whose cotangents are the same for all inputs: no passes, and a model on meta will do. The graph must hold
            two samples or more, which `wellposed.rates.relative` sees to.
        scale_free: True counts parameters whose scale norms take away in full, False leaves them out, as None does
            where batch norms use the statistics of the batch.
        noise: 0; 1 adds (1 - K̄/K)^(-3/4), which makes it λ^(1/4) κ^(-3/4), λ the mean and κ the centred trace of K_ij:
            then only what inputs do not share limits the rate.
        inputs: descriptors as for `wellposed.propagate`; by default white of variance 1, and random indices.
        seed: of inputs and the readout.

    Returns:
        The rate; ``figures`` hold K (``own``) and K̄ (``shared``) as they were counted, and the part of the kernel of
        the parameters whose scale norms take away that counts (``turned``; 1 without such, 0 where they are left out).

    Raises:
        OptionError: fewer than two samples, or ``noise`` outside of [0, 1].
        RateError: no trained parameter lies before the readout, nothing depends on them, or their effect overflows.
    """
    check_integer(2, samples=samples)
    if not 0.0 <= noise <= 1.0:
        raise OptionError(f"noise must be between 0 and 1, received {noise!r}")
    readout = find_readout(graph)
    part, every = body(graph, readout)
    free, scale_free = _without_scale(part, every, scale_free)
    names = every if scale_free is None else tuple(name for name in every if name not in free)
    found = (
        predicted(graph, part, names, readout, plan, inputs)
        if predict
        else measured(graph, part, names, readout, plan, samples, inputs, seed)
    )
    whole, _ = found.counted()
    if not math.isfinite(whole) or whole <= 0.0:
        raise RateError(
            f"the tangent kernel below the readout of {graph.model} is {whole}: its signals die or explode; draw "
            "its weights from a plan first (plan=wellposed.plan(...)), or look for the node with wellposed.propagate"
        )
    weights = found.turned(squares(part, plan, free), noise) if free and scale_free is None else {}
    own, shared = found.counted(weights)
    turned = 0.0 if free and scale_free is False else _mean_weight(found, weights)
    where = ", ".join(graph.values[value].name for value in readout.values)
    how = "predicted" if predict else f"measured on {samples} random inputs"
    formula = "K^(-1/2) (K̄/K)^(1/4)" + (f" (1 - K̄/K)^(-{0.75 * noise:g})" if noise else "")
    return RelativeRate(
        value=rate_of(own, shared, noise),
        rule=NAME,
        reason=(
            f"{formula}, K = {own:.4g} the tangent kernel of one input below a random readout ({where}) and "
            f"K̄ = {shared:.4g} that of two, {how}, over {len(names)} parameters{_said(len(free), scale_free, turned)}"
        ),
        figures={
            "own": own,
            "shared": shared,
            "turned": turned,
            "noise": float(noise),
            "samples": float(samples),
        },
        warnings=_warnings(graph, readout, found),
    )


def _without_scale(part: Graph, names: Collection[str], scale_free: bool | None) -> tuple[frozenset[str], bool | None]:
    """Return the parameters whose scale norms take away, and how they count: in full, not at all, or in part (None)."""
    if scale_free:
        return frozenset(), scale_free
    if scale_free is None and any(over_the_batch(node) for node in part.nodes):
        scale_free = False  # gradients explode between batch norms, where they limit no rate
    return frozenset(names) & frozenset[str]().union(*structure.scale_free(part)), scale_free


def _mean_weight(found: Kernel, weights: Mapping[str, float]) -> float:
    """Return the mean of parameters' weights by their parts of the kernel; 1 where they have none."""
    full = sum(found.parts[name][0] for name in weights)
    return sum(weight * found.parts[name][0] for name, weight in weights.items()) / full if full else 1.0


def _said(count: int, scale_free: bool | None, turned: float) -> str:
    """Return in words how parameters count whose scale norms take away."""
    if not count:
        return ""
    how = "are left out" if scale_free is False else f"count for {turned:.0%} of theirs, by how far a step turns them"
    return f" ({count} whose scale norms take away {how})"


def squares(part: Graph, plan: Plan | None, names: Collection[str]) -> dict[str, float]:
    """Return squared lengths of parameters, in expectation over a plan's draws."""
    weights = PrescribedWeights.of(part, plan)
    known = {name: part.parameters[name] for name in sorted(names)}
    return {
        name: weights.state(parameter, 0).second_moment * math.prod(parameter.shape)
        for name, parameter in known.items()
    }


def _warnings(graph: Graph, readout: Readout, found: Kernel) -> tuple[str, ...]:
    """Return warnings of inputs that look alike, a missing readout, and batch norms in training mode."""
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


def measured(
    graph: Graph,
    part: Graph,
    names: Sequence[str],
    readout: Readout,
    plan: Plan | None = None,
    samples: int = SAMPLES,
    inputs: Described = None,
    seed: int = 0,
) -> Kernel:
    """Return the kernel of the parameters ``names``, by one forward and backward pass for each of some inputs."""
    total, diagonal = [torch.zeros(())] * len(names), [0.0] * len(names)
    lengths, received = 0.0, torch.zeros(())
    for gradients, features in random_outputs(graph, part, names, readout, plan, samples, inputs, seed):
        here = torch.cat([h.flatten().cpu() for h in features])
        received = received + here
        lengths += float(here.square().sum())
        for index, gradient in enumerate(gradients):
            diagonal[index] += float(gradient.square().sum())
            total[index] = total[index] + gradient

    def means(own: float, whole: float) -> tuple[float, float]:
        """Return the means over single inputs and over pairs, from the sums of g_i·g_i and of all g_i·g_j."""
        return own / samples, (whole - own) / (samples * (samples - 1))

    parts = {
        name: means(own, float(each.square().sum())) for name, own, each in zip(names, diagonal, total, strict=True)
    }
    own, shared = means(lengths, float(received.square().sum()))
    return Kernel(parts, (own, shared) if readout.weights else (0.0, 0.0), shared / own if own else 0.0)


# ---- predicted ------------------------------------------------------------------------------------------------------


def predicted(
    graph: Graph, part: Graph, names: Sequence[str], readout: Readout, plan: Plan | None, inputs: Described
) -> Kernel:
    """Return both kernels from signals: squared norms of summed gradients, by what cotangents have in common.

    For B samples of T positions each, cotangents of independent elements give B·T·K, those that the positions of a
    sample share the sum over pairs within samples, and those that all share the sum over all pairs.
    """
    expected = ExpectedOutputs(graph, part, readout, plan, inputs)
    batch, positions = expected.batch, expected.positions

    def power(across: bool, within: bool) -> list[float]:
        """Return the sums of h_i·h_j and of each parameter's g_i·g_j over pairs of positions, of several samples or
        one.
        """
        gradients, features = expected.summed(across, within)
        return [features, *map(gradients.power, names)]

    inside = power(across=False, within=True)
    single = inside if positions == 1 else power(across=False, within=False)
    whole = power(across=True, within=True)
    one, two = batch * positions, batch * (batch - 1) * positions**2
    between = [(every - mine) / two for every, mine in zip(whole, inside, strict=True)]
    (own, shared), *parts = zip((each / one for each in single), between, strict=True)
    return Kernel(
        dict(zip(names, parts, strict=True)),
        (own, shared) if readout.weights else (0.0, 0.0),
        shared / own if own else 0.0,
    )
