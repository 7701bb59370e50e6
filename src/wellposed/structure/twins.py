"""Twins: values that the same operators make with the same weights, of inputs that have nothing in common.

Two texts through one encoder, or two views of a scene: what one makes of the second input is to what it makes of the
first as one sample is to another.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from itertools import combinations
from typing import Any, NamedTuple

from wellposed.graphs import Graph, Node, Ref
from wellposed.graphs.operators import traits
from wellposed.operators.facts import facts_of
from wellposed.operators.norms import over_the_batch
from wellposed.operators.schema import named_arguments
from wellposed.structure.repeated import Same
from wellposed.structure.samples import Samples, samples_of


class Twin(NamedTuple):
    """How a value was made.

    Attributes:
        kind: a number, equal for values made by the same operators with the same weights from like inputs.
        sources: the inputs of the model and the random numbers that it depends on, as bits.
    """

    kind: int
    sources: int

    def is_of(self, other: Twin) -> bool:
        """Whether two values are twins."""
        return self.kind == other.kind and not self.sources & other.sources


def twins(graph: Graph, same: Same, described: Callable[[int], Hashable]) -> Mapping[int, Twin]:
    """Return, by value id, how each value was made that has a twin.

    Args:
        graph: from `wellposed.trace`.
        same: numbers what is computed from parameters and constants.
        described: an input's description; inputs with equal ones are alike.
    """
    found = _Reader(graph, same, described).found
    groups: dict[int, list[Twin]] = {}
    for twin in set(found.values()):
        groups.setdefault(twin.kind, []).append(twin)
    several = {kind for kind, group in groups.items() if any(a.is_of(b) for a, b in combinations(group, 2))}
    return {value: twin for value, twin in found.items() if twin.kind in several}


class _Reader:
    """One pass over a graph, which numbers what was made alike."""

    def __init__(self, graph: Graph, same: Same, described: Callable[[int], Hashable]) -> None:
        self.found: dict[int, Twin] = {}
        self._graph, self._same, self._kinds = graph, same, dict[Hashable, int]()
        self._samples, self._sources = samples_of(graph), 0
        for value in graph.inputs:
            info = graph.values[value]
            self._begin(value, (info.shape, info.dtype, described(value)))
        for node in graph.nodes:
            self._follow(node)

    def _begin(self, value: int, made: Hashable) -> None:
        """Enter a value as a source of its own."""
        self.found[value] = Twin(self._kinds.setdefault(made, len(self._kinds)), 1 << self._sources)
        self._sources += 1

    def _follow(self, node: Node) -> None:
        """Number the results of a node by how they were made, and note their sources."""
        sources = 0
        for value in node.inputs:
            sources |= self.found[value].sources if value in self.found else 0
        made: Hashable = node.op, self._key(node.args), self._key(tuple(node.kwargs.values()))
        if not sources:
            for index, out in enumerate(node.outputs):
                if traits(node.op).random:  # numbers that two towers may both be given
                    self._begin(out, (made, index))
            return
        if _meets_samples(self._graph, node, self._samples):  # two samples are no longer as two inputs are
            made = node.index
        for index, out in enumerate(node.outputs):
            self.found[out] = Twin(self._kinds.setdefault((made, index), len(self._kinds)), sources)

    def _key(self, argument: Any) -> Hashable:
        """Return an argument as a key that arguments made alike share."""
        if isinstance(argument, Ref) and argument.value in self.found:
            return self.found[argument.value].kind
        if isinstance(argument, (list, tuple)):
            return tuple([self._key(item) for item in argument])
        return self._same.key(argument)


def _meets_samples(graph: Graph, node: Node, samples: Mapping[int, Samples]) -> bool:
    """Whether a node combines samples of a batch: by a norm over the batch, or along their axis."""
    given = [(len(graph.values[value].shape), samples[value].axis) for value in node.inputs if value in samples]
    if over_the_batch(node) or (given and not any(out in samples for out in node.outputs)):
        return True
    named = named_arguments(node)
    if last := len(named.get("normalized_shape") or ()):
        return any(axis >= rank - last for rank, axis in given)
    if not facts_of(node.op).along:
        return False
    dims = named.get("dim")
    axes = [dims] if isinstance(dims, int) else dims
    return any(axes is None or axis in {dim % rank for dim in axes} for rank, axis in given)
