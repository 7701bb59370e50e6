"""Residual streams: sums along which a signal is carried on, and the branches that add to it.

A sum is *residual* where one of its terms leads back to a value, its *fork*, from which others come by more
contractions: the term carries the signal on, through norms, pools and at most one projection, and the others are
branches. Sums that the trunk of a model passes one after another, through whatever lies between them, are one stream;
so a stream goes on through norms after its sums, projection shortcuts, downsampling and concatenations. What lies in
branches alone is not on the trunk: residual sums in there are streams of their own, *nested* where they lie in the
branches of one sum, and side by side with the first where several sums read them (an encoder, beside its decoder).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from wellposed.graphs import Graph
from wellposed.graphs.graph import once
from wellposed.graphs.naming import numberless
from wellposed.operators.contraction import contractions
from wellposed.operators.scale_parameters import parameter_values
from wellposed.structure.branches import Branches, branches
from wellposed.structure.residual_branches import BranchReader, ResidualBranch, unshared
from wellposed.structure.sums import ResidualSum, ResidualSums, residual_sums


@dataclass(frozen=True, slots=True)
class Stream:
    """The residual sums that a signal passes one after another.

    Attributes:
        sums: their value ids, in execution order.
        branches: the branches of all sums, in execution order of the sums.
        inside: by name, the parameters that act only through branches of single sums, with these sums; parameters of
            nested streams included.
        across: by name, the parameters of one block that act through branches of several sums at once, with these sums:
            what modulates a block, joint attention of two streams. What all blocks read (a time, an encoder) is not.
        parent: index, in `residual_streams`, of the stream in whose branches it lies; None for others.
        place: the index of the sum in that stream, and of this stream among those nested there.
    """

    sums: tuple[int, ...]
    branches: tuple[ResidualBranch, ...]
    inside: Mapping[str, frozenset[int]]
    across: Mapping[str, frozenset[int]] = field(default_factory=dict)
    parent: int | None = None
    place: tuple[int, int] = (0, 0)

    @property
    def nested(self) -> bool:
        """Whether the stream lies in the branches of a sum of another stream."""
        return self.parent is not None


@once
def residual_streams(graph: Graph) -> tuple[Stream, ...]:
    """Return the residual streams of a graph: that of the outputs first, and each before those nested in it."""
    return tuple(_Finder(graph, branches(graph)).run())


@dataclass(frozen=True, slots=True)
class _Level:
    """What one search looks through: its values, where to begin, and the sum in whose branches they lie."""

    roots: tuple[int, ...]
    within: frozenset[int] | None
    fork: int | None = None
    parent: int | None = None
    sum: int = 0


class _Finder:
    def __init__(self, graph: Graph, structure: Branches) -> None:
        self.graph = graph
        self.sums = ResidualSums(graph, structure)
        self.residual = residual_sums(graph)
        self.fixed = parameter_values(graph)
        self.weighted = {use.node: use.parameter or use.node for use in contractions(graph)}
        self.reader = BranchReader(graph, self.sums, self.residual, self.weighted)
        self.live: set[int] = set()  # what leads to the ends
        self.found: list[Stream] = []

    def run(self) -> list[Stream]:
        """Look through the graph from its outputs, then through what lies in branches."""
        ends = self._ends()
        for value in ends:
            self.live |= self.sums.leading(value, 0)
        levels = [_Level(ends, None)]
        for level in levels:
            levels += self._level(level)
        outer = [index for index, stream in enumerate(self.found) if not stream.nested]
        for name, sums in self._across(ends, [self.found[index] for index in outer]).items():
            index = max(outer, key=lambda i: len(sums.intersection(self.found[i].sums)))
            stream = self.found[index]
            self.found[index] = replace(stream, across={**stream.across, name: sums.intersection(stream.sums)})
        return self.found

    def _across(self, ends: Collection[int], streams: Sequence[Stream]) -> dict[str, frozenset[int]]:
        """Return the parameters that each block has for itself, and that act through branches of several sums."""
        bits = {value: 2 << place for place, value in enumerate(value for stream in streams for value in stream.sums)}
        reached = self._entering(ends, streams, bits)
        own = {name: reached.get(parameter.value, 0) for name, parameter in self.graph.parameters.items()}
        alike: dict[str, list[int]] = defaultdict(list)
        for name, mine in own.items():
            alike[numberless(name)].append(mine)
        inside = frozenset[str]().union(*(stream.inside for stream in streams))

        def of_one_block(name: str, mine: int) -> bool:
            """Whether another parameter of the same place acts in other sums."""
            return bool(mine and not mine & 1) and any(other and not other & mine for other in alike[numberless(name)])

        return {
            name: frozenset(value for value, bit in bits.items() if bit & mine)
            for name, mine in own.items()
            if name not in inside and of_one_block(name, mine)
        }

    def _entering(self, ends: Collection[int], streams: Sequence[Stream], bits: Mapping[int, int]) -> dict[int, int]:
        """Return, by value id, the bits of the sums whose branches the value enters first; bit 0 for the outputs."""
        entered = {
            (branch.value, reader): bits[branch.sum]
            for stream in streams
            for branch in stream.branches
            for reader in branch.readers
        }
        reached = dict.fromkeys(ends, 1)
        for node in reversed(self.graph.nodes):
            beyond = 0
            for out in node.outputs:
                beyond |= reached.get(out, 0)
            for value in node.inputs:
                if self.graph.values[value].is_followed:
                    reached[value] = reached.get(value, 0) | entered.get((value, node.index), beyond)
        return reached

    def _ends(self) -> tuple[int, ...]:
        """Return the outputs, without those on the way to others: caches of keys, hidden states.

        More weights lead to another output than to these, and the same ones among them.
        """
        if len(self.graph.outputs) < 2:
            return self.graph.outputs
        leading: dict[int, int] = {}
        weights: dict[str | int, int] = {}
        for node in self.graph.nodes:
            before = 0
            for value in node.inputs:
                before |= leading.get(value, 0)
            if node.index in self.weighted:
                before |= 1 << weights.setdefault(self.weighted[node.index], len(weights))
            leading.update(dict.fromkeys(node.outputs, before))
        ends = [value for value in dict.fromkeys(self.graph.outputs) if value in self.sums.steps]
        met = {value: leading.get(value, 0) for value in ends}
        return tuple(
            value for value in ends if not any(own | met[value] == own and own != met[value] for own in met.values())
        )

    # ---- one level --------------------------------------------------------------------------------------------------

    def _level(self, level: _Level) -> list[_Level]:
        """Add the streams of one level; return the levels in their branches, and beside them."""
        trunk, passed = self._trunk(level)
        if not passed:
            return []
        own, beside = _apart({one.value: self._inside(one, trunk, level) for one in passed})
        holding = self._parameters(own)
        levels = []
        for number, sums in enumerate(self._joined(passed, trunk)):
            index, places = len(self.found), tuple(one.value for one in sums)
            carried = [branch for one in sums for branch in self.reader.branches(one, own[one.value])]
            mine = {name: at for name, at in holding.items() if at <= set(places)}
            place = (level.sum, number) if level.parent is not None else (0, 0)
            branches = tuple(unshared(self.graph, carried))
            self.found.append(Stream(places, branches, mine, parent=level.parent, place=place))
            levels += [_Level(one.added, own[one.value], one.fork, index, i) for i, one in enumerate(sums)]
        return [*levels, _Level(self._leaving(beside), beside)] if beside else levels

    def _leaving(self, beside: frozenset[int]) -> tuple[int, ...]:
        """Return those of ``beside`` from which values outside of it are computed."""
        users = self.graph.users()
        read = {value: [out for node in users.get(value, ()) for out in self.sums.made(node)] for value in beside}
        return tuple(value for value in sorted(beside) if not beside.issuperset(read[value]))

    def _trunk(self, level: _Level) -> tuple[set[int], list[ResidualSum]]:
        """Return the values that are reached without entering a branch, and the residual sums among them."""
        trunk: set[int] = set()
        passed = []
        pending = list(level.roots)
        while pending:
            value = pending.pop()
            if value in trunk or value in self.fixed or (level.within is not None and value not in level.within):
                continue
            if not self.graph.values[value].is_followed:
                continue  # which rows are chosen: no gradient goes there
            trunk.add(value)
            one = self.residual.get(value)
            if one is not None and self._is_of(one, level):
                passed.append(one)
                trunk |= one.inner
                pending += one.skips
                continue
            index = self.graph.values[value].node
            if index is not None:
                pending += self.graph.nodes[index].inputs
        return trunk, sorted(passed, key=lambda one: self.sums.order[one.value])

    def _is_of(self, one: ResidualSum, level: _Level) -> bool:
        """Whether the fork of a sum lies in the level too."""
        return level.within is None or one.fork is None or one.fork in level.within or one.fork == level.fork

    def _joined(self, passed: list[ResidualSum], trunk: Collection[int]) -> list[list[ResidualSum]]:
        """Return the residual sums by stream: the trunk leads from each sum of a stream to the next."""
        head = {one.value: one.value for one in passed}

        def find(value: int) -> int:
            while head[value] != value:
                head[value] = head[head[value]]
                value = head[value]
            return value

        at = {one.value: one for one in passed}
        leading: dict[int, frozenset[int]] = {}  # the last sums of the trunk before a value
        for value in sorted(trunk, key=self.sums.made_at):
            one = at.get(value)
            index = self.graph.values[value].node
            read = one.skips if one is not None else () if index is None else self.graph.nodes[index].inputs
            before = frozenset[int]().union(*(leading.get(v, ()) for v in read))
            if one is None:
                leading[value] = before
                continue
            leading[value] = frozenset((value,))
            for other in before:
                head[find(other)] = find(value)
        streams: dict[int, list[ResidualSum]] = defaultdict(list)
        for one in passed:
            streams[find(one.value)].append(one)
        # that of the outputs, which ends last, first
        return sorted(streams.values(), key=lambda sums: -self.sums.order[sums[-1].value])

    def _inside(self, one: ResidualSum, trunk: Collection[int], level: _Level) -> set[int]:
        """Return the values in the branches of a sum."""
        inside: set[int] = set()
        pending = list(one.added)
        while pending:
            value = pending.pop()
            if value in inside or value in trunk or value in self.fixed:
                continue
            if level.within is not None and value not in level.within:
                continue
            inside.add(value)
            index = self.graph.values[value].node
            if index is not None:
                pending += self.graph.nodes[index].inputs
        return inside

    def _parameters(self, own: Mapping[int, frozenset[int]]) -> dict[str, frozenset[int]]:
        """Return for each parameter that is used in branches alone the sums of these."""
        at = {value: one for one, inside in own.items() for value in inside}
        holding: dict[str, frozenset[int]] = {}
        for name, parameter in self.graph.parameters.items():
            places: set[int | None] = set()
            pending, seen = [parameter.value], {parameter.value}
            while pending:
                for node in self.graph.users().get(pending.pop(), ()):
                    for out in self.sums.made(node):
                        if out in self.fixed:
                            if out not in seen:
                                seen.add(out)
                                pending.append(out)
                        elif out in self.live:
                            places.add(at.get(out))
            inside = frozenset(place for place in places if place is not None)
            if len(inside) == len(places) > 0:
                holding[name] = inside
        return holding


def _apart(inside: Mapping[int, set[int]]) -> tuple[dict[int, frozenset[int]], frozenset[int]]:
    """Return the values that lie in branches of one sum alone, by that sum, and those in branches of several."""
    counts = Counter(value for values in inside.values() for value in values)
    beside = frozenset(value for value, count in counts.items() if count > 1)
    return {value: frozenset(values - beside) for value, values in inside.items()}, beside
