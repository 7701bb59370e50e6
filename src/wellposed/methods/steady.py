"""Steady: AutoInit's scales where signals meet functions, residual streams that are held, and small readouts.

AutoInit gives every contraction an output of variance ν. What trains better departs from that in places that the graph
shows: constants before functions, readouts, tables before norms, recurrent layers, and the ends of residual branches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from torch import Tensor

from wellposed.graphs import Graph, Node
from wellposed.methods.drafting import Adjustments, Settings, drafted
from wellposed.methods.holding import (
    CLOSED,
    Branches,
    Held,
    branch_factors,
    ends_of,
    score_aims,
    share_of,
    words_on_sharp,
)
from wellposed.methods.options import Draft, Request, method
from wellposed.methods.schemes import scheme_of
from wellposed.operators.contraction import Contraction, contractions
from wellposed.options import check_choice, check_positive
from wellposed.plans import Drawn, Prescription, RandomDistribution
from wellposed.signals import Input
from wellposed.structure.argument_factors import argument_factors, bending_functions, entered, frequencies
from wellposed.structure.meetings import codebooks
from wellposed.structure.own_functions import is_periodic
from wellposed.structure.scale_free import scale_free
from wellposed.structure.scored_products import scored_products
from wellposed.structure.starts import FEW, channel_gates, readouts, recurrent_weights, scored_tables

GATES = 0.1
"""Variance of the arguments of gates that multiply whole channels, as a share of ν. Chosen on trainings."""
BENT, BENT_AT_KINKS, OF_KINKS = 0.3, 0.1, 0.03
"""Variances as shares of ν, chosen on trainings: of the arguments of functions that bend; of those of functions with a
kink, where a model makes a few values of them; and of those values."""


@method("steady")
def steady(
    graph: Graph,
    request: Request,
    *,
    target_variance: float = 1.0,
    readout: float | None = None,
    bending: float | None = None,
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

    Weights are scaled as by ``autoinit`` (Algorithm 1), but for ten parts:

    - *functions*: where a constant stands between a weight and the function that follows, as the frequency of
      ``sin(30 * linear(x))``, the argument of the function has variance ν, and biases become as much smaller as
      weights do, but for the phases of periodic functions. Weights between the model's inputs and periodic functions
      keep the standard deviation that the model gives them: they are frequencies.
    - *functions that bend*: the argument of a function that saturates on both sides (tanh), or gates itself (GELU,
      SiLU), has variance ``bending`` times ν, by default 0.3: small arguments meet the part that is straight. That of a
      function with a kink at 0 (ReLU) has 0.1 ν where all readouts make fewer than eight numbers: beside smaller
      signals biases count for more, and kinks lie apart. Behind norms, and in functions of few coordinates, arguments
      have ν.
    - *readouts*: what leaves the model has variance ``readout`` times ν: by default 0.3, and 0.1 where a readout makes
      fewer than eight numbers (values, fields, colours), or 0.03 behind such kinks.
    - *scalar products*: products of two signals that a function takes in, as the scores of queries and keys, have
      variance ν at most, and those that leave the model, as of two towers or factors of a matrix, that of a readout.
      The parameters of both factors are scaled down for it.
    - *gates of channels*: the argument of a gate that multiplies whole channels, as in squeeze-and-excitation, has
      variance 0.1 ν: gates at random weaken channels at random.
    - *weights before norms*: a weight whose size a norm undoes keeps the size of the scheme that the model draws it by
      (PyTorch's own, Kaiming, Xavier, LeCun): it says how fast steps of a rate turn it, and nothing else.
    - *tables*: rows that are looked up have variance ``table`` times ν where norms undo their size, as steps of one
      size turn small rows further, and where they are scores: no weight comes between them and fewer than eight numbers
      that leave the model.
    - *codebooks*: rows that are picked as the nearest to a signal have variance ν, as it has.
    - *recurrent layers*: what they make of their inputs has variance ν, and the weights from step to step are
      orthogonal, where ``autoinit`` keeps the model's own.
    - *residual branches*: the parameters at the end of each branch are 0 where the stream is carried on as it is. They
      are times 1/√L, for the L sums of the stream, where a norm or a function follows each sum, where branches have
      norms over the batch, or where a branch ends in a function. A branch that the model itself holds closed stays as
      it is. ``branches`` makes it ``"zero"``, ``"depth"`` (1/√L) or ``"full"`` for all.

    Sources: Bingham & Miikkulainen (arXiv 2109.08958), Algorithm 1; functions with frequencies: Sitzmann et al. 2020
    (arXiv 2006.09661), section 3.2; closed branches: Bachlechner et al. 2020 (arXiv 2003.04887) and Zhang, Dauphin & Ma
    2019 (arXiv 1901.09321); 1/√L: Hayou et al. 2021 (arXiv 2010.12859); orthogonal steps: Saxe, McClelland & Ganguli
    2014 (arXiv 1312.6120); scores: Vaswani et al. 2017 (arXiv 1706.03762), section 3.2.1. The shares of ν were chosen
    on small trainings (``benchmarks/starts/``).

    Options: ``target_variance`` ν; ``biases="own"`` draws biases that the model makes at random with its own standard
    deviation, ``"zero"`` sets them to 0; ``distribution``, ``center``, ``inputs``, ``state``, ``strict``, ``zeros`` and
    ``zero_signal`` as for ``autoinit``.

    Raises:
        OptionError: a value outside an option's range.
    """
    check_positive(
        target_variance=target_variance,
        table=table,
        **{name: one for name, one in (("readout", readout), ("bending", bending)) if one is not None},
    )
    check_choice("branches", branches, ("auto", "zero", "depth", "full"))
    settings = Settings(target_variance, distribution, center, inputs, state, strict, zeros, zero_signal, biases)
    uses = contractions(graph)
    if readout is None and bending is None and _makes_values(graph) and any(bending_functions(graph).values()):
        readout = OF_KINKS
    factors = argument_factors(graph)
    aims = _aims(graph, factors, readout, bending)
    kept = _own_sizes(graph, uses) | _codebooks(graph, target_variance)
    rows = dict.fromkeys(_undone_tables(graph, uses) | _scores(graph), table)
    scales = {name: size for name, (size, _) in kept.items()} | _orthogonal_sizes(graph)
    scores = score_aims(graph, request, target_variance, readout)
    biases_over = _biases_over(graph, uses, factors)
    held = Held(graph, branch_factors(graph, request, branches), CLOSED * target_variance, scores)
    while True:
        targets = {value: aim.share for value, aim in aims.items()}
        draft = drafted(graph, request, settings, Adjustments(targets, rows, scales, biases_over, held))
        ends, stuck = ends_of(graph, draft.prescriptions, held)
        if not stuck:
            drawn = _orthogonal(graph, {**draft.prescriptions, **ends})
            warnings = (*draft.warnings, *words_on_sharp(graph, held.sharp))
            phases = _with_phases(graph, uses, factors, drawn)
            explained = _with_shares(_explained(graph, uses, drawn, aims, kept, phases), biases_over)
            return replace(draft, prescriptions=explained, warnings=warnings)
        held = held.without(stuck)


class _Aim(NamedTuple):
    """The second moment of a contraction's result, as a share of ν, and why it is not ν."""

    share: float
    words: str


def _makes_values(graph: Graph) -> bool:
    """Whether all readouts have few outputs: values, fields, colours."""
    return 0 < max((use.fan_out for use in readouts(graph).values()), default=0) < FEW


def _undone_tables(graph: Graph, uses: Sequence[Contraction]) -> set[str]:
    """Return the tables whose rows' size norms undo."""
    looked_up = {use.parameter for use in uses if use.kind == "embedding"}
    return {name for group in scale_free(graph) for name in group if name in looked_up}


def _scores(graph: Graph) -> set[str]:
    """Return the tables whose rows are scores, but for the factors of scalar products."""
    factors = {name for product in scored_products(graph) for side in product.sides for name in side.carriers}
    return set(scored_tables(graph) - factors)


def _readout_aims(graph: Graph, readout: float | None) -> dict[int, _Aim]:
    """Return the aims of readouts that are no factors of scalar products, by value."""
    sides = (side for product in scored_products(graph) if product.leaves for side in product.sides)
    scored = {name for side in sides for name in side.carriers}
    shares = {
        value: share_of(use.fan_out, readout) for value, use in readouts(graph).items() if use.parameter not in scored
    }
    return {value: _Aim(share, f"readout: {share:g} ν") for value, share in shares.items()}


def _function_aims(graph: Graph, bending: float | None) -> dict[int, _Aim]:
    """Return the aims of the arguments of functions that bend, by value; where all have ν, none."""
    if bending == 1.0:
        return {}
    at_kinks, of_values = bending or BENT_AT_KINKS, _makes_values(graph)
    shares = {
        value: at_kinks if has_kink else bending or BENT
        for value, has_kink in bending_functions(graph).items()
        if of_values or not has_kink
    }
    return {value: _Aim(share, f"bending function: {share:g} ν") for value, share in shares.items()}


def _aims(graph: Graph, factors: Mapping[int, float], readout: float | None, bending: float | None) -> dict[int, _Aim]:
    """Return the aims of contractions whose outputs are not to have ν, by value."""
    gates = dict.fromkeys(channel_gates(graph), _Aim(GATES, f"gate of channels: {GATES:g} ν"))
    shares = _function_aims(graph, bending) | _readout_aims(graph, readout) | gates
    for value, factor in factors.items():
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
    phases: Mapping[str, str],
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
            prescriptions[name] = mine.changed(reason=f"{aim.words}{phases.get(name, '')}; {mine.reason}")
    return prescriptions


def _with_shares(prescriptions: dict[str, Prescription], biases_over: Mapping[str, float]) -> dict[str, Prescription]:
    """Return prescriptions whose reasons name the biases that are smaller than the model draws them."""
    for name, share in biases_over.items():
        mine = prescriptions[name]
        if isinstance(mine, Drawn):
            reason = (
                f"{mine.reason}, over {1.0 / share:.4g}, as the function behind it takes {1.0 / share:.4g} times this"
            )
            prescriptions[name] = mine.changed(reason=reason)
    return prescriptions


def _biases_over(graph: Graph, uses: Sequence[Contraction], factors: Mapping[int, float]) -> dict[str, float]:
    """Return, by name, factors on biases where a constant stands between a weight and a function: those of the weights.

    A larger bias would be all of the function's argument. Periodic functions take any phase.
    """
    found: dict[str, float] = {}
    read = entered(graph)
    for use in uses:
        value = graph.nodes[use.node].outputs[0]
        factor = factors.get(value, 1.0)
        if use.bias is not None and factor > 1.0 and not _is_wave(graph, read[value]):
            found[use.bias] = min(found.get(use.bias, 1.0), 1.0 / factor)
    return found


def _is_wave(graph: Graph, readers: Sequence[tuple[float, Node | None]]) -> bool:
    """Whether one of the functions that read a value is periodic."""
    return any(end is not None and is_periodic(graph, end) for _, end in readers)


def _with_phases(
    graph: Graph,
    uses: Sequence[Contraction],
    factors: Mapping[int, float],
    prescriptions: Mapping[str, Prescription],
) -> dict[str, str]:
    """Return in words, by weight, the second moment of periodic functions' arguments together with drawn biases."""
    found: dict[str, str] = {}
    read = entered(graph)
    for use in uses:
        value = graph.nodes[use.node].outputs[0]
        weight, bias = (prescriptions.get(name or "") for name in (use.parameter, use.bias))
        if value in factors and isinstance(bias, Drawn) and weight is not None and _is_wave(graph, read[value]):
            whole = factors[value] ** 2 * ((weight.signal_after or 0.0) + bias.std**2)
            found[weight.name] = f"; with the phases of its bias that has E[x²] = {whole:.3g}"
    return found


def _codebooks(graph: Graph, target_variance: float) -> dict[str, tuple[float, str]]:
    """Return, by name, the standard deviations of codebooks, with the reason."""
    size = math.sqrt(target_variance), "codebook: its rows are as large as what they quantise"
    return {name: size for name, parameter in graph.parameters.items() if parameter.value in codebooks(graph)}


def _own_sizes(graph: Graph, uses: Sequence[Contraction]) -> dict[str, tuple[float, str]]:
    """Return, by name, the standard deviations of weights that keep the model's own, with the reason."""
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
