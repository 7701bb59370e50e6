"""Prescriptions of what a pass has chosen, of constants, and of what is left alone, each with its reason."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from wellposed.errors import PlanError
from wellposed.graphs import Graph
from wellposed.methods.roles import constants, left_alone, op_of, weight_norm_length
from wellposed.methods.unscaled import Unscaled, beside, unscaled
from wellposed.operators.contraction import Contraction
from wellposed.plans import Centering, Constant, Drawn, Prescription, RandomDistribution, Role, keep
from wellposed.signals.weights.decisions import Decision
from wellposed.signals.weights.planned import PlannedWeights
from wellposed.structure.starts import scored_tables
from wellposed.structure.tables import tables

if TYPE_CHECKING:
    from wellposed.methods.directions import Scale

FEWEST = 8
"""Terms of an output from which on a weight can do without their mean. Chosen: one direction of few is much."""
_BY_ELEMENT = ("normal", "truncated_normal", "uniform")
ZEROS = "initialised to zero by the model, and kept"
"""How the reason begins why a weight of zeros is kept."""


def prescriptions_of(
    graph: Graph,
    weights: PlannedWeights,
    chosen: Mapping[str, Scale],
    distribution: RandomDistribution,
    sums_of_zero: bool,
) -> dict[str, Prescription]:
    """Return the prescriptions of the weights that a pass chose, of constants, and of kept parameters with the reason.

    Args:
        graph: from `wellposed.trace`.
        weights: those of the pass.
        chosen: the scales that were given to it, with their reasons, by parameter name.
        distribution: of the weights.
        sums_of_zero: whether weights whose bias cancels a mean are drawn with sums of 0 as well.
    """
    prescriptions = _fixed(graph, weights, weights.uses)
    uses_of: dict[str | None, list[Contraction]] = defaultdict(list)
    with_bias: dict[str | None, Contraction] = {}
    for use in weights.uses:
        uses_of[use.parameter].append(use)
        if use.parameter in weights.decisions:
            with_bias.setdefault(use.bias, use)
    for name, decision in weights.decisions.items():
        if name not in chosen:
            decision = weights.again.mean(name)
        own = uses_of[name] or [use for use in weights.uses if name in weights.composite.parameters_of(use.weight)]
        at_node = [use for use in own or weights.uses if use.node == decision.node]
        decisive = next(iter(at_node or own), None)
        prescriptions[name] = _weight(graph, weights, name, decision, decisive, distribution, chosen.get(name))
    _centre(graph, weights, with_bias, prescriptions, sums_of_zero)
    left = [name for name in graph.parameters if name in weights.zero_kept or name not in prescriptions]
    return prescriptions | _left(graph, weights, left, uses_of)


def _centre(
    graph: Graph,
    weights: PlannedWeights,
    with_bias: Mapping[str | None, Contraction],
    prescriptions: dict[str, Prescription],
    sums_of_zero: bool,
) -> None:
    """Add to ``prescriptions`` the biases that cancel means, and give their weights sums of 0 with ``sums_of_zero``."""
    for bias, mean in weights.centred.items():
        target = with_bias.get(bias)
        if target is not None and target.parameter is not None:
            prescriptions[bias] = _centring(graph, bias, target.parameter, target.node, mean)
            if sums_of_zero:
                prescriptions[target.parameter] = _centred(prescriptions[target.parameter])


def _left(
    graph: Graph, weights: PlannedWeights, names: Sequence[str], uses_of: Mapping[str | None, Sequence[Contraction]]
) -> dict[str, Prescription]:
    """Return the prescriptions of the parameters ``names``, for which the pass has chosen nothing."""
    if not names:
        return {}
    why, counted = unscaled(graph), beside(graph, weights.fixed, weights.uses, weights.decisions)
    return {name: _kept(graph, weights, name, uses_of.get(name, ()), why, counted.get(name)) for name in names}


def _kept(
    graph: Graph,
    weights: PlannedWeights,
    name: str,
    uses: Sequence[Contraction],
    why: Mapping[str, Unscaled],
    counted: str | None,
) -> Prescription:
    """Return the prescription of a parameter that is left as it is, with the reason (``counted``: see `beside`)."""
    shape, role = graph.parameters[name].shape, weights.roles[name]
    if name in weights.zero_kept:
        return keep(name, shape, f"{ZEROS} (zeros='write' draws it)", "weight")
    if role == "recurrent":
        return keep(name, shape, "recurrent weights keep their default scheme (Appendix A)", role)
    if name in weights.composite.leaves:
        return keep(name, shape, "what it is multiplied with is 0, so that no scale of it shows", "weight")
    if role == "weight":
        return keep(name, shape, _without_choice(graph, uses), "weight")
    if role == "other" and counted is not None:
        return keep(name, shape, counted, role)
    return left_alone(graph, name, "autoinit", why)


def _fixed(graph: Graph, weights: PlannedWeights, uses: tuple[Contraction, ...]) -> dict[str, Prescription]:
    """Return the constants: biases and shifts 0, gains 1 or what the model sets them to; kept ones in their places."""
    prescriptions = constants(graph, uses)
    for name, one in list(prescriptions.items()):
        if name in weights.decisions or weights.roles[name] == "weight_norm":
            del prescriptions[name]
        elif name in weights.kept:
            prescriptions[name] = keep(name, one.shape, "left alone", one.role)
        elif name in weights.biases:
            prescriptions[name] = Drawn(
                name=name, shape=one.shape, distribution="uniform", std=weights.biases[name], role="bias",
                op=one.op, reason="bias: drawn with the standard deviation that the model gives it",
            )  # fmt: skip
    return prescriptions


def _weight(
    graph: Graph,
    weights: PlannedWeights,
    name: str,
    decision: Decision,
    use: Contraction | None,
    distribution: RandomDistribution,
    chosen: Scale | None,
) -> Prescription:
    """Return the prescription of a weight, or of the length that a weight norm gives it; ``use`` decided its scale."""
    if use is None:
        raise PlanError(f"{name!r} was given a scale at {graph.nodes[decision.node].name}, which does not contract it")
    shape = graph.parameters[name].shape
    kind, reason = distribution, _reason(graph, weights, decision, use, chosen)
    if use.kind == "embedding" and kind != "uniform":
        kind = "normal"  # rows are used as they are: nothing sums them, so a cut would stay visible in the signal
    role: Role = use.kind if use.kind in ("embedding", "recurrent") else "weight"
    before, after = (None, None) if name in weights.doubts else (decision.before, decision.after)
    length = weight_norm_length(graph, name)
    if length is not None:
        return Constant(
            name=name,
            shape=shape,
            constant=decision.scale,
            role="scale",
            op=op_of(graph.nodes[decision.node]),
            fan_in=use.fan_in,
            fan_out=use.fan_out,
            signal_before=before,
            signal_after=after,
            reason=f"weight norm's length √({length} Var(w)): {reason}",
        )
    return Drawn(
        name=name,
        shape=shape,
        distribution=kind,
        std=decision.scale,
        output_axis=use.output_axis if use.output_axis < len(shape) else None,
        groups=use.groups,
        role=role,
        op=op_of(graph.nodes[decision.node]),
        fan_in=use.fan_in,
        fan_out=use.fan_out,
        signal_before=before,
        signal_after=after,
        reason=reason,
    )


def _reason(graph: Graph, weights: PlannedWeights, decision: Decision, use: Contraction, chosen: Scale | None) -> str:
    """Return in words what decided the scale of a weight: its contraction ``use``, or the given scale ``chosen``."""
    name, target = decision.parameter, weights.aim(graph.nodes[decision.node])
    if use.kind == "embedding":
        reason = _of_table(graph, weights, name)
    elif chosen is not None and chosen.reason:
        reason = chosen.reason
    else:
        reason = (
            f"variance ν / Σ E[x²] = {target:.4g} / {decision.incoming:.4g} "
            f"(AutoInit, Algorithm 1; mean E[x²] = {decision.before:.4g}, fan-in {use.fan_in})"
        )
        if name in weights.again.met:
            reason += f": means over its {len(weights.again.met[name])} uses"
    if name in weights.doubts:
        reason = f"variance ν / fan-in = {target:.4g} / {use.fan_in}: {words_on_doubt(graph, weights, name)}"
    elif weights.waits(name):
        reason = f"variance ν / fan-in = {target:.4g} / {use.fan_in}: the signal that meets it is 0"
    elif name in weights.unmet:
        reason += f": what it meets last; at {op_of(graph.nodes[weights.unmet[name]])} it meets zeros"
    if name in weights.composite.words:
        reason += f": {weights.composite.words[name]}"
    if any(u.kind == "embedding" for u in weights.contractions.get(name, ())) and use.kind != "embedding":
        reason += "; also used as an embedding: its use as a weight decides its scale"
    return reason


def words_on_doubt(graph: Graph, weights: PlannedWeights, name: str) -> str:
    """Return in words which signal was not trusted with the scale of a weight, and why."""
    doubt = weights.doubts[name]
    data = next((graph.values[use.data].name for use in weights.uses if use.node == doubt.node), "the signal")
    return f"what it meets at {op_of(graph.nodes[doubt.node])}, {data!r}, {doubt.words}"


def _of_table(graph: Graph, weights: PlannedWeights, name: str) -> str:
    """Return in words what decided the scale of an embedding."""
    factor, leader = tables(graph).factors[name], weights.leader_of(name)
    times = "" if factor == 1.0 else f" times {factor:.4g}, which the model multiplies them by"
    if leader is None:
        level = weights.target * weights.rows.get(name, 1.0)
        undone = _why_small(graph, name) if name in weights.rows else ", which are its output"
        return f"embedding: variance ν = {level:.4g} for its rows{times}{undone}"
    return f"embedding: its rows{times} have the variance of those of {leader!r}, which they are added to"


def _why_small(graph: Graph, name: str) -> str:
    scores = name in scored_tables(graph)
    return ", which are scores" if scores else ", whose size norms undo: small ones learn faster"


def _without_choice(graph: Graph, uses: Sequence[Contraction]) -> str:
    """Return why a weight that scales its contractions linearly was given no scale by any of them."""
    where = ", ".join(op_of(graph.nodes[use.node]) for use in uses[:3])
    return f"no rule gives it a scale at {where}, which is run on samples"


def _centred(weight: Prescription) -> Prescription:
    """Return the prescription of a weight whose bias cancels a mean, with sums of 0 over the inputs of each output.

    The bias cancels the predicted mean. The mean of one draw differs from it, which would enter all outputs, and grow
    from layer to layer in deep networks. A weight with sums of 0 passes on no mean at all.
    """
    axis = weight.output_axis
    if not isinstance(weight, Drawn) or axis is None or weight.mean or weight.rows is not None:
        return weight
    outputs = weight.shape[axis] * (1 if axis == 0 else weight.groups)
    if weight.distribution not in _BY_ELEMENT or math.prod(weight.shape) < FEWEST * outputs:
        return weight
    return weight.changed(centred=True, reason=f"{weight.reason}; sums of 0 pass on no mean")


def _centring(graph: Graph, bias: str, weight: str, node: int, mean: float) -> Centering:
    """Return the prescription of a bias that cancels the mean of what its weight sums."""
    return Centering(
        name=bias,
        shape=graph.parameters[bias].shape,
        weight=weight,
        value=mean,
        role="bias",
        op=op_of(graph.nodes[node]),
        reason=f"AutoInit++: minus the incoming mean {mean:.4g} times the weight's row sums, for an output of mean 0",
    )
