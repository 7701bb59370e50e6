"""What one branch adds to a residual stream: its weights, and the parameters that carry a factor of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from wellposed.graphs import Graph
from wellposed.operators.scale_parameters import parameter_values
from wellposed.structure.carriers import Carriers, carriers_of
from wellposed.structure.sums import ResidualSum, ResidualSums

_SHARED = "is used elsewhere too"


@dataclass(frozen=True, slots=True)
class ResidualBranch:
    """One branch of a residual sum.

    Attributes:
        value: id of the value that it adds.
        readers: the nodes that add it.
        sum: id of the sum.
        weights: nodes of its contractions, without those of streams inside it, in execution order.
        last: the contractions that no other one follows before the sum.
        depth: number of contractions on its longest chain.
        carriers: names of the parameters whose factor is a factor of all that the branch adds.
        reason: why there are none; empty where there are some.
    """

    value: int
    readers: tuple[int, ...]
    sum: int
    weights: tuple[int, ...]
    last: frozenset[int]
    depth: int
    carriers: tuple[str, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class BranchReader:
    """Reads the branches of residual sums.

    Attributes:
        graph: the graph.
        sums: what finds its residual sums.
        residual: these, by their values.
        weighted: the nodes that contract a signal with a weight.
    """

    graph: Graph
    sums: ResidualSums
    residual: Mapping[int, ResidualSum]
    weighted: Collection[int]

    def branches(self, one: ResidualSum, inside: frozenset[int]) -> list[tuple[ResidualBranch, Carriers]]:
        """Return a sum's branches and their carriers: its terms, or their partial sums where terms have none."""
        found = {value: self._branch(one, value, inside) for value in one.added}
        if one.fused:
            return [self._made_and_added(one, [branch for branch, _ in found.values()])]
        for partial in one.inner:
            node = self.graph.nodes[self.sums.made_at(partial)]
            terms = [value for value in found if value in node.inputs]
            if len(terms) < 2 or any(found[value][0].carriers for value in terms):
                continue
            together = self._branch(one, partial, inside)
            if together[0].carriers:
                found = {partial if v == terms[0] else v: b for v, b in found.items() if v not in terms[1:]}
                found[partial] = together
        return list(found.values())

    def _made_and_added(self, one: ResidualSum, factors: Sequence[ResidualBranch]) -> tuple[ResidualBranch, Carriers]:
        """Return the one branch of a fused operator that multiplies several factors and adds the product."""
        node = self.graph.nodes[self.sums.made_at(one.value)]
        whole = replace(
            factors[0],
            weights=tuple(sorted({weight for branch in factors for weight in branch.weights})),
            depth=max(branch.depth for branch in factors),
            carriers=(),
            reason=f"{node.op_name} at {node.name} makes it and adds it at once; write the sum by itself, x + ...",
        )
        return whole, Carriers(reason=whole.reason)

    def _branch(self, one: ResidualSum, value: int, inside: frozenset[int]) -> tuple[ResidualBranch, Carriers]:
        """Return one branch of a sum, with what carries its factor."""
        readers = self._readers(one, value)
        carriers = carriers_of(self.graph, value, readers)
        own, last = self._weights(value, inside)
        depth = len(own) if one.fork is None else self.sums.depth(one.fork, None, value)
        weights, names = tuple(sorted(own)), carriers.parameters
        branch = ResidualBranch(value, readers, one.value, weights, frozenset(last), depth, names, carriers.reason)
        return branch, carriers

    def _weights(self, value: int, inside: frozenset[int]) -> tuple[set[int], set[int]]:
        """Return the contractions before a value, without those of streams inside, and the last among them."""
        own, last, seen = set[int](), set[int](), set[tuple[int, bool]]()
        pending = [(value, True)]
        while pending:
            at, ends = pending.pop()
            index = self.graph.values[at].node
            if index is None or at not in inside or (at, ends) in seen or (at, True) in seen:
                continue
            seen.add((at, ends))
            contracts = index in self.weighted
            own |= {index} if contracts else set()
            last |= {index} if contracts and ends else set()
            inner = self.residual.get(at)
            nested = inner is not None and inner.fork in inside
            through = inner.skips if inner is not None and nested else self.graph.nodes[index].inputs
            pending += [(read, ends and not contracts) for read in through]
        return own, last

    def _readers(self, one: ResidualSum, value: int) -> tuple[int, ...]:
        """Return the nodes through which a sum reads one of its terms."""
        nodes: list[int] = []
        pending = [one.value, *one.inner]
        seen: set[int] = set()
        while pending:
            at = pending.pop()
            index = self.graph.values[at].node
            if at in seen or index is None:
                continue
            seen.add(at)
            if value in self.graph.nodes[index].inputs:
                nodes.append(index)
            elif at == one.value or at in one.inner:  # terms that were stacked before they are summed
                pending += [read for read in self.graph.nodes[index].inputs if read not in one.skips]
        return tuple(sorted(set(nodes)))


def unshared(graph: Graph, carried: list[tuple[ResidualBranch, Carriers]]) -> Iterator[ResidualBranch]:
    """Yield the branches; those whose carriers are also used by something other than the end of a branch lose them."""
    ends = {node for _, carriers in carried for node in carriers.uses}
    dead = set(graph.dead_nodes)
    fixed = parameter_values(graph)
    for branch, carriers in carried:
        reason = ""
        for name in carriers.parameters:
            other = other_use(graph, name, ends, fixed, dead)
            if other is not None:
                reason = f"{name} {_SHARED}, by {graph.nodes[other].name}"
                break
        yield replace(branch, carriers=(), reason=reason) if reason else branch


def other_use(
    graph: Graph,
    name: str,
    ends: Collection[int],
    fixed: Collection[int],
    dead: Collection[int],
) -> int | None:
    """Return a node that uses a parameter for something else than the ends of branches."""
    pending, seen = [graph.parameters[name].value], set[int]()
    while pending:
        for node in graph.users().get(pending.pop(), ()):
            if node in ends or node in dead or node in seen:
                continue
            seen.add(node)
            outputs = graph.nodes[node].outputs
            if not all(out in fixed for out in outputs):
                return node
            pending += outputs
    return None
