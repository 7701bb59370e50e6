"""What a call of `wellposed.plan` selects: parameters by patterns, what no checkpoint has filled, rows of tables."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from wellposed.errors import PlanError
from wellposed.graphs import Graph
from wellposed.methods.deliberate import uninitialised
from wellposed.plans import Drawn, Kept, Prescription, unselected

Patterns = str | Sequence[str] | None
Rows = tuple[tuple[int, int], ...]

FROZEN = "left alone: frozen (requires_grad is False); frozen=True plans it"
"""Why a plan leaves parameters alone that do not require gradients."""

_ROWS = re.compile(r"(?P<name>.+)\[(?P<first>\d*):(?P<end>\d*)\]")
"""A pattern with a range of rows: ``"embed.weight[50257:]"``."""


def not_selected(graph: Graph, only: Patterns, skip: Patterns, frozen: bool) -> dict[str, str]:
    """Return the parameters that the call itself leaves alone, each with the reason.

    Raises:
        PlanError: a pattern matches no parameter; or ``only="uninitialized"`` selects nothing, or everything.
    """
    kept = {} if frozen else _frozen(graph)
    if only == "uninitialized":
        return kept | uninitialised(graph) | unselected(_names(graph), None, skip)
    whole = None if only is None else [pattern for pattern in _listed(only) if not _ROWS.fullmatch(pattern)]
    return kept | unselected(_names(graph), whole, skip)


def _names(graph: Graph) -> dict[str, tuple[str, ...]]:
    return {name: parameter.names for name, parameter in graph.parameters.items()}


def _listed(patterns: str | Sequence[str]) -> Sequence[str]:
    return [patterns] if isinstance(patterns, str) else patterns


def _frozen(graph: Graph) -> dict[str, str]:
    """Return the parameters that do not require gradients, by name, with that as the reason to keep them."""
    return {name: FROZEN for name, parameter in graph.parameters.items() if not parameter.tensor.requires_grad}


def selected_rows(
    graph: Graph, only: Patterns, kept: Mapping[str, str], prescriptions: Mapping[str, Prescription]
) -> dict[str, Prescription]:
    """Return the prescriptions of parameters of which ``only`` names some rows: drawn as large as the others are.

    Args:
        graph: of the model.
        only: the call's patterns.
        kept: what the call leaves alone, with the reasons.
        prescriptions: those of all parameters, in which these are kept.

    Raises:
        PlanError: a pattern matches no parameter, or its rows are none of it or all, or the others' values are unknown.
    """
    found: dict[str, Prescription] = {}
    for pattern in _listed(only or ()):
        match = _ROWS.fullmatch(pattern)
        if match is None:
            continue
        named = {graph.aliases.get(n, n) for n in (*graph.parameters, *graph.aliases) if fnmatchcase(n, match["name"])}
        if not named:
            raise PlanError(f"only={pattern!r} matches no parameter; give a name, and rows as in 'embed.weight[100:]'")
        for name in sorted(named):
            before = prescriptions[name]
            if isinstance(before, Kept) and kept.get(name) == "left alone: not matched by only=":
                found[name] = _of_rows(graph, before, pattern, match["first"], match["end"])
    return found


def _of_rows(graph: Graph, before: Kept, pattern: str, first: str, end: str) -> Drawn:
    """Return the prescription of some rows of a parameter, the others being kept."""
    values, count = graph.parameters[before.name].values, (*before.shape, 0)[0]
    low, high = int(first or 0), min(int(end or count), count)
    if not 0 <= low < high or high - low == count:
        raise PlanError(
            f"only={pattern!r} names no part of the {count} rows of {before.name!r}; give rows that it has, and not all"
        )
    if values is None or values.shape != before.shape:
        raise PlanError(
            f"only={pattern!r} draws rows as large as the others of {before.name!r}, whose values are not known here; "
            "plan the model on a device that holds them"
        )
    others = [values[:low].detach().double().flatten(), values[high:].detach().double().flatten()]
    squares = sum(float(part @ part) for part in others)
    return Drawn(
        name=before.name,
        shape=before.shape,
        distribution="normal",
        std=math.sqrt(squares / sum(len(part) for part in others)),
        role=before.role,
        rows=((low, high),),
        reason=f"rows {low} to {high - 1}, as large as the others are, which stay as they are",
    )
