"""Everything that a training in JAX needs before its first step, found by trainings in JAX."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import jax
import numpy as np
import torch

from wellposed import ranks
from wellposed.errors import DivergedError, OptionError, RateError, joined
from wellposed.frontends.base import check_given, planned
from wellposed.frontends.jax.module import path_of
from wellposed.frontends.jax.rates import rate_groups, transformation
from wellposed.frontends.jax.training import LossFn, Run, Subject, Task, readable, scored, task_of
from wellposed.frontends.jax.zeros import kernels_of_zeros
from wellposed.graphs import trace
from wellposed.plans import Plan
from wellposed.plans.recipes import plain_name
from wellposed.preparation.lines import SHOWN, clipping, found, keeps_all, limits, trained
from wellposed.preparation.start import Line, Prepared, warmup_of
from wellposed.preparation.trial import COUNTS, SHUFFLES, Trial, birthplace
from wellposed.random_states import restored_random_state
from wellposed.rates import Conditions, Rate
from wellposed.rates.answer import answer
from wellposed.rates.ensemble import Member
from wellposed.rates.feed import Feed, feeds_of
from wellposed.rates.find import course_in, short_of
from wellposed.rates.fingerprint import digest_of, name_of
from wellposed.rates.grid import default_grid
from wellposed.rates.journal import opened
from wellposed.rates.schedule import Schedule, schedule_factor
from wellposed.rates.search import Search, SearchSettings

ASSUMED = 1000
"""Steps of a training whose length is not given; chosen."""
_TRIED = 4
"""Batches whose gradients are looked at before the search; chosen."""


@dataclass(frozen=True, slots=True, repr=False)
class JaxStart(Prepared):
    """Everything that a training in JAX needs before its first step; see `wellposed.jax.prepare`.

    Attributes:
        plan: how the weights are drawn.
        rate: the learning rate, with its interval and how it was found.
        optimizer: a transformation of Optax: clipping, the groups of the plan, and the rate with its schedule.
        steps: of the training.
        schedule: of the rate: its name, or the function that was given.
        clip: the global norm to which the transformation clips gradients; None for none.
        written: whether the weights are in the model that was given.
        lines: all of it in words, each with its reason.
        warnings: where it means less than it seems.
        params: the parameters as the plan draws them, in the structure of those that were given.
    """

    params: Any


@dataclass(frozen=True)
class Wanted:
    """What is asked of a preparation; see `wellposed.jax.prepare`."""

    optimizer: str | Callable[..., Any]
    family: str | None
    steps: int | None
    method: str | Plan | None
    weight_decay: float | None
    schedule: Schedule
    clip: float | None
    budget: int
    seed: int
    only: Any
    skip: Any
    journal: str | os.PathLike[str] | None
    progress: bool
    options: Mapping[str, Any]


def prepared(subject: Subject, loss: LossFn, batches: Any, wanted: Wanted) -> JaxStart:
    """Return the start of a model, which is only read; arguments and errors are those of `wellposed.jax.prepare`."""
    length = wanted.steps or ASSUMED
    name, factor = schedule_factor(wanted.schedule)
    with restored_random_state():
        steps = short_of(length, wanted.budget)
        feed = feeds_of(readable(batches, steps), steps, (0,), torch.device("cpu"))[0]
        plan = _planned(subject, loss, feed.first, wanted)
        groups = _groups(plan, wanted)
        params = subject.drawn(plan)
        task = task_of(subject, loss, partial(_chain, groups, wanted.optimizer, wanted.clip), params)
        first = list(islice(feed, _TRIED))
        own = None if keeps_all(plan) else _learnt_loss(task, subject.params, first)
        tried = _trial(task, first)
        rate = _searched(task, feed, wanted, name, course_in(name, factor, feed.steps), length)
    course = course_of(wanted.schedule, rate.value, length)
    lines = (
        Line("weights", *_weights(plan)),
        Line("optimizer", *_told(groups, _name(wanted))),
        Line("rate", *found(rate)),
        Line("schedule", *_course(rate, wanted, length)),
        Line("clipping", *clipping(wanted.clip, tried)),
    )
    zeros = kernels_of_zeros(plan, wanted.options)
    warnings = (*trained(own, tried, rate), *((zeros,) if zeros else ()), *plan.warnings, *limits(rate))
    optimizer = _chain(groups, wanted.optimizer, wanted.clip, course)
    return JaxStart(plan, rate, optimizer, length, wanted.schedule, wanted.clip, False, lines, warnings, params)


# ---- weights and optimizer ------------------------------------------------------------------------------------------


def _planned(subject: Subject, loss: LossFn, batch: Any, wanted: Wanted) -> Plan:
    """Return the plan of a model on the arguments of the loss's first call of it."""
    check_given(wanted.method, {"only": wanted.only, "skip": wanted.skip, **wanted.options})
    if isinstance(wanted.method, Plan):
        return wanted.method
    args = subject.called(lambda model: scored(loss, model, batch))
    if args is None:
        raise RateError("loss(model, batch) does not call the model; write it as loss(model(inputs), targets)")
    module = subject.front_end()
    given = module.given(args)
    module.prepare(given, True)
    if wanted.method == "own":
        return planned(module, given, skip="*", training=True, seed=wanted.seed)
    method = {} if wanted.method is None else {"method": wanted.method}
    return planned(
        module, given, skip=wanted.skip, training=True, seed=wanted.seed, only=wanted.only, **method, **wanted.options
    )


def _name(wanted: Wanted) -> str:
    """Return the name of the optimizer, or of the one that its steps are like."""
    if isinstance(wanted.optimizer, str):
        return plain_name(wanted.optimizer)
    if wanted.family is None:
        raise OptionError(
            f"{wanted.optimizer!r} is no name: say which optimizer its steps are like, such as family='adamw'"
        )
    return wanted.family


def _groups(plan: Plan, wanted: Wanted) -> list[dict[str, Any]]:
    """Return the groups of a plan for the optimizer, whose own weight decay counts where none is asked for."""
    import optax

    decay = wanted.weight_decay
    if decay is None:
        make: Any = getattr(optax, wanted.optimizer.lower(), None) if isinstance(wanted.optimizer, str) else None
        stated = None if make is None else inspect.signature(make).parameters.get("weight_decay")
        decay = 0.0 if stated is None or not isinstance(stated.default, float) else stated.default
    groups = rate_groups(plan, _name(wanted), weight_decay=decay, decay_all=False, settings={})
    if wanted.clip is not None and any(group["carried"] != 1.0 for group in groups):
        raise OptionError(
            f"the plan by {plan.method!r} has parameters that carry factors of the model, and the global norm of Optax "
            "counts gradients as they are: leave out clip="
        )
    return groups


def _chain(groups: list[dict[str, Any]], optimizer: Any, clip: float | None, rate: Any) -> Any:
    """Return the transformation of Optax: clipping first, then the groups at a rate or a schedule."""
    import optax

    steps = transformation(groups, rate, optimizer)
    return steps if clip is None else optax.chain(optax.clip_by_global_norm(clip), steps)


def course_of(schedule: Schedule, rate: float, steps: int) -> Any:
    """Return a rate over the steps of a training as a schedule of Optax; a number where it is constant.

    Raises:
        OptionError: a function of the user's own that JAX cannot trace.
    """
    import optax

    warmup = warmup_of(schedule, steps)
    if schedule == "constant":
        return rate
    if isinstance(schedule, str):
        left = max(1, steps - warmup)
        cosine = schedule.endswith("cosine")
        down = optax.cosine_decay_schedule(rate, left) if cosine else optax.linear_schedule(rate, 0.0, left)
        return optax.join_schedules([optax.linear_schedule(0.0, rate, warmup), down], [warmup]) if warmup else down
    _, factor = schedule_factor(schedule)

    def course(step: Any) -> Any:
        """Return the rate of a step; that of the end, after more than all."""
        return rate * factor(jax.numpy.minimum(step / steps, 1.0))

    try:
        jax.eval_shape(course, jax.ShapeDtypeStruct((), np.int32))
    except Exception as error:
        raise OptionError(
            f"JAX cannot trace the schedule {schedule!r} ({type(error).__name__}): write it with jax.numpy (where, "
            "minimum) in the place of if and min"
        ) from error
    return course


# ---- the first passes, and the search -------------------------------------------------------------------------------


def _mean_loss(task: Task, params: Any, batches: list[Any]) -> float:
    """Return the mean loss of some batches, finite or not."""
    return sum(float(task.value(params, task.subject.rest, batch)[0]) for batch in batches) / len(batches)


def _learnt_loss(task: Task, params: Any, batches: list[Any]) -> float | None:
    """Return the mean loss of some batches where the weights have learnt them, as `preparation.trial.learnt_loss`."""
    own, key = _mean_loss(task, params, batches), jax.random.key(0)
    leaves, form = jax.tree.flatten(params)
    for _ in range(SHUFFLES):
        key, *keys = jax.random.split(key, len(leaves) + 1)
        moved = [jax.random.permutation(k, x.ravel()).reshape(x.shape) for k, x in zip(keys, leaves, strict=True)]
        if _mean_loss(task, form.unflatten(moved), batches) - own <= COUNTS * abs(own):
            return None
    return own


def _trial(task: Task, batches: list[Any]) -> Trial:
    """Return losses and norms of gradients of some batches, from the planned weights.

    Raises:
        DivergedError: the loss or a gradient is not finite.
        RateError: no gradient differs from 0.
    """
    slope = jax.jit(jax.value_and_grad(lambda *given: task.value(*given)[0]))
    losses, norms = [], []
    for batch in batches:
        value, gradients = slope(task.params, task.subject.rest, batch)
        losses.append(float(value))
        if not math.isfinite(losses[-1]):
            raise DivergedError(
                f"the loss is {losses[-1]} before the first step, so that no learning rate can help; "
                f"{_where(task, batch)}"
            )
        squares = [np.square(np.asarray(leaf, "float64")).sum() for leaf in jax.tree.leaves(gradients)]
        norms.append(math.sqrt(sum(squares)))
        if not math.isfinite(norms[-1]):
            leaves = jax.tree_util.tree_leaves_with_path(gradients)
            path = next(path_of(path) for path, leaf in leaves if not np.isfinite(np.asarray(leaf)).all())
            raise DivergedError(
                f"the loss is finite, {losses[-1]:.4g}, but its gradient with respect to {path!r} is not: look for a "
                "function whose derivative is infinite at 0 (a root, a norm, a logarithm), and add a small constant"
            )
    if not any(norms):
        raise RateError(
            f"the gradient of the loss is 0 on {len(norms)} batches: does the loss depend on what the model returns? "
            "Kernels of zeros behind one another stay so (zeros='write' draws them)"
        )
    return Trial(sum(losses) / len(losses), tuple(norms))


def _where(task: Task, batch: Any) -> str:
    """Return in words where the first number that is not finite comes from."""
    spoilt = [
        path_of(path) for path, leaf in jax.tree_util.tree_leaves_with_path(batch)
        if np.issubdtype(np.asarray(leaf).dtype, np.floating) and not np.isfinite(leaf).all()
    ]  # fmt: skip
    if spoilt:
        return f"the batch holds numbers that are not finite ({spoilt[0]}): clean the data"
    args = task.subject.called(lambda model: scored(task.loss, model, batch)) or ()
    module = task.subject.front_end(task.params)
    born = birthplace(trace(module, *module.given(args)), module)
    return born or (
        "all that the model computes of the first batch is finite: look at the loss function, and at the targets"
    )


def _searched(
    task: Task, feed: Feed, wanted: Wanted, schedule: str, factor: Callable[[float], float], length: int
) -> Rate:
    """Return the rate of a training of some steps, by the search of `wellposed.rates` over runs in JAX."""
    settings, name = SearchSettings(), _name(wanted)

    def begin(members: Any) -> Run:
        """Begin the run of one member."""
        (member,) = members
        assert isinstance(member, Member)
        return Run(task, member.rate)

    module = task.subject.front_end(task.params)
    first = [(path_of(path), np.asarray(leaf)) for path, leaf in jax.tree_util.tree_leaves_with_path(feed.first)]
    shown = ", ".join(f"{path}: {leaf.dtype}{list(leaf.shape[1:])}" for path, leaf in first)
    sizes = [len(leaf) for _, leaf in first if leaf.ndim]
    notes = opened(
        wanted.journal,
        {
            "model": type(module).__name__, "weights": digest_of(module.parameters()), "inputs": shown,
            "loss": name_of(task.loss), "optimizer": name, "clip": wanted.clip, "schedule": schedule,
            "steps": feed.steps, "framework": "jax",
        },
    )  # fmt: skip
    search = Search({0: feed}, begin, 0, settings, factor)
    shown_bar = wanted.progress and ranks.index() == 0
    exploration = search.explore_within(wanted.budget, default_grid(name), notes, progress=shown_bar)
    conditions = Conditions(
        optimizer=name, batch_size=sizes[0] if sizes else None, steps=feed.steps, clip=wanted.clip, schedule=schedule,
        loss=name_of(task.loss), inputs=shown,
    )  # fmt: skip
    how = f"one by one in JAX{feed.repeated()}"
    return answer(exploration, conditions, how, (), settings.target).in_training(length)


# ---- in words -------------------------------------------------------------------------------------------------------


def _weights(plan: Plan) -> tuple[str, str]:
    if keeps_all(plan):
        return "the model's own, as they are", "the plan keeps every parameter"
    return f"{plan.method}, seed {plan.seed}; in start.params", f"{plan.actions}; print(start.plan.table()) says why"


def _told(groups: list[dict[str, Any]], name: str) -> tuple[str, str]:
    """Return what the groups are."""
    every = (
        f"{len(group['param_names'])} arrays with decay {group['weight_decay']:g}"
        + (f" at {group['lr']:.4g} times the rate" if group["lr"] != 1.0 else "")
        for group in groups
    )
    shown = joined(every, SHOWN)
    decays = any(group["weight_decay"] for group in groups)
    why = "weights and embeddings decay; biases, norms and other vectors do not"
    return f"{name}: {shown}", why if decays else "nothing decays: weight_decay= sets it"


def _course(rate: Rate, wanted: Wanted, length: int) -> tuple[str, str]:
    """Return how the rate changes."""
    warmup = warmup_of(wanted.schedule, length)
    course = f": up from 0 over {warmup:,} steps, then down to 0 at {length:,}" if warmup else ""
    given = " (the length is assumed: steps= gives another)" if wanted.steps is None else ""
    return (
        f"{rate.conditions.schedule}{course}{given}",
        "the search ran through the same in its own steps, so that the rate holds with it; start.optimizer follows it",
    )
