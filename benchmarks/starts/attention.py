"""Trainings of transformers and mixers: language, pictures, sequences."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from starts.data import BYTES, CONTEXT, characters, pictures
from starts.task import Batch, Data, Task, classify, next_token, windows

WIDTH, HEADS, STD = 48, 4, 0.02


def turned(x: Tensor) -> Tensor:
    """Return queries or keys, [batch, heads, positions, features], turned by their positions (rotary)."""
    half = x.shape[-1] // 2
    speed = 10_000 ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = torch.arange(x.shape[-2], device=x.device).unsqueeze(1) * speed
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()], -1)


class Attention(nn.Module):
    """Attention of several heads."""

    def __init__(self, width: int, heads: int, causal: bool, rotary: bool, bias: bool) -> None:
        super().__init__()
        self.heads, self.causal, self.rotary = heads, causal, rotary
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=bias), nn.Linear(width, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Mix the positions of x, [batch, positions, width]."""
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        if self.rotary:
            q, k = turned(q), turned(k)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).flatten(-2))


class MLP(nn.Module):
    """Two layers with a GELU."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output, of the shape of x but for the last axis."""
        return self.down(functional.gelu(self.up(x)))


class SwiGLU(nn.Module):
    """A gated perceptron."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output, of the shape of x."""
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Mixture(nn.Module):
    """Two of four experts for each token, weighed by a router."""

    def __init__(self, width: int, hidden: int, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(MLP(width, hidden // 2) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        """Return the output, of the shape of x."""
        scores = self.router(x)
        shut = scores < scores.topk(2, -1).values[..., -1:]
        shares = scores.masked_fill(shut, -math.inf).softmax(-1)
        return sum((shares[..., [one]] * expert(x) for one, expert in enumerate(self.experts)), torch.zeros_like(x))


class Block(nn.Module):
    """A block with norms before its branches."""

    def __init__(self, width: int, heads: int, *, causal: bool, modern: bool = False, mixture: bool = False) -> None:
        super().__init__()
        norm = nn.RMSNorm if modern else nn.LayerNorm
        self.norm1, self.norm2 = norm(width), norm(width)
        self.attention = Attention(width, heads, causal, rotary=modern, bias=not modern)
        self.mlp: nn.Module
        if modern:
            self.mlp = SwiGLU(width, 8 * width // 3)
        else:
            self.mlp = Mixture(width, 4 * width) if mixture else MLP(width, 4 * width)

    def forward(self, x: Tensor) -> Tensor:
        """Return x, [batch, positions, width], with both branches added."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def gpt_start(model: nn.Module, depth: int) -> None:
    """Start as GPT-2: normal with std .02, biases 0, what closes a branch smaller by the root of their number."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            closes = name.endswith((".out", ".down"))
            nn.init.normal_(module.weight, std=STD / math.sqrt(2 * depth) if closes else STD)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)


class GPT(nn.Module):
    """A language model of bytes: GPT-2's form, or Llama's (``modern``)."""

    def __init__(
        self, width: int = WIDTH, depth: int = 4, heads: int = HEADS, context: int = CONTEXT, *,
        tied: bool = False, modern: bool = False, mixture: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.tokens = nn.Embedding(BYTES, width)
        self.places = None if modern else nn.Embedding(context, width)
        self.blocks = nn.Sequential(
            *(Block(width, heads, causal=True, modern=modern, mixture=mixture) for _ in range(depth))
        )
        self.norm = nn.RMSNorm(width) if modern else nn.LayerNorm(width)
        self.head = nn.Linear(width, BYTES, bias=False)
        gpt_start(self, depth)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits, [batch, positions, bytes]."""
        x = self.tokens(ids)
        if self.places is not None:
            x = x + self.places(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.norm(self.blocks(x)))


class ViT(nn.Module):
    """A vision transformer on patches of 4×4, with a class token."""

    def __init__(self, width: int = WIDTH, depth: int = 5) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.token, self.places = nn.Parameter(torch.zeros(1, 1, width)), nn.Parameter(torch.zeros(1, 17, width))
        self.blocks = nn.Sequential(*(Block(width, HEADS, causal=False) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=STD)
                nn.init.zeros_(module.bias)
        nn.init.trunc_normal_(self.token, std=STD)
        nn.init.trunc_normal_(self.places, std=STD)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, [batch, 10], of pictures."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])


class MixerBlock(nn.Module):
    """Perceptrons over positions and over features."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across, self.within = MLP(places, 2 * width), MLP(width, 4 * width)

    def forward(self, x: Tensor) -> Tensor:
        """Return x, [batch, positions, width], with both branches added."""
        x = x + self.across(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.norm2(x))


class Mixer(nn.Module):
    """An MLP-Mixer on patches of 4×4."""

    def __init__(self, width: int = WIDTH, depth: int = 5) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.blocks = nn.Sequential(*(MixerBlock(16, width) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, [batch, 10], of pictures."""
        x = self.blocks(self.patches(x).flatten(2).transpose(1, 2))
        return self.head(self.norm(x).mean(1))


def waves(length: int, width: int) -> Tensor:
    """Return sines and cosines of the positions, [length, width]."""
    angle = torch.arange(length).unsqueeze(1) * 10_000 ** (-torch.arange(0, width, 2) / width)
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1)


class PostNorm(nn.Module):
    """torch's encoder as a language model: norms after the sums, sines for positions, a uniform table."""

    def __init__(self, width: int = WIDTH, depth: int = 3) -> None:
        super().__init__()
        self.width = width
        self.tokens, self.head = nn.Embedding(BYTES, width), nn.Linear(width, BYTES)
        layer = nn.TransformerEncoderLayer(width, HEADS, 4 * width, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.register_buffer("places", waves(CONTEXT, width))
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))
        nn.init.uniform_(self.tokens.weight, -0.1, 0.1)
        nn.init.uniform_(self.head.weight, -0.1, 0.1)
        nn.init.zeros_(self.head.bias)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits, [batch, positions, bytes]."""
        x = self.tokens(ids) * math.sqrt(self.width) + self.places
        return self.head(self.body(x, mask=self.mask, is_causal=True))


class Translator(nn.Module):
    """torch's encoder and decoder with its own start."""

    def __init__(self, width: int = WIDTH, symbols: int = 16, length: int = 10) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(symbols, width), nn.Embedding(length + 1, width)
        self.body = nn.Transformer(width, HEADS, 2, 2, 2 * width, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, symbols)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return logits, [batch, positions, symbols], of what follows in the target."""
        places = torch.arange(target.shape[1], device=target.device)
        x, y = self.tokens(source) + self.places(places[: source.shape[1]]), self.tokens(target) + self.places(places)
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        return self.head(self.body(x, y, tgt_mask=mask, tgt_is_causal=True))


def reversals() -> Data:
    """Return sequences of ten symbols, and the same backwards after a start symbol."""

    def make(generator: Generator) -> Batch:
        source = torch.randint(1, 16, (24, 10), generator=generator)
        return source, torch.cat([torch.zeros(24, 1, dtype=torch.long), source.flip(1)], 1)

    return Data.made(make)


def translate(model: nn.Module, batch: Batch) -> Tensor:
    """Return the cross-entropy of the target's symbols."""
    logits = model(batch[0], batch[1][:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), batch[1][:, 1:].flatten())


CLOSING = (".out", ".down", "head")


def language(name: str, about: str, build: Callable[[], nn.Module], width: int | None = WIDTH) -> Task:
    """Return the training of a language model."""
    return Task(
        name, "language", about, build, characters, next_token, -7, "adamw", 200, warmup=20, clip=1.0, width=width,
        closing=CLOSING if width else (), inputs=windows,
    )  # fmt: skip


TASKS = (
    language("gpt_tied", "GPT, tied table", partial(GPT, tied=True)),
    language("llama", "Llama", partial(GPT, modern=True)),
    language("gpt", "GPT, untied", GPT),
    language("mixture", "GPT, mixture of experts", partial(GPT, depth=3, mixture=True)),
    language("post_norm", "torch's encoder, norms after sums", PostNorm, None),
    Task(
        "vit", "vision transformers", "ViT", ViT, pictures, classify, -7, "adamw", 200, warmup=20, clip=1.0,
        width=WIDTH, closing=CLOSING,
    ),
    Task(
        "mixer", "vision transformers", "MLP-Mixer", Mixer, pictures, classify, -7, "adamw", 200, warmup=20, clip=1.0,
    ),
    Task(
        "translator", "sequences", "encoder-decoder, reversal", Translator, reversals, translate, -7, steps=300,
        warmup=30, clip=1.0, inputs=lambda batch: (batch[0], batch[1][:, :-1]),
    ),
)  # fmt: skip
