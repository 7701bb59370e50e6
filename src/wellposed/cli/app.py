"""The commands of ``wellposed``.

Exit codes: 0 done; 1 a check failed, and nothing else; 2 bad usage or a model that fails; 3 a fault of wellposed's own,
with its traceback; 130 interrupted; 141 nobody reads on.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wellposed.cli import progress, reporting, show, streams, training
from wellposed.cli.arguments import (
    CheckedMethod,
    Distribution,
    Draws,
    Json,
    Method,
    Model,
    Only,
    Option,
    PlanFile,
    PlanOutput,
    Seed,
    Shape,
    Skip,
    TargetVariance,
    Tolerance,
    method_options,
)
from wellposed.cli.failing import CheckFailedError
from wellposed.cli.further import Command
from wellposed.cli.loading import load, plan_of, with_base
from wellposed.collection import seldom_collected
from wellposed.errors import OptionError, near_matches
from wellposed.options import DEFAULT_METHOD

if TYPE_CHECKING:
    from wellposed.graphs import Graph
    from wellposed.plans import Plan


app: typer.Typer = typer.Typer(
    name="wellposed",
    help="Everything a network needs before its first training step.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    """Print the version where it is asked for, and end the command."""
    if asked:
        from wellposed import __version__

        streams.out().print(f"wellposed {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Take the options that stand before a command."""


@app.command(cls=Command)
@streams.apart
def plan(
    model: Model,
    method: Method = DEFAULT_METHOD,
    seed: Seed = 0,
    target_variance: TargetVariance = None,
    distribution: Distribution = None,
    only: Only = None,
    skip: Skip = None,
    option: Option = None,
    shape: Shape = None,
    output: PlanOutput = None,
    every: Annotated[bool, typer.Option("--all", help="Show a row for every parameter.")] = False,
    as_json: Json = False,
) -> None:
    """Work out how to draw every parameter of MODEL, and show a summary; --all shows every parameter."""
    options = method_options(plan, method, target_variance, distribution, only, skip, option)
    with progress.Stages("loading", "tracing", "planning") as stages:
        from wellposed import graphs, methods
        from wellposed.plans.files import require_writable

        if output is not None:  # before the long work
            require_writable(output, "a plan")

        stages.next()
        # A function of the user's own may read values while it builds; the libraries' models do not.
        device = "cpu" if ".py:" in model else "meta"
        module, args, kwargs = load(model, seed, device, shape)
        stages.next()
        graph = graphs.trace(module, *args, **kwargs)
        stages.next()
        planned = methods.plan(graph, method=method, seed=seed, **with_base(options, seed, device, shape))
    show.plan_result(planned, output, as_json, lambda: show.plan(planned, graph, every))


@app.command(cls=Command)
@streams.apart
def check(
    model: Model,
    plan_file: PlanFile = None,
    method: CheckedMethod = None,
    seed: Seed = 0,
    target_variance: TargetVariance = None,
    distribution: Distribution = None,
    only: Only = None,
    skip: Skip = None,
    option: Option = None,
    shape: Shape = None,
    draws: Draws = 8,
    tolerance: Tolerance = None,
    backward: Annotated[
        bool, typer.Option("--backward", help="Also compare gradients with respect to every tensor (experimental).")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare the predicted signals of MODEL with those of real passes; exit code 1 when they disagree.

    The weights are those that MODEL is built with, as in wp.check(model, x); a plan's, drawn anew for every pass, where
    --plan, --method or an option of a method asks for them.
    """
    options = method_options(check, method, target_variance, distribution, only, skip, option, plan_file)
    graph, planned = _graph_and_plan(model, plan_file, method, seed, options, shape)
    with progress.Stages("predicting and measuring") as stages:
        stages.next()
        from wellposed import checks

        verdict = checks.check(graph, plan=planned, draws=draws, tolerance=tolerance, seed=seed, backward=backward)
    show.result(as_json, verdict.to_json, lambda: show.verdict(verdict))
    if not verdict.ok:
        raise CheckFailedError


@app.command(cls=Command)
@streams.apart
def explain(
    model: Model,
    node: Annotated[
        str | None,
        typer.Argument(help="Name of the node, as check and reports show it; the first that is off if left out."),
    ] = None,
    plan_file: PlanFile = None,
    method: CheckedMethod = None,
    seed: Seed = 0,
    target_variance: TargetVariance = None,
    distribution: Distribution = None,
    only: Only = None,
    skip: Skip = None,
    option: Option = None,
    shape: Shape = None,
    draws: Draws = 8,
    tolerance: Tolerance = None,
    as_json: Json = False,
) -> None:
    """Explain why NODE of MODEL is off: what entered, what its rule makes of that alone, and where the error was made.

    The weights are those of wellposed check with the same options.
    """
    options = method_options(explain, method, target_variance, distribution, only, skip, option, plan_file)
    graph, planned = _graph_and_plan(model, plan_file, method, seed, options, shape)
    with progress.Stages(f"measuring {draws} draws") as stages:
        stages.next()
        from wellposed import checks

        explanation = checks.explain(graph, node, plan=planned, draws=draws, tolerance=tolerance, seed=seed)
    show.result(as_json, explanation.to_json, lambda: show.explanation(explanation))


def _graph_and_plan(
    model: str,
    plan_file: Path | None,
    method: str | None,
    seed: int,
    options: dict[str, Any],
    shape: Sequence[str] | None,
) -> tuple[Graph, Plan | None]:
    """Load and trace a model, and make or load what is asked of a plan: None where its own weights are meant."""
    with progress.Stages("loading", "tracing", "planning") as stages:
        from wellposed import graphs, methods

        planned = None if plan_file is None else plan_of(plan_file)  # before the long work
        stages.next()
        module, args, kwargs = load(model, seed, shapes=shape)
        stages.next()
        graph = graphs.trace(module, *args, **kwargs)
        stages.next()
        if method is not None or options:
            planned = methods.plan(
                graph, method=method or DEFAULT_METHOD, seed=seed, **with_base(options, seed, shapes=shape)
            )
    return graph, planned


@app.command(cls=Command)
@streams.apart
def init(
    model: Model,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Write the weights to this file: .safetensors, or .pt (PyTorch's).")
    ],
    plan_file: PlanFile = None,
    method: CheckedMethod = None,
    seed: Seed = 0,
    target_variance: TargetVariance = None,
    distribution: Distribution = None,
    only: Only = None,
    skip: Skip = None,
    option: Option = None,
    shape: Shape = None,
) -> None:
    """Draw the weights of MODEL by a plan, and write them to a file that any framework reads."""
    options = method_options(init, method, target_variance, distribution, only, skip, option, plan_file)
    from wellposed.cli import weights

    weights.require_writable(output)
    planned = None if plan_file is None else plan_of(plan_file)
    with progress.Stages("loading", "tracing and planning", "drawing", "writing") as stages:
        from wellposed import methods

        stages.next()
        module, args, kwargs = load(model, seed, shapes=shape)
        stages.next()
        if planned is None:
            chosen, given = method or DEFAULT_METHOD, with_base(options, seed, shapes=shape)
            planned = methods.plan(module, *args, method=chosen, seed=seed, **given, **kwargs)
        stages.next()
        planned.apply_(module)
        stages.next()
        weights.write(module, planned, output)
    show.summary(planned)
    show.written(output)
    show.plain(f"to load them: model.load_state_dict({weights.loading(output)})")


@app.command()
@streams.apart
def ops(
    pattern: Annotated[str, typer.Argument(help="Show the operators whose name contains this.")] = "",
    tag: Annotated[str | None, typer.Option("--tag", help="Show one tag: exact, approximate or sampled.")] = None,
    as_json: Json = False,
) -> None:
    """List the operators that have a rule, and whether the rule is exact, approximate or sampled."""
    from wellposed.signals import registry

    rows = show.operator_rows(registry.operators())
    tags = {row.tag for row in rows}
    if tag is not None and tag not in tags:
        raise OptionError(f"no operator is tagged {tag!r}{near_matches(tag, tags)}")
    named = [row for row in rows if pattern in row.operator]
    if not named:
        raise OptionError(f"no operator with a rule is named {pattern!r}{_near_operators(pattern, rows)}")
    rows = [row for row in named if tag in (None, row.tag)]
    if not rows:
        raise OptionError(f"no operator named {pattern!r} is tagged {tag!r}: {', '.join({row.tag for row in named})}")
    show.result(as_json, lambda: json.dumps([row._asdict() for row in rows], indent=2), lambda: show.operators(rows))


def _near_operators(pattern: str, rows: Sequence[show.OperatorRow]) -> str:
    """Return the operators whose names are like what was asked for; ``""`` where none is."""
    names = {row.operator.partition(".")[0] for row in rows}
    return (
        near_matches(pattern.partition(".")[0], names)
        if get_close_matches(pattern, names, cutoff=0.5)
        else ("; wellposed ops lists them all")
    )


@app.command(cls=Command)
@streams.apart
def demo(
    small: Annotated[
        bool, typer.Option("--small", help="Two small networks in plain PyTorch; a few seconds, no model library.")
    ] = False,
    seed: Seed = 0,
) -> None:
    """Analyse, initialise and check a ResNet-50 and a Llama; exit code 1 when a check fails."""
    from wellposed.cli.demo import run

    if not run(small=small, seed=seed):
        raise CheckFailedError


for command in (
    reporting.report,
    training.prepare,
    training.lr,
    training.transfer,
    training.compare,
    training.score,
    training.refine,
):
    app.command(cls=Command)(streams.apart(command))


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line on ``argv`` (default: the process's own arguments) and exit."""
    streams.prepare_streams()
    path = list(sys.path)
    try:
        with seldom_collected():
            app(args=argv, prog_name="wellposed")
    except CheckFailedError:
        code = 1
    except SystemExit as end:
        code = _code_of(end)
    except Exception as problem:
        code = show.problem(problem)
    finally:
        sys.path[:] = path
    raise SystemExit(code)


def _code_of(end: SystemExit) -> int:
    """Return the exit code for what typer or a user's file ends with: 1 is for checks that fail, and for nothing else.

    A reader that has gone away (``wellposed check ... | head -1``) counts as it does for other programs: 141.
    """
    if show.lines_of(end):
        return show.problem(end)
    if isinstance(end.__context__, BrokenPipeError):
        return 141
    return 2 if end.code == 1 or not isinstance(end.code, int | None) else end.code or 0
