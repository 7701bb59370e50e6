"""LSUV: weights scaled one after the other, in the order of the pass, so that each output has unit variance."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from itertools import zip_longest
from typing import Any

import torch
from pydantic import JsonValue
from torch import Tensor, nn

from wellposed import ranks
from wellposed.errors import GradientError, InputError, RankError
from wellposed.gradients.batches import Batch
from wellposed.gradients.cosine import of_sub_batches
from wellposed.gradients.problem import LossFunction, Problem
from wellposed.gradients.scales import Scales, completed
from wellposed.gradients.scaling_pass import Goals, ScalingPass, ScalingRule
from wellposed.gradients.search import first_of
from wellposed.graphs import Graph, trace
from wellposed.operators.contraction import Contraction, contractions
from wellposed.options import check_integer, check_positive
from wellposed.plans import Constant, Drawn, Plan, Prescription
from wellposed.signals.examples import Described, describe_inputs
from wellposed.signals.sampling.drawing import draw_inputs
from wellposed.surroundings import settled


@settled(differentiates=True)
def lsuv(
    model: nn.Module,
    loss_fn: LossFunction | None = None,
    batches: Iterable[Any] | None = None,
    *,
    example: Any = None,
    inputs: Described = None,
    plan: Plan | None = None,
    orthogonal: bool = True,
    target_variance: float = 1.0,
    tolerance: float = 0.01,
    iterations: int = 10,
    training: bool = True,
    seed: int = 0,
) -> Plan:
    """Scale every weight so that its output on real (or described) inputs has unit variance; changes nothing.

    The pass is walked once: when a contraction with a parameter is met, its weight is scaled, and the pass goes on with
    what the scaled weight makes. That gives what passing through the model anew for each layer does, in one pass, and
    for every contraction: linear layers, convolutions, attention's projections, products and einsum with a parameter,
    and weights that reach their operator through views, casts or weight normalisation. The variance is taken before the
    bias is added, so that a bias neither counts nor hides what the weight does. Embeddings, tables that also score
    tokens, and recurrent weights keep their scale.

    With ``batches=None`` the inputs are drawn as ``inputs`` says, and the second moment is brought to what ``plan``
    predicts (`Prescription.signal_after`; else to ``target_variance``): one pass after an analytic plan removes the
    fluctuation of that one draw, which no analysis can know.

    In a distributed run every rank brings a batch of its own, or draws inputs of its own, and the variances are those
    over all of them; all ranks return the same plan, for the weights of rank 0.

    Args:
        model: the model; it is left as it was.
        loss_fn: ``loss_fn(model, batch)``, as for the other refinements; only how it runs the model matters. Without it
            a batch holds the model's own arguments: a tuple positional ones, a dict keyword ones, else the only one.
        batches: any iterable of batches, of which the first is used; it should be as large as fits.
        example: where ``batches`` is None: one batch, of which only shapes and integers matter.
        inputs: what is known of the inputs, as for `wellposed.propagate`; None for the defaults.
        plan: draw the weights from this plan.
        orthogonal: without ``plan``, draw orthogonal matrices and set the biases of contractions to 0, as the paper
            does; False scales the model's present weights.
        target_variance: of every output.
        tolerance: relative error of the variance at which a weight is left as it is. The published code takes 0.1 (of
            the standard deviation); scaling costs no pass here.
        iterations: most scalings of one weight; one does where the weight enters linearly.
        training: the mode. The paper names none, and the published code runs in evaluation mode; in training mode, the
            default, batch norm takes the batch's statistics, and dropout drops, as in the first step of training.
        seed: of the orthogonal matrices, the drawn inputs and dropout.

    Returns:
        A plan of scales. `Plan.figures` holds the ``moments`` by node, before and after its weight was scaled (all
        earlier ones are scaled in both), and ``omega``; with a loss function and batches also the agreement of the
        first batch's gradients ``before`` and ``after``, where they can be taken. An interruption (Ctrl-C) returns what
        has been scaled so far, unless other ranks wait.

    Raises:
        GradientError: an output is not finite; nothing can be scaled; ranks that run other operators.
        InputError: neither batches nor an example, or inputs that do not fit.
        OptionError: an option outside its range.
        TraceError: the model cannot be run on the batch.

    Source: Mishkin & Matas 2016 (LSUV, arXiv 1511.06422), Algorithm 1; its orthogonal start: Saxe et al. 2013
    (arXiv 1312.6120).
    """
    check_positive(target_variance=target_variance, tolerance=tolerance)
    check_integer(iterations=iterations)
    first, batch = _first(batches, example)
    orthogonal = orthogonal and plan is None
    problem = Problem(model, loss_fn or (lambda m, b: m(b)), training=training, seed=seed)
    rule = ScalingRule("variance" if batches is not None else "second moment", tolerance, iterations)
    with problem.running():
        with ranks.failing_together():
            graph, prefix = _traced(problem, loss_fn, batch)
            uses = _uses(graph, prefix, problem.parameters)
            base = _orthogonal(problem, graph, prefix, uses, seed) if orthogonal else plan
            scales = Scales(problem, base, names=uses.keys())
            drawn = _drawn(graph, inputs, seed) if batches is None else {}
        _check_same_operators([(name, graph.nodes[use.node].name) for name, use in uses.items()])
        scales.share()
        goals = _goals(uses, target_variance, base if batches is None else None)
        walk = _walk(graph, prefix, scales, goals, drawn, rule)
        compared = None if loss_fn is None else first
        figures = _agreement("before", problem, scales, compared)
        torch.manual_seed(seed)
        finished = walk.run()
        for name, factor in walk.factors.items():
            omega = scales.omega[name.removeprefix(prefix)]
            scales.omega[name.removeprefix(prefix)] = torch.full_like(omega, factor)
        figures |= _agreement("after", problem, scales, compared)
    figures |= {"statistic": rule.statistic, "moments": walk.moments_without(prefix), "finished": finished}
    options: dict[str, JsonValue] = {
        "target_variance": target_variance,
        "tolerance": tolerance,
        "iterations": iterations,
        "training": training,
        "orthogonal": orthogonal,
        "seed": seed,
        "inputs": "batches" if batches is not None else "described",
    }
    why = f"LSUV: {rule.statistic} of its output brought to its target, in one pass over {rule.data}"
    refined = scales.plan("lsuv", options, figures, why)
    return refined.model_copy(update={"warnings": (*refined.warnings, *walk.notes)})


def _first(batches: Iterable[Any] | None, example: Any) -> tuple[Batch | None, Any]:
    """Return the first of the user's batches taken apart, None without any, and what the model is run on."""
    if batches is not None:
        first = first_of(batches, 1)[0]
        return first, first.rows(0, first.size)
    if example is None:
        raise InputError("lsuv needs batches, or example= (the model's arguments) to draw inputs for")
    return None, example


def _drawn(graph: Graph, inputs: Described, seed: int) -> dict[int, Tensor]:
    """Return random inputs, other ones on every rank."""
    generator = torch.Generator().manual_seed(seed + ranks.index())
    return draw_inputs(graph, describe_inputs(graph, inputs), generator)


def _check_same_operators(order: list[tuple[str, str]]) -> None:
    """Raise `GradientError` where ranks meet other weights, or at other nodes, than rank 0 does."""
    for rank, other in enumerate(orders := ranks.gathered(order)):
        if other != orders[0]:
            name, node = next(b or a for a, b in zip_longest(orders[0], other) if a != b)
            raise GradientError(
                f"the batch of rank {rank} runs other operators than that of rank 0, from {node} with {name!r} on; "
                "give batches that run the same ones"
            )


def _goals(uses: Mapping[str, Contraction], default: float, plan: Plan | None) -> Goals:
    """Return the uses with the target of each output: what ``plan`` predicts, and ``default`` where it says nothing."""
    predicted = {} if plan is None else {n: after for n, p in plan.prescriptions.items() if (after := p.signal_after)}
    return {name: (use, predicted.get(name, default)) for name, use in uses.items()}


def _agreement(when: str, problem: Problem, scales: Scales, batch: Batch | None) -> dict[str, JsonValue]:
    """Return how well gradients agree; nothing where they cannot be taken: LSUV works on what overflows, too."""
    if batch is None:
        return {}
    try:
        agreement = of_sub_batches(problem, scales.parameters(), batch, 2, 0.2)
    except (GradientError, RankError) as error:
        if isinstance(error, RankError) and error.kind != GradientError.__name__:
            raise  # the other rank has left
        return {}
    return {when: agreement.model_dump(exclude={"parts"}, mode="json")}


class _Loss(nn.Module):
    """The model below a module whose forward is the user's loss, so that the whole can be traced."""

    def __init__(self, model: nn.Module, loss_fn: LossFunction) -> None:
        super().__init__()
        self.model = model
        self._loss = loss_fn
        self.training = model.training

    def forward(self, batch: Any) -> Any:
        return self._loss(self.model, batch)


def _traced(problem: Problem, loss_fn: LossFunction | None, batch: Any) -> tuple[Graph, str]:
    """Return the graph of the model (or loss) on a batch, and the prefix of the model's names in it."""
    if loss_fn is not None:
        return trace(_Loss(problem.model, loss_fn), batch, training=None), "model."
    args = () if isinstance(batch, Mapping) else tuple(batch) if isinstance(batch, list | tuple) else (batch,)
    return trace(problem.model, *args, training=None, **(batch if isinstance(batch, Mapping) else {})), ""


def _walk(
    graph: Graph, prefix: str, scales: Scales, goals: Goals, inputs: Mapping[int, Tensor], rule: ScalingRule
) -> ScalingPass:
    """Return the pass that chooses ``scales``; ``prefix`` begins the model's names in the graph."""
    values = {name: parameter.tensor.detach() for name, parameter in graph.parameters.items()}
    values |= {prefix + name: value for name, value in scales.values.items() if prefix + name in values}
    goals = {prefix + name: goal for name, goal in goals.items() if name in scales.omega}
    centred = {prefix + bias: prefix + weight for bias, weight in scales.centred.items()}
    return ScalingPass(graph, values, inputs, goals, centred, rule)


def _uses(graph: Graph, prefix: str, names: Collection[str]) -> dict[str, Contraction]:
    """Return the first use of every parameter of ``names`` (the model's own) that is a weight in all its uses."""
    uses: dict[str, list[Contraction]] = defaultdict(list)
    for use in contractions(graph):
        if use.parameter is not None:
            uses[use.parameter].append(use)
    return {
        name.removeprefix(prefix): all_uses[0]
        for name, all_uses in uses.items()
        if name.removeprefix(prefix) in names and all(use.sums for use in all_uses)
    }


def _orthogonal(problem: Problem, graph: Graph, prefix: str, uses: Mapping[str, Contraction], seed: int) -> Plan:
    """Return the plan that draws orthogonal matrices of unit scale and sets the biases beside them to 0."""
    planned: dict[str, Prescription] = {}
    for name, use in uses.items():
        shape = tuple(problem.parameters[name].shape)
        if math.prod(shape) < math.prod(graph.values[use.weight].shape):
            continue  # the gains of a weight norm, whose directions are drawn already
        blocks = use.blocks(shape)
        rows = shape[use.output_axis] // (blocks if use.output_axis == 0 else 1)
        longer = max(rows, math.prod(shape) // (blocks * rows))
        planned[name] = Drawn(
            name=name,
            shape=shape,
            distribution="orthogonal",
            std=longer**-0.5,
            output_axis=use.output_axis,
            groups=blocks,
            role="weight",
            op=f"{graph.nodes[use.node].name} ({graph.nodes[use.node].op_name})",
            fan_in=use.fan_in,
            fan_out=use.fan_out,
            reason="orthonormal rows or columns (Saxe et al. 2013)",
        )
        bias = None if use.bias is None else use.bias.removeprefix(prefix)
        if bias in problem.parameters and bias not in uses:
            planned[bias] = Constant(
                name=bias,
                shape=tuple(problem.parameters[bias].shape),
                constant=0.0,
                role="bias",
                reason="bias: 0, so that the weight alone determines the variance",
            )
    return Plan(
        method="orthogonal",
        seed=seed,
        model=type(problem.model).__name__,
        prescriptions=completed(problem.model, planned, "left alone: no contraction sums over it"),
    )
