"""Inputs that become alike: named before any pass, against real passes and against what shaping betters.

    python benchmarks/alike.py --images path/to/cifar10 [--steps 200] [--out docs/results]

The verdict of a report names it twice: where biases or functions leave less than 10⁻⁴ of a signal's power to differ
between inputs (the model's own weights), and where rectifiers, one after the other, leave two inputs with nothing in
common a similarity above 0.94 (any weights). The first is held against the same verdict by a real pass, on the nets of
`accuracy.py` and plain ones, as PyTorch makes them. The second is held against trainings, with and without
`wellposed.shape_`: CIFAR-10 at 16×16, Adam, gradients clipped at norm 1, batches of 32; the loss is the mean of the
last 25 steps over two seeds, each arm at the best of three rates. Trainings are kept in a journal as they come.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import wellposed as wp
from common import RESULTS, markdown, write
from nets.catalogue import NETS, input_kinds, net_batch
from shaping import RATES, loss_of, losses_of
from training_data import DATA, SIDE, images
from wellposed.measuring.batches import Batches
from wellposed.reports.faults import ALIKE
from wellposed.reports.likeness import differing, foreseen
from wellposed.reports.record import Differing
from wellposed.reports.spans import SIGNALS, hidden_names
from wellposed.reports.structure import structure_of
from wellposed.shaping.fitting import unshaped

SEEDS, BATCH, COUNT = (0, 1), 32, 4096
COLUMNS = {
    "net": "net",
    "crowds": "similarity behind the last rectifier, wide",
    "named": "named",
    "plan": "loss",
    "shaped": "loss, shaped",
    "gain": "gained",
}
SEEN = {
    "net": "net",
    "predicted": "share that differs, predicted",
    "measured": "measured",
    "named": "named",
    "is": "is",
}


def perceptron(depth: int, act: Callable[[], nn.Module] = nn.ReLU, norm: bool = False) -> nn.Module:
    """Return a plain perceptron of width 128."""
    widths = itertools.pairwise([3 * SIDE * SIDE] + [128] * depth)
    norms = [lambda b: nn.BatchNorm1d(b)] if norm else []
    layers = [m for a, b in widths for m in (nn.Linear(a, b), *(make(b) for make in norms), act())]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(128, 10))


def convolutions(depth: int, act: Callable[[], nn.Module] = nn.ReLU, norm: bool = False) -> nn.Module:
    """Return a plain stack of 3×3 convolutions of 16 channels."""
    widths = itertools.pairwise([3] + [16] * depth)
    norms = [lambda b: nn.BatchNorm2d(b)] if norm else []
    layers = [m for a, b in widths for m in (nn.Conv2d(a, b, 3, padding=1), *(make(b) for make in norms), act())]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


class Residual(nn.Module):
    """Blocks of two convolutions behind rectifiers, without norms."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.into, self.act, self.out = nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Linear(16, 10)
        self.blocks = nn.ModuleList([self._block() for _ in range(blocks)])

    @staticmethod
    def _block() -> nn.Module:
        """Return two convolutions, each behind a rectifier."""
        return nn.Sequential(*(m for _ in range(2) for m in (nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1))))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``[batch, 10]`` of pictures ``[batch, 3, side, side]``."""
        x = self.into(x)
        for block in self.blocks:
            x = x + block(x)
        logits: Tensor = self.out(self.act(x).mean((2, 3)))
        return logits


PLAIN: dict[str, Callable[[], nn.Module]] = {
    **{f"mlp{d}": partial(perceptron, d) for d in (5, 10, 15, 20, 25, 30, 35, 40, 50)},
    **{f"mlp{d}_leaky": partial(perceptron, d, nn.LeakyReLU) for d in (20, 30)},
    "mlp20_bn": partial(perceptron, 20, norm=True),
    **{f"cnn{d}": partial(convolutions, d) for d in (5, 8, 10, 15, 20, 25, 30)},
    "cnn20_leaky": partial(convolutions, 20, nn.LeakyReLU),
    **{f"cnn{d}_bn": partial(convolutions, d, norm=True) for d in (10, 20)},
    **{f"res{d}": partial(Residual, d) for d in (8, 15)},
}


def trained(name: str, arm: str, rate: float, seed: int, data: tuple[Tensor, Tensor], steps: int) -> float:
    """Return the mean loss of the last steps of one training; NaN where it diverged."""
    torch.manual_seed(seed)
    net, example = PLAIN[name](), data[0][:8]
    if arm == "shaped":
        wp.shape_(net, example)
    wp.initialize_(net, example, seed=seed)
    return loss_of(losses_of(net, rate, seed, data, steps), steps)


def judged(name: str, loss: Callable[[str, str, float, int], float]) -> dict[str, Any]:
    """Return the row of a plain net: what is named before any pass, and what shaping betters."""
    torch.manual_seed(0)
    graph = wp.trace(PLAIN[name](), torch.zeros(8, 3, SIDE, SIDE))
    crowds = unshaped(graph, wp.propagate(graph, weights=wp.plan(graph)))
    named = crowds > ALIKE and not structure_of(graph).merges
    best = {
        arm: min(math.fsum(loss(name, arm, rate, seed) for seed in SEEDS) / len(SEEDS) for rate in RATES)
        for arm in ("plan", "shaped")
    }
    told = {"net": name, "crowds": round(crowds, 3), "named": "yes" if named else ""}
    rounded = {arm: round(value, 3) for arm, value in best.items()}
    return told | rounded | {"gain": round(best["plan"] - best["shaped"], 3)}


def seen(name: str, build: Callable[[], nn.Module], batch: Any) -> dict[str, Any] | None:
    """Return the least share that differs between inputs, predicted and by a real pass, under a model's own weights."""
    torch.manual_seed(0)
    graph = wp.trace(build(), batch)
    names = hidden_names(structure_of(graph))
    own = {key: parameter.tensor.detach() for key, parameter in graph.parameters.items()}
    given = next(iter(Batches(graph, None, 0).take(range(1))))
    predicted, measured = foreseen(wp.propagate(graph), names), differing(graph, names, own, given, 0)
    if measured is None:
        return None

    def told(found: Differing | None) -> tuple[float | None, str]:
        """Return the share, and whether inputs are alike by it."""
        if found is None:
            return None, ""
        return float(f"{found.share:.2g}"), "yes" if found.share * SIGNALS[0] <= 1.0 else ""

    (share, named), (seen_, is_) = told(predicted), told(measured)
    return {"net": name, "predicted": share, "measured": seen_, "named": named, "is": is_}


def main() -> None:
    """Run the benchmark and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, default=DATA)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    journal = options.out / "alike.jsonl"
    known = {}
    if journal.exists():
        known = {tuple(entry["key"]): entry["loss"] for entry in map(json.loads, journal.read_text().splitlines())}
    data = images(options.images, COUNT)

    def loss(*key: Any) -> float:
        if key not in known:
            known[key] = trained(*key, data, options.steps)
            with journal.open("a") as file:
                file.write(json.dumps({"key": key, "loss": known[key]}) + "\n")
        return known[key]

    passes = []
    picture = torch.zeros(8, 3, SIDE, SIDE)
    nets = {name: (net.build, net_batch(net, input_kinds(net)[-1], 0)) for name, net in NETS.items()}
    for name, (build, batch) in (nets | {n: (build, picture) for n, build in PLAIN.items()}).items():
        if (row := seen(name, build, batch)) is not None:
            passes.append(row)
            print(row, flush=True)
    trainings = []
    for name in PLAIN:
        trainings.append(judged(name, loss))
        print(trainings[-1], flush=True)
    true = [row for row in trainings if row["named"]]
    alike = [row for row in passes if row["is"]]
    found = sum(bool(row["named"]) for row in alike)
    wrong = sum(bool(row["named"]) for row in passes) - found
    text = (
        f"Under PyTorch's own weights a real pass finds inputs alike in {len(alike)} of {len(passes)} nets. The "
        f"prediction names {found} of them before any pass, and {wrong} others.\n\n{markdown(alike, SEEN)}\n\n"
        f"Whatever the weights, {len(true)} of {len(trainings)} plain nets are named. Shaping betters the loss of "
        f"{sum(row['gain'] > 0 for row in true)} of them.\n\n{markdown(trainings, COLUMNS)}"
    )
    write("alike", text, passes + trainings, options.out)


if __name__ == "__main__":
    main()
