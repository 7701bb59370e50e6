"""The search for a base learning rate as one vectorised ensemble, against the same grid trained one by one.

    python benchmarks/search.py [--data ../shared/datasets/cifar10]

CPU time of one thread, for 16 rates and 3 draws of the weights; both searches give the same answer. Images either lie
in memory, or are decoded by a ``DataLoader``, as data sets on a disk are. Reading the data takes pyarrow and Pillow.
"""

from __future__ import annotations

import argparse
import io
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from common import RESULTS, cross_entropy, markdown, write
from training_data import DATA, images
from wellposed.rates.find import find_max_lr

STEPS = 40
COLUMNS = {
    "net": "net",
    "batches": "batches",
    "together": "together (CPU s)",
    "one_by_one": "one by one (CPU s)",
    "ratio": "one by one / together",
    "difference": "difference of the answers (octaves)",
    "how": "find_max_lr by itself trains",
}


class Pictures(Dataset[Any]):
    """Images that are decoded when they are asked for: flat tensors ``[3072]`` in [-1, 1], and labels."""

    def __init__(self, folder: Path, count: int) -> None:
        from pyarrow import parquet

        table = parquet.read_table(folder / "train.parquet").slice(0, count)
        self.cells = [cell["bytes"].as_py() for cell in table["img"]]
        self.labels = table["label"].to_pylist()

    def __len__(self) -> int:
        return len(self.cells)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        from PIL import Image

        pixels = np.asarray(Image.open(io.BytesIO(self.cells[index])).reduce(2), dtype=np.float32)
        return torch.from_numpy(pixels / 127.5 - 1).permute(2, 0, 1), self.labels[index]


def perceptron(width: int, layers: int) -> nn.Module:
    """Return a perceptron on flat images."""
    sizes = [3 * 16 * 16, *[width] * layers]
    hidden = [part for i in range(layers) for part in (nn.Linear(sizes[i], sizes[i + 1]), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(width, 10))


def convolutional(width: int) -> nn.Module:
    """Return a small convolutional net with batch norm."""
    channels = [3, width, width]
    parts = [
        part
        for i in range(2)
        for part in (nn.Conv2d(channels[i], channels[i + 1], 3, stride=2), nn.BatchNorm2d(width), nn.ReLU())
    ]
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(width * 9, 10))


@dataclass(frozen=True, slots=True)
class Case:
    """One search: a model, and its batches."""

    net: str
    batches: str
    build: Callable[[], nn.Module]
    read: Iterable[Any]


def cases(folder: Path) -> list[Case]:
    """Return the searches that are timed."""
    x, y = images(folder, 128 * STEPS)

    def memory(size: int) -> list[tuple[Tensor, Tensor]]:
        return list(zip(x.split(size), y.split(size), strict=True))[:STEPS]

    decoded = DataLoader(Pictures(folder, 128 * STEPS), batch_size=128, shuffle=True)
    small, usual, large = (lambda w=w: perceptron(w, 3) for w in (16, 64, 128))
    return [
        Case("perceptron 3×16", "32 in memory", small, memory(32)),
        Case("perceptron 3×64", "32 in memory", usual, memory(32)),
        Case("perceptron 3×64", "128 in memory", usual, memory(128)),
        Case("perceptron 3×128", "128 in memory", large, memory(128)),
        Case("CNN 2×8, batch norm", "32 in memory", lambda: convolutional(8), memory(32)),
        Case("perceptron 3×64", "128 decoded by the loader", usual, decoded),
        Case("CNN 2×8, batch norm", "128 decoded by the loader", lambda: convolutional(8), decoded),
    ]


def timed(case: Case, vectorize: bool | None) -> tuple[float, float, str]:
    """Return CPU seconds, the rate that is found, and how it was."""
    start = time.process_time()
    rate = find_max_lr(
        case.build,
        cross_entropy,
        case.read,
        steps=STEPS,
        vectorize=vectorize,
        schedule="constant",
        progress=False,
        widen=0,
    )
    return time.process_time() - start, rate.value, "one by one" if "one by one" in rate.reason else "together"


def main() -> None:
    """Run the benchmark and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder with train.parquet of CIFAR-10")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows = []
    timed(cases(options.data)[0], True)  # loads what the first search needs
    for case in cases(options.data):
        (together, first, _), (alone, second, _) = timed(case, True), timed(case, False)
        rows.append(
            {
                "net": case.net,
                "batches": case.batches,
                "together": together,
                "one_by_one": alone,
                "ratio": alone / together,
                "difference": abs(math.log2(first / second)),
                "how": timed(case, None)[2],
            }
        )
        print(markdown(rows[-1:], COLUMNS).splitlines()[-1], flush=True)
    told = f"{STEPS} steps of SGD at 16 rates from 3 draws of the weights."
    write("search", f"{told}\n\n{markdown(rows, COLUMNS)}", rows, options.out)


if __name__ == "__main__":
    main()
