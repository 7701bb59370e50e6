"""One common factor on all weights that brings the gradient norm to γ, by first-order gradients alone."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import torch
from pydantic import JsonValue
from torch import nn

from wellposed import ranks
from wellposed.errors import GradientError, RankError
from wellposed.gradients.batches import Batch
from wellposed.gradients.batches import sub_batches as split
from wellposed.gradients.bound import Gamma, bound
from wellposed.gradients.comparison import compared
from wellposed.gradients.cotangents import norm_of
from wellposed.gradients.problem import LossFunction, Problem
from wellposed.gradients.scales import Scales
from wellposed.gradients.search import Bar, first_of
from wellposed.options import check_integer, check_positive, check_positive_or_auto
from wellposed.plans import Plan
from wellposed.surroundings import settled

OCTAVES = 16.0
"""How far the factor is looked for: from 2^-16 to 2^16."""
PROBES = 80
"""Most factors that are tried."""


@settled(differentiates=True)
def gradient_norm(
    model: nn.Module,
    loss_fn: LossFunction,
    batches: Iterable[Any],
    *,
    plan: Plan | None = None,
    sub_batches: int = 2,
    overlap: float = 0.2,
    gamma: Gamma = "auto",
    tolerance: float = 0.01,
    batch_count: int = 1,
    gains: bool = False,
    training: bool = True,
    rate: float = 0.1,
    seed: int = 0,
    progress: bool = True,
) -> Plan:
    """Scale all weights by one common factor, so that the mean gradient norm is γ; returns a plan, changes nothing.

    The cheap stand-in for NIO: what NIO's objective mostly does is to bring the norm to γ, and one number does that as
    well, without second derivatives. The factor nearest to 1 is bracketed in octaves and then bisected in log space.

    In a distributed run every rank brings batches of its own, and the norm is averaged over all of them.

    Args:
        model: the model; it is left as it was.
        loss_fn: ``loss_fn(model, batch)``, the mean loss of a batch as a scalar tensor.
        batches: any iterable of batches, of which the first ``batch_count`` are used.
        plan: draw the weights from this plan and scale those; without it the model's present weights are scaled.
        sub_batches: D, the number of sub-batches of each batch whose gradient norms are averaged.
        overlap: r in [0, 1), what neighbouring sub-batches share.
        gamma: γ, which the norm is brought to from above or below. ``"auto"`` only bounds it: by the norm at which a
            step of gradient descent at ``rate`` promises, to first order, to remove the whole loss, γ² = loss / rate,
            with the loss at the factor that is tried. Below that bound the factor is 1: larger weights would raise the
            loss and the bound with it.
        tolerance: relative error of the norm that is let pass.
        batch_count: over how many batches the norm is averaged.
        gains: also scale the gains of normalisation layers.
        training: run in training mode, as NIO does: batch norm takes the statistics of each sub-batch, dropout drops
            the same units at every factor, and running statistics are left alone.
        rate: the learning rate that ``gamma="auto"`` is for.
        seed: of dropout's random numbers.
        progress: show a progress bar in a terminal.

    Returns:
        A plan of scales. `Plan.figures` holds the agreement ``before`` and ``after``, ``gamma``, ``omega`` and the
        ``history`` of factors tried. An interruption (Ctrl-C) returns the best so far.

    Raises:
        GradientError: the loss is no scalar, not finite or independent of the parameters; a gradient that is zero; no
            factor between 2^-16 and 2^16 brings the norm to γ (says which norms were reached).
        OptionError: an option outside its range.
    """
    check_positive_or_auto(gamma=gamma)
    check_positive(tolerance=tolerance, rate=rate)
    check_integer(batch_count=batch_count)
    problem = Problem(model, loss_fn, training=training, seed=seed)
    scales = Scales(problem, plan, gains=gains)
    scales.share()
    first, source = first_of(batches, batch_count)
    parts = [split(Batch.of(batch), sub_batches, overlap) for batch in islice(source, batch_count)]
    with problem.running(), Bar("gradient_norm", None, 0, progress) as show:
        finder = _Finder(problem, scales, [rows for each in parts for rows in each], gamma, rate, show)
        comparison, _ = compared(
            problem, scales, first, lambda _: finder.find(tolerance), sub_batches=sub_batches, overlap=overlap
        )
    best = finder.best
    figures: dict[str, JsonValue] = comparison.figures() | {
        "gamma": best.gamma,
        "factor": best.factor,
        "gradient_norm": best.norm,
        "finished": finder.finished,
        "history": {
            "factor": [probe.factor for probe in finder.probes],
            "GN": [probe.norm for probe in finder.probes],
            "loss": [probe.loss for probe in finder.probes],
        },
    }
    options: dict[str, JsonValue] = {
        "sub_batches": sub_batches,
        "overlap": overlap,
        "gamma": gamma,
        "tolerance": tolerance,
        "batch_count": batch_count,
        "gains": gains,
        "training": training,
        "rate": rate,
        "seed": seed,
    }
    why = f"one factor for all weights, which {comparison} (γ = {best.gamma:.3g})"
    return scales.plan("gradient_norm", options, figures, why)


@dataclass(frozen=True, slots=True)
class _Probe:
    """What was measured at one factor: mean gradient norm and loss, γ there, and ln(norm / γ)."""

    octaves: float
    norm: float
    loss: float
    gamma: float

    @property
    def factor(self) -> float:
        return float(2.0**self.octaves)

    @property
    def excess(self) -> float:
        """Return ln(norm / γ)."""
        return math.log(self.norm / self.gamma)


class _Finder:
    """The search for the factor at which the gradient norm is γ."""

    def __init__(
        self,
        problem: Problem,
        scales: Scales,
        parts: Sequence[Any],
        gamma: Gamma,
        rate: float,
        show: Callable[[dict[str, float]], None],
    ) -> None:
        self._problem, self._scales, self._parts = problem, scales, parts
        self._gamma, self._rate, self._show = gamma, rate, show
        self.probes: list[_Probe] = []
        self.finished = True

    @property
    def best(self) -> _Probe:
        """The probe whose norm is nearest to γ."""
        return min(self.probes, key=lambda probe: abs(probe.excess))

    def find(self, tolerance: float) -> None:
        """Set the scales to the factor; an interruption sets them to the best so far.

        Raises:
            GradientError: as `gradient_norm`.
        """
        allowed = math.log1p(tolerance)
        try:
            self._bisect(allowed)
        except KeyboardInterrupt:
            if not self.probes:
                raise
            self.finished = False
            warnings.warn(
                f"gradient_norm was interrupted after {len(self.probes)} factors; the plan has the best so far, with a "
                f"gradient norm of {self.best.norm:.3g} where γ is {self.best.gamma:.3g}",
                stacklevel=6,
            )
        self._set(self.best.octaves)

    def _bisect(self, allowed: float) -> None:
        """Narrow the factor that brings the gradient norm to γ, by false position; warn where it is not reached."""
        low, high = self._bracket(allowed)
        if low == high:
            return
        while abs(self.best.excess) > allowed and len(self.probes) < PROBES:
            (left, a), (right, b) = low, high
            if right - left <= 1e-7:
                break
            # where a straight line through the ends crosses, kept off the ends; the middle where one is infinite
            share = a / (a - b) if math.isfinite(a) and math.isfinite(b) else 0.5
            middle = left + (right - left) * min(max(share, 0.1), 0.9)
            value = self._excess(middle)
            if (value > 0) == (b > 0):
                high = (middle, value)
            else:
                low = (middle, value)
        if abs(self.best.excess) > allowed:
            warnings.warn(
                f"the gradient norm jumps over γ = {self.best.gamma:.3g}; the nearest that any factor gives is "
                f"{self.best.norm:.3g}",
                stacklevel=7,
            )

    def _bracket(self, allowed: float) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return two points, lower first, between which the norm crosses γ (or twice the one that has it)."""
        start = self._excess(0.0)
        ends: dict[int, tuple[float, float]] = {-1: (0.0, start), 1: (0.0, start)}
        if abs(start) <= allowed or (start < 0 and self._gamma == "auto"):
            return ends[-1], ends[1]
        downwards = -1 if start > 0 else 1  # without normalisation the norm grows with the factor
        distance = 1.0
        while distance <= OCTAVES:
            for side in (downwards, -downwards):
                last = ends[side]
                if not math.isfinite(last[1]):
                    continue
                here = (side * distance, self._excess(side * distance))
                ends[side] = here
                if (here[1] > 0) != (start > 0):
                    return (last, here) if side > 0 else (here, last)
                if abs(here[1]) < abs(last[1]):
                    break  # it comes nearer on this side: the other need not be tried
            distance *= 2.0
        tried = sorted(self.probes, key=lambda probe: probe.octaves)
        raise GradientError(
            f"no common factor of the weights brings the gradient norm to γ = {self.best.gamma:.4g}: it is "
            f"{tried[0].norm:.4g} at {tried[0].factor:.3g} times the weights, {self.probes[0].norm:.4g} at 1 and "
            f"{tried[-1].norm:.4g} at {tried[-1].factor:.3g} times, as norms undo a factor and biases of the readout "
            "need none; give another gamma=, or scale the gains too (gains=True)"
        )

    def _excess(self, octaves: float) -> float:
        """Return ln(norm / γ) at a factor: -inf where the gradient is zero, inf where loss or gradient overflow."""
        self._set(octaves)
        parameters = self._scales.parameters()
        norms, losses = [], []
        try:
            with ranks.failing_together():
                for part, rows in enumerate(self._parts):
                    loss, gradient = self._problem.gradient(parameters, rows, part)
                    norms.append(norm_of(gradient))
                    losses.append(loss)
        except (GradientError, RankError) as error:
            if octaves == 0.0 or (isinstance(error, RankError) and error.kind != GradientError.__name__):
                raise
            return math.copysign(math.inf, octaves)
        norms, losses = (list(chain(*ranks.gathered(own))) for own in (norms, losses))
        norm, loss = math.fsum(norms) / len(norms), math.fsum(losses) / len(losses)
        gamma = bound(self._gamma, loss, self._rate)
        if not math.isfinite(norm) or norm == 0.0 or gamma == 0.0:
            if octaves == 0.0:
                raise GradientError(
                    f"the gradient norm is {norm} at a loss of {loss:.4g}, and no factor starts from there; start from "
                    "an initialisation whose signals neither vanish nor overflow (wellposed.initialize_)"
                )
            return -math.inf if norm == 0.0 else math.inf
        probe = _Probe(octaves, norm, loss, gamma)
        self.probes.append(probe)
        self._show({"factor": probe.factor, "GN": norm, "γ": gamma})
        return probe.excess

    def _set(self, octaves: float) -> None:
        for name, omega in self._scales.omega.items():
            self._scales.omega[name] = torch.full_like(omega, 2.0**octaves)
