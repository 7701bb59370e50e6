"""`wellposed.propagate`: from a graph to the signals of one pass, forward and, on request, backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import torch

from wellposed.errors import OptionError
from wellposed.graphs import Graph
from wellposed.options import check_not_negative
from wellposed.signals.context.parameters import Weights
from wellposed.signals.inputs import Input
from wellposed.signals.passes.forward import Assumptions, run_pass
from wellposed.signals.signal import Signals
from wellposed.signals.weights.planned import PlannedWeights
from wellposed.signals.weights.prescribed import Planned, Prescribed, PrescribedWeights
from wellposed.surroundings import settled

if TYPE_CHECKING:
    from wellposed.signals.passes.backward import Gradients

Cotangents = float | Mapping[str, float]


WeightsOf = Literal["current", "planned"] | Mapping[str, Prescribed] | Planned
"""Where the states of parameters come from."""


@settled()
def propagate(
    graph: Graph,
    *,
    inputs: Input | torch.Tensor | Mapping[str, Input | torch.Tensor] | None = None,
    weights: WeightsOf = "current",
    state: Assumptions = "full",
    strict: bool = False,
    backward: bool = False,
    cotangents: Cotangents = 1.0,
) -> Signals:
    """Return mean, variance and second moment of every floating-point tensor of the graph.

    Args:
        graph: from `wellposed.trace`.
        inputs: what is known of the inputs: one descriptor (or batch to measure) for all floating-point inputs, or one
            by input name; by default chosen from each input's shape and dtype (`Input.default`).
        weights: ``"current"`` (the model's values), ``"planned"`` (scales that bring each contraction's output to
            second moment 1), or a plan.
        state: ``"full"``, or ``"independent"`` for AutoInit's assumptions (independent Gaussian elements).
        strict: raise once, with the complete list, when operators have no rule.
        backward: also follow gradients from the outputs back to every tensor, parameters and inputs included.
            *Experimental*: on several nets the predicted gradients are off by more than half an octave.
        cotangents: variance of dL/d(output), whose elements are independent and of mean 0: one number for all
            floating-point outputs, or one by output name (outputs that are left out get none).

    Returns:
        Signals in execution order, each tagged exact, approximate, sampled or assumed. With ``backward``,
        ``gradients``, ``parameter_gradients`` and ``input_gradients`` hold dL/dv for every node's output, parameter and
        input v with respect to which an output is differentiable, under the forward signals' names, the parameters' and
        the inputs': mean 0, and as variance E[(dL/dv)²], pooled over elements. Weights count as independent of those
        met on the way forward (Yang 2020, arXiv 2006.14548), which is exact at large width.

    Raises:
        UnsupportedError: operators without a rule (or backward rule), under ``strict``.
        RuleError: a rule returned NaN, a negative variance or another shape.
        PlanError: a plan that does not fit the graph, or a weight that meets a zero signal.
        OptionError: unknown ``weights`` or ``state``; cotangents that are no variances of outputs; ``backward`` with
            ``state="independent"``, which says nothing of gradients.
    """
    provider = _provider(graph, weights)
    given = cotangent_variances(graph, cotangents, backward)
    if given is None:
        return run_pass(graph, provider, inputs=inputs, state=state, strict=strict)[0]
    if state == "independent":
        raise OptionError(
            "state='independent' stands for AutoInit's assumptions, which say nothing of gradients; leave it out, or "
            "backward=True"
        )
    from wellposed.signals.passes.backward import gradients_of, require_adjoints  # their rules take time to load

    if strict:
        require_adjoints(graph, given)
    signals, run = run_pass(graph, provider, inputs=inputs, state=state, strict=strict, keep=True)
    return _with(signals, gradients_of(run, given))


def in_two_steps(
    graph: Graph,
    *,
    inputs: Input | torch.Tensor | Mapping[str, Input | torch.Tensor] | None = None,
    weights: WeightsOf = "current",
) -> tuple[Signals, Callable[[], Signals]]:
    """Return the signals that `propagate` gives without gradients, and a function that adds the gradients to them."""
    signals, run = run_pass(graph, _provider(graph, weights), inputs=inputs, keep=True)

    def backward() -> Signals:
        from wellposed.signals.passes.backward import gradients_of

        return _with(signals, gradients_of(run, cotangent_variances(graph, 1.0, backward=True)))

    return signals, backward


def _provider(graph: Graph, weights: WeightsOf) -> Weights:
    """Return the provider of parameters' states that ``weights`` of `propagate` names."""
    if not isinstance(weights, str):
        if isinstance(weights, Mapping):
            return PrescribedWeights(graph, weights)
        return PrescribedWeights.of(graph, weights)
    if weights not in ("current", "planned"):
        raise OptionError(f"weights is 'current', 'planned' or a plan, not {weights!r}")
    return Weights(graph) if weights == "current" else PlannedWeights(graph)


def _with(signals: Signals, back: Gradients) -> Signals:
    return replace(signals, gradients=back.signals, parameter_gradients=back.parameters, input_gradients=back.inputs)


def cotangent_variances(graph: Graph, cotangents: Cotangents, backward: bool) -> dict[int, float] | None:
    """Return the variance of dL/d(output) by value id; None where nothing goes ``backward``.

    Raises:
        OptionError: a name that is no floating-point output of the graph, a number that is no variance, or cotangents
            for a pass that does not go backward.
    """
    if not backward:
        if cotangents != 1.0:
            raise OptionError("cotangents= is what a backward pass starts from; add backward=True, or leave it out")
        return None
    names = {graph.values[value].name: value for value in graph.outputs if graph.values[value].is_signal}
    given = cotangents if isinstance(cotangents, Mapping) else dict.fromkeys(names, cotangents)
    for name, var in given.items():
        if name not in names:
            raise OptionError(
                f"{graph.model} has no floating-point output {name!r} to start a gradient from; it has "
                + (", ".join(map(repr, names)) or "none")
            )
        check_not_negative(**{f"cotangents[{name!r}]": var})
    return {names[name]: float(var) for name, var in given.items()}
