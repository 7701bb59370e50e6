"""Batches of images in memory."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from experiments.data import Images


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
