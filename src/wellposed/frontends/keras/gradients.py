"""What `wellposed.keras` asks of gradients: how well they agree, and scales of the weights under which they do."""

from __future__ import annotations

from typing import Any

from wellposed.frontends.keras.calls import run
from wellposed.frontends.keras.module import KerasModule
from wellposed.frontends.keras.training import Training, training_of
from wellposed.gradients import Agreement
from wellposed.gradients import gradcosine as agreement_of
from wellposed.gradients import nio as refined
from wellposed.plans import Plan

_BATCHES = 40


def gradcosine(
    model: Any, loss: Any = None, data: Any = None, *, loss_weights: Any = None, batch_size: int = 32, **settings: Any
) -> Agreement:
    """Score the weights of a model: how well do gradients agree, and how equal are their norms?

    See `wellposed.gradients.gradcosine`. The gradients are taken on torch, here or in a worker.

    Args:
        model: a built `keras.Model`.
        loss: as for ``compile``; None for the one that the model was compiled with.
        data: what ``fit`` takes, as for `find_max_lr`; one batch is used.
        loss_weights: as for ``compile``.
        batch_size: where the data is arrays, of which the batch is drawn at random.
        settings: further ones of `wellposed.gradients.gradcosine`, and for a worker.

    Returns:
        The mean cosine of gradients and their norms, by group of parameters (Yang et al. 2022, eq. 6 and 7).

    Raises:
        OptionError: no loss, or a model that trains by a ``train_step`` of its own.
        RateError: no batch, or one without targets.
        GradientError: as for `wellposed.gradients.gradcosine`.
    """
    setup = training_of(model, data, loss, loss_weights, None, batch_size, 1)
    found: Agreement = run(model, _agreement, (setup.batches[0][0],), {"training_setup": setup, **settings})
    return found


def nio(
    model: Any,
    loss: Any = None,
    data: Any = None,
    *,
    loss_weights: Any = None,
    batch_size: int = 32,
    plan: Plan | None = None,
    iterations: int = 100,
    **settings: Any,
) -> Plan:
    """Refine the weights of a model so that gradients of sub-batches agree (NIO); the model is only read.

    See `wellposed.gradients.nio`. The gradients are taken on torch, here or in a worker.

    Args:
        model: a built `keras.Model`.
        loss: as for ``compile``; None for the one that the model was compiled with.
        data: what ``fit`` takes, as for `find_max_lr`; the first 40 batches are used, from the start again as often as
            needed.
        loss_weights: as for ``compile``.
        batch_size: where the data is arrays.
        plan: draw the weights from this plan and refine those; None refines the model's own.
        iterations: of the refinement.
        settings: further ones of `wellposed.gradients.nio`, and for a worker.

    Returns:
        A plan of scales, which `apply_` writes (Yang et al. 2022, Algorithm 3).

    Raises:
        OptionError: no loss, or a model that trains by a ``train_step`` of its own.
        RateError: no batches, or one without targets.
        GradientError: as for `wellposed.gradients.nio`.
    """
    setup = training_of(model, data, loss, loss_weights, None, batch_size, min(iterations, _BATCHES))
    named = {"training_setup": setup, "plan": plan, "iterations": iterations}
    found: Plan = run(model, _refined, (setup.batches[0][0],), {**named, **settings})
    return found


# ---- what runs where Keras runs on torch: here, or in a worker -------------------------------------------------------


def _agreement(module: KerasModule, *_args: Any, training_setup: Training, **settings: Any) -> Agreement:
    (batch,) = _converted(module, training_setup)
    return agreement_of(module, training_setup.scored(module), batch, **settings)


def _refined(module: KerasModule, *_args: Any, training_setup: Training, **settings: Any) -> Plan:
    return refined(module, training_setup.scored(module), _converted(module, training_setup), **settings)


def _converted(module: KerasModule, setup: Training) -> list[Any]:
    return [module.converted(batch) for batch in setup.batches]
