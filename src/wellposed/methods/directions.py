"""Scales that keep the gradient as it goes back, and the compromise with those that keep the signal.

Bingham & Miikkulainen (arXiv 2109.08958, Appendix E) leave the backward direction open. Glorot & Bengio (2010, eq. 10
to 12) state both conditions for a chain of linear layers, fan_in Var(w) = 1 and fan_out Var(w) = 1, and meet in the
middle: Var(w) = 2 / (fan_in + fan_out), the harmonic mean of the two variances. Here each holds for any graph.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from wellposed.errors import listed
from wellposed.graphs import Graph, Node
from wellposed.graphs.graph import once
from wellposed.operators.arithmetic import factors_of, is_homogeneous
from wellposed.operators.contraction import contractions
from wellposed.operators.facts import facts_of
from wellposed.operators.norms import NORMS
from wellposed.operators.product import is_product
from wellposed.operators.scale_parameters import parameter_values
from wellposed.operators.schema import ref_of
from wellposed.operators.views import is_view
from wellposed.signals.algebra.gradient_terms import Adjoint, second_moment
from wellposed.signals.context.call import Pass
from wellposed.signals.distributions.functions import Pointwise
from wellposed.signals.passes.backward import Sent, gradients_of
from wellposed.signals.weights.planned import PlannedWeights
from wellposed.structure.branches import branches
from wellposed.structure.scale_free import absorbing

ROUNDS, ROUND = 3, 12
"""Times that scales are sought, each without those that did not settle before, and passes of each. Chosen for cost."""
DEPTH = 4
"""Passes before the last one that a step is found from. Chosen."""
LONGEST = math.log(100.0)
"""Largest step of the logarithm of a variance. Chosen."""
SETTLED = 1e-3
"""Distance of the logarithm of a gradient's second moment from the target at which scales have settled. Chosen."""
ENDS = np.array([1e-3, 1e3])
"""Small and large arguments at which a function is asked whether it is linear. Chosen."""
FAR = 0.1
"""Distance of those that are left first: what they do to the gradient may unsettle the others. Chosen."""

RunPass = Callable[[PlannedWeights], Pass]
"""Runs a forward pass that keeps its states."""


@dataclass(frozen=True, slots=True)
class Balance:
    """Scales by parameter name that bring gradients to their target.

    Attributes:
        scales: of the parameters whose scale the gradient decides.
        forward: the scales that the forward pass chooses, for every parameter that has one.
        left: by name, why other parameters keep the forward choice.
        warnings: operators that the gradient was assumed to pass, and weights whose scale did not settle.
    """

    scales: Mapping[str, float]
    forward: Mapping[str, float]
    left: Mapping[str, str]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Scale:
    """A scale with a reason of its own.

    Attributes:
        value: the std, or the value of a weight norm's gain; None leaves it to the forward pass.
        reason: the rule, in words.
    """

    value: float | None
    reason: str


def directed(balance: Balance, direction: Literal["backward", "both"], target: float) -> dict[str, Scale]:
    """Return the scales of a plan, with reasons: those of the balance, or their compromise with the forward ones."""
    scales: dict[str, Scale] = {}
    for name, scale in balance.scales.items():
        var, ahead = scale**2, balance.forward[name] ** 2
        summed = f"variance ν / Σ E[g²] = {target:.4g} / {target / var:.4g}"
        if direction == "backward":
            reason = (
                f"{summed}: the gradient with respect to what enters has second moment ν (Appendix E; Glorot & Bengio, "
                "eq. 11)"
            )
            scales[name] = Scale(scale, reason)
        else:
            both = 2.0 / (1.0 / ahead + 1.0 / var)
            reason = (
                f"harmonic mean of the variances that keep the signal, {ahead:.4g}, and the gradient, {var:.4g} "
                "(Glorot & Bengio, eq. 12, for any graph)"
            )
            scales[name] = Scale(both**0.5, reason)
    scales |= {name: Scale(None, reason) for name, reason in balance.left.items()}
    return scales


def balanced(
    graph: Graph, weights_of: Callable[[Mapping[str, float]], PlannedWeights], run: RunPass, target: float
) -> Balance:
    """Return the scales at which every contraction sends a gradient of second moment ``target`` to its data.

    A backward pass chooses each scale as it comes to it, the last contraction first. What activations and norms do to
    the gradient depends on the signals, and so on all scales: passes are repeated until the scales settle, each from
    what the last ones show (Anderson 1965). Weights after which all is linear change no derivative, and have settled
    after one pass. Three kinds are left to the forward choice: those whose scale norms take out again (`_undone`);
    those of gates, queries, keys and values, as the gradient of a product's factor is as large as the other factor,
    which would answer (`_factors`), with those that meet them alone (`_before`); and those that have not settled after
    `ROUND` passes, of which a warning tells.

    Args:
        graph: from `wellposed.trace`.
        weights_of: makes the weights of a forward pass with the scales given, and the others chosen.
        run: runs it.
        target: second moment of the gradients, in units of the cotangents' (1 at every output).
    """
    weights = weights_of({})
    passed = run(weights)
    left, answering = _left_by(passed), _answering(graph)
    forward = {name: decision.scale for name, decision in weights.decisions.items()}
    logs: dict[str, float] = {}
    told: tuple[str, ...] = ()
    steps = _Steps()
    for number in range(1, ROUNDS * ROUND + 1):
        chooser = _Chooser(weights, left.all, target)
        told = gradients_of(passed, until=chooser.data, adjust=chooser).warnings
        off = {name: math.log(ratio) for name, ratio in chooser.ratios.items()}
        logs = {name: logs.get(name, 2 * math.log(weights.decisions[name].scale)) for name in off}
        if all(abs(distance) < SETTLED for name, distance in off.items() if name in answering):
            logs = {name: log + off[name] for name, log in logs.items()}
            break
        logs = steps.next(logs, off)
        if number % ROUND == 0:
            left.leave(off)
            logs, steps = left.without(logs), _Steps()
        weights = weights_of({name: math.exp(log / 2) for name, log in logs.items()})
        passed = run(weights)
    return _balance(logs, off, forward, left, told)


def _balance(
    logs: Mapping[str, float], met: Collection[str], forward: dict[str, float], left: _Left, told: tuple[str, ...]
) -> Balance:
    """Return the scales of the last pass, with a warning of weights that found none."""
    scales = {name: math.exp(log / 2) for name, log in logs.items() if name in met}
    if left.adrift:
        told = (*told, f"{listed(left.adrift)} keep the scales that the signal asks for: none that the gradient asks "
                f"for settles within {ROUND} passes forward and back")  # fmt: skip
    return Balance(scales, forward, left.reasons(), told)


@dataclass(slots=True)
class _Left:
    """Weights that are left to the forward choice: ``factors`` of products, those ``before`` such factors, those whose
    scale is ``undone``, or ``adrift``.
    """

    undone: frozenset[str]
    factors: frozenset[str]
    before: frozenset[str]
    adrift: list[str]

    @property
    def all(self) -> frozenset[str]:
        return frozenset([*self.undone, *self.factors, *self.before, *self.adrift])

    def without(self, logs: Mapping[str, float]) -> dict[str, float]:
        """Return ``logs`` without the weights that are left."""
        return {name: log for name, log in logs.items() if name not in self.all}

    def leave(self, off: Mapping[str, float]) -> None:
        """Add the weights that are far from the target, or else all that have not settled, to ``adrift``."""
        far = [name for name, distance in off.items() if abs(distance) > FAR]
        self.adrift += far or [name for name, distance in off.items() if abs(distance) > SETTLED]

    def reasons(self) -> dict[str, str]:
        """Return, by name, why each weight is left."""
        kept = "its output has second moment ν"
        return (
            dict.fromkeys(self.adrift, f"no scale settles that the gradient asks for: {kept}")
            | dict.fromkeys(self.before, f"what it enters follows its scale, and takes it out of the gradient: {kept}")
            | dict.fromkeys(self.factors, f"a factor of a product, whose gradient the other factor sets: {kept}")
            | dict.fromkeys(self.undone, f"a norm takes its scale out of the gradient again: as forward, {kept}")
        )


class _Steps:
    """Anderson mixing: steps to the root of all distances, from those of the last passes."""

    def __init__(self) -> None:
        self.seen: list[tuple[dict[str, float], dict[str, float]]] = []

    def next(self, at: dict[str, float], off: Mapping[str, float]) -> dict[str, float]:
        """Return the logarithms of the variances that are tried next, given those tried and their distances."""
        self.seen = [one for one in self.seen[-DEPTH:] if one[0].keys() == at.keys()]
        self.seen.append((at, dict(off)))
        x, f = (np.array([list(one[part].values()) for one in self.seen]) for part in (0, 1))
        step = f[-1]
        if len(self.seen) > 1:
            dx, df = np.diff(x, axis=0), np.diff(f, axis=0)
            share = np.linalg.lstsq(df.T, f[-1], rcond=1e-6)[0]
            step = f[-1] - share @ (dx + df)
        return dict(zip(at, (x[-1] + step.clip(-LONGEST, LONGEST)).tolist(), strict=True))


def _left_by(run: Pass) -> _Left:
    """Return the weights that are left to the forward choice, whatever scales are tried."""
    factors = _factors(run.graph)
    before = _before(run.graph, factors)
    return _Left(_undone(run, factors | before) - factors - before, factors, before, [])


def _answering(graph: Graph) -> frozenset[str]:
    """Return the weights whose scale changes derivatives after them (not all that follows is linear), and those met
    several times, whose scale another use may choose.
    """
    uses = contractions(graph)
    weighted, names = {use.node for use in uses}, Counter(use.parameter for use in uses)
    bent: set[int] = set()  # values that a node after them is not linear in
    for node in reversed(graph.nodes):
        linear = node.index in weighted or is_view(node.op) or len(facts_of(node.op).linear) == 1
        if not linear or not bent.isdisjoint(node.outputs):
            bent.update(node.inputs)
    bends = {use.parameter for use in uses if not bent.isdisjoint(graph.nodes[use.node].outputs)}
    return frozenset(name for name, times in names.items() if name and (times > 1 or name in bends))


def _factors(graph: Graph) -> frozenset[str]:
    """Return the weights whose results multiply other signals before a weight or a norm meets the product."""
    steps, fixed = branches(graph).steps, parameter_values(graph)
    weighted = {use.node: use.parameter for use in contractions(graph)}
    source = _sources(graph)
    marked: set[int] = set()
    found: set[str] = set()
    for node in reversed(graph.nodes):
        reaches = not marked.isdisjoint(node.outputs)
        if node.index in weighted:
            found.update([weighted[node.index] or ""] * reaches)
            continue
        if node.op in NORMS or any(out in steps and steps[out].kind == "normalisation" for out in node.outputs):
            continue
        signals = [value for value in node.inputs if value not in fixed and graph.values[value].is_signal]
        if reaches or _multiplies(node, {source[value] for value in signals}):
            marked.update(signals)
    return frozenset(found - {""})


def _before(graph: Graph, factors: Collection[str]) -> frozenset[str]:
    """Return the weights whose results only ``factors`` meet, such as first layers of gates: the scale of a factor
    adapts to its signal, which cancels theirs.
    """
    ends = {use.node for use in contractions(graph) if use.parameter in factors}
    return _meeting(graph, ends, lambda node: node.op not in NORMS, lambda value: True) - set(factors)


def _undone(run: Pass, left: Collection[str]) -> frozenset[str]:
    """Return the weights whose scale is taken out of the gradient by all that meets their results: by norms, or by
    weights that are ``left`` or found here, whose scales adapt to what they meet.

    Sums may lie between: the gradient depends on a weight's share of what the norm reads, and no scales bring all that
    add to a stream to the target. So may functions f that are linear for small and for large arguments: the gradient
    goes by σ² E f'² / E f², which for GELU lies between 1 and 1.08 at every standard deviation σ of the argument.
    """
    graph, source, norms = run.graph, _sources(run.graph), absorbing(run.graph)
    signals = {value.id for value in graph.values if value.is_signal} - parameter_values(graph)
    made_by = {value: node for node in graph.nodes for value in node.outputs}

    def scales(node: Node) -> bool:
        """Whether a node makes c times its result of c times the one signal that it reads."""
        return is_homogeneous(node) or [power for one, power in factors_of(node) if ref_of(one) in signals] == [1.0]

    def follows(value: int) -> bool:
        """Whether a value follows the scale of its source, where that is small and where it is large."""
        start = source[value]
        while value != start and ((node := made_by[value]).index in norms or scales(node)):
            value = next(one for one in node.inputs if source[one] == start)
        state = run.states.get(value)
        function = None if state is None else state.function
        return value == start or (function is not None and _is_straight(function.fn))

    ends = norms | {use.node for use in contractions(graph) if use.parameter in left}
    return _meeting(graph, ends, lambda node: scales(node) or bool(facts_of(node.op).merges), follows)


def _is_straight(function: Pointwise) -> bool:
    """Whether a function is linear at both `ENDS`, for either sign or one: f(2 x) = 2 f(x), but for what a
    curvature of order 1 adds at the small one.
    """
    sizes = np.abs(function(np.outer([1.0, 2.0, -1.0, -2.0], ENDS).ravel())).reshape(2, 2, -1).max(axis=0)
    return bool(np.allclose(sizes[1], 2.0 * sizes[0], rtol=10.0 * ENDS[0], atol=0.0))


def _meeting(
    graph: Graph, ends: Collection[int], passes: Callable[[Node], bool], follows: Callable[[int], bool]
) -> frozenset[str]:
    """Return the weights whose results nothing meets but the nodes ``ends`` (indices) and other such weights.

    ``passes`` tells whether a result may pass a node on the way to them, and ``follows`` whether it may be met as the
    value (id) that an elementwise function makes of it.
    """
    weighted = {use.node: use.parameter for use in contractions(graph) if use.kind != "recurrent"}
    source = _sources(graph)
    seen = {source[value] for value in graph.outputs}  # values that anything else reads
    found: dict[str, bool] = {}  # whether that holds of all uses
    for node in _joints(graph):
        name, alone = weighted.get(node.index), seen.isdisjoint(node.outputs)
        if name:
            alone = found[name] = alone and found.get(name, True)
        met = node.index in ends or (alone and bool(name or passes(node)))
        seen.update(source[value] for value in node.inputs if not (met and follows(value)))
    return frozenset(filter(found.get, found))


def _joints(graph: Graph) -> list[Node]:
    """Return the nodes before an output that make no elementwise function of one value, the last first."""
    source, dead = _sources(graph), frozenset(graph.dead_nodes)
    alive = [node for node in reversed(graph.nodes) if node.index not in dead]
    return [node for node in alive if source[node.outputs[0]] == node.outputs[0]]


def _multiplies(node: Node, sources: Collection[int]) -> bool:
    """Whether a node multiplies signals that are functions of ``sources`` (value ids)."""
    facts = facts_of(node.op)
    return facts.gated or (len(sources) > 1 and bool(facts.powers or facts.attends or is_product(node.op)))


@once
def _sources(graph: Graph) -> Mapping[int, int]:
    """Return, by value id, the value that it is an elementwise function of; itself where it depends on several."""
    weighted = {use.node for use in contractions(graph)}
    source = {value.id: value.id for value in graph.values}
    for node in graph.nodes:
        of = {source[value] for value in node.inputs if graph.values[value].is_signal}
        if node.index not in weighted and facts_of(node.op).elementwise and len(of) == 1:
            source.update(dict.fromkeys(node.outputs, *of))
    return source


class _Chooser:
    """Scales, during a backward pass, the gradient that each contraction sends to its data to the target.

    Attributes:
        ratios: by parameter, the factor on its variance.
        data: the data of these contractions, back to which gradients have to be followed.
    """

    def __init__(self, weights: PlannedWeights, left: Collection[str], target: float) -> None:
        self.target = target
        self.ratios: dict[str, float] = {}
        self.left = left
        others = {use.parameter for use in weights.uses if use.kind in ("embedding", "recurrent")}  # tables that score
        self.uses = {
            use.node: (use.parameter, use.data)
            for use in weights.uses
            if use.parameter in weights.decisions.keys() - others
        }
        self.data = frozenset(data for name, data in self.uses.values() if name not in left)

    def __call__(self, call: Adjoint, sent: Sent) -> Sent:
        """Scale the gradient that a weighted node sends to its data to second moment ``target``, and keep the ratio."""
        name, data = self.uses.get(call.node.index, (None, -1))
        parts = [term for value, term in sent if value == data]
        if name is None or name in self.left or not parts:
            return sent
        if name not in self.ratios:
            power = sum(second_moment(call, term) for term in parts)
            if not (0.0 < power < math.inf):  # before a closed gate, where no gradient arrives
                return sent
            self.ratios[name] = self.target / power
        factor = self.ratios[name] ** 0.5
        return [(value, term.scaled(factor) if value == data else term) for value, term in sent]
