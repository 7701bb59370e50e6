"""Batches as functions of wellposed that take a loss and batches want them; the loss is the benchmarks'."""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.data import Images

Batch = tuple[Tensor, Tensor]


def device() -> str:
    """Return where nets are searched, scored and refined: the GPU where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def batches_of(images: Images, size: int, count: int, *, flat: bool = False) -> list[Batch]:
    """Return ``count`` batches of ``size`` training images, from the first on and again as often as needed.

    Images are ``[size, 3, side, side]``, or vectors where ``flat``.
    """
    chosen = (torch.arange(count * size) % len(images.x)).split(size)
    taken = ((images.x[part].to(device()), images.y[part].to(device())) for part in chosen)
    return [(x.flatten(1) if flat else x, y) for x, y in taken]
