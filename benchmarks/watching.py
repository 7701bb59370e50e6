"""What watching a training costs: every second step is measured, and compared with the steps between, in one training.

python benchmarks/watching.py [--models resnet18 ...] [--steps 12]

Time is the processor's, so that what else the machine does counts little. The figures go to TensorBoard, as they do in
the trainers; writing them is part of what is timed. Beside it stands what forward hooks would take that look at the
same moments in the training's own pass.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.tensorboard import SummaryWriter

from common import RESULTS, markdown, write
from nets.libraries import llama, torchvision_net
from nets.plain import mlp
from wellposed.graphs.tree import output_tensors
from wellposed.integrations import watch
from wellposed.integrations.watcher import EVERY
from wellposed.measuring.moments import moments

COLUMNS = {
    "model": "model",
    "batch": "batch",
    "step_s": "training step (s)",
    "between": "a step between / step",
    "extra": "a measured step's extra / step",
    "hooks": "moments by hooks instead / step",
    "start": "start / step",
    "figures": "figures",
    "overhead": f"overhead at every={EVERY} (%)",
}
Recipe = tuple[Callable[[], nn.Module], Callable[[], Tensor]]


def tokens(model: nn.Module, x: Tensor) -> Tensor:
    """Return a language model's loss."""
    loss: Tensor = model(input_ids=x, labels=x).loss
    return loss


def classes(model: nn.Module, x: Tensor) -> Tensor:
    """Return a classifier's loss, with labels that mean nothing."""
    return functional.cross_entropy(model(x), torch.arange(len(x)) % 10)


MODELS: dict[str, tuple[Recipe, Callable[[nn.Module, Tensor], Tensor]]] = {
    "mlp": ((lambda: mlp("relu", depth=20, width=512), lambda: torch.randn(128, 512)), classes),
    "resnet18": ((lambda: torchvision_net("resnet18"), lambda: torch.randn(16, 3, 112, 112)), classes),
    "mobilenet_v2": ((lambda: torchvision_net("mobilenet_v2"), lambda: torch.randn(16, 3, 112, 112)), classes),
    "llama": ((lambda: llama(256, 704, 8, 8, tied=True), lambda: torch.randint(1000, (2, 64))), tokens),
}


def stepper(model: nn.Module, optimizer: torch.optim.Optimizer, loss_fn: Any, x: Tensor) -> Callable[[], float]:
    """Return a function that makes one training step and says how long it took."""

    def step() -> float:
        start = time.process_time()
        optimizer.zero_grad()
        loss_fn(model, x).backward()
        optimizer.step()
        return time.process_time() - start

    return step


def look(_module: nn.Module, _args: Any, output: Any) -> None:
    """Take the moments of a module's output, as a forward hook."""
    for tensor in output_tensors(output):
        if tensor.is_floating_point():
            moments(tensor.detach())


def cost(name: str, steps: int) -> dict[str, Any]:
    """Return the costs of one model, as ratios to a training step without a watcher."""
    (build, example), loss_fn = MODELS[name]
    torch.manual_seed(0)
    model, x = build(), example()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    step = stepper(model, optimizer, loss_fn, x)
    step()
    plain = statistics.median(step() for _ in range(steps))
    handles = [module.register_forward_hook(look) for module in model.modules()]
    hooked = statistics.median(step() for _ in range(steps))
    for handle in handles:
        handle.remove()
    with tempfile.TemporaryDirectory() as folder, SummaryWriter(folder) as writer:
        sizes: list[int] = []

        def log(figures: dict[str, float], at: int) -> None:
            sizes.append(len(figures))
            for key, value in figures.items():
                writer.add_scalar(key, value, at)

        with watch(model, optimizer, log, every=2):
            first = step()
            times = [step() for _ in range(2 * steps)]
    between, measured = statistics.median(times[0::2]), statistics.median(times[1::2])
    return {
        "model": name,
        "batch": tuple(x.shape),
        "step_s": plain,
        "between": between / plain,
        "extra": (measured - between) / plain,
        "hooks": (hooked - plain) / plain,
        "start": (first - measured) / plain,
        "figures": sizes[-1],
        "overhead": 100.0 * (measured - between) / plain / EVERY,
        "all": times,
    }


def main() -> None:
    """Run the benchmark and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=list(MODELS), metavar="MODEL")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rows = []
    for name in options.models:
        rows.append(cost(name, options.steps))
        print(markdown(rows[-1:], COLUMNS).splitlines()[-1], flush=True)
    most = max(row["overhead"] for row in rows)
    told = f"Medians of {options.steps} steps of each kind; the largest overhead is {most:.2g} %."
    write("watching", f"{told}\n\n{markdown(rows, COLUMNS)}", rows, options.out)


if __name__ == "__main__":
    main()
