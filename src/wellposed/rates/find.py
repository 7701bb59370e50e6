"""The base learning rate of a model, found by training it at a grid of rates, as a vectorised ensemble."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import torch
from pydantic import JsonValue
from torch import Tensor, nn
from torch.optim import Optimizer

from wellposed import ranks
from wellposed.arrays import array_of
from wellposed.errors import OptionError, RateError
from wellposed.graphs.restore import restored_attributes
from wellposed.graphs.tree import walk
from wellposed.graphs.unwrap import compiled_part
from wellposed.options import check_choice
from wellposed.plans import Plan
from wellposed.random_states import restored_random_state, seed_all
from wellposed.rates.answer import Exploration, answer
from wellposed.rates.ensemble import (
    Draw,
    Ending,
    LossFn,
    Member,
    Objective,
    Outcome,
    Runs,
    Single,
    Stack,
    Workload,
    copy_of,
    train,
)
from wellposed.rates.feed import Batches, feeds_of
from wellposed.rates.grid import checked_grid, continued, default_grid
from wellposed.rates.journal import Journal
from wellposed.rates.probe import probe, stacking_cost
from wellposed.rates.rate import Conditions, Definition, Point, Rate
from wellposed.rates.schedule import Schedule, schedule_factor
from wellposed.rates.steps import Build, Update, builder, updates
from wellposed.rates.valley import further
from wellposed.tables import BarColumn, Console, Progress, TextColumn, TimeRemainingColumn

_TOO_SLOW = 1.5
"""A stack that takes this many times as long as its runs one by one is not worth it."""
_MEMORY = 2 * 2**30
"""Bytes that an ensemble may take on the CPU by default."""
SHORT = 40
"""Steps of a short search."""
Short = Literal["short"]


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """What is rarely set of `find_max_lr`.

    Attributes:
        widen: how often the grid is continued at most.
        bound: a run whose loss rises above the first one by this many times it has diverged.
        probes: batches over which the loss at the end is averaged, with the weights after the last step.
        vectorize: True requires the vectorised ensemble, False trains one by one; None decides.
        memory: bytes that an ensemble may take; by default 2 GiB, or 60 % of what a GPU has left. What does not fit
            is trained in several ensembles.
        target: which rate is returned: the centre of the plateau, or the argmin, as in Chen et al. 2024.
        reference: the loss without training, from which gains are counted (ln(classes) for cross-entropy); None for
            that of the first batch before the first step, which a poor initialisation makes large.
    """

    widen: int = 3
    bound: float = 100.0
    probes: int = 16
    vectorize: bool | None = None
    memory: int | None = None
    target: Definition = "plateau"
    reference: float | None = None


def find_max_lr(
    model_fn: nn.Module | Callable[[], nn.Module],
    loss_fn: LossFn,
    batches: Batches,
    *,
    optimizer: str | type[Optimizer] | Build = "sgd",
    steps: int | Short | None = None,
    grid: Sequence[float] | None = None,
    seeds: int | None = None,
    initialize: Plan | Callable[[nn.Module], object] | None = None,
    schedule: Schedule = "constant",
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
        loss_fn: ``loss_fn(model, batch)``, the mean loss of one batch.
        batches: what the steps are taken on, each seed in an order of its own: a list is shuffled, a ``DataLoader``
            shuffles itself, an iterator is kept in memory. Or a function that gives each seed its batches.
        optimizer: ``"sgd"``, ``"momentum"`` (0.9), ``"adam"``, ``"adamw"``; a class of ``torch.optim``; or a function
            of the model and the rate, whose groups may have rates in a fixed ratio (what is then found is the rate
            that the function is given).
        steps: optimizer steps; None for one epoch. ``"short"`` for a search by 40 steps and one seed: its rates are
            off from those of a full one by a factor that nets of a kind share, so that ratios of two are worth
            something (see `wellposed.rates.transfer`), one by itself is not.
        grid: learning rates to try; by default 16, spaced by 2^0.75.
        seeds: draws of the weights, and orders of the batches; None for 3, or 1 of a short search.
        initialize: a plan, drawn anew for each seed; or a function that initialises a model in place.
        schedule: ``"constant"``, ``"linear"`` or ``"cosine"`` (both to zero), ``"warmup_linear"`` (from zero over the
            first tenth of the steps, then to zero), or a function that maps the fraction of steps done to the learning
            rate's factor.
        journal: a file of JSON lines that notes every finished run; a search that was killed goes on from it.
        progress: show a progress bar, on rank 0.
        seed: of the first draw; the others follow it.
        settings: what is rarely set.
        fields: fields of ``settings`` by name; they go before those of the object.

    Raises:
        RateError: batches that run out; a loss that is not finite at the start, or in every run; a journal of another
            search; ``vectorize=True`` for a model that cannot be; a loss that no rate changes.
        OptionError: an unknown optimizer or schedule, or an option outside its range; a module in place of
            ``model_fn`` for several seeds, which would all have its weights.
    """
    given = untouched(model_fn)
    steps, seeds = _lengths(steps, seeds)
    model_fn = builder_of(model_fn, "" if initialize is not None or seeds == 1 else _FOR_ALL_SEEDS)
    settings = replace(settings or SearchSettings(), **fields)
    _check(seeds, steps, settings)
    name, build = builder(optimizer)
    schedule_name, factor = schedule_factor(schedule)
    with restored_random_state(), given:
        model, draws = drawn(model_fn, initialize, range(seed, seed + seeds))
        with restored_attributes(model):
            name = name or type(build(model, 1.0)).__name__.lower()
            rates = checked_grid(grid) if grid is not None else default_grid(name)
            workload = Workload(
                Objective(model, loss_fn), draws, build, feeds_of(batches, steps, tuple(draws), _device(draws[seed]))
            )
            training = training_of(workload, (rates[0], rates[-1]), settings)
            search = Search(workload, training, settings, factor)
            notes = opened(
                journal,
                # Journals of searches whose seeds shared one order of batches have no such line.
                fingerprint(workload, schedule_name, settings) | {"order of batches": "each seed its own"},
            )
            exploration = search.explore(rates, notes, progress=progress and ranks.index() == 0)
            feed = workload.feed
            conditions = Conditions(
                optimizer=name,
                batch_size=feed.batch_size(),
                steps=feed.steps,
                schedule=schedule_name,
                loss=_name(loss_fn),
                inputs=feed.described(),
            )
            warnings = (*training.warnings, *_same_weights(workload), *_same_batches(batches, workload))
    return answer(exploration, conditions, training.description, warnings, settings.target)


def _lengths(steps: int | Short | None, seeds: int | None) -> tuple[int | None, int]:
    """Return the numbers of steps and of seeds."""
    if isinstance(steps, str):
        if steps != "short":
            raise OptionError(f"steps must be a number, None for an epoch, or 'short', received {steps!r}")
        return SHORT, 1 if seeds is None else seeds
    return steps, 3 if seeds is None else seeds


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


def builder_of(model_fn: nn.Module | Callable[[], nn.Module], otherwise: str) -> Callable[[], nn.Module]:
    """Return what makes a model; for a module a function that copies it.

    Args:
        model_fn: either.
        otherwise: how a module could be given, where every seed would have the weights of this one; else empty.

    Raises:
        OptionError: a module whose weights every seed would have, or what is no function.
    """
    if not isinstance(model_fn, nn.Module):
        if not callable(model_fn):
            raise OptionError(f"model_fn must be a function that makes the model, received {type(model_fn).__name__}")
        return model_fn
    name = type(model_fn).__name__
    if otherwise:
        raise OptionError(
            f"model_fn must be a function that makes the model anew for each seed, received a {name}, whose weights "
            f"all seeds would have: give lambda: {name}(...); or {otherwise}"
        )
    return partial(copy_of, model_fn, "a module in the place of a function that makes it")


def untouched(model_fn: nn.Module | Callable[[], nn.Module]) -> AbstractContextManager[None]:
    """Return a block that leaves a module as it was: copies share the functions (hooks) that it holds, and these may
    refer to it.
    """
    return restored_attributes(model_fn) if isinstance(model_fn, nn.Module) else nullcontext()


def _check(seeds: int, steps: int | None, settings: SearchSettings) -> None:
    widen, probes, bound = settings.widen, settings.probes, settings.bound
    if seeds < 1 or widen < 0 or probes < 1 or not bound > 0 or (steps is not None and steps < 1):
        raise OptionError(
            f"seeds, steps and probes must be at least 1, widen at least 0 and bound positive, not seeds={seeds}, "
            f"steps={steps}, probes={probes}, widen={widen}, bound={bound}"
        )
    check_choice("target", settings.target, get_args(Definition))


def fingerprint(workload: Workload, schedule: str, settings: SearchSettings) -> dict[str, JsonValue]:
    """Return what two searches must have in common for one to go on from the other's journal."""
    model = workload.objective.model
    return {
        "model": type(model).__name__,
        "weights": digest_of(next(iter(workload.draws.values())).parameters.values()),
        "first batch": digest_of(tensor for _, tensor in walk(workload.feed.first)),
        "loss": _name(workload.objective.loss_fn),
        "optimizer": _describe_optimizer(workload.build, model),
        "schedule": schedule,
        "steps": workload.feed.steps,
        "bound": settings.bound,
        "probes": settings.probes,
        "ranks": ranks.count(),
    }


def opened(path: str | os.PathLike[str] | None, fingerprint: Mapping[str, JsonValue]) -> Journal | None:
    """Return the journal, on rank 0 alone; where it cannot be used, every rank raises."""
    notes, complaint = None, ""
    if path is not None and ranks.index() == 0:
        try:
            notes = Journal(path, fingerprint)
        except (RateError, OSError) as error:
            complaint = str(error)
    complaint = ranks.shared(complaint)
    if complaint:
        raise RateError(complaint)
    return notes


@dataclass(frozen=True, slots=True)
class HowTrained:
    """How the runs of a search are trained: in stacks, or one by one.

    Attributes:
        updates: what the optimizer does with each parameter; empty where runs are trained one by one.
        moving: buffers that a stack holds for each run.
        at_once: runs in one stack; 0 where they are trained one by one.
        description: the same in words.
        warnings: what to know about it.
    """

    updates: Mapping[str, Update]
    moving: Sequence[str]
    at_once: int
    description: str
    warnings: tuple[str, ...]


def training_of(workload: Workload, rates: tuple[float, float], settings: SearchSettings) -> HowTrained:
    """Return how runs between two rates are trained: stacked where that is possible and no slower.

    Raises:
        RateError: they cannot be stacked, and ``settings`` require it.
    """
    wanted = settings.vectorize
    how = "vectorize=False asks for it" if wanted is False else updates(workload.build, workload.objective.model, rates)
    seen = probe(workload, how)
    warnings = ["the forward pass is not deterministic: part of the differences between rates is noise"] * seen.noisy
    if seen.obstacle is not None or isinstance(how, str):
        if wanted:
            raise RateError(f"vectorize=True, but the runs cannot be stacked: {seen.obstacle}")
        if wanted is None:
            warnings.insert(0, f"trained one by one: {seen.obstacle}")
        return HowTrained({}, (), 0, "one by one", tuple(warnings))
    cost = stacking_cost(workload, how, seen.moving) if wanted is None else 0.0
    if cost >= _TOO_SLOW:
        description = f"one by one (a stack takes {cost:.1f} times as long here)"
        return HowTrained({}, (), 0, description, tuple(warnings))
    memory = settings.memory or _free_memory(workload.feed.device)
    at_once = max(1, min(ranks.gathered(memory // seen.memory)))
    return HowTrained(how, seen.moving, at_once, "as one vectorised ensemble", tuple(warnings))


@dataclass(frozen=True, slots=True)
class Search:
    """Everything that the runs of one search share.

    Attributes:
        workload: model, loss, weights, optimizer and batches.
        training: how they are trained.
        settings: see `find_max_lr`.
        factor: the schedule.
        ending: what the loss at the end is; None for the mean over batches that were trained on.
        label: what is shown beside the progress bar.
    """

    workload: Workload
    training: HowTrained
    settings: SearchSettings
    factor: Callable[[float], float]
    ending: Ending | None = None
    label: str = "learning rates"

    def explore(self, rates: tuple[float, ...], notes: Journal | None, *, progress: bool) -> Exploration:
        """Train what the journal does not hold, and continue the grid where its smallest loss lies at an edge.

        ``notes`` is the journal, on rank 0 alone.
        """
        seeds = tuple(self.workload.draws)
        outcomes = ranks.shared(dict(notes.outcomes) if notes is not None else {})
        widened = 0
        while True:
            self.complete(outcomes, rates, notes, progress=progress)
            curve = tuple(
                Point(rate=rate, losses=tuple(outcomes[Member(rate, seed)].loss for seed in seeds)) for rate in rates
            )
            starts = tuple(outcomes[Member(rates[0], seed)].start for seed in seeds)
            exploration = Exploration(curve, starts, widened, self.settings.reference)
            beyond = continued(rates, further(exploration.valleys, exploration.by_seed), max(2, len(rates) // 2))
            if not beyond or widened == self.settings.widen:
                return exploration
            rates, widened = tuple(sorted((*rates, *beyond))), widened + 1

    def complete(
        self, outcomes: dict[Member, Outcome], rates: Sequence[float], notes: Journal | None, *, progress: bool
    ) -> None:
        """Train at ``rates`` what ``outcomes`` do not hold, and add it to them and to the journal."""
        wanted = [Member(rate, seed) for seed in self.workload.draws for rate in rates]
        for part in self._run([member for member in wanted if member not in outcomes], progress=progress):
            outcomes.update({Member(o.rate, o.seed): o for o in part})
            if notes is not None:
                notes.add(part)

    def _run(self, members: Sequence[Member], *, progress: bool) -> Iterator[list[Outcome]]:
        """Train some runs, in as few ensembles as memory and journal allow; yield the outcomes of each ensemble."""
        size, feeds = self.training.at_once or 1, self.workload.feeds
        groups = [[member for member in members if member.seed == seed] for seed in self.workload.draws]
        parts = [group[start : start + size] for group in groups for start in range(0, len(group), size)]
        with _bar(progress and bool(members), len(members) * self.workload.feed.steps, self.label) as advance:
            for part in parts:
                seed_all(part[0].seed + ranks.index())
                yield train(
                    self._runs(part),
                    part,
                    feeds[part[0].seed],
                    bound=self.settings.bound,
                    probes=self.settings.probes,
                    ending=self.ending,
                    schedule=self.factor,
                    advance=partial(advance, len(part)),
                )

    def _runs(self, members: Sequence[Member]) -> Runs:
        workload, training = self.workload, self.training
        if training.at_once:
            return Stack(workload.objective, workload.draws, members, training.updates, training.moving)
        (member,) = members
        return Single(workload.objective, workload.draws[member.seed], member.rate, workload.build)


@contextmanager
def _bar(shown: bool, total: int, label: str) -> Iterator[Callable[[int, int], None]]:
    """Show how many steps of all runs are done; what is yielded takes the runs and how many of them are still alive."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[alive]}"), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal)) as bar:
        task = bar.add_task(label, total=total, alive="")

        def advance(runs: int, alive: int) -> None:
            bar.update(task, advance=runs, alive=f"{alive} of {runs} runs" if runs > 1 else "one by one")

        yield advance


def drawn(
    model_fn: Callable[[], nn.Module],
    initialize: Plan | Callable[[nn.Module], object] | None,
    seeds: Iterable[int],
    *,
    initialised: bool = False,
) -> tuple[nn.Module, dict[int, Draw]]:
    """Return the model of the first seed, and the weights of every seed, the same on every rank.

    With ``initialised`` it is the copy of it that was initialised, with what else it was given: attributes, factors.

    Raises:
        RateError: ``model_fn`` returns no module, or another one for each seed.
    """
    first: nn.Module | None = None
    draws: dict[int, Draw] = {}
    for seed in seeds:
        seed_all(seed)
        model = model_fn()
        if not isinstance(model, nn.Module):
            raise RateError(f"model_fn must return an nn.Module, not {type(model).__name__}")
        filled = model
        if initialize is not None:
            filled = copy_of(model, "initialize=")
            if isinstance(initialize, Plan):
                initialize.model_copy(update={"seed": initialize.seed + seed}).apply_(filled, frozen=True)
            else:
                initialize(filled)
        draw = Draw(
            {name: tensor.detach().clone() for name, tensor in filled.named_parameters()},
            {name: tensor.detach().clone() for name, tensor in filled.named_buffers()},
        )
        if not draw.parameters:
            raise RateError(f"{type(model).__name__} has no parameters to train")
        if compiled := compiled_part(model):
            raise RateError(compiled)
        if any(tensor.is_meta for tensor in (*draw.parameters.values(), *draw.buffers.values())):
            raise RateError(f"{type(model).__name__} is on the meta device; model_fn must build it on a real one")
        first = (filled if initialised else model) if first is None else first
        known = next(iter(draws.values()), draw)
        if _shapes(draw) != _shapes(known):
            raise RateError(
                f"model_fn returned another {type(model).__name__} for seed {seed}: names or shapes of its parameters "
                "differ; its structure must not depend on random numbers"
            )
        ranks.first_([*draw.parameters.values(), *draw.buffers.values()])
        draws[seed] = draw
    assert first is not None
    return first, draws


def _shapes(draw: Draw) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in (*draw.parameters.items(), *draw.buffers.items())}


def _device(draw: Draw) -> torch.device:
    return next(iter(draw.parameters.values())).device


def _free_memory(device: torch.device) -> int:
    """Return the bytes that an ensemble may take."""
    if device.type != "cuda":
        return _MEMORY
    return int(0.6 * torch.cuda.mem_get_info(device)[0])


def digest_of(tensors: Iterable[Tensor]) -> str:
    """Return a short fingerprint of some tensors' values."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype}{list(tensor.shape)}".encode())
        digest.update(
            array_of(tensor.detach().to_dense().contiguous().reshape(-1).view(torch.uint8), torch.uint8).tobytes()
        )
    return digest.hexdigest()[:16]


def _name(function: object) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)


def _describe_optimizer(build: Build, model: nn.Module) -> str:
    """Return class and options of every group of an optimizer, at a learning rate of 1."""
    optimizer = build(model, 1.0)
    groups = [{k: v for k, v in sorted(group.items()) if k != "params"} for group in optimizer.param_groups]
    return f"{type(optimizer).__name__}{groups}"
