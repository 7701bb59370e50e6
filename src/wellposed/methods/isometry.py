"""Singular values of the input-output Jacobian near 1.

Pennington, Schoenholz & Ganguli 2017 (arXiv 1711.04735): of layers φ(W x) with orthogonal W of gain g, the squared
singular values of the Jacobian have the mean Π g² E φ'², which is 1 at g² = 1 / E φ'(z)², and, to leading order, the
variance Σ κ, with κ = E φ'⁴ / (E φ'²)² - 1. Where φ is smooth, κ vanishes with the variance of z: signals are made
small enough for the depth. For ReLU and its like κ is the same at every variance, and no scale makes the singular
values concentrate (their theorem); what can be had is criticality, a mean square of 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from wellposed.graphs import Graph, Node
from wellposed.methods.directions import Scale
from wellposed.operators.contraction import Contraction
from wellposed.operators.facts import facts_of
from wellposed.operators.norms import NORMS
from wellposed.operators.product import describe
from wellposed.signals.algebra.gradient_terms import derivative, source_of
from wellposed.signals.context.arguments import state_of
from wellposed.signals.context.call import Pass
from wellposed.signals.distributions.state import State
from wellposed.signals.integration import kernels
from wellposed.signals.integration.gaussian import gaussian_moments
from wellposed.signals.registry import RULES
from wellposed.signals.weights.planned import PlannedWeights

WIDTH = 0.05
"""Largest variance of the squared singular values that signals are made small for, where κ can be made small."""
SMALLEST = 1e-8
"""Smallest variance of signals, as a share of the target, that is tried."""
Visit = Callable[[Pass, Node], None]
RunPass = Callable[[PlannedWeights, Visit], Pass]


@dataclass(frozen=True, slots=True)
class Isometry:
    """Scales for orthogonal weights.

    Attributes:
        scales: by parameter.
        level: variance of the first pre-activations.
        warnings: where singular values near 1 cannot be had, and why.
    """

    scales: Mapping[str, Scale]
    level: float
    warnings: tuple[str, ...]


def isometric(graph: Graph, weights_of: Callable[[float], PlannedWeights], run: RunPass, target: float) -> Isometry:
    """Return the gains of orthogonal weights at which every layer's mean squared singular value is 1.

    The first pre-activations get the largest variance, up to ``target``, at which the squared singular values of the
    whole have a variance of at most `WIDTH`; the last weights undo that change of scale, unless an activation follows.

    Args:
        graph: from `wellposed.trace`.
        weights_of: makes weights whose first outputs are brought to a variance.
        run: runs a forward pass with them.
        target: largest variance of a pre-activation.
    """

    def tried(level: float) -> _Gains:
        weights = weights_of(level)
        gains = _Gains(graph, weights)
        gains.passed(run(weights, gains))
        return gains

    level, gains = target, tried(target)
    warnings = _others(graph)
    if gains.width > WIDTH:
        small = tried(target * SMALLEST)
        if small.width > WIDTH:
            warnings.insert(
                0,
                f"isometry is out of reach: before {small.worst}, E φ'⁴ / (E φ'²)² - 1 does not vanish with the "
                f"signal, so that squared singular values have a variance of about {small.width:.2g} at any scale "
                "(Pennington, Schoenholz & Ganguli 2017, of ReLU); the weights are critical: the mean squared "
                "singular value is 1",
            )
        else:
            low, high = math.log(target * SMALLEST), math.log(target)
            gains = small
            for _ in range(12):
                middle = 0.5 * (low + high)
                candidate = tried(math.exp(middle))
                if candidate.width <= WIDTH:
                    low, level, gains = middle, math.exp(middle), candidate
                else:
                    high = middle
    return Isometry(gains.scales, level, tuple(warnings))


class _Gains:
    """Chooses gains in the course of a forward pass: called before each node.

    Attributes:
        scales: what was chosen.
        width: predicted variance of the squared singular values, over the path on which it is largest.
        worst: the contraction after the activation that adds most to it.
    """

    def __init__(self, graph: Graph, weights: PlannedWeights) -> None:
        """Find which contractions are the first and the last ones of the graph."""
        self.graph = graph
        self.weights = weights
        self.uses = {
            use.node: use
            for use in weights.uses
            if use.parameter is not None and use.kind not in ("embedding", "recurrent")
        }
        self.preceded = _preceded(graph, self.uses)
        self.last = _last(graph, self.uses)
        self.scales: dict[str, Scale] = {}
        self.widths: dict[int, float] = {}
        self.entry: list[float] = []
        self.width, self.worst, self._most = 0.0, "", 0.0

    def __call__(self, run: Pass, node: Node) -> None:
        """Choose the gain of a node's weight, which adds to the largest of its inputs' ``widths``."""
        before = max((self.widths.get(value, 0.0) for value in node.inputs), default=0.0)
        use = self.uses.get(node.index)
        if use is not None and use.parameter is not None:
            before += self._choose(run, use, use.parameter)
        self.widths.update(dict.fromkeys(node.outputs, before))
        self.width = max(self.width, before)

    def passed(self, run: Pass) -> None:
        """Record the scales that the pass itself chose: those of first layers."""
        for name, decision in self.weights.decisions.items():
            if name not in self.scales and decision.node in self.uses:
                reason = f"first layer: its output has the variance {decision.after:.4g} that isometry asks for"
                self.scales[name] = Scale(decision.scale, reason)

    def _choose(self, run: Pass, use: Contraction, name: str) -> float:
        """Choose one gain, and return what the layer adds to the variance of squared singular values."""
        data = run.state(use.data)
        if data is None:
            return 0.0
        square, kurtosis = _slopes(data)
        size = max(use.fan_in, use.fan_out)
        weight = state_of(run, use.weight)
        unit = 1.0 if weight is None or not weight.second_moment else weight.second_moment
        if not self.preceded[use.data]:
            if use.node in self.last:  # the only layer
                self._set(name, math.sqrt(1.0 / (size * unit)), "the only layer: gain 1")
            else:  # brought to the level by the pass
                mean = data.second_moment * use.fan_in
                self.entry.append(math.log(self.weights.target * size / mean) if mean > 0.0 else 0.0)
            return 0.0
        gain = 1.0 / square if square > 0.0 else 1.0
        reason = f"orthogonal with gain² 1 / E[φ'²] = {gain:.4g} (Pennington, Schoenholz & Ganguli 2017)"
        if use.node in self.last and self.entry and not _activated(self.graph, use.node):
            factor = math.exp(-sum(self.entry) / len(self.entry))
            gain *= factor
            reason += f", times {factor:.4g}, which undoes the first layers' change of scale"
        self._set(name, math.sqrt(gain / (size * unit)), reason)
        if kurtosis > self._most:
            self._most, self.worst = kurtosis, self.graph.nodes[use.node].name
        return kurtosis

    def _set(self, name: str, scale: float, reason: str) -> None:
        if name not in self.weights.scales:
            self.weights.scales[name] = scale
            self.scales[name] = Scale(scale, reason)


def _slopes(data: State) -> tuple[float, float]:
    """Return E φ'² and κ = E φ'⁴ / (E φ'²)² - 1 for a signal φ(z) of a Gaussian z; (1, 0) for other signals."""
    base, fn = source_of(data)
    slope = derivative(fn)
    mean, std = kernels.average(base.mean), math.sqrt(kernels.average(base.var))
    square, fourth = gaussian_moments(lambda x: slope(x) ** 2, mean, std)
    return square, fourth / square**2 - 1.0 if square > 0.0 else 0.0


def _preceded(graph: Graph, uses: Mapping[int, Contraction]) -> dict[int, bool]:
    """Return, by value id, whether a contraction lies between it and the inputs."""
    preceded = {value.id: False for value in graph.values}
    for node in graph.nodes:
        after = node.index in uses or any(preceded[value] for value in node.inputs)
        preceded.update(dict.fromkeys(node.outputs, after))
    return preceded


def _last(graph: Graph, uses: Mapping[int, Contraction]) -> set[int]:
    """Return the contractions after which there is no other."""
    ahead: set[int] = set()  # values that a contraction depends on
    last = set()
    for node in reversed(graph.nodes):
        further = not ahead.isdisjoint(node.outputs)
        if node.index in uses:
            if not further:
                last.add(node.index)
            ahead.add(uses[node.index].data)
        elif further:
            ahead.update(node.inputs)
    return last


def _activated(graph: Graph, node: int) -> bool:
    """Whether an elementwise function follows a node, directly or behind other nodes."""
    reached = set(graph.nodes[node].outputs)
    for later in graph.nodes[node + 1 :]:
        if not reached.isdisjoint(later.inputs):
            rule = RULES.get(later.op)
            if rule is not None and rule.elementwise:
                return True
            reached.update(later.outputs)
    return False


def _others(graph: Graph) -> list[str]:
    """Return warnings of what the theory, which is for layers in a row, leaves out in this graph."""
    counts: dict[str, int] = {}
    for node in graph.nodes:
        facts, product = facts_of(node.op), describe(graph, node)
        if node.op in NORMS:
            counts["norms"] = counts.get("norms", 0) + 1
        elif facts.attends:
            counts["attention"] = counts.get("attention", 0) + 1
        elif (
            facts.terms == (1.0, 1.0)
            and sum(graph.values[v].kind in ("intermediate", "input") for v in set(node.inputs)) > 1
        ):
            counts["sums of branches"] = counts.get("sums of branches", 0) + 1
        elif product is not None and product.window is not None and product.window.taps > 1:
            counts["convolutions of more than one tap, which no orthogonal kernel makes isometries"] = 1
    if not counts:
        return []
    listed = ", ".join(f"{count} {what}" if count > 1 else what for what, count in counts.items())
    return [
        f"isometry is worked out for layers in a row; here are also {listed}: look at "
        "wellposed.checks.jacobian_spectrum for what came of it"
    ]
