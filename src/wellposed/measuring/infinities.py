"""Infinities that a model's constants bring, as masks do, told from those that arise when numbers overflow."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from wellposed.graphs import Graph, Node
from wellposed.graphs.graph import once
from wellposed.graphs.run import dense


class Infinities:
    """Follows, through one pass, the values that hold infinities because a constant, mask or input did.

    An operator hands on what it was given: an infinite number among its arguments (``masked_fill(mask, -inf)``), or a
    value that is followed. Where a result is finite again, as after a softmax, the trail ends, so that an overflow
    further on counts as what it is.
    """

    def __init__(self, graph: Graph, parameters: Mapping[str, Tensor], inputs: Mapping[int, Tensor]) -> None:
        """Take what the pass begins with: parameters by name, and inputs by value id."""
        named = ((graph.parameters[name].value, tensor) for name, tensor in parameters.items())
        buffers = ((value, graph.buffer_tensors[name]) for name, value in graph.buffers.items())
        self._values: set[int] = set()
        self._given = _given_infinities(graph)
        for pairs in (graph.known.items(), buffers, named, (dict(graph.example) | dict(inputs)).items()):
            self._values.update(value for value, tensor in pairs if not tensor.is_meta and _infinite(tensor))

    def follow(self, node: Node, outputs: Sequence[Tensor]) -> None:
        """Take what one node made."""
        if node.index in self._given or not self._values.isdisjoint(node.inputs):
            made = zip(node.outputs, outputs, strict=True)
            self._values.update(value for value, tensor in made if _infinite(tensor))

    def __contains__(self, value: object) -> bool:
        return value in self._values


LEAST = 0.5 * float(torch.finfo(torch.float32).min)
"""Number below which two of its like are infinite together: what masks shut out with."""


def _infinite(tensor: Tensor) -> bool:
    """Whether a tensor holds infinities, or what becomes one where another mask is added."""
    if not tensor.is_floating_point() or not tensor.numel():
        return False
    low, high = dense(tensor).aminmax()
    return bool(low.item() < _least(tensor.dtype)) or high.item() == math.inf


@cache
def _least(dtype: torch.dtype) -> float:
    """Return the number of a type below which one counts as infinite."""
    return max(LEAST, 0.5 * torch.finfo(dtype).min)


@once
def _given_infinities(graph: Graph) -> frozenset[int]:
    """Return the indices of the nodes that have an infinite number among their arguments."""
    held = [node.index for node in graph.nodes if _holds_infinity((*node.args, *node.kwargs.values()))]
    return frozenset(held)


def _holds_infinity(arguments: Iterable[Any]) -> bool:
    """Whether there is an infinite number among arguments, or in lists among them."""
    return any(
        item < LEAST or item == math.inf
        if isinstance(item, float)
        else isinstance(item, list | tuple) and _holds_infinity(item)
        for item in arguments
    )
