"""Does an initialisation help? The same training from several starts, each at its own best learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, islice
from typing import Any

import numpy as np
from torch import nn

from wellposed import methods
from wellposed.checks.strict_json import to_json
from wellposed.errors import DivergedError, OptionError
from wellposed.graphs import trace
from wellposed.options import DEFAULT_METHOD
from wellposed.plans import Plan
from wellposed.random_states import restored_random_state
from wellposed.rates import find_max_lr
from wellposed.rates.feed import is_batch
from wellposed.rates.grid import lowest
from wellposed.rates.losses import LossFn, arguments_of
from wellposed.rates.starts import builder_of, untouched
from wellposed.showing import ROWS, Shown, Summary
from wellposed.surroundings import settled

OWN = "own"
"""The name of the start that leaves a model as its constructor made it."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """What training came to from one start.

    Attributes:
        name: of the start.
        rate: its best learning rate; NaN where every run diverged.
        losses: training loss at the end at that rate, one for each seed; empty where every run diverged.
        warnings: what the search for the rate warned of.
    """

    name: str
    rate: float
    losses: tuple[float, ...]
    warnings: tuple[str, ...] = ()

    @property
    def mean(self) -> float:
        """Mean loss over seeds; infinite where every run diverged."""
        return float(np.mean(self.losses)) if self.losses else math.inf

    @property
    def variance(self) -> float:
        """Squared standard error of ``mean``; NaN for a single seed."""
        return float(np.var(self.losses, ddof=1)) / len(self.losses) if len(self.losses) > 1 else math.nan

    def __str__(self) -> str:
        if not self.losses:
            return f"{self.name}: every run diverged"
        return f"{self.name}: loss {self.mean:.4g} ± {math.sqrt(self.variance):.2g} at rate {self.rate:.3g}"


@dataclass(frozen=True, slots=True, repr=False)
class Contest(Shown):
    """The outcome of `compare_starts`.

    Attributes:
        entrants: the starts, in the order in which they were given.
        steps: optimizer steps of each run.
        seeds: draws of the weights.
    """

    entrants: tuple[Entrant, ...]
    steps: int | None
    seeds: int

    def __getitem__(self, name: str) -> Entrant:
        """Return the entrant of a name."""
        return next(entrant for entrant in self.entrants if entrant.name == name)

    def p_value(self, first: str, second: str) -> float:
        """Return how likely a difference as large is by chance: Welch's t test on the losses at the best rates.

        NaN where a start has fewer than two losses; 0 where losses differ and do not vary at all.
        """
        one, other = self[first], self[second]
        variance = one.variance + other.variance
        if math.isnan(variance):
            return math.nan
        if variance == 0.0:
            return 1.0 if one.mean == other.mean else 0.0
        from scipy import special  # slow to import

        freedom = variance**2 / sum(e.variance**2 / (len(e.losses) - 1) for e in (one, other))
        return float(2 * special.stdtr(freedom, -abs(one.mean - other.mean) / math.sqrt(variance)))

    def _summary(self) -> Summary:
        """Return the starts of the smallest losses."""
        best = sorted(self.entrants, key=lambda entrant: entrant.mean)[:ROWS]
        return Summary(
            f"{self.seeds} seeds, {self.steps} steps each, every start at its own best rate",
            ("start", "loss", "standard error", "rate"),
            tuple((e.name, f"{e.mean:.4g}", f"{math.sqrt(e.variance):.2g}", f"{e.rate:.3g}") for e in best),
            len(self.entrants) - len(best),
            "the best",
        )

    def summary(self) -> str:
        """Return the outcome in words: every start, and whether each pair differs at the 5 % level."""
        lines = [f"{self.seeds} seeds, {self.steps} steps each, every start at its own best rate"]
        lines += [str(entrant) for entrant in self.entrants]
        for one, other in combinations(self.entrants, 2):
            better, worse = sorted((one, other), key=lambda e: e.mean)
            if not worse.losses:
                lines.append(
                    f"{worse.name} diverged at every rate, {better.name} did not"
                    if better.losses
                    else f"{one.name} and {other.name} diverged at every rate"
                )
                continue
            p = self.p_value(one.name, other.name)
            if p < 0.05:
                lines.append(f"{better.name} reaches a lower loss than {worse.name} (p = {p:.2g})")
            else:
                lines.append(f"{one.name} and {other.name} do not differ significantly (p = {p:.2g})")
        lines += [f"warning ({e.name}): {text}" for e in self.entrants for text in e.warnings]
        return "\n".join(lines)

    def to_json(self) -> str:
        """Return the outcome as JSON; numbers that JSON does not have are the strings "inf", "-inf" and "nan"."""
        starts = [asdict(entrant) | {"mean": entrant.mean} for entrant in self.entrants]
        pairs = [
            {"starts": [one.name, other.name], "p_value": self.p_value(one.name, other.name)}
            for one, other in combinations(self.entrants, 2)
        ]
        return to_json({"steps": self.steps, "seeds": self.seeds, "starts": starts, "pairs": pairs})


@settled(differentiates=True)
def compare_starts(
    model_fn: nn.Module | Callable[[], nn.Module],
    loss_fn: LossFn,
    batches: Iterable[Any],
    starts: Sequence[str] | Mapping[str, str | Plan] = (OWN, DEFAULT_METHOD),
    *,
    seeds: int = 5,
    seed: int = 0,
    **search: Any,
) -> Contest:
    """Train a model from several starts, each at the best of a grid of learning rates, and compare the losses.

    Every start is given the same grid, batches and number of seeds, so that the choice of the best rate favours none.
    What is compared is the training loss after some steps (`wellposed.rates.find_max_lr`), which is early evidence: it
    says nothing of the accuracy after a long training.

    Args:
        model_fn: makes the model; called for each start and seed, with the random generators seeded. A module is
            copied in its place, where none of the starts is ``"own"``.
        loss_fn: ``loss_fn(model, batch)``, the mean loss of one batch.
        batches: what the steps are taken on.
        starts: names of methods of `wellposed.plan`, and ``"own"`` for the weights that ``model_fn`` gives; or plans
            and names by the name to show.
        seeds: draws of the weights, at least 2.
        seed: of the first draw.
        **search: options of `wellposed.rates.find_max_lr`: ``steps``, ``grid``, ``optimizer``, ``schedule``, ...

    Raises:
        OptionError: fewer than 2 seeds or starts, the same start twice, an unknown method.
        RateError: the training cannot be run; that it diverges from one of the starts is no error, but part of the
            outcome.
    """
    if isinstance(starts, str):
        starts = (starts,)
    named = dict(starts) if isinstance(starts, Mapping) else dict(zip(starts, starts, strict=True))
    if seeds < 2 or len(named) < 2 or len(named) < len(starts):
        raise OptionError(
            f"a comparison needs at least 2 seeds and 2 different starts, received seeds={seeds}, {list(starts)}"
        )
    given = untouched(model_fn)
    model_fn = builder_of(model_fn, f"leave out the start {OWN!r}" if OWN in named.values() else "")
    if isinstance(batches, Iterator):
        batches = list(islice(batches, search.get("steps")))
    with given:
        with restored_random_state():
            plans = {name: _planned(start, model_fn, loss_fn, batches, seed) for name, start in named.items()}
        entrants = [
            _trained(name, plan, model_fn, loss_fn, batches, seeds=seeds, seed=seed, **search)
            for name, plan in plans.items()
        ]
    steps = next((steps for _, steps in entrants if steps is not None), search.get("steps"))
    return Contest(tuple(entrant for entrant, _ in entrants), steps, seeds)


def _planned(
    start: str | Plan, model_fn: Callable[[], nn.Module], loss_fn: LossFn, batches: Iterable[Any], seed: int
) -> Plan | None:
    """Return the plan of a start; None for the model's own weights."""
    if isinstance(start, Plan):
        return start
    if start == OWN:
        return None
    batch = batches if is_batch(batches) else next(iter(batches), None)
    if batch is None:
        raise OptionError("there is not one batch to train on; is the iterable empty, or an iterator that was read?")
    model = model_fn()
    args, kwargs = arguments_of(model, loss_fn, batch)
    return methods.plan(trace(model, *args, **kwargs), method=start, seed=seed)


def _trained(
    name: str,
    plan: Plan | None,
    model_fn: Callable[[], nn.Module],
    loss_fn: LossFn,
    batches: Iterable[Any],
    **search: Any,
) -> tuple[Entrant, int | None]:
    """Search the best rate from one start; return what training came to there, and its number of steps."""
    try:
        rate = find_max_lr(model_fn, loss_fn, batches, initialize=plan, **search)
    except DivergedError:
        return Entrant(name, math.nan, ()), None
    best = lowest({point.rate: point.mean for point in rate.curve})
    point = next(point for point in rate.curve if point.rate == best)
    losses = tuple(loss for loss in point.losses if loss is not None)
    return Entrant(name, point.rate, losses, rate.warnings), rate.conditions.steps
