"""MetaInit: norms of weights chosen so that the loss is nearly linear where gradient descent starts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from pydantic import JsonValue
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from wellposed import ranks
from wellposed.errors import GradientError, OptionError
from wellposed.gradients.batches import Batch
from wellposed.gradients.comparison import compared
from wellposed.gradients.cotangents import refuse_once_differentiable
from wellposed.gradients.problem import LossFunction, Problem, Tensors, dense, leaves_of, out_of_memory, wide
from wellposed.gradients.scales import Scales
from wellposed.gradients.search import Figures, first_of, search
from wellposed.options import check_integer, check_positive
from wellposed.plans import Plan
from wellposed.surroundings import settled

EPSILON = 1e-5
"""ε of the gradient quotient, as published."""


@settled(differentiates=True)
def gradient_quotient(
    model: nn.Module,
    loss_fn: LossFunction,
    batch: Any,
    *,
    epsilon: float = EPSILON,
    training: bool = False,
    seed: int = 0,
) -> float:
    """Return the gradient quotient: how much the gradient changes over one step along itself, relative to itself.

    With gradient g and Hessian H it is the mean over all N trainable parameters of |(g − H g) / (g + ε s) − 1|, where
    s = 1 for g ≥ 0 and −1 else: 0 where the loss is linear, and about 1 where H g is as large as g.

    Args:
        model: the model; it is left as it was.
        loss_fn: ``loss_fn(model, batch)``, the mean loss of a batch as a scalar tensor.
        batch: as the loss function takes it.
        epsilon: ε.
        training: whether to run in training mode; the paper's code runs in evaluation mode.
        seed: of dropout's random numbers.

    Raises:
        GradientError: the loss is no scalar, not finite or independent of the parameters; the model cannot be
            differentiated twice.

    Source: Dauphin & Schoenholz 2019 (MetaInit), eq. 1.
    """
    check_positive(epsilon=epsilon)
    problem = Problem(model, loss_fn, training=training, seed=seed)
    with problem.running(), sdpa_kernel(SDPBackend.MATH):
        quotient, _, _ = _quotient(problem, leaves_of(problem.parameters), batch, epsilon)
    return float(quotient.detach())


@settled(differentiates=True)
def metainit(
    model: nn.Module,
    loss_fn: LossFunction,
    batches: Iterable[Any],
    *,
    plan: Plan | None = None,
    rate: float = 0.1,
    momentum: float = 0.9,
    iterations: int = 500,
    epsilon: float = EPSILON,
    minimum: float = 0.01,
    training: bool = False,
    seed: int = 0,
    resume: Plan | None = None,
    progress: bool = True,
) -> Plan:
    """Refine the norms of weights so that the gradient quotient falls (MetaInit); returns a plan, changes nothing.

    In each iteration the norm of every weight with more than one dimension moves by momentum on the *sign* of the
    quotient's slope along it. That takes third derivatives of the loss, so that it costs several times an iteration of
    NIO, and every operator of the model must have them.

    In a distributed run every rank brings batches of its own, and the quotient is the mean of theirs; all ranks return
    the same plan, for the weights of rank 0.

    Args:
        model: the model; it is left as it was.
        loss_fn: ``loss_fn(model, batch)``, the mean loss of a batch as a scalar tensor.
        batches: any iterable of batches; one is used in each iteration, from the start again as often as needed. The
            paper needs no data: it takes normal inputs and random labels, which `random_batches` makes.
        plan: draw the weights from this plan and refine those; without it the model's present weights are refined.
        rate: by how much a norm moves in the first iteration, in the norm's own units, whatever its size; as published,
            for layers of hundreds of channels. Small nets need less.
        momentum: of these moves.
        iterations: how many.
        epsilon: ε of the quotient.
        minimum: no norm falls below this share of where it started (the paper has no bound, and norms could pass 0).
        training: run in training mode; by default in evaluation mode, as the paper's code does, so that batch norm uses
            its running statistics and nothing is dropped.
        seed: of dropout's random numbers.
        resume: a plan that this function returned, to go on from; ``iterations`` counts from its start.
        progress: show a progress bar in a terminal.

    Returns:
        A plan of scales. `Plan.figures` holds the agreement and the gradient quotient of the first batch ``before`` and
        ``after``, ``omega`` and the ``history``. An interruption (Ctrl-C) returns the best point so far.

    Raises:
        GradientError: the loss is no scalar, not finite or independent of the parameters; batches that run out; a model
            that cannot be differentiated three times.
        OptionError: an option outside its range.

    Source: Dauphin & Schoenholz 2019 (MetaInit), eq. 1 and Algorithm 1.
    """
    check_positive(rate=rate, epsilon=epsilon, minimum=minimum)
    if not 0.0 <= momentum < 1.0:
        raise OptionError(f"momentum must be at least 0 and below 1, received {momentum!r}")
    check_integer(iterations=iterations)
    problem = Problem(model, loss_fn, training=training, seed=seed)
    scales = Scales(problem, plan)
    scales.share()
    runner = _MetaInit(problem, scales, rate, momentum, epsilon, minimum)
    runner.load(resume)
    with problem.running(), sdpa_kernel(SDPBackend.MATH):
        first, source = first_of(batches, iterations)
        rows = first.rows(0, first.size)
        quotients = [runner.quotient(rows)]
        comparison, (history, finished) = compared(
            problem,
            scales,
            first,
            lambda _: search(runner, scales, source, iterations, method="metainit", resume=resume, progress=progress),
        )
        quotients.append(runner.quotient(rows))
    figures: dict[str, JsonValue] = comparison.figures() | {
        "gradient_quotient": {"before": quotients[0], "after": quotients[1]},
        "finished": finished,
        "history": history,
        "moves": dict(runner.moves),
    }
    options: dict[str, JsonValue] = {
        "rate": rate,
        "momentum": momentum,
        "iterations": iterations,
        "epsilon": epsilon,
        "minimum": minimum,
        "training": training,
        "seed": seed,
    }
    why = f"MetaInit (Algorithm 1) took the gradient quotient from {quotients[0]:.3g} to {quotients[1]:.3g}"
    made = scales.plan("metainit", options, figures, why)
    if quotients[1] < quotients[0]:
        return made
    note = (
        f"the gradient quotient of the first batch did not fall ({quotients[0]:.3g} before, {quotients[1]:.3g} after); "
        f"norms move by up to {rate / (1.0 - momentum):.3g} in one iteration, and the smallest was "
        f"{min(runner.norms.values()):.3g}: lower rate"
    )
    return made.model_copy(update={"warnings": (*made.warnings, note)})


class _MetaInit:
    """One iteration of MetaInit."""

    def __init__(
        self, problem: Problem, scales: Scales, rate: float, momentum: float, epsilon: float, minimum: float
    ) -> None:
        self._problem, self._scales = problem, scales
        self._rate, self._momentum, self._epsilon, self._minimum = rate, momentum, epsilon, minimum
        self.norms = {name: float(wide(scales.values[name]).norm()) for name in scales.omega}
        self.moves = dict.fromkeys(scales.omega, 0.0)

    def load(self, plan: Plan | None) -> None:
        """Take up the momentum of the run that made ``plan``."""
        known = None if plan is None else plan.figures.get("moves")
        if isinstance(known, dict):
            self.moves |= {name: move for name, move in known.items() if isinstance(move, float)}

    def quotient(self, rows: Any) -> float:
        """Return the gradient quotient at the coefficients as they are."""
        with ranks.failing_together():
            quotient, _, _ = _quotient(self._problem, leaves_of(self._scales.parameters()), rows, self._epsilon)
        return ranks.mean(float(quotient.detach()))

    def __call__(self, batch: Any, iteration: int) -> tuple[Figures, tuple[float, ...]]:
        """Take one signed step on the norms, and return its figures, and how good those before it were."""
        leaves = leaves_of(self._scales.parameters())
        with ranks.failing_together():
            quotient, loss, norm = _quotient(self._problem, leaves, batch, self._epsilon)
            slopes = self._scales.pulled_back(_slope(quotient, leaves))
        ranks.averaged_(list(slopes.values()))
        for name, slope in slopes.items():
            self.moves[name] = self._momentum * self.moves[name] - self._rate * float(slope.sign())
            moved = self._scales.omega[name] + self.moves[name] / self.norms[name]
            self._scales.omega[name] = moved.clamp_min(self._minimum)
        value = ranks.mean(float(quotient.detach()))
        return {"GQ": value, "GN": ranks.mean(norm), "loss": ranks.mean(loss)}, (-value,)


def _quotient(problem: Problem, leaves: Tensors, batch: Any, epsilon: float) -> tuple[Tensor, float, float]:
    """Return the gradient quotient, differentiable with respect to ``leaves``, with the loss and the gradient norm."""
    loss, gradients = problem.gradient(leaves, batch, differentiable=True)
    parts = [g for g in gradients.values() if g.requires_grad]
    try:
        refuse_once_differentiable(parts)
        # d(½ |g|²)/dθ = H g, and a function of θ through both factors
        products = torch.autograd.grad(parts, list(leaves.values()), parts, create_graph=True, allow_unused=True)
    except (RuntimeError, NotImplementedError) as error:
        raise _not_differentiable(error, "twice") from error
    total = torch.zeros((), dtype=torch.float64)
    square, count = 0.0, 0
    for gradient, product in zip(gradients.values(), products, strict=True):
        g = wide(gradient)
        tiny = g.new_tensor(epsilon)
        shift = torch.where(g.detach() >= 0, tiny, -tiny)
        # (g − Hg) / (g + ε s) − 1 = −(Hg + ε s) / (g + ε s), without the cancellation
        numerator = shift if product is None else wide(dense(product)) + shift
        total = total + (numerator / (g + shift)).abs().sum(dtype=torch.float64).cpu()
        square += float(g.detach().square().sum(dtype=torch.float64))
        count += g.numel()
    return total / count, loss, square**0.5


def _slope(quotient: Tensor, leaves: Mapping[str, Tensor]) -> Tensors:
    """Return the derivative of the quotient with respect to every leaf."""
    try:
        slopes = torch.autograd.grad(quotient, list(leaves.values()), allow_unused=True, materialize_grads=True)
    except (RuntimeError, NotImplementedError) as error:
        raise _not_differentiable(error, "three times") from error
    return dict(zip(leaves, map(dense, slopes), strict=True))


def _not_differentiable(error: Exception, times: str) -> Exception:
    """Return the error to raise where autograd failed: the same where memory ran out."""
    if out_of_memory(error):
        return error
    return GradientError(
        f"the model cannot be differentiated {times} ({str(error).splitlines()[0]}), which MetaInit needs; "
        "wellposed.gradients.nio with engine='finite_difference' and gradient_norm need first derivatives only"
    )


def random_batches(batch: Any, *, classes: int | None = None, seed: int = 0) -> Iterator[Any]:
    """Yield batches without data for ever: normal inputs and uniform labels, of the structure of ``batch``.

    Floating-point tensors become independent N(0, 1), integer tensors uniform from 0 up to what occurs in ``batch``;
    everything else stays as it is.

    Args:
        batch: an example, as the loss function takes it.
        classes: the number of labels, where the example may not show the highest.
        seed: of the random numbers.

    Raises:
        InputError: the batch holds no tensor with axes.

    Source: Dauphin & Schoenholz 2019 (MetaInit), section 3.
    """
    example = Batch.of(batch)
    if classes is not None:
        check_integer(classes=classes)
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield example.rebuilt([_random(leaf, classes, generator) for leaf in example.leaves])


def _random(leaf: Any, classes: int | None, generator: torch.Generator) -> Any:
    """Return a normal tensor in the place of one of numbers, random classes in that of one of integers."""
    if not isinstance(leaf, Tensor) or leaf.dtype == torch.bool or not leaf.numel() or leaf.is_complex():
        return leaf
    if leaf.is_floating_point():
        return torch.randn(leaf.shape, generator=generator).to(leaf)
    return torch.randint(0, classes or int(leaf.max()) + 1, leaf.shape, generator=generator).to(leaf)
