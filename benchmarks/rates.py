"""Learning rates: those that rules give, against those that a grid finds, on CIFAR-10.

    python benchmarks/rates.py [--data ../shared/datasets/cifar10] [--families std128 ...] [--quick] [--rules-only]

Images are pooled to 16×16. Every net is trained with plain SGD at a grid of rates and from several draws of its weights
by `wellposed.rates.find_max_lr`; what that finds is the true rate. Perceptrons take 200 steps of batch 128 (one epoch
of 25,600 images), convolutional nets 100 of batch 64. Finished runs are noted in journals, so that a benchmark that was
stopped goes on where it was; ``--rules-only`` takes the true rates from earlier results. Reading the data takes pyarrow
and Pillow.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from common import RESULTS, write
from dags import Net, families
from rates_tables import summary
from wellposed.rates import Rate, relative
from wellposed.rates.find import find_max_lr

DATA = Path(__file__).resolve().parents[2] / "shared" / "datasets" / "cifar10"
JOURNALS = Path("build") / "rates"
SIDE = 16
RULES = ("paths", "ntk", "maximal_update")


def images(folder: Path, count: int) -> tuple[Tensor, Tensor]:
    """Return the first training images, pooled and with each channel standardised, and their labels.

    Shapes ``[count, 3, 16, 16]`` and ``[count]``.
    """
    from PIL import Image
    from pyarrow import parquet

    table = parquet.read_table(folder / "train.parquet").slice(0, count)
    raw = [np.asarray(Image.open(io.BytesIO(cell["bytes"].as_py()))) for cell in table["img"]]
    pixels = torch.from_numpy(np.stack(raw)).permute(0, 3, 1, 2).float()
    pooled = functional.adaptive_avg_pool2d(pixels, SIDE)
    std, mean = torch.std_mean(pooled, dim=(0, 2, 3), keepdim=True)
    return (pooled - mean) / std, torch.tensor(table["label"].to_pylist())


def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the cross entropy of a batch."""
    return functional.cross_entropy(model(batch[0]), batch[1])


def protocol(net: Net, quick: bool) -> tuple[int, int, dict[str, Any]]:
    """Return batch size, steps and the search's options."""
    options: dict[str, Any] = {"seeds": 3, "probes": 32, "bound": 1000.0, "widen": 2}
    size, steps = 128, 200
    if net.kernel is not None:
        size, steps = 64, 100
        options |= {"seeds": 2, "grid": [2.0 ** (0.75 * k) for k in range(-9, 4)]}
    return (size, 50, options | {"seeds": 2}) if quick else (size, steps, options)


def true_rate(net: Net, family: str, data: tuple[Tensor, Tensor], journals: Path, quick: bool) -> Rate:
    """Return the rate that the grid finds."""
    size, steps, options = protocol(net, quick)
    x, y = data[0][: size * steps], data[1][: size * steps]
    batches = list(zip((x if net.kernel is not None else x.flatten(1)).split(size), y.split(size), strict=True))
    name = f"{family}-{net.name.replace(' ', '-')}{'-quick' if quick else ''}.jsonl"
    return find_max_lr(net.build, loss_fn, batches, journal=journals / name, progress=False, **options)


def predicted(net: Net, rule: str, seeds: int) -> float:
    """Return log2 of a rule's relative rate, the mean over draws of the weights where it looks at them."""
    example = torch.zeros((4, 3, SIDE, SIDE) if net.kernel is not None else (4, 3 * SIDE**2))
    found = []
    for seed in range(1 if rule == "paths" else seeds):
        torch.manual_seed(seed)
        found.append(np.log2(relative(net.build(), example, rule=rule).value))
    return float(np.mean(found))


def measured(net: Net, family: str, data: tuple[Tensor, Tensor], journals: Path, quick: bool) -> dict[str, Any]:
    """Return a net's row: the true rate, its interval and curve."""
    start = time.perf_counter()
    rate = true_rate(net, family, data, journals, quick)
    return {
        "family": family,
        "net": net.name,
        "true": rate.value,
        "interval": list(rate.interval or ()),
        "curve": [[point.rate, *point.losses] for point in rate.curve],
        "warnings": list(rate.warnings),
        "seconds": time.perf_counter() - start,
    }


def main() -> None:
    """Run the benchmark and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder with train.parquet of CIFAR-10")
    parser.add_argument("--families", nargs="+", default=(), metavar="FAMILY")
    parser.add_argument("--quick", action="store_true", help="four nets of each family, 50 steps, two seeds")
    parser.add_argument("--journals", type=Path, default=JOURNALS, help="where finished runs are noted")
    parser.add_argument("--rules-only", action="store_true", help="take the true rates from the results in --out")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    nets = {(f, net.name): net for f, found in families(options.families).items() for net in found}
    if options.quick:
        nets = {key: net for key, net in nets.items() if net in families()[key[0]][:4]}
    if options.rules_only:
        earlier = json.loads((options.out / "rates.json").read_text())["rows"]
        rows = [row for row in earlier if (row["family"], row["net"]) in nets]
    else:
        data, rows = images(options.data, 25_600), []
        for (family, name), net in nets.items():
            rows.append(measured(net, family, data, options.journals, options.quick))
            print(f"{family} {name}: {rows[-1]['true']:.4g}", *rows[-1]["warnings"], flush=True)
    for row in rows:
        net = nets[row["family"], row["net"]]
        row["rules"] = {rule: predicted(net, rule, seeds=3) for rule in RULES}
    write("rates", summary(rows), rows, options.out)


if __name__ == "__main__":
    main()
