"""Vertices: where the branches of a graph merge, and which weights set the scale of what enters them.

A vertex in the sense of Chen et al. (arXiv 2402.17440) is a junction where values are summed. Each of its branches is
either *weighted*, when nothing else receives what its last contraction makes, or an *identity* that carries a value
which others receive too. Concatenations put branches side by side; they add no variances, and carry a branch along.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wellposed.structure.branches import END, Branches, Edge, Step


@dataclass(frozen=True, slots=True)
class Branch:
    """One term of a vertex.

    Attributes:
        value: id of the term.
        weights: nodes of the contractions that set its scale; none for an identity branch.
        activation: result of the activation between the contraction and the vertex, None without one.
        normalised: whether a normalisation between them undoes the scale.
        origin: for an identity branch the vertex or contraction whose value it is, up to pools and constant factors;
            None where it is a function of one, or something else.
    """

    value: int
    weights: tuple[int, ...] = ()
    activation: int | None = None
    normalised: bool = False
    origin: int | None = None


@dataclass(frozen=True, slots=True)
class Vertex:
    """A sum of branches, taken whole where it is written as several additions.

    Attributes:
        value: the sum.
        inner: the partial sums inside it.
        branches: what enters it, in order.
    """

    value: int
    inner: tuple[int, ...]
    branches: tuple[Branch, ...]

    @property
    def degree(self) -> int:
        """Number of branches, identities included."""
        return len(self.branches)

    @property
    def weighted(self) -> tuple[Branch, ...]:
        """The branches whose scale weights set."""
        return tuple(branch for branch in self.branches if branch.weights)

    @property
    def activated(self) -> bool:
        """Whether most of its weighted branches end in an activation."""
        ends = [branch.activation is not None for branch in self.weighted]
        return 2 * sum(ends) > len(ends)


@dataclass(frozen=True, slots=True)
class Vertices:
    """The vertices of a graph, and where its contractions stand among them.

    Where most weighted branches end in an activation, a contraction and its activation that enter no sum make a vertex
    of degree 1; elsewhere only sums are vertices.

    Attributes:
        vertices: by value, in execution order.
        targets: for each contraction that sets the scale of a branch: the vertex and the branch.
        sources: for each contraction the in-degree of the vertex that feeds it (1 where no sum does).
        readouts: contractions after which no other one comes on the way to the outputs.
        steps: what every value is made of.
    """

    vertices: Mapping[int, Vertex]
    targets: Mapping[int, tuple[Vertex, Branch]]
    sources: Mapping[int, int]
    readouts: frozenset[int]
    steps: Mapping[int, Step]


def vertices(structure: Branches) -> Vertices:
    """Return where the branches of a graph merge."""
    return _Finder(structure).result()


_CARRYING = ("pool", "normalisation", "concatenation")


class _Finder:
    def __init__(self, structure: Branches) -> None:
        self.steps = structure.steps
        self.leaving: dict[int, list[Edge]] = {}
        self.entering: dict[int, list[Edge]] = {}
        for edge in structure.edges:
            self.leaving.setdefault(edge.source, []).append(edge)
            self.entering.setdefault(edge.target, []).append(edge)
        self.junctions = [value for value in structure.steps if value in self.leaving]
        self.contracted = {
            node: value
            for value in self.junctions
            if self.steps[value].kind == "contraction" and (node := self.steps[value].node) is not None
        }
        self.vertices: dict[int, Vertex] = {}

    def result(self) -> Vertices:
        """Return the vertices, with those of degree 1 where activations end most branches."""
        sums = [value for value in self.junctions if self.steps[value].kind == "sum" and not self._is_inner(value)]
        for value in sums:
            self.vertices[value] = self._vertex(value)
        ends = [branch.activation is not None for v in self.vertices.values() for branch in v.weighted]
        if 2 * sum(ends) > len(ends):
            self._add_endings()
        targets = {
            node: (vertex, branch)
            for vertex in self.vertices.values()
            for branch in vertex.branches
            for node in branch.weights
        }
        sources = {node: self._source_degree(value) for node, value in self.contracted.items()}
        return Vertices(self.vertices, targets, sources, self._readouts(), self.steps)

    def _is_inner(self, value: int) -> bool:
        """Whether a sum is only a term of another one."""
        edges = self.leaving[value]
        if len(edges) != 1 or edges[0].target == END:
            return False
        return self.steps[edges[0].target].kind == "sum" and edges[0].value == value

    def _vertex(self, value: int) -> Vertex:
        """Return the vertex of a sum, which takes in the terms of all sums inside it."""
        inner: list[int] = []
        branches: list[Branch] = []

        def visit(junction: int) -> None:
            for edge in self.entering[junction]:
                if self.steps[edge.source].kind == "sum" and self._is_inner(edge.source):
                    inner.append(edge.source)
                    visit(edge.source)
                else:
                    branches.append(self._branch(edge))

        visit(value)
        return Vertex(value, tuple(inner), tuple(branches))

    def _branch(self, edge: Edge) -> Branch:
        """Return an edge's branch: weighted where each way back ends in a contraction read here alone."""
        weights: list[int] = []
        activation: int | None = None
        normalised = False
        pending = [edge]
        while pending:
            way = pending.pop()
            step = self.steps[way.source]
            if activation is None and self.steps[way.value].active:
                activation = self.steps[way.value].key
            if len(self.leaving[way.source]) > 1:
                break
            if step.kind == "contraction" and step.node is not None:
                weights.append(step.node)
            elif step.kind in _CARRYING:
                normalised |= step.kind == "normalisation"
                pending.extend(self.entering[way.source])
            else:
                break
        else:
            return Branch(edge.value, tuple(weights), activation, normalised)
        return Branch(edge.value, origin=self._origin(edge))

    def _origin(self, edge: Edge) -> int | None:
        """Return the vertex or contraction whose value an edge carries, through pools alone, or None."""
        while not self.steps[edge.value].active:
            if edge.source in self.vertices or self.steps[edge.source].kind == "contraction":
                return edge.source
            if self.steps[edge.source].kind != "pool":
                return None
            (edge,) = self.entering[edge.source]
        return None

    def _add_endings(self) -> None:
        """Add vertices of degree 1, and record them as the origin of identity branches that carry their values."""
        entered = {node for vertex in self.vertices.values() for branch in vertex.branches for node in branch.weights}
        for node, value in self.contracted.items():
            ending = None if node in entered else self._ending(value)
            if ending is not None:
                self.vertices[ending] = Vertex(ending, (), (Branch(ending, (node,), ending),))
        self.vertices = {value: self.vertices[value] for value in sorted(self.vertices, key=self._made)}
        for value, vertex in self.vertices.items():
            known = tuple(
                Branch(branch.value, origin=key)
                if not branch.weights and (key := self.steps[branch.value].key) in self.vertices
                else branch
                for branch in vertex.branches
            )
            self.vertices[value] = Vertex(value, vertex.inner, known)

    def _made(self, value: int) -> int:
        node = self.steps[value].node
        return -1 if node is None else node

    def _ending(self, value: int) -> int | None:
        """Return the activation that is all that others receive of a contraction's result, if there is one."""
        while True:
            edges = self.leaving[value]
            keys = {self.steps[edge.value].key for edge in edges if self.steps[edge.value].active}
            if all(self.steps[edge.value].active for edge in edges):
                # the activation of an output, behind which there is nothing to keep even, ends no branch
                return keys.pop() if len(keys) == 1 and any(edge.target != END for edge in edges) else None
            if len(edges) != 1 or edges[0].target == END:
                return None
            value = edges[0].target
            if self.steps[value].kind not in ("pool", "normalisation"):
                return None

    def _source_degree(self, value: int) -> int:
        """Return the degree of the vertex that feeds a junction, through pools and norms alone; 1 where none does."""
        while True:
            edges = self.entering[value]
            if len(edges) != 1:
                return 1
            value = edges[0].source
            if value in self.vertices:
                return self.vertices[value].degree
            if self.steps[value].kind not in ("pool", "normalisation"):
                return 1

    def _readouts(self) -> frozenset[int]:
        """Return the nodes of contractions after which no other contraction comes."""
        followed: set[int] = set()
        for value in reversed(self.junctions):
            if any(
                edge.target != END and (edge.target in followed or self.steps[edge.target].kind == "contraction")
                for edge in self.leaving[value]
            ):
                followed.add(value)
        return frozenset(node for node, value in self.contracted.items() if value not in followed)
