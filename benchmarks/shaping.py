"""Shaping: deep plain convolutional nets with shaped activations, against starts and a ResNet of the same depth.

    python benchmarks/shaping.py --images path/to/cifar10 [--depths 30] [--steps 200] [--out docs/results]

Nets of 3×3 convolutions of 32 channels, without norms and shortcuts, on CIFAR-10 at 16×16; Adam, gradients clipped at
norm 1, batches of 32. The figure of a training is the mean loss of its last 25 steps. Each arm's rate is the best of
`RATES` on one seed; it is judged on others. Trainings are kept in a journal beside the results as they come.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import wellposed as wp
from common import RESULTS, markdown, write
from nets.plain import Residual, cnn
from training_data import DATA, images

RATES = (3e-4, 1e-3, 3e-3)
CHOSEN_ON, JUDGED_ON = 0, (1, 2, 3)
LAST = 25
WIDTH, BATCH, COUNT = 32, 32, 4096
COLUMNS = {"depth": "depth", "arm": "arm", "rate": "rate", "loss": "loss", "error": "its SE", "first": "first loss"}


def plain(depth: int, activation: str = "relu") -> nn.Module:
    """Return a stack of convolutions, pooled and read out."""
    return cnn(activation, depth, WIDTH)


def _started(net: nn.Module, x: Tensor, seed: int, **options: Any) -> nn.Module:
    wp.initialize_(net, x, seed=seed, **options)
    return net


def _shaped(net: nn.Module, x: Tensor, seed: int, similarity: float = 0.9, **options: Any) -> nn.Module:
    wp.shape_(net, x, similarity=similarity)
    return _started(net, x, seed, **options)


ARMS: dict[str, Callable[[int, Tensor, int], nn.Module]] = {
    "ReLU, autoinit": lambda d, x, s: _started(plain(d), x, s, method="autoinit"),
    "ReLU, AutoInit++": lambda d, x, s: _started(plain(d), x, s, method="autoinit", center=True),
    "ReLU, steady": lambda d, x, s: _started(plain(d), x, s),
    "shaped ReLU, steady": lambda d, x, s: _shaped(plain(d), x, s),
    "shaped ReLU, autoinit": lambda d, x, s: _shaped(plain(d), x, s, method="autoinit"),
    "shaped ReLU to 0.3, autoinit": lambda d, x, s: _shaped(plain(d), x, s, 0.3, method="autoinit"),
    "tanh, autoinit": lambda d, x, s: _started(plain(d, "tanh"), x, s, method="autoinit"),
    "shaped tanh, autoinit": lambda d, x, s: _shaped(plain(d, "tanh"), x, s, method="autoinit"),
    "GELU, autoinit": lambda d, x, s: _started(plain(d, "gelu"), x, s, method="autoinit"),
    "shaped GELU, autoinit": lambda d, x, s: _shaped(plain(d, "gelu"), x, s, method="autoinit"),
    "ResNet without norms, steady": lambda d, x, s: _started(Residual(d, WIDTH), x, s),
}


def losses_of(net: nn.Module, rate: float, seed: int, data: tuple[Tensor, Tensor], steps: int) -> list[float]:
    """Return the loss at every step of one training, up to the first that is not finite."""
    pictures, labels = data
    optimizer = torch.optim.Adam(net.parameters(), rate)
    generator, losses = torch.Generator().manual_seed(seed), []
    for _ in range(steps):
        rows = torch.randint(len(labels), (BATCH,), generator=generator)
        loss = functional.cross_entropy(net(pictures[rows]), labels[rows])
        losses.append(float(loss.detach()))
        if not math.isfinite(losses[-1]):
            break
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    return losses


def loss_of(losses: list[float], steps: int) -> float:
    """Return the mean of the last losses; NaN where a training diverged."""
    whole = len(losses) == steps and math.isfinite(losses[-1])
    return math.fsum(losses[-LAST:]) / LAST if whole else math.nan


def trained(arm: str, depth: int, rate: float, seed: int, data: tuple[Tensor, Tensor], steps: int) -> dict[str, Any]:
    """Return the first loss and the mean of the last ones of one training; NaN where it diverged."""
    torch.manual_seed(seed)
    losses = losses_of(ARMS[arm](depth, data[0][:8], seed), rate, seed, data, steps)
    return {"first": losses[0], "loss": loss_of(losses, steps)}


def main() -> None:
    """Run the benchmark and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, default=DATA)
    parser.add_argument("--depths", type=int, nargs="+", default=[30])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--arms", nargs="+", choices=sorted(ARMS), default=list(ARMS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    journal = options.out / "shaping.jsonl"
    known = {}
    if journal.exists():
        known = {tuple(entry["key"]): entry for entry in map(json.loads, journal.read_text().splitlines())}
    data = images(options.images, COUNT)

    def of(arm: str, depth: int, rate: float, seed: int) -> dict[str, Any]:
        key = (arm, depth, rate, seed, options.steps)
        if key not in known:
            known[key] = {"key": key, **trained(arm, depth, rate, seed, data, options.steps)}
            with journal.open("a") as file:
                file.write(json.dumps(known[key]) + "\n")
            print(key, known[key]["loss"], flush=True)
        return known[key]

    rows = []
    for depth in options.depths:
        for arm in options.arms:
            tried = {rate: of(arm, depth, rate, CHOSEN_ON)["loss"] for rate in RATES}
            finite = {rate: loss for rate, loss in tried.items() if math.isfinite(loss)}
            rate = min(finite or tried, key=lambda at: tried[at])
            seen = [of(arm, depth, rate, seed) for seed in JUDGED_ON]
            losses = [one["loss"] for one in seen]
            error = statistics.stdev(losses) / math.sqrt(len(losses))
            first = statistics.mean(one["first"] for one in seen)
            rows.append(
                {
                    "depth": depth,
                    "arm": arm,
                    "rate": rate,
                    "loss": statistics.mean(losses),
                    "error": error,
                    "first": first,
                }
            )
    text = (
        f"Mean loss of the last {LAST} of {options.steps} steps, over {len(JUDGED_ON)} seeds; chance is "
        f"{math.log(10):.2f}.\n\n{markdown(rows, COLUMNS)}"
    )
    write("shaping", text, rows, options.out)


if __name__ == "__main__":
    main()
