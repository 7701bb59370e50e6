"""The commands about training: ``prepare``, ``lr``, ``transfer``, ``compare``, ``score`` and ``refine``."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import typer

from wellposed.cli import progress, show, streams
from wellposed.cli.arguments import Axis, Family, Json, Model, Option, PlanOutput, Seed, Sizes, Training, sizes_of
from wellposed.cli.failing import CheckFailedError
from wellposed.cli.loading import load, load_family, load_training
from wellposed.cli.options import further_options
from wellposed.errors import OptionError, WellposedError
from wellposed.options import DEFAULT_METHOD, check_choice, check_positive

if TYPE_CHECKING:
    from wellposed.gradients.agreement import By
    from wellposed.rates.rate import RelativeRate

T = TypeVar("T")
Start = Annotated[
    str | None,
    typer.Option("--start", help="Draw the weights by this method of planning; by default, the model's own are taken."),
]


def prepare(
    training: Training,
    optimizer: Annotated[str, typer.Option("--optimizer", help="One of torch.optim: adamw, sgd, momentum, ...")] = (
        "adamw"
    ),
    steps: Annotated[int | None, typer.Option("--steps", help="Steps of the training; 1,000 are assumed.")] = None,
    method: Annotated[
        str | None,
        typer.Option("--method", "-m", help="How to initialise: autoinit, xavier, ...; own keeps the weights."),
    ] = None,
    static: Annotated[
        bool,
        typer.Option(
            "--static",
            help="Train nothing: TRAINING is then a model as other commands take it, and the rate is that of a rule, "
            "within a factor of 8.",
        ),
    ] = False,
    seed: Seed = 0,
    option: Option = None,
    output: PlanOutput = None,
    as_json: Json = False,
) -> None:
    """Work out initial weights, parameter groups, learning rate, schedule and clipping of a training, and say why."""
    from wellposed.checks.contest import OWN
    from wellposed.methods.options import find_method
    from wellposed.plans.files import require_writable
    from wellposed.preparation import prepare as prepared

    of_method = [find_method(method)] if method not in (None, OWN) else []
    options = further_options(prepare, option, prepared, *of_method, without=("example",))
    options |= {"optimizer": optimizer, "steps": steps, "method": method, "seed": seed}
    if output is not None:  # before the long work
        require_writable(output, "a plan")
    if static:
        model, args, kwargs = load(training, seed)
        start = prepared(model, example=kwargs or args, **options)
    else:
        setup = _loaded(load_training, training, seed)
        start = prepared(setup.make(), setup.loss_fn, setup.batches, **options)
    if output is not None:
        start.plan.save(output)
    show.result(as_json, start.to_json, lambda: show.plain(str(start)))
    if output is not None and not as_json:
        show.written(output)


def lr(
    model: Model,
    rule: Annotated[list[str] | None, typer.Option("--rule", help="Rate rules to show; all by default.")] = None,
    base: Annotated[
        str | None, typer.Option("--base", help="The model whose rate is known; MODEL's is then a multiple of it.")
    ] = None,
    base_rate: Annotated[
        float | None, typer.Option("--base-rate", help="The base's rate; MODEL's is then given in absolute terms.")
    ] = None,
    find: Annotated[
        bool,
        typer.Option(
            "--find", help="Search by training; MODEL is then a function that returns (model, loss_fn, batches)."
        ),
    ] = False,
    coordinates: Annotated[
        str | None,
        typer.Option(
            "--coordinates",
            metavar="SIZES",
            help="Check whether changes of activations depend on the size, as in 64,128,256; MODEL is then a function "
            "that returns (model_fn, loss_fn, batches). Exit code 1 where they do.",
        ),
    ] = None,
    seed: Seed = 0,
    option: Option = None,
    as_json: Json = False,
) -> None:
    """Give the learning rate of MODEL: relative to --base by rules, for plain SGD or Adam, or by a search with --find.

    With --coordinates, the options are way (own, or a method of planning), axis, optimizer, lr, steps, seeds and
    tolerance: --way mup --axis depth.
    """
    by_rules = bool(rule) or base is not None or base_rate is not None
    if coordinates is not None:
        if find or by_rules:
            raise OptionError("--coordinates checks rates over sizes: leave out --find, --rule, --base and --base-rate")
        _coordinates(model, coordinates, seed, option, as_json)
        return
    if find:
        if by_rules:
            raise OptionError("--find searches the rate itself: leave out --rule, --base and --base-rate")
        _find(model, seed, option, as_json)
        return
    if base_rate is not None:
        check_positive(**{"--base-rate": base_rate})
        if base is None:
            raise OptionError("--base-rate is the rate of --base; name that model too")
    rows = _relative(model, base, base_rate, rule, seed, option)
    show.result(as_json, lambda: json.dumps(rows, indent=2), lambda: show.rates(model, base, rows))
    if all("error" in row for row in rows):
        raise typer.Exit(2)


def _find(model: str, seed: int, option: list[str] | None, as_json: bool) -> None:
    """Search the rate of a training, and print it."""
    from wellposed import rates

    options = {"seed": seed} | further_options(lr, option, rates.find_max_lr, either={"seed": seed})
    training = _loaded(load_training, model, options["seed"])
    rate = rates.find_max_lr(training.make, training.loss_fn, training.batches, **options)
    show.result(as_json, lambda: rate.model_dump_json(indent=2), lambda: show.rate(rate))


def _coordinates(model: str, sizes: str, seed: int, option: list[str] | None, as_json: bool) -> None:
    """Run the coordinate check over sizes, and print it; raises `CheckFailedError` where it fails."""
    wanted = sizes_of(sizes, "--coordinates")
    from wellposed.checks.family import planned_coordinates

    options = further_options(lr, option, planned_coordinates)
    family = _loaded(load_family, model, seed)
    seeds = options.get("seeds") or inspect.signature(planned_coordinates).parameters["seeds"].default
    with progress.Stages(*["training"] * (len(wanted) * seeds)) as stages:

        def make(size: int) -> Any:
            """Make a model, which begins another run."""
            stages.next()
            return family.make(size)

        found = planned_coordinates(make, wanted, family.loss_fn, family.first(), **options)
    show.result(as_json, found.to_json, lambda: streams.out().print(found.table()))
    if not found.ok:
        raise CheckFailedError


def transfer(
    family: Family,
    sizes: Sizes,
    axis: Axis = "size",
    way: Annotated[
        list[str] | None,
        typer.Option(
            "--way",
            help="'own', or a method of planning, with options as in mup:base_width=32,head_dim=16; repeatable. By "
            "default own and mup.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Draw loss over rate into this file (SVG).")
    ] = None,
    seed: Seed = 0,
    option: Option = None,
    as_json: Json = False,
) -> None:
    """Train models of several sizes at several rates, and report how far the best rate moves with the size."""
    wanted, ways = sizes_of(sizes, "--sizes"), _ways(way)
    from wellposed.checks.family import check_transfer
    from wellposed.plans.files import require_writable

    options = further_options(transfer, option, check_transfer)
    if output is not None:  # before the long work
        require_writable(output, "a picture")
    setup = _loaded(load_family, family, seed)
    found = check_transfer(setup.make, wanted, setup.loss_fn, setup.batches, ways, axis=axis, seed=seed, **options)
    if output is not None:
        found.save(output)
    show.result(as_json, found.to_json, lambda: show.transfer(found))
    if output is not None and not as_json:
        show.written(output)


def _ways(texts: list[str] | None) -> dict[str, str | dict[str, Any]]:
    """Return ways by name: ``mup:base_width=32`` is the method with its options."""
    ways: dict[str, str | dict[str, Any]] = {}
    for text in texts or ("own", "mup"):
        method, _, rest = text.partition(":")
        given: dict[str, Any] = {}
        for part in filter(None, rest.split(",")):
            name, separator, value = part.partition("=")
            if not (name and separator):
                raise OptionError(f"--way takes METHOD or METHOD:NAME=VALUE,NAME=VALUE, received {text!r}")
            try:
                given[name] = json.loads(value)
            except json.JSONDecodeError:
                given[name] = value
        if text in ways:
            raise OptionError(f"--way {text} was given twice")
        ways[text] = {"method": method, **given} if given else method
    return ways


def _relative(
    model: str, base: str | None, base_rate: float | None, chosen: list[str] | None, seed: int, option: list[str] | None
) -> list[dict[str, Any]]:
    """Return one row for each rule; a rule that does not apply to the model gives a row with the reason."""
    rows: list[dict[str, Any]] = []
    names = tuple(chosen or ("kernel", "maximal_update", "ntk", "paths", "signed"))
    with progress.Stages("loading", *names) as stages:
        from wellposed import rates
        from wellposed.rates.relative import find_rate_rule, optimizer_of

        for name in names:
            check_choice("rate rule", name, rates.rate_rules())
        rules = {name: find_rate_rule(name) for name in names}
        options = further_options(lr, option, *rules.values(), rates.relative, either={"seed": seed})
        options = {"seed": seed} | options
        stages.next()
        loaded = {name: load(name, options["seed"]) for name in (model, base) if name is not None}
        for name in names:
            stages.next()
            known = {*inspect.signature(rules[name]).parameters, *inspect.signature(rates.relative).parameters}
            own_options = {option: value for option, value in options.items() if option in known}
            row: dict[str, Any] = {"rule": name, "optimizer": optimizer_of(name)}
            try:
                found = {
                    key: rates.relative(module, *args, rule=name, **kwargs, **own_options)
                    for key, (module, args, kwargs) in loaded.items()
                }
            except WellposedError as error:
                if len(names) == 1:
                    raise
                rows.append(row | {"error": str(error)})
            else:
                rows.append(row | _compared(found, model, base, base_rate))
    return rows


def _compared(
    found: Mapping[str, RelativeRate], model: str, base: str | None, base_rate: float | None
) -> dict[str, Any]:
    """Return a model's relative rate; with a base its ratio to that one's, and with the base's rate the model's."""
    own = found[model]
    row: dict[str, Any] = {
        "relative": own.value,
        "reason": own.reason,
        "warnings": [warning for one in found.values() for warning in one.warnings],
    }
    if base is not None:
        row["ratio"] = own.value / found[base].value
    if base_rate is not None:
        row["rate"] = base_rate * row["ratio"]
    return row


def compare(
    training: Training,
    start: Annotated[
        list[str] | None,
        typer.Option(
            "--start", help="A method of planning, or 'own'; repeatable. By default own and the default method."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", help="Draws of the weights for each start.")] = 5,
    seed: Seed = 0,
    option: Option = None,
    as_json: Json = False,
) -> None:
    """Train from several starts, each at its own best learning rate, and report whether one is better."""
    from wellposed import rates
    from wellposed.checks.contest import OWN, compare_starts

    options = further_options(compare, option, rates.find_max_lr)
    setup = _loaded(load_training, training, seed)
    starts = start or (OWN, DEFAULT_METHOD)
    comparison = compare_starts(setup.make, setup.loss_fn, setup.batches, starts, seeds=seeds, seed=seed, **options)
    show.result(as_json, comparison.to_json, lambda: show.plain(comparison.summary()))


def score(
    training: Training,
    samples: Annotated[bool, typer.Option("--samples", help="Compare single samples in place of sub-batches.")] = False,
    sub_batches: Annotated[int, typer.Option("--sub-batches", "-D", help="Number of sub-batches.")] = 2,
    overlap: Annotated[float, typer.Option("--overlap", "-r", help="What neighbouring sub-batches share.")] = 0.2,
    by: Annotated[str | None, typer.Option("--by", help="Also compare each layer or parameter.")] = None,
    start: Start = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Score an initialisation: how well do gradients agree (GradCosine), how equal are their norms?"""
    with progress.Stages("loading", "scoring") as stages:
        from wellposed import gradients

        stages.next()
        setup = load_training(training, seed)
        model = setup.make()
        batch = setup.first()
        if start is not None:
            _planned(model, batch, start, seed).apply_(model)
        stages.next()
        scores = gradients.gradcosine(
            model,
            setup.loss_fn,
            batch,
            sub_batches=None if samples else sub_batches,
            overlap=overlap,
            by=cast("By | None", by),  # it refuses other values itself
            seed=seed,
        )
    show.result(as_json, lambda: scores.model_dump_json(indent=2), lambda: show.agreement(scores))


def refine(
    training: Training,
    method: Annotated[str, typer.Option("--method", "-m", help="gradient_norm, nio, metainit, gradinit or lsuv.")] = (
        "gradient_norm"
    ),
    start: Start = None,
    seed: Seed = 0,
    option: Option = None,
    output: PlanOutput = None,
    as_json: Json = False,
) -> None:
    """Improve an initialisation by gradients of a loss on a few batches, and show what changed."""
    from wellposed import gradients
    from wellposed.plans.files import require_writable

    refinement = gradients.find_refinement(method)
    options = further_options(refine, option, refinement)
    if output is not None:  # before the long work
        require_writable(output, "a plan")
    setup = _loaded(load_training, training, seed)
    model = setup.make()
    base = None if start is None else _planned(model, setup.first(), start, seed)
    planned = refinement(model, setup.loss_fn, setup.batches, plan=base, seed=seed, **options)
    show.plan_result(planned, output, as_json, lambda: show.refinement(planned))


def _loaded(load_from: Callable[[str, int], T], name: str, seed: int) -> T:
    """Return what a file's function makes, which may take long."""
    with progress.Stages("loading") as stages:
        stages.next()
        return load_from(name, seed)


def _planned(model: Any, batch: Any, method: str, seed: int) -> Any:
    """Plan a model whose example is what its forward takes of a batch."""
    from wellposed import graphs, methods
    from wellposed.graphs.tree import example_of

    args, kwargs = example_of(batch)
    return methods.plan(graphs.trace(model, *args, **kwargs), method=method, seed=seed)
