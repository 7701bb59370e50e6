"""What a rate rule and a search return. Plain data: no tensors, no modules."""

from __future__ import annotations

import math
from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from wellposed.showing import ROWS, Shown, Summary

LENGTH = 0.2
"""Power of the ratio of lengths by which best rates fall; fitted on five trainings of 150 to 3,000 steps, whose best
rates fell by 0 to 2.5 octaves for tenfold length. On 14 others the median answer is .1 octaves off."""
WITHIN = 4.0
"""Factor around the answer of a search of 60 steps within which the best rate lay in all of 42 cases; measured
(docs/results/prepared.md)."""


APART = 8.0
"""Factor around a rate that is known without a training within which best rates lie; measured
(docs/results/static.md)."""
SHARE = 0.4
"""Share, in log rate, by which the answer of a search that is short beside the training is drawn towards such a rate;
chosen on ten nets that are not those of docs/results/prepared.md."""


class Record(BaseModel):
    """Plain data: frozen, and checked where it is read from a file."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", strict=True)


def _warned(warnings: tuple[str, ...]) -> str:
    return f"; {len(warnings)} warning{'s' * (len(warnings) != 1)}" if warnings else ""


class RelativeRate(Shown, Record):
    """A learning rate up to one constant: only ratios between models, under one rule, are meaningful.

    Attributes:
        value: the relative rate, positive.
        rule: the rule that gave it.
        reason: how it came about, in words that name the equation.
        figures: what went into it, by name (``paths``, ``sum_cubes``, ``exponent``).
        per_parameter: multipliers on the rate for each parameter, with mean 1 over parameters; empty unless asked for.
        warnings: where the figure means less than it seems.
    """

    value: float = Field(gt=0.0, allow_inf_nan=False)
    rule: str
    reason: str
    figures: dict[str, float] = Field(default_factory=dict)
    per_parameter: dict[str, float] = Field(default_factory=dict)
    warnings: tuple[str, ...] = Field(default=(), strict=False)

    def __float__(self) -> float:
        """Return the relative rate."""
        return self.value

    def _summary(self) -> Summary:
        """Return the multipliers farthest from 1, in the model's order."""
        listed = list(self.per_parameter.items())
        farthest = sorted(range(len(listed)), key=lambda i: -abs(math.log(listed[i][1] or math.inf)))[:ROWS]
        return Summary(
            f"Relative rate {self.value:.4g} by rule {self.rule}: {self.reason}{_warned(self.warnings)}",
            ("parameter", "multiplier"),
            tuple((listed[i][0], f"{listed[i][1]:.4g}") for i in sorted(farthest)),
            len(listed) - len(farthest),
            "those farthest from 1",
        )


class Conditions(Record):
    """The conditions under which a base rate was found; None where one is not known.

    Attributes:
        optimizer: its family or class (``sgd``, ``adamw``).
        batch_size: samples in one step, over all ranks.
        steps: optimizer steps.
        training_steps: those of the training that it is for, where a search of fewer steps stands for it.
        clip: the global norm to which gradients were clipped; None also for none.
        schedule: the schedule's name (``constant``, ``cosine``).
        loss: the loss function's name.
        inputs: shapes and dtypes of the batch's tensors, without the batch axis.
    """

    optimizer: str | None = None
    batch_size: int | None = None
    steps: int | None = None
    training_steps: int | None = None
    clip: float | None = None
    schedule: str | None = None
    loss: str | None = None
    inputs: str | None = None


class Point(Record):
    """One learning rate that was tried.

    Attributes:
        rate: the learning rate.
        losses: training loss at the end for each seed; None where the run diverged.
    """

    rate: float = Field(gt=0.0)
    losses: tuple[float | None, ...] = Field(strict=False)

    @property
    def mean(self) -> float | None:
        """Mean of the losses over seeds; None where a seed diverged."""
        finite = [loss for loss in self.losses if loss is not None]
        return sum(finite) / len(finite) if len(finite) == len(self.losses) else None


Definition = Literal["plateau", "argmin"]
"""Which of the rates that train well counts as found: the centre of all of them, or the one with the smallest loss."""


class Plateau(Record):
    """The rates whose loss exceeds the smallest by no more than a share of what training gains.

    Attributes:
        low: the lowest of them, as a mean in log rate over seeds.
        high: the highest of them. It is unsafe to train at: a little more, or another draw, and the training fails.
        share: the share.
    """

    low: float = Field(gt=0.0, allow_inf_nan=False)
    high: float = Field(gt=0.0, allow_inf_nan=False)
    share: float

    @property
    def centre(self) -> float:
        """The geometric mean of both ends."""
        return math.sqrt(self.low * self.high)


class Rate(Shown, Record):
    """A learning rate that was measured, or transferred from one that was.

    Attributes:
        value: the learning rate.
        interval: the smallest and the largest such rate over seeds, which says how much it varies by chance, and not
            how far it is from the best rate of a longer training; None where fewer than two seeds give one. For a
            training of ``conditions.training_steps``, where the best rate of that training lies (`in_training`).
        definition: which rate of the curve ``value`` is. None where the rate was given as a number; rates of files
            that do not say so are the argmin.
        plateau: the rates that train nearly as well as the best one.
        argmin: the rate with the smallest mean loss, refined by a parabola in log rate; the maximal learning rate of
            Chen et al. 2024 (arXiv 2402.17440).
        reason: how it was found, in words.
        curve: every rate that was tried, in ascending order; empty for a transferred rate.
        conditions: those under which it was found.
        claims: for a transferred rate, what each axis along which the models differ rests on.
        warnings: where the figure means less than it seems.
    """

    value: float = Field(gt=0.0, allow_inf_nan=False)
    interval: tuple[float, float] | None = Field(default=None, strict=False)
    definition: Definition | None = "argmin"
    plateau: Plateau | None = None
    argmin: float | None = Field(default=None, gt=0.0, allow_inf_nan=False)
    reason: str
    curve: tuple[Point, ...] = Field(default=(), strict=False)
    conditions: Conditions = Conditions()
    claims: dict[str, str] = Field(default_factory=dict)
    warnings: tuple[str, ...] = Field(default=(), strict=False)

    def __float__(self) -> float:
        """Return the learning rate."""
        return self.value

    def _summary(self) -> Summary:
        """Return the points of the curve that are nearest to the rate, in ascending order."""
        nearest = sorted(self.curve, key=lambda point: abs(math.log(point.rate / self.value)))[:ROWS]
        span = "over seeds" if self.conditions.training_steps is None else "the best lies between"
        over = "" if self.interval is None else f", {span} {self.interval[0]:.4g} to {self.interval[1]:.4g}"
        flat = self.plateau
        ends = "" if flat is None else f"; plateau {flat.low:.4g} to {flat.high:.4g} (unsafe)"
        return Summary(
            f"Learning rate {self.value:.4g}{over}{ends}: {self.reason}{_warned(self.warnings)}",
            ("rate", "loss"),
            tuple(
                (f"{point.rate:.4g}", "diverged" if point.mean is None else f"{point.mean:.4g}")
                for point in self.curve
                if point in nearest
            ),
            len(self.curve) - len(nearest),
            "those nearest to it",
        )

    def scaled(self, factor: float, reason: str) -> Self:
        """Return the rate, its interval and its plateau times ``factor``, without the curve, with another reason."""
        interval, flat = self.interval, self.plateau
        update = {
            "value": self.value * factor,
            "interval": interval and (interval[0] * factor, interval[1] * factor),
            "plateau": flat and flat.model_copy(update={"low": flat.low * factor, "high": flat.high * factor}),
            "argmin": self.argmin and self.argmin * factor,
            "reason": reason,
            "curve": (),
        }
        return self.model_copy(update=update)

    def in_training(self, steps: int, expected: float | None = None) -> Self:
        """Return the rate for a training of so many steps that a shorter search stands for.

        Best rates fall with the length of a training, by the factor (steps of the search / steps)^`LENGTH`. The
        interval is a factor of `WITHIN` to either side.

        Args:
            steps: of the training.
            expected: the rate that is known of it without a training, within a factor of `APART`; the answer is drawn
                towards it by `SHARE` of what the search leaves out, unless it is further off than that.
        """
        searched = self.conditions.steps or steps
        factor = (searched / steps) ** LENGTH
        why = f"times {factor:.2g} for {steps:,} steps, as best rates fall with the length; " if factor != 1.0 else ""
        share = SHARE * max(0.0, 1.0 - searched / steps)
        if expected is not None and share and 1 / APART <= expected / (self.value * factor) <= APART:
            factor *= (expected / (self.value * factor)) ** share
            why += f"drawn by {share:.0%}, in log rate, to the {expected:.3g} that is known without a training; "
        value = self.value * factor
        cases = "41" if expected is None else "all"  # of searches of 40 steps, and of 60 around an expected rate
        reason = (
            f"{self.reason}; {why}the best rate was within a factor of {WITHIN:g} of such answers in {cases} of 42 "
            "cases, and above is the riskier side"
        )
        return self.scaled(factor, reason).model_copy(
            update={
                "curve": self.curve,
                "interval": (value / WITHIN, value * WITHIN),
                "conditions": self.conditions.model_copy(update={"training_steps": steps}),
            }
        )
