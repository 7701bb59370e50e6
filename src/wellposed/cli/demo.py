"""``wellposed demo``: real models, traced, propagated, planned, initialised and checked, with a summary of each."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from wellposed.cli import progress, show, streams
from wellposed.extras import installing

if TYPE_CHECKING:
    from torch import nn

    from wellposed.checks import Verdict
    from wellposed.graphs import Graph
    from wellposed.plans import Plan
    from wellposed.signals import Signals

Case = tuple[str, Callable[[], tuple["nn.Module", tuple[Any, ...], dict[str, Any]]]]

_DRAWS = 4


def run(*, small: bool, seed: int) -> bool:
    """Show every case; return whether all checks passed."""
    console = streams.out()
    console.print("[bold]wellposed[/]: everything a network needs before its first training step\n")
    verdicts = []
    for name, load in _cases(console, small=small):
        verdicts.append(_show_case(console, name, load, seed))
        console.print()
    return all(verdicts)


def _cases(console: Console, *, small: bool) -> list[Case]:
    """Return the models to show: those of the model libraries where they are installed, else the small ones."""
    missing = [name for name in ("torchvision", "transformers") if importlib.util.find_spec(name) is None]
    if small or missing:
        if not small:
            console.print(
                f"[yellow]{' and '.join(missing)} not installed; showing the small models instead.[/] "
                f"For ResNet-50 and a Llama: {escape(installing('zoo'))}\n",
            )
        from wellposed import demo_models

        return [
            ("ResNet-20, plain PyTorch", lambda: (*demo_models.small_resnet(), {})),
            ("GPT with 6 blocks, plain PyTorch", lambda: (*demo_models.small_gpt(), {})),
        ]
    from wellposed import zoo

    return [
        ("ResNet-50, torchvision", lambda: zoo.load("torchvision:resnet50")),
        ("Llama, transformers, from a small config", lambda: zoo.load("transformers:llama")),
    ]


def _show_case(
    console: Console, name: str, load: Callable[[], tuple[nn.Module, tuple[Any, ...], dict[str, Any]]], seed: int
) -> bool:
    """Analyse, initialise and check one model, print the summary, and return whether the check passed."""
    checking = f"checking {_DRAWS} draws"
    with progress.Stages("building", "tracing", "propagating", "planning", "initialising", checking) as stages:
        import torch

        from wellposed import checks, graphs, methods, signals

        stages.next()
        torch.manual_seed(seed)
        model, args, kwargs = load()
        stages.next()
        graph = graphs.trace(model, *args, **kwargs)
        stages.next()
        before = signals.propagate(graph)
        stages.next()
        plan = methods.plan(graph, seed=seed)
        stages.next()
        plan.apply_(model)
        stages.next()
        verdict = checks.check(graph, plan=plan, draws=_DRAWS, seed=seed)
    console.rule(f"[bold]{escape(name)}", align="left")
    _print_summary(console, graph, plan, before, verdict, stages.seconds)
    return verdict.ok


def _print_summary(
    console: Console, graph: Graph, plan: Plan, before: Signals, verdict: Verdict, seconds: dict[str, float]
) -> None:
    """Print the model, its plan, signals before and under it over depth, the check, and the time of each stage."""
    from wellposed.reports.sparkline import depth_lines

    numbers = sum(math.prod(parameter.shape) for parameter in graph.parameters.values())
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(
        "model",
        f"{escape(graph.model)}: {show.plural(len(graph), 'operation')}, "
        f"{show.plural(len(graph.parameters), 'parameter')} with {show.plural(numbers, 'number')}",
    )
    table.add_row("input", escape(plan.inputs))
    table.add_row("signals", show.tags(plan.coverage))
    table.add_row("plan", f"{escape(plan.method)}: {plan.actions}")
    table.add_row("time", ", ".join(f"{name} {took:.2f} s" for name, took in seconds.items()))
    console.print(table)
    console.print("[dim]second moment of the output of every weight, from input to output:[/]")
    weighted = _weighted(plan)
    series = {
        "own init": [signal.second_moment for signal in before if signal.name in weighted],
        "planned": [node.predicted for node in verdict.comparisons if node.name in weighted],
        "measured": [node.measured for node in verdict.comparisons if node.name in weighted],
    }
    for line in depth_lines(series, console.width):
        console.print(line)
    show.verdict_lines(verdict)


def _weighted(plan: Plan) -> set[str]:
    """Return the names of the nodes that a drawn weight belongs to."""
    drawn = (p for p in plan.prescriptions.values() if p.fan_in is not None)
    return {p.op.rpartition(" (")[0] for p in drawn if p.op is not None}
