"""Batches of images in memory, and their augmentation."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from experiments.data import Images


def augmented(x: Tensor) -> Tensor:
    """Return images ``[batch, 3, side, side]`` cropped at random after padding by side/8, half of them mirrored."""
    side = x.shape[-1]
    margin = side // 8
    padded = functional.pad(x, (margin,) * 4)
    top, left = torch.randint(2 * margin + 1, (2, len(x), 1, 1), device=x.device)
    rows = top + torch.arange(side, device=x.device).view(1, -1, 1)
    columns = left + torch.arange(side, device=x.device).view(1, 1, -1)
    cut = padded[torch.arange(len(x), device=x.device).view(-1, 1, 1), :, rows, columns].permute(0, 3, 1, 2)
    mirrored = torch.rand(len(x), 1, 1, 1, device=x.device) < 0.5
    return torch.where(mirrored, cut.flip(3), cut)


def seed_of(seed: int, epoch: int) -> int:
    """Return the seed of one epoch of a run, so that a run that was cut goes on as it would have."""
    return 1_000_003 * seed + epoch


class Batches:
    """Shuffled batches cut out of tensors in memory, in an order that depends on the seed and the epoch alone.

    Attributes:
        sampler: this object: Lightning tells the epoch to the sampler of what it loads from.
    """

    def __init__(self, images: Images, size: int, seed: int) -> None:
        self._images, self._size, self._seed, self._epoch = images, size, seed, 0
        self.sampler = self

    def set_epoch(self, epoch: int) -> None:
        """Go on with another order; Lightning calls it."""
        self._epoch = epoch

    def __len__(self) -> int:
        return math.ceil(len(self._images.y) / self._size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(seed_of(self._seed, self._epoch))
        for chosen in torch.randperm(len(self._images.y), generator=generator).split(self._size):
            yield self._images.x[chosen], self._images.y[chosen]
