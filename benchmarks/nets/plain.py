"""Stacks of layers without norm and without residual connections."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SplitSiLU(nn.Module):
    """``x * sigmoid(x)`` written as two operations."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "silu2": SplitSiLU,
}


def mlp(activation: str, depth: int = 50, width: int = 512) -> nn.Sequential:
    """``depth`` linear layers of equal width, each followed by the activation."""
    return nn.Sequential(*(m for _ in range(depth) for m in (nn.Linear(width, width), ACTIVATIONS[activation]())))


def cnn(activation: str, depth: int = 20, width: int = 64, classes: int = 10) -> nn.Sequential:
    """``depth`` padded 3x3 convolutions with the activation, average pooling and a linear readout."""
    layers: list[nn.Module] = []
    for i in range(depth):
        layers += [nn.Conv2d(width if i else 3, width, 3, padding=1), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


class SwiGLU(nn.Module):
    """``W3(silu(W1 x) * W2 x)`` (Shazeer 2020)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return y


def swiglu(depth: int = 8, width: int = 256) -> nn.Sequential:
    """``depth`` SwiGLU layers without norm and without residual connections."""
    return nn.Sequential(*(SwiGLU(width, 2 * width) for _ in range(depth)))
