"""Regressions of a few values over some coordinates, by perceptrons: on these, arguments of functions were chosen."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from torch import Generator, nn

from starts.task import Batch, Data, Task, regress

ROWS, WIDTH = 64, 64


def friedman(generator: Generator) -> Batch:
    """Return rows of ten coordinates, of which five count (Friedman 1991)."""
    x = torch.rand(ROWS, 10, generator=generator)
    y = 10 * torch.sin(math.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return (x - 0.5) * 12**0.5, y[:, None]


def wave(generator: Generator) -> Batch:
    """Return points on a line, and two sines over it."""
    x = torch.rand(ROWS, 1, generator=generator) * 2 - 1
    return x * 3**0.5, torch.sin(5 * x) + 0.5 * torch.sin(11 * x + 1)


def flow(generator: Generator) -> Batch:
    """Return rows of eight coordinates, and an exponential, a sigmoid and a product of them."""
    x = torch.randn(ROWS, 8, generator=generator)
    y = torch.exp(0.4 * x[:, 0] + 0.2 * x[:, 1]) * torch.sigmoid(x[:, 2] - x[:, 3]) + 0.3 * x[:, 4] * x[:, 5]
    return x, y[:, None]


def arm(generator: Generator) -> Batch:
    """Return angles, velocities and forces of three joints, and what changes of the first two within a step."""
    x = torch.randn(ROWS, 8, generator=generator)
    q, v, force = x[:, :3], x[:, 3:6], x[:, 6:]
    pulls = -2 * torch.sin(q[:, 0]) + force[:, 0], -torch.sin(q[:, 1] - q[:, 0]) + force[:, 1]
    a = torch.stack([*pulls, torch.cos(q[:, 2]) * v[:, 0] / 2], 1)
    return x, torch.cat([v + 0.3 * a, a - 0.2 * v], 1)


def standardised(make: Callable[[Generator], Batch]) -> Data:
    """Return batches whose targets have mean 0 and variance 1."""
    generator = Generator().manual_seed(77)
    drawn = torch.cat([make(generator)[1] for _ in range(20)])
    mean, std = drawn.mean(0), drawn.std(0)

    def made(generator: Generator) -> Batch:
        x, y = make(generator)
        return x, (y - mean) / std

    return Data.made(made)


def perceptron(function: type[nn.Module], inputs: int, outputs: int, depth: int) -> nn.Module:
    """Return a perceptron of ``depth`` hidden layers."""
    sizes = [inputs, *[WIDTH] * depth]
    hidden = (part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), function()))
    return nn.Sequential(*hidden, nn.Linear(WIDTH, outputs))


MADE = {"friedman": (friedman, 10, 1, (3, 6)), "wave": (wave, 1, 1, (3,)), "flow": (flow, 8, 1, (3,)),
        "arm": (arm, 8, 6, (3, 6))}  # fmt: skip
FUNCTIONS = {"ReLU": nn.ReLU, "GELU": nn.GELU, "SiLU": nn.SiLU, "tanh": nn.Tanh}
TASKS = tuple(
    Task(
        f"{name}_{depth}_{function.lower()}", "values", f"{name}, {depth} layers, {function}",
        partial(perceptron, kind, inputs, outputs, depth), partial(standardised, make), regress, -6, steps=400,
    )
    for name, (make, inputs, outputs, depths) in MADE.items()
    for depth in depths
    for function, kind in FUNCTIONS.items()
)  # fmt: skip
