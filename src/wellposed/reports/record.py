"""What a report holds: plain data, collected once, and rendered as a page, a notebook cell or a terminal's text."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from wellposed.reports.judge import Judgement

if TYPE_CHECKING:
    from rich.console import Group

    from wellposed.checks import Comparison, Explanation, Verdict
    from wellposed.gradients import Agreement
    from wellposed.plans import Plan
    from wellposed.reports.structure import Structure
    from wellposed.signals import Signals

Label = Literal["own", "plan"]


@dataclass(frozen=True, slots=True)
class Initialisation:
    """The signals under one way of drawing the weights.

    Attributes:
        label: ``own`` (the weights that the model has now) or ``plan``.
        predicted: forward signals, with the backward ones in ``predicted.gradients``; None where there is no
            prediction (``Report.notes`` says why).
        measured: the same on real passes; None where none were made.
        verdict: the one held against the other; None where one is missing.
        explanations: of the first operations whose signals are off, at most `wellposed.reports.parts.EXPLAINED`.
    """

    label: Label
    predicted: Signals | None
    measured: Signals | None
    verdict: Verdict | None
    explanations: tuple[Explanation, ...] = ()

    @property
    def title(self) -> str:
        """Its name for people."""
        return "own init" if self.label == "own" else "plan"

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
        reason: the rule behind the prescription.
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
    """What one learning-rate rule says of the model.

    ``value`` is a rate up to one constant, or None where ``reason`` says why there is none.
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
class Report:
    """Everything that `wellposed.report` found out about a model before its first training step.

    Attributes:
        model: class name.
        judgement: the verdict in one sentence, with its level.
        structure: operations, modules, branches and merges of the traced graph; of as much as ran where the forward
            failed.
        initialisations: the model's own weights, then the plan's.
        plan: the plan; None where none could be made.
        parameters: one row for each.
        rates: what the learning-rate rules say, side by side.
        agreement: agreement of the gradients by initialisation's label; empty without a loss.
        failure: what the model's forward died of, or None.
        notes: what is missing and why, and the plan's warnings.
        provenance: how to make the report again.
    """

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

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Write the report as one self-contained page that opens offline, and return its path.

        The file is either the old one or the whole new one.

        Raises:
            OptionError: the path cannot be written, or plotly is not installed.
        """
        from wellposed.reports.html import page
        from wellposed.reports.paths import write_page

        return write_page(path, page(self))

    def _repr_html_(self) -> str:
        """Return the page in a frame of its own, for notebooks."""
        from wellposed.reports.html import frame

        return frame(self)

    def table(self) -> Group:
        """Return the report as a rich renderable for a terminal of at least 80 columns."""
        from wellposed.reports.terminal import table

        return table(self)
