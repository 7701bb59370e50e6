"""A net that tests of gradient functions build on."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Small(nn.Module):
    """Two layers with a ReLU between them, of 6 numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x)))
