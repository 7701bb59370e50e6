"""Does a learning rate carry over? A family of models trained in several ways, by the names of methods of planning."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from wellposed import methods
from wellposed.checks.contest import OWN
from wellposed.errors import OptionError, near_matches
from wellposed.graphs import trace
from wellposed.options import check_not_negative
from wellposed.plans import Plan
from wellposed.plans.recipes import AnyOptimizer, recipe_of
from wellposed.rates.carried import TransferCheck
from wellposed.rates.coordinates import (
    TOLERANCE,
    CoordinateCheck,
    ModelFunction,
    coordinate_check,
)
from wellposed.rates.family import TransferSettings, Way, conditions, train_family
from wellposed.rates.feed import Batches
from wellposed.rates.losses import LossFn, arguments_of
from wellposed.rates.schedule import Schedule
from wellposed.surroundings import settled

WayLike = str | Mapping[str, Any] | Way
"""``"own"``, a method's name, a mapping with ``"method"`` and its options, or a function."""

_GROUPS = [
    name
    for name, parameter in inspect.signature(Plan.param_groups).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY and name != "others"
]
"""Options of a planned way that belong to its groups of parameters: ``base_width`` and so on."""


@settled(differentiates=True)
def check_transfer(
    model_fn: ModelFunction,
    sizes: Sequence[int],
    loss_fn: LossFn,
    batches: Batches,
    ways: str | Sequence[str] | Mapping[str, WayLike] = (OWN, "mup"),
    *,
    axis: str = "size",
    optimizer: AnyOptimizer = "adamw",
    optimizer_options: Mapping[str, Any] | None = None,
    rates: Sequence[float] | None = None,
    steps: int | None = None,
    seeds: int = 2,
    seed: int = 0,
    schedule: Schedule = "warmup_linear",
    held_out: Iterable[Any] | None = None,
    reference: float | None = None,
    confidence: float = 0.9,
    tolerance: float = 0.5,
    journal: str | os.PathLike[str] | None = None,
    progress: bool = True,
    settings: TransferSettings | None = None,
    **fields: Any,
) -> TransferCheck:
    """Train a family of models at several rates in several ways, and measure how far the best rate moves with the size.

    ```python
    found = wp.check_transfer(lambda width: Net(width), [32, 64, 128], loss_fn, batches, ("own", "mup"), axis="width")
    print(found)
    found.save("transfer.svg")
    ```

    At every size the loss is measured over rates, which are continued until the valley lies inside of them, and refined
    at its edges. The best rate of a seed is the geometric centre of the rates whose loss exceeds the smallest by no
    more than a tenth of what training gains; the argmin of a flat valley would be chance. Then the rate that is best at
    the smallest size is trained at all others. A run that diverges counts as infinitely bad.

    The interval of the shift is Student's, from what is left of the best rates of all seeds at all sizes after the
    means of sizes and of seeds are taken out (`wellposed.rates.valley.change`), with what the gaps between rates leave
    open. The model that ``model_fn`` returns, and the random generators, stay as they were.

    Args:
        model_fn: makes a model of a size; called with the random generators seeded.
        sizes: at least two: widths, depths, or whatever ``model_fn`` takes.
        loss_fn: ``loss_fn(model, batch)``, the mean loss of one batch.
        batches: what the steps are taken on, each seed in an order of its own: a list is shuffled, a ``DataLoader``
            shuffles itself. Or a function that gives each seed its batches.
        ways: how models are initialised and rates set: ``"own"`` for the model's own weights and one rate for all
            parameters; the name of a method of `wellposed.plan`, whose groups of parameters then have the rates; or a
            mapping of names to these, to ``{"method": "mup", "base_width": 32}`` with options of the method and of
            `wellposed.Plan.param_groups`, or to a function ``way(model, size, lr, batch)`` that initialises the model
            in place and returns its optimizer.
        axis: what the sizes are, in a word for the texts: ``"width"``, ``"depth"``, ...
        optimizer: for named ways, as for `wellposed.Plan.param_groups`; a function makes its own.
        optimizer_options: of the optimizer: ``weight_decay`` (0 unless given), ``betas``, ...
        rates: at least five rates to begin with; by default six, spaced by a factor of 2.
        steps: of each run; None for one epoch.
        seeds: runs at each rate, at least 2: each has weights and an order of batches of its own.
        seed: the first of them.
        schedule: how the rate changes; by default it rises from 0 over the first tenth of the steps and falls to 0.
        held_out: batches for the loss at the end, in evaluation mode; by default it is the mean training loss of the
            last tenth of the steps.
        reference: the loss without training, from which gains are counted (ln(classes) for cross-entropy); by default
            that of the first batch, which a poor initialisation makes large.
        confidence: of the intervals.
        tolerance: octaves by which a best rate may move and still counts as carried.
        journal: a folder that notes finished runs; a check that was killed goes on from it.
        progress: show a progress bar, on rank 0.
        settings: what is rarely set.
        fields: fields of ``settings`` by name; they go before those of the object.

    Raises:
        OptionError: fewer than two sizes or seeds, fewer than five rates, an unknown way, optimizer or option.
        DivergedError: every run of a seed diverged, for some way and size.
        RateError: no rate lowers the loss, the batches run out, or a way returns no optimizer.
    """
    name, made = _maker(optimizer, optimizer_options or {})
    named = _named(ways, made, loss_fn)
    shared = conditions(
        axis=axis,
        optimizer=name,
        rates=rates,
        seeds=seeds,
        seed=seed,
        steps=steps,
        schedule=schedule,
        held_out=held_out,
        reference=reference,
        confidence=confidence,
        tolerance=tolerance,
        journal=journal,
        progress=progress,
        settings=replace(settings or TransferSettings(), **fields),
    )
    return train_family(model_fn, sizes, loss_fn, batches, named, shared)


def planned_coordinates(
    model_fn: ModelFunction,
    sizes: Sequence[int],
    loss_fn: LossFn,
    batch: Any,
    *,
    way: WayLike = OWN,
    axis: str = "width",
    optimizer: AnyOptimizer = "adam",
    lr: float = 1e-3,
    steps: int = 3,
    seeds: int = 4,
    tolerance: float = TOLERANCE,
) -> CoordinateCheck:
    """Make the coordinate check (`wellposed.rates.coordinate_check`) of a way that is given by name.

    Args:
        model_fn: makes a model of a size.
        sizes: at least two.
        loss_fn: ``loss_fn(model, batch)``, a scalar; it calls the model.
        batch: the batch of every step, and of every measurement.
        way: as for `wellposed.check_transfer`.
        axis: what the sizes are, in a word.
        optimizer: as for `wellposed.check_transfer`.
        lr: the learning rate.
        steps: optimizer steps.
        seeds: runs at each size.
        tolerance: largest slope that counts as none.

    Raises:
        OptionError, RateError: those of `wellposed.rates.coordinate_check`; an unknown way or optimizer.
    """
    _, made = _maker(optimizer, {})
    (chosen,) = _named({"way": way}, made, loss_fn).values()
    made_last = 0

    def make(size: int) -> nn.Module:
        nonlocal made_last
        made_last = size
        return model_fn(size)

    return coordinate_check(
        make,
        sizes,
        loss_fn,
        batch,
        lambda model: chosen(model, made_last, lr, batch),
        steps=steps,
        seeds=seeds,
        tolerance=tolerance,
        axis=axis,
    )


class _Maker:
    """Makes an optimizer of parameters or of groups of them."""

    def __init__(self, kind: type[Optimizer], options: Mapping[str, Any]) -> None:
        """Take the weight decay out of the options, as groups are given it; raises `OptionError` if ``kind`` takes
        none.
        """
        self.kind, self.options = kind, dict(options)
        self.weight_decay: float = self.options.pop("weight_decay", 0.0)
        check_not_negative(weight_decay=self.weight_decay)
        takes = inspect.signature(kind).parameters.values()
        self._takes_decay = any(p.name == "weight_decay" or p.kind is p.VAR_KEYWORD for p in takes)
        if self.weight_decay and not self._takes_decay:
            raise OptionError(f"{kind.__name__} has no weight decay, received weight_decay={self.weight_decay!r}")

    def plain(self, model: nn.Module, lr: float) -> Optimizer:
        """Return an optimizer of all parameters, at one rate."""
        decay = {"weight_decay": self.weight_decay} if self._takes_decay else {}
        kind: Any = self.kind
        made: Optimizer = kind(model.parameters(), lr=lr, **decay, **self.options)
        return made

    def grouped(self, plan: Plan, model: nn.Module, lr: float, options: Mapping[str, Any]) -> Optimizer:
        """Return an optimizer of a plan's groups, which are told those of its options that they may scale (eps)."""
        kind: Any = self.kind
        told = {name: value for name, value in self.options.items() if name in _GROUPS} | dict(options)
        groups = plan.param_groups(model, lr, self.kind, weight_decay=self.weight_decay, **told)
        made: Optimizer = kind(groups, lr=lr, **self.options)
        return made


def _maker(optimizer: AnyOptimizer, options: Mapping[str, Any]) -> tuple[str, _Maker]:
    """Return an optimizer's name and what makes it."""
    recipe = recipe_of(optimizer)
    return recipe.name, _Maker(recipe.kind, {**recipe.options, **options})


def _named(ways: str | Sequence[str] | Mapping[str, WayLike], made: _Maker, loss_fn: LossFn) -> dict[str, Way]:
    """Return the ways as functions, by name."""
    if isinstance(ways, str):
        ways = (ways,)
    named: dict[str, WayLike] = dict(ways) if isinstance(ways, Mapping) else {way: way for way in ways}
    if not named or len(named) < len(ways):
        raise OptionError(f"ways must hold at least one, and each once, received {list(ways)}")
    return {name: _way(name, way, made, loss_fn) for name, way in named.items()}


def _way(name: str, way: WayLike, made: _Maker, loss_fn: LossFn) -> Way:
    """Return one way as a function."""
    if isinstance(way, str | Mapping):
        options: dict[str, Any] = {"method": way} if isinstance(way, str) else dict(way)
        if "method" not in options:
            raise OptionError(f"way {name!r} is a mapping without 'method'; such as {{'method': 'mup', ...}}")
        method = options.pop("method")
        if method == OWN:
            if options:
                raise OptionError(f"way {name!r} leaves the model as it is: it takes no options, got {list(options)}")
            return lambda model, size, lr, batch: made.plain(model, lr)
        return _Planned(name, method, options, made, loss_fn)
    if not callable(way):
        raise OptionError(
            f"way {name!r} must be {OWN!r}, a method's name, a mapping with 'method', or a function of model, size, "
            f"rate and batch, received {type(way).__name__}"
        )
    return way


class _Planned:
    """The way of a method: weights drawn by its plan, and an optimizer of its groups. Models alike have one plan."""

    def __init__(self, name: str, method: str, options: Mapping[str, Any], made: _Maker, loss_fn: LossFn) -> None:
        """Divide the options into those of the method and those of ``param_groups``; raises `OptionError` for any
        other.
        """
        known = methods.options_of(method)  # raises for an unknown one
        for option in options:
            if option not in known and option not in _GROUPS:
                raise OptionError(
                    f"{option!r} of way {name!r} is no option of method {method!r} or of param_groups"
                    f"{near_matches(option, [*known, *_GROUPS])}"
                )
        self._method, self._made, self._loss_fn = method, made, loss_fn
        self._options = {option: value for option, value in options.items() if option in known}
        self._groups = {option: value for option, value in options.items() if option not in known}
        self._plans: dict[tuple[object, ...], Plan] = {}

    def __call__(self, model: nn.Module, size: int, lr: float, batch: Any) -> Optimizer:
        """Plan the model once for its parameters' shapes, draw its weights anew, and return its optimizer at the rate
        ``lr``.
        """
        alike = (size, *((name, tuple(parameter.shape)) for name, parameter in model.named_parameters()))
        if alike not in self._plans:
            args, kwargs = arguments_of(model, self._loss_fn, batch)
            graph = trace(model, *args, **kwargs)
            self._plans[alike] = methods.plan(graph, method=self._method, **self._options)
        plan = self._plans[alike].model_copy(update={"seed": int(torch.randint(1 << 30, ()))})
        plan.apply_(model)
        return self._made.grouped(plan, model, lr, self._groups)
