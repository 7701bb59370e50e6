"""`prepare`: weights, optimizer, rate, schedule and clipping of a training, from its model, loss and batches."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from wellposed import methods, ranks
from wellposed.checks.contest import OWN
from wellposed.doors import door, is_of_torch
from wellposed.errors import OptionError, PlanError
from wellposed.graphs import Graph, trace
from wellposed.graphs.restore import restored_attributes
from wellposed.methods.selection import Patterns
from wellposed.options import check_integer, check_positive
from wellposed.plans import Plan
from wellposed.plans.optimizers import family_of
from wellposed.plans.recipes import AnyOptimizer, recipe_of
from wellposed.preparation.data import arguments_in, data_of, written_copy
from wellposed.preparation.lines import TRAINED, clipping, course, drawn_anew, found, groups, limits, trained, weights
from wellposed.preparation.start import Line, Start
from wellposed.random_states import restored_random_state
from wellposed.rates.feed import Batches
from wellposed.rates.find import BUDGET, find_max_lr
from wellposed.rates.losses import LossFn, arguments_of
from wellposed.rates.schedule import Schedule, schedule_factor
from wellposed.rates.static import static_rate
from wellposed.rates.steps import Build
from wellposed.surroundings import settled

ASSUMED = 1000
"""Steps of a training whose length is not given; chosen."""


@settled(differentiates=True)
def prepare(
    model: nn.Module,
    loss_fn: LossFn | None = None,
    batches: Batches | None = None,
    optimizer: AnyOptimizer | Build = "adamw",
    *,
    example: Any = None,
    steps: int | None = None,
    method: str | Plan | None = None,
    weight_decay: float | None = None,
    schedule: Schedule = "warmup_cosine",
    clip: float | None = None,
    budget: int = BUDGET,
    seed: int = 0,
    only: Patterns = None,
    skip: Patterns = None,
    journal: str | os.PathLike[str] | None = None,
    progress: bool = True,
    **options: Any,
) -> Start:
    """Work out everything that a training needs before its first step; the model is only read.

    ```python
    start = wp.prepare_(model, loss_fn, loader, "adamw", steps=5000)
    print(start)
    scheduler = start.scheduler()
    for batch in loader:
        start.optimizer.zero_grad()
        loss_fn(model, batch).backward()
        start.optimizer.step()
        scheduler.step()
    ```

    The weights are planned on the arguments of the loss's first call of the model. The rate is found by trainings of 60
    steps from these weights, with the optimizer, the groups, the schedule and the clipping that are returned.
    `prepare_` also writes the weights.

    Where there is nothing to train on, ``prepare(model, example=inputs)`` does the same without a search: the rate is
    that of a rule, within a factor of 8.

    Args:
        model: the model; frozen parameters stay as they are.
        loss_fn: ``loss_fn(model, batch)``, the mean loss of one batch, alone or first of several; or a loss of
            ``torch.nn``, for batches of inputs and targets.
        batches: as for `wellposed.rates.find_max_lr`; few are repeated.
        optimizer: name, class, ``functools.partial`` of a class, or instance, whose options count and whose groups are
            those of `wellposed.Plan.param_groups`; or a function of the model and the rate, which builds its own.
        example: in the place of loss and batches, what ``forward`` takes: one tensor, a tuple of arguments, or a
            mapping of arguments by keyword.
        steps: of the training; best rates fall with it. None: 1,000 are assumed.
        method: of planning, by name, or a plan; ``"own"`` leaves the weights as they are. None: that of
            `wellposed.plan`.
        weight_decay: of weights and embeddings; biases, norms and other vectors have none. None: the optimizer's own.
        schedule: of the rate, as for `wellposed.rates.find_max_lr`.
        clip: the global norm to clip gradients to; None for none.
        budget: gradients that the search may take.
        seed: of the plan.
        only: glob patterns of the parameters to plan; all others are kept.
        skip: glob patterns of parameters to keep.
        journal: a file that notes finished runs; a search that was killed goes on from it.
        progress: show a progress bar.
        options: of the method.

    Returns:
        A `Start`: ``print`` shows it on one page, with the reason of each part.

    Raises:
        OptionError: a value outside its range, an unknown optimizer or method.
        DivergedError: the loss is not finite at the start; the message says where the first infinity is born.
        RateError: no batches, or the loss does not depend on the model; without both, no rule for the optimizer.
        TraceError: the model cannot be run on what the loss calls it with.
    """
    _check_options(options)
    check_integer(**{name: value for name, value in {"steps": steps, "budget": budget}.items() if value is not None})
    if clip is not None:
        check_positive(clip=clip)
    if not is_of_torch(model):
        raise OptionError(f"prepare takes a model of PyTorch, received {type(model).__name__}{door(model)}")
    if any(parameter.is_meta for parameter in model.parameters()):
        raise OptionError(
            f"{type(model).__name__} is on the meta device, where nothing can be trained: materialise it first "
            "(wellposed.initialize_ with materialize=True)"
        )
    length, (named, _) = steps or ASSUMED, schedule_factor(schedule)
    with restored_random_state(), restored_attributes(model):
        data = data_of(model, loss_fn, batches, example, journal)
        with ranks.failing_together():
            args, kwargs = arguments_in(example) if data is None else arguments_of(model, data.loss_fn, data.first[0])
            graph = trace(model, *args, **kwargs)
            plan = _planned(graph, method, {"seed": seed, "only": only, "skip": skip, **options})
        plan = ranks.shared(plan)
        with ranks.failing_together():
            decay, build = building(plan, optimizer, weight_decay)
            own, tried = (None, None) if data is None else data.tried(model, plan, graph)
        if data is None or tried is None:
            doubts = drawn_anew(graph, plan)
            rate = static_rate(written_copy(model, plan), args, kwargs, build, steps=length, schedule=named)
        else:
            rate = find_max_lr(
                model,
                data.loss_fn,
                data.batches,
                optimizer=build,
                initialize=plan,
                training_steps=length,
                schedule=schedule,
                clip=clip,
                budget=budget,
                journal=journal,
                progress=progress,
            )
            doubts = trained(ranks.shared(own), ranks.shared(tried), rate) or drawn_anew(graph, plan)
    built = build(model, rate.value)
    lines = (
        Line("weights", *weights(plan, written=False)),
        Line("optimizer", *groups(built, decay)),
        Line("rate", *found(rate)),
        Line("schedule", *course(rate, schedule, length, assumed=steps is None, searched=data is not None)),
        Line("clipping", *clipping(clip, tried)),
    )
    warnings = (*doubts, *plan.warnings, *limits(rate))
    return Start(plan, rate, built, length, schedule, clip, False, lines, warnings)


@settled(differentiates=True)
def prepare_(
    model: nn.Module,
    loss_fn: LossFn | None = None,
    batches: Batches | None = None,
    optimizer: AnyOptimizer | Build = "adamw",
    **options: Any,
) -> Start:
    """Work out everything that a training needs, and write the weights into the model.

    Args:
        model: the model, whose weights are written in place.
        loss_fn: as for `prepare`.
        batches: as for `prepare`.
        optimizer: as for `prepare`.
        options: as for `prepare`.

    Returns:
        The `Start`.

    Raises:
        PlanError: the model's own weights have a lower loss than any training of the search reached: it looks trained,
            and is left as it is.
        OptionError, DivergedError, RateError, TraceError: as `prepare`.
    """
    start = prepare(model, loss_fn, batches, optimizer, **options)
    for text in start.warnings:
        if text.startswith(TRAINED):
            raise PlanError(
                f"{text}; nothing was written: prepare(...) and start.plan.apply_(model) write all the same, and "
                "method='own' keeps the weights"
            )
    start.plan.apply_(model)
    lines = (Line("weights", *weights(start.plan, written=True)), *start.lines[1:])
    return replace(start, written=True, lines=lines)


def _check_options(options: Mapping[str, Any]) -> None:
    """Raise `OptionError` for what is worked out here, given as an option of the method."""
    for name in ("lr", "rate", "learning_rate"):
        if name in options:
            raise OptionError(f"{name}= is what prepare finds: leave it out, or build the optimizer yourself")


def _planned(graph: Graph, method: str | Plan | None, options: dict[str, Any]) -> Plan:
    """Return the plan of a method, or one that keeps all weights."""
    if isinstance(method, Plan):
        given = [name for name, value in options.items() if value and name != "seed"]
        if given:
            raise OptionError(f"{given[0]}= is for making a plan, and one is given: leave it out")
        return method
    if method == OWN:
        return methods.plan(graph, skip="*")
    return methods.plan(graph, **(options if method is None else options | {"method": method}))


def building(
    plan: Plan, optimizer: AnyOptimizer | Build, weight_decay: float | None
) -> tuple[float | None, Callable[[nn.Module, float], torch.optim.Optimizer]]:
    """Return the weight decay, None where the user builds the groups, and what builds the optimizer at a rate.

    Raises:
        OptionError: an unknown optimizer, one that needs two, or a weight decay beside groups of the user's own.
    """
    given: Any = optimizer
    kind = given.func if isinstance(given, partial) else given
    if callable(kind) and not isinstance(kind, type):
        if weight_decay is not None:
            raise OptionError("weight_decay= is for groups of the plan, and the function builds its own: set it there")
        return None, given
    recipe = recipe_of(given)
    if family_of(given).name == "muon":
        raise OptionError(
            "Muon takes hidden matrices alone, so that a training needs two optimizers: give a function that builds "
            "one that holds both, optimizer=lambda model, lr: ..."
        )
    stated = inspect.signature(recipe.kind).parameters.get("weight_decay")
    default = 0.0 if stated is None or stated.default is stated.empty else float(stated.default)
    decay = float(recipe.options.get("weight_decay", default)) if weight_decay is None else weight_decay
    plain = replace(recipe, options={name: value for name, value in recipe.options.items() if name != "weight_decay"})
    return decay, lambda model, lr: plain.build(plan.param_groups(model, lr, given, decay), lr)
