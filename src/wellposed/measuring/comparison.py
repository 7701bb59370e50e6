"""One signal, or one gradient: its prediction held against its measurement."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np

from wellposed.measuring.chance import STEADY, Share
from wellposed.measuring.intervals import ERROR_RATE, log_normal_mean, std_range, student
from wellposed.showing import Shown, Summary
from wellposed.signals.signal import Signal, Tag

Direction = Literal["forward", "backward"]

TOLERANCE: Mapping[Tag, float] = MappingProxyType(
    {"exact": 0.15, "approximate": 0.35, "sampled": 0.35, "assumed": 1.0, "heavy": math.inf}
)
"""Octaves by which a prediction may miss, by its tag.

Rules tagged exact are exact for infinitely many channels, and reach 0.15 on nets of ordinary width; approximate and
sampled ones leave the residual of nets without norm layers, 0.35; for a node that was only assumed neutral, a factor
of two. What is heavy-tailed is not compared.
"""

ILL_CONDITIONED = 1.0
"""Spread, in octaves from one weight draw to the next, from which on a node is called ill-conditioned."""

SPREAD_FACTOR, SPREAD_FLOOR = 2.0, ILL_CONDITIONED
"""A predicted spread may be off by this factor, and by so many octaves, beyond the interval of the measured one: less
does not make a node ill-conditioned that is not."""

APART = 0.1
"""By how much a predicted similarity of samples may miss, beside chance. Chosen: twice what is said of its rules."""

DOUBT = 1.0
"""Octaves beyond its tolerance from which on a miss is looked into, also where it may be chance."""


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Shown):
    """One signal, or the gradient with respect to one tensor: what was predicted and what was measured.

    Attributes:
        name, module, op, shape: as in `Signal`.
        direction: ``forward`` for a signal, ``backward`` for a gradient; that of a parameter or an input of the model
            has ``parameter`` or ``input`` as its op.
        tag: the prediction's tag.
        predicted, measured: second moments.
        error: log2(predicted / measured); 0 where both are zero or both infinite, ±inf where one of them is, NaN
            where one is NaN.
        standard_error: of log2 of ``measured``, in octaves, as the passes show it.
        tolerance: octaves by which the prediction may miss, beside chance.
        allowed: tolerance, and what the interval of the measured mean reaches beyond ``measured`` on the side of the
            prediction.
        spread: predicted standard deviation of the second moment from one weight draw to the next, in octaves.
        spread_measured: the measured one; NaN where one set of weights was measured.
        spread_least, spread_most: between these the predicted spread is as measured: the interval of the measured one,
            with `SPREAD_FACTOR` and `SPREAD_FLOOR`.
        fixed: whether weights that it depends on were the same in every pass.
        passes: what this rests on: those of the first look, or the fresh ones that looked again.
        similarity, similarity_measured: of two samples, as in `Signal`.
        similarity_allowed: by how much the predicted one may miss: `APART`, and the interval of the measured mean; NaN
            where one set of weights was measured, which does not show how far it may be from others.
    """

    name: str
    module: str
    op: str
    shape: tuple[int, ...]
    direction: Direction
    tag: Tag
    predicted: float
    measured: float
    error: float
    standard_error: float
    tolerance: float
    allowed: float
    spread: float
    spread_measured: float
    spread_least: float
    spread_most: float
    fixed: bool
    passes: int
    similarity: float = math.nan
    similarity_measured: float = math.nan
    similarity_allowed: float = math.nan

    @property
    def off(self) -> bool:
        """Whether the error is larger than allowed, or is not known (NaN)."""
        return not abs(self.error) <= self.allowed

    @property
    def spread_off(self) -> bool:
        """Whether the predicted spread is not the measured one."""
        return not self.spread_least <= self.spread <= self.spread_most

    @property
    def similarity_error(self) -> float:
        """Predicted minus measured similarity of samples; NaN where one of them is not known."""
        return self.similarity - self.similarity_measured

    @property
    def similarity_off(self) -> bool:
        """Whether the predicted similarity of samples is not the measured one."""
        return abs(self.similarity_error) > self.similarity_allowed

    @property
    def excused(self) -> bool:
        """Whether the prediction misses by much, in passes that scatter so much that it may be right.

        Passes of one set of weights do not tell, however many: it may be anywhere in the scatter of all.
        """
        return not self.off and not self.fixed and abs(self.error) > self.tolerance + DOUBT

    @property
    def one_set(self) -> bool:
        """Whether the prediction misses by much for one set of weights, as it does for others of the same sizes."""
        return not self.off and self.fixed and abs(self.error) > DOUBT

    @property
    def doubted(self) -> bool:
        """Whether it is off, or undecided: fresh passes tell."""
        return self.off or self.spread_off or self.excused

    @property
    def excess(self) -> float:
        """Octaves beyond what is allowed (negative where it is within); infinite for NaN."""
        excess = abs(self.error) - self.allowed
        return math.inf if math.isnan(excess) else excess

    @property
    def zero(self) -> bool:
        """Whether the signal is zero, as predicted: a zero-initialised gate or readout, or what it multiplies."""
        return self.predicted == self.measured == 0

    def _summary(self) -> Summary:
        return Summary(str(self))

    def __str__(self) -> str:
        """Return prediction, measurement, error and allowance in one sentence."""
        what = "E[x²]" if self.direction == "forward" else "E[g²]"
        return (
            f"{self.name} ({self.op}): predicted {what} = {self.predicted:.3g}, measured {self.measured:.3g}, "
            f"off by {self.error:+.2f} octaves (allowed ±{self.allowed:.2f})"
        )


OVERFLOWING = 1e-3 * float(np.finfo(np.float32).max) ** 2
"""Second moment that only numbers at the end of single precision have: scores that are shut out."""


def log2_ratio(predicted: float, measured: float) -> float:
    """Return log2(predicted / measured) of two second moments; 0 where they are equal (also 0 and 0, inf and inf), and
    where both are of numbers at the end of the range.
    """
    if predicted == measured or (min(predicted, measured) >= OVERFLOWING and math.isfinite(measured)):
        return 0.0
    if math.isnan(predicted) or math.isnan(measured):
        return math.nan
    if predicted == 0 or math.isinf(measured):
        return -math.inf
    if measured == 0 or math.isinf(predicted):
        return math.inf
    return math.log2(predicted) - math.log2(measured)


def compare_one(
    predicted: Signal,
    measured: Signal,
    direction: Direction,
    draws: int,
    tolerance: float | None,
    scatter: Signal | None,
    masks: Share = STEADY,
    rate: float = ERROR_RATE,
) -> Comparison:
    """Compare one signal.

    Args:
        predicted: the prediction.
        measured: the measurement, over ``draws`` passes.
        direction: of the signal.
        draws: passes.
        tolerance: octaves; None takes `TOLERANCE`.
        scatter: a measurement over as many draws of the weights: ``measured`` itself, or one that shows how much the
            weights of ``measured``, which were all the same, may differ from others; None where nothing shows it.
        masks: how far the random masks that it is made of may be off by chance.
        rate: probability with which chance alone puts the second moment beyond its interval.
    """
    error = log2_ratio(predicted.second_moment, measured.second_moment)
    base = TOLERANCE[predicted.tag] if tolerance is None else tolerance
    chance = _chance(measured, draws, scatter, rate, above=error > 0)
    chance = max(chance, masks.below if error > 0 else masks.above)
    seen = math.nan if scatter is None else scatter.log2_std
    least, most = 0.0, math.inf
    if direction == "forward" and math.isfinite(seen) and draws > 1:  # of gradients no spread is predicted
        low, high = std_range(draws - 1)
        least = low * seen / SPREAD_FACTOR - SPREAD_FLOOR
        most = high * seen * SPREAD_FACTOR + SPREAD_FLOOR
    return Comparison(
        name=predicted.name,
        module=predicted.module,
        op=predicted.op,
        shape=predicted.shape,
        direction=direction,
        tag=predicted.tag,
        predicted=predicted.second_moment,
        measured=measured.second_moment,
        error=error,
        standard_error=0.0 if math.isnan(measured.log2_error) else measured.log2_error,
        tolerance=base,
        allowed=base + chance,
        spread=predicted.log2_std,
        spread_measured=seen,
        spread_least=least,
        spread_most=most,
        fixed=scatter is not measured,
        passes=draws,
        similarity=predicted.similarity,
        similarity_measured=measured.similarity,
        similarity_allowed=_apart(draws, scatter, rate, fixed=scatter is not measured),
    )


def _apart(draws: int, scatter: Signal | None, rate: float, fixed: bool) -> float:
    """Return by how much a predicted similarity may miss; NaN where nothing shows its scatter."""
    if scatter is None or math.isnan(scatter.similarity_error):
        return math.nan
    return APART + student(draws - 1, rate) * scatter.similarity_error * (math.sqrt(draws) if fixed else 1.0)


def _chance(measured: Signal, draws: int, scatter: Signal | None, rate: float, above: bool) -> float:
    """Return how far the interval of the mean second moment reaches beyond the measured one, in octaves.

    Args:
        measured: the measurement.
        draws: passes.
        scatter: as for `compare_one`.
        rate: as well.
        above: upwards, or downwards.
    """
    if draws < 2:
        return 0.0
    if not math.isfinite(measured.log2_mean):  # zero or infinite in some draws: no logarithms to go by
        if math.isfinite(measured.log2_error):
            return student(draws - 1, rate) * measured.log2_error
        # all but one draw are 0 (a whole sample dropped): how far the mean is off, one draw cannot tell
        return math.inf if measured.log2_mean == -math.inf and 0.0 < measured.second_moment < math.inf else 0.0
    std, count = measured.log2_std, draws
    if scatter is not None and scatter is not measured and math.isfinite(scatter.log2_std):
        std, count = max(std, scatter.log2_std), 1
    low, high = log_normal_mean(measured.log2_mean, std, count, draws - 1, rate)
    middle = math.log2(measured.second_moment)
    return max(high - middle if above else middle - low, 0.0)
