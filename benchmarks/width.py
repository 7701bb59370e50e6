"""Whether the best learning rate holds across width: plans of method ``mup``, microsoft/mup, and the standard way.

    python benchmarks/width.py [--data ../shared/datasets/cifar10] [--quick]

A perceptron of three hidden layers is trained on CIFAR-10 at widths 64 and 1024 with SGD and Adam; the best rate at
each width is what `wellposed.rates.find_max_lr` finds. Plans work on the model as it is; microsoft/mup (1.0, from PyPI;
left out where it is not installed) needs its readout module, base shapes and its own optimizers.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import wellposed as wp
from common import RESULTS, cross_entropy, markdown, write
from rates import JOURNALS
from training_data import DATA, images
from wellposed.rates.find import find_max_lr

BASE, WIDE = 64, 1024
BATCH, STEPS, INPUTS = 128, 100, 3 * 16 * 16
KINDS: dict[str, type[torch.optim.Optimizer]] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
GRIDS = {"sgd": [2.0**k for k in range(-8, 2)], "adam": [2.0**k for k in range(-14, -4)]}
COLUMNS = {
    "optimizer": "optimizer",
    "way": "way",
    "narrow": f"best rate at width {BASE}",
    "wide": f"at width {WIDE}",
    "shift": "shift (octaves; the grid's step is 1)",
    "loss": f"loss at width {WIDE} with the rate of width {BASE}",
    "least": "least loss there",
}


def perceptron(width: int, readout: type[nn.Linear] = nn.Linear) -> nn.Module:
    """Return a perceptron of three hidden layers for flat inputs."""
    sizes = [INPUTS, width, width, width]
    hidden = [part for i in range(3) for part in (nn.Linear(sizes[i], sizes[i + 1]), nn.ReLU())]
    return nn.Sequential(*hidden, readout(width, 10))


def by_plan(method: str, kind: str, width: int) -> dict[str, Any]:
    """Return the arguments of a search that draws and trains as a plan says."""
    plan = wp.plan(
        perceptron(width),
        torch.zeros(BATCH, INPUTS),
        method=method,
        **({"base_width": BASE} if method == "mup" else {}),
    )

    def build(model: nn.Module, rate: float) -> torch.optim.Optimizer:
        made: Any = KINDS[kind]
        return made(plan.param_groups(model, rate, kind), lr=rate)

    return {"model_fn": partial(perceptron, width), "initialize": plan, "optimizer": build}


def by_mup(kind: str, width: int) -> dict[str, Any]:
    """Return the arguments of a search with microsoft/mup, as its examples use it."""
    import mup

    base, delta = (perceptron(w, mup.MuReadout) for w in (BASE, 2 * BASE))
    optimizers = {"sgd": mup.MuSGD, "adam": mup.MuAdam}

    def model_fn() -> nn.Module:
        model = perceptron(width, mup.MuReadout)
        mup.set_base_shapes(model, base, delta=delta)
        for layer in model:
            if isinstance(layer, nn.Linear) and not isinstance(layer, mup.MuReadout):
                mup.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        return model

    def build(model: nn.Module, rate: float) -> torch.optim.Optimizer:
        # The shapes are attributes of the parameters, which copies of a model lose.
        mup.set_base_shapes(model, base, delta=delta, rescale_params=False)
        made: torch.optim.Optimizer = optimizers[kind](model.parameters(), lr=rate)
        return made

    return {"model_fn": model_fn, "optimizer": build}


def best(arguments: dict[str, Any], kind: str, data: list[tuple[Tensor, Tensor]], journal: Path) -> wp.rates.Rate:
    """Return the best rate of one way at one width."""
    return find_max_lr(
        loss_fn=cross_entropy,
        batches=data,
        grid=GRIDS[kind],
        seeds=2,
        widen=2,
        schedule="constant",
        journal=journal,
        progress=False,
        **arguments,
    )


def loss_at(rate: wp.rates.Rate, value: float) -> float:
    """Return the mean loss at a rate, by linear interpolation in log rate; infinite where a run diverged next to it."""
    points = sorted(rate.curve, key=lambda point: abs(math.log(point.rate / value)))[:2]
    if any(point.mean is None for point in points):
        return math.inf
    (one, first), (other, second) = ((math.log(point.rate), point.mean or 0.0) for point in points)
    return first + (second - first) * (math.log(value) - one) / (other - one)


def main() -> None:
    """Run the benchmark and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder with train.parquet of CIFAR-10")
    parser.add_argument("--journals", type=Path, default=JOURNALS, help="where finished runs are noted")
    parser.add_argument("--quick", action="store_true", help="widths 64 and 256")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    x, y = images(options.data, BATCH * STEPS)
    data = list(zip(x.flatten(1).split(BATCH), y.split(BATCH), strict=True))
    ways: dict[str, Callable[[str, int], dict[str, Any]]] = {
        "plan, mup": partial(by_plan, "mup"),
        "plan, autoinit": partial(by_plan, "autoinit"),
    }
    if importlib.util.find_spec("mup") is not None:
        ways["microsoft/mup"] = by_mup
    rows = []
    for kind in KINDS:
        for way, arguments in ways.items():
            found = {}
            for width in (BASE, 256 if options.quick else WIDE):
                name = f"width-{kind}-{way.replace('/', ' ').replace(', ', ' ').replace(' ', '-')}-{width}.jsonl"
                found[width] = best(arguments(kind, width), kind, data, options.journals / name)
            narrow, wide = found.values()
            rows.append(
                {
                    "optimizer": kind,
                    "way": way,
                    "narrow": narrow.value,
                    "wide": wide.value,
                    "shift": math.log2(wide.value / narrow.value),
                    "loss": loss_at(wide, narrow.value),
                    "least": min(point.mean for point in wide.curve if point.mean is not None),
                    "intervals": [list(narrow.interval or ()), list(wide.interval or ())],
                    "warnings": [*narrow.warnings, *wide.warnings],
                }
            )
            print(markdown(rows[-1:], COLUMNS).splitlines()[-1], flush=True)
    told = f"{STEPS} steps, batch {BATCH}, 2 draws of the weights, rates a factor of 2 apart."
    write("width", f"{told}\n\n{markdown(rows, COLUMNS)}", rows, options.out)


if __name__ == "__main__":
    main()
