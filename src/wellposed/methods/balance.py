"""Balancing a vertex: how large its weighted branches may be beside the identity branches that enter it.

An identity branch has gain 1, which no initialisation can change. What it leaves of a vertex's second moment goes to
the weighted branches, all by one factor c: with Q and M the second moment and the mean of the identity branches
together, and s_k, m_k those of the weighted ones,

    Q + 2 M Σ m_k(c) + Σ s_k(c) + (Σ m_k(c))² - Σ m_k(c)² = τ

Branches that end in no activation have m_k = 0 and s_k(c) = c² s_k.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wellposed.graphs import Graph, Node, Ref
from wellposed.signals.algebra.affine import linear
from wellposed.signals.algebra.pointwise import apply_pointwise
from wellposed.signals.context.call import Call, Pass
from wellposed.signals.distributions.functions import Pointwise
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.state import State
from wellposed.signals.integration.gaussian import gaussian_moments
from wellposed.signals.registry import RULES
from wellposed.structure.branches import Step
from wellposed.structure.vertices import Branch, Vertex, Vertices
from wellposed.walks import reached

_WIDEST = 7.0
"""|ln c| up to which a factor is sought: bounded activations do not reach every second moment."""


@dataclass(frozen=True, slots=True)
class Share:
    """The second moment that weights at one place of a stream add to it.

    Attributes:
        own: of the weighted branches of a vertex together, or of a contraction's result.
        last: whether no identity branch leads on from the vertex, which is then filled up to second moment 1.
    """

    own: float
    last: bool


@dataclass(frozen=True, slots=True)
class Balance:
    """What was decided for one vertex.

    Attributes:
        identity: second moment of its identity branches (and of those whose scale is fixed) together.
        target: second moment of the whole vertex.
        factor: on its weighted branches; None where there are none, or bounded activations cannot reach the target.
    """

    identity: float
    target: float
    factor: float | None


def shares(vertices: Vertices, room: float) -> dict[int, Share]:
    """Return what weights add, for every vertex and every contraction from which identity branches lead on.

    Identity branches link vertices to streams. Of the second moment 1 with which a stream ends, its starts make
    1 - ``room`` and the B weighted branches that vertices along it take in make ``room``, 1/B of it each: residual
    branches scaled by 1/√B (Hayou et al. 2021, *Stable ResNet*, arXiv 2010.12859). What reaches the end along n paths
    arrives n times as large, and is made 1/n² of its share. Where a stream has several ends, the smallest share holds.
    """
    origins = {
        value: [branch.origin for branch in vertex.branches if not branch.weights]
        for value, vertex in vertices.vertices.items()
    }
    counts = {value: max(1, len(vertex.weighted)) for value, vertex in vertices.vertices.items()}
    followed = {origin for before in origins.values() for origin in before}
    order = {value: index for index, value in enumerate(origins)}
    result: dict[int, Share] = {}
    for end in origins:
        if end in followed:
            continue
        for value, own in _shares_of_stream(origins, counts, _paths(end, origins, order), room).items():
            if value not in result or own < result[value].own:
                result[value] = Share(own, value == end)
    return result


def _shares_of_stream(
    origins: Mapping[int, Sequence[int | None]], counts: Mapping[int, int], paths: Mapping[int, int], room: float
) -> dict[int, float]:
    """Return the second moment that weights add at each place of a stream, from the number of paths to its end."""
    joined = [value for value in paths if origins.get(value)]
    unknown = sum(origin is None for value in joined for origin in origins[value])
    starts = len(paths) - len(joined) + unknown
    whole = room if starts else 1.0
    together = sum(counts[value] for value in joined)
    result = {}
    for value, count in paths.items():
        part = whole * counts[value] / together if origins.get(value) else (1.0 - room if joined else 1.0) / starts
        result[value] = part * math.exp(-2.0 * math.log(count))
    return result


def _paths(end: int, origins: Mapping[int, Sequence[int | None]], order: Mapping[int, int]) -> dict[int, int]:
    """Return, for each place from which identity branches lead to ``end``, the number of such paths."""
    before = reached([end], lambda value: [origin for origin in origins.get(value, ()) if origin is not None])
    paths = {end: 1}
    for value in sorted(before, key=lambda v: order.get(v, -1), reverse=True):
        for origin in origins.get(value, ()):
            if origin is not None:
                paths[origin] = paths.get(origin, 0) + paths[value]
    return paths


class Balancer:
    """Chooses the factors of a vertex's weighted branches in the course of a pass (see `run_pass`, ``visit``).

    Attributes:
        balances: what was decided, by vertex.
    """

    def __init__(
        self,
        graph: Graph,
        vertices: Vertices,
        room: float,
        can_scale: Callable[[Branch, int], bool],
        scale: Callable[[Branch, float], None],
    ) -> None:
        """Prepare.

        Args:
            graph: the graph.
            vertices: its vertices.
            room: as for `shares`.
            can_scale: whether a branch's weights may still be scaled at a node.
            scale: scales the weights of a branch by a factor.
        """
        self.graph = graph
        self.steps: Mapping[int, Step] = vertices.steps
        self.shares: dict[int, Share] = shares(vertices, room)
        self.can_scale = can_scale
        self.scale = scale
        self.balances: dict[int, Balance] = {}
        self._branches: dict[int, State] = {}
        self._needed = {branch.value for vertex in vertices.vertices.values() for branch in vertex.branches}
        self._gathering: dict[int, list[Vertex]] = {}
        for vertex in vertices.vertices.values():
            self._gathering.setdefault(self._gathered_at(vertex), []).append(vertex)

    def _gathered_at(self, vertex: Vertex) -> int:
        """Return the node that reads the last of a vertex's branches, at which all their states are known."""
        operands = self.steps[vertex.value].operands
        if self.steps[vertex.value].kind != "sum":  # one activated branch: its value is the vertex
            operands = (vertex.value,)
        readers = self.graph.users()
        return min(node for node in readers[operands[-1]] if set(operands) <= set(self.graph.nodes[node].inputs))

    def __call__(self, run: Pass, node: Node) -> None:
        """Record the states of branches; at the node where all of a vertex are known, scale them in the pass."""
        for value in node.inputs:
            state = run.state(value)
            if value in self._needed and state is not None:
                self._branches[value] = state
        for vertex in self._gathering.get(node.index, ()):
            self._balance(run, node, vertex)

    def _balance(self, run: Pass, node: Node, vertex: Vertex) -> None:
        """Scale the free weighted branches of a vertex to its target second moment, in the pass."""
        states = {branch.value: self._branches[branch.value] for branch in vertex.branches}
        free = [branch for branch in vertex.weighted if not branch.normalised and self.can_scale(branch, node.index)]
        share = self.shares[vertex.value]
        identity = self._only(run, vertex, states, [branch for branch in vertex.branches if branch not in free])
        held, mean = identity.second_moment, identity.pooled_mean
        # where identity branches leave less than the share of the weighted ones, the vertex grows by it
        target = max(held + share.own, 1.0 if share.last else 0.0)
        scalings = []
        for branch in free:
            state = states[branch.value]
            alone = self._only(run, vertex, states, [branch])
            scalings.append(_scaling(state if branch.activation is not None else None, alone))
        factor = _factor(scalings, held, mean, target) if free else None
        self.balances[vertex.value] = Balance(held, target, factor)
        if factor is None:
            return
        call = Call(run, node)
        for branch in free:
            self.scale(branch, factor)
            states[branch.value] = _rescaled(call, states[branch.value], factor, branch.activation is not None)
        if self.steps[vertex.value].kind != "sum":
            run.states[vertex.value] = self._branches[vertex.value] = states[vertex.value]
            return
        for value in self.steps[vertex.value].operands:
            run.states[value] = self._evaluate(run, value, states)

    def _only(self, run: Pass, vertex: Vertex, states: Mapping[int, State], kept: Sequence[Branch]) -> State:
        """Return the state of a vertex with the branches ``kept`` alone."""
        values = {branch.value for branch in kept}
        zeroed = {v: s if v in values else make_state(s.shape, 0.0, 0.0) for v, s in states.items()}
        return self._evaluate(run, vertex.value, zeroed)

    def _evaluate(self, run: Pass, value: int, states: Mapping[int, State]) -> State:
        """Return the state of a branch, or of a sum computed again from its branches."""
        if value in states:
            return states[value]
        index = self.steps[value].node
        assert index is not None
        node = self.graph.nodes[index]
        rule = RULES.get(node.op)
        assert rule is not None

        def resolve(argument: Any) -> Any:
            if isinstance(argument, Ref):
                return self._evaluate(run, argument.value, states)
            return [resolve(item) for item in argument] if isinstance(argument, list) else argument

        result = rule.function(Call(run, node), *map(resolve, node.args), **node.kwargs)
        assert isinstance(result, State)
        return result


Scaling = Callable[[float], tuple[float, float]]


def _scaling(activated: State | None, alone: State) -> Scaling:
    """Return c -> (mean, second moment) of what a branch adds to its vertex when its weights are multiplied by c.

    ``alone`` is what it adds at c = 1. An ``activated`` branch that is a function of one Gaussian is integrated anew,
    unless the function is homogeneous, as rectifiers are; any other branch counts as homogeneous.
    """
    mean, second = alone.pooled_mean, alone.second_moment
    base, function = alone.gaussian_source() if activated is None else activated.gaussian_source()
    if activated is None or function is None or _is_homogeneous(function):
        return lambda c: (c * mean, c * c * second)
    centre, width = base.pooled_mean, math.sqrt(base.pooled_var)
    first, square = gaussian_moments(function, centre, width)

    def scaled(c: float) -> tuple[float, float]:
        m, s = gaussian_moments(function, c * centre, c * width)
        return (mean * m / first if first else 0.0), (second * s / square if square else 0.0)

    return scaled


def _is_homogeneous(function: Pointwise) -> bool:
    points = np.array([-5.0, -1.0, -0.3, 0.0, 0.3, 1.0, 5.0])
    return np.array_equal(function(2.0 * points), 2.0 * function(points))  # doubling is exact in floating point


def _factor(scalings: Sequence[Scaling], held: float, mean: float, target: float) -> float | None:
    """Return the factor c with which the weighted branches bring a vertex to ``target``; None if there is none."""

    def missing(log: float) -> float:
        moments = [scaling(math.exp(log)) for scaling in scalings]
        together = sum(m for m, _ in moments)
        squares = sum(s - m * m for m, s in moments)
        return held + 2.0 * mean * together + squares + together * together - target

    low, high = -_WIDEST, _WIDEST
    if not missing(low) < 0.0 < missing(high):
        return None
    from scipy.optimize import brentq  # slow to import, and few plans need it

    return math.exp(float(brentq(missing, low, high, xtol=1e-12)))


def _rescaled(call: Call, state: State, factor: float, activated: bool) -> State:
    """Return a branch's state after its weights have been multiplied by ``factor``."""
    if activated and state.function is not None:
        base = linear(call, state.function.base, factor)
        return apply_pointwise(call, base.amended(axes=state.axes, function=None), state.function.fn)
    return linear(call, state, factor)
