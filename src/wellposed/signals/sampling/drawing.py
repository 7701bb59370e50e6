"""Random inputs for real passes, drawn from descriptors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import torch

from wellposed.errors import InputError
from wellposed.graphs import Graph
from wellposed.signals.examples import (
    absent_paddings,
    compared_with_numbers,
    is_rounded,
    meets_itself,
    rows_indexed,
    shown_paddings,
)
from wellposed.signals.inputs import Input


def draw_inputs(graph: Graph, descriptors: Mapping[int, Input], generator: torch.Generator) -> dict[int, torch.Tensor]:
    """Return a random tensor for every input of a graph, by value id.

    These keep the example's values: inputs described as given, numbers that become integers in the model, and tokens
    whose parts depend on one another (the corners of a box). Tokens that a model compares with a number keep the
    example's values where the comparison would change: a mask of padding stays the example's. So does the padding of a
    table, and padding tokens that the example lacks are not drawn.

    Raises:
        InputError: an input that keeps its values has none (it is on meta).
    """
    drawn = {}
    for value in graph.inputs:
        entry, descriptor = graph.values[value], descriptors[value]
        if descriptor.kind == "given":
            drawn[value] = graph.example[value]
            continue
        if entry.dtype.is_complex:  # the parts share the variance
            parts = (descriptor.sample(entry.shape, generator) / math.sqrt(2.0) for _ in range(2))
            drawn[value] = torch.complex(*parts).to(entry.dtype)
            continue
        if descriptor.kind != "tokens" and not is_rounded(graph, value):
            drawn[value] = descriptor.sample(entry.shape, generator).to(entry.dtype)
            continue
        vocabulary = descriptor.vocabulary or rows_indexed(graph, value)
        if vocabulary and not graph.example[value].is_meta and meets_itself(graph, value):
            drawn[value] = graph.example[value]
        elif vocabulary is not None:
            rows = _rows(graph, value, vocabulary)
            tokens = rows[descriptor.sample(entry.shape, generator, vocabulary=len(rows)).long()].to(entry.dtype)
            drawn[value] = _with_padding(graph, value, tokens)
        elif graph.example[value].is_meta:
            raise InputError(
                f"input {entry.name!r} of {graph.model} indexes no embedding and is on meta; give an example with "
                "values"
            )
        else:
            drawn[value] = graph.example[value]
    return drawn


def _rows(graph: Graph, value: int, vocabulary: int) -> torch.Tensor:
    """Return the rows that tokens may index: all but padding rows that the example does not use."""
    absent = absent_paddings(graph, value)
    rows = [row for row in range(vocabulary) if row not in absent] if absent else range(vocabulary)
    return torch.tensor(rows or range(vocabulary))


def _with_padding(graph: Graph, value: int, tokens: torch.Tensor) -> torch.Tensor:
    """Return drawn tokens, with the example's where a comparison of the drawn ones gives another result, and where the
    example, or the draw alone, is the padding of a table.
    """
    example = graph.example[value]
    if example.is_meta or example.shape != tokens.shape:
        return tokens
    compared = [partial(node.op, other=node.args[1]) for node in compared_with_numbers(graph, value)]
    padded = [partial(torch.eq, other=row) for row in shown_paddings(graph, value)]
    for holds in (*compared, *padded):
        tokens = torch.where(holds(example) != holds(tokens), example.to(tokens), tokens)
    return tokens
