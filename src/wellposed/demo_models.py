"""Two small networks in plain PyTorch, so that the demonstration runs without any model library."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions with batch norm beside a shortcut (He et al. 2015, figure 2)."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.conv1: nn.Conv2d = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.norm1: nn.BatchNorm2d = nn.BatchNorm2d(channels_out)
        self.conv2: nn.Conv2d = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.norm2: nn.BatchNorm2d = nn.BatchNorm2d(channels_out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[batch, channels_in, height, width]`` to ``[batch, channels_out, height / stride, width / stride]``."""
        y = functional.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return functional.relu(y + self.shortcut(x))


class SmallResNet(nn.Module):
    """A residual network for 32×32 images: a stem, three stages of blocks, global average pooling, a classifier."""

    def __init__(self, blocks: int = 3, width: int = 16, classes: int = 10) -> None:
        super().__init__()
        self.stem: nn.Conv2d = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm: nn.BatchNorm2d = nn.BatchNorm2d(width)
        stages = []
        channels = width
        for stage in range(3):
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                stages.append(ResidualBlock(channels, width * 2**stage, stride))
                channels = width * 2**stage
        self.blocks: nn.Sequential = nn.Sequential(*stages)
        self.head: nn.Linear = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map images ``[batch, 3, height, width]`` to logits ``[batch, classes]``."""
        x = functional.relu(self.norm(self.stem(images)))
        x = self.blocks(x)
        logits: Tensor = self.head(x.mean(dim=(2, 3)))
        return logits


class DecoderBlock(nn.Module):
    """Causal self-attention and a GELU network, each after a layer norm and beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1: nn.LayerNorm = nn.LayerNorm(width)
        self.qkv: nn.Linear = nn.Linear(width, 3 * width)
        self.project: nn.Linear = nn.Linear(width, width)
        self.norm2: nn.LayerNorm = nn.LayerNorm(width)
        self.expand: nn.Linear = nn.Linear(width, 4 * width)
        self.contract: nn.Linear = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[batch, time, width]`` to the same shape."""
        queries, keys, values = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).flatten(-2))
        output: Tensor = x + self.contract(functional.gelu(self.expand(self.norm2(x))))
        return output


class SmallGPT(nn.Module):
    """A decoder-only transformer with learned positions (Radford et al. 2019)."""

    def __init__(self, vocabulary: int = 1000, context: int = 64, width: int = 128, depth: int = 6) -> None:
        super().__init__()
        self.tokens: nn.Embedding = nn.Embedding(vocabulary, width)
        self.positions: nn.Embedding = nn.Embedding(context, width)
        self.blocks: nn.ModuleList = nn.ModuleList(DecoderBlock(width, heads=4) for _ in range(depth))
        self.norm: nn.LayerNorm = nn.LayerNorm(width)
        self.head: nn.Linear = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map token ids ``[batch, time]`` to logits ``[batch, time, vocabulary]``."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[-1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def small_resnet() -> tuple[nn.Module, tuple[Tensor]]:
    """Return a ResNet-20 for 32×32 images and a batch of eight."""
    return SmallResNet(), (torch.zeros(8, 3, 32, 32),)


def small_gpt() -> tuple[nn.Module, tuple[Tensor]]:
    """Return a GPT of six blocks and four sequences of 64 tokens."""
    tokens = torch.randint(0, 1000, (4, 64), generator=torch.Generator().manual_seed(0))
    return SmallGPT(), (tokens,)
