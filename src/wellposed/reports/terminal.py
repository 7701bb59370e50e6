"""The report in a terminal: sparklines over depth and the worst operations, in 80 columns."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator

from wellposed.reports.faults import place_of
from wellposed.reports.pictures import seen, series
from wellposed.reports.record import Direction, Record
from wellposed.reports.spans import weighted_names
from wellposed.reports.sparkline import depth_lines
from wellposed.reports.summary import check_summary, explain_command, remedies
from wellposed.showing import cell
from wellposed.tables import Group, RenderableType, Table, Text

WIDTH = 80
WORST = 10
_STYLES = {"good": ("✓", "green"), "fair": ("!", "yellow"), "bad": ("✗", "bold red")}
_HEADINGS: dict[Direction, str] = {
    "forward": "signals over depth, E[x²] of the outputs of weights:",
    "backward": "gradients over depth, (‖x‖ ‖g‖)² along the trunk:",
}


def table(report: Record) -> Group:
    """Return the report as a rich renderable that fits `WIDTH` columns."""
    parts: list[RenderableType] = [
        Text.assemble((f"{report.model} ", "bold"), f"{len(report.structure.operations):,} operations"),
        *_verdict(report),
    ]
    if report.failure is not None:
        parts.append(Text(report.failure, style="red"))
    for direction, heading in _HEADINGS.items():
        if found := series(report, direction):
            parts.append(Text(heading, style="dim"))
            levels = {title: list(line.values()) for title, line in found.items()}
            parts += [Text(line, no_wrap=True) for line in depth_lines(levels, WIDTH)]
    if rows := worst_operations(report, WORST):
        parts += [Text("worst operations:", style="dim"), _worst_table(report, rows)]
    parts += [Text(line) for line in check_summary(report)]
    for item in report.initialisations:
        for why in item.explanations[:1]:
            headline = (f"{item.title}, first off: ", "yellow"), f"{why.node}: {why.sentence}"
            more = f"more: {explain_command(report, item, why.node)}"
            parts += [Text.assemble(*headline), Text(more, style="dim")]
    parts += [
        Text(f"{row.rule}: " + ("–" if row.value is None else f"relative rate {row.value:.4g}"), style="dim")
        for row in report.rates
    ]
    if report.transfer is not None:
        parts += [Text(str(report.transfer)), *(Text(f"warning: {text}") for text in report.transfer.warnings)]
    parts += [Text.assemble(("note: ", "yellow"), note) for note in report.notes]
    return Group(*parts)


def _verdict(report: Record) -> Iterator[Text]:
    """Yield good or bad, where, why, what to do and whether it will train, and the numbers behind it."""
    said = report.judgement
    mark, style = _STYLES[said.level]
    yield Text.assemble((f"{mark} {said.word}", style), f": {said.why}.")
    place = place_of(report.structure, said.where)
    for name, text in (
        ("where", f"{said.where} ({place})" if place else said.where),
        ("what to do", said.action),
        *(("", one) for one in remedies(report)),
        ("will it train", said.trains),
        ("in numbers", said.figures),
    ):
        if text:
            yield Text.assemble((f"{name}: " if name else "  ", "dim"), text)


def worst_operations(report: Record, limit: int) -> list[str]:
    """Return the weighted operations whose E[x²] lies farthest from 1, or (‖x‖ ‖g‖)² from the median.

    Distances are in octaves, under the model's own weights where it has any; zeros that stand for a gate or a readout
    are no fault, and infinities and NaN come first.
    """
    names = weighted_names(report.structure)
    distances: dict[str, float] = {}
    for direction in _HEADINGS:
        known = seen(report.initialisations[0], direction) if report.initialisations else {}
        levels = {name: value for name, value in known.items() if name in names}
        proper = [level for level in levels.values() if math.isfinite(level) and level > 0]
        centre = 1.0 if direction == "forward" or not proper else statistics.median(proper)
        for name, level in levels.items():
            if level:
                octaves = abs(math.log2(level / centre)) if math.isfinite(level) else math.inf
                distances[name] = max(octaves, distances.get(name, 0.0))
    return sorted(distances, key=lambda name: -distances[name])[:limit]


def _worst_table(report: Record, names: list[str]) -> Table:
    """Return a table of operations by name, with a column for each direction and initialisation."""
    shown = Table(box=None, padding=(0, 1, 0, 0), header_style="bold", width=WIDTH)
    shown.add_column("operation", overflow="fold", ratio=1)
    columns = []
    for direction in _HEADINGS:
        symbol = "E[x²]" if direction == "forward" else "(‖x‖‖g‖)²"
        for item in report.initialisations:
            if known := seen(item, direction):
                columns.append(known)
                shown.add_column(Text(f"{symbol}\n{item.title}"), justify="right", no_wrap=True)
    for name in names:
        cells = [f"{levels[name]:.2g}" if name in levels else "–" for levels in columns]
        shown.add_row(cell(name), *cells)
    return shown
