"""What scoring and refining cost, as ratios to one training step on the same batch, measured in the same process.

python benchmarks/gradients.py [--depth 110] [--batch 128] [--repeats 3]

Time is the processor's, so that what else the machine does counts little; memory is the growth of the process's peak.
What is *held* is the peak of another run, in which freed blocks go back to the system: the C library keeps holes
between blocks of memory, more of them for some patterns of use than for others.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from common import RESULTS, Build, cross_entropy, markdown, measured, training_step, write
from nets.images import preact_resnet
from nets.libraries import torchvision_net
from wellposed.gradients import gradcosine
from wellposed.gradients.batches import Batch, sub_batches
from wellposed.gradients.cotangents import ENGINES, Objective, Weighing
from wellposed.gradients.problem import Problem
from wellposed.gradients.scales import Scales

COLUMNS = {
    "what": "what",
    "engine": "engine",
    "D": "D",
    "r": "r",
    "seconds": "processor time (s)",
    "time_ratio": "time / training step",
    "memory_mb": "memory (MB)",
    "memory_ratio": "memory / training step",
    "held_ratio": "memory held / training step",
}


def nio_iteration(
    model: nn.Module, batch: tuple[Tensor, Tensor], engine: Any, count: int, overlap: float
) -> Callable[[], Any]:
    """Return a call that takes the gradient of one iteration of NIO."""
    problem = Problem(model, cross_entropy)
    scales = Scales(problem)
    parts = sub_batches(Batch.of(batch), count, overlap)
    objective = Objective(problem, engine, scales=scales)

    def iteration() -> None:
        with problem.running():
            _, pending = objective.at(scales.parameters(), parts)
            objective.slopes(pending, Weighing(1.0, 1.0))

    return iteration


def sample_score(model: nn.Module, batch: tuple[Tensor, Tensor], engine: Any) -> Callable[[], Any]:
    """Return a call that scores single samples; what the first score loads once is not counted."""
    gradcosine(nn.Linear(2, 2), cross_entropy, (torch.ones(2, 2), torch.zeros(2, dtype=torch.long)), sub_batches=None)
    return partial(gradcosine, model, cross_entropy, batch, sub_batches=None, engine=engine)


def pictures(count: int) -> tuple[Tensor, Tensor]:
    """Return pictures of 32×32 and labels."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 3, 32, 32, generator=generator)
    return x, torch.randint(0, 10, (count,), generator=generator)


def row(what: str, found: tuple[float, float], base: tuple[float, float], **more: Any) -> dict[str, Any]:
    """Return one row of the table."""
    return {
        "what": what,
        **more,
        "seconds": found[0],
        "memory_mb": found[1],
        "time_ratio": found[0] / base[0],
        "memory_ratio": found[1] / base[1],
    }


def nio_rows(depth: int, size: int, repeats: int) -> list[dict[str, Any]]:
    """Measure iterations of NIO on a pre-activation ResNet (the paper's table 3)."""
    batch, build = pictures(size), partial(preact_resnet, depth)
    base = measured(training_step, build, batch, repeats=repeats)
    title = f"preact-ResNet-{depth}, B={size}"
    held = measured(training_step, build, batch, repeats=1, give_back=True)[1]
    rows = [row(f"{title}: training step", base, base, held_ratio=1.0)]
    settings = [(engine, 2, 0.2) for engine in ENGINES]
    settings += [("finite_difference", D, r) for D in (2, 3, 4) for r in (0.0, 0.2, 0.4, 0.6) if (D, r) != (2, 0.2)]
    for engine, count, overlap in settings:
        found = measured(nio_iteration, build, batch, engine, count, overlap, repeats=max(1, repeats - 1))
        more: dict[str, Any] = {"engine": engine, "D": count, "r": overlap}
        if (count, overlap) == (2, 0.2):
            told = (batch, engine, count, overlap)
            more["held_ratio"] = measured(nio_iteration, build, *told, repeats=1, give_back=True)[1] / held
        rows.append(row(f"{title}: NIO iteration", found, base, **more))
        print(markdown([rows[-1]], COLUMNS).splitlines()[-1], flush=True)
    return rows


def sample_rows(size: int, repeats: int) -> list[dict[str, Any]]:
    """Measure the sample-wise score on a ResNet-18 of 32×32 pictures, and on perceptrons."""
    rows, batch = [], pictures(size)
    nets: dict[str, Build] = {
        "ResNet-18": partial(torchvision_net, "resnet18", num_classes=10),
        "MLP 3072-512x4-10": partial(perceptron, 512, 4),
        "MLP 3072-32x7-10": partial(perceptron, 32, 7),
    }
    for name, build in nets.items():
        base = measured(training_step, build, batch, repeats=repeats)
        title = f"{name}, {size} samples"
        held = measured(training_step, build, batch, repeats=1, give_back=True)[1]
        rows.append(row(f"{title}: training step", base, base, held_ratio=1.0))
        for engine in ("batched", "loop", "vmap"):
            found = measured(sample_score, build, batch, engine, repeats=2)
            peak = measured(sample_score, build, batch, engine, repeats=1, give_back=True)[1]
            rows.append(row(f"{title}: sample-wise GradCosine", found, base, engine=engine, held_ratio=peak / held))
            print(markdown([rows[-1]], COLUMNS).splitlines()[-1], flush=True)
    return rows


def perceptron(width: int, depth: int) -> nn.Module:
    """Return a perceptron of ``depth`` hidden layers."""
    layers: list[nn.Module] = [nn.Flatten(), nn.Linear(3072, width), nn.ReLU()]
    for _ in range(depth - 1):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def main() -> None:
    """Run the benchmark and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depth", type=int, default=110)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows = nio_rows(options.depth, options.batch, options.repeats)
    rows += sample_rows(options.samples, options.repeats)
    write("gradients", markdown(rows, COLUMNS), rows, options.out)


if __name__ == "__main__":
    main()
