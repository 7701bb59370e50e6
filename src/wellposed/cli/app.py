"""The commands of ``wellposed``. Exit codes: 0 done, 1 a check failed, 2 bad usage or a model that fails."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from wellposed.cli import show
from wellposed.errors import OptionError, WellposedError, near_matches

app = typer.Typer(
    name="wellposed",
    help="Everything a network needs before its first training step.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_MODEL_HELP = (
    "torchvision:resnet50, timm:vit_small_patch16_224, transformers:path/to/config.json (random weights; nothing is "
    "downloaded), or path/to/file.py:function, which returns the model, (model, args) or (model, args, kwargs)."
)

Model = Annotated[str, typer.Argument(help=_MODEL_HELP, show_default=False)]
Method = Annotated[str, typer.Option("--method", "-m", help="How to initialise: autoinit, kaiming, xavier, ...")]
Seed = Annotated[int, typer.Option("--seed", "-s", help="Seed of the plan's random streams.")]
TargetVariance = Annotated[
    float | None, typer.Option("--target-variance", help="Variance that every weighted output is brought to.")
]
Distribution = Annotated[
    str | None, typer.Option("--distribution", help="truncated_normal, normal, uniform or orthogonal.")
]
Only = Annotated[list[str] | None, typer.Option("--only", help="Pattern of parameters to write; repeatable.")]
Skip = Annotated[list[str] | None, typer.Option("--skip", help="Pattern of parameters to leave alone; repeatable.")]
Option = Annotated[
    list[str] | None,
    typer.Option("--option", "-O", metavar="NAME=VALUE", help="Any further option of the method; repeatable."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]


def _version(asked: bool) -> None:
    if asked:
        from wellposed import __version__

        show.out().print(f"wellposed {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def _options(
    target_variance: float | None,
    distribution: str | None,
    only: Sequence[str] | None,
    skip: Sequence[str] | None,
    further: Sequence[str] | None,
) -> dict[str, Any]:
    """Return the options that were given, by their names in `wellposed.plan`."""
    named = {"target_variance": target_variance, "distribution": distribution, "only": only, "skip": skip}
    options: dict[str, Any] = {name: value for name, value in named.items() if value}
    if target_variance is not None:
        options["target_variance"] = target_variance
    for text in further or ():
        name, separator, value = text.partition("=")
        if not (name and separator):
            raise OptionError(f"--option takes NAME=VALUE, but received {text!r}")
        try:
            options[name] = json.loads(value)
        except json.JSONDecodeError:
            options[name] = value
    return options


@app.command()
def plan(
    model: Model,
    method: Method = "autoinit",
    seed: Seed = 0,
    target_variance: TargetVariance = None,
    distribution: Distribution = None,
    only: Only = None,
    skip: Skip = None,
    option: Option = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the plan to this JSON file.")] = None,
    as_json: Json = False,
) -> None:
    """Work out how to draw every parameter of MODEL, and show it."""
    options = _options(target_variance, distribution, only, skip, option)
    with show.Stages("loading", "tracing", "planning") as stages:
        from wellposed import graphs, methods, zoo

        stages.next()
        # A function of the user's own may read values while it builds; the libraries' models do not.
        device = "cpu" if ".py:" in model else "meta"
        module, args, kwargs = zoo.load(model, device=device)
        stages.next()
        graph = graphs.trace(module, *args, **kwargs)
        stages.next()
        planned = methods.plan(graph, method=method, seed=seed, **options)
    if output is not None:
        planned.save(output)
    if as_json:
        show.json_text(planned.model_dump_json(indent=2))
        return
    show.plan(planned, graph)
    if output is not None:
        show.out().print(f"[dim]written to[/dim] {output}")


@app.command()
def check(
    model: Model,
    plan_file: Annotated[
        Path | None, typer.Option("--plan", "-p", help="A saved plan; without it one is made by --method.")
    ] = None,
    method: Method = "autoinit",
    seed: Seed = 0,
    target_variance: TargetVariance = None,
    distribution: Distribution = None,
    only: Only = None,
    skip: Skip = None,
    option: Option = None,
    draws: Annotated[int, typer.Option("--draws", min=2, help="Draws of the weights and of the input.")] = 8,
    tolerance: Annotated[
        float | None, typer.Option("--tolerance", help="Octaves that a prediction may miss by; by default, by its tag.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Hold the predicted signals of MODEL against those of real passes; exit code 1 when they disagree."""
    options = _options(target_variance, distribution, only, skip, option)
    with show.Stages("loading", "tracing", "planning", f"measuring {draws} draws") as stages:
        from wellposed import checks, graphs, methods, plans, zoo

        stages.next()
        module, args, kwargs = zoo.load(model)
        stages.next()
        graph = graphs.trace(module, *args, **kwargs)
        stages.next()
        if plan_file is not None:
            planned = plans.Plan.load(plan_file)
        else:
            planned = methods.plan(graph, method=method, seed=seed, **options)
        stages.next()
        verdict = checks.check(graph, plan=planned, draws=draws, tolerance=tolerance, seed=seed)
    if as_json:
        show.json_text(verdict.to_json())
    else:
        show.verdict(verdict)
    if not verdict.ok:
        raise typer.Exit(1)


@app.command()
def ops(
    pattern: Annotated[str, typer.Argument(help="Show the operators whose name holds this.")] = "",
    tag: Annotated[str | None, typer.Option("--tag", help="Show one tag: exact, approximate or sampled.")] = None,
    as_json: Json = False,
) -> None:
    """List the operators that have a rule, and whether the rule is exact, approximate or sampled."""
    from wellposed.signals import registry

    rows = show.operator_rows(registry.operators())
    tags = {row.tag for row in rows}
    if tag is not None and tag not in tags:
        raise OptionError(f"no operator is tagged {tag!r}{near_matches(tag, tags)}")
    rows = [row for row in rows if pattern in row.operator and tag in (None, row.tag)]
    if as_json:
        show.json_text(json.dumps([row._asdict() for row in rows], indent=2))
    else:
        show.operators(rows)


@app.command()
def demo(
    small: Annotated[
        bool, typer.Option("--small", help="Two small networks in plain PyTorch; a few seconds, no model library.")
    ] = False,
    seed: Seed = 0,
) -> None:
    """Analyse, initialise and check a ResNet-50 and a Llama; exit code 1 when a check fails."""
    from wellposed.cli.demo import run

    if not run(small=small, seed=seed):
        raise typer.Exit(1)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line on ``argv`` (default: the process's own arguments) and exit."""
    try:
        app(args=argv, prog_name="wellposed")
    except (WellposedError, OSError) as error:
        show.error(error)
        raise SystemExit(2) from None
