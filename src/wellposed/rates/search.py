"""The runs of a search: how they are trained, and the grid of rates that they explore."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch

from wellposed import ranks
from wellposed.errors import RateError
from wellposed.random_states import seed_all
from wellposed.rates.answer import Exploration
from wellposed.rates.ensemble import Member, Outcome, Runs, Single, Stack, Workload
from wellposed.rates.feed import Feed
from wellposed.rates.grid import continued
from wellposed.rates.journal import Journal
from wellposed.rates.probe import probe, stacking_cost
from wellposed.rates.rate import Definition, Point
from wellposed.rates.running import Ending, Pace, train
from wellposed.rates.steps import Update, updates
from wellposed.rates.valley import further
from wellposed.tables import BarColumn, Progress, TextColumn, TimeRemainingColumn, console

_TOO_SLOW = 1.5
"""A stack that takes this many times as long as its runs one by one is not worth it."""
_FIRST = 8
"""Rates that a search within a budget begins with at most; chosen."""
_FINEST = 0.7
"""Octaves between two rates below which the gap between them is not halved; chosen: the draws scatter by as much."""
_MEMORY = 2 * 2**30
"""Bytes that an ensemble may take on the CPU by default."""


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

    def begun(self, workload: Workload, members: Sequence[Member]) -> Runs:
        """Return the runs of some members as one stack, or the only one by itself."""
        if self.at_once:
            return Stack(workload.objective, workload.draws, members, self.updates, self.moving, workload.clip)
        (member,) = members
        return Single(workload.objective, workload.draws[member.seed], member.rate, workload.build, workload.clip)


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


def _free_memory(device: torch.device) -> int:
    """Return the bytes that an ensemble may take."""
    if device.type != "cuda":
        return _MEMORY
    return int(0.6 * torch.cuda.mem_get_info(device)[0])


@dataclass(frozen=True, slots=True)
class Search:
    """Everything that the runs of one search share, in whatever framework they are trained.

    Attributes:
        feeds: the batches of each seed.
        begin: what begins the runs of some members.
        at_once: members that are trained side by side; 0 for one by one.
        settings: see `find_max_lr`.
        factor: the schedule.
        ending: what the loss at the end is; None for the mean over batches that were trained on.
        label: what is shown beside the progress bar.
    """

    feeds: Mapping[int, Feed]
    begin: Callable[[Sequence[Member]], Runs]
    at_once: int
    settings: SearchSettings
    factor: Callable[[float], float]
    ending: Ending | None = None
    label: str = "learning rates"

    @property
    def steps(self) -> int:
        """Steps of a whole run."""
        return next(iter(self.feeds.values())).steps

    def explore(self, rates: tuple[float, ...], notes: Journal | None, *, progress: bool) -> Exploration:
        """Train what the journal does not hold, and continue the grid where its smallest loss lies at an edge.

        ``notes`` is the journal, on rank 0 alone.
        """
        outcomes = ranks.shared(dict(notes.outcomes) if notes is not None else {})
        widened = 0
        while True:
            self.complete(outcomes, rates, notes, progress=progress)
            exploration = self._exploration(outcomes, rates, widened)
            beyond = continued(rates, further(exploration.valleys, exploration.by_seed), max(2, len(rates) // 2))
            if not beyond or widened == self.settings.widen:
                return exploration
            rates, widened = tuple(sorted((*rates, *beyond))), widened + 1

    def explore_within(
        self, budget: int, rates: tuple[float, ...], notes: Journal | None, *, progress: bool
    ) -> Exploration:
        """Train at some rates of a grid, stop what lags, and then train where the plateau goes on or ends.

        A run takes a gradient in each step. None is begun that the budget might not suffice for, but for the first
        ones. ``notes`` is the journal, on rank 0 alone.
        """
        outcomes = ranks.shared(dict(notes.outcomes) if notes is not None else {})
        whole, pace = self.steps * len(self.feeds), Pace(self.steps)
        tried, widened = rates[:: math.ceil(len(rates) / _FIRST)], 0
        while True:
            # From the middle outwards: where runs are trained one by one, the later ones are held against these.
            ordered = sorted(tried, key=lambda rate: abs(math.log(rate / math.sqrt(tried[0] * tried[-1]))))
            self.complete(outcomes, ordered, notes, progress=progress, pace=pace)
            exploration = self._exploration(outcomes, tried, widened)
            wanted, extends = _next(exploration, tried)
            left = (budget - exploration.gradients) // whole
            if not wanted or left < 1:
                return exploration
            tried, widened = tuple(sorted((*tried, *wanted[:left]))), widened + extends

    def _exploration(self, outcomes: Mapping[Member, Outcome], rates: Sequence[float], widened: int) -> Exploration:
        """Return what the runs at some rates gave."""
        seeds = tuple(self.feeds)
        ended = [[outcomes[Member(rate, seed)] for seed in seeds] for rate in rates]
        return Exploration(
            tuple(Point(rate=r, losses=tuple(o.loss for o in of)) for r, of in zip(rates, ended, strict=True)),
            tuple(one.start for one in ended[0]),
            widened,
            self.settings.reference,
            stopped=sum(o.steps is not None and o.loss is not None for of in ended for o in of),
            gradients=sum(o.steps or self.steps for of in ended for o in of),
        )

    def complete(
        self,
        outcomes: dict[Member, Outcome],
        rates: Sequence[float],
        notes: Journal | None,
        *,
        progress: bool,
        pace: Pace | None = None,
    ) -> None:
        """Train at ``rates`` what ``outcomes`` do not hold, and add it to them and to the journal."""
        wanted = [Member(rate, seed) for seed in self.feeds for rate in rates]
        missing = [member for member in wanted if member not in outcomes]
        for part in self._run(missing, progress=progress, pace=pace):
            outcomes.update({Member(o.rate, o.seed): o for o in part})
            if notes is not None:
                notes.add(part)

    def _run(self, members: Sequence[Member], *, progress: bool, pace: Pace | None) -> Iterator[list[Outcome]]:
        """Train some runs, in as few ensembles as memory and journal allow; yield the outcomes of each ensemble."""
        size = self.at_once or 1
        groups = [[member for member in members if member.seed == seed] for seed in self.feeds]
        parts = [group[start : start + size] for group in groups for start in range(0, len(group), size)]
        with _bar(progress and bool(members), len(members) * self.steps, self.label) as advance:
            for part in parts:
                seed_all(part[0].seed + ranks.index())
                yield train(
                    self.begin(part),
                    part,
                    self.feeds[part[0].seed],
                    bound=self.settings.bound,
                    probes=self.settings.probes,
                    ending=self.ending,
                    schedule=self.factor,
                    advance=partial(advance, len(part)),
                    pace=pace,
                )


def _next(exploration: Exploration, tried: Sequence[float]) -> tuple[list[float], bool]:
    """Return the rates to try after some, the most telling first, and whether they extend the grid.

    Where a plateau goes on, the grid does; else the gaps in which a plateau ends are halved, the upper one first, as
    that end is a cliff.
    """
    valleys = exploration.valleys
    beyond = further(valleys, exploration.by_seed)
    if any(beyond):
        return list(continued(tried, beyond, 1)), True
    gaps = {gap for found in valleys if found is not None for gap in found.gaps if gap[1] - gap[0] > _FINEST}
    return [2.0 ** ((low + high) / 2) for low, high in sorted(gaps, reverse=True)], False


@contextmanager
def _bar(shown: bool, total: int, label: str) -> Iterator[Callable[[int, int], None]]:
    """Show how many steps of all runs are done; what is yielded takes the runs and how many of them are still alive."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[alive]}"), TimeRemainingColumn())
    on = console()
    with Progress(*columns, console=on, transient=True, disable=not (shown and on.is_terminal)) as bar:
        task = bar.add_task(label, total=total, alive="")

        def advance(runs: int, alive: int) -> None:
            bar.update(task, advance=runs, alive=f"{alive} of {runs} runs" if runs > 1 else "one by one")

        yield advance
