"""Scales of weights that are made of several parameters: low-rank products, sums, masks and noise beside them.

Each such weight W has one scale c, chosen where a signal meets it, and shared out among its parameters.

- **Products** (W = A B). The gradient with respect to one factor, relative to that factor, is as large for all of them
  where n σ⁴ is the same, n being a factor's number of elements: under white gradients of W, E|∂A|² / |A|² is E|W|² over
  n_A σ_A⁴. So σ² is proportional to 1 / √n, and no factor outruns another under one learning rate.
- **Sums** of several open scales (W = U + V): equal shares of the variance.
- **Sums with what keeps its values** (W = mu + sigma eps): what is kept counts, and the rest is drawn; at least half of
  the variance, where what is kept would take more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch

from wellposed.graphs import Graph
from wellposed.operators.contraction import Contraction
from wellposed.operators.scale_parameters import composite_scales
from wellposed.operators.scale_reading import CompositeScale, ScaleParameter, leaves_of
from wellposed.signals.distributions.making import rescaled
from wellposed.signals.distributions.state import State
from wellposed.structure.roles import Role

aten: torch._ops._OpNamespace = torch.ops.aten

LEAST_DRAWN_SHARE = 0.5
"""Share of the variance that the parameters of a sum are given at least, however much is kept beside them. Chosen."""


@dataclass(frozen=True, slots=True)
class Shared:
    """How a scale c is shared out: members get r c^power each, r in ``members``; ``share`` of E W² grows with c²."""

    composite: CompositeScale
    members: dict[str, float]
    power: float
    share: float


class CompositeScales:
    """The composites (weights of several parameters) of a graph, and their scales as a pass comes to them.

    Attributes:
        scale_parameters: by value id, for values that are linear in a composite's scale.
        composites: by key.
        leaves: names of the parameters that are scaled through composites.
        deferred: nodes at which no scale is chosen, as their result is a weight itself.
        effective: by key, the chosen scales, relative to the unit state.
        open: by key, how the scale will be distributed, for composites that the pass has met.
        words: for each parameter scaled by a composite, the reason in words.
    """

    def __init__(
        self,
        graph: Graph,
        fixed: frozenset[int],
        uses: Collection[Contraction],
        roles: Mapping[str, Role],
        kept: Collection[str],
    ) -> None:
        self.graph = graph
        found, composites = composite_scales(graph, fixed)
        names = {"weight", "other"}
        closed = {name for name, role in roles.items() if role not in names} | set(kept)
        self.composites: dict[str, CompositeScale] = {}
        direct = {str(use.parameter) for use in uses if graph.values[use.weight].kind == "parameter"}
        for use in uses:
            key = found[use.weight].parameter if use.weight in found else None
            counts = use.kind != "recurrent" and use.data not in fixed
            if counts and key in composites and not _follows(key, composites, direct | closed):
                self._enter(key, composites, _names_a_weight(graph, use))
        self.scale_parameters: dict[int, ScaleParameter] = {
            value: scaling for value, scaling in found.items() if scaling.parameter in self.composites
        }
        members = {m for composite in self.composites.values() for m in composite.members}
        self.leaves: frozenset[str] = frozenset((members & graph.parameters.keys()) - closed)
        self.deferred = self._made()
        self.open: dict[str, Shared] = {}
        self.effective: dict[str, float] = {}
        self.words: dict[str, str] = {}

    def _made(self) -> frozenset[int]:
        """Return the nodes at which layers compute weights."""
        made = [composite.value for composite in self.composites.values() if composite.kind == "made"]
        return frozenset([index for value in made if (index := self.graph.values[value].node) is not None])

    def _enter(self, key: str, composites: Mapping[str, CompositeScale], named: bool) -> bool:
        """Add a composite and its members; a weight that a layer computes only where ``named``."""
        composite = composites[key]
        if composite.kind == "made" and not named:
            return False
        if not all(self._enter(member, composites, named) for member in composite.members if member in composites):
            return False
        self.composites[key] = composite
        return True

    def parameters_of(self, value: int) -> frozenset[str]:
        """Return the names of the parameters of a weight made by composites."""
        scaling = self.scale_parameters.get(value)
        return frozenset() if scaling is None else leaves_of(scaling.parameter, self.composites)

    def meet(self, composite: CompositeScale, key: str, state: Callable[[int], State | None], result: State) -> State:
        """Return the state of a composite's result, in units of the scale that is still to be chosen.

        Args:
            composite: where the node's operands meet.
            key: what its scale parameter is called.
            state: the states of values.
            result: what the node's rule gives for operands of unit scale.
        """
        kept, open_ = 0.0, dict[str, float]()
        for value, factor in composite.rest:
            kept += factor**2 * _second_moment(state(value))
        for member, value, factor in zip(composite.members, composite.operands, composite.factors, strict=True):
            entering = state(value)
            q = factor**2 * _second_moment(entering)
            if entering is not None and entering.scale_parameter == member and q > 0.0:
                open_[member] = q
            else:
                kept += q
        whole = result.second_moment
        if not open_ or whole == 0.0:
            return result.amended(scale_parameter=None)
        if composite.kind in ("product", "made"):
            roots = {member: self._elements(member) ** -0.25 for member in open_}
            mean = math.prod(roots.values()) ** (1.0 / len(roots))
            self.open[key] = Shared(composite, {m: root / mean for m, root in roots.items()}, 1.0 / len(roots), 1.0)
            return result.amended(scale_parameter=key)
        parts = 1 if composite.kind == "parts" else len(open_)
        self.open[key] = Shared(
            composite, {m: 1.0 / math.sqrt(parts * q) for m, q in open_.items()}, 1.0, 1.0 / (1.0 + kept)
        )
        unit = 1.0 if composite.kind == "parts" else (1.0 + kept) / (sum(open_.values()) + kept)
        return rescaled(result, math.sqrt(unit)).amended(scale_parameter=key)

    def choose(self, key: str, scale: float, give: Callable[[str, float], float]) -> float:
        """Distribute a scale among the parameters of a composite; return the scale that the weight then has.

        Args:
            key: of a composite that `meet` has met.
            scale: what its unit state is to be multiplied by.
            give: takes a parameter and the scale that is meant for it, and returns the one that it gets.
        """
        shared = self.open[key]
        composite, share = shared.composite, shared.share
        wanted = scale
        if share < 1.0:
            wanted = math.sqrt(max((scale**2 - (1.0 - share)) / share, LEAST_DRAWN_SHARE * scale**2 / share))
        given: list[float] = []
        for member, relative in shared.members.items():
            amount = relative * wanted**shared.power
            if member in self.open:
                given.append(self.choose(member, amount, give) / relative)
            elif member in self.effective:
                given.append(self.effective[member] / relative)
            else:
                given.append(give(member, amount) / relative)
                others = [other for other in composite.members if other != member and other in self.graph.parameters]
                self.words.setdefault(member, self._words(composite, others, share))
        if composite.kind in ("product", "made"):
            actual = math.prod(given)
        else:
            actual = math.sqrt(sum(one**2 for one in given) / len(given))
        self.effective[key] = effective = math.sqrt(share * actual**2 + 1.0 - share)
        return effective

    def _words(self, composite: CompositeScale, others: list[str], share: float) -> str:
        """Return how a parameter got its scale from a composite, for the plan's reason."""
        node = self.graph.values[composite.value].name
        with_others = f" with {', '.join(map(repr, others[:3]))}" if others else ""
        if composite.kind == "made":
            return f"{node} makes the weight that has it"
        if composite.kind == "product":
            return f"of the product at {node}{with_others}, shared out so that relative gradients are alike"
        if composite.kind == "parts":
            return f"of the parts that {node} puts together"
        words = f"of the sum at {node}"
        if others and share == 1.0:
            return f"{words}{with_others}, in equal shares"
        return words + (f", {1.0 - share:.2g} of whose second moment at unit scale is kept" if share < 1.0 else "")

    def _elements(self, member: str) -> float:
        if member in self.graph.parameters:
            return float(math.prod(self.graph.parameters[member].shape))
        return float(math.prod(self.graph.values[self.composites[member].value].shape))


def _names_a_weight(graph: Graph, use: Contraction) -> bool:
    """Whether the operator has a weight argument, and the weight is it."""
    node = graph.nodes[use.node]
    return use.kind in ("linear", "conv", "conv_transpose") and node.args[1].value == use.weight


def _second_moment(state: State | None) -> float:
    return 0.0 if state is None else state.second_moment


def _follows(key: str, composites: Mapping[str, CompositeScale], decided: Collection[str]) -> bool:
    """Whether a composite is a sum of parameters that have scales of their own (a running mean of them)."""
    return composites[key].kind == "sum" and leaves_of(key, composites) <= set(decided)
