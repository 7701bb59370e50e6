"""The neural tangent kernel in the limit of large width, worked out from the graph alone.

Source: Jacot, Gabriel & Hongler 2018 (arXiv 1806.07572); for any traced graph, as sums of products of forward and
backward second moments, Yang 2020 (arXiv 2006.14548), section 3.
"""

from __future__ import annotations

import math

from wellposed.errors import RateError
from wellposed.graphs import Graph
from wellposed.operators.contraction import contractions
from wellposed.options import check_positive
from wellposed.plans import Plan
from wellposed.rates.passes import find_readout, outputs_of, trained, white_inputs
from wellposed.rates.rate import RelativeRate
from wellposed.signals.examples import Described
from wellposed.signals.passes.backward import Gradients, back_propagate
from wellposed.signals.weights.prescribed import PrescribedWeights

NAME = "ntk"


def ntk(
    graph: Graph,
    *,
    plan: Plan | None = None,
    exponent: float = 0.5,
    inputs: Described = None,
    per_layer: bool = False,
) -> RelativeRate:
    """Return the relative rate NTK^(-exponent).

    NTK is the mean over outputs f_j of one sample of the sum over trained parameters of (df_j/dθ)², in expectation over
    weights and inputs: for each weight, the second moment of the signal that enters it times that of the gradient that
    leaves it, summed over the positions that share it with the correlations that both have there. No data, no real
    numbers: a model on meta will do.

    Args:
        graph: from `wellposed.trace`.
        plan: take the weights' variances from it instead of from the model's current weights.
        exponent: 1 is stability of gradient descent on a squared loss; 1/2 is near what best rates follow as
            measured (0.40 to 0.47, each of seven families held out; docs/results/rates.md).
        inputs: descriptors as for `wellposed.propagate`; by default white of variance 1, and random indices.
        per_layer: also return `layer_multipliers`, from the same pass.

    Returns:
        The rate; ``figures`` hold the kernel (``ntk``) and the shares of it that are readout weights (``readout``) and
        that rest on nodes without an exact rule (``inexact``: how many nodes these are).

    Raises:
        OptionError: an exponent that is no positive number.
        RateError: no trained parameter reaches the output.
    """
    check_positive(exponent=exponent)
    gradients, count = _gradients(graph, plan, inputs)
    names = trained(graph)
    powers = {name: gradients.power(name) / count for name in names}
    kernel = sum(powers.values())
    if not math.isfinite(kernel) or kernel <= 0.0:
        raise RateError(
            f"the tangent kernel of {graph.model} is {kernel}: "
            + ("no parameter that requires gradients reaches its output" if not names else "its signals die or explode")
            + "; unfreeze parameters, or draw its weights from a plan (plan=wellposed.plan(...))"
        )
    weights = find_readout(graph).weights
    last = sum(powers.get(graph.values[value].name, 0.0) for value in weights)
    return RelativeRate(
        value=kernel**-exponent,
        rule=NAME,
        reason=(
            f"NTK^-{exponent:g}, NTK = {kernel:.4g} the infinite-width tangent kernel of one output and one input, "
            f"summed over {len(names)} parameters; weights {'of the plan' if plan is not None else 'as they are'} "
            "(arXiv 2006.14548, section 3)"
        ),
        figures={
            "ntk": kernel,
            "readout": last / kernel,
            "exponent": float(exponent),
            "inexact": float(len(gradients.outcomes)),
        },
        per_parameter=_multipliers(graph, gradients) if per_layer else {},
        warnings=gradients.warnings,
    )


def layer_multipliers(graph: Graph, *, plan: Plan | None = None, inputs: Described = None) -> dict[str, float]:
    """Return a multiplier on the rate for each trained parameter: 1 / K_k of its layer, with mean 1 over parameters.

    K_k is the share of the tangent kernel of a weight that a signal is contracted with. A bias takes the multiplier of
    its weight, and all other parameters take the weights' mean.

    Raises:
        RateError: no trained weight reaches the output.
    """
    return _multipliers(graph, _gradients(graph, plan, inputs)[0])


def _multipliers(graph: Graph, gradients: Gradients) -> dict[str, float]:
    """Return the rate of each parameter over the mean: one over its layer's squared gradient, a bias that of its
    weight.
    """
    names = trained(graph)
    uses = contractions(graph)
    inverse = {
        use.parameter: 1.0 / gradients.power(use.parameter)
        for use in uses
        if use.parameter in names and gradients.power(use.parameter) > 0
    }
    if not inverse:
        raise RateError(f"no weight of {graph.model} that requires gradients reaches its output: there are no layers")
    mean = sum(inverse.values()) / len(inverse)
    layers = {use.bias: use.parameter for use in uses if use.bias is not None and use.parameter is not None}
    raw = {name: inverse.get(name, inverse.get(layers.get(name, name), mean)) for name in names}
    level = sum(raw.values()) / len(raw)
    return {name: value / level for name, value in raw.items()}


def _gradients(graph: Graph, plan: Plan | None, inputs: Described) -> tuple[Gradients, int]:
    """Return the gradients for cotangents of variance 1 at the outputs, and the number of output elements."""
    weights = PrescribedWeights.of(graph, plan)
    outputs = outputs_of(graph)
    descriptors = white_inputs(graph) if inputs is None else inputs
    gradients = back_propagate(graph, weights, inputs=descriptors, cotangents=dict.fromkeys(outputs, 1.0))
    return gradients, sum(math.prod(graph.values[value].shape) for value in outputs)
