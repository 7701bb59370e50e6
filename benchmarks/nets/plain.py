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
    "mish": nn.Mish,
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


class Residual(nn.Module):
    """What `cnn` is, with shortcuts: blocks of two convolutions behind rectifiers, added to what enters them.

    Args:
        depth: convolutions, the first of which is no part of a block.
        width: channels.
        norms: whether a batch norm precedes each rectifier.
        classes: of the linear readout behind average pooling.
    """

    def __init__(self, depth: int, width: int = 64, norms: bool = False, classes: int = 10) -> None:
        super().__init__()
        self.into = nn.Conv2d(3, width, 3, padding=1)
        self.convs = nn.ModuleList([nn.Conv2d(width, width, 3, padding=1) for _ in range(depth - 1)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(width) if norms else nn.Identity() for _ in range(depth)])
        self.acts = nn.ModuleList([nn.ReLU() for _ in range(depth)])
        self.out = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``[batch, classes]`` of pictures ``[batch, 3, side, side]``."""
        x, h = self.into(x), None
        for index, (norm, act, conv) in enumerate(zip(self.norms, self.acts, self.convs, strict=False)):
            h = conv(act(norm(x if h is None else h)))
            if index % 2:
                x, h = x + h, None
        x = x if h is None else x + h
        logits: Tensor = self.out(self.acts[-1](self.norms[-1](x)).mean((2, 3)))
        return logits


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
