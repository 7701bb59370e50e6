"""Random inputs for real passes, drawn from descriptors."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from wellposed.errors import InputError
from wellposed.graphs import Graph
from wellposed.operators.facts import facts_of
from wellposed.signals.inputs import Input

_INDICES = (torch.int32, torch.int64)


def draw_inputs(graph: Graph, descriptors: Mapping[int, Input], generator: torch.Generator) -> dict[int, torch.Tensor]:
    """Return a random tensor for every input of a graph, by value id.

    Integer inputs are drawn where they index an embedding; others, booleans, and numbers that the model makes integers
    of, keep the example's values.

    Raises:
        InputError: an input that keeps its values has none (it is on meta).
    """
    drawn = {}
    for value in graph.inputs:
        entry, descriptor = graph.values[value], descriptors[value]
        if descriptor.kind != "tokens" and not is_rounded(graph, value):
            drawn[value] = descriptor.sample(entry.shape, generator).to(entry.dtype)
            continue
        vocabulary = descriptor.vocabulary or rows_indexed(graph, value)
        if vocabulary is not None:
            drawn[value] = descriptor.sample(entry.shape, generator, vocabulary=vocabulary).to(entry.dtype)
        elif graph.example[value].is_meta:
            raise InputError(
                f"input {entry.name!r} of {graph.model} indexes no embedding and is on meta; give an example with "
                "values"
            )
        else:
            drawn[value] = graph.example[value]
    return drawn


def is_rounded(graph: Graph, value: int) -> bool:
    """Whether integers are made of the elements of a floating-point value: rows to look up, in a table's columns."""
    users, todo = graph.users(), [value] * graph.values[value].is_signal
    while todo:
        for index in users.get(todo.pop(), ()):
            node = graph.nodes[index]
            if node.op is torch.ops.aten.to.dtype and graph.values[node.outputs[0]].dtype in _INDICES:
                return True
            if node.op.is_view or facts_of(node.op).rounds:
                todo.extend(node.outputs)
    return False


def rows_indexed(graph: Graph, value: int) -> int | None:
    """Return the number of rows of the smallest embedding that reads ``value``, also through views and casts."""
    users, sizes, todo = graph.users(), [], [value]
    while todo:
        for index in users.get(todo.pop(), ()):
            node = graph.nodes[index]
            if node.op is torch.ops.aten.embedding.default:
                sizes.append(graph.values[node.inputs[0]].shape[0])
            elif len(node.inputs) == 1 and all(graph.values[v].dtype in _INDICES for v in node.outputs):
                todo.extend(node.outputs)
    return min(sizes, default=None)
