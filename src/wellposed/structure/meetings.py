"""Where results of one weight, or powers of one input, meet: what a graph says of that without statistics."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial, reduce
from operator import or_

import torch

from wellposed.graphs import Graph, Node, Ref, Value
from wellposed.graphs.graph import once
from wellposed.operators.facts import facts_of
from wellposed.operators.product import is_product
from wellposed.operators.scale_parameters import parameter_values
from wellposed.operators.views import is_view
from wellposed.structure.repeated import Same

Bits = Mapping[int, int]
"""Sets of nodes or inputs, as bits, by value."""


class Uses:
    """For each value, the nodes at which weights that several nodes meet took part in it, as bits.

    Attributes:
        direct: by value id, the nodes with no other weight in between.
        far: by value id, all such nodes.
        groups: for each such weight the bits of all its nodes.
    """

    def __init__(self, graph: Graph, repeated: Collection[int], weight_at: Mapping[int, int], same: Same) -> None:
        bits = {at: 1 << i for i, at in enumerate(sorted(repeated))}
        self._made = [graph.values[graph.nodes[at].outputs[0]].shape for at in sorted(repeated)]
        direct: dict[int, int] = {}
        far: dict[int, int] = {}
        groups: dict[object, int] = {}
        for node in graph.nodes:
            near, before = _any(direct, node.inputs), _any(far, node.inputs)
            if node.index in weight_at:
                near = bits.get(node.index, 0)
            if node.index in bits:
                key = (node.op, same.key(Ref(weight_at[node.index])))
                groups[key] = groups.get(key, 0) | near
            direct |= dict.fromkeys(node.outputs, near)
            far |= dict.fromkeys(node.outputs, before | near)
        self.direct, self.far, self.groups = direct, far, frozenset(groups.values())

    def meet(self, node: Node) -> bool:
        """Whether what one weight made at several nodes meets at a node, with no weight in between."""
        return self._any_pair(node, self.direct, lambda a, b: (a | b).bit_count() > 1)

    def meet_apart(self, node: Node) -> bool:
        """Whether operands meet at a node that depend, with any weights in between, on different nodes of one weight,
        and on none in common.
        """
        return self._any_pair(node, self.far, lambda a, b: not a & b)

    def meet_in_other_shapes(self, node: Node) -> bool:
        """Whether operands meet at a node that one weight made at different nodes, of inputs of different shapes."""
        return self._any_pair(node, self.direct, lambda a, b: not a & b and self._shapes(a) != self._shapes(b))

    def _shapes(self, bits: int) -> set[tuple[int, ...]]:
        return {shape for i, shape in enumerate(self._made) if bits >> i & 1}

    def _any_pair(self, node: Node, behind: Bits, holds: Callable[[int, int], bool]) -> bool:
        """Whether ``holds(a, b)`` for the bits, of one weight's nodes, behind two operands."""
        made = [behind.get(value, 0) for value in dict.fromkeys(node.inputs)]
        pairs = [(a, b) for i, a in enumerate(made) for b in made[:i] if a and b]
        shared = ((a & group, b & group) for group in self.groups for a, b in pairs if a & group and b & group)
        return any(holds(a, b) for a, b in shared)


def _any(sets: Bits, values: Iterable[int]) -> int:
    """Return the union of the sets of some values."""
    return reduce(or_, (sets.get(value, 0) for value in values), 0)


@once
def fed_back(graph: Graph) -> frozenset[int]:
    """Return the nodes at which a parameter, or a value computed from parameters, meets a signal that depends on it."""
    fixed = parameter_values(graph)
    names = {parameter.value: 1 << i for i, parameter in enumerate(graph.parameters.values())}
    behind: dict[int, int] = {}
    found = set[int]()
    for node in graph.nodes:
        own, before = _any(names, node.inputs), 0
        for value in node.inputs:
            if value in fixed:
                own |= behind.get(value, 0)
            else:
                before |= behind.get(value, 0)
        if own & before:
            found.add(node.index)
        behind |= dict.fromkeys(node.outputs, own | before)
    return frozenset(found)


@once
def behind_picks(graph: Graph) -> frozenset[int]:
    """Return the values that depend on a pick by an index that was found among signals."""
    values, found = graph.values, set[int]()

    def is_found(value: int) -> bool:
        return not values[value].is_signal and value not in graph.known and values[value].node is not None

    for node in graph.nodes:
        if not found.isdisjoint(node.inputs) or (facts_of(node.op).indexed and any(map(is_found, node.inputs))):
            found.update(node.outputs)
    return frozenset(found)


def picks_beyond_weights(graph: Graph, weighted: Collection[int]) -> Mapping[int, frozenset[int]]:
    """Return the nodes that pick from results of weights by an index that depends on the same input (features of the
    nearest points), each with the values that are such indices. ``weighted`` are the nodes that meet weights.
    """
    plain = {value: 1 << i for i, value in enumerate(graph.inputs) if graph.values[value].is_signal}
    every = dict(plain)
    found: dict[int, frozenset[int]] = {}
    for node in graph.nodes:
        before, alone = _any(every, node.inputs), _any(plain, node.inputs)
        if facts_of(node.op).indexed:
            indices = {value for value in node.inputs if not graph.values[value].is_signal} & plain.keys()
            picked = reduce(or_, (every.get(v, 0) for v in node.inputs if v not in plain), 0)
            if picked & reduce(or_, (plain[value] for value in indices), 0):
                found[node.index] = frozenset(indices)
        if before and before == alone and node.index not in weighted:
            plain |= dict.fromkeys(node.outputs, before)
        every |= dict.fromkeys(node.outputs, before)
    return found


def powers_of_inputs(graph: Graph, weighted: Collection[int]) -> frozenset[int]:
    """Return the nodes that multiply a matrix input by a result of an earlier product with it, weights in between or
    not. ``weighted`` are the nodes that meet weights.
    """
    plain = {value: 1 << i for i, value in enumerate(graph.inputs) if value not in graph.known}
    multiplied: dict[int, int] = {}
    found = set[int]()
    for node in graph.nodes:
        before, own = _any(multiplied, node.inputs), 0
        free = [value for value in node.inputs if value not in graph.known]
        if node.index in weighted:
            pass
        elif is_product(node.op) and not facts_of(node.op).elementwise:
            own = _any(plain, node.inputs)
            found |= {node.index} if own & before else set()
        elif len(free) == 1 and free[0] in plain:
            plain |= dict.fromkeys(node.outputs, plain[free[0]])
        multiplied |= dict.fromkeys(node.outputs, before | own)
    return frozenset(found)


@once
def codebook_picks(graph: Graph) -> Mapping[int, frozenset[int]]:
    """Return the nodes that pick rows of a parameter (or a value computed from parameters) by an index that depends on
    it (vector quantisation), each with these parameters.
    """
    if not _picks_by_parameters(graph):
        return {}
    made_of = {parameter.value: frozenset((parameter.value,)) for parameter in graph.parameters.values()}
    tables = parameter_values(graph)
    found: dict[int, frozenset[int]] = {}
    for node in graph.nodes:
        sources = {value: made_of[value] for value in node.inputs if value in made_of}
        made_of |= dict.fromkeys(node.outputs, _union(sources.values()))
        if facts_of(node.op).indexed or facts_of(node.op).looks_up:
            picked = _union(sources[value] for value in tables.intersection(sources))
            by = _union(of for value, of in sources.items() if not graph.values[value].is_signal)
            found |= {node.index: picked & by} if picked & by else {}
    return found


@once
def codebooks(graph: Graph) -> frozenset[int]:
    """Return the buffers and parameters whose rows are picked by an index that depends on them, as that of the nearest
    row does: looked up, or multiplied by numbers that are made of the index (one-hot rows).

    Rows that are normalised, or mapped by a weight, before they are picked have that size, and do not count. Nor do
    tables that also make what leaves the model (a decoder that goes on with the likeliest token scores it by its own
    embedding).
    """
    if not any(map(partial(_is_found_index, graph), graph.values)):
        return frozenset()
    tables = [value.id for value in graph.values if value.kind in ("buffer", "parameter") and len(value.shape) > 1]
    picks = _Picks(graph, {table: 1 << i for i, table in enumerate(tables)})
    for node in graph.nodes:
        picks.read(node)
    found = picks.found & ~_any(picks.met, graph.outputs)
    return frozenset(table for i, table in enumerate(tables) if found >> i & 1)


class _Picks:
    """Which tables are picked from by indices that depend on them: one pass over a graph, with sets of tables as bits.

    Attributes:
        all: by value, the tables that it depends on.
        alone: the same of values that are made of nothing else.
        same: the table that a value is, or is a view of.
        by: by value, the tables that an integer behind it was found with.
        met: by value, the tables that met other signals in it, with no integer in between.
        found: those that are picked from by an index that depends on them.
    """

    def __init__(self, graph: Graph, tables: Mapping[int, int]) -> None:
        self.graph = graph
        self.all, self.alone, self.same = dict(tables), dict(tables), dict(tables)
        self.by: dict[int, int] = {}
        self.met: dict[int, int] = {}
        self.found = 0

    def read(self, node: Node) -> None:
        """Note what a node makes of tables."""
        sources = _any(self.all, node.inputs)
        if not sources:
            return
        picked, pure = self._picked(node), all(value in self.alone for value in node.inputs)
        self.found |= picked
        indexed = _any(self.by, node.inputs)
        met = 0 if pure else _any(self.met, node.inputs) | (_any(self.alone, node.inputs) & ~picked)
        for out in node.outputs:
            signal = self.graph.values[out].is_signal
            self.all[out] = sources
            self.by[out], self.met[out] = (indexed, met) if signal else (indexed | sources, 0)
            if pure:
                self.alone[out] = sources
            if is_view(node.op) and node.inputs[0] in self.same:
                self.same[out] = self.same[node.inputs[0]]

    def _picked(self, node: Node) -> int:
        """Return the tables whose rows a node picks by an index that depends on them."""
        facts = facts_of(node.op)
        if not (facts.indexed or facts.looks_up or is_product(node.op)):
            return 0
        others = ([other for other in node.inputs if other != value] for value in node.inputs)
        each = zip(node.inputs, others, strict=True)
        return reduce(or_, (self.same.get(value, 0) & _any(self.by, rest) for value, rest in each), 0)


def _is_found_index(graph: Graph, value: Value) -> bool:
    """Whether a value is made of integers that are found among signals, and read: most graphs have none."""
    if value.is_followed or value.dtype == torch.bool or value.node is None or value.id in graph.known:
        return False
    return any(graph.values[v].is_signal for v in graph.nodes[value.node].inputs) and bool(graph.users().get(value.id))


def _picks_by_parameters(graph: Graph) -> bool:
    """Whether a node picks elements by an index that depends on any parameter: most graphs have none."""
    dependent = {parameter.value for parameter in graph.parameters.values()}
    for node in graph.nodes:
        if dependent.isdisjoint(node.inputs):
            continue
        dependent.update(node.outputs)
        facts = facts_of(node.op)
        if (facts.indexed or facts.looks_up) and any(
            value in dependent and not graph.values[value].is_signal for value in node.inputs
        ):
            return True
    return False


def _union(sets: Iterable[frozenset[int]]) -> frozenset[int]:
    return frozenset[int]().union(*sets)
