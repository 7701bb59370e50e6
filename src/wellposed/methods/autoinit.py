"""AutoInit: weight scales from the mean and variance of every signal.

Source: Bingham & Miikkulainen, *AutoInit: Analytic Signal-Preserving Weight Initialization for Neural Networks*
(arXiv 2109.08958), Algorithm 1: each weight gets the variance that brings the output of its contraction to (0, ν).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from wellposed.errors import OptionError, PlanError, joined
from wellposed.graphs import Graph, Node
from wellposed.methods.options import Draft, Request, check_distribution, method
from wellposed.methods.roles import constants, left_alone, op_of, weight_norm_length
from wellposed.methods.unscaled import Unscaled, beside, unscaled
from wellposed.operators.contraction import Contraction, contractions
from wellposed.options import check_choice, check_positive
from wellposed.plans import RANDOM, Centering, Constant, Drawn, Prescription, RandomDistribution, Role, keep
from wellposed.signals import Input, Signals, run_pass
from wellposed.signals.context.call import Pass
from wellposed.signals.passes.application import FAILED
from wellposed.signals.weights.planned import Decision, PlannedWeights
from wellposed.structure.reach import depending
from wellposed.structure.tables import tables

if TYPE_CHECKING:
    from wellposed.methods.directions import Scale
    from wellposed.methods.isometry import Visit

ROUNDS = 12
"""Most passes in which the scales of weights that are met more than once settle."""
STEADY = 0.005
"""Change of the logarithm of a scale from one pass to the next at which it has settled."""
_LEAST_OF_BOUND = 0.02
"""Root mean square of biases between ±1/√fan-in, as a share of it, from which PyTorch may have drawn them. Chosen."""
APART = 2.0
"""Ratio of the second moments of a weight's outputs at its uses from which on a plan warns. Chosen."""
UNSTEADY = 3.0
"""Predicted standard deviation of a second moment over weight draws, in octaves, from which a plan warns."""


@method("autoinit")
def autoinit(
    graph: Graph,
    request: Request,
    *,
    target_variance: float = 1.0,
    distribution: RandomDistribution = "truncated_normal",
    center: bool = False,
    inputs: Input | Tensor | Mapping[str, Input | Tensor] | None = None,
    state: Literal["full", "independent"] = "full",
    strict: bool = False,
    zeros: Literal["keep", "write"] = "keep",
    zero_signal: Literal["error", "fan_in"] = "fan_in",
    biases: Literal["zero", "own"] = "zero",
    direction: Literal["forward", "backward", "both"] = "forward",
    objective: Literal["variance", "isometry"] = "variance",
) -> Draft:
    """Give every contracted weight the variance that brings its output to mean 0 and variance ν (Algorithm 1).

    Options: ``target_variance`` ν; ``distribution`` (truncated_normal is cut at 2 σ with the std corrected);
    ``center`` (AutoInit++: each bias cancels the mean that its weight's row sums make of the incoming signal's mean);
    ``inputs`` as for `wellposed.propagate`; ``state`` ``"independent"`` for the paper's own assumptions; ``strict``
    raises for operators without a rule; ``zeros="write"`` also draws weights that the model initialises to zero, which
    are kept otherwise (gates, residual branches and readouts that start closed on purpose);
    ``zero_signal="fan_in"``: a weight that meets a signal of zeros first and another one later (the state of a loop)
    is given the variance that brings its last output to ν; one that meets nothing but zeros (behind a closed gate) is
    given ν / fan-in, with a warning; ``"error"`` raises `PlanError` for both. ``biases="own"`` draws the biases that
    the model makes at random with the standard deviation that it gives them, beside the variance ν of the weighted sum.

    ``direction="backward"`` chooses each variance such that the gradient with respect to the contraction's data has
    second moment ν, with independent cotangents of variance 1 at the outputs; ``"both"`` takes the harmonic mean of the
    forward and the backward variance, which for a linear layer is 2 / (fan_in + fan_out) (Glorot & Bengio 2010, eq.
    12). A weight whose scale a norm takes out of the gradient again is left to the forward pass. Both are
    *experimental*, as predicted gradients are off by more than half an octave on several nets.

    ``objective="isometry"`` asks for singular values of the input-output Jacobian near 1: orthogonal weights with gain²
    1 / E φ'², and signals small enough for the depth (Pennington, Schoenholz & Ganguli 2017); ``target_variance`` is
    the most that a first layer's output may have. Activations like ReLU do not allow it: then a warning says so.
    """
    return adjusted(
        graph, request, {}, {}, None, target_variance=target_variance, distribution=distribution, center=center,
        inputs=inputs, state=state, strict=strict, zeros=zeros, zero_signal=zero_signal, biases=biases,
        direction=direction, objective=objective,
    )  # fmt: skip


def adjusted(
    graph: Graph,
    request: Request,
    targets: Mapping[int, float],
    rows: Mapping[str, float],
    visit: Callable[[Pass, Node], None] | None,
    *,
    target_variance: float,
    distribution: RandomDistribution,
    center: bool,
    inputs: Input | Tensor | Mapping[str, Input | Tensor] | None,
    state: Literal["full", "independent"],
    strict: bool,
    zeros: Literal["keep", "write"],
    zero_signal: Literal["error", "fan_in"],
    biases: Literal["zero", "own"],
    direction: Literal["forward", "backward", "both"],
    objective: Literal["variance", "isometry"],
) -> Draft:
    """Return what `autoinit` drafts with its options, where some outputs have another target.

    Args:
        graph: from `wellposed.trace`.
        request: as for every method.
        targets: what ν is multiplied by, by the value that a contraction makes.
        rows: what ν is multiplied by for the rows of a table, by its name.
        visit: called before each node of the pass that chooses the scales (`run_pass`); it may change states.
        target_variance: ν, and this and all that follow as for `autoinit`.
        distribution: of the weights.
        center: whether biases cancel means.
        inputs: what enters the model.
        state: whether signals count as independent.
        strict: whether operators without a rule are refused.
        zeros: whether weights of zeros are kept.
        zero_signal: what a weight gets that meets zeros.
        biases: whether random biases keep their size.
        direction: of the signals that keep their variance.
        objective: what scales are to hold.
    """
    check_positive(target_variance=target_variance)
    check_distribution(distribution, RANDOM)
    check_choice("state", state, ("full", "independent"))
    check_choice("zeros", zeros, ("keep", "write"))
    check_choice("zero_signal", zero_signal, ("error", "fan_in"))
    check_choice("biases", biases, ("zero", "own"))
    _check_direction(direction, objective, state, distribution)
    random_biases = _random_biases(graph, request) if biases == "own" else {}

    def weights_of(scales: Mapping[str, float], target: float = target_variance) -> PlannedWeights:
        """Return weights that choose their scales in a pass, but those in ``scales``; ``target`` is ν."""
        return PlannedWeights(
            graph,
            target,
            center=center,
            write_zeros=zeros == "write",
            zero_signal=zero_signal,
            kept=tuple(request.kept),
            scales=scales,
            targets=targets,
            rows=rows,
            biases=random_biases,
        )

    def ran(weights: PlannedWeights, visit: Visit | None = visit, keep: bool = False) -> tuple[Signals, Pass]:
        return run_pass(
            graph, weights, inputs=inputs, state=state, strict=strict, visit=visit, keep=keep, moments=False
        )

    chosen: Mapping[str, Scale] = {}
    level, warnings = target_variance, tuple[str, ...]()
    if direction != "forward":  # the backward rules take time to load
        from wellposed.methods.directions import balanced, directed
        from wellposed.signals.passes.backward import require_adjoints

        if strict:
            require_adjoints(graph, graph.outputs)
        balance = balanced(graph, weights_of, lambda w: ran(w, keep=True)[1], target_variance)
        chosen, warnings = directed(balance, direction, target_variance), balance.warnings
    elif objective == "isometry":
        from wellposed.methods.isometry import isometric

        distribution = "orthogonal"
        gains = isometric(graph, lambda q: weights_of({}, q), lambda w, visit: ran(w, visit)[1], target_variance)
        chosen, level, warnings = gains.scales, gains.level, gains.warnings
    given = {name: scale.value for name, scale in chosen.items() if scale.value is not None}
    weights, signals, run = _settled(lambda settled: weights_of({**given, **settled}, level), ran, given)
    descriptors = [f"{graph.values[v].name or 'input'}: {run.inputs[v].describe()}" for v in graph.inputs]
    return Draft(
        _prescriptions(graph, weights, chosen, distribution),
        inputs="; ".join(descriptors),
        coverage=dict(Counter(signal.tag for signal in signals)),
        warnings=(
            *warnings, *_zeros_met(graph, weights), *_uses_apart(graph, weights, given), *_assumptions(graph, run),
            *_uncontrolled(graph, weights, signals),
        ),
    )  # fmt: skip


def _random_biases(graph: Graph, request: Request) -> dict[str, float]:
    """Return standard deviations for the biases that a model makes at random, by name.

    Biases between ±1/√fan-in, as PyTorch draws them, have that of this distribution, so that a plan does not follow the
    numbers that one model was constructed with. Others have their root mean square.
    """
    found: dict[str, float] = {}
    for use in contractions(graph):
        name = use.bias
        values = None if name is None else graph.parameters[name].values
        if name is None or values is None or name in request.kept or not values.numel() or values.is_complex():
            continue
        flat, bound = values.detach().double().flatten(), use.fan_in**-0.5
        size, largest = float(flat.square().mean().sqrt()), float(flat.abs().max())
        if largest <= bound * (1.0 + 1e-6) and size > _LEAST_OF_BOUND * bound:
            found.setdefault(name, bound / math.sqrt(3.0))
        elif math.isfinite(size) and bool((flat != flat[0]).any()):
            found.setdefault(name, size)
    return found


def _settled(
    weights_of: Callable[[Mapping[str, float]], PlannedWeights],
    ran: Callable[[PlannedWeights], tuple[Signals, Pass]],
    given: Collection[str],
) -> tuple[PlannedWeights, Signals, Pass]:
    """Return a pass in which weights that are met more than once have the scales that the mean of their uses asks for,
    or in loops that start at zero the last state; those in ``given`` keep theirs.
    """
    found, shares = dict[str, float](), dict[str, float]()
    for _ in range(ROUNDS):
        weights = weights_of(found)
        weights.shares = shares
        signals, run = ran(weights)
        asked = {name: scale / weights.decisions[name].scale for name, scale in weights.settling().items()}
        seen = {name: share for name, share in weights.shares_of_uses().items() if name not in given}
        moved = [share / shares.get(name, 1.0) for name, share in seen.items()]
        if all(abs(math.log(ratio)) < STEADY for ratio in (*asked.values(), *moved)):
            break
        # half of the way: a state answers its weight's scale, and whole steps would go to and fro
        found = {name: weights.decisions[name].scale * math.sqrt(ratio) for name, ratio in asked.items()}
        shares = {name: math.sqrt(share * shares.get(name, share)) for name, share in seen.items()}
    return weights, signals, run


def _zeros_met(graph: Graph, weights: PlannedWeights) -> tuple[str, ...]:
    """Return a warning that names the weights that meet nothing but zeros, or none."""
    names = list(filter(weights.waits, weights.unmet))
    if not names:
        return ()
    listed = joined((f"{name!r} at {op_of(graph.nodes[weights.unmet[name]])}" for name in names), separator="; ")
    return (
        f"weights that meet a signal of zeros, whose variance is ν / fan-in: {listed}. Zero constants or gates "
        "that start closed are before them; zero_signal='error' raises an error there",
    )


def _uses_apart(graph: Graph, weights: PlannedWeights, given: Collection[str]) -> tuple[str, ...]:
    """Return a warning that names the weights whose outputs differ between their uses by more than `APART`, or none."""
    told = []
    for name, uses in weights.uses_met.items():
        low, high = (end(uses.values(), key=attrgetter("after")) for end in (min, max))
        if name not in given and high.after > APART * low.after:
            at = (f"{use.after:.3g} at {graph.nodes[use.node].name}" for use in (low, high))
            told.append(f"{name!r} at {len(uses)} uses, with E[x²] of its output from {' to '.join(at)}")
    if not told:
        return ()
    return (
        f"weights that meet signals of different size at their uses, and have the scale that the mean of these asks "
        f"for: {joined(told, separator='; ')}. A weight for each use, a norm before it, or a state that starts at the "
        "size of later ones would bring all of them to the target",
    )


def _check_direction(direction: str, objective: str, state: str, distribution: str) -> None:
    """Raise `OptionError` for unknown directions and objectives, and for what does not go together with them."""
    check_choice("direction", direction, ("forward", "backward", "both"))
    check_choice("objective", objective, ("variance", "isometry"))
    if (direction != "forward" or objective != "variance") and state != "full":
        raise OptionError(f"state={state!r} says nothing of gradients: it goes with the forward direction alone")
    if objective == "isometry" and (direction != "forward" or distribution not in ("truncated_normal", "orthogonal")):
        raise OptionError(
            "objective='isometry' draws orthogonal weights that keep signal and gradient alike: leave direction and "
            f"distribution out, received {direction!r} and {distribution!r}"
        )


def _prescriptions(
    graph: Graph, weights: PlannedWeights, chosen: Mapping[str, Scale], distribution: RandomDistribution
) -> dict[str, Prescription]:
    """Return what the pass has chosen, the constants, and the reason for every other parameter."""
    prescriptions = _fixed(graph, weights, weights.uses)
    uses_of: dict[str | None, list[Contraction]] = defaultdict(list)
    with_bias: dict[str | None, Contraction] = {}
    for use in weights.uses:
        uses_of[use.parameter].append(use)
        if use.parameter in weights.decisions:
            with_bias.setdefault(use.bias, use)
    for name, decision in weights.decisions.items():
        if name not in chosen:
            decision = weights.over_uses(name)
        own = uses_of[name]
        at_node = [use for use in own or weights.uses if use.node == decision.node]
        decisive = next(iter(at_node or own), None)
        prescriptions[name] = _weight(graph, weights, name, decision, decisive, distribution, chosen.get(name))
    for bias, mean in weights.centred.items():
        target = with_bias.get(bias)
        if target is not None and target.parameter is not None:
            prescriptions[bias] = _centring(graph, bias, target.parameter, target.node, mean)
    left = [name for name in graph.parameters if name in weights.zero_kept or name not in prescriptions]
    return prescriptions | _left(graph, weights, left, uses_of)


def _left(
    graph: Graph, weights: PlannedWeights, names: Sequence[str], uses_of: Mapping[str | None, Sequence[Contraction]]
) -> dict[str, Prescription]:
    """Return the prescriptions of the parameters that the pass has chosen nothing for."""
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
        return keep(name, shape, "initialised to zero by the model, and kept (zeros='write' draws it)", "weight")
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
            signal_before=decision.before,
            signal_after=decision.after,
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
        signal_before=decision.before,
        signal_after=decision.after,
        reason=reason,
    )


def _reason(graph: Graph, weights: PlannedWeights, decision: Decision, use: Contraction, chosen: Scale | None) -> str:
    """Return what the scale of a weight rests on; ``use`` decided it, or ``chosen`` gives it."""
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
        if name in weights.uses_met:
            reason += f": means over its {len(weights.uses_met[name])} uses"
    if weights.waits(name):
        reason = f"variance ν / fan-in = {target:.4g} / {use.fan_in}: the signal that meets it is 0"
    elif name in weights.unmet:
        reason += f": what it meets last; at {op_of(graph.nodes[weights.unmet[name]])} it meets zeros"
    if name in weights.composite.words:
        reason += f": {weights.composite.words[name]}"
    if any(u.kind == "embedding" for u in weights.contractions.get(name, ())) and use.kind != "embedding":
        reason += "; also used as an embedding: its use as a weight decides its scale"
    return reason


def _of_table(graph: Graph, weights: PlannedWeights, name: str) -> str:
    """Return what the scale of an embedding rests on."""
    factor, leader = tables(graph).factors[name], weights.leader_of(name)
    times = "" if factor == 1.0 else f" times {factor:.4g}, which the model multiplies them by"
    if leader is None:
        level = weights.target * weights.rows.get(name, 1.0)
        undone = (
            ", whose size norms undo: small ones learn faster" if name in weights.rows else ", which are its output"
        )
        return f"embedding: variance ν = {level:.4g} for its rows{times}{undone}"
    return f"embedding: its rows{times} have the variance of those of {leader!r}, which they are added to"


def _without_choice(graph: Graph, uses: Sequence[Contraction]) -> str:
    """Return why a weight that scales its contractions linearly was given no scale by any of them."""
    where = ", ".join(op_of(graph.nodes[use.node]) for use in uses[:3])
    return f"no rule gives it a scale at {where}, which is run on samples"


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


def _assumptions(graph: Graph, run: Pass) -> Iterator[str]:
    """Yield warnings of what the pass took for granted: operators without a rule, values of parameters on meta."""
    for tag, words in (("assumed", "assumed to leave the signal unchanged"), ("sampled", "run on samples")):
        without = [o for o in run.outcomes if o.tag == tag and o.note and not o.note.startswith(FAILED)]
        ops = Counter(graph.nodes[o.node].op_name for o in without)
        if ops:
            listed = ", ".join(f"{op} ({count})" for op, count in ops.most_common(8))
            yield f"operators without a rule, {words}: {listed}"
    failed = [f"{op_of(graph.nodes[o.node])}: {o.note}" for o in run.outcomes if o.note.startswith(FAILED)]
    if failed:
        yield f"a rule of wellposed failed, which should not be; please report it: {joined(failed, separator='; ')}"
    if run.weights.assumed:
        taken = (f"{name!r} ({value})" for name, value in run.weights.assumed.items())
        yield (
            f"on the meta device, and made again by no method of the model, so that values are assumed: {joined(taken)}"
        )


def _uncontrolled(graph: Graph, weights: PlannedWeights, signals: Signals) -> Iterator[str]:
    """Yield warnings of signals that no scale controls: without an expectation, or unsteady between weight draws."""
    heavy = [signal.name for signal in signals if signal.tag == "heavy"]
    if heavy:
        yield (
            f"no expectation means anything at {len(heavy)} of {len(signals)} signals, first at {heavy[0]}: the second "
            "moment is infinite, or rests on elements that hardly a batch has; a norm or a bounded function ends that"
        )
    drawn = {graph.values[value].name for value in depending(graph, weights.decisions.keys() & graph.parameters.keys())}
    unsteady = [s for s in signals if s.log2_std > UNSTEADY and s.tag != "heavy" and s.name in drawn]
    if unsteady:
        yield (
            f"{len(unsteady)} of {len(signals)} signals vary by more than {UNSTEADY:g} octaves between weight "
            f"draws, first at {unsteady[0].name}: no initial scale controls the variance there; normalisation or "
            "scaled residual branches do"
        )
