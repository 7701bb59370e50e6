"""Whether the best learning rate carries over the sizes of a family of models: it is trained, and the rates compared.

Source of the picture: Yang et al. 2022 (arXiv 2203.03466), figure 1, over width; Dey et al. 2025 (arXiv 2505.01618),
over depth. What the best rate of a curve is, and how far it is from another, is in `wellposed.rates.valley`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from pydantic import JsonValue
from torch import nn
from torch.optim import Optimizer

from wellposed import ranks
from wellposed.errors import DivergedError, OptionError, RateError
from wellposed.graphs.restore import restored_attributes
from wellposed.graphs.tree import walk
from wellposed.options import check_integer, check_not_negative, check_share
from wellposed.random_states import restored_random_state, seed_all
from wellposed.rates.carried import Open, SizeCurve, TransferCheck, way_transfer
from wellposed.rates.coordinates import ModelFunction, checked_sizes
from wellposed.rates.ensemble import Draw, Member, Objective, Outcome, Workload
from wellposed.rates.feed import Batches, Feed, feeds_of
from wellposed.rates.fingerprint import digest_of, fingerprint
from wellposed.rates.grid import checked_octaves, continued
from wellposed.rates.journal import opened
from wellposed.rates.losses import LossFn
from wellposed.rates.rate import Point
from wellposed.rates.running import Ending
from wellposed.rates.schedule import Schedule, schedule_factor
from wellposed.rates.search import Search, SearchSettings, training_of
from wellposed.rates.starts import drawn
from wellposed.rates.valley import Valley, further, valley

Way: TypeAlias = Callable[[nn.Module, int, float, Any], Optimizer]
"""``way(model, size, lr, batch)``: initialises the model in place and returns its optimizer at a learning rate."""

_LAST = 0.1
"""Share of the steps over whose losses the loss at the end is averaged."""


@dataclass(frozen=True, slots=True)
class TransferSettings:
    """What is rarely set of `wellposed.check_transfer`.

    Attributes:
        widen: how often the rates are continued at most, where a valley ends beyond them.
        refine: how often the gaps in which the edges of a valley lie are halved.
        bound: a run whose loss rises above the first one by this many times it has diverged.
        vectorize: True requires the vectorised ensemble, False trains one by one; None decides.
        memory: bytes that an ensemble may take.
    """

    widen: int = 4
    refine: int = 1
    bound: float = 100.0
    vectorize: bool | None = None
    memory: int | None = None


@dataclass(frozen=True, slots=True)
class Conditions:
    """What all runs of a check of transfer share.

    Attributes:
        axis: what the sizes are, in a word.
        optimizer: its name, for the texts.
        rates: the rates to begin with, ascending.
        seeds: the seeds.
        steps: of each run; None for one epoch.
        schedule: how the rate changes.
        held_out: batches on which the loss at the end is taken; empty for the last losses of training.
        reference: the loss without training; None for that of the first batch.
        journal: a folder for finished runs.
        confidence: of intervals.
        tolerance: octaves up to which a rate counts as carried.
        progress: whether to show a progress bar.
        settings: what is rarely set.
    """

    axis: str
    optimizer: str
    rates: tuple[float, ...]
    seeds: tuple[int, ...]
    steps: int | None = None
    schedule: Schedule = "warmup_linear"
    held_out: tuple[Any, ...] = ()
    reference: float | None = None
    journal: Path | None = None
    confidence: float = 0.9
    tolerance: float = 0.5
    progress: bool = True
    settings: TransferSettings = field(default_factory=TransferSettings)


def conditions(
    *,
    axis: str,
    optimizer: str,
    rates: Sequence[float] | None,
    seeds: int,
    seed: int,
    steps: int | None,
    held_out: Iterable[Any] | None,
    journal: str | os.PathLike[str] | None,
    confidence: float,
    tolerance: float,
    settings: TransferSettings,
    **others: Any,
) -> Conditions:
    """Return checked conditions; see `wellposed.check_transfer`, whose errors these are."""
    check_integer(2, seeds=seeds)
    check_integer(0, widen=settings.widen, refine=settings.refine)
    if steps is not None:
        check_integer(steps=steps)
    check_share(confidence=confidence)
    check_not_negative(tolerance=tolerance)
    held = tuple(held_out) if held_out is not None else ()
    if held_out is not None and not held:
        raise OptionError("held_out has no batches; give some, or leave it out for the last losses of training")
    return Conditions(
        axis=axis,
        optimizer=optimizer,
        rates=checked_octaves(rates, optimizer),
        seeds=tuple(range(seed, seed + seeds)),
        steps=steps,
        held_out=held,
        journal=None if journal is None else Path(journal),
        confidence=confidence,
        tolerance=tolerance,
        settings=settings,
        **others,
    )


def train_family(
    model_fn: ModelFunction,
    sizes: Sequence[int],
    loss_fn: LossFn,
    batches: Batches,
    ways: Mapping[str, Way],
    shared: Conditions,
) -> TransferCheck:
    """Train a family of models in several ways, and compare the best rates; see `wellposed.check_transfer`."""
    ordered = checked_sizes(sizes, shared.axis)
    schedule_name, _ = schedule_factor(shared.schedule)
    found, warnings = {}, []
    with restored_random_state():
        device = _device(model_fn, ordered[0], shared.seeds[0])
        feeds = feeds_of(batches, shared.steps, shared.seeds, device)
        family = _Family(model_fn, loss_fn, feeds, shared)
        for name, way in ways.items():
            curves: list[SizeCurve] = []
            for size in ordered:
                sweep = _Sweep(family, name, way, size)
                curves.append(sweep.curve(curves[0].rate if curves else None))
                warnings += sweep.warnings
            found[name] = way_transfer(name, curves, shared.confidence, shared.tolerance)
            warnings += _warnings(found[name].name, curves, shared.axis)
    if len(ordered) == len(shared.seeds) == 2:
        warnings.append(
            "two sizes and two seeds leave one degree of freedom, and intervals several times as wide as with a third "
            "size or seed"
        )
    steps = feeds[shared.seeds[0]].steps
    return TransferCheck(
        axis=shared.axis,
        sizes=tuple(ordered),
        ways=found,
        optimizer=shared.optimizer,
        steps=steps,
        seeds=len(shared.seeds),
        schedule=schedule_name,
        loss=(
            f"loss of {len(shared.held_out)} held-out batches, after the last step"
            if shared.held_out
            else f"training loss, mean over the last {_last(steps)} steps"
        ),
        confidence=shared.confidence,
        tolerance=shared.tolerance,
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _last(steps: int) -> int:
    return max(1, round(_LAST * steps))


def _warnings(name: str, curves: Sequence[SizeCurve], axis: str) -> list[str]:
    """Return warnings that limit what a way's curves mean."""
    warnings = [
        f"{name}, {axis} {curve.size}: the rates tried ({curve.points[0].rate:.3g} to {curve.points[-1].rate:.3g}) end "
        f"inside of the valley ({curve.open}), so that the best rate is a bound; give further rates, or increase widen"
        for curve in curves
        if curve.open
    ]
    if all(len(set(point.losses)) == 1 for curve in curves for point in curve.points):
        warnings.append(
            f"{name}: every seed gives the same losses: the model sets a seed of its own, and all seeds have the same "
            "batches, so that no chance is seen"
        )
    return warnings


@dataclass(frozen=True, slots=True)
class _Family:
    """What all sweeps share."""

    model_fn: ModelFunction
    loss_fn: LossFn
    feeds: Mapping[int, Feed]
    shared: Conditions


class _Sweep:
    """The runs of one way at one size: every rate and seed."""

    def __init__(self, family: _Family, name: str, way: Way, size: int) -> None:
        """Draw the weights of every seed by the way, and set up the search."""
        self._shared = shared = family.shared
        self._where = f"{name}, {shared.axis} {size}"
        self._name, self._way, self._size = name, way, size
        self.warnings: list[str] = []
        draw = partial(drawn, partial(family.model_fn, size), initialised=True)
        self._example = family.feeds[shared.seeds[0]].first
        model, draws = draw(partial(self._initialised, rate=shared.rates[0]), shared.seeds)
        _, others = draw(partial(self._initialised, rate=shared.rates[-1]), shared.seeds[:1])
        self._check_draws(draws[shared.seeds[0]], others[shared.seeds[0]])
        self._outcomes: dict[Member, Outcome] = {}
        self._search = self._made(model, draws, family)

    def _made(self, model: nn.Module, draws: Mapping[int, Draw], family: _Family) -> Search:
        """Return what trains the runs, those of a seed as one ensemble where that is possible."""
        shared = self._shared
        limits = SearchSettings(
            widen=0,
            bound=shared.settings.bound,
            vectorize=shared.settings.vectorize,
            memory=shared.settings.memory,
        )
        name, factor = schedule_factor(shared.schedule)
        feed = next(iter(family.feeds.values()))
        work = Workload(Objective(model, family.loss_fn), draws, partial(_built, self._initialised), family.feeds)
        held = tuple(feed.placed(batch) for batch in shared.held_out)
        ending = Ending(held_out=held) if held else Ending(last=_last(feed.steps))
        with restored_attributes(model):
            how = training_of(work, (shared.rates[0], shared.rates[-1]), limits)
            self._notes = opened(self._path(), fingerprint(work, name, limits) | self._settings(ending))
        self.warnings += [f"{self._where}: {text}" for text in how.warnings]
        self._outcomes = ranks.shared(dict(self._notes.outcomes) if self._notes is not None else {})
        begin = partial(how.begun, work)
        return Search(family.feeds, begin, how.at_once, limits, factor, ending=ending, label=self._where)

    def curve(self, carried: float | None) -> SizeCurve:
        """Train at the rates, continue and refine them as the valleys ask for, and at the rate that is carried.

        Raises:
            DivergedError: all runs of a seed diverged.
            RateError: no rate lowers the loss.
        """
        settings = self._shared.settings
        rates = list(self._shared.rates)
        self._train(rates)
        count = max(2, len(rates) // 2)
        for _ in range(settings.widen):
            beyond = continued(rates, further(self._valleys(rates), self._losses(rates)), count)
            if not beyond:
                break
            rates = sorted((*rates, *beyond))
            self._train(rates)
        for _ in range(settings.refine):
            gaps = {gap for found in self._valleys(rates) if found is not None for gap in found.gaps}
            rates = sorted({*rates, *(2.0 ** ((low + high) / 2) for low, high in gaps)})
            self._train(rates)
        valleys = self._found(rates)
        best = [2.0**found.centre for found in valleys]
        rate = carried if carried is not None else float(np.exp(np.mean(np.log(best))))
        self._train([rate])
        return SizeCurve(
            size=self._size,
            points=tuple(self._point(one) for one in rates),
            starts=self._starts(rates[0]),
            reference=self._reference(rates[0]),
            rates=tuple(best),
            error=float(np.mean([found.error for found in valleys])),
            open=_open(valleys),
            carried=self._point(rate),
        )

    def _train(self, rates: Sequence[float]) -> None:
        progress = self._shared.progress and ranks.index() == 0
        self._search.complete(self._outcomes, rates, self._notes, progress=progress)

    def _point(self, rate: float) -> Point:
        return Point(rate=rate, losses=tuple(self._outcomes[Member(rate, seed)].loss for seed in self._shared.seeds))

    def _starts(self, rate: float) -> tuple[float, ...]:
        return tuple(self._outcomes[Member(rate, seed)].start for seed in self._shared.seeds)

    def _reference(self, rate: float) -> float:
        return float(np.mean(self._starts(rate))) if self._shared.reference is None else self._shared.reference

    def _losses(self, rates: Sequence[float]) -> list[dict[float, float | None]]:
        """Return the losses of each seed by rate."""
        return [{rate: self._outcomes[Member(rate, seed)].loss for rate in rates} for seed in self._shared.seeds]

    def _valleys(self, rates: Sequence[float]) -> list[Valley | None]:
        return [valley(losses, self._reference(rates[0])) for losses in self._losses(rates)]

    def _found(self, rates: Sequence[float]) -> list[Valley]:
        """Return the valley of every seed; raises where one has none."""
        found = self._valleys(rates)
        losses = self._losses(rates)
        tried = f"{len(rates)} learning rates from {rates[0]:.3g} to {rates[-1]:.3g}"
        for seed, curve in zip(self._shared.seeds, losses, strict=True):
            if all(loss is None for loss in curve.values()):
                raise DivergedError(
                    f"{self._where}: every run of seed {seed} diverged ({tried}): give smaller rates, or leave this "
                    "way or size out"
                )
        if None in found:
            raise RateError(
                f"{self._where}: no rate lowers the loss below {self._reference(rates[0]):.4g}, that without training "
                f"({tried}): give more steps or other rates, or the right reference="
            )
        return [one for one in found if one is not None]

    def _initialised(self, model: nn.Module, rate: float) -> Optimizer:
        """Initialise a model and return its optimizer.

        Raises:
            RateError: the way returns none.
        """
        optimizer = self._way(model, self._size, rate, self._example)
        if not (hasattr(optimizer, "param_groups") and hasattr(optimizer, "step")):
            raise RateError(
                f"way {self._name!r} must return an optimizer (with param_groups and step), not "
                f"{type(optimizer).__name__}: way(model, size, lr, batch) initialises the model and returns it"
            )
        return optimizer

    def _check_draws(self, one: Draw, other: Draw) -> None:
        """Refuse a way whose initial weights depend on the rate, as all rates start from the same here."""
        for name, tensor in one.parameters.items():
            if not torch.equal(tensor.nan_to_num(), other.parameters[name].nan_to_num()):
                raise RateError(
                    f"way {self._name!r} draws {name!r} otherwise when it is called again with the same seed and "
                    "another rate; draw from torch's global generator, and by no rate"
                )

    def _path(self) -> Path | None:
        name = re.sub(r"[^\w.-]+", "_", f"{self._name}-{self._shared.axis}-{self._size}")
        return None if self._shared.journal is None else self._shared.journal / f"{name}.jsonl"

    def _settings(self, ending: Ending) -> dict[str, JsonValue]:
        held = digest_of(tensor for batch in ending.held_out for _, tensor in walk(batch))
        return {"way": self._name, "size": self._size, "last": ending.last, "held out": held}


def _device(model_fn: ModelFunction, size: int, seed: int) -> torch.device:
    """Return where a model is, for its batches."""
    seed_all(seed)
    model = model_fn(size)
    if not isinstance(model, nn.Module):
        raise RateError(f"model_fn must return an nn.Module, not {type(model).__name__}")
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def _built(initialised: Callable[[nn.Module, float], Optimizer], model: nn.Module, rate: float) -> Optimizer:
    """Return the optimizer of a model that has its weights already: what a way writes to them is put back."""
    tensors = [*model.parameters(), *model.buffers()]
    held = [tensor.detach().clone() for tensor in tensors]
    with restored_random_state():
        optimizer = initialised(model, rate)
    with torch.no_grad():
        for tensor, value in zip(tensors, held, strict=True):
            tensor.copy_(value)
    return optimizer


def _open(valleys: Sequence[Valley]) -> Open:
    below, above = any(found.below for found in valleys), any(found.above for found in valleys)
    return "both" if below and above else "below" if below else "above" if above else ""
