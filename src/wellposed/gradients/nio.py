"""NIO: scales optimised so that the gradients of sub-batches agree, under a bound on their norm (Algorithm 3)."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from pydantic import JsonValue
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from wellposed import ranks
from wellposed.gradients.agreement import Agreement
from wellposed.gradients.batches import Batch
from wellposed.gradients.batches import sub_batches as split
from wellposed.gradients.bound import Gamma, bound
from wellposed.gradients.comparison import compared
from wellposed.gradients.cotangents import ENGINES, Engine, Objective, Point, Weighing
from wellposed.gradients.problem import LossFunction, Problem, out_of_memory
from wellposed.gradients.published_nio import PublishedNio, WholeBatch
from wellposed.gradients.scales import Scales
from wellposed.gradients.search import Figures, first_of, search
from wellposed.options import check_choice, check_integer, check_not_negative, check_positive, check_positive_or_auto
from wellposed.plans import Plan
from wellposed.surroundings import settled

_FORMS = {"algorithm": "Algorithm 3", "published": "as its authors' code"}


@dataclass(frozen=True, slots=True)
class NioSettings:
    """What is rarely set of `nio`.

    Attributes:
        overlap: r in [0, 1), what neighbouring sub-batches share.
        minimum: α, below which no coefficient goes.
        engine: how Hessian-vector products are taken: ``double_backward`` (exact, fastest), ``two_pass`` (exact, one
            sub-batch in memory at a time), ``finite_difference`` (two first-order passes, about 1 % error in float32;
            for models that cannot be differentiated twice), or ``auto``: the first, with the second where memory runs
            out.
        gains: also scale the gains of normalisation layers.
        per_channel: one coefficient for each output channel in place of one for each tensor.
        rate: the learning rate that ``gamma="auto"`` is for.
        agreement: a, the weight of GradCosine beside the gradient norm; 1 in the paper.
        form: ``algorithm`` is the paper's Algorithm 3; ``published`` is what the authors' code does, which scales every
            tensor, biases and gains too, by Adam (rate 0.05, slopes clipped at 1) down −a · GC − Σ‖g‖, or down the
            *mean* norm where that is above γ. GC leaves out the pairs of a sub-batch with itself. One pass of the whole
            batch gives all sub-batches' losses, with batch norms in training mode and nothing dropped, and gradients
            with respect to batch norms do not count. It needs a loss of the form ``loss(model(inputs), targets)``, and
            γ = 5 where ``gamma`` is ``"auto"`` (they set 10 and D = 4 for ResNet-50). ``step``, ``gains`` and
            ``engine`` have no say in it.
    """

    overlap: float = 0.2
    minimum: float = 0.01
    engine: Engine | Literal["auto"] = "auto"
    gains: bool = False
    per_channel: bool = False
    rate: float = 0.1
    agreement: float = 1.0
    form: Literal["algorithm", "published"] = "algorithm"


@settled(differentiates=True)
def nio(
    model: nn.Module,
    loss_fn: LossFunction,
    batches: Iterable[Any],
    *,
    plan: Plan | None = None,
    sub_batches: int = 2,
    gamma: Gamma = "auto",
    step: float | Literal["auto"] = "auto",
    iterations: int = 100,
    training: bool = True,
    seed: int = 0,
    resume: Plan | None = None,
    progress: bool = True,
    settings: NioSettings | None = None,
    **fields: Any,
) -> Plan:
    """Refine an initialisation so that gradients of sub-batches agree (NIO); returns a plan, changes nothing.

    In each iteration the gradients of D sub-batches are taken. Where the largest of their norms is above γ, the
    coefficients go down the gradient norm; elsewhere up GradCosine plus gradient norm.

    Args:
        model: the model; it is left as it was.
        loss_fn: ``loss_fn(model, batch)``, the mean loss of a batch as a scalar tensor.
        batches: any iterable of batches; one is used in each iteration, from the start again as often as needed.
        plan: draw the weights from this plan and refine those; the result draws them, scaled, on any machine. Without
            it the model's present weights are refined, and the result rescales them.
        sub_batches: D.
        gamma: γ, the bound on the gradient norm; ``"auto"`` takes the norm at which a step of gradient descent at
            ``settings.rate`` promises, to first order, to remove the whole loss and no more: γ² = loss / rate, with the
            loss of the moment or of the start, whichever is smaller; but no more than the norm at the start. A number
            may be above that norm, which then rises.
        step: τ, the factor on the gradient in each step; ``"auto"`` moves the coefficient with the steepest slope by
            2 / ``iterations``, so that all can cross their range whatever the model's scale.
        iterations: T.
        training: run in training mode: batch norm takes the statistics of each sub-batch (the paper does not say
            whose), and running statistics are left alone.
        seed: of dropout's random numbers.
        resume: a plan that this function returned, to go on from; ``iterations`` counts from its start.
        progress: show a progress bar in a terminal.
        settings: what is rarely set.
        fields: fields of ``settings`` by name; they go before those of the object.

    Returns:
        A plan of scales. `Plan.figures` holds the agreement ``before`` and ``after``, ``gamma``, ``omega`` and the
        ``history``. An interruption (Ctrl-C) returns the best point so far.

    Raises:
        GradientError: the loss is no scalar, not finite or independent of the parameters; a gradient that is zero; a
            batch smaller than D; batches that run out; a model that cannot be differentiated twice.
        OptionError: an unknown engine, or an option outside its range.

    In a distributed run every rank brings batches of its own: the sub-batches of all ranks count together, and all
    ranks return the same plan, for the weights of rank 0.

    Source: Yang et al. 2022 (NIO), Algorithm 3; the cotangents in closed form are in `wellposed.gradients.cotangents`.
    """
    settings = replace(settings or NioSettings(), **fields)
    check_choice("engine", settings.engine, (*ENGINES, "auto"))
    check_positive_or_auto(gamma=gamma, step=step)
    check_choice("form", settings.form, ("algorithm", "published"))
    check_positive(minimum=settings.minimum, rate=settings.rate)
    check_not_negative(agreement=settings.agreement)
    check_integer(iterations=iterations)
    published = settings.form == "published"
    whole = WholeBatch(loss_fn, sub_batches, settings.overlap) if published else None
    problem = Problem(model, whole or loss_fn, training="norms" if published and training else training, seed=seed)
    names = problem.parameters.keys() if published else None
    scales = Scales(problem, plan, gains=settings.gains, per_channel=settings.per_channel, names=names)
    scales.share()
    runner: _Nio | PublishedNio
    if whole is not None:
        how = {"agreement": settings.agreement, "minimum": settings.minimum}
        runner = PublishedNio(problem, scales, whole, gamma=gamma, resume=resume, **how)
    else:
        runner = _Nio(problem, scales, settings, count=sub_batches, gamma=gamma, step=step, largest=2.0 / iterations)

    def refine(before: Agreement) -> tuple[dict[str, JsonValue], bool]:
        if isinstance(runner, _Nio):
            runner.start = before
        return search(runner, scales, source, iterations, method="nio", resume=resume, progress=progress)

    # Fused attention has no second derivative.
    twice = nullcontext() if settings.engine == "finite_difference" else sdpa_kernel(SDPBackend.MATH)
    with problem.running(), twice:
        first, source = first_of(batches, iterations)
        comparison, (history, finished) = compared(
            problem, scales, first, refine, sub_batches=sub_batches, overlap=settings.overlap
        )
    figures: dict[str, JsonValue] = comparison.figures() | {
        "gamma": runner.bound(comparison.after.loss),
        "engine": runner.engine,
        "finished": finished,
        "history": history,
        **runner.state(),
    }
    options: dict[str, JsonValue] = {
        "sub_batches": sub_batches,
        "gamma": gamma,
        "step": step,
        "iterations": iterations,
        "training": training,
        "seed": seed,
        **asdict(settings),
    }
    return scales.plan("nio", options, figures, f"NIO ({_FORMS[settings.form]}), which {comparison}")


class _Nio:
    """One iteration of Algorithm 3 on ``count`` sub-batches; ``start`` is the score at the beginning.

    ``largest`` is how far the coefficient with the steepest slope moves where ``step`` is ``"auto"``.
    """

    start: Agreement

    def __init__(
        self,
        problem: Problem,
        scales: Scales,
        settings: NioSettings,
        *,
        count: int,
        gamma: Gamma,
        step: float | Literal["auto"],
        largest: float,
    ) -> None:
        self._problem, self._scales, self._settings = problem, scales, settings
        self._count, self._gamma, self._step, self._largest = count, gamma, step, largest
        self.engine: Engine = "double_backward" if settings.engine == "auto" else settings.engine
        self._objective = Objective(problem, self.engine, joined=True, scales=scales)

    def state(self) -> dict[str, JsonValue]:
        """Return what `nio` takes up again beside the coefficients: nothing."""
        return {}

    def bound(self, loss: float) -> float:
        """Return γ where the loss is ``loss``: a bound that is worked out grows neither with the loss nor beyond the
        norm at the start.
        """
        if self._gamma != "auto":
            return self._gamma
        return min(bound("auto", min(loss, self.start.loss), self._settings.rate), self.start.norm)

    def __call__(self, batch: Any, iteration: int) -> tuple[Figures, tuple[float, ...]]:
        """Take one step on the scales, and return its figures, and how good the scales before it were."""
        parts = split(Batch.of(batch), self._count, self._settings.overlap)
        point, slopes, inside = self._slopes(parts)
        ranks.summed_(list(slopes.values()))
        steepest = max(float(slope.abs().max()) for slope in slopes.values())
        factor = self._step if self._step != "auto" else (self._largest / steepest if steepest else 0.0)
        for name, slope in slopes.items():
            moved = self._scales.omega[name] + (factor if inside else -factor) * slope
            self._scales.omega[name] = moved.clamp_min(self._settings.minimum)
        figures = {"GC": point.cosine, "GN": point.norm, "ratio": point.ratio, "loss": point.loss}
        return figures, (float(inside), point.cosine if inside else -point.norm)

    def _slopes(self, parts: list[Any]) -> tuple[Point, dict[str, torch.Tensor], bool]:
        """Return the point, the slopes of the scales, and whether it is within the bound; in two passes once memory
        runs out.
        """
        try:
            with ranks.failing_together():  # all ranks take to another engine, or none
                point, pending = self._objective.at(self._scales.parameters(), parts)
                inside = max(point.norms) <= self.bound(point.loss)
                weighing = Weighing(float(inside) * self._settings.agreement, 1.0)
                return point, self._objective.slopes(pending, weighing), inside
        except RuntimeError as error:
            falls_back = self._settings.engine == "auto" and self.engine == "double_backward"
            if not (falls_back and out_of_memory(error)):
                raise
            self.engine = "two_pass"
            self._objective = Objective(self._problem, self.engine, joined=True, scales=self._scales)
        return self._slopes(parts)
