"""What a training is made of, and how one is run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from wellposed.plans import Plan

Batch = tuple[Tensor, ...]
Optimizer = Literal["adam", "adamw", "sgd"]
POINTS = 60
"""Points of a training's smoothed curve that are kept."""
SMOOTHED, SCORED = 20, 10
"""The curve is a trailing mean over this part of the steps, and the last such part is scored."""
DIVERGED = 1e9
"""Loss from which on a training is given up."""


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
        return cls(make, [make(generator) for _ in range(8)])


@dataclass(frozen=True, slots=True)
class Task:
    """One training.

    Attributes:
        low: the lowest of the four rates that the grid starts with, in half decades: -6 is 1e-3.
        width: of a model whose weights start at std .02, which is meant for a width of 768; None for others.
        closing: endings of the names of modules that close residual branches, and of the head; transformers only.
        inputs: what of a batch the model is called with.
    """

    name: str
    field: str
    about: str
    build: Callable[[], nn.Module]
    data: Callable[[], Data]
    loss: Callable[[nn.Module, Batch], Tensor]
    low: int
    optimizer: Optimizer = "adam"
    steps: int = 150
    warmup: int = 0
    clip: float | None = None
    width: int | None = None
    closing: tuple[str, ...] = ()
    inputs: Callable[[Batch], Batch] = field(default=lambda batch: batch[:1])

    def example(self) -> Batch:
        """Return what the model is called with, of a batch that is not trained on first."""
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


def make_optimizer(kind: Optimizer, model: nn.Module, rate: float, plan: Plan | None = None) -> torch.optim.Optimizer:
    """Return the optimizer, with the groups of a plan where one says what rates are; AdamW leaves vectors without
    decay."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups: Any = parameters
    if plan is not None:
        groups = plan.param_groups(model, rate, kind, 0.1 if kind == "adamw" else 0.0)
    if kind == "sgd":
        return torch.optim.SGD(groups, lr=rate, momentum=0.9)
    if kind == "adam":
        return torch.optim.Adam(groups, lr=rate)
    groups = (
        groups
        if plan is not None
        else [
            {"params": [one for one in parameters if one.ndim > 1], "weight_decay": 0.1},
            {"params": [one for one in parameters if one.ndim <= 1], "weight_decay": 0.0},
        ]
    )
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95))


def share_of_rate(step: int, steps: int, warmup: int) -> float:
    """Return the factor on the rate: linear warm-up, then half a cosine down to 0."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def train(
    task: Task, model: nn.Module, rate: float, seed: int, device: str = "cpu", plan: Plan | None = None
) -> dict[str, Any]:
    """Train a model that has its start, with the groups of a plan if one is given; return the mean training loss of the
    last tenth, the loss on what is held out, the smoothed curve, and the processor time in seconds."""
    data, losses = task.data(), []
    generator = Generator().manual_seed(10_000 + seed)
    torch.manual_seed(20_000 + seed)
    optimizer = make_optimizer(task.optimizer, model, rate, plan)
    rates = [group["lr"] for group in optimizer.param_groups]
    mixed = torch.autocast(device, torch.bfloat16, enabled=device != "cpu")
    model.train()
    begun = time.process_time()
    for step in range(task.steps):
        for group, full in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = full * share_of_rate(step, task.steps, task.warmup)
        batch = tuple(part.to(device) for part in data.draw(generator))
        with mixed:
            loss = task.loss(model, batch)
        losses.append(loss.item())
        if not math.isfinite(losses[-1]) or losses[-1] > DIVERGED:
            return {"final": math.inf, "valid": math.inf, "curve": [], "seconds": time.process_time() - begun}
        optimizer.zero_grad()
        loss.backward()
        if task.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), task.clip)
        optimizer.step()
    seconds = time.process_time() - begun
    model.eval()
    torch.manual_seed(30_000)
    with mixed:  # with gradients: some losses differentiate the model
        held = [task.loss(model, tuple(part.to(device) for part in batch)).item() for batch in data.held]
    last = losses[-max(1, task.steps // SCORED) :]
    return {
        "final": sum(last) / len(last),
        "valid": sum(held) / len(held),
        "curve": smoothed(losses),
        "first": losses[0],
        "seconds": seconds,
    }


def smoothed(losses: Sequence[float]) -> list[float]:
    """Return the trailing mean of a curve at evenly spaced steps, the last included."""
    window, steps = max(1, len(losses) // SMOOTHED), len(losses)
    ends = [max(1, round(steps * (point + 1) / POINTS)) for point in range(POINTS)]
    return [sum(losses[max(0, end - window) : end]) / min(window, end) for end in ends]
