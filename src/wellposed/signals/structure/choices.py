"""Choices that a model makes among its own signals: the k largest scores, their order, and what follows from them.

Which elements are chosen depends on all of them, so that neither the chosen ones nor what is gathered, masked or
counted by their indices has moments that follow from those of the scores. Such operators are run together on draws of
the scores: from the last signal of a known distribution (logits) to where what was chosen meets another signal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch

from wellposed.graphs import Graph, Node
from wellposed.graphs.operators import traits
from wellposed.signals.operators.elementwise import FUNCTIONS
from wellposed.signals.operators.schema import plain_name
from wellposed.signals.operators.views import is_view

CHOICES = frozenset({"topk", "sort", "argsort", "argmax", "argmin", "kthvalue", "scatter_reduce"})
"""Operators that choose."""
_OF_AN_AXIS = frozenset({"max", "min", "median", "mode"})
"""Operators that choose where their indices are used."""
_ALONG = frozenset(FUNCTIONS) | {"softmax", "_softmax", "log_softmax", "pow", "add", "sub", "rsub", "mul", "div"}
_ALONG |= {"gather", "index", "index_select", "masked_fill", "where"}
"""Operators between the source and the choice, which leave the distribution's family but not what is known of it."""
_AFTER = _ALONG | {
    "_to_copy", "all", "amax", "amin", "any", "bitwise_and", "bitwise_not", "bitwise_or", "broadcast_tensors",
    "bucketize", "cat", "clone", "copy", "cumprod", "cumsum", "eq", "fill", "floor_divide", "fmod", "gather", "ge",
    "gt", "histc", "index", "index_add", "index_copy", "index_fill", "index_put", "index_select", "le",
    "linalg_vector_norm", "logical_and", "logical_not", "logical_or", "logsumexp", "lt", "masked_fill", "max",
    "maximum", "mean", "min", "minimum", "ne", "one_hot", "prod", "remainder", "scatter", "scatter_add",
    "scatter_reduce", "searchsorted", "select_scatter", "slice_scatter", "stack", "std", "sum", "take_along_dim",
    "tril", "triu", "var", "view_write", "where",
}  # fmt: skip
FARTHEST = 32
"""Most operators between a choice and its sources."""
LIMIT = 1 << 20
"""Most elements of a tensor that choices are followed in."""


@dataclass(frozen=True, slots=True)
class Choices:
    """The nodes that are run on draws.

    Attributes:
        before: those between sources and choices; rules tell their signals, draws go along.
        after: choices, and what is made of them alone; draws tell their signals.
        axis: where maxima are taken over segments of an axis (the edges of a graph), that axis.
    """

    before: frozenset[int] = frozenset()
    after: frozenset[int] = frozenset()
    axis: int | None = None


def choices_of(graph: Graph) -> Choices:
    """Return the nodes by which a graph chooses among its signals."""
    seeds = [node for node in graph.nodes if _chooses(graph, node)]
    if not seeds:
        return Choices()
    before: set[int] = set()
    drawn: set[int] = set()
    for seed in seeds:
        _climb(graph, seed, before, drawn)
    after = {node.index for node in seeds}
    drawn.update(value for node in seeds for value in node.outputs)
    made = {value for node in seeds for value in node.outputs}
    for node in graph.nodes[seeds[0].index + 1 :]:
        if node.index in before or made.isdisjoint(node.inputs) or not _follows(graph, node, drawn):
            continue
        after.add(node.index)
        made.update(node.outputs)
        drawn.update(node.outputs)
    axes = [node.args[1] for node in seeds if plain_name(node.op) == "scatter_reduce"]
    return Choices(frozenset(before - after), frozenset(after), axes[0] if axes else None)


def _chooses(graph: Graph, node: Node) -> bool:
    name = plain_name(node.op)
    if name not in CHOICES and not (name in _OF_AN_AXIS and len(node.outputs) == 2):
        return False
    if name == "scatter_reduce":  # a maximum for each name: softmax over segments
        return (
            node.args[4] in ("amax", "amin")
            and all(v in graph.known for v in node.inputs[:2])
            and _is_small(graph, node)
        )
    source = graph.values[node.inputs[0]] if node.inputs else None
    if source is None or not source.is_signal or source.id in graph.known or not _is_small(graph, node):
        return False
    return name in CHOICES or any(node.outputs[1] in other.inputs for other in graph.nodes[node.index :])


def _climb(graph: Graph, seed: Node, before: set[int], drawn: set[int]) -> None:
    """Add what lies between a choice and its sources, the nearest operators that mix signals by weights."""
    todo = [value for value in seed.inputs if _is_random(graph, value)]
    largest = max((math.prod(graph.values[value].shape) for value in todo), default=0)
    for _ in range(FARTHEST):
        if not todo:
            return
        value = todo.pop()
        drawn.add(value)
        at = graph.values[value].node
        if at is None or at in before:
            continue
        node = graph.nodes[at]
        read = [v for v in node.inputs if _is_random(graph, v)]
        signals = all(graph.values[v].is_signal and math.prod(graph.values[v].shape) <= largest for v in read)
        if signals and 0 < len(read) <= (2 if plain_name(node.op) in ("add", "sub") else 1) and _goes_along(node):
            before.add(at)
            drawn.update(node.outputs)
            todo += read
    drawn.update(todo)


def _goes_along(node: Node) -> bool:
    return plain_name(node.op) in _ALONG or is_view(node.op)


def _follows(graph: Graph, node: Node, drawn: set[int]) -> bool:
    """Whether an operator works on what was drawn alone, and on constants."""
    if not (_name_follows(node.op) and _is_small(graph, node)):
        return False
    return all(value in drawn or _is_constant(graph, value) for value in node.inputs)


@cache
def _name_follows(op: torch._ops.OpOverload) -> bool:
    return (plain_name(op) in _AFTER or plain_name(op) in CHOICES or is_view(op)) and not traits(op).random


def _is_small(graph: Graph, node: Node) -> bool:
    return all(math.prod(graph.values[value].shape) <= LIMIT for value in (*node.inputs, *node.outputs))


def _is_random(graph: Graph, value: int) -> bool:
    return value not in graph.known and graph.values[value].kind in ("input", "intermediate")


def _is_constant(graph: Graph, value: int) -> bool:
    info = graph.values[value]
    if value in graph.known or info.kind == "buffer":
        return True
    return info.node is not None and traits(graph.nodes[info.node].op).fills
