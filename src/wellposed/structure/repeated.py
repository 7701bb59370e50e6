"""Which contractions meet a weight that others meet as well: cells in a loop, shared layers, solvers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any

from wellposed.graphs import Graph, Ref
from wellposed.graphs.operators import traits
from wellposed.operators.contraction import Contraction


class Same:
    """Numbers values computed from parameters and constants, equal numbers for equal operators and arguments."""

    def __init__(self, graph: Graph, fixed: Collection[int]) -> None:
        self._graph, self._fixed = graph, fixed
        self._keys: dict[int, object] = {}
        self._numbers: dict[object, int] = {}

    def number(self, arguments: tuple[Any, ...]) -> int:
        """Return a number that equal arguments share (see `key`)."""
        return self._numbers.setdefault(self.key(arguments), len(self._numbers))

    def key(self, argument: Any) -> object:
        """Return an argument as a hashable key that equal arguments share; signals have one key."""
        if isinstance(argument, Ref):
            value = argument.value
            known = value in self._fixed or value in self._graph.known
            return self._of_value(value) if known else Ref
        if isinstance(argument, (list, tuple)):
            return tuple([self.key(item) for item in argument])
        return repr(argument)

    def _of_value(self, value: int) -> object:
        """Return a key that equal values share: the operator and arguments that make them, or a name."""
        if value not in self._keys:
            info = self._graph.values[value]
            found: object = self._graph.aliases.get(info.name, info.name)
            node = None if info.node is None else self._graph.nodes[info.node]
            if node is not None and not traits(node.op).random:
                made = (node.op, info.index, self.key((*node.args, *node.kwargs.values())))
                # a number in its place: tuples of tuples of tuples would be hashed as trees
                found = ("made", self._numbers.setdefault(made, len(self._numbers)))
            self._keys[value] = found
        return self._keys[value]


def repeated(graph: Graph, uses: Iterable[Contraction], same: Same) -> frozenset[int]:
    """Return the nodes whose weight (or an equal one, `Same`) meets signals at other nodes by the same operator too."""
    keys = {use.node: (graph.nodes[use.node].op, same.key(Ref(use.weight))) for use in uses if use.sums}
    counts = Counter(keys.values())
    return frozenset(node for node, key in keys.items() if counts[key] > 1)
