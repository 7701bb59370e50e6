"""Does `wellposed.prepare` find the rate of a training? Its answer, held against the whole training at a fine grid.

    python benchmarks/prepared.py [--data ../shared/datasets/cifar10] [--set judging]

Each net is trained whole at rates √2 apart, from two draws of the weights, with a warm-up and a cosine to zero. Then
its rate is searched within budgets of gradients, from three other draws. *Lost* is the share of the
training's gain that is lost at the rate that a search gave, against the best rate of the grid. How a search within a
budget goes was chosen on the nets of ``--set choosing``, and the results are those of others.
"""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import wellposed as wp
from common import RESULTS, markdown, write
from training_data import DATA, images

SEARCHES: dict[str, dict[str, Any]] = {
    "whole grid, 40 steps": {"steps": 40, "seeds": 1},
    "the same, constant rate": {"steps": 40, "seeds": 1, "schedule": "constant"},
    "prepare, 400 gradients": {"training": True},
    "prepare, 200 gradients": {"training": True, "budget": 200},
}
"""Searches by name; ``training`` tells them how long the training is."""
STOCK = {"sgd": 0.1, "momentum": 0.1, "adam": 1e-3, "adamw": 1e-3}
COLUMNS = {
    "search": "search",
    "steps": "steps of the training",
    "median": "lost (median)",
    "ninth": "lost (9 of 10 below)",
    "worst": "lost (most)",
    "within": "best rate within a factor of 4",
    "gradients": "gradients (mean)",
}
CASES = {
    "net": "net",
    "optimizer": "optimizer",
    "steps": "steps",
    "best": "best rate",
    "found": "found within 400 gradients",
    "lost": "lost (median)",
}


@dataclass(frozen=True, slots=True)
class Task:
    """A net, its optimizer, and whether it takes images as vectors (``flat``)."""

    net: str
    build: Callable[[], nn.Module]
    optimizer: str
    flat: bool = True


def perceptron(depth: int, width: int, act: type[nn.Module], norm: bool = False) -> nn.Module:
    """Return a perceptron of so many hidden layers, with batch norms or without."""
    layers: list[nn.Module] = []
    for fan_in in (192, *[width] * (depth - 1)):
        layers += [nn.Linear(fan_in, width), *[nn.BatchNorm1d(width)] * norm, act()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def convolutional() -> nn.Module:
    """Return four convolutions without norms, pooled."""
    sizes = itertools.pairwise((3, 8, 16, 32, 32))
    layers = [m for a, b in sizes for m in (nn.Conv2d(a, b, 3, stride=1 + (b < 32), padding=1), nn.ReLU())]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


class Block(nn.Module):
    """A residual block of a perceptron, with a norm before its weights."""

    def __init__(self, width: int) -> None:
        """Make the layers."""
        super().__init__()
        layers = (nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.branch = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch."""
        return x + self.branch(x)


def residual() -> nn.Module:
    """Return five residual blocks."""
    blocks = [Block(48) for _ in range(5)]
    return nn.Sequential(nn.Linear(192, 48), *blocks, nn.LayerNorm(48), nn.Linear(48, 10))


def deeper() -> nn.Module:
    """Return six convolutions without norms, pooled."""
    sizes = enumerate(itertools.pairwise((3, 8, 16, 16, 32, 32, 32)))
    layers = [m for i, (a, b) in sizes for m in (nn.Conv2d(a, b, 3, stride=1 + (i in (0, 3)), padding=1), nn.GELU())]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


TASKS = (
    Task("3 layers ReLU", lambda: perceptron(3, 64, nn.ReLU), "adam"),
    Task("20 layers tanh", lambda: perceptron(20, 32, nn.Tanh), "sgd"),
    Task("12 layers SiLU", lambda: perceptron(12, 32, nn.SiLU), "adamw"),
    Task("3 layers with batch norm", lambda: perceptron(3, 64, nn.ReLU, norm=True), "sgd"),
    Task("8 layers GELU", lambda: perceptron(8, 48, nn.GELU), "momentum"),
    Task("convolutions", convolutional, "momentum", flat=False),
    Task("convolutions", convolutional, "adam", flat=False),
)
CHOOSING = (
    Task("5 layers ReLU", lambda: perceptron(5, 64, nn.ReLU), "adamw"),
    Task("16 layers tanh", lambda: perceptron(16, 32, nn.Tanh), "adam"),
    Task("10 layers GELU", lambda: perceptron(10, 48, nn.GELU), "sgd"),
    Task("6 layers with batch norm", lambda: perceptron(6, 48, nn.ReLU, norm=True), "momentum"),
    Task("residual blocks", residual, "adamw"),
    Task("6 convolutions", deeper, "sgd", flat=False),
    Task("14 layers SiLU", lambda: perceptron(14, 40, nn.SiLU), "momentum"),
    Task("14 layers SiLU", lambda: perceptron(14, 40, nn.SiLU), "adam"),
    Task("2 layers sigmoid", lambda: perceptron(2, 64, nn.Sigmoid), "adam"),
    Task("20 layers ReLU", lambda: perceptron(20, 32, nn.ReLU), "adamw"),
)
"""Nets on which the steps of a search, the rates that it begins with, and what it is drawn to were chosen."""


def loss_fn(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """Return the cross-entropy of one batch."""
    return functional.cross_entropy(model(batch[0]), batch[1])


def batches_of(task: Task, steps: int, pictures: tuple[Tensor, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Return as many batches as there are steps."""
    chosen = torch.randint(len(pictures[0]), (steps, 32), generator=torch.Generator().manual_seed(0))
    return [(pictures[0][i].flatten(1) if task.flat else pictures[0][i], pictures[1][i]) for i in chosen]


def fine(task: Task, batches: list[Any], plan: wp.Plan) -> wp.rates.Rate:
    """Return what whole trainings at a fine grid give."""
    highest = {"sgd": 3.0, "momentum": 0.0}.get(task.optimizer, -3.5)
    return wp.rates.find_max_lr(
        task.build(),
        loss_fn,
        batches,
        optimizer=task.optimizer,
        grid=[2.0**octave for octave in np.arange(highest - 10, highest + 0.1, 0.5)],
        seeds=2,
        initialize=plan,
        schedule="warmup_cosine",
        probes=48,
        widen=1,
        progress=False,
    )


def rows_of(task: Task, steps: int, batches: list[Any]) -> list[dict[str, Any]]:
    """Return a row for each search of a training, and for the stock rate."""
    plan = wp.plan(task.build(), batches[0][0], method="autoinit")
    whole = fine(task, batches, plan)
    first = float(re.findall(r"\(([\d.e+-]+) before training", whole.reason)[0])
    octaves = [np.log2(point.rate) for point in whole.curve]
    heights = [first if point.mean is None else min(point.mean, first) for point in whole.curve]
    least = min(heights)
    about: dict[str, Any] = {"net": task.net, "optimizer": task.optimizer, "steps": steps, "best": whole.value}

    def row(search: str, seed: int | None, rate: float, gradients: int) -> dict[str, Any]:
        lost = float((np.interp(np.log2(rate), octaves, heights) - least) / (first - least))
        off = float(np.log2(rate / whole.value))
        return about | {"search": search, "seed": seed, "rate": rate, "gradients": gradients, "lost": lost, "off": off}

    rows = [row("stock", None, STOCK[task.optimizer], 0)]
    for (name, options), seed in itertools.product(SEARCHES.items(), (11, 12, 13)):
        given = {key: value for key, value in options.items() if key != "training"}
        if options.get("training"):
            given["training_steps"] = steps
        rate = wp.rates.find_max_lr(
            task.build(),
            loss_fn,
            batches,
            optimizer=task.optimizer,
            initialize=plan,
            seed=seed,
            progress=False,
            **({"schedule": "warmup_cosine"} | given),
        )
        taken = int(re.findall(r"(\d+) gradients in all", rate.reason)[0])
        rows.append(row(name, seed, rate.value, taken))
    return rows


def summarised(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each search and length."""
    told = []
    for name, steps in itertools.product(("stock", *SEARCHES), sorted({row["steps"] for row in rows})):
        own = [row for row in rows if (row["search"], row["steps"]) == (name, steps)]
        lost = np.array([row["lost"] for row in own])
        told.append(
            {
                "search": name,
                "steps": steps,
                "median": float(np.median(lost)),
                "ninth": float(np.quantile(lost, 0.9)),
                "worst": float(lost.max()),
                "within": f"{sum(abs(row['off']) <= 2 for row in own)} of {len(own)}",
                "gradients": float(np.mean([row["gradients"] for row in own])),
            }
        )
    return told


def by_case(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each training, with what is found within 400 gradients."""
    told = []
    for key, found in itertools.groupby(rows, lambda row: (row["net"], row["optimizer"], row["steps"], row["best"])):
        own = [row for row in found if row["search"] == "prepare, 400 gradients"]
        rates = ", ".join(f"{row['rate']:.2g}" for row in own)
        about = dict(zip(("net", "optimizer", "steps", "best"), key, strict=True))
        told.append(about | {"found": rates, "lost": float(np.median([row["lost"] for row in own]))})
    return told


def main() -> None:
    """Run the benchmark and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder with train.parquet of CIFAR-10")
    parser.add_argument("--set", choices=("judging", "choosing"), default="judging")
    parser.add_argument("--steps", type=int, nargs="+", default=[200, 1000])
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    pictures = images(options.data, 4000, side=8)
    rows: list[dict[str, Any]] = []
    for task, steps in itertools.product(TASKS if options.set == "judging" else CHOOSING, options.steps):
        rows += rows_of(task, steps, batches_of(task, steps, pictures))
        print(markdown(by_case(rows)[-1:], CASES).splitlines()[-1], flush=True)
        told = "\n\n".join((markdown(summarised(rows), COLUMNS), markdown(by_case(rows), CASES)))
        write("prepared" if options.set == "judging" else "prepared_choosing", told, rows, options.out)


if __name__ == "__main__":
    main()
