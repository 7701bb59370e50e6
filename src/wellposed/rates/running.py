"""Runs trained side by side: which diverge, which lag behind, and what their losses are at the end."""

from __future__ import annotations

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
        """Return the runs that go on after ``done`` steps."""
        if done not in self._due:
            return set(gains)
        for member, gain in gains.items():
            key = (member.seed, done)
            self._best[key] = max(gain, self._best.get(key, gain))
        return {member for member, gain in gains.items() if gain >= self._due[done] * self._best[member.seed, done]}


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
    alive = list(members)
    lasting: dict[Member, float] = dict.fromkeys(members, 0.0)
    latest: dict[Member, deque[float]] = {member: deque(maxlen=_LATEST) for member in members}
    starts: dict[Member, float] = {}
    outcomes: list[Outcome] = []

    def leave(kept: list[bool], losses: Callable[[Member], float | None], done: int) -> None:
        """Note how the other runs ended after ``done`` steps, and go on with those that are kept."""
        nonlocal alive
        if all(kept):
            return
        out = [member for member, stays in zip(alive, kept, strict=True) if not stays]
        outcomes.extend(Outcome(m.rate, m.seed, starts[m], losses(m), done) for m in out)
        alive = [member for member, stays in zip(alive, kept, strict=True) if stays]
        if alive:
            runs.keep(torch.tensor(kept).nonzero().flatten())

    def drop(losses: list[float], done: int) -> None:
        """Leave the runs that have diverged."""
        rises = [loss - starts[member] for member, loss in zip(alive, losses, strict=True)]
        # Written so that NaN, which compares as false, counts as diverged.
        kept = [rise <= bound * abs(starts[member]) for member, rise in zip(alive, rises, strict=True)]
        leave(kept, lambda member: None, done)

    for index, batch in enumerate(feed):
        losses = _shared(runs.step(batch, schedule(index / feed.steps)))
        if not starts:
            starts = dict(zip(members, losses, strict=True))
            _check_starts(starts)
        advance(len(alive))
        for member, loss in zip(alive, losses, strict=True):
            latest[member].append(loss)
            lasting[member] += loss / min(ending.last, feed.steps) if index >= feed.steps - ending.last else 0.0
        drop(losses, index + 1)
        if pace is not None and alive:
            means = {member: sum(latest[member]) / len(latest[member]) for member in alive}
            kept = pace.kept(index + 1, {member: starts[member] - mean for member, mean in means.items()})
            leave([member in kept for member in alive], means.__getitem__, index + 1)
        if not alive:
            return outcomes
        if index in probed:
            held.append(batch)
    ends = torch.zeros(len(alive), dtype=torch.float64)
    if ending.last and not ending.held_out:
        ends += torch.tensor([lasting[member] for member in alive], dtype=torch.float64)
    with runs.evaluating() if ending.held_out else nullcontext():
        for batch in held:
            ends += torch.tensor(_shared(runs.losses(batch)), dtype=torch.float64) / len(held)
    losses_at_end = dict(zip(alive, ends.tolist(), strict=True))
    drop(ends.tolist(), feed.steps)
    return outcomes + [Outcome(m.rate, m.seed, starts[m], losses_at_end[m]) for m in alive]


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
