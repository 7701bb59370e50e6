"""How results are printed: tables that fit the terminal, progress on standard error."""

from __future__ import annotations

import math
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.markup import escape
from rich.table import Table

from wellposed.cli import streams
from wellposed.errors import WellposedError

if TYPE_CHECKING:
    from torch._ops import OpOverload

    from wellposed.checks import Explanation, Verdict
    from wellposed.gradients import Agreement
    from wellposed.graphs import Graph
    from wellposed.plans import Plan, Prescription
    from wellposed.rates import Rate, TransferCheck
    from wellposed.signals.registry import Rule

TAG_STYLES = {
    "exact": "green",
    "approximate": "yellow",
    "sampled": "magenta",
    "assumed": "red",
    "heavy": "red",
    "measured": "cyan",
}
# From so many columns on, the explanatory columns of a table have room.
_WIDE = 100


def result(as_json: bool, text: Callable[[], str], shown: Callable[[], object]) -> None:
    """Print a result: as JSON, unwrapped and unstyled, or for people."""
    if as_json:
        plain(text())
    else:
        shown()


def plain(text: str) -> None:
    """Print a text as it is: unwrapped and unstyled."""
    streams.out().print(text, highlight=False, markup=False, soft_wrap=True)


def plan_result(planned: Plan, output: Path | None, as_json: bool, shown: Callable[[], object]) -> None:
    """Write a plan to ``output``, if a file is given, and print it."""
    if output is not None:
        planned.save(output)
    result(as_json, lambda: planned.model_dump_json(indent=2), shown)
    if output is not None and not as_json:
        written(output)


def written(path: Path) -> None:
    """Print where a result was written to."""
    streams.out().print(f"[dim]written to[/dim] {escape(str(path))}", soft_wrap=True)


def problem(raised: BaseException) -> int:
    """Print what went wrong, for a person, and return the exit code: 2, or 3 for a fault of wellposed's own.

    Of what a user's own file raises, the lines of that file are shown; a traceback, of faults of wellposed alone.
    """
    lines = lines_of(raised)
    told = str(raised) if isinstance(raised, WellposedError) else f"{type(raised).__name__}: {raised}".rstrip(": ")
    if not lines and isinstance(raised, OSError):
        told = f"{raised.strerror}: {raised.filename!r}" if raised.filename else str(raised)
    known = bool(lines) or isinstance(raised, WellposedError | OSError)
    if not known:
        streams.err().print("".join(traceback.format_exception(raised)), markup=False, soft_wrap=True)
        told += "; this is a fault of wellposed: please report it with what is above"
    streams.err().print(f"[bold red]error:[/] {escape(told)}")
    if not isinstance(raised, WellposedError):
        for line in lines:
            streams.err().print(f"  {escape(line)}", soft_wrap=True)
    return 2 if known else 3


def lines_of(raised: BaseException) -> list[str]:
    """Return the lines of the user's own files that led to an exception, the outermost first."""
    files = sys.modules.get("wellposed.zoo.files")  # no command has run a file before it is imported
    return [] if files is None else list(files.lines_of(raised))


def plural(count: int, noun: str) -> str:
    """Return ``"1 weight"``, ``"2,000 weights"``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def tags(counts: Mapping[str, int]) -> str:
    """Return how signals were obtained, in markup: ``"120 exact, 43 approximate"``."""
    return ", ".join(f"[{TAG_STYLES[tag]}]{count} {tag}[/]" for tag, count in counts.items() if count)


def plan(planned: Plan, graph: Graph, every: bool) -> None:
    """Print a plan: what it is about, its parameters by kind of draw or each by itself, and the plan's warnings."""
    console = streams.out()
    console.print(
        f"[bold]{escape(graph.model)}[/]: {plural(len(graph), 'operation')}, "
        f"{plural(len(graph.parameters), 'parameter')}; plan by {escape(planned.method)}, seed {planned.seed}"
    )
    if planned.inputs or planned.coverage:
        console.print(f"input {escape(planned.inputs)}; signals: {tags(planned.coverage)}")
    if every:
        console.print(planned.table(reasons=console.width >= _WIDE))
    else:
        summary(planned)
        console.print("[dim]--all shows every parameter with its reason, -o plan.json writes them[/]")
    for warning in planned.warnings:
        console.print(f"[yellow]warning:[/] {escape(warning)}")


def summary(planned: Plan) -> None:
    """Print how many parameters are drawn in each way, how many numbers they hold, and between which deviations."""
    groups: dict[str, list[Prescription]] = {}
    for said in planned.prescriptions.values():
        groups.setdefault(said.distribution.replace("_", " "), []).append(said)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("drawn", "parameters", "numbers", "std"):
        table.add_column(title, justify="left" if title == "drawn" else "right")
    for kind, members in sorted(groups.items(), key=lambda group: -len(group[1])):
        numbers = sum(math.prod(said.shape) for said in members)
        stds = [std for said in members if (std := said.std) is not None]
        span = f"{min(stds):.3g} to {max(stds):.3g}" if len(set(stds)) > 1 else f"{stds[0]:.3g}" if stds else ""
        table.add_row(kind, f"{len(members):,}", f"{numbers:,}", span)
    streams.out().print(table)


def verdict(result: Verdict) -> None:
    """Print the verdict of a check: the nodes nearest to or beyond their allowance, and the summary."""
    streams.out().print(result.table())


def verdict_lines(result: Verdict) -> None:
    """Print the verdict of a check without its table."""
    mark = "[green]✓[/]" if result.ok else "[bold red]✗[/]"
    streams.out().print(f"{mark} {escape(result.summary())}")


def explanation(why: Explanation) -> None:
    """Print why a node is off: the finding, its rule, what enters, and what leaves as predicted, and as measured."""
    console = streams.out()
    place = " · ".join(part for part in (why.module, why.source) if part)
    console.print(f"[bold]{escape(why.model)}: {escape(why.node)}[/] ({escape(why.op)}) [dim]{escape(place)}[/]")
    console.print(escape(why.sentence), style="green" if why.finding == "as predicted" else "bold red")
    rule = f"rule {escape(why.rule)}" if why.rule else "no rule"
    console.print(f"{rule}, [{TAG_STYLES[why.rule_tag]}]{why.rule_tag}[/] [dim]{escape(why.rule_source)}[/]")
    for note in why.notes:
        console.print(f"[dim]{escape(note)}[/]")
    for fan in why.fans:
        console.print(escape(str(fan)))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    table.add_column("signal", overflow="fold")
    for title in ("E[x²]", "mean", "octaves", "similar"):
        table.add_column(escape(title), justify="right", no_wrap=True)
    table.add_column("correlated, by axis", overflow="fold")
    for item in why.entering:
        predicted, seen = item.predicted, item.measured
        table.add_row(
            "enters", f"{escape(item.name)} as {escape(item.argument)}", f"{predicted.second_moment:.3g}",
            f"{predicted.mean:.2g}", "" if seen is None else f"{item.error:+.2f}", _known(predicted.similarity),
            _by_axis(predicted.correlations),
        )  # fmt: skip
        if seen is not None:
            figures = (
                f"{seen.second_moment:.3g}",
                f"{seen.mean:.2g}",
                "",
                _known(seen.similarity),
                _by_axis(seen.correlations),
            )
            table.add_row("", "[dim]measured[/]", *figures)
        if item.drawn:
            table.add_row("", f"[dim]{escape(item.drawn)}[/]")
    for result in why.leaving:
        leaving = (f"{result.predicted:.3g}", "", f"{result.error:+.2f}", _known(result.similarity))
        table.add_row("leaves", escape(result.name), *leaving)
        alone = (f"{result.on_measured:.3g}", "", f"{result.rule_error:+.2f}") if why.kept > 1 else ("–", "", "–")
        table.add_row("", "[dim]rule on measured inputs[/]", *alone)
        table.add_row("", "[dim]measured[/]", f"{result.measured:.3g}", "", "", _known(result.similarity_measured))
    console.print(table)
    console.print(f"[dim]{plural(why.draws, 'pass').replace('passs', 'passes')}, weights drawn {why.weight_draws} ×[/]")


def _known(similarity: float) -> str:
    return "" if math.isnan(similarity) else f"{round(similarity, 2) + 0.0:.2f}"  # not -0.00


def _by_axis(correlations: Sequence[float]) -> str:
    """Return correlations by axis, with a point for those below 0.005."""
    return " ".join("·" if not abs(rho) >= 0.005 else f"{rho:.2f}" for rho in correlations)


class OperatorRow(NamedTuple):
    """One operator of the coverage table."""

    operator: str
    tag: str
    family: str
    source: str


def operator_rows(rules: Mapping[OpOverload, Rule]) -> list[OperatorRow]:
    """Return the rows of the coverage table, in the order of the registry."""
    return [
        OperatorRow(str(op).removeprefix("aten."), rule.tag, rule.family, rule.source) for op, rule in rules.items()
    ]


def operator_counts(rows: Sequence[OperatorRow]) -> str:
    """Return how many operators there are, by tag: ``"212 operators: 150 exact, 62 approximate"``."""
    counts = Counter(row.tag for row in rows)
    return f"{plural(len(rows), 'operator')}: " + ", ".join(f"{count} {tag}" for tag, count in counts.most_common())


def operators(rows: Sequence[OperatorRow]) -> None:
    """Print the table of operators, narrowed to the name and the tag on narrow terminals."""
    console = streams.out()
    shown = len(OperatorRow._fields) if console.width >= _WIDE else 2
    table = Table(box=None, pad_edge=False, header_style="bold")
    for field in OperatorRow._fields[:shown]:
        table.add_column(field, overflow="fold", no_wrap=field == "tag")
    for row in rows:
        cells = row._replace(tag=f"[{TAG_STYLES[row.tag]}]{row.tag}[/]", source=escape(row.source))
        table.add_row(*cells[:shown])
    console.print(table)
    console.print(operator_counts(rows))


def rates(model: str, base: str | None, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the learning rates that rules give, for which optimizers, side by side, and what they warn of."""
    console = streams.out()
    console.print(f"[bold]{escape(model)}[/]" + (f", base {escape(base)}" if base else ""))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("rule")
    table.add_column("for")
    columns = ("rate", "ratio", "relative")
    shown = [column for column in columns if any(column in row for row in rows)]
    titles = {"rate": "learning rate", "ratio": "× base", "relative": "relative"}
    for column in shown:
        table.add_column(titles[column], justify="right")
    table.add_column("reason", overflow="fold", style="dim")
    for row in rows:
        numbers = [f"{row[column]:.4g}" if column in row else "–" for column in shown]
        table.add_row(row["rule"], row["optimizer"], *numbers, escape(row.get("reason") or row["error"]))
    console.print(table)
    for warning in dict.fromkeys(w for row in rows for w in row.get("warnings", ())):
        console.print(f"[yellow]warning:[/] {escape(warning)}")
    if base is None:
        console.print("[dim]A relative rate is meaningful only beside another one under the same rule: use --base.[/]")


def rate(result: Rate) -> None:
    """Print the rate that a search found, with its curve."""
    console = streams.out()
    over = "one draw of the weights"
    if result.interval is not None:
        span = "over seeds" if result.conditions.training_steps is None else "the best lies between"
        over = f"{span} {result.interval[0]:.4g} to {result.interval[1]:.4g}"
    console.print(f"[bold]learning rate {result.value:.4g}[/], {over}")
    console.print(f"[dim]{escape(result.reason)}[/]")
    finite = [point.mean for point in result.curve if point.mean is not None]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("rate", justify="right")
    table.add_column("loss", justify="right")
    table.add_column("")
    for point in result.curve:
        if point.mean is None:
            table.add_row(f"{point.rate:.4g}", "diverged", "")
            continue
        share = (point.mean - min(finite)) / ((max(finite) - min(finite)) or 1.0)
        table.add_row(f"{point.rate:.4g}", f"{point.mean:.4g}", "█" * (1 + round(29 * share)))
    console.print(table)
    for warning in result.warnings:
        console.print(f"[yellow]warning:[/] {escape(warning)}")


def transfer(result: TransferCheck) -> None:
    """Print how far best rates move, their table, and what they cost."""
    console, table = streams.out(), result.table()
    table.title = None  # the lines below say the same
    console.print(table)
    for line in result.summary().splitlines()[1:]:
        console.print(f"[yellow]{escape(line)}[/]" if line.startswith("warning: ") else escape(line))


_SCORES = {
    "cosine": "GradCosine",
    "norm": "gradient norm",
    "ratio": "largest / smallest norm",
    "theta": "Θ",
    "sign_density": "signs that agree",
    "loss": "loss",
}


def agreement(scores: Agreement) -> None:
    """Print how well gradients agree, and the parts that were asked for."""
    console = streams.out()
    kinds = plural(scores.count, scores.kind).replace("sub-batchs", "sub-batches")
    console.print(f"[bold]{kinds}[/]" + (f", {len(scores.excluded)} without a gradient" if scores.excluded else ""))
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, title in _SCORES.items():
        if (value := getattr(scores, name)) is not None:
            table.add_row(title, f"{value:.4g}")
    console.print(table)
    if scores.parts:
        parts = Table(box=None, pad_edge=False, header_style="bold")
        for title in ("part", "GradCosine", "norm", "ratio"):
            parts.add_column(title, overflow="fold", justify="left" if title == "part" else "right")
        for name, part in scores.parts.items():
            parts.add_row(escape(name), f"{part.cosine:.4g}", f"{part.norm:.4g}", f"{part.ratio:.4g}")
        console.print(parts)


def refinement(planned: Plan) -> None:
    """Print a refined plan: what it did to the gradients, and its scales."""
    console = streams.out()
    console.print(f"[bold]{escape(planned.model)}[/]: {escape(planned.method)}; {planned.actions}")
    before, after = planned.figures.get("before"), planned.figures.get("after")
    if isinstance(before, dict) and isinstance(after, dict):
        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in ("", "before", "after"):
            table.add_column(title, justify="right" if title else "left")
        for name, title in _SCORES.items():
            if isinstance(a := before.get(name), float) and isinstance(b := after.get(name), float):
                table.add_row(title, f"{a:.4g}", f"{b:.4g}")
        console.print(table)
    console.print(planned.table(reasons=console.width >= _WIDE))
    for warning in planned.warnings:
        console.print(f"[yellow]warning:[/] {escape(warning)}")
