"""A learning rate without a training: from a model and its weights alone, within a factor of 8.

Measured here. A step of Adam moves every element by about the rate, and best rates are a few hundredths of the size of
the weights (You et al. 2017, arXiv 1708.03888, for the ratio of updates to weights). For SGD they follow the square
root of what `wellposed.rates.kernel` gives, and 1 − momentum. The constants are those of trainings of 200 steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from wellposed.errors import OptionError, RateError, UnsupportedError, WellposedError
from wellposed.plans.optimizers import family_of
from wellposed.rates.kernel import kernel
from wellposed.rates.losses import LossFn, arguments_of, loss_of, result_of
from wellposed.rates.passes import small_graph
from wellposed.rates.rate import APART, LENGTH, WITHIN, Conditions, Rate
from wellposed.rates.steps import Build, named

SHARE = 0.038
"""Rate of Adam over the root mean square of the weights; fitted on the trainings of one half of
`benchmarks/starts` (docs/results/static.md)."""
KERNEL = 0.76
"""Rate of plain SGD over the square root of the relative rate by rule ``kernel``; fitted on perceptrons and small
convolutional nets (docs/results/static.md)."""
STEPS = 200
"""Steps of the trainings that the constants are from."""
_ALIKE = ("adam", "adamw", "nadam", "radam", "adamax", "rmsprop", "adam8bit", "adamw8bit")
"""Optimizers whose steps have the size of Adam's; measured are Adam and AdamW."""


def static_rate(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], build: Build, *, steps: int, schedule: str
) -> Rate:
    """Return a learning rate of a model that is not trained; the model is only read.

    Args:
        model: the model, with the weights that the training begins with.
        args: example arguments of ``forward``.
        kwargs: the same by keyword.
        build: makes the optimizer of a model at a rate.
        steps: of the training to come.
        schedule: of the rate, by name.

    Returns:
        The rate, with a factor of 8 to either side as its interval.

    Raises:
        OptionError: what is built is no optimizer.
        RateError: no such rule is known for the optimizer, or it does not apply to the model.
    """
    built = build(model, 1.0)
    named(built)
    name = _optimizer_name(built)
    warnings: tuple[str, ...] = ()
    if name == "sgd":
        momentum = float(built.param_groups[0].get("momentum", 0.0))
        try:
            relative = kernel(small_graph(model, args, kwargs, training=True)).value
        except RateError as error:
            raise RateError(f"{error}; a loss and batches find a rate by trainings") from error
        value = KERNEL * (1.0 - momentum) * math.sqrt(relative)
        reason = f"{KERNEL:g} times the root of {relative:.3g}, the relative rate by rule 'kernel'" + (
            f", times {1.0 - momentum:.2g} for a momentum of {momentum:g}" if momentum else ""
        )
        warnings = (
            "rates of SGD fall as the loss is scaled up, and without one a mean cross-entropy is assumed: give a loss "
            "and batches where yours is another",
        )
    else:
        value, reason = _by_weights(built)
    factor = (STEPS / steps) ** LENGTH
    value *= factor
    return Rate(
        value=value,
        interval=(value / APART, value * APART),
        definition=None,
        reason=(
            f"{reason}; times {factor:.2g} for {steps:,} steps; nothing was trained, as no batches were given: best "
            f"rates, where measured, are within a factor of {APART:g} of such answers, and within {WITHIN:g} of what a "
            "search on batches finds"
        ),
        conditions=Conditions(
            optimizer="momentum" if name == "sgd" and momentum else name, training_steps=steps, schedule=schedule
        ),
        warnings=warnings,
    )


def expected_rate(model: nn.Module, loss_fn: LossFn, batch: Any, build: Build) -> float | None:
    """Return the rate that such a rule gives for a training of `STEPS` steps, given a loss too; None where none does.

    For SGD it is divided by the size of the loss's gradient with respect to one output, which for a cross-entropy is
    about 1. It is known for outputs ``[samples, features]`` alone.

    Args:
        model: a model that may be changed, with the weights that the training begins with.
        loss_fn: as for `wellposed.rates.find_max_lr`.
        batch: a batch.
        build: makes the optimizer.
    """
    try:
        args, kwargs = arguments_of(model, loss_fn, batch)
        found = static_rate(model, args, kwargs, build, steps=STEPS, schedule="")
        pull = _pull(model, loss_fn, batch) if found.conditions.optimizer in ("sgd", "momentum") else 1.0
    except WellposedError:
        return None
    return found.value / pull if 0.0 < pull < math.inf else None


def _pull(model: nn.Module, loss_fn: LossFn, batch: Any) -> float:
    """Return the size of the loss's gradient with respect to one output, times the samples; 0 where it is not known."""
    outputs: list[Any] = []
    with model.register_forward_hook(lambda module, args, output: outputs.append(output)):
        loss = loss_of(result_of(loss_fn, model, batch))
    if len(outputs) != 1 or not isinstance(outputs[0], Tensor) or outputs[0].ndim != 2 or not loss.requires_grad:
        return 0.0
    (gradient,) = torch.autograd.grad(loss, outputs, allow_unused=True)
    return 0.0 if gradient is None else float(gradient.norm()) * math.sqrt(len(gradient))


def _optimizer_name(built: torch.optim.Optimizer) -> str:
    """Return the name of an optimizer that a rule is for; raise `RateError` where there is none."""
    try:
        name = family_of(built).optimizer
    except (OptionError, UnsupportedError):
        name = type(built).__name__
    if name in _ALIKE or name == "sgd":
        return name
    raise RateError(
        f"no rate of {type(built).__name__} is known without a training: give a loss and batches, or one of "
        f"{', '.join(('sgd', *_ALIKE))}"
    )


def _by_weights(built: torch.optim.Optimizer) -> tuple[float, str]:
    """Return a rate in proportion to the size of the weights, and that in words.

    Groups whose rates differ by constants are moved by these.
    """
    weights, moves, count = 0.0, 0.0, 0
    for group in built.param_groups:
        for parameter in group["params"]:
            weights += float(parameter.detach().double().square().sum())
            moves += float(group["lr"]) ** 2 * parameter.numel()
            count += parameter.numel()
    if not (0.0 < weights < math.inf and moves > 0.0):
        raise RateError(
            "the trained weights are all zero, or not finite, so that no rate can be in proportion to them: give a "
            "loss and batches"
        )
    size, move = math.sqrt(weights / count), math.sqrt(moves / count)
    scaled = "" if math.isclose(move, 1.0) else f", over {move:.3g} for the groups' multipliers"
    return SHARE * size / move, (
        f"{SHARE:.1%} of {size:.3g}, the root mean square of the {count:,} weights that are trained{scaled}"
    )
