"""Codebooks that no plan writes: training moves their rows to what they are nearest to, so they are planned for as if
they were there.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import torch

from wellposed.errors import joined
from wellposed.graphs import Graph
from wellposed.ranks import is_held
from wellposed.structure.meetings import codebooks
from wellposed.structure.reach import behind
from wellposed.structure.roles import roles

SMALLEST = 0.25
"""Root mean square of a codebook below which it counts as one that training has yet to move. Chosen: weights behind
would be four times as large as usual, and signals too once it has moved."""


def codebooks_in_place(graph: Graph, kept: Collection[str]) -> tuple[Graph, str]:
    """Return the graph with every small codebook that is left alone scaled to a root mean square of 1, the size of what
    it quantises, and a warning that names these; the graph itself and ``""`` where there are none.

    Buffers count, and parameters that are ``kept`` or have no role: a plan gives others their size itself. The model's
    own tensors are left as they are.
    """
    small: dict[int, torch.Tensor] = {}
    for value in sorted(codebooks(graph)):
        table = _table(graph, value, kept)
        size = 0.0 if table is None else float(table.double().square().mean().sqrt())
        if table is not None and 0.0 < size < SMALLEST:
            small[value] = table / size
    if not small:
        return graph, ""
    names = {graph.values[value].name: table for value, table in small.items()}
    stale = behind(graph, small)
    parameters = {
        name: replace(parameter, tensor=small[parameter.value], values=small[parameter.value])
        if parameter.value in small
        else parameter
        for name, parameter in graph.parameters.items()
    }
    seen = replace(
        graph,
        parameters=parameters,
        buffer_tensors={**graph.buffer_tensors, **{n: t for n, t in names.items() if n in graph.buffers}},
        known={
            value: small.get(value, known)
            for value, known in graph.known.items()
            if value in small or value not in stale
        },
    )
    return seen, (
        f"this plan leaves codebooks alone that are smaller than what they quantise: {joined(map(repr, names))}. What "
        "follows is planned for rows of root mean square 1, the size of the signals that training moves them to, and "
        "is smaller until then; give the rows that size to begin with"
    )


def _table(graph: Graph, value: int, kept: Collection[str]) -> torch.Tensor | None:
    """Return the numbers of a buffer, or of a parameter that is kept or that no rule writes; None of others, and where
    they are unknown to this process.
    """
    name = graph.values[value].name
    if graph.values[value].kind == "buffer":
        table: torch.Tensor | None = graph.buffer_tensors[name]
    else:
        table = graph.parameters[name].values if name in kept or roles(graph)[name] == "other" else None
    if table is None or not is_held(table) or table.shape != graph.values[value].shape:
        return None
    return table.detach()
