"""Steady: AutoInit's scales where signals meet functions, residual streams that are held, and small readouts.

AutoInit gives every contraction an output of variance ν. What trains better departs from that in places that the graph
shows: constants before functions, readouts, tables before norms, recurrent layers, and the ends of residual branches.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from torch import Tensor

from wellposed.graphs import Graph, Node
from wellposed.methods.carrying import number_in
from wellposed.methods.drafting import Adjustments, Settings, drafted
from wellposed.methods.options import Draft, Request, method
from wellposed.methods.roles import zero
from wellposed.methods.schemes import scheme_of
from wellposed.operators.contraction import Contraction, contractions
from wellposed.options import check_choice, check_positive
from wellposed.plans import Constant, Drawn, Prescription, RandomDistribution, Rescaled
from wellposed.signals import Input
from wellposed.signals.algebra.affine import linear
from wellposed.signals.context.call import Call, Pass
from wellposed.signals.weights.planned import PlannedWeights
from wellposed.structure.carriers import offset_of
from wellposed.structure.residual_branches import ResidualBranch
from wellposed.structure.scale_free import scale_free
from wellposed.structure.starts import (
    argument_factors,
    channel_gates,
    ends_in_function,
    frequencies,
    is_transformed,
    normalises_batches,
    readouts,
    recurrent_weights,
)
from wellposed.structure.streams import residual_streams

Branches = Literal["auto", "zero", "depth", "full"]
FEW, OF_FEW, OF_MANY = 8, 0.1, 0.3
"""From how many outputs on a readout has many; and the variances of few and of many, as shares of ν. Chosen on
trainings: values and fields of few numbers learn better from small readouts, many scores from larger."""
GATES = 0.1
"""Variance of the arguments of gates that multiply whole channels, as a share of ν. Chosen on trainings."""
CLOSED = 0.01
"""Second moment, as a share of ν, below which the model itself holds a branch closed."""


@method("steady")
def steady(
    graph: Graph,
    request: Request,
    *,
    target_variance: float = 1.0,
    readout: float | None = None,
    table: float = 0.01,
    branches: Branches = "auto",
    biases: Literal["zero", "own"] = "own",
    distribution: RandomDistribution = "truncated_normal",
    center: bool = False,
    inputs: Input | Tensor | Mapping[str, Input | Tensor] | None = None,
    state: Literal["full", "independent"] = "full",
    strict: bool = False,
    zeros: Literal["keep", "write"] = "keep",
    zero_signal: Literal["error", "fan_in"] = "fan_in",
) -> Draft:
    """Give the arguments of functions variance ν, hold residual streams as they begin, and start with small outputs.

    Weights are scaled as by ``autoinit`` (Algorithm 1), but for seven parts:

    - *functions*: where a constant stands between a weight and the function that follows, as the frequency of
      ``sin(30 * linear(x))``, the argument of the function has variance ν. Weights between the model's inputs and
      periodic functions keep the standard deviation that the model gives them: they are frequencies.
    - *readouts*: what leaves the model has variance ``readout`` times ν: by default 0.3, and 0.1 where a readout makes
      fewer than eight numbers (values, fields, colours).
    - *gates of channels*: the argument of a gate that multiplies whole channels, as in squeeze-and-excitation, has
      variance 0.1 ν: gates at random weaken channels at random.
    - *weights before norms*: a weight whose size a norm undoes keeps the size of the scheme that the model draws it by
      (PyTorch's own, Kaiming, Xavier, LeCun): it says how fast steps of a rate turn it, and nothing else.
    - *tables*: rows that are looked up, and whose size norms undo, have variance ``table`` times ν: steps of one size
      turn small rows further.
    - *recurrent layers*: what they make of their inputs has variance ν, and the weights from step to step are
      orthogonal, where ``autoinit`` keeps the model's own.
    - *residual branches*: the parameters at the end of each branch are 0 where the stream is carried on as it is. They
      are times 1/√L, for the L sums of the stream, where a norm or a function follows each sum, where branches have
      norms over the batch, or where a branch ends in a function. A branch that the model itself holds closed stays as
      it is. ``branches`` makes it ``"zero"``, ``"depth"`` (1/√L) or ``"full"`` for all.

    Sources: Bingham & Miikkulainen (arXiv 2109.08958), Algorithm 1; functions with frequencies: Sitzmann et al. 2020
    (arXiv 2006.09661), section 3.2; closed branches: Bachlechner et al. 2020 (arXiv 2003.04887) and Zhang, Dauphin & Ma
    2019 (arXiv 1901.09321); 1/√L: Hayou et al. 2021 (arXiv 2010.12859); orthogonal steps: Saxe, McClelland & Ganguli
    2014 (arXiv 1312.6120). The shares of ν were chosen on small trainings (``benchmarks/starts/``).

    Options: ``target_variance`` ν; ``biases="own"`` draws biases that the model makes at random with its own standard
    deviation, ``"zero"`` sets them to 0; ``distribution``, ``center``, ``inputs``, ``state``, ``strict``, ``zeros`` and
    ``zero_signal`` as for ``autoinit``.

    Raises:
        OptionError: a value outside an option's range.
    """
    check_positive(target_variance=target_variance, table=table, **({} if readout is None else {"readout": readout}))
    check_choice("branches", branches, ("auto", "zero", "depth", "full"))
    settings = Settings(target_variance, distribution, center, inputs, state, strict, zeros, zero_signal, biases)
    uses = contractions(graph)
    aims, kept = _aims(graph, uses, readout), _own_sizes(graph, uses)
    undone = {name for group in scale_free(graph) for name in group}
    rows = {use.parameter: table for use in uses if use.kind == "embedding" and use.parameter in undone}
    scales = {name: size for name, (size, _) in kept.items()} | _orthogonal_sizes(graph)
    held = _Held(graph, _factors(graph, request, branches), CLOSED * target_variance)
    while True:
        targets = {value: aim.share for value, aim in aims.items()}
        draft = drafted(graph, request, settings, Adjustments(targets, rows, scales, held))
        ends, stuck = _ends(graph, draft.prescriptions, held)
        if not stuck:
            drawn = _orthogonal(graph, {**draft.prescriptions, **ends})
            return replace(draft, prescriptions=_explained(graph, uses, drawn, aims, kept))
        held = held.without(stuck)


class _Aim(NamedTuple):
    """The second moment of what a contraction makes, as a share of ν, and why it is no other."""

    share: float
    words: str


def _aims(graph: Graph, uses: Sequence[Contraction], readout: float | None) -> dict[int, _Aim]:
    """Return the aims of contractions whose outputs are not to have ν, by value."""
    shares = {
        value: _Aim(share, f"readout: {share:g} ν")
        for value, use in readouts(graph).items()
        for share in [readout or (OF_FEW if use.fan_out < FEW else OF_MANY)]
    }
    shares |= dict.fromkeys(channel_gates(graph), _Aim(GATES, f"gate of channels: {GATES:g} ν"))
    for value, factor in argument_factors(graph).items():
        share, words = shares.get(value, _Aim(1.0, ""))
        told = f"the function behind it takes {factor:.4g} times this"
        shares[value] = _Aim(share / factor**2, f"{words}; {told}" if words else told)
    return shares


def _orthogonal_sizes(graph: Graph) -> dict[str, float]:
    """Return the standard deviations of weights that take the state of the step before, by name."""
    return {
        one.use.parameter: one.orthogonal_std
        for weights in recurrent_weights(graph).values()
        for one in weights
        if one.takes == "state" and one.use.parameter is not None
    }


def _orthogonal(graph: Graph, prescriptions: dict[str, Prescription]) -> dict[str, Prescription]:
    """Return prescriptions in which what takes the state of the step before is orthogonal, a matrix for each gate."""
    for weight in (one for weights in recurrent_weights(graph).values() for one in weights if one.takes == "state"):
        mine = prescriptions.get(weight.use.parameter or "")
        if isinstance(mine, Drawn):
            prescriptions[mine.name] = mine.changed(
                distribution="orthogonal",
                groups=weight.gates,
                std=weight.orthogonal_std,
                reason=f"orthogonal from step to step, {weight.gates} matrices: states keep their length",
            )
    return prescriptions


def _explained(
    graph: Graph,
    uses: Sequence[Contraction],
    prescriptions: dict[str, Prescription],
    aims: Mapping[int, _Aim],
    kept: Mapping[str, tuple[float, str]],
) -> dict[str, Prescription]:
    """Return prescriptions whose reasons say why outputs have another variance than ν, or weights the model's size."""
    said = {use.parameter: aims.get(graph.nodes[use.node].outputs[0]) for use in uses}
    for name, mine in prescriptions.items():
        aim = said.get(name)
        if mine.action != "write" or not mine.signal_after:
            continue
        if name in kept:
            prescriptions[name] = mine.changed(reason=kept[name][1])
        elif aim is not None:
            prescriptions[name] = mine.changed(reason=f"{aim.words}; {mine.reason}")
    return prescriptions


def _ends(
    graph: Graph, prescriptions: Mapping[str, Prescription], held: _Held
) -> tuple[dict[str, Prescription], set[ResidualBranch]]:
    """Return the prescriptions of the ends of branches, and the branches whose ends cannot be scaled."""
    scaled: dict[str, Prescription] = {}
    stuck = set[ResidualBranch]()
    for branch, (factor, words) in held.open.items():
        for name in branch.carriers:
            mine = scaled.get(name) or _scaled(graph, name, prescriptions.get(name), factor, words)
            if mine is None:
                stuck.add(branch)
            else:
                scaled[name] = mine
    return scaled, stuck


class _Held:
    """Scales what residual branches add in the course of a pass (`run_pass`, ``visit``), but for closed ones.

    It also lets the weights of recurrent layers choose their scales, which rules for recurrent layers do not ask for.

    Attributes:
        open: the branches that were scaled in the last pass, with what they are multiplied by, and why.
    """

    def __init__(self, graph: Graph, factors: Mapping[ResidualBranch, tuple[float, str]], closed: float) -> None:
        """Prepare: ``closed`` is the second moment below which the model itself holds a branch closed."""
        self.graph = graph
        self.factors = factors
        self.closed = closed
        self.open: dict[ResidualBranch, tuple[float, str]] = {}
        self._recurrent = recurrent_weights(graph)
        self._at: dict[int, list[ResidualBranch]] = {}
        for branch in factors:
            self._at.setdefault(min(branch.readers), []).append(branch)

    def without(self, some: Collection[ResidualBranch]) -> _Held:
        """Return one that leaves some branches alone."""
        return _Held(
            self.graph, {branch: told for branch, told in self.factors.items() if branch not in some}, self.closed
        )

    def __call__(self, run: Pass, node: Node) -> None:
        """Scale the branches that a node is the first to read."""
        for weight in self._recurrent.get(node.index, ()):
            entering = run.state(weight.use.data) if weight.takes == "input" else None
            before = 1.0 if entering is None else entering.second_moment
            if weight.use.parameter is not None and before != 0.0:
                assert isinstance(run.weights, PlannedWeights)
                heavy = entering is not None and entering.tag == "heavy"
                run.weights.enter(weight.use.parameter, node, weight.use.fan_in, before, heavy)
        for branch in self._at.get(node.index, ()):
            state = run.state(branch.value)
            if state is None or state.second_moment < self.closed or not _carries(run, node, branch.value):
                self.open.pop(branch, None)
            else:
                self.open[branch] = self.factors[branch]
                run.states[branch.value] = linear(Call(run, node), state, self.factors[branch][0])


def _carries(run: Pass, node: Node, added: int) -> bool:
    """Whether a sum carries a signal beside what a branch adds: a stream that begins at zeros needs its branches."""
    others = (run.state(value) for value in node.inputs if value != added)
    return any(state is not None and state.second_moment > 0.0 for state in others)


def _own_sizes(graph: Graph, uses: Sequence[Contraction]) -> dict[str, tuple[float, str]]:
    """Return the standard deviations of weights that keep those of the model, by name, with the reason."""
    found: dict[str, tuple[float, str]] = {}
    for name in frequencies(graph):
        values = graph.parameters[name].values
        size = 0.0 if values is None else float(values.detach().double().square().mean().sqrt())
        if size > 0.0:
            found[name] = size, "frequencies over the model's inputs, drawn at the model's own size"
    weights = {use.parameter for use in uses if use.kind not in ("embedding", "recurrent")}
    for group in scale_free(graph):
        alone = [name for name in group if graph.parameters[name].tensor.ndim > 1]
        if len(alone) == 1 and alone[0] in weights and alone[0] not in found:
            scheme = scheme_of(graph.parameters[alone[0]])
            if scheme is not None:
                found[alone[0]] = scheme[0], f"a norm undoes its size, which is the model's own ({scheme[1]})"
    return found


def _factors(graph: Graph, request: Request, kind: Branches) -> dict[ResidualBranch, tuple[float, str]]:
    """Return what each residual branch is multiplied by, and why; those that nothing can scale are left out."""
    found: dict[ResidualBranch, tuple[float, str]] = {}
    for stream in residual_streams(graph) if kind != "full" else ():
        count = len(stream.sums)
        held = is_transformed(graph, stream) or normalises_batches(graph, stream)
        by_depth = kind == "depth" or (kind == "auto" and held)
        if count == 1 and kind == "auto":
            continue
        damped = count**-0.5, f"× 1/√{count} at the end of one of {count} residual branches"
        closed = 0.0, f"0 at the end of one of {count} residual branches, so that the stream is carried on as it begins"
        for branch in stream.branches:
            if branch.carriers and request.kept.keys().isdisjoint(branch.carriers):
                found[branch] = damped if by_depth or ends_in_function(graph, branch.value) else closed
    return found


def _scaled(graph: Graph, name: str, before: Prescription | None, factor: float, words: str) -> Prescription | None:
    """Return a prescription times a factor; None where nothing is written that could be scaled."""
    offset = offset_of(graph, name)
    if offset and (before is None or before.action != "write"):  # a gain that is kept as its difference from 1
        values = graph.parameters[name].values
        own = None if values is None else number_in(values)
        if own is None:
            return None
        return Constant(
            name=name, shape=graph.parameters[name].shape, constant=factor * (offset + own) - offset, role="gain",
            reason=f"{words}; it is used as {offset:g} plus this",
        )  # fmt: skip
    if before is None or before.action != "write":
        return None
    after = None if before.signal_after is None else before.signal_after * factor**2
    if factor == 0.0 and not offset:
        seen = {"signal_before": before.signal_before, "signal_after": after}
        return zero(before, words, output_axis=before.output_axis, groups=before.groups, **seen)
    said = {"reason": f"{before.reason}; {words}", "signal_after": after}
    if isinstance(before, Constant):
        return before.changed(constant=factor * (offset + before.constant) - offset, **said)
    if isinstance(before, Drawn | Rescaled):
        return before.changed(std=before.std * factor, **said)
    return None
