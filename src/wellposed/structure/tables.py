"""Tables whose rows are looked up: what numbers multiply the rows, and which tables' rows are added to each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from wellposed.graphs import Graph, Node
from wellposed.graphs.graph import once
from wellposed.operators.arithmetic import is_homogeneous, terms_of, times_number
from wellposed.operators.contraction import contractions
from wellposed.operators.facts import facts_of
from wellposed.operators.schema import named_arguments, ref_of
from wellposed.operators.views import is_view
from wellposed.walks import reached


@dataclass(frozen=True, slots=True)
class Tables:
    """How the rows of the tables of one graph, by their parameters' names, enter what follows.

    Attributes:
        factors: the number that rows are multiplied by before anything else is done to them: 1 for most, √width in
            some transformers. Of a table that is looked up several times, at the first.
        added: for each table, those whose rows are added to its own, or to a sum that its own are in, itself included;
            in the model's order. Tables that are added to nothing are left out.
    """

    factors: dict[str, float]
    added: dict[str, tuple[str, ...]]


@once
def tables(graph: Graph) -> Tables:
    """Return the tables of a graph: one pass over its nodes."""
    names = {use.parameter for use in contractions(graph) if use.kind == "embedding"} & graph.parameters.keys()
    met: dict[str, set[str]] = defaultdict(set)
    factors = {name: 1.0 for name in names if name is not None}
    for node, before, made in _sums_of_rows(graph):
        for one in made:
            met[one].update(made)
        if len(made) == 1 and made.keys() == before.keys() and before.items() <= factors.items():
            factors |= made if _is_only_reader(graph, node) else {}
    order = list(graph.parameters)
    sums = {one: _together(met, one) for one in met if len(met[one]) > 1}
    return Tables(factors, {one: tuple(sorted(those, key=order.index)) for one, those in sums.items()})


_WIDE = 8
"""Columns from which on a row of exact zeros is no draw: even numbers of bfloat16 are 0 once in 256. Chosen."""
_ZERO_ROWS = 32
"""One row in this many may be of zeros for padding; a table with more of them is something else."""


@once
def rows_drawn(graph: Graph) -> dict[str, tuple[tuple[int, int], ...]]:
    """Return for tables with rows for padding the ranges of all other rows, by name: without that which ``padding_idx``
    names, which no gradient reaches, and without a few rows of zeros in a table that holds numbers otherwise.
    """
    ranges: dict[str, tuple[tuple[int, int], ...]] = {}
    for use in contractions(graph):
        if use.kind != "embedding" or use.parameter is None or use.parameter not in graph.parameters:
            continue
        parameter = graph.parameters[use.parameter]
        padding, rows = named_arguments(graph.nodes[use.node]).get("padding_idx"), parameter.shape[0]
        if graph.values[use.weight].kind != "parameter":
            continue
        left = set(_rows_of_zeros(parameter.values, parameter.shape))
        if padding is not None and 0 <= padding < rows:
            left.add(padding)
        if left:
            edges = [-1, *sorted(left), rows]
            ranges[use.parameter] = tuple((a + 1, b) for a, b in pairwise(edges) if a + 1 < b)
    return ranges


def _rows_of_zeros(values: Tensor | None, shape: tuple[int, ...]) -> list[int]:
    """Return the rows of a table that are exactly zero, where they are few: by their first numbers, then as a whole."""
    if values is None or values.shape != shape or values.ndim != 2 or shape[0] < 2 or shape[1] < _WIDE:
        return []
    table = values.detach()
    likely = (table[:, 0] == 0).nonzero().flatten()
    if not 0 < len(likely) <= max(2, shape[0] // 2):
        return []
    zero = likely[~table[likely].any(1)]
    return zero.tolist() if 0 < len(zero) <= max(1, shape[0] // _ZERO_ROWS) else []


@once
def tied_readouts(graph: Graph) -> dict[int, tuple[int, ...]]:
    """Return for each node that multiplies by a table the values that were looked up in it before."""
    rows: dict[str | None, tuple[int, ...]] = {}
    found: dict[int, tuple[int, ...]] = {}
    for use in contractions(graph):
        if use.kind == "embedding" and use.parameter is not None:
            rows[use.parameter] = (*rows.get(use.parameter, ()), graph.nodes[use.node].outputs[0])
        elif use.sums and use.parameter in rows:
            found[use.node] = rows[use.parameter]
    return found


def _sums_of_rows(graph: Graph) -> Iterator[tuple[Node, dict[str, float], dict[str, float]]]:
    """Yield the nodes that read only rows of tables, with the factor on each table's rows before and after the node."""
    rows = {
        graph.nodes[use.node].outputs[0]: {use.parameter: 1.0}
        for use in contractions(graph)
        if use.kind == "embedding" and use.parameter is not None and use.parameter in graph.parameters
    }
    for node in graph.nodes:
        made = {} if node.outputs[0] in rows else _made(graph, node, rows)
        if made:
            rows[node.outputs[0]] = made
            yield node, next(rows[value] for value in node.inputs if value in rows), made


def _together(met: dict[str, set[str]], first: str) -> set[str]:
    """Return all tables that are added to ``first``, directly or through others."""
    return set(reached([first], met.__getitem__))


def _is_only_reader(graph: Graph, node: Node) -> bool:
    """Whether a node is the only reader of what it multiplies, so that it is no branch that scales its input."""
    return all(
        set(graph.users().get(value, ())) - set(graph.dead_nodes) <= {node.index}
        for value in node.inputs
        if value not in graph.known
    )


def _made(graph: Graph, node: Node, rows: dict[int, dict[str, float]]) -> dict[str, float]:
    """Return, by table, the factors with which a node's result holds the table's rows as terms."""

    def of(argument: object) -> dict[str, float]:
        value = ref_of(argument)
        return {} if value is None else rows.get(value, {})

    facts = facts_of(node.op)
    if facts.subtracts or facts.terms == (1.0, 1.0):
        return {
            table: own * abs(by) for argument, by in reversed(terms_of(node)) for table, own in of(argument).items()
        }
    if facts.powers:
        scaled, factor = times_number(graph, node) or (None, 1.0)
        return {table: own * abs(factor) for table, own in of(scaled).items()}
    keeps = is_view(node.op) or (facts.linear and not facts.along)
    return rows.get(node.inputs[0], {}) if is_homogeneous(node) and keeps and node.inputs else {}


def factor_between(graph: Graph, starts: Collection[int], value: int) -> float:
    """Return the absolute factor that numbers put on the results of the nodes ``starts`` on their way to ``value``.

    1 where anything but numbers and homogeneous operators lies in between.
    """
    held = {out: {"": 1.0} for start in starts for out in graph.nodes[start].outputs}
    for node in graph.nodes[min(starts, default=0) :]:
        if value in held:
            break
        if node.outputs[0] not in held and (made := _made(graph, node, held)):
            held[node.outputs[0]] = made
    return held.get(value, {}).get("", 1.0)
