"""The arms: how a model's weights may start.

``own`` leaves them, ``default`` is wellposed's default method, ``method:key=value,key=value`` any method with options.
The other names are those of `ARMS`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Generator, nn

import wellposed as wp
from starts.task import Batch, Start, Task
from wellposed import gradients
from wellposed.plans import Plan

WIDTH = 768
"""Width that a standard deviation of .02 is meant for: 1/√768 is .036, and GPT-2's smallest model has it."""
ITERATIONS = 50
"""Of the refinements."""
TWICE = 4.0
"""Cost of an iteration that differentiates twice, in training steps."""


def own(task: Task, model: nn.Module, seed: int) -> float:
    """Leave the weights."""
    return 0.0


def own_width(task: Task, model: nn.Module, seed: int) -> float:
    """Multiply a transformer's own weights by √(768 / width)."""
    assert task.transformer is not None
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(math.sqrt(WIDTH / task.transformer.width))
    return 0.0


def speedrun(task: Task, model: nn.Module, seed: int) -> float:
    """Start a transformer as speedruns of small GPTs do: the ends of branches and the head at 0, tables of standard
    deviation 1, and other weights uniform with standard deviation .5/√fan-in."""
    assert task.transformer is not None
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim < 2:
                continue
            if name.endswith(task.transformer.ends):
                parameter.zero_()
            elif name.endswith(task.transformer.tables):
                parameter.normal_()
            else:
                bound = 0.5 * math.sqrt(3 / parameter[0].numel())
                parameter.uniform_(-bound, bound)
    return 0.0


def planned(method: str | None, options: dict[str, Any]) -> Start:
    """Return the arm of one of wellposed's methods; None is the default."""
    chosen = {} if method is None else {"method": method}

    def start(task: Task, model: nn.Module, seed: int) -> float:
        wp.initialize_(model, *task.example(), seed=seed, **chosen, **options)
        return 0.0

    return start


def batches(task: Task, seed: int) -> Iterator[Batch]:
    """Yield training batches that the training itself does not begin with."""
    generator, data = Generator().manual_seed(40_000 + seed), task.data()
    while True:
        yield data.draw(generator)


def lsuv(task: Task, model: nn.Module, seed: int) -> float:
    """Scale every weight on one batch (LSUV)."""
    _written(gradients.lsuv(model, task.loss, batches(task, seed), seed=seed), model)
    return 1.0


def gradinit(task: Task, model: nn.Module, seed: int) -> float:
    """Refine the scales for the first step (GradInit)."""
    adam = task.optimizer != "sgd"
    found = gradients.gradinit(
        model,
        task.loss,
        batches(task, seed),
        optimizer="adam" if adam else "sgd",
        eta=1e-3 if adam else 0.1,
        iterations=ITERATIONS,
        seed=seed,
        progress=False,
    )
    _written(found, model)
    return TWICE * ITERATIONS


def nio(task: Task, model: nn.Module, seed: int) -> float:
    """Refine the scales for gradients that agree (NIO)."""
    _written(
        gradients.nio(model, task.loss, batches(task, seed), iterations=ITERATIONS, seed=seed, progress=False), model
    )
    return TWICE * ITERATIONS


def _written(plan: Plan, model: nn.Module) -> None:
    plan.apply_(model)


ARMS: dict[str, Start] = {
    "own": own,
    "default": planned(None, {}),
    "own width": own_width,
    "speedrun": speedrun,
    "lsuv": lsuv,
    "gradinit": gradinit,
    "nio": nio,
}
TRANSFORMERS = ("own width", "speedrun")


def arm(name: str) -> Start:
    """Return the arm of a name; what is not in `ARMS` is a method of wellposed, with or without options."""
    if name in ARMS:
        return ARMS[name]
    method, _, told = name.partition(":")
    pairs = [pair.partition("=") for pair in told.split(",") if pair]
    return planned(method, {key: _value(value) for key, _, value in pairs})


def applies(name: str, task: Task) -> bool:
    """Return whether an arm is meant for a task."""
    return name not in TRANSFORMERS or task.transformer is not None


def _value(text: str) -> bool | float | str:
    if text in ("True", "False"):
        return text == "True"
    try:
        return float(text)
    except ValueError:
        return text
