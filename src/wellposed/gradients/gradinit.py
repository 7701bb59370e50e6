"""GradInit: scales that minimise the loss after one optimizer step, under a bound on the gradient."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from pydantic import JsonValue
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from wellposed import ranks
from wellposed.errors import GradientError, OptionError
from wellposed.gradients.batches import Batch
from wellposed.gradients.batches import sub_batches as split
from wellposed.gradients.bound import Gamma, bound
from wellposed.gradients.comparison import compared
from wellposed.gradients.cotangents import Engine, Objective, norm_of
from wellposed.gradients.problem import LossFunction, Mode, Problem, Tensors, wide
from wellposed.gradients.scale_adam import ScaleAdam
from wellposed.gradients.scales import Scales
from wellposed.gradients.search import Figures, first_of, search
from wellposed.options import check_choice, check_integer, check_positive, check_positive_or_auto
from wellposed.plans import Plan
from wellposed.surroundings import settled

Optimizer = Literal["sgd", "adam"]
_POWERS: dict[Optimizer, int] = {"sgd": 2, "adam": 1}
"""p of the norm that bounds the gradient: the step's first-order effect on the loss is η ‖g‖₂² or η ‖g‖₁."""


@dataclass(frozen=True, slots=True)
class GradInitSettings:
    """What is rarely set of `gradinit`.

    Attributes:
        rate: τ, of Adam's steps on the coefficients. Objective and constraint have moments of their own, as in the
            published code.
        minimum: α, below which no coefficient goes.
        clip: the largest magnitude of the slope along one coefficient.
        overlap: what the two parts of a batch have in common, in [0, 1): half of their samples, as published.
        engine: how Hessian-vector products are taken: ``double_backward``, ``two_pass`` or ``finite_difference`` (see
            `NioSettings`).
        form: ``algorithm`` differentiates the loss after the step also through the step's gradient, as eq. 1 asks;
            ``published`` as the authors' code and launch scripts do: for SGD the step is taken as a constant of unit
            length, −η g / ‖g‖, and biases may go to 0.
    """

    rate: float = 0.01
    minimum: float = 0.01
    clip: float = 1.0
    overlap: float = 0.5
    engine: Engine = "double_backward"
    form: Literal["algorithm", "published"] = "algorithm"


@settled(differentiates=True)
def gradinit(
    model: nn.Module,
    loss_fn: LossFunction,
    batches: Iterable[Any],
    *,
    plan: Plan | None = None,
    optimizer: Optimizer = "sgd",
    eta: float = 0.1,
    gamma: Gamma = "auto",
    iterations: int = 100,
    training: Mode = "norms",
    seed: int = 0,
    resume: Plan | None = None,
    progress: bool = True,
    settings: GradInitSettings | None = None,
    **fields: Any,
) -> Plan:
    """Refine scales so that one step of the optimizer lowers the loss most (GradInit); returns a plan, changes nothing.

    Every tensor that is not zero has a coefficient, biases and gains of norms too. In each iteration the gradient g of
    one part of a batch is taken. Where its norm is above γ, the coefficients go down that norm; elsewhere down the loss
    of the other part after the step θ − η A[g], with A[g] = g for SGD and sign(g) for Adam. All derivatives with
    respect to the coefficients come from one Hessian-vector product, or from none (the sign's derivative is 0).

    In a distributed run every rank brings batches of its own, and losses and gradients are the means over all of them,
    as in data-parallel training; all ranks return the same plan, for the weights of rank 0.

    Args:
        model: the model; it is left as it was.
        loss_fn: ``loss_fn(model, batch)``, the mean loss of a batch as a scalar tensor.
        batches: any iterable of batches; one is used in each iteration, from the start again as often as needed.
        plan: draw the parameters from this plan and refine those; without it the model's present ones are refined.
        optimizer: whose first step it is, ``"sgd"`` or ``"adam"``.
        eta: η, the rate of that step.
        gamma: γ, the bound on ‖g‖₂ (SGD) or ‖g‖₁ (Adam). ``"auto"`` takes the norm at which the step promises, to
            first order, to remove the whole loss: γ² = loss / η, or γ = loss / η. The paper sets it by hand, 1 for SGD
            with η = 0.1.
        iterations: T.
        training: the mode. ``"norms"``, as published: batch norm takes the statistics of each part, and nothing is
            dropped; True or False for training or evaluation mode.
        seed: of dropout's random numbers.
        resume: a plan that this function returned, to go on from; ``iterations`` counts from its start.
        progress: show a progress bar in a terminal.
        settings: what is rarely set.
        fields: fields of ``settings`` by name; they go before those of the object.

    Returns:
        A plan of scales. `Plan.figures` holds the agreement ``before`` and ``after``, ``gamma``, ``omega`` and the
        ``history``, in which ``step loss``, the loss after the step, has one entry for each iteration inside γ. An
        interruption (Ctrl-C) returns the best point so far.

    Raises:
        GradientError: the loss is no scalar, not finite (also after the step) or independent of the parameters; a
            gradient that is zero; batches that run out; a model that cannot be differentiated twice.
        OptionError: an unknown optimizer or engine, or an option outside its range.

    Source: Zhu et al. 2021 (GradInit, arXiv 2102.08098), eq. 1 and Algorithm 1.
    """
    settings = replace(settings or GradInitSettings(), **fields)
    check_choice("optimizer", optimizer, _POWERS)
    check_choice("form", settings.form, ("algorithm", "published"))
    if training not in (True, False, "norms"):
        raise OptionError(f"training must be True, False or 'norms', received {training!r}")
    check_positive_or_auto(gamma=gamma)
    check_positive(eta=eta, rate=settings.rate, minimum=settings.minimum, clip=settings.clip)
    check_integer(iterations=iterations)
    problem = Problem(model, loss_fn, training=training, seed=seed)
    scales = Scales(problem, plan, names=problem.parameters.keys())
    scales.share()
    runner = _GradInit(problem, scales, settings, optimizer=optimizer, eta=eta, gamma=gamma)
    runner.load(resume)
    twice = nullcontext() if settings.engine == "finite_difference" else sdpa_kernel(SDPBackend.MATH)
    with problem.running(), twice:
        first, source = first_of(batches, iterations)
        comparison, (history, finished) = compared(
            problem,
            scales,
            first,
            lambda _: search(runner, scales, source, iterations, method="gradinit", resume=resume, progress=progress),
            overlap=settings.overlap,
        )
    figures: dict[str, JsonValue] = comparison.figures() | {
        "gamma": bound(gamma, comparison.after.loss, eta, power=_POWERS[optimizer]),
        "finished": finished,
        "history": history,
        "moments": runner.moments(),
    }
    options: dict[str, JsonValue] = {
        "optimizer": optimizer,
        "eta": eta,
        "gamma": gamma,
        "iterations": iterations,
        "training": training,
        "seed": seed,
        **asdict(settings),
    }
    return scales.plan("gradinit", options, figures, f"GradInit (Algorithm 1, {optimizer}) {comparison}")


class _GradInit:
    """One iteration of Algorithm 1."""

    def __init__(
        self,
        problem: Problem,
        scales: Scales,
        settings: GradInitSettings,
        *,
        optimizer: Optimizer,
        eta: float,
        gamma: Gamma,
    ) -> None:
        self._problem, self._scales, self._settings = problem, scales, settings
        self._objective = Objective(problem, settings.engine)
        self._optimizer, self._eta, self._gamma = optimizer, eta, gamma
        self._published = settings.form == "published"
        self._least = scales.least(settings.minimum, of_biases=0.0 if self._published else settings.minimum)
        self._adam = ScaleAdam(scales.omega, settings.rate)

    def moments(self) -> dict[str, JsonValue]:
        """Return the state of the optimizers as plain numbers, from which `load` goes on."""
        return self._adam.state()

    def load(self, plan: Plan | None) -> None:
        """Take up the optimizers of the run that made ``plan``."""
        known = None if plan is None else plan.figures.get("moments")
        if isinstance(known, dict):
            self._adam.load(known)

    def __call__(self, batch: Any, iteration: int) -> tuple[Figures, tuple[float, ...]]:
        """Take one step on the scales, and return its figures, and how good the scales before it were."""
        rows, others = split(Batch.of(batch), 2, self._settings.overlap)
        norm, loss, after, gradient = self._slopes(rows, others)
        inside = not math.isnan(after)
        # the objective is divided by η, so that clipping means the same for every η
        slopes = self._scales.pulled_back(gradient)
        clip = self._settings.clip
        clipped = {name: (s / self._eta if inside else s).clamp(-clip, clip) for name, s in slopes.items()}
        for name, move in self._adam("objective" if inside else "constraint", clipped).items():
            self._scales.omega[name] = (self._scales.omega[name] - move).clamp_min(self._least[name])
        figures = {"GN": norm, "loss": loss} | ({"step loss": after} if inside else {})
        return figures, (float(inside), -after if inside else -norm)

    def _slopes(self, rows: Any, others: Any) -> tuple[float, float, float, Tensors]:
        """Return the gradient norm, the loss, the loss after the step (NaN outside γ) and what to go down, by θ.

        All are those of the ranks' mean loss.
        """

        def product(direction: Tensors) -> Tensors:
            with ranks.failing_together():
                own = self._objective.product(pending, direction)
            return _averaged(own)

        parameters = self._scales.parameters()
        with ranks.failing_together():
            point, pending = self._objective.at(parameters, [rows])
        gradient = _averaged({name: g.detach() for name, g in pending.gradients[0].items()})
        loss = ranks.mean(point.loss)
        power = _POWERS[self._optimizer]
        norm = norm_of(gradient) if power == 2 else _sum_of_magnitudes(gradient)
        if norm > bound(self._gamma, loss, self._eta, power=power):
            direction = {n: g / norm if power == 2 else g.sign() for n, g in gradient.items()}
            return norm, loss, math.nan, product(direction)
        unit = norm if self._published else 1.0
        step = {n: g / unit if power == 2 else g.sign() for n, g in gradient.items()}
        moved = {n: (wide(p) - self._eta * wide(step[n])).to(p.dtype) for n, p in parameters.items()}
        with ranks.failing_together():
            try:
                own, slopes = self._problem.gradient(moved, others, 1)
            except GradientError as error:
                raise GradientError(
                    f"after one step of {self._optimizer} at eta={self._eta:g}: {error}; lower eta or gamma"
                ) from error
        slopes, after = _averaged(slopes), ranks.mean(own)
        if power == 2 and not self._published and norm_of(slopes) > 0.0:
            # d/dθ L(θ − η g(θ)) = (1 − η H) ∇L
            through = product(slopes)
            slopes = {n: wide(s) - self._eta * wide(through[n]) for n, s in slopes.items()}
        return norm, loss, after, slopes


def _averaged(tensors: Tensors) -> Tensors:
    """Return the mean of what the ranks hold; the tensors themselves where there is one rank."""
    if ranks.count() == 1:
        return tensors
    copies = {name: tensor.clone() for name, tensor in tensors.items()}  # gradients' memory belongs to their graph
    ranks.averaged_(list(copies.values()))
    return copies


def _sum_of_magnitudes(tensors: Tensors) -> float:
    return math.fsum(float(wide(t).abs().sum(dtype=torch.float64)) for t in tensors.values())
