"""The base learning rate of a model, found by training it at a grid of rates, as a vectorised ensemble."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Literal, get_args

import torch
from torch import nn

from wellposed import ranks
from wellposed.errors import OptionError, RateError
from wellposed.graphs.restore import restored_attributes
from wellposed.graphs.tree import walk
from wellposed.options import check_choice, check_integer, check_positive
from wellposed.plans import Plan
from wellposed.plans.recipes import AnyOptimizer
from wellposed.random_states import restored_random_state
from wellposed.rates.answer import Exploration, answer
from wellposed.rates.ensemble import Draw, Objective, Workload, copied
from wellposed.rates.feed import Batches, feeds_of
from wellposed.rates.fingerprint import digest_of, fingerprint, name_of
from wellposed.rates.grid import checked_grid, default_grid
from wellposed.rates.journal import Journal, opened
from wellposed.rates.losses import LossFn
from wellposed.rates.rate import LENGTH, Conditions, Definition, Rate
from wellposed.rates.schedule import Schedule, schedule_factor
from wellposed.rates.search import Search, SearchSettings, training_of
from wellposed.rates.starts import builder_of, drawn, left_out, untouched
from wellposed.rates.static import STEPS, expected_rate
from wellposed.rates.steps import Build, builder, named
from wellposed.surroundings import settled

SHORT = 40
"""Steps of a short search."""
BUDGET = 400
"""Gradients that a search for a longer training may take by default; chosen."""
_RUNS = 10
"""Whole runs that a budget suffices for; chosen: eight rates to begin with, and the ends of the plateau."""
LONG = 60
"""Steps of a search for a longer training that begins around an expected rate; chosen on ten nets that are not those
of docs/results/prepared.md."""
_AROUND = (1 / 8, 1 / 2, 2.0, 8.0)
"""Rates that it begins with, over the expected one; chosen."""
_LEAST = 20
"""Steps of the shortest runs that were held against whole trainings (docs/results/prepared.md)."""
Short = Literal["short"]


@settled(differentiates=True)
def find_max_lr(
    model_fn: nn.Module | Callable[[], nn.Module],
    loss_fn: LossFn,
    batches: Batches,
    *,
    optimizer: AnyOptimizer | Build = "sgd",
    steps: int | Short | None = None,
    grid: Sequence[float] | None = None,
    seeds: int | None = None,
    initialize: Plan | Callable[..., object] | None = None,
    schedule: Schedule = "warmup_linear",
    clip: float | None = None,
    training_steps: int | None = None,
    budget: int | None = None,
    journal: str | os.PathLike[str] | None = None,
    progress: bool = True,
    seed: int = 0,
    settings: SearchSettings | None = None,
    **fields: Any,
) -> Rate:
    """Return the learning rate in the middle of those that train best in one epoch, or in some steps.

    The training loss at the end is measured over a grid of rates (that of Chen et al. 2024, arXiv 2402.17440, section
    4.1). The *plateau* of a seed are the rates whose loss exceeds its smallest by no more than a tenth of what training
    gains; what is returned is its geometric centre, the mean in log rate over seeds. The argmin, which is theirs, is
    chance where the curve is flat: between repeats with other seeds and orders of batches it moves several times as far
    (docs/results/rates.md). Both are in the answer, and the ends of the plateau, of which the upper one is unsafe to
    train at. The rate of the smallest net is the base from which `wellposed.rates.transfer` scales.

    All rates of a seed are trained at once, as one ensemble with stacked parameters, where the model allows that, and
    one by one where it does not; what is returned says which. Every seed has its own weights and its own order of the
    batches. Runs that diverge are dropped at once. A grid is continued where a plateau reaches its edge.

    In a distributed run every rank brings batches of its own, and gradients are averaged over ranks; all ranks return
    the same. The model is left bit for bit as ``model_fn`` returned it, and so are the random generators.

    Args:
        model_fn: makes the model; called once for each seed with torch's, numpy's and Python's generators seeded. Or a
            module, of which every seed takes a copy: with ``initialize``, which draws its weights for each seed, or as
            it is, for ``seeds=1``.
        loss_fn: ``loss_fn(model, batch)``, the mean loss of one batch, alone or first of several; or a loss of
            ``torch.nn``, for batches of inputs and targets.
        batches: what the steps are taken on, each seed in an order of its own: a list is shuffled, a ``DataLoader``
            shuffles itself, an iterator is kept in memory. Where they end before the steps do, they are repeated. Or a
            function that gives each seed its batches, or one batch for all steps: ``(x, y)``.
        optimizer: ``"sgd"``, ``"momentum"`` (0.9), ``"adamw"``, ... of ``torch.optim``; a class, a
            ``functools.partial`` of one, or an instance, whose options count; or a function of the model and the rate,
            whose groups may have rates in a fixed ratio (what is then found is the rate that the function is given).
        steps: optimizer steps; None for one epoch. ``"short"`` for a search by 40 steps and one seed: its rates are
            off from those of a full one by a factor that nets of a kind share, so that ratios of two are worth
            something (see `wellposed.rates.transfer`), one by itself is not.
        grid: learning rates to try; by default 16, spaced by 2^0.75.
        seeds: draws of the weights, and orders of the batches; None for 3, or 1 of a short search.
        initialize: a plan, drawn anew for each seed; or a function that initialises a model in place, which is given
            the seed where it has an argument ``seed``.
        schedule: that of the training, shrunk into the steps of the search, as trainings that warm up and decay bear
            higher rates than constant ones: ``"warmup_linear"`` or ``"warmup_cosine"`` (from zero over the first tenth
            of the steps, then to zero), ``"linear"`` or ``"cosine"`` (both to zero), ``"constant"``, or a function that
            maps the fraction of steps done to the learning rate's factor.
        clip: the global norm to which the training clips its gradients (`wellposed.clip_grad_norm_`).
        training_steps: steps of the training to come. The search then takes 60 steps of one seed, within a budget of
            400 gradients, unless these are given. It begins with four rates around the one that is known without a
            training (`wellposed.rates.static`), or takes 40 steps at eight rates where there is none, and its answer
            is carried to that length (`wellposed.rates.Rate.in_training`).
        budget: gradients that the search may take: it begins with some of the rates, stops runs that lag far behind,
            and refines the ends of the plateau; None for every rate of the grid to the end.
        journal: a file of JSON lines that notes every finished run; a search that was killed goes on from it.
        progress: show a progress bar, on rank 0.
        seed: of the first draw; the others follow it.
        settings: what is rarely set.
        fields: fields of ``settings`` by name; they go before those of the object.

    Raises:
        RateError: no batches; a loss that is not finite at the start, or in every run; a journal of another
            search; ``vectorize=True`` for a model that cannot be; a loss that no rate changes.
        OptionError: an unknown optimizer or schedule, or an option outside its range; a module in place of
            ``model_fn`` for several seeds, which would all have its weights.
    """
    given, module = untouched(model_fn), model_fn if isinstance(model_fn, nn.Module) else None
    asked = steps
    steps, seeds, budget = _lengths(steps, seeds, training_steps, budget)
    batches = _kept(batches, steps, training_steps)
    model_fn = builder_of(model_fn, "" if initialize is not None or seeds == 1 else _FOR_ALL_SEEDS)
    settings = replace(settings or SearchSettings(), **fields)
    _check(seeds, steps, settings, clip)
    name, build = builder(optimizer)
    schedule_name, factor = schedule_factor(schedule)
    with restored_random_state(), given:
        model, draws = drawn(model_fn, initialize, range(seed, seed + seeds))
        with restored_attributes(model):
            unlike = left_out(module or model)
            built = named(build(model, 1.0))
            name = name or built
            expected = None
            if grid is None and training_steps is not None:
                expected = _expected(Objective(model, loss_fn), draws[seed], build, batches, seed)
            if expected is not None and asked is None:
                steps = _longer(training_steps, budget)
            rates = _first_rates(grid, name, expected, steps)
            feeds = feeds_of(batches, steps, tuple(draws), _device(draws[seed]))
            workload = Workload(Objective(model, loss_fn), draws, build, feeds, clip)
            factor = course_in(schedule_name, factor, workload.feed.steps)
            training = training_of(workload, (rates[0], rates[-1]), settings)
            search = Search(feeds, partial(training.begun, workload), training.at_once, settings, factor)
            told = {"order of batches": "each seed its own"}  # what journals of one order for all seeds do not say
            if budget is not None:
                told["runs that lag"] = "stopped"
            notes = opened(journal, fingerprint(workload, schedule_name, settings) | told)
            exploration = _explored(search, budget, rates, notes, shown=progress and ranks.index() == 0)
            feed = workload.feed
            conditions = Conditions(
                optimizer=name,
                batch_size=feed.batch_size(),
                steps=feed.steps,
                clip=clip,
                schedule=schedule_name,
                loss=name_of(loss_fn),
                inputs=feed.described(),
            )
            warnings = (
                *unlike,
                *_too_short(feed.steps, training_steps),
                *training.warnings,
                *_same_weights(workload),
                *_same_batches(batches, workload),
            )
    found = answer(exploration, conditions, training.description + feed.repeated(), warnings, settings.target)
    return found if training_steps is None else _carried(found, training_steps, expected)


def _carried(found: Rate, training_steps: int, expected: float | None) -> Rate:
    """Return the rate for the training that a search stands for."""
    known = None if expected is None else expected * (STEPS / training_steps) ** LENGTH
    return found.in_training(training_steps, known)


def _kept(batches: Batches, steps: int | None, training_steps: int | None) -> Batches:
    """Return batches that can be read again, where one of them is looked at before the search."""
    if isinstance(batches, Iterator) and training_steps is not None:
        return list(islice(batches, max(LONG, steps or 0)))
    return batches


def _first_rates(
    grid: Sequence[float] | None, name: str, expected: float | None, steps: int | None
) -> tuple[float, ...]:
    """Return the rates that a search of so many steps begins with."""
    if grid is not None:
        return checked_grid(grid)
    if expected is None:
        return default_grid(name)
    return tuple(expected * (STEPS / (steps or LONG)) ** LENGTH * factor for factor in _AROUND)


def _longer(training_steps: int | None, budget: int | None) -> int:
    """Return the steps of a search that begins around an expected rate."""
    return max(1, min(LONG, training_steps or LONG, (budget or BUDGET) * LONG // BUDGET))


def _explored(
    search: Search, budget: int | None, rates: tuple[float, ...], notes: Journal | None, *, shown: bool
) -> Exploration:
    """Return what the runs of a search gave."""
    if budget is None:
        return search.explore(rates, notes, progress=shown)
    return search.explore_within(budget, rates, notes, progress=shown)


def _expected(objective: Objective, draw: Draw, build: Build, batches: Batches, seed: int) -> float | None:
    """Return the rate that is known without a training, on rank 0; None where there is none."""
    batch = feeds_of(batches, 1, (seed,), _device(draw))[seed].first
    try:
        model = copied(objective, draw).model
    except RateError:
        return None
    return ranks.shared(expected_rate(model, objective.loss_fn, batch, build))


def _lengths(
    steps: int | Short | None, seeds: int | None, training_steps: int | None, budget: int | None
) -> tuple[int | None, int, int | None]:
    """Return the numbers of steps and of seeds, and the budget of gradients."""
    if isinstance(steps, str) and steps != "short":
        raise OptionError(f"steps must be a number, None for an epoch, or 'short', received {steps!r}")
    given = {"training_steps": training_steps, "budget": budget}
    check_integer(**{name: value for name, value in given.items() if value is not None})
    if training_steps is not None:
        budget = BUDGET if budget is None else budget
        if steps is None:
            steps = short_of(training_steps, budget)
        return steps if isinstance(steps, int) else SHORT, 1 if seeds is None else seeds, budget
    short = isinstance(steps, str)
    return SHORT if isinstance(steps, str) else steps, (1 if short else 3) if seeds is None else seeds, budget


def short_of(training_steps: int, budget: int) -> int:
    """Return the steps of a search for a training, so that a budget of gradients suffices for enough runs."""
    return max(1, min(SHORT, training_steps, budget // _RUNS))


def _too_short(steps: int, training_steps: int | None) -> tuple[str, ...]:
    """Return a warning where the runs that stand for a training are shorter than those that were measured."""
    if training_steps is None or steps >= min(_LEAST, training_steps):
        return ()
    return (
        f"runs of {steps} steps stand for {training_steps:,}, where runs of {_LEAST} and more were measured: raise "
        "budget= or steps=",
    )


def _check(seeds: int, steps: int | None, settings: SearchSettings, clip: float | None) -> None:
    """Raise `OptionError` for numbers out of range or an unknown target."""
    widen, probes, bound = settings.widen, settings.probes, settings.bound
    if seeds < 1 or widen < 0 or probes < 1 or not bound > 0 or (steps is not None and steps < 1):
        raise OptionError(
            f"seeds, steps and probes must be at least 1, widen at least 0 and bound positive, not seeds={seeds}, "
            f"steps={steps}, probes={probes}, widen={widen}, bound={bound}"
        )
    check_choice("target", settings.target, get_args(Definition))
    if clip is not None:
        check_positive(clip=clip)


def course_in(name: str, factor: Callable[[float], float], steps: int) -> Callable[[float], float]:
    """Return the schedule of a training of so many steps: one step alone has the whole rate.

    Raises:
        OptionError: the schedule never leaves 0 in several steps.
    """
    if steps == 1:
        return lambda _: 1.0
    if not any(factor(index / steps) for index in range(steps)):
        raise OptionError(
            f"schedule {name!r} keeps the rate at 0 in all of {steps} steps: give more steps, or schedule='constant'"
        )
    return factor


def _device(draw: Draw) -> torch.device:
    return next(iter(draw.parameters.values())).device


def _same_weights(workload: Workload) -> tuple[str, ...]:
    """Return a warning where all draws are one."""
    first, *others = (draw.parameters for draw in workload.draws.values())
    if not others or any(not torch.equal(first[name], draw[name]) for draw in others for name in first):
        return ()
    return ("all seeds have the same weights: the model sets a seed of its own, so that less chance is seen",)


def _same_batches(batches: Batches, workload: Workload) -> tuple[str, ...]:
    """Return a warning where a loader gives all seeds the same batches: where it does not shuffle."""
    feeds = list(workload.feeds.values())
    if len(feeds) == 1 or feeds[0].steps == 1 or callable(batches) or isinstance(batches, list | tuple | Iterator):
        return ()
    firsts = {digest_of(tensor for _, tensor in walk(feed.first)) for feed in feeds}
    if ranks.agreed(len(firsts) > 1):
        return ()
    return (
        "all seeds have the same batches in the same order, so that part of the chance is not seen: let the loader "
        "shuffle, or give batches as a list or as a function of the seed",
    )


_FOR_ALL_SEEDS = (
    "the module with initialize=wellposed.plan(model, example), which draws its weights for each seed, or with "
    "seeds=1, as it is"
)
