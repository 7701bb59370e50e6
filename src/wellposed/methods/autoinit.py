"""AutoInit: weight scales from the mean and variance of every signal.

Source: Bingham & Miikkulainen, *AutoInit: Analytic Signal-Preserving Weight Initialization for Neural Networks*
(arXiv 2109.08958), Algorithm 1: each weight gets the variance that brings the output of its contraction to (0, ν).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from torch import Tensor

from wellposed.graphs import Graph
from wellposed.methods.drafting import Adjustments, Settings, drafted
from wellposed.methods.options import Draft, Request, method
from wellposed.plans import RandomDistribution
from wellposed.signals import Input


@method("autoinit")
def autoinit(
    graph: Graph,
    request: Request,
    *,
    target_variance: float = 1.0,
    distribution: RandomDistribution = "truncated_normal",
    center: bool = False,
    inputs: Input | Tensor | Mapping[str, Input | Tensor] | None = None,
    state: Literal["full", "independent"] = "full",
    strict: bool = False,
    zeros: Literal["keep", "write"] = "keep",
    zero_signal: Literal["error", "fan_in"] = "fan_in",
    biases: Literal["zero", "own"] = "zero",
    direction: Literal["forward", "backward", "both"] = "forward",
    objective: Literal["variance", "isometry"] = "variance",
) -> Draft:
    """Give every contracted weight the variance that brings its output to mean 0 and variance ν (Algorithm 1).

    Options: ``target_variance`` ν; ``distribution`` (truncated_normal is cut at 2 σ with the std corrected);
    ``center`` (AutoInit++: each bias cancels the mean that its weight's row sums make of the incoming signal's mean);
    ``inputs`` as for `wellposed.propagate`; ``state`` ``"independent"`` for the paper's own assumptions; ``strict``
    raises for operators without a rule; ``zeros="write"`` also draws weights that the model initialises to zero, which
    are kept otherwise (gates, residual branches and readouts that start closed on purpose);
    ``zero_signal="fan_in"``: a weight that meets a signal of zeros first and another one later (the state of a loop)
    is given the variance that brings its last output to ν; one that meets nothing but zeros (behind a closed gate) is
    given ν / fan-in, with a warning; ``"error"`` raises `PlanError` for both. ``biases="own"`` draws the biases that
    the model makes at random with the standard deviation that it gives them, beside the variance ν of the weighted sum.

    ``direction="backward"`` chooses each variance such that the gradient with respect to the contraction's data has
    second moment ν, with independent cotangents of variance 1 at the outputs; ``"both"`` takes the harmonic mean of the
    forward and the backward variance, which for a linear layer is 2 / (fan_in + fan_out) (Glorot & Bengio 2010, eq.
    12). Weights whose scale norms take out of the gradient again, factors of products (gates, queries, keys, values)
    and those that no scale settles for are left to the forward pass, of the last with a warning. Both are
    *experimental*, as predicted gradients are off by more than half an octave on several nets.

    ``objective="isometry"`` asks for singular values of the input-output Jacobian near 1: orthogonal weights with gain²
    1 / E φ'², and signals small enough for the depth (Pennington, Schoenholz & Ganguli 2017); ``target_variance`` is
    the most that a first layer's output may have. Activations like ReLU do not allow it: then a warning says so.
    """
    settings = Settings(
        target_variance, distribution, center, inputs, state, strict, zeros, zero_signal, biases, direction, objective
    )
    return drafted(graph, request, settings, Adjustments())
