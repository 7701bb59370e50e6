"""How far the signals and gradients of an initialisation lie apart, and on which operations that counts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from wellposed.reports.record import Direction, Initialisation, Level
from wellposed.reports.structure import Structure
from wellposed.signals import Signal, Signals
from wellposed.signals.context.call import OVERFLOW

SIGNALS = (1e4, 1e8)
"""Ratios of the largest to the smallest second moment among weighted outputs from which on an initialisation is called
uneven, and bad: factors of 100 and of 10,000 in the signals' own units, where half precision begins to lose them. The
same for the ratio of a second moment to the part of it that differs between inputs: own initialisations of nets that
are known to train stay below 200, ten plain layers under PyTorch's defaults are above 10⁶."""
GRADIENTS = (3e8, 1e12)
"""The same of (‖x‖ ‖g‖)² along the trunk. Own initialisations of nets that are known to train stay below a factor of
1,000 in ‖x‖ ‖g‖, and the deepest (ResNet-152, on two small pictures) at 10,000; 30 plain layers under PyTorch's
defaults are above 100,000."""


@dataclass(frozen=True, slots=True)
class Span:
    """How far figures of one kind lie apart over a network: second moments, or squared norms.

    Attributes:
        low, high: the smallest and the largest that are neither zero nor infinite, and where they are.
        broken: names of those that are infinite or NaN, in the order of the pass.
        zeros: how many are exactly zero (zero-initialised gates and readouts, or signals that died out).
        count: how many there are.
        bounds: ratios from which on they are uneven, and bad.
        dead: names of those that are zero and ought not to be, in the order of the pass.
        waits: the first operation to learn where its weight is zero, and no gradient passes it before it has; or "".
        whole: the ratio with figures that do not count; None where all do.
        closed: the ratio while small scales close branches, where it is even without them; None elsewhere.
    """

    low: tuple[float, str] | None
    high: tuple[float, str] | None
    broken: tuple[str, ...]
    zeros: int
    count: int
    bounds: tuple[float, float] = SIGNALS
    dead: tuple[str, ...] = ()
    waits: str = ""
    whole: float | None = None
    closed: float | None = None

    @property
    def ratio(self) -> float:
        """Largest over smallest; infinite where a signal is, or where all or some that count are zero, and 1 for
        nothing and where they cannot be told yet.
        """
        if self.broken:
            return math.inf
        if self.waits:
            return 1.0
        if self.dead or (self.count and self.zeros == self.count):
            return math.inf
        if self.low is None or self.high is None:
            return 1.0
        return self.high[0] / self.low[0]

    @property
    def level(self) -> Level:
        """How even they are."""
        fair, bad = self.bounds
        return "good" if self.ratio < fair else "fair" if self.ratio < bad else "bad"


def moment(signal: Signal) -> float:
    """Return a second moment as it would be in the running model: infinite where a prediction stops counting."""
    return signal.second_moment if not signal.second_moment >= OVERFLOW else math.inf


def moments_by_name(signals: Iterable[Signal]) -> dict[str, float]:
    """Return the second moment of every signal, by name."""
    return {signal.name: moment(signal) for signal in signals}


def differing_by_name(signals: Iterable[Signal]) -> dict[str, float]:
    """Return the share of second moments that differs between inputs, 1 − similarity, by name where it is known."""
    return {s.name: max(0.0, 1.0 - s.similarity) for s in signals if math.isfinite(s.similarity)}


def figures(signals: Signals, direction: Direction) -> dict[str, float]:
    """Return what a direction is judged by, by name: E[x²], or (‖x‖ ‖g‖)² (`sensitivity`)."""
    moments = moments_by_name(signals)
    if direction == "forward":
        return moments
    return {g.name: moment(g) * moments[g.name] * math.prod(g.shape) ** 2 for g in signals.gradients or ()}


def span(structure: Structure, signals: Iterable[Signal]) -> Span:
    """Return the span of the second moments of the outputs of weights.

    Small ones count on the trunk alone, as branches may be closed on purpose, and not of readouts, after which no
    weight comes: these scale all gradients alike. What norms alone read may have any scale. Zeros on the trunk before a
    readout are a fault: no weight after them sees the inputs.
    """
    names, trunk = weighted_names(structure), hidden_names(structure)
    seen = [(moment(signal), signal.name) for signal in signals if signal.name in names]
    dead = tuple(name for value, name in seen if value == 0 and name in trunk)
    whole = span_of(seen)
    counted = span_of(_counting(structure, seen, names & trunk) or sorted(seen)[-1:])
    if whole.broken or dead or whole.level == counted.level:
        return replace(whole, dead=dead)
    return replace(counted, zeros=whole.zeros, count=whole.count, whole=whole.ratio)


def _counting(
    structure: Structure, seen: Sequence[tuple[float, str]], trunk: frozenset[str]
) -> list[tuple[float, str]]:
    """Return the figures that count: scaled by no norm, and no smaller than the least on the trunk, if any is there."""
    normed = {operation.name for operation in structure.operations if operation.normed}
    scaled = [pair for pair in seen if pair[1] not in normed]
    least = min((value for value, name in scaled if name in trunk and value > 0), default=math.inf)
    return [pair for pair in scaled if pair[0] >= least] if trunk else scaled


def sensitivity(structure: Structure, signals: Signals) -> Span:
    """Return the span of (‖x‖ ‖g‖)² along the trunk: how much the loss feels a relative change of each signal.

    A gradient that is spread over more elements is smaller in each, and one with respect to a signal that a norm will
    rescale has the inverse of its scale; the product of the two norms has neither, so that it can be compared from
    layer to layer. Gradients in branches are left out: a branch that a small or zero scale closes on purpose has small
    ones. Zeros are a fault unless they wait for a weight that is zero itself and learns in the first step.
    """
    names = judged_names(structure, "backward")
    seen = [(value, name) for name, value in figures(signals, "backward").items() if name in names]
    waits = _first_to_learn(structure, signals) if any(value == 0 for value, _ in seen) else ""
    dead = () if waits else tuple(name for value, name in seen if value == 0)
    return replace(span_of(seen, GRADIENTS), dead=dead, waits=waits)


def _first_to_learn(structure: Structure, signals: Signals) -> str:
    """Return the first weighted operation on the trunk that a gradient and a signal reach; ``""`` where none is."""
    moments, gradients = moments_by_name(signals), moments_by_name(signals.gradients or ())
    trunk = trunk_names(structure)
    for operation in structure.operations:
        if operation.weighted and operation.name in trunk and gradients.get(operation.name):
            sources = [structure.operations[i] for i in operation.inputs if i >= 0]
            if len(sources) < len(operation.inputs) or any(moments.get(source.name) for source in sources):
                return operation.name
    return ""


def span_of(seen: Sequence[tuple[float, str]], bounds: tuple[float, float] = SIGNALS) -> Span:
    """Return the span of some figures, each with the name of where it is."""
    proper = [pair for pair in seen if math.isfinite(pair[0]) and pair[0] > 0]
    return Span(
        low=min(proper, default=None),
        high=max(proper, default=None),
        broken=tuple(name for value, name in seen if not math.isfinite(value)),
        zeros=sum(value == 0 for value, _ in seen),
        count=len(seen),
        bounds=bounds,
    )


def spans(structure: Structure, initialisation: Initialisation) -> tuple[Span | None, Span | None]:
    """Return the span of the signals, and of the gradients along the trunk; measured where possible."""
    source = initialisation.measured or initialisation.predicted
    if source is None:
        return None, None
    if source.gradients is None:
        return span(structure, source), None
    gradients, opened = sensitivity(structure, source), initialisation.opened
    if opened is not None and (without := sensitivity(structure, opened)).level == "good":
        gradients = replace(without, closed=gradients.ratio)
    return span(structure, source), gradients


def judged_names(structure: Structure, direction: Direction) -> frozenset[str]:
    """Return the names of the operations that are judged: the outputs of weights, and, of gradients, those on the trunk
    and sums there.

    Readouts are left out of the latter, where there is more: what their own biases add has no part in what is before.
    """
    if direction == "forward":
        return weighted_names(structure)
    return hidden_names(structure) or trunk_names(structure)


def weighted_names(structure: Structure) -> frozenset[str]:
    """Return the names of the operations that contract a signal with a parameter."""
    return frozenset(operation.name for operation in structure.operations if operation.weighted)


def readout_names(structure: Structure) -> frozenset[str]:
    """Return the names of the weighted operations after which no weighted one comes, on any path."""
    followed: set[int] = set()
    names = []
    for index in reversed(range(len(structure.operations))):
        operation = structure.operations[index]
        if operation.weighted and index not in followed:
            names.append(operation.name)
        if operation.weighted or index in followed:
            followed.update(operation.inputs)
    return frozenset(names)


def hidden_names(structure: Structure) -> frozenset[str]:
    """Return the names on the trunk at which inputs must not be alike: outputs of weights, and sums, but no readouts.

    What a readout adds to what it was given, it can learn to take away.
    """
    shown = weighted_names(structure) | {structure.operations[index].name for index in structure.merges}
    return (trunk_names(structure) & shown) - readout_names(structure)


def trunk_names(structure: Structure) -> frozenset[str]:
    """Return the names of the operations that every path from the inputs to the main output leads through.

    The main output is the one that most weights lead to, one after the other, the last of several: others (caches of
    keys, states, auxiliary heads) leave the model on the way.
    """
    operations, output = structure.operations, _main_output(structure)
    if output is None:
        return frozenset()
    last = {output: len(operations)}
    for index in reversed(range(len(operations))):
        if index in last and operations[index].signal:
            for source in operations[index].inputs:
                last.setdefault(source, index)  # seen from the end, the first is the last
    names, open_until = [], -1
    for index, operation in enumerate(operations):
        if operation.signal and index in last:
            if open_until <= index:
                names.append(operation.name)
            open_until = max(open_until, last[index])
    return frozenset(names)


def _main_output(structure: Structure) -> int | None:
    """Return the last of the outputs that most weights lead to, one after the other; None without a signal."""
    operations = structure.operations
    depth = [0] * len(operations)
    for index, operation in enumerate(operations):
        depth[index] = operation.weighted + max(
            (depth[source] for source in operation.inputs if source >= 0), default=0
        )
    signals = [index for index in structure.outputs if operations[index].signal]
    return max(signals, key=lambda index: (depth[index], index), default=None)


ROUNDING = 1e-14
"""Share that is no more than the rounding of single precision, squared."""

_RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def share_text(share: float) -> str:
    """Return a share of a second moment as people write it, as far as single precision tells it."""
    return factor_text(min(share, 1.0)) if share > ROUNDING else "less than 10⁻¹⁴"


def factor_text(factor: float) -> str:
    """Return a number as people write it: ``1.3``, ``87``, ``4.5×10¹⁴``."""
    if not math.isfinite(factor):
        return "∞"
    if 1e-3 <= factor < 1e4 or not factor:
        return f"{factor:.2g}" if factor < 10 else f"{factor:,.0f}"
    mantissa, _, exponent = f"{factor:.1e}".partition("e")
    return f"{mantissa}×10{str(int(exponent)).translate(_RAISED)}"


def fold_text(factor: float) -> str:
    """Return a factor as people say it: ``1.3``, ``29,000``, ``4.5×10¹⁴``."""
    return f"{float(f'{factor:.2g}'):,.0f}" if 10 <= factor < 1e6 else factor_text(factor)
