"""Runs trained side by side: which diverge, which lag behind, and what their losses are at the end."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wellposed import ranks
from wellposed.errors import DivergedError
from wellposed.rates.ensemble import Member, Outcome, Runs
from wellposed.rates.feed import Feed


@dataclass(frozen=True, slots=True)
class Ending:
    """What the loss at the end of a run is: by default its mean over some of the batches that it was trained on.

    Attributes:
        last: if above 0, the mean over the losses of so many last steps, each before its step.
        held_out: if any, the mean over these batches, with the weights after the last step, in evaluation mode.
    """

    last: int = 0
    held_out: tuple[Any, ...] = ()


class Pace:
    """Stops runs that have gained far less than the best one of their seed, which they would hardly reach any more.

    What a run has gained is its first loss less the mean of the latest ones, which all runs of a seed take on the same
    batches. The best gains are kept from one call of `train` to the next.
    """

    def __init__(self, steps: int) -> None:
        """Take the number of steps of a whole run."""
        self._due = {round(share * steps): part for share, part in _PACE}
        self._best: dict[tuple[int, int], float] = {}

    def kept(self, done: int, gains: Mapping[Member, float]) -> set[Member]:
        """Return the runs that go on after ``done`` steps: all of a seed, where none has gained anything yet."""
        if done not in self._due:
            return set(gains)
        for member, gain in gains.items():
            key = (member.seed, done)
            self._best[key] = max(gain, self._best.get(key, gain))
        least = {key[0]: self._due[done] * best for key, best in self._best.items() if key[1] == done and best > 0}
        return {member for member, gain in gains.items() if gain >= least.get(member.seed, -math.inf)}


_PACE = ((0.25, 0.2), (0.5, 0.5))
"""Shares of the steps after which runs are compared, with the share of the best gain that is asked for; chosen."""
_LATEST = 5
"""Losses over which the gain of a run is averaged; chosen."""


def train(
    runs: Runs,
    members: Sequence[Member],
    feed: Feed,
    *,
    bound: float,
    probes: int,
    schedule: Callable[[float], float],
    advance: Callable[[int], None],
    ending: Ending | None = None,
    pace: Pace | None = None,
) -> list[Outcome]:
    """Train some runs side by side, on the same batches, and return how each ended.

    A run has diverged where its loss is not finite, or exceeds that of the first batch by ``bound`` times; it is
    dropped there and then. The loss at the end is the mean over ``probes`` batches, spread evenly over those trained
    on, with the weights after the last step, unless ``ending`` says otherwise.

    Args:
        runs: the runs.
        members: which they are.
        feed: the batches, one for each step.
        bound: how far a loss may rise, in units of the first one.
        probes: how many batches the final loss is averaged over.
        schedule: the learning rate's factor, by the fraction of the steps that are done.
        advance: called at each step with the number of members that are still alive.
        ending: what the loss at the end is, if not that.
        pace: what stops runs that lag behind; None lets all go on.

    Raises:
        RateError: a loss that is not finite before the first step; batches that run out.
    """
    ending = ending or Ending()
    probed = _probed(ending, feed.steps, probes)
    held: list[Any] = list(ending.held_out)
    field = _Field(runs, members, bound)
    for index, batch in enumerate(feed):
        advance(len(field.alive))
        field.take(_shared(runs.step(batch, schedule(index / feed.steps))), ending.last)
        field.drop(field.last, index + 1)
        if pace is not None:
            field.follow(pace, index + 1)
        if not field.alive:
            return field.outcomes
        if index in probed:
            held.append(batch)
    ends = torch.zeros(len(field.alive), dtype=torch.float64)
    if ending.last and not ending.held_out:
        ends += torch.tensor(field.means(), dtype=torch.float64)
    with runs.evaluating() if ending.held_out else nullcontext():
        for batch in held:
            ends += torch.tensor(_shared(runs.losses(batch)), dtype=torch.float64) / len(held)
    losses_at_end = dict(zip(field.alive, ends.tolist(), strict=True))
    field.drop(ends.tolist(), feed.steps)
    return field.outcomes + [Outcome(m.rate, m.seed, field.starts[m], losses_at_end[m]) for m in field.alive]


class _Field:
    """The runs that are still in it, and how the others ended.

    Attributes:
        alive: the runs that go on.
        starts: the loss of each run before the first step.
        last: the losses of the runs that go on before the step that was taken last.
        outcomes: of the runs that have ended.
    """

    def __init__(self, runs: Runs, members: Sequence[Member], bound: float) -> None:
        """Begin with all members."""
        self._runs, self._bound = runs, bound
        self.alive = list(members)
        self.starts: dict[Member, float] = {}
        self.last: list[float] = []
        self.outcomes: list[Outcome] = []
        self._latest: dict[Member, deque[float]] = {}

    def take(self, losses: list[float], kept: int) -> None:
        """Note the losses of a step; of each run the latest ``kept`` are held, or, for 0, `_LATEST`.

        Raises:
            DivergedError: the first ones are not finite.
        """
        if not self.starts:
            self.starts = dict(zip(self.alive, losses, strict=True))
            _check_starts(self.starts)
            self._latest = {member: deque(maxlen=kept or _LATEST) for member in self.alive}
        self.last = losses
        for member, loss in zip(self.alive, losses, strict=True):
            self._latest[member].append(loss)

    def means(self) -> list[float]:
        """Return the mean of the latest losses of each run that goes on."""
        return [sum(self._latest[member]) / len(self._latest[member]) for member in self.alive]

    def drop(self, losses: list[float], done: int) -> None:
        """Leave the runs that have diverged after ``done`` steps."""
        # Written so that NaN, which compares as false, counts as diverged.
        starts = [self.starts[member] for member in self.alive]
        kept = [loss - start <= self._bound * abs(start) for loss, start in zip(losses, starts, strict=True)]
        self._leave(kept, [None] * len(kept), done)

    def follow(self, pace: Pace, done: int) -> None:
        """Leave the runs that lag behind after ``done`` steps."""
        means = self.means()
        gains = {member: self.starts[member] - mean for member, mean in zip(self.alive, means, strict=True)}
        kept = pace.kept(done, gains)
        self._leave([member in kept for member in self.alive], means, done)

    def _leave(self, kept: list[bool], losses: Sequence[float | None], done: int) -> None:
        """Note how runs ended that are not kept, and go on with the others."""
        if all(kept):
            return
        for member, stays, loss in zip(self.alive, kept, losses, strict=True):
            if not stays:
                self.outcomes.append(Outcome(member.rate, member.seed, self.starts[member], loss, done))
        self.alive = [member for member, stays in zip(self.alive, kept, strict=True) if stays]
        if self.alive:
            self._runs.keep(torch.tensor(kept).nonzero().flatten())


def _probed(ending: Ending, steps: int, probes: int) -> frozenset[int]:
    """Return the steps on whose batches the final loss is taken, spread evenly; none where ``ending`` names others."""
    if ending.last or ending.held_out:
        return frozenset()
    count = min(probes, steps)
    return frozenset(round((i + 0.5) * steps / count - 0.5) for i in range(count))


def _check_starts(starts: Mapping[Member, float]) -> None:
    """Refuse weights for which the loss is not finite before the first step."""
    bad = sorted({member.seed for member, loss in starts.items() if loss != loss})
    if bad:
        raise DivergedError(
            f"the loss is not finite before the first step (seed {', '.join(map(str, bad))}), so that no learning rate "
            "can help: look at the batches and at the initial weights (wellposed.check names the node at fault)"
        )


def _shared(losses: Tensor) -> list[float]:
    """Return the mean of the losses over the ranks; a loss that is not finite comes as NaN."""
    losses = losses.detach().double()
    ranks.averaged_([losses])
    return torch.where(losses.isfinite(), losses, torch.nan).tolist()
