"""The verdict: what the signals of an initialisation mean for training, in one sentence."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from wellposed.reports.record import Initialisation, Judgement, Level
from wellposed.reports.structure import Structure
from wellposed.signals import Signal, Signals
from wellposed.signals.context.call import OVERFLOW

SIGNALS = (1e4, 1e8)
"""Ratios of the largest to the smallest second moment among weighted outputs from which on an initialisation is called
uneven, and bad: factors of 100 and of 10,000 in the signals' own units, where half precision begins to lose them."""
GRADIENTS = (1e6, 1e10)
"""The same of (‖x‖ ‖g‖)² along the trunk. Own initialisations of nets that are known to train (with norms, or shallow)
stay below a factor of 1,000 in ‖x‖ ‖g‖; 30 plain layers under PyTorch's defaults are above 100,000."""


@dataclass(frozen=True, slots=True)
class Span:
    """How far figures of one kind lie apart over a network: second moments, or squared norms.

    Attributes:
        low, high: the smallest and the largest that are neither zero nor infinite, and where they are.
        broken: names of those that are infinite or NaN, in the order of the pass.
        zeros: how many are exactly zero (zero-initialised gates and readouts, or signals that died out).
        count: how many there are.
        bounds: ratios from which on they are uneven, and bad.
    """

    low: tuple[float, str] | None
    high: tuple[float, str] | None
    broken: tuple[str, ...]
    zeros: int
    count: int
    bounds: tuple[float, float] = SIGNALS

    @property
    def ratio(self) -> float:
        """Largest over smallest; infinite where a signal is, or where all are zero, and 1 for nothing."""
        if self.broken or (self.count and self.zeros == self.count):
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


def span(signals: Iterable[Signal], names: Collection[str]) -> Span:
    """Return the span of the second moments of the signals of these names."""
    return span_of([(moment(signal), signal.name) for signal in signals if signal.name in names])


def sensitivity(signals: Signals, gradients: Signals, names: Collection[str]) -> Span:
    """Return the span of (‖x‖ ‖g‖)² of the signals of these names: how much the loss feels a relative change of each.

    A gradient that is spread over more elements is smaller in each, and one with respect to a signal that a norm will
    rescale has the inverse of its scale; the product of the two norms has neither, so that it can be compared from
    layer to layer.
    """
    moments = moments_by_name(signals)
    return span_of(
        [(moment(g) * moments[g.name] * math.prod(g.shape) ** 2, g.name) for g in gradients if g.name in names],
        GRADIENTS,
    )


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
    """Return the span of the outputs of weights, and of the gradients along the trunk; measured where possible.

    Gradients in branches are left out: a branch that a small or zero scale closes on purpose has small ones.
    """
    source = initialisation.measured or initialisation.predicted
    if source is None:
        return None, None
    back = source.gradients
    signals = span(source, weighted_names(structure))
    return signals, None if back is None else sensitivity(source, back, trunk_names(structure))


def weighted_names(structure: Structure) -> frozenset[str]:
    """Return the names of the operations that contract a signal with a parameter."""
    return frozenset(operation.name for operation in structure.operations if operation.weighted)


def trunk_names(structure: Structure) -> frozenset[str]:
    """Return the names of the operations that every path from the inputs to the outputs leads through."""
    last = {index: len(structure.operations) for index in structure.outputs}
    for index, operation in enumerate(structure.operations):
        if operation.signal:
            last.update((source, max(index, last.get(source, index))) for source in operation.inputs)
    names, open_until = [], -1
    for index, operation in enumerate(structure.operations):
        if operation.signal and index in last:
            if open_until <= index:
                names.append(operation.name)
            open_until = max(open_until, last[index])
    return frozenset(names)


def judge(structure: Structure, initialisations: Sequence[Initialisation], failure: str | None) -> Judgement:
    """Return the verdict on a model."""
    by_label = {item.label: spans(structure, item) for item in initialisations}
    own, plan = by_label.get("own"), by_label.get("plan")
    if failure is not None:
        seen = f"{len(structure.operations):,} operations ran before" if structure.operations else "nothing ran before"
        return Judgement("bad", f"The model's forward fails; {seen} it did, and the report shows those.")
    if not weighted_names(structure):
        return Judgement("good", "The model contracts no signal with a weight: there is nothing to initialise.")
    if own is None or own[0] is None:
        if plan is None or plan[0] is None:
            return Judgement("bad", "Nothing could be predicted or measured; the notes say why.")
        return Judgement(_worse(plan), f"The model has no values yet; {_phrase(plan, 'under the plan')}.")
    level = _worse(own)
    word = {"good": "Well initialised", "fair": "Unevenly initialised", "bad": "Badly initialised"}[level]
    sentence = f"{word}: {_phrase(own, 'with its own weights')}"
    if plan is not None and plan[0] is not None:
        sentence += f"; {_phrase(plan, 'under the plan')}"
    return Judgement(level, sentence + ".")


def _worse(pair: tuple[Span | None, Span | None]) -> Level:
    levels = [item.level for item in pair if item is not None]
    return max(levels, key=("good", "fair", "bad").index, default="good")


def _phrase(pair: tuple[Span | None, Span | None], when: str) -> str:
    words = ("signals", "gradients along the trunk")
    parts = [_words(item, word) for item, word in zip(pair, words, strict=True) if item is not None]
    return f"{when}, " + " and ".join(parts)


def _words(seen: Span, word: str) -> str:
    """Return what a span says: ``signals differ by a factor of 1.2e+09 (rms) from layer to layer, ...``."""
    if seen.broken:
        return f"{word} are infinite or NaN from {seen.broken[0 if word == 'signals' else -1]} on"
    if seen.count and seen.zeros == seen.count:
        return f"all {word} are zero"
    if seen.low is None or seen.high is None:
        return f"there are no {word}"
    factor = math.sqrt(seen.ratio)
    if seen.level == "good":
        return f"{word} stay within a factor of {factor_text(factor)}"
    return f"{word} differ by a factor of {factor_text(factor)} (least at {seen.low[1]}, most at {seen.high[1]})"


_RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def factor_text(factor: float) -> str:
    """Return a factor as people write it: ``1.3``, ``87``, ``4.5×10¹⁴``."""
    if not math.isfinite(factor):
        return "∞"
    if factor < 1e4:
        return f"{factor:.2g}" if factor < 10 else f"{factor:,.0f}"
    mantissa, _, exponent = f"{factor:.1e}".partition("e")
    return f"{mantissa}×10{str(int(exponent)).translate(_RAISED)}"
