"""The short training of an evolved net, by the task's recipe and the learning rate that evolution chose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from experiments.batches import seed_of
from experiments.feed import device
from experiments.search.build import Evolved
from experiments.search.tasks import Task

EVALUATED = 500
"""Examples of a pass without training."""


class Diverged(ArithmeticError):
    """A loss or an output that is not finite; the message is the reason."""


def train(net: Evolved, task: Task, how: Mapping[str, Any], rate: float, seed: int) -> None:
    """Train a net in place.

    Args:
        net: of the task.
        task: the data.
        how: ``epochs``; ``batch``; ``optimizer``: ``adam``, or ``sgd`` with Nesterov's momentum 0.9; ``decay``: the
            rate's factor over ten epochs; ``scaled_penalty``: whether regularization is scaled by the rate;
            ``iterations``: batches of an epoch, None for all examples once.
        rate: the learning rate at the start.
        seed: of batches and dropout.

    Raises:
        Diverged: a loss is not finite.
    """
    net.to(device()).train()
    if how["optimizer"] == "adam":
        optimizer: torch.optim.Optimizer = torch.optim.Adam(net.parameters(), lr=rate)
    else:
        optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9, nesterov=True)
    for epoch in range(how["epochs"]):
        torch.manual_seed(seed_of(seed, epoch))
        now = rate * how["decay"] ** (epoch / 10)
        for group in optimizer.param_groups:
            group["lr"] = now
        copy = epoch % (len(task.x) // len(task.y)) * len(task.y)
        for chosen in islice(_batches(len(task.y), how["batch"]), how["iterations"] or -(-len(task.y) // how["batch"])):
            x, y = task.x[copy + chosen].to(device()), task.y[chosen].to(device())
            loss = functional.cross_entropy(_logits(net, task, x, y), y)
            loss = loss + net.penalty() * (now if how["scaled_penalty"] else 1.0)
            if not loss.isfinite():
                raise Diverged(f"diverged in epoch {epoch}")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def _batches(count: int, size: int) -> Iterator[Tensor]:
    """Yield shuffled batches of indices without end."""
    while True:
        yield from torch.randperm(count).split(size)


def _logits(net: Evolved, task: Task, x: Tensor, y: Tensor) -> Tensor:
    """Return the logits; of several heads those of an example's own, the others' being out of the question."""
    logits: Tensor = net(x)
    return logits if task.own is None else logits.masked_fill(~task.own.to(y.device)[y], -torch.inf)


def accuracy(net: Evolved, task: Task, part: Literal["valid", "test"]) -> float:
    """Return the share of examples that are classified rightly, by the example's own head; of several heads the mean.

    Raises:
        Diverged: an output is not finite.
    """
    all_x, all_y = (task.valid_x, task.valid_y) if part == "valid" else (task.test_x, task.test_y)
    net.to(device()).eval()
    right = []
    with torch.inference_mode():
        for x, y in zip(all_x.split(EVALUATED), all_y.split(EVALUATED), strict=True):
            x, y = x.to(device()), y.to(device())
            logits = net(x)
            if not logits.isfinite().all():
                raise Diverged("outputs are not finite")
            if task.own is not None:
                logits = logits.masked_fill(~task.own.to(y.device)[y], -torch.inf)
            right.append((logits.argmax(1) == y).float().cpu())
    found, heads = torch.cat(right), task.head_of()[all_y]
    return float(torch.stack([found[heads == head].mean() for head in heads.unique()]).mean())
