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
from torch.nn.modules.batchnorm import _NormBase

from wellposed import ranks
from wellposed.errors import GradientError, OptionError
from wellposed.gradients.batches import Batch
from wellposed.gradients.batches import sub_batches as split
from wellposed.gradients.bound import Gamma, bound
from wellposed.gradients.comparison import compared
from wellposed.gradients.cotangents import Engine, Objective, norm_of
from wellposed.gradients.problem import LossFunction, Problem, Tensors, wide
from wellposed.gradients.scales import Scales
from wellposed.gradients.search import Figures, first_of, search
from wellposed.options import check_choice, check_integer, check_positive, check_positive_or_auto
from wellposed.plans import Plan
from wellposed.surroundings import settled

Optimizer = Literal["sgd", "adam"]
_POWERS: dict[Optimizer, int] = {"sgd": 2, "adam": 1}
"""p of the norm that bounds the gradient: the step's first-order effect on the loss is η ‖g‖₂² or η ‖g‖₁."""
_BETAS, _TINY = (0.9, 0.999), 1e-8
"""Adam's constants, for the steps of the coefficients."""


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
    """

    rate: float = 0.01
    minimum: float = 0.01
    clip: float = 1.0
    overlap: float = 0.5
    engine: Engine = "double_backward"


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
    training: bool | Literal["norms"] = "norms",
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
    if training not in (True, False, "norms"):
        raise OptionError(f"training must be True, False or 'norms', received {training!r}")
    check_positive_or_auto(gamma=gamma)
    check_positive(eta=eta, rate=settings.rate, minimum=settings.minimum, clip=settings.clip)
    check_integer(iterations=iterations)
    problem = Problem(model, loss_fn, training=training is True, seed=seed)
    scales = Scales(problem, plan, names=problem.parameters.keys())
    scales.share()
    runner = _GradInit(problem, scales, settings, optimizer=optimizer, eta=eta, gamma=gamma)
    runner.load(resume)
    twice = nullcontext() if settings.engine == "finite_difference" else sdpa_kernel(SDPBackend.MATH)
    with problem.running(), twice:
        if training == "norms":
            for module in problem.model.modules():
                if isinstance(module, _NormBase):
                    module.train()
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
        self._adam = {phase: _Adam(scales.omega, settings.rate) for phase in ("constraint", "objective")}

    def moments(self) -> dict[str, JsonValue]:
        """Return the state of the optimizers as plain numbers, from which `load` goes on."""
        return {phase: adam.state() for phase, adam in self._adam.items()}

    def load(self, plan: Plan | None) -> None:
        """Take up the optimizers of the run that made ``plan``."""
        known = None if plan is None else plan.figures.get("moments")
        if isinstance(known, dict):
            for phase, adam in self._adam.items():
                adam.load(known[phase])

    def __call__(self, batch: Any, iteration: int) -> tuple[Figures, tuple[float, ...]]:
        """Take one step on the scales, and return its figures, and how good the scales before it were."""
        rows, others = split(Batch.of(batch), 2, self._settings.overlap)
        norm, loss, after, gradient = self._slopes(rows, others)
        inside = not math.isnan(after)
        # the objective is divided by η, so that clipping means the same for every η
        slopes = self._scales.pulled_back(gradient)
        clip = self._settings.clip
        clipped = {name: (s / self._eta if inside else s).clamp(-clip, clip) for name, s in slopes.items()}
        for name, move in self._adam["objective" if inside else "constraint"](clipped).items():
            self._scales.omega[name] = (self._scales.omega[name] - move).clamp_min(self._settings.minimum)
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
        step = {n: g if power == 2 else g.sign() for n, g in gradient.items()}
        moved = {n: (wide(p) - self._eta * wide(step[n])).to(p.dtype) for n, p in parameters.items()}
        with ranks.failing_together():
            try:
                own, slopes = self._problem.gradient(moved, others, 1)
            except GradientError as error:
                raise GradientError(
                    f"after one step of {self._optimizer} at eta={self._eta:g}: {error}; lower eta or gamma"
                ) from error
        slopes, after = _averaged(slopes), ranks.mean(own)
        if power == 2 and norm_of(slopes) > 0.0:
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


class _Adam:
    """Adam on the coefficients (Kingma & Ba 2015, Algorithm 1)."""

    def __init__(self, omega: Tensors, rate: float) -> None:
        self._first = {name: torch.zeros_like(o) for name, o in omega.items()}
        self._second = {name: torch.zeros_like(o) for name, o in omega.items()}
        self._rate = rate
        self._steps = 0

    def state(self) -> dict[str, JsonValue]:
        """Return moments and number of steps as plain numbers."""
        moments = zip(self._first.items(), self._second.values(), strict=True)
        return {"steps": self._steps, "of": {name: [float(m), float(v)] for (name, m), v in moments}}

    def load(self, state: Any) -> None:
        """Take the numbers of `state`."""
        self._steps = state["steps"]
        for name, first in self._first.items():
            self._first[name], self._second[name] = (
                torch.tensor(value, dtype=torch.float64).to(first) for value in state["of"][name]
            )

    def __call__(self, slopes: Tensors) -> Tensors:
        """Return by how much the coefficients go down."""
        self._steps += 1
        moves = {}
        for name, slope in slopes.items():
            self._first[name] = torch.lerp(slope, self._first[name], _BETAS[0])
            self._second[name] = torch.lerp(slope.square(), self._second[name], _BETAS[1])
            first = self._first[name] / (1.0 - _BETAS[0] ** self._steps)
            second = self._second[name] / (1.0 - _BETAS[1] ** self._steps)
            moves[name] = self._rate * first / (second.sqrt() + _TINY)
        return moves


def _sum_of_magnitudes(tensors: Tensors) -> float:
    return math.fsum(float(wide(t).abs().sum(dtype=torch.float64)) for t in tensors.values())
