"""Fixup: residual nets without normalisation, by small weights and closed branches.

Source: Zhang, Dauphin & Ma 2019, *Fixup Initialization: Residual Learning Without Normalization* (arXiv 1901.09321).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Literal

from wellposed.errors import PlanError
from wellposed.graphs import Graph
from wellposed.methods.options import Draft, Request, find_method, method
from wellposed.methods.roles import zero
from wellposed.plans import Constant, Prescription
from wellposed.signals.operators.contraction import contractions
from wellposed.signals.structure.branches import Branches, branches
from wellposed.signals.structure.vertices import vertices

Random = Literal["normal", "truncated_normal", "uniform"]
_PAPER = "Zhang et al. 2019"


@method("fixup")
def fixup(
    graph: Graph, request: Request, *, distribution: Random = "normal", mode: Literal["fan_in", "fan_out"] = "fan_in"
) -> Draft:
    """Scale weights in each of L residual branches of m layers by L^(-1/(2m-2)); their last layers and readouts are 0.

    Everything else is drawn as by ``kaiming``, with ``distribution`` and ``mode``. A residual branch is a path into a
    sum that has more contractions than the shortest one, which has at most one of its own (a projection); m counts
    those of its longest chain, and branches inside a branch are scaled by their own.

    What else Fixup does changes the model, and no plan can: a scalar bias before each layer and activation, and one
    scalar multiplier in each branch. The plan's warnings say so.

    Raises:
        PlanError: the graph has no residual branch.

    Source: Zhang, Dauphin & Ma 2019 (arXiv 1901.09321), section 3: Fixup initialization, rules 1 and 2.
    """
    draft = find_method("kaiming")(graph, request, distribution=distribution, mode=mode)
    structure = branches(graph)
    residual = residual_branches(structure)
    if not residual:
        raise PlanError(
            f"method 'fixup' needs residual branches, and {graph.model} has none: no sum adds contractions to a path "
            "around them; 'kaiming' or 'autoinit' initialise nets without them"
        )
    weights = {use.node: use.parameter for use in contractions(graph)}
    prescriptions = dict(draft.prescriptions)
    for branch in residual:
        for node in branch.weights:
            name = weights.get(node)
            if name is None or prescriptions[name].action != "write":
                continue
            if node in branch.last:
                reason = "last layer of its residual branch: 0, so that the branch starts closed"
                prescriptions[name] = _zero(prescriptions[name], reason)
            else:
                prescriptions[name] = _scaled(prescriptions[name], len(residual), branch.depth)
    for node in vertices(structure).readouts:
        name = weights.get(node)
        if name is not None and prescriptions[name].action == "write":
            prescriptions[name] = _zero(prescriptions[name], "readout: 0")
    return Draft(prescriptions, warnings=_warnings(graph, prescriptions))


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


def residual_branches(structure: Branches) -> tuple[ResidualBranch, ...]:
    """Return the residual branches of a graph, in the order of the sums that they enter."""
    junctions = _Junctions(structure)
    taken: set[int] = set()
    result = []
    for vertex in vertices(structure).vertices.values():
        bases = [structure.steps[branch.value].base for branch in vertex.branches]
        if len(bases) < 2:
            continue
        paths = [junctions.path_into(base, own) for base, own in junctions.unshared(bases)]
        shortest = min(path.depth for path in paths)
        if shortest > 1:
            continue
        for path in paths:
            weights = tuple(node for node in path.weights if node not in taken)
            if path.depth > shortest and weights:
                taken.update(weights)
                result.append(ResidualBranch(weights, path.last, path.depth))
    return tuple(result)


class _Junctions:
    """The junctions of a graph, and for each one all that lead to it."""

    def __init__(self, structure: Branches) -> None:
        self._steps = structure.steps
        self._sources: dict[int, list[int]] = defaultdict(list)
        for edge in structure.edges:
            self._sources[edge.target].append(edge.source)
        joined = self._sources.keys() | {edge.source for edge in structure.edges}
        self._bits = {value: 1 << i for i, value in enumerate(v for v in structure.steps if v in joined)}
        self._above: dict[int, int] = {}  # every junction with all that lead to it, as a bit set
        for value, bit in self._bits.items():
            self._above[value] = bit
            for source in self._sources.get(value, ()):
                self._above[value] |= self._above[source]

    def unshared(self, bases: Sequence[int]) -> Iterator[tuple[int, set[int]]]:
        """Yield every base of a sum with those of the junctions leading to it that do not lead to all bases."""
        shared = reduce(and_, (self._above[base] for base in bases))
        for base in bases:
            yield base, {value for value, bit in self._bits.items() if self._above[base] & ~shared & bit}

    def path_into(self, base: int, own: set[int]) -> ResidualBranch:
        """Return the contractions among the junctions ``own``, through which ``base`` is reached."""
        depths: dict[int, int] = {}
        weights = []
        for value, step in self._steps.items():
            if value in own:
                depths[value] = max((depths.get(s, 0) for s in self._sources.get(value, ())), default=0)
                if step.kind == "contraction" and step.node is not None:
                    depths[value] += 1
                    weights.append(step.node)
        return ResidualBranch(tuple(weights), self._last(base, own), depths.get(base, 0))

    def _last(self, base: int, own: set[int]) -> frozenset[int]:
        """Return the contractions among ``own`` from which ``base`` is reached without another."""
        last, pending, seen = set(), [base], set()
        while pending:
            value = pending.pop()
            if value not in own or value in seen:
                continue
            seen.add(value)
            step = self._steps[value]
            if step.kind == "contraction" and step.node is not None:
                last.add(step.node)
            else:
                pending += self._sources.get(value, ())
        return frozenset(last)


def _scaled(base: Prescription, count: int, depth: int) -> Prescription:
    factor = float(count ** (-1.0 / (2 * depth - 2)))
    field = "constant" if isinstance(base, Constant) else "std"
    value = getattr(base, field)
    reason = f"{base.reason}; × {count}^(-1/{2 * depth - 2}) for {count} residual branches of {depth} layers ({_PAPER})"
    return base.changed(**{field: value * factor}, reason=reason)


def _zero(base: Prescription, reason: str) -> Prescription:
    return zero(base, f"{reason} ({_PAPER})", output_axis=base.output_axis, groups=base.groups)


def _warnings(graph: Graph, prescriptions: Mapping[str, Prescription]) -> tuple[str, ...]:
    warnings = [
        "Fixup also puts a scalar bias before each layer and activation, and a scalar multiplier into each residual "
        "branch; a plan only draws parameters that the model has, so add them to the model where training needs them"
    ]
    gains = sum(p.role == "gain" for p in prescriptions.values())
    if gains:
        warnings.append(
            f"Fixup is meant for nets without normalisation, and {graph.model} has {gains} normalisation layer(s), "
            "which undo the scale of the weights before them"
        )
    return tuple(warnings)
