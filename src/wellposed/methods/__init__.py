"""Methods: from a graph to a plan."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import JsonValue
from torch import nn

from wellposed.collection import paused_collection
from wellposed.errors import OptionError, PlanError
from wellposed.graphs import Graph, trace
from wellposed.graphs.keywords import split_keywords
from wellposed.methods import autoinit, classic, complete_p, fixup, mup, steady, topology  # each registers its methods
from wellposed.methods.codebooks import codebooks_in_place
from wellposed.methods.copies import copies, words_on_copies, words_on_left_behind
from wellposed.methods.deliberate import Choice, check_deliberate, warnings_of
from wellposed.methods.deliberate import deliberate as on_purpose
from wellposed.methods.options import Draft, Request, find_method, method, methods, options_of
from wellposed.methods.plausible import implausible, unfilled
from wellposed.methods.readouts import tied_widths
from wellposed.methods.rehearsing import corrected_for, rehearsed
from wellposed.methods.roles import left_alone, weight_norm_directions
from wellposed.methods.selection import Patterns, not_selected, selected_rows
from wellposed.methods.unmet import like_siblings, words_on_unmet, zeros_under
from wellposed.methods.unscaled import Unscaled, require_none_unscaled, unscaled, warning_of
from wellposed.operators.contraction import contractions
from wellposed.operators.scale_parameters import unchanging
from wellposed.options import DEFAULT_METHOD, check_integer
from wellposed.plans import Drawn, Kept, Plan, Prescription, Tied
from wellposed.plans.alike import fingerprints, require_alike
from wellposed.plans.held import KEPT, figures_of
from wellposed.plans.write import write_
from wellposed.ranks import exchanging
from wellposed.signals.context.corrections import Correction
from wellposed.structure.asleep import words_on_asleep
from wellposed.structure.tables import rows_drawn
from wellposed.structure.widths import Widths, widths
from wellposed.surroundings import settled

__all__ = [
    "Draft",
    "Request",
    "autoinit",
    "classic",
    "complete_p",
    "fixup",
    "initialize_",
    "method",
    "methods",
    "mup",
    "options_of",
    "plan",
    "steady",
    "topology",
]

Deliberately = Choice | Mapping[str, Choice] | None


@settled()
@paused_collection()
@unchanging()
def plan(
    model: nn.Module | Graph,
    *args: Any,
    method: str = DEFAULT_METHOD,
    seed: int = 0,
    only: Patterns = None,
    skip: Patterns = None,
    frozen: bool = False,
    deliberate: Deliberately = None,
    training: bool = True,
    rehearse: bool | None = None,
    **kwargs: Any,
) -> Plan:
    """Work out how to draw every parameter of a model; the model is only read.

    Args:
        model: the model, on any device, meta included; or its graph (then without ``args``).
        args: example arguments of ``forward``.
        method: ``steady``, ``autoinit``, ``topology``, ``mup``, ``complete_p``, ``fixup``, ``lecun``, ``xavier``,
            ``kaiming``, ``orthogonal``, ``default``, or one registered with `wellposed.methods.method`.
        seed: of the random streams, one for each parameter.
        only: glob patterns of the parameters to plan; all others are kept. ``"uninitialized"``: those that no
            checkpoint has filled, as transformers marks them. ``"embed.weight[50257:]"``: rows of one, which are drawn
            as large as the others are (of an embedding that was resized).
        skip: glob patterns of parameters to keep.
        frozen: also plan parameters that do not require gradients, which are kept otherwise.
        deliberate: what becomes of parameters that the model sets on purpose: ``"keep"``, ``"write"``, or a mapping
            from kinds of them to either (`wellposed.methods.deliberate.Kind`). None keeps all but constant weights, and
            those that are small or look trained.
            Weights that are kept or written over so are named in the plan's warnings.
        training: the mode to trace in; a model in eval mode is planned for training all the same.
        rehearse: whether the plan is tried on real passes of the graph, on weights and inputs drawn for them, and made
            again with what these contradict (methods ``steady`` and ``autoinit``). None does so where a pass is cheap.
        kwargs: options of the method (`wellposed.methods.options_of`); what the method does not know goes to
            ``forward``. Where a name is both, it is an option: trace the model first, and plan the graph.

    Returns:
        A `Plan` with every parameter of the model exactly once.

    Raises:
        OptionError: an unknown method or option, or a value outside its range.
        PlanError: a pattern matches no parameter.
        TraceError: the model cannot be run on the example.
        UnsupportedError: a parameter is quantised, sparse or lazy; under ``strict=True`` also an operator
            without a rule, or a weight that no scale can be chosen for.
    """
    draft_of = find_method(method)
    check_integer(None, seed=seed)
    choices = check_deliberate(deliberate)
    others = {key: f"method {name!r}" for name in methods() for key in options_of(name)}
    options, rest = split_keywords(f"method {method!r}", model, kwargs, options_of(method), _OWN, others)
    graph = _traced(model, args, rest, training)
    options |= {  # models that this one is measured against, on the same example
        key: _traced(value, args, rest, training) for key, value in options.items() if isinstance(value, nn.Module)
    }
    buffers = dict(model.named_buffers()) if isinstance(model, nn.Module) else graph.buffer_tensors
    uses = contractions(graph)
    kept = not_selected(graph, only, skip, frozen)
    found = {} if method == "default" else on_purpose(graph, uses, kept, only is not None)  # it writes nothing
    kept |= {name: one.reason for name, one in found.items() if choices[one.kind] == "keep"} | dict(graph.kept)
    why = unscaled(graph, uses)
    seen, on_codebooks = codebooks_in_place(graph, kept)

    standing: tuple[str, ...] = ()

    def made(corrections: Mapping[str, Correction]) -> tuple[Plan, bool]:
        """Return the plan that the method makes with some corrections, and whether it follows them."""
        draft = draft_of(seen, Request(seed, kept, corrections), **options)
        nonlocal standing
        standing = standing if corrections else draft.standing
        prescriptions = _complete(graph, draft, kept, method, why, widths(graph, uses))
        prescriptions |= selected_rows(graph, only, kept, prescriptions)
        prescriptions |= like_siblings(graph, prescriptions, kept)
        prescriptions |= copies(graph, prescriptions, kept)
        without = [
            one
            for name, one in why.items()
            if name not in kept and prescriptions[name].action == "keep" and prescriptions[name].reason == one.reason
        ]
        if options.get("strict"):
            require_none_unscaled(graph, without)
        plan = Plan(
            schema_version=_version(prescriptions),
            method=method,
            options={key: _plain(value) for key, value in (options_of(method) | options).items()},
            seed=seed,
            model=graph.model,
            inputs=draft.inputs,
            coverage=dict(draft.coverage),
            warnings=(
                *graph.remarks,
                *draft.warnings,
                *standing,
                *filter(None, [on_codebooks if draft.coverage else ""]),
                *implausible(graph, prescriptions),
                *unfilled(graph, prescriptions),
                *warning_of(without),
                *words_on_unmet(graph, prescriptions, kept),
                *words_on_copies(prescriptions),
                *words_on_left_behind(graph, prescriptions, buffers),
                *filter(None, [words_on_asleep(graph, zeros_under(graph, prescriptions))]),
                *warnings_of(found, choices, deliberate, prescriptions),
            ),
            figures=_figures(graph, prescriptions),
            prescriptions=prescriptions,
        )
        return plan, draft.corrects

    planned = rehearsed(seen, made, options.get("inputs"), rehearse)
    return planned if seen is graph else corrected_for(graph, planned, options.get("inputs"))


_OWN = tuple(p.name for p in inspect.signature(plan).parameters.values() if p.kind is p.KEYWORD_ONLY)


@settled()
def initialize_(
    model: nn.Module,
    *args: Any,
    method: str = DEFAULT_METHOD,
    seed: int = 0,
    only: Patterns = None,
    skip: Patterns = None,
    frozen: bool = False,
    deliberate: Deliberately = None,
    materialize: bool | str | torch.device = False,
    **kwargs: Any,
) -> Plan:
    """Plan a model and write the plan into it.

    In a distributed run every rank calls it. Plans of ranks that hold the same parameters must be the same, or replicas
    would start apart: they are compared before anything is written, and where one rank fails, none writes. A rank by
    itself calls ``plan(...).apply_(model)``.

    Args:
        model: the model, on any device; on meta with ``materialize``.
        args: example arguments of ``forward``.
        method: as for `plan`, and likewise ``seed``, ``only`` and ``skip``.
        seed: of the random streams, one for each parameter.
        only: glob patterns of the parameters to plan; all others are kept.
        skip: glob patterns of parameters to keep.
        frozen: also plan and write parameters that do not require gradients.
        deliberate: as for `plan`: what becomes of parameters that the model sets on purpose.
        materialize: True, or a device, allocates a model on meta first (`Plan.apply_`).
        kwargs: options of the method, ``rehearse`` as for `plan`, and keyword arguments of ``forward``.

    Returns:
        The plan that was written.

    Raises:
        PlanError: a plan that cannot be made or written, or that differs between ranks; the model is as it was.
        RankError: another rank failed; the model is as it was.
        OptionError, TraceError, UnsupportedError: as `plan`.
    """
    with exchanging() as gather:
        made = plan(
            model, *args, method=method, seed=seed, only=only, skip=skip, frozen=frozen, deliberate=deliberate, **kwargs
        )
        write_(
            made.prescriptions, made.seed, model, only=None, skip=None, frozen=frozen, materialize=materialize,
            ready=lambda: require_alike(gather(fingerprints(made))),
        )  # fmt: skip
    return made


def _traced(model: nn.Module | Graph, args: tuple[Any, ...], keywords: Mapping[str, Any], training: bool) -> Graph:
    """Return the graph of a model on an example, or the graph that is given in its place.

    Raises:
        OptionError: a graph and arguments besides.
    """
    if not isinstance(model, Graph):
        return trace(model, *args, training=training, **keywords)
    if args:
        raise OptionError(f"a graph takes no example arguments, received {len(args)}; give them to wellposed.trace")
    return model


def _version(prescriptions: Mapping[str, Prescription]) -> Literal[1, 2]:
    """Return the version of the files that can state all of a plan."""
    return 2 if any(prescription.states_more for prescription in prescriptions.values()) else 1


def _figures(graph: Graph, prescriptions: Mapping[str, Prescription]) -> dict[str, JsonValue]:
    """Return, under `KEPT` by name, figures of kept parameters' values, by which a plan recognises them again."""
    held: dict[str, JsonValue] = {}
    for name, parameter in graph.parameters.items():
        values = parameter.values  # of a sharded parameter the whole, if that is small; on meta what is made again
        if prescriptions[name].action != "keep" or values is None or parameter.tensor.is_meta:
            continue
        if values.shape == parameter.shape and (figures := figures_of(values)) is not None:
            held[name] = list(figures)
    return {KEPT: held} if held else {}


def _complete(
    graph: Graph,
    draft: Draft,
    kept: dict[str, str],
    method: str,
    why: Mapping[str, Unscaled],
    scaled: Mapping[str, Widths],
) -> dict[str, Prescription]:
    """Return a prescription for every name: the draft's, or one that keeps or ties it; in the model's order."""
    unknown = [name for name in draft.prescriptions if name not in graph.parameters]
    if unknown:
        raise PlanError(f"method {method!r} prescribes for {unknown[0]!r}, which is no first name of a parameter")
    planned: dict[str, Prescription] = {}
    drafted = dict(draft.prescriptions)
    for name, direction in weight_norm_directions(graph, draft.prescriptions).items():
        drafted[name] = _placed(direction, drafted.get(name))
    for name, parameter in graph.parameters.items():
        if name in kept:
            mine: Prescription = Kept(name=name, shape=parameter.shape, reason=kept[name])
            if name in drafted:  # a bias may be centred on a weight that is kept
                other = drafted[name]
                mine = mine.changed(role=other.role, output_axis=other.output_axis, groups=other.groups)
                mine = _placed(mine, other)
        else:
            mine = drafted.get(name) or left_alone(graph, name, method, why)
            if isinstance(mine, Drawn):
                mine = _of_its_kind(graph, mine)
        sides = tied_widths(mine, scaled[name])
        planned[name] = mine.model_copy(update={"width_in": sides.fan_in, "width_out": sides.fan_out})
        for alias in parameter.names[1:]:
            planned[alias] = Tied(
                name=alias,
                shape=parameter.shape,
                role=mine.role,
                tied_to=name,
                reason=f"the same tensor as {name}, which is written once" + (f" as {mine.op}" if mine.op else ""),
            )
    return planned


def _of_its_kind(graph: Graph, drawn: Drawn) -> Drawn:
    """Return a prescription adapted to its parameter: complex numbers, or the rows of a table but for padding."""
    if graph.parameters[drawn.name].tensor.is_complex():
        drawn = drawn.changed(distribution="complex_normal")
    rows = rows_drawn(graph).get(drawn.name)
    if rows is None:
        return drawn
    return drawn.changed(rows=rows, reason=f"{drawn.reason}; rows for padding stay as they are")


def _placed(prescription: Prescription, other: Prescription | None) -> Prescription:
    """Return a prescription with the base's widths, depth, branch and repeats that another of its parameter states."""
    if other is None:
        return prescription
    fields = {field: getattr(other, field) for field in ("base_in", "base_out", "depth", "branch", "repeats")}
    return prescription.changed(**fields)


def _plain(value: object) -> JsonValue:
    """Return an option as JSON can hold it; objects in words."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Graph):
        return value.model
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return str(value)
