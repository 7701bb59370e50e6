"""Topology: weight variances from the in-degrees of a graph's vertices.

Source: Chen, Wu, Wang & Hanin, *Principled Architecture-aware Scaling of Hyperparameters* (arXiv 2402.17440), eq. 4 and
eq. 17: Var W = C/fan-in with C = 2/d for ReLU, d being the in-degree of the vertex that a weight leads to (eq. 17) or
comes from (eq. 4). For other activations 1/E[f(z)²] takes the place of 2, z ~ N(0, 1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from torch import Tensor

from wellposed.graphs import Graph, Node
from wellposed.methods.balance import Balancer
from wellposed.methods.options import Draft, Request, find_method, method
from wellposed.methods.roles import weight_norm_length, zero
from wellposed.operators.contraction import Contraction
from wellposed.options import check_choice, check_share
from wellposed.plans import Prescription, keep
from wellposed.signals import Input, Signals, propagate, run_pass
from wellposed.signals.algebra.affine import linear
from wellposed.signals.context.call import Call, Pass
from wellposed.signals.distributions.state import State
from wellposed.signals.weights.decisions import Decision
from wellposed.signals.weights.planned import PlannedWeights
from wellposed.structure.branches import branches
from wellposed.structure.vertices import Branch, Vertices, vertices

GROWN = 2.0
"""Octaves by which a vertex may grow beyond second moment 1 before the plan warns of it."""

_PAPER = "arXiv 2402.17440"

Random = Literal["normal", "truncated_normal", "uniform", "orthogonal"]


@method("topology")
def topology(
    graph: Graph,
    request: Request,
    *,
    degree: Literal["target", "source"] = "target",
    readout: Literal["mean_field", "unit", "zero", "keep"] = "mean_field",
    merge: Literal["degree", "preserve"] = "degree",
    room: float = 0.5,
    distribution: Random = "normal",
    inputs: Input | Tensor | Mapping[str, Input | Tensor] | None = None,
    strict: bool = False,
    zeros: Literal["keep", "write"] = "keep",
) -> Draft:
    """Give weights the variance C/fan-in that the in-degree of their vertex asks for (arXiv 2402.17440).

    Vertices are the points where branches merge; identity branches count in the in-degree d, dead ones and those times
    a constant 0 do not. C = 1/(d E[f²]) for the activation f that feeds the weight, which is 2/d for ReLU. Where the
    vertices sum signals after their activations, whose means add up, C = 1/(d s + d(d-1) m²) with the activation's mean
    m and second moment s (2/(d + d(d-1)/π) for ReLU); that is exact for activations with f(a z) = a f(z), a > 0.
    Everything that is no weight is treated as by ``autoinit``.

    Options: ``degree`` ``"target"`` (eq. 17: E|z|² is the same at every vertex of a graph without identity branches) or
    ``"source"`` (eq. 4 and the authors' code: it grows with the in-degree); ``readout``, for contractions that no other
    one follows, ``"mean_field"`` (variance 1/fan-in²), ``"unit"`` (as all others), ``"zero"`` or ``"keep"``; ``merge``
    ``"preserve"`` for exact second moments by the forward signals, where weighted branches get what identity branches
    leave: 1 at every vertex from which no identity branch leads on, and at the end of every stream of B residual
    branches, which start at 1 - ``room`` and make the share ``room``/B each (see `wellposed.methods.balance`); where
    what cannot be scaled leaves less than that (the model's input), the vertex grows by it. ``distribution``,
    ``inputs``, ``strict`` and ``zeros`` as for ``autoinit``.

    Raises:
        OptionError: a value outside an option's range.
    """
    check_choice("degree", degree, ("target", "source"))
    check_choice("readout", readout, ("mean_field", "unit", "zero", "keep"))
    check_choice("merge", merge, ("degree", "preserve"))
    check_share(room=room)
    shared: dict[str, Any] = {"inputs": inputs, "strict": strict}
    base = find_method("autoinit")(
        graph, request, distribution=distribution, zeros=zeros, zero_signal="fan_in", **shared
    )
    where = vertices(branches(graph))
    weights = _Weights(graph, write_zeros=zeros == "write", zero_signal="fan_in", kept=tuple(request.kept))
    prescriptions = dict(base.prescriptions)
    warnings = list(base.warnings)
    if merge == "degree":
        nominal = _Nominal(where)
        run_pass(graph, weights, visit=nominal, moments=False, **shared)
        for use, decision in weights.chosen():
            constant, reason = _constant(graph, where, nominal, use, decision, degree)
            scale = math.sqrt(constant / (use.fan_in * weights.units[decision.parameter]))
            prescriptions[decision.parameter] = _scaled(graph, prescriptions[decision.parameter], scale, reason)
    else:
        balancer = Balancer(graph, where, room, weights.can_scale, weights.rescale)
        weights.targets = {value: share.own for value, share in balancer.shares.items()}
        run_pass(graph, weights, visit=balancer, moments=False, **shared)
        for use, decision in weights.chosen():
            reason = _share(graph, where, balancer, use, decision)
            prescriptions[decision.parameter] = _scaled(
                graph, prescriptions[decision.parameter], decision.scale, reason
            )
    for use, decision in weights.chosen():
        if use.node in where.readouts and readout != "unit":
            prescriptions[decision.parameter] = _readout(
                graph, prescriptions[decision.parameter], use, readout, weights
            )
    if readout != "unit":
        warnings += _tied_readouts(where, weights)
    signals = propagate(graph, weights=prescriptions, inputs=inputs)
    for use, decision in weights.chosen():
        prescriptions[decision.parameter] = _with_signals(
            graph, prescriptions[decision.parameter], use, decision, signals
        )
    warnings += _growth(graph, where, signals, merge)
    return Draft(prescriptions, base.inputs, base.coverage, tuple(warnings))


class _Weights(PlannedWeights):
    """Unit scales chosen during the pass, or those that ``targets`` asks for, by the value that a contraction makes."""

    def __init__(self, graph: Graph, **options: Any) -> None:
        super().__init__(graph, **options)
        self.units: dict[str, float] = {}
        self.by_node = {use.node: use for use in self.uses if use.parameter is not None}

    def choose(self, name: str, node: Node, incoming: float, before: float, unit: float) -> float:
        """Choose the scale that brings the output to its target; a tensor's first use decides."""
        if name not in self.decisions:
            super().choose(name, node, incoming, before, unit)
            self.decisions[name] = replace(self.decisions[name], after=self.aim(node))
            self.units[name] = unit
        return self.decisions[name].scale

    def chosen(self) -> list[tuple[Contraction, Decision]]:
        """Return the contractions that decided for their parameter, with what they decided."""
        return [
            (self.by_node[decision.node], decision) for name, decision in self.decisions.items() if name in self.units
        ]

    def can_scale(self, branch: Branch, node: int) -> bool:
        """Whether the scale of a branch is still its own at ``node``: nothing before has used its weights elsewhere."""
        for index in branch.weights:
            use = self.by_node.get(index)
            if use is None or use.parameter not in self.units or self.decisions[use.parameter].node != index:
                return False
            others = [other.node for other in self.contractions[use.parameter] if other.node not in branch.weights]
            if any(other < node for other in others):
                return False
        return True

    def rescale(self, branch: Branch, factor: float) -> None:
        """Multiply the weights of a branch."""
        for name in {self.by_node[index].parameter for index in branch.weights}:
            assert name is not None
            before = self.decisions[name]
            self.decisions[name] = replace(before, scale=before.scale * factor, after=before.after * factor * factor)


class _Nominal:
    """A visitor that sets vertices to second moment 1 in a pass, and records the moments of activations before them.

    The in-degree rule sees a graph so: whatever enters a vertex, it counts as N(0, 1) for what comes after.
    """

    def __init__(self, where: Vertices) -> None:
        self.vertices = where.vertices
        self.moments: dict[int, tuple[float, float]] = {}
        self._wanted = {branch.activation for _, branch in where.targets.values()}
        self._reset: set[int] = set()

    def __call__(self, run: Pass, node: Node) -> None:
        """Note moments of wanted values that enter a node, and set vertices to unit scale before it reads them."""
        for value in node.inputs:
            state = run.state(value)
            if state is None:
                continue
            if value in self._wanted and value not in self.moments:
                self.moments[value] = (state.pooled_mean, state.second_moment)
            if value in self.vertices and value not in self._reset:
                self._reset.add(value)
                run.states[value] = self._unit(run, node, value, state)

    def moments_of(self, branch: Branch) -> tuple[float, float]:
        """Return mean and second moment of what a branch adds when its contraction makes N(0, 1)."""
        return (0.0, 1.0) if branch.activation is None else self.moments[branch.activation]

    def _unit(self, run: Pass, node: Node, value: int, state: State) -> State:
        """Return a vertex's state at second moment 1: an activation rescaled, any other one N(0, 1) and independent."""
        if self.vertices[value].activated:
            size = state.second_moment
            return linear(Call(run, node), state, 1.0 / math.sqrt(size)) if size > 0 else state
        one = (1,) * len(state.lengths)
        return state.as_new(state.roots).changed(mean=np.zeros(one), var=np.ones(one), gauss=True)


def _constant(
    graph: Graph, where: Vertices, nominal: _Nominal, use: Contraction, decision: Decision, degree: str
) -> tuple[float, str]:
    """Return C of one weight, and the reason."""
    fed = decision.before if decision.before > 0 else 1.0
    vertex, branch = where.targets.get(use.node, (None, None))
    mean, second = nominal.moments_of(branch) if branch is not None else (0.0, 1.0)
    after = f", s = {second:.4g} after its own activation" if second != 1.0 else ""
    if degree == "source":
        d = where.sources[use.node]
        divisor = d * second
        formula = f"1/(d{' s' if after else ''} E[f²]), d = {d} at the vertex that it comes from{after}; eq. 4"
    elif vertex is None:
        divisor, formula = 1.0, "1/(d E[f²]), d = 1; eq. 17"
    else:
        d = vertex.degree
        divisor = _together([nominal.moments_of(b) for b in vertex.weighted], d)
        name = graph.values[vertex.value].name
        if after:
            formula = f"1/((d s + d(d-1) m²) E[f²]), d = {d} at {name}{after}, m = {mean:.4g}; eq. 17 with means"
        else:
            formula = f"1/(d E[f²]), d = {d} at {name}; eq. 17"
    if branch is not None and branch.normalised:
        formula += "; a normalisation follows, which undoes the scale in the forward pass"
    constant = 1.0 / (divisor * fed)
    return constant, (
        f"variance C/fan-in = {constant:.4g}/{use.fan_in}: C = {formula} ({_PAPER}); E[f²] = {fed:.4g} of its input"
    )


def _together(weighted: list[tuple[float, float]], degree: int) -> float:
    """Return E (Σ x_k)² of independent branches of these means and second moments; identities count as their average.

    For d branches alike it is d s + d(d-1) m².
    """
    average = tuple(sum(column) / len(weighted) for column in zip(*weighted, strict=True))
    means, seconds = zip(*weighted, *[average] * (degree - len(weighted)), strict=True)
    return float(sum(seconds) + sum(means) ** 2 - sum(m * m for m in means))


def _share(graph: Graph, where: Vertices, balancer: Balancer, use: Contraction, decision: Decision) -> str:
    """Return the reason of a scale that was chosen to preserve second moments."""
    vertex, branch = where.targets.get(use.node, (None, None))
    exact = f"variance {decision.after:.4g}/Σ E[x²], mean E[x²] = {decision.before:.4g}"
    if vertex is None or branch is None:
        to = "" if decision.after == 1.0 else ", where a stream of residual branches begins that ends at 1"
        return f"{exact}: its output has that second moment{to}"
    balance, name = balancer.balances[vertex.value], graph.values[vertex.value].name
    if branch.normalised:
        return f"{exact}; a normalisation follows before the branches merge at {name}, which undoes the scale"
    if balance.factor is None:
        return f"{exact}; no scale brings the sum at {name} to {balance.target:.4g}"
    if not balance.identity:
        count = "one weighted branch adds" if vertex.degree == 1 else f"{vertex.degree} weighted branches add"
        return f"{exact}: {count} second moment {balance.target:.4g} to {name}"
    grown = f"; too little room is left, so that {name} grows" if balance.target > 1.0 + 1e-9 else ""
    return (
        f"{exact}: at {name} identity branches add {balance.identity:.4g} of {balance.target:.4g}, weighted ones the "
        f"rest{grown}"
    )


def _scaled(graph: Graph, before: Prescription, scale: float, reason: str) -> Prescription:
    """Return a prescription with another scale: its std, or the length where a weight norm gives that."""
    length = weight_norm_length(graph, before.name)
    if length is not None:
        reason = f"weight norm's length √({length} Var(w)): {reason}"
        return before.changed(constant=scale, reason=reason)
    return before.changed(std=scale, reason=reason)


def _readout(
    graph: Graph, before: Prescription, use: Contraction, kind: Literal["mean_field", "zero", "keep"], weights: _Weights
) -> Prescription:
    """Return the prescription of a readout: kept, drawn with std 1/fan-in, or zero."""
    if kind == "keep":
        return keep(before.name, before.shape, "readout: kept as the model makes it (readout='keep')", before.role)
    if kind == "mean_field":
        scale = 1.0 / (use.fan_in * math.sqrt(weights.units[before.name]))
        reason = f"readout: variance 1/fan-in² = 1/{use.fan_in}² (mean field; {_PAPER}, section 3)"
        return _scaled(graph, before, scale, reason)
    return zero(before, "readout: 0 (readout='zero')")


def _tied_readouts(where: Vertices, weights: _Weights) -> list[str]:
    """Return a warning for every readout that is looked up as an embedding too, and keeps the scale of 1/fan-in."""
    looked_up = {use.parameter for use in weights.uses if use.kind == "embedding"}
    return [
        f"{name!r} is an embedding and a readout: it has variance 1/fan-in, whatever readout says, so that what is "
        "looked up does not vanish; untie them for a readout of its own"
        for name in dict.fromkeys(use.parameter for use in weights.uses if use.node in where.readouts)
        if name in looked_up
    ]


def _with_signals(
    graph: Graph, before: Prescription, use: Contraction, decision: Decision, signals: Signals
) -> Prescription:
    """Put the predicted second moments before and after a weight on record."""
    seen = {"signal_before": decision.before, "signal_after": None}
    for side, value in (("signal_before", use.data), ("signal_after", graph.nodes[use.node].outputs[0])):
        if graph.values[value].kind == "intermediate":
            seen[side] = signals[graph.values[value].name].second_moment
    return before.changed(**{side: value for side, value in seen.items() if value is None or math.isfinite(value)})


def _growth(graph: Graph, where: Vertices, signals: Signals, merge: str) -> list[str]:
    """Return a warning when vertices grow beyond second moment 1."""
    sizes = {graph.values[value].name: 0.0 for value in where.vertices}
    sizes = {name: signals[name].second_moment for name in sizes}
    grown = [name for name, size in sizes.items() if size > 2.0**GROWN]
    if not grown:
        return []
    worst = max(grown, key=sizes.__getitem__)
    hint = "; merge='preserve' makes room for them" if merge == "degree" else ""
    return [
        f"{len(grown)} of {len(sizes)} vertices grow beyond second moment {2.0**GROWN:g}, {worst} to "
        f"{sizes[worst]:.3g}: weights cannot scale identity branches{hint}"
    ]
