"""Which sums are residual: one term carries a signal on, and others come from that signal by more weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from wellposed.graphs import Graph
from wellposed.graphs.graph import once
from wellposed.operators.facts import facts_of
from wellposed.operators.scale_parameters import parameter_values
from wellposed.operators.views import is_cut, is_view
from wellposed.structure.branches import Branches, Edge, branches
from wellposed.structure.vertices import Branch, Vertex, vertices
from wellposed.walks import reached


@dataclass(frozen=True, slots=True)
class ResidualSum:
    """A residual sum: its value, the value ``fork`` that its signal comes from (None for a parameter), and its terms.

    The terms of a ``fused`` one are the operands from which its operator computes the added term.
    """

    value: int
    fork: int | None
    skips: tuple[int, ...]
    added: tuple[int, ...]
    inner: frozenset[int]
    fused: bool = False


@once
def residual_sums(graph: Graph) -> Mapping[int, ResidualSum]:
    """Return the residual sums of a graph by their values."""
    return ResidualSums(graph, branches(graph)).found()


class ResidualSums:
    """Finds the residual sums of a graph (see `wellposed.structure.streams`).

    Attributes:
        steps: what every value is made of.
        order: the places of values in execution order.
    """

    def __init__(self, graph: Graph, structure: Branches) -> None:
        """Read the structure."""
        self.graph = graph
        self.steps = structure.steps
        self.order: Mapping[int, int] = {value: index for index, value in enumerate(structure.steps)}
        self._entering: dict[int, list[Edge]] = defaultdict(list)
        for edge in structure.edges:
            self._entering[edge.target].append(edge)
        self._vertices: Mapping[int, Vertex] = vertices(structure).vertices
        self._fixed = parameter_values(graph)

    def found(self) -> dict[int, ResidualSum]:
        """Return the residual sums by their values."""
        sums: dict[int, ResidualSum] = {}
        projections: dict[int, list[ResidualSum]] = defaultdict(list)
        projected: dict[int, set[int]] = defaultdict(set)  # by value, the sums that it is projected into
        for value, vertex in self._vertices.items():
            if self.steps[value].kind != "sum" or vertex.degree < 2:
                continue
            for fork in self._projected_forks(vertex.branches):
                projected[fork].add(value)
            one, projection = self._classified(vertex)
            if one is not None:
                sums[value] = one
                if projection and one.fork is not None:
                    projections[one.fork].append(one)
        carried = {one.fork for one in sums.values()}
        several = [(fork, one) for fork, ends in projections.items() if len(ends) > 1 for one in ends]
        for fork, one in several:
            if one.value not in carried or self._is_injected(fork, one, projected[fork]):
                del sums[one.value]
        return sums | self._from_parameters() | self._fused()

    def _projected_forks(self, terms: Iterable[Branch]) -> Iterator[int]:
        """Yield the values that terms of a sum come from by way of a contraction."""
        for term in terms:
            yield from (fork for fork, contracted, _ in self._back(term) if contracted)

    def _is_injected(self, fork: int, one: ResidualSum, projected: Collection[int]) -> bool:
        """Whether ``fork``, projected into several sums, is injected into this one (a time, a condition, a skip from an
        encoder) and not carried on: another of these sums comes before it, which none does before a shortcut.
        """
        return not self._between(fork, one.added).isdisjoint(projected)

    def _fused(self) -> dict[int, ResidualSum]:
        """Return the sums in which one operator makes the branch's last value and adds it."""
        sums = {}
        for node in self.graph.nodes:
            read = [value for value in dict.fromkeys(node.inputs) if value in self.steps]
            if not facts_of(node.op).adds or len(read) < 2 or read[0] != node.inputs[0]:
                continue
            carried, *made = read
            fork, part, out = self.steps[carried].base, self.steps[carried].part, node.outputs[0]
            if self.graph.values[carried].shape != self.graph.values[out].shape or out not in self.order:
                continue
            if max(self.depth(fork, part, value) for value in made) > 0:
                sums[out] = ResidualSum(out, fork, (carried,), tuple(made), frozenset(), fused=True)
        return sums

    def _from_parameters(self) -> dict[int, ResidualSum]:
        """Return the sums of a parameter and a signal made from it (class tokens and latents), by value."""
        sums = {}
        for node in self.graph.nodes:
            if facts_of(node.op).terms != (1.0, 1.0) or node.outputs[0] not in self.steps:
                continue
            fixed = [value for value in node.inputs if value in self._fixed and value not in self.graph.known]
            signals = [value for value in node.inputs if value in self.steps]
            shape = self.graph.values[node.outputs[0]].shape
            if len(fixed) != 1 or len(signals) != 1 or self.graph.values[fixed[0]].shape != shape:
                continue
            read = self._reading(self._behind_views(fixed[0]), node.index)
            if read and not read.isdisjoint(self.leading(signals[0], min(map(self.made_at, read)))):
                sums[node.outputs[0]] = ResidualSum(node.outputs[0], None, (), (signals[0],), frozenset())
        return sums

    def _behind_views(self, value: int) -> int:
        """Return the value that a value is a view of, or itself."""
        while (index := self.graph.values[value].node) is not None and is_view(self.graph.nodes[index].op):
            value = self.graph.nodes[index].inputs[0]
        return value

    def _reading(self, value: int, but: int) -> set[int]:
        """Return the signals computed from a parameter's value by other nodes than ``but``."""
        read: set[int] = set()
        seen: set[int] = set()
        pending = [value]
        while pending:
            for index in self.graph.users().get(pending.pop(), ()):
                if index != but:
                    for out in self.made(index):
                        if out not in self._fixed:
                            read.add(out)
                        elif out not in seen:
                            seen.add(out)
                            pending.append(out)
        return read

    def leading(self, value: int, first: int) -> set[int]:
        """Return the values that a value depends on, back to the node ``first``."""
        seen: set[int] = set()
        pending = [value]
        while pending:
            at = pending.pop()
            made = self.made_at(at)
            if at not in seen and made >= first:
                seen.add(at)
                pending += self.graph.nodes[made].inputs
        return seen

    def _classified(self, vertex: Vertex) -> tuple[ResidualSum | None, bool]:
        """Return the residual sum that a vertex is, if it is one, and whether its skip passes through a contraction."""
        shape = self.graph.values[vertex.value].shape
        best: tuple[tuple[int, int, int], ResidualSum] | None = None
        for index, term in enumerate(vertex.branches):
            if self.graph.values[term.value].shape != shape:
                continue  # what is broadcast into a sum is not carried on by it
            for fork, contracted, part in self._back(term):
                added = [
                    other.value
                    for i, other in enumerate(vertex.branches)
                    if i != index and self._is_branch(fork, contracted, part, other.value)
                ]
                if not added:
                    continue
                rank = (contracted, -len(added), -self.order[fork])
                if best is None or rank < best[0]:
                    skips = tuple(b.value for b in vertex.branches if b.value not in added)
                    best = (rank, ResidualSum(vertex.value, fork, skips, tuple(added), frozenset(vertex.inner)))
                break
        if best is None:
            return None, False
        return best[1], best[0][0] > 0

    def _is_branch(self, fork: int, contracted: int, part: int | None, value: int) -> bool:
        """Whether a term of a sum depends on ``fork`` through more contractions than the term that carries it on.

        Where that has none, another term without contractions (a pool, a norm, a transform) is a branch too.
        """
        depth = self.depth(fork, part, value)
        return depth > contracted or (depth == contracted == 0 and self.steps[value].base != fork)

    def _back(self, term: Branch) -> Iterator[tuple[int, int, int | None]]:
        """Yield the junctions that a term carries on, nearest first, with contractions and part taken."""
        pending, seen = [(self._uncut(term.value), 0)], set[int]()
        while pending:
            value, contracted = pending.pop(0)
            step = self.steps[value]
            if step.base in seen:
                continue
            seen.add(step.base)
            yield step.base, contracted, step.part
            if step.part is not None:
                continue
            kind, edges = self.steps[step.base].kind, self._entering.get(step.base, ())
            contracted += kind == "contraction"
            alone = len(edges) == 1 and kind in ("pool", "normalisation", "contraction", "concatenation")
            beside = kind == "concatenation" and not contracted
            if contracted < 2 and (alone or beside):
                pending += [(self._uncut(edge.value), contracted) for edge in edges]

    def _uncut(self, value: int) -> int:
        """Return the operand of a concatenation that a value is the slice of, as a whole; else the value."""
        step = self.steps[value]
        made = self.graph.values[value].node
        if step.part != value or made is None or self.steps[step.base].kind != "concatenation":
            return value
        joined, cut = self.graph.values[step.base].node, self.graph.nodes[made]
        if joined is None or cut.inputs[0] != step.base or not facts_of(self.graph.nodes[joined].op).joins:
            return value
        terms = self.graph.nodes[joined].inputs
        alike = len({self.graph.values[term].shape for term in terms}) == 1
        whole = is_cut(cut.op) and len(cut.outputs) == len(terms) and alike
        own = terms[self.graph.values[value].index] if whole else value
        return own if own in self.steps and self.graph.values[own].shape == self.graph.values[value].shape else value

    def depth(self, fork: int, part: int | None, value: int) -> int:
        """Return the contractions on the longest path from ``fork`` to ``value``, -1 where there is none.

        Where only a part of the fork is carried on, paths must read that part, or all of it.
        """
        end = self.steps[value].base
        if end == fork:
            return 0
        reached = self._between(fork, (value,))
        depths: dict[int, int] = {}
        for junction in sorted(reached, key=self.order.__getitem__):
            before = [
                depths.get(edge.source, -1) if edge.source != fork else 0
                for edge in self._entering.get(junction, ())
                if edge.source != fork or part is None or self._reads(edge.value, part)
            ]
            if max(before, default=-1) >= 0:
                depths[junction] = max(before) + (self.steps[junction].kind == "contraction")
        return depths.get(end, -1)

    def _between(self, fork: int, values: Collection[int]) -> set[int]:
        """Return the junctions that are made after ``fork`` and lead to some values, those of these among them."""

        def later(junction: int) -> list[int]:
            sources = [edge.source for edge in self._entering.get(junction, ())]
            return [source for source in sources if self.order[source] > self.order[fork]]

        return set(reached((self.steps[value].base for value in values), later))

    def _reads(self, value: int, part: int) -> bool:
        """Whether a function of a junction holds a part of it, cut again or not, or all of it."""
        own = self.steps[value].part
        return own is None or self._same(own, part)

    def _same(self, one: int, other: int) -> bool:
        """Whether two parts of a junction are cut by the same operators, of functions of it or not."""
        while one != other:
            a, b = self.graph.values[one], self.graph.values[other]
            if self.steps[one].part is None or self.steps[other].part is None:
                return self.steps[one].part is self.steps[other].part and self.steps[one].base == self.steps[other].base
            if a.node is None or b.node is None or a.index != b.index:
                return False
            first, second = self.graph.nodes[a.node], self.graph.nodes[b.node]
            if first.op is not second.op or (first.args[1:], first.kwargs) != (second.args[1:], second.kwargs):
                return False
            one, other = first.inputs[0], second.inputs[0]
        return True

    def made_at(self, value: int) -> int:
        """Return the index of the node that makes a value, -1 for none."""
        index = self.graph.values[value].node
        return -1 if index is None else index

    def made(self, node: int) -> tuple[int, ...]:
        """Return what a node makes."""
        return self.graph.nodes[node].outputs
