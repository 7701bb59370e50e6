"""Signals measured on real passes, over several draws of weights and inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from wellposed import plans
from wellposed.errors import OptionError, RunError
from wellposed.graphs import Graph, Node, Parameter, graph_of, run
from wellposed.graphs.graph import once
from wellposed.measuring.batches import Batches, Inputs, stream
from wellposed.measuring.differentiate import there_and_back
from wellposed.measuring.infinities import Infinities
from wellposed.measuring.moments import Accumulator
from wellposed.operators.contraction import contractions
from wellposed.plans import Plan
from wellposed.signals import Signals
from wellposed.signals.passes.propagation import Cotangents, cotangent_variances
from wellposed.structure.reach import (
    added_parameters,
    depending,
    input_entries,
    node_entries,
    parameter_entries,
)
from wellposed.structure.roles import roles
from wellposed.structure.samples import samples_of
from wellposed.surroundings import settled

Drawing: TypeAlias = Callable[[int], Mapping[str, Tensor]]
"""The parameters of each pass by name, from the pass's index."""


@settled()
def measure(
    model: nn.Module | Graph,
    *args: Any,
    plan: Plan | None = None,
    draws: int = 8,
    inputs: Inputs = None,
    seed: int = 0,
    training: bool = True,
    backward: bool = False,
    cotangents: Cotangents = 1.0,
    **kwargs: Any,
) -> Signals:
    """Return the mean and variance of every floating-point signal, seen on real passes; the model is only read.

    The traced graph is run on tensors of its own, once per draw: each time with new inputs, and, where a plan is
    given, with new weights drawn from it (parameters that the plan leaves alone keep the model's values). Without a
    plan the model's current weights are kept, and ``log2_std`` and ``log2_error`` speak of the inputs alone. In
    training mode, dropout and other random operators differ from draw to draw, and batch norm uses its batch.

    Args:
        model: the model, or its graph (which was made with ``args``, ``kwargs`` and ``training`` of its own).
        *args: example inputs.
        plan: how to draw the weights.
        draws: number of passes, >= 1; standard errors need 2.
        inputs: described, as for `wellposed.propagate` (None for the defaults), and drawn anew for every pass; or an
            iterable of batches or a function from the draw's index to one (repeated when shorter than ``draws``). A
            batch is a tensor, a tuple of positional arguments or a dict of keyword arguments, with the example's
            structure and shapes. Integer inputs that are described are drawn where they index an embedding; others,
            booleans, and numbers that the model makes integers of, keep the example's values.
        seed: of weights, inputs and random operators.
        training: the mode to trace in.
        backward: also run back from the outputs, and measure the gradient with respect to every tensor, parameter and
            input.
        cotangents: variance of the normal numbers, drawn anew for every pass, that a backward pass starts from; as
            for `wellposed.propagate`.
        **kwargs: example inputs by keyword.

    Returns:
        `Signals` tagged "measured" of the outputs of every node, in execution order and under the graph's names.
        ``mean`` and ``var`` are pooled over elements and draws, ``log2_std`` is the standard deviation over draws of
        log2 of the second moment, ``log2_mean`` its mean, ``log2_error`` the standard error of log2 of the mean second
        moment. Of tensors that were masked with infinities (by constants, buffers or inputs) the finite elements count;
        infinities that arise in the pass, and NaN, are kept. Where a shape depends on values (what a condition finds),
        and an operator refuses another one than was traced, the signals up to there are returned, with its name.
        With ``backward``, ``gradients``, ``parameter_gradients`` and ``input_gradients`` as `wellposed.propagate` gives
        them, tensors that are not differentiable left out; frozen parameters count like all others.

    Raises:
        OptionError: ``draws`` < 1, or cotangents that are no variances of outputs.
        InputError: inputs that do not fit the graph.
        PlanError: parameters without values (a model on meta) that the plan does not draw.
        UnsupportedError: an operator that cannot be differentiated, under ``backward``.
    """
    if draws < 1:
        raise OptionError(f"draws must be at least 1, got {draws}")
    graph = graph_of(model, args, kwargs, training)
    given = cotangent_variances(graph, cotangents, backward)
    return passes(graph, Batches(graph, inputs, seed).take(range(draws)), drawing(graph, plan, seed), seed, given)


def drawing(graph: Graph, plan: Plan | None, seed: int) -> Drawing:
    """Return the weights of each pass: drawn anew where the plan draws them, the model's own elsewhere."""
    values = _own if plan is None else _made_again
    own = {name: values(parameter) for name, parameter in graph.parameters.items()}
    return lambda draw: plans.drawn_or_own(own, plan, stream(seed, draw, "weights"), graph.model)


def _own(parameter: Parameter) -> Tensor:
    return parameter.tensor.detach()


def _made_again(parameter: Parameter) -> Tensor:
    """Return a parameter's tensor, or of one on meta what the model makes again, where that is known whole: what a plan
    keeps.
    """
    again = parameter.values if parameter.tensor.is_meta else None
    return _own(parameter) if again is None or again.shape != parameter.shape else again.detach()


def unvaried(graph: Graph, plan: Plan | None) -> frozenset[str]:
    """Return the names of the parameters that a signal is contracted with, and that are alike in every pass."""
    used = {use.parameter for use in contractions(graph) if use.parameter is not None}
    return frozenset(used & _kept(graph, plan))


def unvaried_arrays(graph: Graph, plan: Plan | None) -> frozenset[str]:
    """Return the names of other parameters of several axes that are alike in every pass: tables that are signals
    themselves, the numbers of flows. As those of weights, the prediction takes their elements as draws.
    """
    arrays = {name for name, role in roles(graph).items() if role == "other" and len(graph.parameters[name].shape) > 1}
    return frozenset(arrays & _kept(graph, plan))


def _kept(graph: Graph, plan: Plan | None) -> frozenset[str]:
    if plan is None:
        return frozenset(graph.parameters)
    kept = {name for name, p in plan.prescriptions.items() if p.action == "keep" or isinstance(p, plans.Rescaled)}
    return frozenset(kept & graph.parameters.keys())


def one_set_of(graph: Graph, plan: Plan | None) -> frozenset[int]:
    """Return the values that show one set of weights alone: those behind contractions with weights that do not vary,
    and those behind other arrays that do not, where no weight that does comes in (offsets may).
    """
    drawn = {name for name, parameter in graph.parameters.items() if len(parameter.shape) > 1} - _kept(graph, plan)
    if plan is not None:
        drawn -= {name for name, told in plan.prescriptions.items() if isinstance(told, plans.Constant)}
    varied = depending(graph, drawn)
    arrays = depending(graph, unvaried_arrays(graph, plan)) - varied
    return depending(graph, unvaried(graph, plan)) | arrays


def shuffling(graph: Graph, plan: Plan | None, seed: int) -> Drawing:
    """Return weights for each pass that have the second moments of those that do not vary, and nothing else of them.

    The elements of every such parameter that a signal is contracted with are put in a random order, with random signs,
    as the prediction takes them, those of other arrays in a random order; all others are those of `drawing` (gains,
    biases and masks keep their values).
    """
    signed, drawn = unvaried(graph, plan), drawing(graph, plan, seed)
    shuffled = signed | unvaried_arrays(graph, plan)

    def weights(draw: int) -> dict[str, Tensor]:
        """Return the weights of a draw, the chosen ones permuted, some with random signs, each in its own shape."""
        generator = torch.Generator().manual_seed(stream(seed, draw, "shuffle"))
        own = dict(drawn(draw))
        for name in sorted(shuffled):
            tensor, count = own[name], own[name].numel()
            order = torch.randperm(count, generator=generator).to(tensor.device)
            values = tensor.flatten()[order]
            if name in signed:
                values = values * (torch.randint(0, 2, (count,), generator=generator).to(tensor) * 2 - 1)
            own[name] = values.view_as(tensor)
        return own

    return weights


def passes(
    graph: Graph,
    batches: Iterable[Mapping[int, Tensor]],
    weights: Drawing,
    seed: int,
    cotangents: Mapping[int, float] | None = None,
    first: int = 0,
    *,
    back_each: int = 1,
) -> Signals:
    """Return what `measure` does, for inputs that are given by value id, one batch for each pass.

    ``weights`` gives the parameters of each pass by name.

    Gradients are measured where the variances of ``cotangents`` are given, by value id of the outputs, in the first
    pass and then in each ``back_each``-th one. ``first`` is the index of the first pass: other passes draw other
    numbers.
    """
    forward, backward, ended = Accumulator(samples_of(graph)), Accumulator(), len(graph)
    added = () if cotangents is None else added_parameters(graph, contractions(graph))
    for draw, batch in enumerate(batches, first):
        parameters = weights(draw)
        forward.next_pass(Infinities(graph, parameters, batch))
        noise = stream(seed, draw, "operators")
        if cotangents is None:
            ended = min(ended, _as_far_as_it_goes(graph, parameters, batch, noise, forward))
        elif (draw - first) % back_each:
            run(graph, parameters=parameters, inputs=batch, observe=forward.observe, seed=noise)
        else:
            backward.next_pass()
            generator = torch.Generator().manual_seed(stream(seed, draw, "cotangents"))
            there_and_back(graph, added, parameters, batch, noise, cotangents, generator, forward, backward)
    signals = forward.signals(graph, node_entries(graph))
    if cotangents is None:
        return replace(signals, ended=graph.nodes[ended].name) if ended < len(graph) else signals
    nodes, parameters_, inputs_ = (
        backward.signals(graph, entries(graph), centred=False)
        for entries in (node_entries, parameter_entries, input_entries)
    )
    return replace(signals, gradients=nodes, parameter_gradients=parameters_, input_gradients=inputs_)


def _as_far_as_it_goes(
    graph: Graph, parameters: Mapping[str, Tensor], batch: Mapping[int, Tensor], seed: int, into: Accumulator
) -> int:
    """Run a pass, and return the index of the node that it ended at.

    That is the last one and one more, or one that refuses what it is given because a shape that depends on values (of
    what is found by a condition, of what occurs at all) is not the one that was traced.
    """
    at, differs, varying = 0, False, _varying_shapes(graph)

    def observe(node: Node, outputs: Sequence[Tensor]) -> None:
        """Record a node's outputs, and whether their shapes differ from those that were traced."""
        nonlocal at, differs
        at = node.index + 1
        if node.index in varying:
            traced = (graph.values[value].shape for value in node.outputs)
            differs |= any(tuple(tensor.shape) != shape for tensor, shape in zip(outputs, traced, strict=True))
        into.observe(node, outputs)

    try:
        run(graph, parameters=parameters, inputs=batch, observe=observe, seed=seed)
    except RunError:
        if not differs:
            raise
    return at


@once
def _varying_shapes(graph: Graph) -> frozenset[int]:
    """Return the indices of the nodes that make tensors whose shape depends on values."""
    return frozenset([node.index for node in graph.nodes if torch.Tag.dynamic_output_shape in node.op.tags])
