"""What nets are trained on: images of CIFAR-10, and the bytes of a text."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from nets.growing import CONTEXT, VOCABULARY

DATASETS = Path(__file__).resolve().parents[2] / "shared" / "datasets"
DATA, TEXTS = DATASETS / "cifar10", DATASETS / "shakespeare"
SIDE = 16
"""Pixels along a side of the pooled images."""
HELD_OUT = 16
"""Batches on which the loss is taken after the last step."""


def images(folder: Path, count: int, side: int = SIDE) -> tuple[Tensor, Tensor]:
    """Return the first training images, pooled, each channel standardised, and their labels.

    Shapes ``[count, 3, side, side]`` and ``[count]``.
    """
    from PIL import Image
    from pyarrow import parquet

    table = parquet.read_table(folder / "train.parquet").slice(0, count)
    raw = [np.asarray(Image.open(io.BytesIO(cell["bytes"].as_py()))) for cell in table["img"]]
    pixels = torch.from_numpy(np.stack(raw)).permute(0, 3, 1, 2).float()
    pooled = functional.adaptive_avg_pool2d(pixels, side)
    std, mean = torch.std_mean(pooled, dim=(0, 2, 3), keepdim=True)
    return (pooled - mean) / std, torch.tensor(table["label"].to_pylist())


@dataclass(frozen=True, slots=True)
class Text:
    """The bytes of a text: nine tenths to train on, the last tenth held out."""

    train: Tensor
    test: Tensor
    size: int = 16
    chance: float = math.log(VOCABULARY)

    @classmethod
    def read(cls, folder: Path) -> Text:
        """Read the files of a folder; bytes beyond ASCII become a question mark."""
        raw = b"".join(path.read_bytes() for path in sorted(folder.glob("*.txt")))
        ids = torch.tensor([byte if byte < VOCABULARY else 63 for byte in raw])
        cut = len(ids) * 9 // 10
        return cls(ids[:cut], ids[cut:])

    def batches(self, seed: int) -> Iterator[Tensor]:
        """Yield batches of windows at random places."""
        generator = torch.Generator().manual_seed(seed)
        while True:
            starts = torch.randint(len(self.train) - CONTEXT - 1, (self.size,), generator=generator)
            yield torch.stack([self.train[start : start + CONTEXT + 1] for start in starts.tolist()])

    def held_out(self) -> list[Tensor]:
        """Return batches of windows spread over the text that is held out."""
        starts = torch.linspace(0, len(self.test) - CONTEXT - 2, HELD_OUT * self.size).long().tolist()
        windows = torch.stack([self.test[start : start + CONTEXT + 1] for start in starts])
        return list(windows.split(self.size))

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Return the mean cross-entropy of the next byte."""
        output = model(batch[:, :-1])
        logits = (output if isinstance(output, Tensor) else output.logits).flatten(0, 1).float()
        own: Any = getattr(model, "loss", functional.cross_entropy)  # u-μP scales gradients there
        found: Tensor = own(logits, batch[:, 1:].flatten())
        return found
