"""The command line of the experiments: run, list, papers, figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

import wellposed as wp
from experiments.errors import ExperimentError

if TYPE_CHECKING:
    from experiments.results import Result

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
console = Console(highlight=False, markup=False)


def _fail(error: Exception) -> typer.Exit:
    Console(stderr=True, highlight=False).print(f"[red]error:[/red] {error}")
    return typer.Exit(1)


@app.command()
def run(
    names: Annotated[
        list[str], typer.Argument(help="Experiments (A1 … N5), and Hydra overrides such as train.epochs=2")
    ],
    scale: Annotated[str, typer.Option(help="smoke, laptop, overnight, gpu or paper")] = "laptop",
    engine: Annotated[str, typer.Option(help="local, or ray to spread the runs over a cluster")] = "local",
    data: Annotated[str | None, typer.Option(help="a hub name, a folder of Parquet files, or 'synthetic'")] = None,
    again: Annotated[bool, typer.Option(help="run also what is finished")] = False,
    runs_per_gpu: Annotated[int, typer.Option(min=1, help="with ray: units that share a GPU")] = 1,
) -> None:
    """Run experiments at a scale; what is finished is not repeated, what was killed goes on.

    Beyond smoke the figures and the page are brought up to date.
    """
    from experiments import engine as engines

    overrides = [name for name in names if "=" in name]
    if len(overrides) == len(names):
        raise _fail(ExperimentError("no experiment is named; python -m experiments list shows them"))
    try:
        for name in names:
            if name not in overrides:
                result = engines.run(
                    name,
                    scale,
                    data=data,
                    engine=engine,
                    overrides=overrides,
                    again=again,
                    runs_per_gpu=runs_per_gpu,
                    say=console.print,
                )
                _tell(result, overrides)
    except (ExperimentError, wp.errors.WellposedError) as error:
        raise _fail(error) from error
    if scale != "smoke":
        figures()
        papers()


def _tell(result: Result, overrides: Sequence[str]) -> None:
    """Print what a result says of the claim; overrides may leave out what the claim is about."""
    from experiments.papers import judged

    try:
        judgement = judged(result)
    except Exception as error:
        if not overrides:
            raise
        console.print(f"{result.experiment}: with {', '.join(overrides)} the claim cannot be judged ({error!r})")
        return
    console.print(f"{result.experiment}: {judgement.agreement}. {judgement.ours}. {judgement.sentence}")
    if judgement.table:
        head, *body = judgement.table
        table = Table(*head)
        for cells in body:
            table.add_row(*cells)
        console.print(table)


@app.command("list")
def list_() -> None:
    """List the experiments, their claims, and what has been run."""
    from experiments.registry import experiments
    from experiments.results import found

    run_at: dict[str, list[str]] = {}
    for result in found():
        run_at.setdefault(result.experiment, []).append(
            result.scale if result.current else f"{result.scale} ({result.environment['wellposed']})"
        )
    table = Table("id", "title", "source", "run at")
    for name, experiment in experiments().items():
        table.add_row(name, experiment.title, experiment.source, ", ".join(run_at.get(name, ["–"])))
    console.print(table)


@app.command()
def papers(out: Annotated[Path, typer.Option(help="the page to write")] = Path("docs/papers.md")) -> None:
    """Write the page of claims, papers' figures and ours from the results."""
    from experiments.papers import page

    try:
        out.write_text(page())
    except ExperimentError as error:
        raise _fail(error) from error
    console.print(f"written: {out}")


@app.command()
def audit(names: Annotated[list[str] | None, typer.Argument(help="experiments; none for all")] = None) -> None:
    """Check by program that arms are alike, that settings are as stated, and that verdicts follow from the numbers."""
    from experiments.audit import audit as audited
    from experiments.audit import failed

    findings = audited(names or ())
    wrong = list(failed(findings))
    for each in wrong:
        console.print(f"{each.experiment} ({each.scale}): {each.check}: no. {each.wrong}")
    console.print(f"{len(findings) - len(wrong)} of {len(findings)} checks hold")
    if wrong:
        raise typer.Exit(1)


@app.command()
def figures(out: Annotated[Path, typer.Option(help="folder of the figures")] = Path("docs/figures")) -> None:
    """Draw a figure for each experiment that has a result."""
    from experiments.figures import draw_all

    try:
        for path in draw_all(out):
            console.print(f"written: {path}")
    except ExperimentError as error:
        raise _fail(error) from error
