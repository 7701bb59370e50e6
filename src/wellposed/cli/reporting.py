"""The command ``report``: what a model is like before its first training step, in the terminal or as a page."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from wellposed.cli import progress, show, streams
from wellposed.cli.arguments import (
    Distribution,
    Method,
    Model,
    Only,
    Option,
    PlanFile,
    Seed,
    Shape,
    Skip,
    TargetVariance,
    method_options,
)
from wellposed.cli.loading import load, load_training, plan_of, with_base
from wellposed.errors import OptionError
from wellposed.options import DEFAULT_METHOD

if TYPE_CHECKING:
    from wellposed.rates import TransferCheck
    from wellposed.reports import Report


def report(
    context: typer.Context,
    model: Model,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the report to this HTML file.")] = None,
    plan_file: PlanFile = None,
    method: Method = DEFAULT_METHOD,
    seed: Seed = 0,
    target_variance: TargetVariance = None,
    distribution: Distribution = None,
    only: Only = None,
    skip: Skip = None,
    option: Option = None,
    shape: Shape = None,
    draws: Annotated[
        int, typer.Option("--draws", min=0, help="Real passes that are measured for each initialisation; 0 predicts.")
    ] = 4,
    budget: Annotated[
        float,
        typer.Option("--budget", min=0.0, help="Seconds of processor time; what does not fit is left out. 0: all."),
    ] = 30.0,
    meta: Annotated[
        bool, typer.Option("--meta", help="Build MODEL without weights, however large it is: predictions alone.")
    ] = False,
    transfer_file: Annotated[
        Path | None,
        typer.Option("--transfer", help="Also show this result of 'wellposed transfer --json' for MODEL's family."),
    ] = None,
    training: Annotated[
        bool,
        typer.Option(
            "--training",
            help="MODEL is a function that returns (model, loss_fn, batches): also show how gradients agree.",
        ),
    ] = False,
) -> None:
    """Show what MODEL is like before its first training step: its own initialisation, beside that of a plan."""
    asked = None if method == DEFAULT_METHOD else method
    options = method_options(report, asked, target_variance, distribution, only, skip, option, plan_file)
    if training and meta:
        raise OptionError(
            "--training takes gradients of real weights, which --meta does not build; leave one of them out"
        )
    with progress.within("loading", budget) as update:
        from wellposed import reports
        from wellposed.graphs.tree import example_of
        from wellposed.plans.files import require_writable

        if output is not None:  # before the long work
            require_writable(output, "a report")
        planned = None if plan_file is None else plan_of(plan_file)
        transfer = None if transfer_file is None else _transfer_of(transfer_file)
        device = "meta" if meta else "cpu"
        loss_fn, batches = None, None
        if training:
            setup = load_training(model, seed)
            loss_fn, batches = setup.loss_fn, [setup.first()]
            module = setup.make()
            args, kwargs = example_of(batches[0])
        else:
            module, args, kwargs = load(model, seed, device, shape)
        options = with_base(options, seed, device, shape)
        made = reports.report(
            module,
            *args,
            plan=planned,
            method=method,
            options=options,
            loss_fn=loss_fn,
            batches=batches,
            draws=draws,
            transfer=transfer,
            budget=budget or None,
            seed=seed,
            progress=update,
            command=_command(context),
            **kwargs,
        )
        if output is not None:
            update("writing")
            made.to_html(output)
    if output is None:
        streams.out().print(made.table())
    else:
        _say(made)
        show.written(output)
    if made.failure is not None:
        raise typer.Exit(2)


def _say(report: Report) -> None:
    """Print what a report that is written to a file comes to."""
    from wellposed.reports.summary import remedies

    said, calls = report.judgement, " or ".join(remedies(report))
    for line in (
        said.sentence,
        f"what to do: {said.action}{': ' * bool(calls)}{calls}",
        f"will it train: {said.trains}",
    ):
        streams.out().print(escape(line), soft_wrap=True)


def _transfer_of(path: Path) -> TransferCheck:
    """Return what a check of transfer found, from its file.

    Raises:
        OptionError: the file cannot be read, or holds something else.
    """
    from pydantic import ValidationError

    from wellposed.plans.files import read_whole
    from wellposed.rates import TransferCheck

    try:
        return TransferCheck.from_json(read_whole(path).decode())
    except ValidationError as error:
        first = error.errors()[0]
        why = ": ".join((*filter(None, [".".join(map(str, first["loc"]))]), first["msg"]))
        raised: Exception = error
    except (OSError, UnicodeDecodeError) as error:
        why, raised = str(error), error
    raise OptionError(
        f"--transfer {path}: {why}; give a file that 'wellposed transfer ... --json' was written to"
    ) from raised


def _command(context: typer.Context) -> str:
    """Return the command line as it was given, defaults left out."""
    words = ["wellposed", context.info_name or "report"]
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if parameter.param_type_name == "argument":
            words.append(str(value))
        elif value is True:
            words.append(parameter.opts[0])
        elif value is not None and value is not False and value != parameter.get_default(context):
            for item in value if isinstance(value, list | tuple) else [value]:
                words += [parameter.opts[0], str(item)]
    return shlex.join(words)
