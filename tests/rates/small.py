"""A small model, its loss and its batches: shared with the processes that the tests start."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

GRID = (0.01, 0.1, 0.3, 1.0, 3.0)


def model_fn() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def loss_fn(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def data(steps: int = 8, size: int = 6) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(steps, size, 4, generator=generator, dtype=torch.float64)
    return [(part, part[:, :3].argmax(1)) for part in x]
