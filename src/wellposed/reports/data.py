"""What the page's script draws from: columns of plain numbers and texts, as JSON holds them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from wellposed.reports.record import Direction, Initialisation, Record
from wellposed.reports.spans import differing_by_name, moments_by_name
from wellposed.reports.structure import Operation, Structure
from wellposed.showing import by_size, visible
from wellposed.signals import Signals

Number = float | int | str | None
"""A number of the page: infinities and NaN, which JSON lacks, are the strings ``inf``, ``-inf`` and ``nan``."""


def number(value: float | None) -> Number:
    """Return a number with four digits as JSON holds it."""
    if value is None:
        return None
    if not math.isfinite(value):
        return str(value)
    return float(f"{value:.4g}")


def page_data(report: Record) -> dict[str, Any]:
    """Return everything that the script draws: the graph, the signals of every operation, and the large tables."""
    structure = report.structure
    return {
        "operations": _operation_columns(structure.operations) | {"tag": _tags(report)},
        "groups": {
            "label": [group.label for group in structure.groups],
            "class": [group.module_class for group in structure.groups],
            "parent": [group.parent for group in structure.groups],
        },
        "inputs": structure.inputs,
        "outputs": structure.outputs,
        "branches": [(branch.path, branch.leaves, branch.joins) for branch in structure.branches],
        "merges": structure.merges,
        "fault": _fault(report),
        "initialisations": [
            {"label": item.label, "title": item.title, **_moments(report, item)} for item in report.initialisations
        ],
        "tables": {
            "parameters": parameter_table(report),
            "merges": merge_table(report),
            "signals": signal_table(report),
            "agreement": agreement_table(report),
        },
    }


def _fault(report: Record) -> int | None:
    """Return the operation that the verdict points at; None where there is none."""
    names = [operation.name for operation in report.structure.operations]
    return names.index(report.judgement.where) if report.judgement.where in names else None


def _operation_columns(operations: Sequence[Operation]) -> dict[str, list[Any]]:
    """Return the columns of the operations, one entry for each in the graph's order; ``weighted`` lists indices."""
    return {
        "name": [operation.name for operation in operations],
        "op": [short_op(operation.op) for operation in operations],
        "shape": [by_size(operation.shape) for operation in operations],
        "numel": [math.prod(operation.shape) for operation in operations],
        "group": [operation.group for operation in operations],
        "inputs": [operation.inputs for operation in operations],
        "source": [operation.source for operation in operations],
        "weighted": [i for i, operation in enumerate(operations) if operation.weighted],
        "signal": [int(operation.signal) for operation in operations],
    }


def script_json(value: Any) -> str:
    """Return JSON that can stand inside a script element, whatever the texts in it hold."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def shown(value: Any) -> Any:
    """Return data whose texts hold nothing that turns the direction of others, or cannot be written."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {shown(key): shown(item) for key, item in value.items()}
    return [shown(item) for item in value] if isinstance(value, list | tuple) else value


def short_op(op: str) -> str:
    """Return an operator without its overload: ``conv2d``."""
    return op.partition(".")[0]


Kind = Literal["predicted", "measured"]
KINDS: tuple[tuple[Direction, Kind], ...] = (
    ("forward", "predicted"),
    ("forward", "measured"),
    ("backward", "predicted"),
    ("backward", "measured"),
)
"""The four columns of second moments that each initialisation has."""


def signals_of(item: Initialisation, direction: Direction, kind: Kind) -> Signals | None:
    """Return one of an initialisation's four lists of signals."""
    signals = item.predicted if kind == "predicted" else item.measured
    return signals.gradients if signals is not None and direction == "backward" else signals


def _moments(report: Record, item: Initialisation) -> dict[str, list[Number] | None]:
    """Return the second moments by operation, for the four kinds, and the shares of them that differ between inputs,
    for two; None for a kind that there is not.
    """
    columns = {}
    for direction, kind in KINDS:
        signals = signals_of(item, direction, kind)
        columns[f"{direction}_{kind}"] = None if signals is None else _aligned(report, moments_by_name(signals))
        if direction == "forward":
            shares = differing_by_name(signals or ())
            columns[f"alike_{kind}"] = _aligned(report, shares) if shares else None
    return columns


def _aligned(report: Record, known: Mapping[str, float]) -> list[Number]:
    """Return one number for each operation: that of its first output, unless another one is infinite or NaN."""
    column: list[Number] = []
    for operation in report.structure.operations:
        levels = [known[name] for name in operation.outputs if name in known]
        odd = [level for level in levels if not math.isfinite(level)]
        column.append(number(odd[0] if odd else levels[0] if levels else None))
    return column


def _tags(report: Record) -> list[str]:
    """Return how the forward prediction of every operation was obtained; ``""`` where there is none."""
    tags = {signal.name: str(signal.tag) for signal in coverage_source(report) or ()}
    return [tags.get(operation.name, "") for operation in report.structure.operations]


def coverage_source(report: Record) -> Signals | None:
    """Return the prediction whose coverage is shown: the plan's where there is one."""
    return next((item.predicted for item in reversed(report.initialisations) if item.predicted is not None), None)


# ---- tables ---------------------------------------------------------------------------------------------------------


def _table(caption: str, columns: Mapping[str, str], rows: Iterable[Sequence[Any]]) -> dict[str, Any]:
    """Return a table: its caption, its columns by title with their type (``text`` or ``number``), and its rows."""
    return {"caption": caption, "columns": [list(column) for column in columns.items()], "rows": list(rows)}


def parameter_table(report: Record) -> dict[str, Any]:
    """Return the table of every parameter."""
    columns = {
        "parameter": "text", "shape": "text", "used by": "text", "fan in": "number", "fan out": "number",
        "distribution": "text", "std now": "number", "std planned": "number", "rate ×": "number",
        "layer rate ×": "number", "reason": "text",
    }  # fmt: skip
    rows = [
        (
            row.name, by_size(row.shape), (row.op or "").replace(".default)", ")"), row.fan_in, row.fan_out,
            row.distribution, number(row.std_now), number(row.std_planned), number(row.rate), number(row.layer_rate),
            row.reason,
        )
        for row in report.parameters
    ]  # fmt: skip
    return _table("Every parameter, as it is and as the plan draws it", columns, rows)


def signal_table(report: Record) -> dict[str, Any]:
    """Return the columns of the table of every signal; the script fills its rows from the operations."""
    columns = {"#": "number", "operation": "text", "op": "text", "shape": "text", "how predicted": "text"}
    for item in report.initialisations:
        for direction, kind in KINDS:
            if signals_of(item, direction, kind) is not None:
                symbol = "E[x²]" if direction == "forward" else "E[g²]"
                columns[f"{symbol} {item.title}, {kind}"] = "number"
        for _, kind in KINDS[:2]:
            if differing_by_name(signals_of(item, "forward", kind) or ()):
                columns[f"differs {item.title}, {kind}"] = "number"
    caption = "Second moments of every signal x and of its gradient g, and the share of x that differs between inputs"
    return _table(caption, columns, ())


def merge_table(report: Record) -> dict[str, Any]:
    """Return the table of the operations where branches meet, with what each branch adds."""
    columns = {"where": "text", "op": "text", "branches, the oldest first": "text"}
    known = [
        (item.title, moments_by_name(signals))
        for item in report.initialisations
        if (signals := item.measured or item.predicted) is not None
    ]
    for title, _ in known:
        columns |= {f"E[x²] of each, {title}": "text", f"newest / oldest, {title}": "number"}
    rows = [_merge_row(report.structure, merge, [levels for _, levels in known]) for merge in report.structure.merges]
    return _table("Where branches meet, and what each of them adds", columns, rows)


def _merge_row(structure: Structure, merge: int, known: Iterable[Mapping[str, float]]) -> list[Any]:
    """Return the row of one merge, with two cells for each initialisation's second moments by name."""
    operations = structure.operations
    sources = sorted(i for i in operations[merge].inputs if i < 0 or operations[i].signal)
    incoming = [operations[i].name if i >= 0 else structure.inputs[-1 - i] for i in sources]
    row: list[Any] = [operations[merge].name, short_op(operations[merge].op), ", ".join(incoming)]
    for levels in known:
        each = [levels.get(name) if i >= 0 else None for i, name in zip(sources, incoming, strict=True)]
        row.append(", ".join("–" if level is None else f"{level:.3g}" for level in each))
        row.append(number(each[-1] / each[0] if each[0] and each[-1] is not None else None))
    return row


def agreement_table(report: Record) -> dict[str, Any] | None:
    """Return the agreement of gradients by layer, or None without a loss."""
    if not report.agreement:
        return None
    columns = {"layer": "text"}
    titles = {item.label: item.title for item in report.initialisations}
    for label in report.agreement:
        title = titles.get(label, label)
        columns |= {f"GradCosine, {title}": "number", f"gradient norm, {title}": "number"}
    layers = dict.fromkeys(name for agreement in report.agreement.values() for name in agreement.parts)
    rows = []
    for layer in layers:
        row: list[Any] = [layer]
        for agreement in report.agreement.values():
            part = agreement.parts.get(layer)
            row += [None, None] if part is None else [number(part.cosine), number(part.norm)]
        rows.append(row)
    return _table("How well the gradients of two sub-batches agree, layer by layer", columns, rows)
