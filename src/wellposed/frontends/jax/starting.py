"""What `wellposed.jax` does for trainings: a start that is prepared, and written where the model can be written to."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from flax import nnx

from wellposed.doors import door
from wellposed.errors import InputError, OptionError, PlanError
from wellposed.extras import installing
from wellposed.frontends.jax.module import Function, NNXModule
from wellposed.frontends.jax.preparing import JaxStart, Wanted, prepared
from wellposed.frontends.jax.seeds import seed_of
from wellposed.frontends.jax.training import FunctionSubject, LossFn, NNXSubject
from wellposed.options import check_integer, check_not_negative, check_positive
from wellposed.plans import Plan
from wellposed.preparation.lines import TRAINED
from wellposed.rates.find import BUDGET
from wellposed.rates.schedule import Schedule


def prepare(
    apply: Callable[..., Any],
    params: Any,
    loss: LossFn,
    batches: Any,
    optimizer: str | Callable[..., Any] = "adamw",
    *,
    family: str | None = None,
    steps: int | None = None,
    method: str | Plan | None = None,
    weight_decay: float | None = None,
    schedule: Schedule = "warmup_cosine",
    clip: float | None = None,
    budget: int = BUDGET,
    seed: int | Any = 0,
    only: str | Sequence[str] | None = None,
    skip: str | Sequence[str] | None = None,
    journal: str | os.PathLike[str] | None = None,
    progress: bool = True,
    **options: Any,
) -> JaxStart:
    """Work out everything that the training of a function needs before its first step; see `wellposed.prepare`.

    ```python
    start = wj.prepare(apply, params, loss, batches, "adamw", steps=5000)
    params, state = start.params, start.optimizer.init(start.params)
    ```

    The weights are planned on the arguments of the loss's first call of the model. The rate is found by trainings of 40
    steps in JAX, from these weights, with the transformation, the schedule and the clipping that are returned.

    Args:
        apply: called as ``apply(params, *inputs)``.
        params: a tree of arrays of floating point.
        loss: ``loss(model, batch)``, the mean loss of one batch, alone or first of several, with ``model(*inputs)`` the
            function with its parameters; or a loss of Optax, for batches of inputs and targets.
        batches: batches of arrays: a list, a loader, an iterator, or one batch for all steps. Few are repeated.
        optimizer: the name of one of Optax, or a function that makes one, as for `transform`.
        family: as for `transform`.
        steps: of the training; best rates fall with it. None: 1,000 are assumed.
        method: of planning, by name, or a plan; ``"own"`` keeps the parameters. None: that of `plan`.
        weight_decay: of weights and embeddings; other arrays have none. None: the optimizer's own.
        schedule: of the rate, by name or as a function, as for `wellposed.rates.find_max_lr`; a function must be one
            that JAX can trace.
        clip: the global norm to clip gradients to; None for none.
        budget: gradients that the search may take.
        seed: of the plan: an integer, or a key of `jax.random`.
        only: glob patterns of the paths of parameters to plan.
        skip: those to keep.
        journal: a file that notes finished runs; a search that was killed goes on from it.
        progress: show a progress bar.
        options: of the method.

    Returns:
        A `JaxStart`, with new parameters and a transformation of Optax: ``print`` shows it on one page.

    Raises:
        InputError: a parameter that is no array of floating point.
        OptionError: a value outside its range, an unknown optimizer or method; Optax is not installed.
        DivergedError: the loss is not finite at the start; the message says where the first infinity is born.
        RateError: no batches, or the loss does not depend on the model.
    """
    wanted = _wanted(
        optimizer, family=family, steps=steps, method=method, weight_decay=weight_decay, schedule=schedule, clip=clip,
        budget=budget, seed=seed, only=only, skip=skip, journal=journal, progress=progress, options=options,
    )  # fmt: skip
    return prepared(FunctionSubject(Function(apply, params)), loss, batches, wanted)


def prepare_(
    model: Any,
    loss: LossFn,
    batches: Any,
    optimizer: str | Callable[..., Any] = "adamw",
    **options: Any,
) -> JaxStart:
    """Work out everything that the training of a module of Flax NNX needs, and write the weights into it.

    ```python
    start = wj.prepare_(model, loss, batches, "adamw", steps=5000)
    optimizer = nnx.Optimizer(model, start.optimizer, wrt=nnx.Param)
    ```

    Args:
        model: the module, whose weights are written in place. It is trained in training mode; its statistics and random
            states move on within the search, and stay as they are in the module.
        loss: as for `prepare`; it is given a copy of the module.
        batches: as for `prepare`.
        optimizer: as for `prepare`.
        options: as for `prepare`.

    Returns:
        The `JaxStart`; its ``params`` are the module's.

    Raises:
        PlanError: the module's own weights have a lower loss than any training of the search reached: it looks trained,
            and is left as it is.
        InputError: no module of Flax NNX.
        OptionError, DivergedError, RateError: as for `prepare`.
    """
    if not isinstance(model, nnx.Module):
        told = door(model) or "; wj.prepare(apply, params, loss, batches) is for functions"
        raise InputError(f"prepare_ writes into a module of Flax NNX, got {type(model).__name__}{told}")
    start = prepared(NNXSubject(model), loss, batches, _wanted(optimizer, **options))
    for text in start.warnings:
        if text.startswith(TRAINED):
            raise PlanError(f"{text}; nothing was written: method='own' keeps the weights")
    NNXModule(model).apply_(start.plan)
    lines = tuple(replace(line, value=line.value.replace("in start.params", "written")) for line in start.lines)
    return replace(start, written=True, lines=lines)


def _wanted(optimizer: str | Callable[..., Any], **given: Any) -> Wanted:
    """Return what is asked for, checked; what is no setting of a preparation is an option of the method."""
    if find_spec("optax") is None:
        raise OptionError(f"wellposed.jax.prepare needs optax: {installing('jax')}")
    stated = inspect.signature(prepare).parameters.values()
    defaults = {one.name: one.default for one in stated if one.kind is one.KEYWORD_ONLY}
    options = given.pop("options", {})
    options |= {name: given.pop(name) for name in list(given) if name not in defaults}
    settings = defaults | given
    check_integer(**{name: settings[name] for name in ("steps", "budget") if settings[name] is not None})
    if settings["clip"] is not None:
        check_positive(clip=settings["clip"])
    if settings["weight_decay"] is not None:
        check_not_negative(weight_decay=settings["weight_decay"])
    return Wanted(optimizer=optimizer, options=options, **(settings | {"seed": seed_of(settings["seed"])}))
