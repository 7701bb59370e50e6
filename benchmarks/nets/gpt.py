"""A small GPT."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GPTBlock(nn.Module):
    """Pre-LN transformer block with a fused projection and causal attention (Radford et al. 2019)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, tokens, width))
        y: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return y


class GPT(nn.Module):
    """A small GPT-2: token and learned position embeddings, pre-LN blocks, untied readout."""

    def __init__(
        self, vocabulary: int = 1000, context: int = 64, width: int = 192, depth: int = 8, heads: int = 3
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(GPTBlock(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits
