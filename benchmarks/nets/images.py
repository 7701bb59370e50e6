"""Convolutional nets for CIFAR: All-CNN-C, and pre-activation ResNets with or without BN."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn


def all_cnn_c(
    classes: int = 10,
    activation: Callable[[], nn.Module] = nn.ReLU,
    dropout: tuple[float, float, float] = (0.2, 0.5, 0.5),
    width: int = 96,
) -> nn.Sequential:
    """All-CNN-C (Springenberg et al. 2014, table 1), with its dropout of the input and after the first two stages."""

    def conv(c_in: int, c_out: int, kernel: int = 3, stride: int = 1, padding: int = 1) -> list[nn.Module]:
        return [nn.Conv2d(c_in, c_out, kernel, stride, padding), activation()]

    return nn.Sequential(
        nn.Dropout(dropout[0]),
        *conv(3, width),
        *conv(width, width),
        *conv(width, width, stride=2),
        nn.Dropout(dropout[1]),
        *conv(width, 2 * width),
        *conv(2 * width, 2 * width),
        *conv(2 * width, 2 * width, stride=2),
        nn.Dropout(dropout[2]),
        *conv(2 * width, 2 * width, padding=0),
        *conv(2 * width, 2 * width, kernel=1, padding=0),
        *conv(2 * width, classes, kernel=1, padding=0),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


def norm2d(channels: int, bn: bool) -> nn.Module:
    """Batch norm, or nothing."""
    return nn.BatchNorm2d(channels) if bn else nn.Identity()


class PreActBlock(nn.Module):
    """Pre-activation residual block (He et al. 2016): two 3x3 convolutions, or 1x1, 3x3, 1x1 as a bottleneck.

    Where the shape changes, a 1x1 convolution of the first activation is the shortcut.
    """

    def __init__(self, c_in: int, width: int, stride: int, bottleneck: bool, bn: bool) -> None:
        super().__init__()
        c_out = 4 * width if bottleneck else width
        kernels = (1, 3, 1) if bottleneck else (3, 3)
        channels = (c_in, *[width] * (len(kernels) - 1), c_out)
        strided = kernels.index(3)
        self.norms = nn.ModuleList(norm2d(c, bn) for c in channels[:-1])
        self.convs = nn.ModuleList(
            nn.Conv2d(channels[i], channels[i + 1], k, stride if i == strided else 1, k // 2, bias=False)
            for i, k in enumerate(kernels)
        )
        same = stride == 1 and c_in == c_out
        self.shortcut = None if same else nn.Conv2d(c_in, c_out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        first = F.relu(self.norms[0](x))
        y: Tensor = self.convs[0](first)
        for norm, conv in zip(self.norms[1:], self.convs[1:], strict=True):
            y = conv(F.relu(norm(y)))
        return y + (x if self.shortcut is None else self.shortcut(first))


def preact_resnet(
    depth: int,
    width: int = 16,
    bn: bool = True,
    bottleneck: bool | None = None,
    classes: int = 10,
    stem: int | None = None,
) -> nn.Sequential:
    """Pre-activation ResNet for CIFAR; ``depth`` = 6n+2 (basic blocks) or 9n+2 (bottlenecks, the default from 164
    on). ``stem`` is the number of channels before the first block, where it is not ``width``."""
    bottleneck = depth >= 164 if bottleneck is None else bottleneck
    per_block = 9 if bottleneck else 6
    if (depth - 2) % per_block:
        raise ValueError(f"depth {depth} is not {per_block}n+2")
    stem = stem or width
    blocks, c_in = [], stem
    for stage in range(3):
        stage_width = width * 2**stage
        for i in range((depth - 2) // per_block):
            blocks.append(PreActBlock(c_in, stage_width, 2 if stage and not i else 1, bottleneck, bn))
            c_in = stage_width * (4 if bottleneck else 1)
    head = [norm2d(c_in, bn), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c_in, classes)]
    return nn.Sequential(nn.Conv2d(3, stem, 3, padding=1, bias=False), *blocks, *head)
