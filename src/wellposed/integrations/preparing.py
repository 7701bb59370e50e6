"""What trainers have set for a training, as `wellposed.prepare` takes it: optimizer, schedule, batches of a step."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from wellposed import ranks
from wellposed.errors import OptionError, listed
from wellposed.plans.recipes import changed_steps
from wellposed.preparation import Start, prepare_
from wellposed.rates.feed import Feed, size_of
from wellposed.rates.find import LONG
from wellposed.rates.losses import loss_of


def optimizer_of(optimizer: Optimizer) -> dict[str, Any]:
    """Return class, options and weight decay of an optimizer that is built, as `wellposed.prepare` takes them.

    Groups may differ in their weight decay alone, for which the plan has groups of its own.

    Raises:
        OptionError: groups differ otherwise, or its steps are not those of its class.
    """
    positive = sorted({float(group.get("weight_decay", 0.0)) for group in optimizer.param_groups} - {0.0})
    why = _obstacle(optimizer, positive)
    if why:
        raise OptionError(
            f"{type(optimizer).__name__} cannot be built again with the groups of a plan: {why}; give optimizer= a "
            "name, a class, or a function of the model and the rate"
        )
    taken = inspect.signature(type(optimizer)).parameters
    kept = {
        name: value
        for name, value in optimizer.defaults.items()
        if name in taken and name not in ("lr", "weight_decay")
    }
    decay = {"weight_decay": (positive or [0.0])[0]} if "weight_decay" in optimizer.defaults else {}
    return {"optimizer": partial(type(optimizer), **kept), **decay}


def _obstacle(optimizer: Optimizer, decays: Sequence[float]) -> str:
    """Return in words why an optimizer cannot be built again with other groups; ``""`` where it can."""
    plain = [
        {name: group.get("initial_lr", value) if name == "lr" else value for name, value in group.items()}
        for group in optimizer.param_groups
    ]
    names = [name for name in optimizer.defaults if name != "weight_decay"]
    differing = [name for name in names if any(group[name] != plain[0][name] for group in plain)]
    if differing:
        return f"its groups differ in {listed(differing)}"
    if len(decays) > 1:
        return f"its groups have weight decays of {listed([f'{one:g}' for one in decays])}"
    return changed_steps(optimizer)


class Course:
    """How a trainer's scheduler changes the rate: its factor, at most 1, by the fraction of steps done."""

    def __init__(self, scheduler: Any, optimizer: Optimizer, steps: int, every: int = 1, name: str = "") -> None:
        """Run a scheduler through a training, which leaves it and its optimizer at the end.

        Args:
            scheduler: the scheduler.
            optimizer: its optimizer, which is not stepped.
            steps: of the training.
            every: steps from one call of the scheduler to the next.
            name: what it is called; by default its class.

        Raises:
            OptionError: it follows what the training does, or keeps the rate at 0.
        """
        if isinstance(scheduler, ReduceLROnPlateau):
            raise OptionError(
                "ReduceLROnPlateau follows a training that is not yet known: give schedule= a name, or a function of "
                "the fraction of steps done"
            )
        self.__name__: str = name or type(scheduler).__name__
        rates = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the optimizer is not stepped
            for step in range(1, steps + 1):
                rates.append(float(optimizer.param_groups[0]["lr"]))
                if step % every == 0 and step < steps:
                    scheduler.step()
        highest = max(rates)
        if not highest > 0.0:
            raise OptionError(f"{self.__name__} keeps the rate at 0 in all of {steps} steps")
        self.factors: list[float] = [rate / highest for rate in rates]

    def __call__(self, done: float) -> float:
        """Return the factor at a fraction of the steps."""
        return self.factors[min(round(done * len(self.factors)), len(self.factors) - 1)]


def groups_of(loader: Iterable[Any], size: int, placed: Callable[[Any], Any]) -> list[list[Any]]:
    """Return what the first steps of a training are taken on: batches, of which each step takes ``size``.

    The loader is left as it was: random generators, those that it holds too, go on as if nothing had been read.

    Args:
        loader: of the training.
        size: batches over which gradients are accumulated.
        placed: puts a batch on the device.
    """
    there = size_of(loader)
    count = LONG * size if there is None else min(LONG * size, max(there, size))
    feed = Feed(loader, count, 0, torch.device("cpu"))
    batches = [placed(batch) for batch in feed]
    whole = len(batches) - len(batches) % size
    return [batches[start : start + size] for start in range(0, whole, size)]


def prepared_(
    model: nn.Module,
    loss_fn: Callable[[Any, Any], Any],
    steps: Sequence[Sequence[Any]],
    settings: Mapping[str, Any],
    page: Callable[[Start], object] | None,
) -> Start:
    """Prepare a model by steps of one batch or several, and show the start once, on rank 0.

    Args:
        model: the model, whose weights are written.
        loss_fn: of one batch.
        steps: the batches of each step.
        settings: the arguments of `wellposed.prepare_` by name.
        page: receives the start.

    Returns:
        The start, whose conditions count the samples of a whole step.
    """

    def mean(given: Any, batches: Sequence[Any]) -> Tensor:
        losses = [loss_of(loss_fn(given, batch)) for batch in batches]
        return sum(losses[1:], losses[0]) / len(losses)

    start = prepare_(model, mean, list(steps), **settings)
    conditions = start.rate.conditions
    if conditions.batch_size is not None:
        whole = conditions.model_copy(update={"batch_size": conditions.batch_size * len(steps[0])})
        start = replace(start, rate=start.rate.model_copy(update={"conditions": whole}))
    if page is not None and ranks.index() == 0:
        page(start)
    return start
