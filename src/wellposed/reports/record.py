"""What a report holds: plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from wellposed.checks import Comparison, Explanation, Verdict
from wellposed.plans import Plan
from wellposed.reports.structure import Structure
from wellposed.showing import Shown, Summary
from wellposed.signals import Signals

if TYPE_CHECKING:  # scores take time to load, and most reports have none
    from wellposed.gradients import Agreement
    from wellposed.rates import TransferCheck

Label = Literal["own", "plan"]
Level = Literal["good", "fair", "bad"]
Direction = Literal["forward", "backward"]
Measure = Literal["forward", "backward", "alike"]
"""What a fault shows in: signals, gradients, or what differs between inputs."""


WORDS: Mapping[Level, str] = {"good": "Good", "fair": "Doubtful", "bad": "Bad"}


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict: how the model's current weights do, for someone who trains nets.

    Attributes:
        level: of the current weights; of the plan where the model has none, ``bad`` where its forward fails, and
            ``fair`` where nothing is known.
        why: what happens and since when, in one sentence without its full stop.
        where: the operation at which it is first seen; "" where nothing is at fault.
        action: what to do, without a full stop.
        call: the same in Python, ready to copy; "" where no call does it.
        trains: whether it will train.
        figures: how far signals and gradients lie apart, in numbers; "" where nothing is known.
        measure: what the fault shows in.
    """

    level: Level
    why: str
    where: str = ""
    action: str = ""
    call: str = ""
    trains: str = ""
    figures: str = ""
    measure: Measure = "forward"

    @property
    def word(self) -> str:
        """The level in one word, for people."""
        return WORDS[self.level]

    @property
    def sentence(self) -> str:
        """Level and reason in one sentence."""
        return f"{self.word}: {self.why}."


@dataclass(frozen=True, slots=True)
class Differing:
    """How little of the signals along the trunk differs between inputs: on a real pass, or as predicted.

    Attributes:
        shares: of each second moment, what does, by name in the graph's order.
        biases: whether what is alike is made of biases; otherwise the nonlinearities make inputs alike. None where no
            pass tells.
    """

    shares: Mapping[str, float]
    biases: bool | None

    @property
    def name(self) -> str:
        """Where the share is smallest."""
        return min(self.shares, key=lambda name: self.shares[name])

    @property
    def share(self) -> float:
        """The smallest share."""
        return self.shares[self.name]


@dataclass(frozen=True, slots=True, repr=False)
class Initialisation(Shown):
    """The signals under one way of drawing the weights.

    Attributes:
        label: ``own`` (the weights that the model has now) or ``plan``.
        predicted: forward signals, with the backward ones in ``predicted.gradients``; None where there is no
            prediction (``Report.notes`` has the reason).
        measured: the same on real passes; None where none were made.
        verdict: the one held against the other; None where one is missing.
        explanations: of the first operations whose signals are off, at most `wellposed.reports.parts.EXPLAINED`.
        differing: where least differs between inputs, on a real pass, or as predicted where none is made; None where
            neither tells.
        unreached: operations of weights that no gradient reaches, nor will after a step.
        asleep: whether parameters that stay at zero are a reason for that.
        opened: signals and gradients on one real pass in which small scales of branches are 1; None where there are
            none, or gradients are even without that.
        crowds: similarity that two inputs with nothing in common end with through the model's rectifiers, were it wide.
    """

    label: Label
    predicted: Signals | None
    measured: Signals | None
    verdict: Verdict | None
    explanations: tuple[Explanation, ...] = ()
    differing: Differing | None = None
    unreached: tuple[str, ...] = ()
    asleep: bool = False
    opened: Signals | None = None
    crowds: float = 0.0

    def _summary(self) -> Summary:
        """Return whether the signals are predicted or measured, and how many were compared."""
        kinds = (("predicted", self.predicted), ("measured", self.measured))
        known = " and ".join(kind for kind, signals in kinds if signals is not None) or "unknown"
        compared = (
            "" if self.verdict is None else f", {len(self.verdict.comparisons):,} compared, {len(self.off):,} off"
        )
        return Summary(f"Signals under {self.title}: {known}{compared}")

    @property
    def title(self) -> str:
        """Its name for people."""
        return "current weights" if self.label == "own" else "plan"

    @property
    def off(self) -> tuple[Comparison, ...]:
        """The signals and gradients that are beyond what is allowed."""
        return () if self.verdict is None else tuple(c for c in self.verdict.comparisons if c.off)


@dataclass(frozen=True, slots=True)
class ParameterRow:
    """One parameter, as it is and as the plan draws it.

    Attributes:
        name, shape: as the model has them.
        tied: whether it is another name of a parameter that has a row before it.
        op: the node that uses it and its overload, or None.
        fan_in, fan_out: as in `wellposed.Prescription`.
        distribution: the draw in a few words.
        std_now: standard deviation of its current values; None on meta.
        std_planned: standard deviation that the plan gives it; None where the plan leaves it alone.
        rate: the plan's factor on the learning rate.
        layer_rate: the multiplier in inverse proportion to its layer's share of the tangent kernel
            (`wellposed.rates.ntk.layer_multipliers`), None where it could not be worked out.
        reason: the rule that the prescription follows.
    """

    name: str
    shape: tuple[int, ...]
    tied: bool
    op: str | None
    fan_in: int | None
    fan_out: int | None
    distribution: str
    std_now: float | None
    std_planned: float | None
    rate: float | None
    layer_rate: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class RateRow:
    """The result of one learning-rate rule for the model.

    ``value`` is a rate up to one constant, or None where there is none, for the ``reason`` given.
    """

    rule: str
    value: float | None
    reason: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Provenance:
    """How the report came about: versions of what it rests on, seed, passes, seconds by stage, and the command."""

    versions: Mapping[str, str]
    seed: int
    draws: int
    training: bool
    inputs: str
    seconds: Mapping[str, float]
    command: str


@dataclass(frozen=True, slots=True)
class Record:
    """The fields of a `wellposed.Report`, which describes them."""

    model: str
    judgement: Judgement
    structure: Structure
    initialisations: tuple[Initialisation, ...]
    plan: Plan | None
    parameters: tuple[ParameterRow, ...]
    rates: tuple[RateRow, ...]
    agreement: Mapping[Label, Agreement]
    failure: str | None
    notes: tuple[str, ...]
    provenance: Provenance
    transfer: TransferCheck | None = None
