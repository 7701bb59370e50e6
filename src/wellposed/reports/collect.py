"""`report`: everything about a model before its first training step, each analysis run once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from wellposed import methods
from wellposed.errors import OptionError, PlanError, TraceError
from wellposed.graphs import Graph, graph_of
from wellposed.graphs.tree import describe
from wellposed.measuring.batches import Inputs
from wellposed.options import DEFAULT_METHOD, check_integer, check_positive
from wellposed.plans import Plan
from wellposed.rates import TransferCheck
from wellposed.reports.document import Report
from wellposed.reports.initialisations import initialisations_of
from wellposed.reports.judge import APPLY, judge
from wellposed.reports.parts import (
    Stages,
    affordable,
    agreement_of,
    parameter_rows,
    rate_rows,
    versions,
)
from wellposed.reports.record import Label, Provenance
from wellposed.reports.structure import structure_of
from wellposed.surroundings import settled

if TYPE_CHECKING:
    from wellposed.gradients import Agreement
    from wellposed.gradients.problem import LossFunction


BUDGET = 30.0
"""Seconds of processor time that a report takes at most, where nothing else is asked for."""


@settled()
def report(
    model: nn.Module | Graph,
    *args: Any,
    plan: Plan | None = None,
    method: str = DEFAULT_METHOD,
    options: Mapping[str, Any] | None = None,
    loss_fn: LossFunction | None = None,
    batches: Iterable[Any] | None = None,
    draws: int = 4,
    inputs: Inputs = None,
    seed: int = 0,
    training: bool = True,
    transfer: TransferCheck | None = None,
    budget: float | None = BUDGET,
    progress: Callable[[str], None] | None = None,
    command: str | None = None,
    **kwargs: Any,
) -> Report:
    """Collect everything about a model before its first training step; the model is only read.

    What cannot be computed (a rule that refuses, passes too large to be made, a forward that fails half way) is noted
    in the report, and the rest of it is made all the same.

    Args:
        model: the model, or its graph (which was made with ``args``, ``kwargs`` and ``training`` of its own).
        *args: example inputs.
        plan: the plan that the model's own weights are compared with; None makes one by ``method``.
        method: as in `wellposed.plan`.
        options: of the method, by name; also ``only``, ``skip`` and ``rehearse``.
        loss_fn: ``loss_fn(model, batch)``, the mean loss of a batch; with ``batches``, the report shows how well the
            gradients of its sub-batches agree, layer by layer.
        batches: batches for ``loss_fn``; the first is used.
        draws: number of real passes that are measured for each initialisation; 0 predicts only.
        inputs: as for `wellposed.measure`; the prediction assumes the same.
        seed: of the plan, and of weights, inputs and random operators of the real passes.
        training: the mode to trace in.
        transfer: a result of `wellposed.check_transfer` for the family that the model is of, to be shown with the
            learning rates.
        budget: processor time in seconds. What cannot be worked out until then is left out, and the notes say what:
            rates first, then comparisons, predicted gradients, predictions for the model's own weights, and real passes
            but the first. Tracing, planning and scores of gradients take the time that they take. None works out
            everything.
        progress: called with the name of each stage when it begins.
        command: what made the report, to be shown in it; by default the call in words.
        **kwargs: example inputs by keyword.

    Returns:
        A `Report`: ``.to_html(path)``, ``.table()``, or shown by itself in a notebook.

    Raises:
        OptionError: an unknown method or option, options beside a finished plan, a negative number of draws, a budget
            that is no positive number, a loss without batches (or batches without a loss), a loss beside a graph, or
            a ``transfer`` that is no result of `wellposed.check_transfer`.
        InputError: inputs or batches that do not fit the model.
        PlanError: the plan does not fit the model, or ``method`` cannot plan it as asked.
        UnsupportedError: parameters of a kind that cannot be traced.
        TraceError: the model's forward fails before its first operation.
    """
    check_integer(0, draws=draws)
    if budget is not None:
        check_positive(budget=budget)
    _check_arguments(model, plan, options, loss_fn, batches, transfer)
    objects = {"plan": plan, "loss_fn": loss_fn, "batches": batches, "inputs": inputs, "transfer": transfer}
    settings: dict[str, Any] = {"options": dict(options)} if options else {}
    settings |= {"method": method} if plan is None else {}
    settings |= {"budget": budget} if budget != BUDGET else {}
    settings |= {"draws": draws, "seed": seed, "training": training}
    stages = Stages(progress, budget)
    graph, failure = _traced(model, args, kwargs, training, stages)
    structure = structure_of(graph)
    drawing = _drawing(plan, method, options)
    if plan is not None:
        _require_fit(graph, plan)
    else:
        plan = _planned(graph, method, seed, options or {}, stages)
    agreement: dict[Label, Agreement] = {}
    if loss_fn is not None and batches is not None and isinstance(model, nn.Module) and not failure:
        with stages.stage("gradients"):
            agreement = agreement_of(model, loss_fn, batches, plan, training, seed, stages)
    draws = affordable(graph, draws, stages)
    initialisations = initialisations_of(graph, structure, plan, inputs, draws, seed, stages)
    with stages.stage("learning rates"):
        rules, multipliers = ((), {}) if failure else rate_rows(graph, plan, stages)
    with stages.stage("parameters"):
        parameters = parameter_rows(graph, plan, multipliers)
    return Report(
        model=graph.model,
        judgement=judge(structure, initialisations, failure, parameters, drawing),
        structure=structure,
        initialisations=initialisations,
        plan=plan,
        parameters=parameters,
        rates=rules,
        agreement=agreement,
        failure=failure,
        notes=(*stages.notes, *stages.shortened(), *(plan.warnings if plan is not None else ())),
        provenance=Provenance(
            versions=versions(),
            seed=seed,
            draws=draws,
            training=graph.training,
            inputs=plan.inputs if plan is not None else "",
            seconds=stages.seconds,
            command=command or _call(model, args, kwargs, objects, settings),
        ),
        transfer=transfer,
    )


def _check_arguments(
    model: nn.Module | Graph,
    plan: Plan | None,
    options: Mapping[str, Any] | None,
    loss_fn: LossFunction | None,
    batches: Iterable[Any] | None,
    transfer: TransferCheck | None,
) -> None:
    """Raise `OptionError` for arguments that do not go together."""
    if transfer is not None and not isinstance(transfer, TransferCheck):
        raise OptionError(f"transfer takes the result of wellposed.check_transfer, not {type(transfer).__name__}")
    if (loss_fn is None) != (batches is None):
        given, missing = ("batches", "loss_fn") if loss_fn is None else ("loss_fn", "batches")
        raise OptionError(f"{given} was given without {missing}; give both for the agreement of gradients, or neither")
    if loss_fn is not None and isinstance(model, Graph):
        raise OptionError("loss_fn takes the model itself; give wellposed.report the model in place of its graph")
    if plan is not None and options:
        raise OptionError(
            f"plan is a finished plan: leave out the options {', '.join(options)}, or make the plan by them"
        )


def _traced(
    model: nn.Module | Graph, args: Sequence[Any], kwargs: Mapping[str, Any], training: bool, stages: Stages
) -> tuple[Graph, str | None]:
    """Return the graph; of a forward that fails half way as much as ran, and the error."""
    with stages.stage("tracing"):
        try:
            return graph_of(model, args, kwargs, training), None
        except TraceError as error:
            if error.partial is None:
                raise
            return error.partial, str(error)


def _planned(graph: Graph, method: str, seed: int, options: Mapping[str, Any], stages: Stages) -> Plan | None:
    """Return the plan; None where one that was not asked for by method or options cannot be made."""

    def make() -> Plan:
        return methods.plan(graph, method=method, seed=seed, **options)

    with stages.stage("planning"):
        return make() if options or method != DEFAULT_METHOD else stages.attempt("no plan", make)


def _require_fit(graph: Graph, plan: Plan) -> None:
    """Raise `PlanError` for the first parameter that the plan does not hold in its shape."""
    for name, parameter in graph.parameters.items():
        prescription = plan.prescriptions.get(name)
        if prescription is None or prescription.shape != parameter.shape:
            planned = "does not hold it" if prescription is None else f"was made for shape {prescription.shape}"
            raise PlanError(
                f"the plan does not fit {graph.model}: parameter {name!r} has shape {parameter.shape}, and the plan "
                f"{planned}; make a plan for this model"
            )


def _drawing(plan: Plan | None, method: str, options: Mapping[str, Any] | None) -> str:
    """Return the call that draws a model's weights by a plan, or where there is none by a method."""
    if plan is not None:
        return APPLY
    given = {} if method == DEFAULT_METHOD else {"method": method}
    given |= {name: value for name, value in (options or {}).items() if value is not None}
    plain = (str, int, float, list, tuple, dict)
    words = [f"{name}={value!r}" if isinstance(value, plain) else f"{name}={name}" for name, value in given.items()]
    return f"wp.initialize_({', '.join(['model', 'x', *words])})"


def _call(
    model: nn.Module | Graph,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    objects: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> str:
    """Return the call in words: values that cannot be written down are described."""
    shown = ["graph" if isinstance(model, Graph) else "model", *(f"<{describe((arg,), {})}>" for arg in args)]
    shown += [f"{name}=<{describe((), {name: value})}>" for name, value in kwargs.items()]
    shown += [f"{name}=<{type(value).__name__}>" for name, value in objects.items() if value is not None]
    shown += [f"{name}={value!r}" for name, value in settings.items()]
    return f"wellposed.report({', '.join(shown)})"
