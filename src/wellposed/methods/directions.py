"""Scales that keep the gradient as it goes back, and the compromise with those that keep the signal.

Bingham & Miikkulainen (arXiv 2109.08958, Appendix E) leave the backward direction open. Glorot & Bengio (2010, eq. 10
to 12) state both conditions for a chain of linear layers, fan_in Var(w) = 1 and fan_out Var(w) = 1, and meet in the
middle: Var(w) = 2 / (fan_in + fan_out), the harmonic mean of the two variances. Here each holds for any graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from wellposed.errors import PlanError
from wellposed.graphs import Graph
from wellposed.signals.algebra.gradient_terms import Adjoint, second_moment
from wellposed.signals.context.call import Pass
from wellposed.signals.passes.backward import Sent, gradients_of
from wellposed.signals.weights.planned import PlannedWeights
from wellposed.structure.scale_free import scale_free

MOST = 50
"""Passes, forward and back, in which the scales must settle."""
SETTLED = 1e-4
"""Change of the logarithm of a variance from one pass to the next at which a scale has settled."""
UNMOVED = 0.05
"""Share of the distance to the target below which the gradient counts as not following its weight's scale."""

RunPass = Callable[[PlannedWeights], Pass]
"""Runs a forward pass that keeps its states."""


@dataclass(frozen=True, slots=True)
class Balance:
    """Scales by parameter name that bring gradients to their target.

    Attributes:
        scales: of the parameters whose scale the gradient follows.
        forward: those that the forward pass chooses, for every parameter that has one.
        absorbed: parameters whose scale the gradient does not follow, as before a norm.
        warnings: operators that the gradient was only assumed to pass.
    """

    scales: Mapping[str, float]
    forward: Mapping[str, float]
    absorbed: frozenset[str]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Scale:
    """A scale with a reason of its own.

    Attributes:
        value: of the parameter (its std; the value of a weight norm's gain); None leaves it to the forward pass.
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
    for name in balance.absorbed:
        reason = "a norm takes its scale out of the gradient again: as forward, its output has second moment ν"
        scales[name] = Scale(None, reason)
    return scales


def balanced(
    graph: Graph, weights_of: Callable[[Mapping[str, float]], PlannedWeights], run: RunPass, target: float
) -> Balance:
    """Return the scales at which every contraction sends a gradient of second moment ``target`` to its data.

    A backward pass chooses each scale as it comes to it, the last contraction first. What activations and norms do to
    the gradient depends on the signals, and so on all scales: passes are repeated until the scales settle. A scale that
    a norm takes out again does not change the gradient; such parameters are left to the forward choice. Most are known
    by the graph's structure, the others by a gradient that stays as it was from pass to pass.

    Args:
        graph: from `wellposed.trace`.
        weights_of: makes the weights of a forward pass with the scales given, and the others chosen.
        run: runs it.
        target: second moment of the gradients, in units of the cotangents' (1 at every output).

    Raises:
        PlanError: the scales do not settle within `MOST` passes.
    """
    scales: dict[str, float] = {}
    absorbed = _normalised(graph)
    before: dict[str, float] = {}
    stuck: dict[str, int] = {}
    forward: dict[str, float] = {}
    for _ in range(MOST):
        weights = weights_of(scales)
        passed = run(weights)
        chooser = _Chooser(weights, absorbed, target)
        gradients = gradients_of(passed, parameters=False, told=False, adjust=chooser)
        forward = forward or {name: decision.scale for name, decision in weights.decisions.items()}
        off = {name: math.log(ratio) for name, ratio in chooser.ratios.items()}
        if all(abs(distance) < SETTLED for distance in off.values()):
            return Balance(scales, forward, frozenset(absorbed), gradients.warnings)
        for name, distance in off.items():
            scales.setdefault(name, weights.decisions[name].scale)
            unmoved = name in before and abs(distance - before[name]) < UNMOVED * abs(distance)
            stuck[name] = stuck.get(name, 0) + 1 if unmoved and abs(distance) > SETTLED else 0
            if stuck[name] >= 2:
                absorbed.add(name)
                scales.pop(name, None)
            else:
                scales[name] *= math.exp(distance / 2)
        before = off
    name, distance = max(off.items(), key=lambda item: abs(item[1]))
    raise PlanError(
        f"{name}: its scale has not settled after {MOST} passes forward and back (the last changed its variance by a "
        f"factor of {math.exp(distance):.3g}), so there may be no scales that keep the gradients of {graph.model}; "
        "take direction='forward', or leave the parameter out with skip="
    )


def _normalised(graph: Graph) -> set[str]:
    """Return the weights whose scale a norm takes out whatever the other weights are."""
    weights = ([name for name in group if graph.parameters[name].tensor.ndim > 1] for group in scale_free(graph))
    return {names[0] for names in weights if len(names) == 1}


class _Chooser:
    """Brings what contractions send to their data to the target, in the course of a backward pass.

    Attributes:
        ratios: by parameter, the factor on its variance.
    """

    def __init__(self, weights: PlannedWeights, left: set[str], target: float) -> None:
        self.target = target
        self.ratios: dict[str, float] = {}
        self.left = left
        self.uses = {
            use.node: (use.parameter, use.data)
            for use in weights.uses
            if use.parameter in weights.decisions and use.kind not in ("embedding", "recurrent")
        }

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
