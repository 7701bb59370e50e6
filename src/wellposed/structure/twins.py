"""Twins: values that the same operators make with the same weights, of inputs that have nothing in common.

Two texts through one encoder, or two views of a scene: what one makes of the second input is to what it makes of the
first as one sample is to another.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any, NamedTuple

from wellposed.graphs import Graph, Ref
from wellposed.operators.norms import over_the_batch
from wellposed.structure.repeated import Same


class Twin(NamedTuple):
    """How a value was made.

    Attributes:
        kind: a number that values share which were made alike.
        inputs: the inputs of the model that it was made of, as bits.
    """

    kind: int
    inputs: int

    def is_of(self, other: Twin) -> bool:
        """Whether two values are twins."""
        return self.kind == other.kind and not self.inputs & other.inputs


def twins(graph: Graph, same: Same) -> Mapping[int, Twin]:
    """Return how each value was made that has a twin; ``same`` tells what is made of parameters and constants."""
    found: dict[int, Twin] = {}
    kinds: dict[object, int] = {}

    def key(argument: Any) -> object:
        if isinstance(argument, Ref) and argument.value in found:
            return found[argument.value].kind
        if isinstance(argument, (list, tuple)):
            return tuple([key(item) for item in argument])
        return same.key(argument)

    for place, value in enumerate(graph.inputs):
        info = graph.values[value]
        found[value] = Twin(kinds.setdefault((info.shape, info.dtype), len(kinds)), 1 << place)
    for node in graph.nodes:
        inputs = 0
        for value in node.inputs:
            inputs |= found[value].inputs if value in found else 0
        if inputs:
            made: tuple[object, ...] = node.op, key(node.args), key(tuple(node.kwargs.values()))
            if over_the_batch(node):  # of each batch by itself, so that two samples are no longer as two inputs are
                made = (node.index,)
            for index, out in enumerate(node.outputs):
                found[out] = Twin(kinds.setdefault((*made, index), len(kinds)), inputs)
    groups: dict[int, list[Twin]] = {}
    for twin in set(found.values()):
        groups.setdefault(twin.kind, []).append(twin)
    several = {kind for kind, group in groups.items() if any(a.is_of(b) for a, b in combinations(group, 2))}
    return {value: twin for value, twin in found.items() if twin.kind in several}
