"""Which of the nodes that are off share a cause: errors travel with the signals, gradients' against them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from wellposed.graphs import Graph, Node
from wellposed.measuring.comparison import Comparison
from wellposed.operators.norms import NORMS
from wellposed.operators.scale_parameters import parameter_values
from wellposed.structure.reach import depending


@dataclass(frozen=True, slots=True)
class Cause:
    """Nodes that are off together.

    Attributes:
        first: the first of them, where the cause is to be looked for.
        count: how many there are.
        undone: the last node that reads what is off and is as predicted itself (a norm, which takes a wrong scale
            away), where nothing that is off reaches an output; else ``""``.
        idle: whether nothing rests on what is off: it reaches no output, and meets no parameter but those of norms.
    """

    first: Comparison
    count: int
    undone: str = ""
    idle: bool = False


def find_causes(comparisons: Sequence[Comparison], graph: Graph | None) -> tuple[Cause, ...]:
    """Return the causes of what is off, in the order of their first nodes.

    A node that is off shares the cause of what it reads, if that is off, or misses by more than its tolerance and reads
    something that is. Without a graph every node has a cause of its own.
    """
    if graph is None:
        return tuple(Cause(comparison, 1) for comparison in comparisons if comparison.off)
    trail = _Trail(graph)
    forward = {c.name: c for c in comparisons if c.direction == "forward"}
    for node in graph.nodes:
        trail.follow(node, forward)
    trail.follow_back([c for c in comparisons if c.direction == "backward"])
    return trail.causes()


class _Trail:
    """The values that an error has reached, each with the number of the error's cause."""

    def __init__(self, graph: Graph) -> None:
        """Begin without causes; ``_signals`` and ``_ends`` hold the cause that a value id carries, by its place in
        ``_firsts``, and ``_resting`` those on which a weight rests.
        """
        self._graph = graph
        self._weights = parameter_values(graph) & depending(graph, graph.parameters)
        self._signals: dict[int, int] = {}
        self._firsts: list[Comparison] = []
        self._counts: list[int] = []
        self._ends: dict[int, str] = {}
        self._resting = set[int]()

    def follow(self, node: Node, compared: dict[str, Comparison]) -> None:
        """Take one node of the forward pass."""
        known = self._least(self._signals.get(value) for value in node.inputs)
        for value in node.outputs:
            comparison = compared.get(self._graph.values[value].name)
            cause = known if comparison is None else self._cause(comparison, known)
            if cause is not None:
                self._signals[value] = cause
            elif known is not None:
                self._ends[known] = node.name
        if node.op not in NORMS and not self._weights.isdisjoint(node.inputs):
            met = {self._signals.get(value) for value in (*node.inputs, *filter(self._is_read, node.outputs))}
            self._resting |= {cause for cause in met if cause is not None}

    def _is_read(self, value: int) -> bool:
        """Whether anything reads a value (of the last states of a recurrent layer often nothing does)."""
        return bool(self._graph.users().get(value)) or value in self._graph.outputs

    def follow_back(self, gradients: Sequence[Comparison]) -> None:
        """Take the gradients, in the order in which a backward pass makes them."""
        ids = {value.name: value.id for value in self._graph.values}
        users, found = self._graph.users(), dict[int, int]()
        for comparison in gradients:
            value = ids[comparison.name]
            readers = [self._graph.nodes[index] for index in users.get(value, ())]
            behind = [found.get(out) for node in readers for out in node.outputs]
            beside = [self._signals.get(v) for node in readers for v in (*node.inputs, *node.outputs)]
            cause = self._cause(comparison, self._least((*behind, *beside, self._signals.get(value))))
            if cause is not None:
                found[value] = cause
                self._resting.add(cause)

    def causes(self) -> tuple[Cause, ...]:
        """Return what was found."""
        lasting = {self._signals.get(value) for value in self._graph.outputs}
        numbered = enumerate(zip(self._firsts, self._counts, strict=True))
        return tuple(
            Cause(
                first,
                count,
                "" if number in lasting else self._ends.get(number, ""),
                idle=number not in lasting and number not in self._resting,
            )
            for number, (first, count) in numbered
        )

    def _cause(self, comparison: Comparison, known: int | None) -> int | None:
        """Return the cause of a comparison, given that of what it follows from; None where it is as predicted."""
        if not comparison.off:
            return known if not abs(comparison.error) <= comparison.tolerance else None
        if known is None:
            known = len(self._firsts)
            self._firsts.append(comparison)
            self._counts.append(0)
        self._counts[known] += 1
        return known

    @staticmethod
    def _least(causes: Iterable[int | None]) -> int | None:
        return min((cause for cause in causes if cause is not None), default=None)
