"""Fixup: residual nets without normalisation, by small weights and closed branches.

Source: Zhang, Dauphin & Ma 2019, *Fixup Initialization: Residual Learning Without Normalization* (arXiv 1901.09321).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from wellposed.errors import PlanError
from wellposed.graphs import Graph
from wellposed.methods.options import Draft, Request, find_method, method
from wellposed.methods.roles import zero
from wellposed.plans import Constant, Prescription
from wellposed.signals.operators.contraction import contractions
from wellposed.signals.structure.branches import Branches, Edge, branches
from wellposed.signals.structure.vertices import vertices

Random = Literal["normal", "truncated_normal", "uniform"]
_PAPER = "Zhang et al. 2019"


@method("fixup")
def fixup(
    graph: Graph, request: Request, *, distribution: Random = "normal", mode: Literal["fan_in", "fan_out"] = "fan_in"
) -> Draft:
    """Scale weights in each of L residual branches of m layers by L^(-1/(2m-2)); their last layers and readouts are 0.

    Everything else is drawn as by ``kaiming``, with ``distribution`` and ``mode``. A residual branch is a way into a
    sum that has more contractions than the shortest one, which has at most one of its own (a projection); m counts
    those of its longest chain, and branches inside a branch are scaled by their own.

    What else Fixup does changes the model, and no plan can: a scalar bias before each layer and activation, and one
    scalar multiplier in each branch. The plan's warnings say so.

    Raises:
        PlanError: the graph has no residual branch.

    Source: Zhang, Dauphin & Ma 2019 (arXiv 1901.09321), section 3: Fixup initialization, rules 1 and 2.
    """
    draft = find_method("kaiming")(graph, request, distribution=distribution, mode=mode)
    found = branches(graph)
    residual = residual_branches(found)
    if not residual:
        raise PlanError(
            f"method 'fixup' needs residual branches, and {graph.model} has none: no sum adds contractions to a way "
            "around them; 'kaiming' or 'autoinit' initialise nets without them"
        )
    behind = {use.node: use.parameter for use in contractions(graph)}
    said = dict(draft.prescriptions)
    for branch in residual:
        for node in branch.weights:
            name = behind.get(node)
            if name is None or said[name].action != "write":
                continue
            if node in branch.last:
                said[name] = _zero(said[name], "last layer of its residual branch: 0, so that the branch starts closed")
            else:
                said[name] = _scaled(said[name], len(residual), branch.depth)
    for node in vertices(found).readouts:
        name = behind.get(node)
        if name is not None and said[name].action == "write":
            said[name] = _zero(said[name], "readout: 0")
    return Draft(said, warnings=_warnings(graph, said))


@dataclass(frozen=True, slots=True)
class ResidualBranch:
    """One residual branch.

    Attributes:
        weights: nodes of the contractions in it that no branch inside it has, in execution order.
        last: those after which no other comes before the sum.
        depth: m, the contractions on its longest chain.
    """

    weights: tuple[int, ...]
    last: frozenset[int]
    depth: int


def residual_branches(found: Branches) -> tuple[ResidualBranch, ...]:
    """Return the residual branches of a graph, in the order of the sums that they enter."""
    entering: dict[int, list[Edge]] = {}
    for edge in found.edges:
        entering.setdefault(edge.target, []).append(edge)
    order = [value for value in found.steps if value in entering or value in {e.source for e in found.edges}]
    bit = {value: 1 << i for i, value in enumerate(order)}
    above: dict[int, int] = {}  # every junction with all that lead to it, as a bit set
    for value in order:
        above[value] = bit[value]
        for edge in entering.get(value, ()):
            above[value] |= above[edge.source]
    taken: set[int] = set()
    result = []
    for vertex in vertices(found).vertices.values():
        bases = [found.steps[branch.value].base for branch in vertex.branches]
        if len(bases) < 2:
            continue
        shared = above[bases[0]]
        for base in bases[1:]:
            shared &= above[base]
        ways = [_Way(found, entering, base, {v for v in order if above[base] & ~shared & bit[v]}) for base in bases]
        shortest = min(way.depth for way in ways)
        if shortest > 1:
            continue
        for way in ways:
            weights = tuple(node for node in way.weights if node not in taken)
            if way.depth > shortest and weights:
                taken.update(weights)
                result.append(ResidualBranch(weights, way.last, way.depth))
    return tuple(result)


class _Way:
    """One way into a sum, as far as the others do not share it."""

    def __init__(self, found: Branches, entering: Mapping[int, list[Edge]], base: int, own: set[int]) -> None:
        self._depths: dict[int, int] = {}
        self.weights: list[int] = []
        for value in found.steps:
            if value not in own:
                continue
            step = found.steps[value]
            before = max((self._depths.get(edge.source, 0) for edge in entering.get(value, ())), default=0)
            weighted = step.kind == "contraction" and step.node is not None
            self._depths[value] = before + weighted
            if weighted and step.node is not None:
                self.weights.append(step.node)
        self.depth = self._depths.get(base, 0)
        self.last = self._ends(found, entering, base, own)

    @staticmethod
    def _ends(found: Branches, entering: Mapping[int, list[Edge]], base: int, own: set[int]) -> frozenset[int]:
        ends, pending, seen = set(), [base], set()
        while pending:
            value = pending.pop()
            if value not in own or value in seen:
                continue
            seen.add(value)
            step = found.steps[value]
            if step.kind == "contraction" and step.node is not None:
                ends.add(step.node)
            else:
                pending += [edge.source for edge in entering.get(value, ())]
        return frozenset(ends)


def _scaled(said: Prescription, count: int, depth: int) -> Prescription:
    factor = float(count ** (-1.0 / (2 * depth - 2)))
    field = "constant" if isinstance(said, Constant) else "std"
    value = getattr(said, field)
    reason = f"{said.reason}; × {count}^(-1/{2 * depth - 2}) for {count} residual branches of {depth} layers ({_PAPER})"
    return said.changed(**{field: value * factor}, reason=reason)


def _zero(said: Prescription, reason: str) -> Prescription:
    return zero(said, f"{reason} ({_PAPER})", output_axis=said.output_axis, groups=said.groups)


def _warnings(graph: Graph, said: Mapping[str, Prescription]) -> tuple[str, ...]:
    warnings = [
        "Fixup also puts a scalar bias before each layer and activation, and a scalar multiplier into each residual "
        "branch; a plan only draws parameters that the model has, so add them to the model where training needs them"
    ]
    gains = sum(p.role == "gain" for p in said.values())
    if gains:
        warnings.append(
            f"Fixup is meant for nets without normalisation, and {graph.model} has {gains} normalisation layer(s), "
            "which undo the scale of the weights before them"
        )
    return tuple(warnings)
