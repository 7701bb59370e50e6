"""What a training is made of, and how one is run."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

Batch = tuple[Tensor, ...]
Optimizer = Literal["adam", "adamw", "sgd"]
Start = Callable[["Task", nn.Module, int], float]
"""Writes a model's initial weights, given the task and a seed; returns what that cost in training steps."""
POINTS, SCORED = 20, 10
"""Points of the smoothed curve, and the part of the steps whose mean loss is the score."""
DIVERGED = 1e9
"""Loss from which on a training is given up."""
ADAM = (1e-3, 3e-3, 1e-2)
SGD = (1e-2, 3e-2, 1e-1)


@dataclass(frozen=True, slots=True)
class Data:
    """Training batches, drawn by a generator, and batches that are held out."""

    draw: Callable[[Generator], Batch]
    held: Sequence[Batch]

    @classmethod
    def pool(cls, train: Batch, test: Batch, size: int) -> Data:
        """Draw batches of ``size`` rows from tensors with the same number of rows."""

        def draw(generator: Generator) -> Batch:
            rows = torch.randint(len(train[0]), (size,), generator=generator)
            return tuple(part[rows] for part in train)

        return cls(draw, list(zip(*(part.split(4 * size) for part in test), strict=True))[:4])

    @classmethod
    def made(cls, make: Callable[[Generator], Batch]) -> Data:
        """Make every batch anew."""
        generator = Generator().manual_seed(987654321)
        return cls(make, [make(generator) for _ in range(4)])


@dataclass(frozen=True, slots=True)
class Transformer:
    """What the arms for transformers ask of a model.

    Attributes:
        width: of its stream; its own standard deviation of .02 is meant for 768.
        ends: endings of the names of the weights that end residual branches, and of the head.
        tables: endings of the names of tables.
    """

    width: int
    ends: tuple[str, ...]
    tables: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Task:
    """One training.

    Attributes:
        set: tasks that are ``"chosen"`` may be used to develop a start, those ``"aside"`` only to judge one.
        rates: half decades, the grid that each arm is given first.
        inputs: what of a batch the model is called with.
        scale: where it is run: every task of a scale is in one table.
    """

    name: str
    field: str
    set: Literal["chosen", "aside"]
    build: Callable[[], nn.Module]
    data: Callable[[], Data]
    loss: Callable[[nn.Module, Batch], Tensor]
    optimizer: Optimizer = "adam"
    rates: tuple[float, ...] = ADAM
    steps: int = 150
    warmup: int = 0
    clip: float | None = None
    transformer: Transformer | None = None
    inputs: Callable[[Batch], Batch] = field(default=lambda batch: batch[:1])
    scale: Literal["cpu", "gpu"] = "cpu"

    def example(self) -> Batch:
        """Return what the model is called with, of a batch that no training sees first."""
        return self.inputs(self.data().draw(Generator().manual_seed(123)))


def classify(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean cross-entropy of a batch's labels."""
    return functional.cross_entropy(model(batch[0]), batch[1])


def regress(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean squared error of a batch whose last tensor is the target."""
    return functional.mse_loss(model(*batch[:-1]), batch[-1])


def next_token(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean cross-entropy of each position's successor."""
    logits = model(batch[0][:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1).float(), batch[0][:, 1:].flatten())


def windows(batch: Batch) -> Batch:
    """Return what a language model is called with."""
    return (batch[0][:, :-1],)


def make_optimizer(kind: Optimizer, model: nn.Module, rate: float) -> torch.optim.Optimizer:
    """Return the optimizer; AdamW leaves vectors without decay."""
    parameters = list(model.parameters())
    if kind == "sgd":
        return torch.optim.SGD(parameters, lr=rate, momentum=0.9, weight_decay=1e-4)
    if kind == "adam":
        return torch.optim.Adam(parameters, lr=rate)
    groups = [
        {"params": [one for one in parameters if one.ndim > 1], "weight_decay": 0.1},
        {"params": [one for one in parameters if one.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95))


def share_of_rate(step: int, steps: int, warmup: int) -> float:
    """Return the factor on the rate: a linear warm-up times half a cosine down to 0."""
    return min(1.0, (step + 1) / max(1, warmup)) * 0.5 * (1 + math.cos(math.pi * step / steps))


def train(task: Task, start: Start, rate: float, seed: int, device: str = "cpu") -> dict[str, Any]:
    """Build the model, give it its start, and train it; the seed decides everything.

    Returns:
        ``final``, the mean training loss of the last tenth; ``held``, the loss on what is held out; ``first``, the loss
        before the first step; ``curve``, the means of `POINTS` equal parts; ``cost`` of the start in training steps;
        ``seconds`` of processor time. Losses of a training that diverges are infinite.
    """
    begun = time.process_time()
    torch.manual_seed(seed)
    model = task.build()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cost = start(task, model, seed)
    losses, held = _trained(task, model.to(device).train(), rate, seed, device)
    return {
        "final": losses[-1] if math.isinf(losses[-1]) else mean(losses[-max(1, task.steps // SCORED) :]),
        "held": held,
        "first": losses[0],
        "curve": smoothed(losses, task.steps),
        "cost": cost,
        "seconds": time.process_time() - begun,
    }


def _trained(task: Task, model: nn.Module, rate: float, seed: int, device: str) -> tuple[list[float], float]:
    """Return the losses of the steps, up to the first that diverges, and the loss on what is held out."""
    data, generator, losses = task.data(), Generator().manual_seed(10_000 + seed), list[float]()
    torch.manual_seed(20_000 + seed)  # what the model or the loss draws, whatever the start has drawn
    optimizer = make_optimizer(task.optimizer, model, rate)
    mixed = torch.autocast(device, torch.bfloat16, enabled=device != "cpu")
    for step in range(task.steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * share_of_rate(step, task.steps, task.warmup)
        batch = tuple(part.to(device) for part in data.draw(generator))
        with mixed:
            loss = task.loss(model, batch)
        losses.append(loss.item())
        if not losses[-1] < DIVERGED:
            return [*losses[:-1], math.inf], math.inf
        optimizer.zero_grad()
        loss.backward()
        if task.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), task.clip)
        optimizer.step()
    model.eval()
    torch.manual_seed(30_000)
    with mixed:  # gradients stay on: some losses differentiate the model
        held = mean([task.loss(model, tuple(part.to(device) for part in batch)).item() for batch in data.held])
    return losses, held if held < DIVERGED else math.inf


def mean(values: Sequence[float]) -> float:
    """Return the mean."""
    return math.fsum(values) / len(values)


def smoothed(losses: Sequence[float], steps: int) -> list[float]:
    """Return the means of `POINTS` equal parts of a training of so many steps; infinite after its end."""
    ends = [round(steps * point / POINTS) for point in range(POINTS + 1)]
    parts = [losses[start : max(start + 1, end)] for start, end in pairwise(ends)]
    return [mean(part) if part else math.inf for part in parts]
