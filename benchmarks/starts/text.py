"""Language: characters of plays, reviews, and sequences to turn round."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from starts.data import BYTES, CONTEXT, WORDS, characters, reviews
from starts.task import Batch, Data, Task, Transformer, classify, next_token, windows

HEADS = 4
WIDTH, DEPTH = 64, 4
SYMBOLS, LENGTH = 16, 10
"""Of the sequences that are turned round."""


def narrow(model: nn.Module) -> None:
    """Start every weight with standard deviation .02 and every bias at 0, as GPT-2 does."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


def split(x: Tensor) -> Tensor:
    """Return heads before positions: [batch, heads, positions, width / heads]."""
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


class Attention(nn.Module):
    """Attention of a sequence to itself or to another."""

    def __init__(self, width: int, causal: bool = False, bias: bool = True) -> None:
        super().__init__()
        self.causal = causal
        self.q, self.kv = nn.Linear(width, width, bias), nn.Linear(width, 2 * width, bias)
        self.proj = nn.Linear(width, width, bias)

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        keys, values = self.kv(x if other is None else other).chunk(2, -1)
        mixed = F.scaled_dot_product_attention(split(self.q(x)), split(keys), split(values), is_causal=self.causal)
        found: Tensor = self.proj(mixed.transpose(1, 2).flatten(2))
        return found


class MLP(nn.Module):
    """Two layers with GELU between."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.down(F.gelu(self.up(x)))
        return found


class SwiGLU(nn.Module):
    """A gated pair of layers without biases (Shazeer 2020)."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, inner, False), nn.Linear(width, inner, False)
        self.down = nn.Linear(inner, width, False)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return found


class Mixture(nn.Module):
    """Four experts, of which the two that a router prefers are summed."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, 4, False)
        self.experts = nn.ModuleList(MLP(width, inner) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        shares = self.router(x).softmax(-1)
        weights = shares * (shares >= shares.topk(2, -1).values[..., -1:])
        parts = torch.stack([expert(x) for expert in self.experts], -1)
        return (parts * weights.unsqueeze(-2)).sum(-1)


class Block(nn.Module):
    """A transformer block, with norms before or after its branches."""

    def __init__(self, width: int, mlp: nn.Module, norm: type[nn.Module], causal: bool, bias: bool, post: bool) -> None:
        super().__init__()
        self.post = post
        self.norm1, self.norm2 = norm(width), norm(width)
        self.attention, self.mlp = Attention(width, causal, bias), mlp

    def forward(self, x: Tensor) -> Tensor:
        if self.post:
            x = self.norm1(x + self.attention(x))
            found: Tensor = self.norm2(x + self.mlp(x))
            return found
        x = x + self.attention(self.norm1(x))
        return x + cast(Tensor, self.mlp(self.norm2(x)))


class LanguageModel(nn.Module):
    """A causal transformer over bytes; ``kind`` says in what it departs from GPT-2 with a head of its own."""

    def __init__(self, kind: str = "untied", width: int = WIDTH, depth: int = DEPTH, context: int = CONTEXT) -> None:
        super().__init__()
        llama = kind == "llama"
        norm = nn.RMSNorm if llama else nn.LayerNorm

        def mlp() -> nn.Module:
            if llama:
                return SwiGLU(width, 8 * width // 3)
            return Mixture(width, 2 * width) if kind == "mixture" else MLP(width, 4 * width)

        self.tokens, self.positions = nn.Embedding(BYTES, width), nn.Embedding(context, width)
        blocks = (Block(width, mlp(), norm, True, not llama, kind == "post-norm") for _ in range(depth))
        self.blocks = nn.Sequential(*blocks)
        self.norm, self.head = norm(width), nn.Linear(width, BYTES, bias=False)
        if kind == "tied":
            self.head.weight = self.tokens.weight
        narrow(self)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        found: Tensor = self.head(self.norm(self.blocks(x)))
        return found


class Recurrent(nn.Module):
    """A recurrent layer over bytes."""

    def __init__(self, layer: type[nn.RNNBase]) -> None:
        super().__init__()
        self.tokens, self.layer = nn.Embedding(BYTES, 32), layer(32, 96, batch_first=True)  # type: ignore[call-arg,arg-type]
        self.head = nn.Linear(96, BYTES)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.head(self.layer(self.tokens(ids))[0])
        return found


class WaveNet(nn.Module):
    """Gated causal convolutions whose dilation doubles, with a sum of skips (van den Oord et al. 2016)."""

    def __init__(self, width: int = 48, layers: int = 6) -> None:
        super().__init__()
        self.tokens = nn.Embedding(BYTES, width)
        self.filters = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2 ** (k % 5)) for k in range(layers))
        self.back = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(layers))
        self.skips = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(layers))
        self.out = nn.Sequential(nn.ReLU(), nn.Conv1d(width, width, 1), nn.ReLU(), nn.Conv1d(width, BYTES, 1))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids).transpose(1, 2)
        told: Tensor | None = None
        for filters, back, skip in zip(self.filters, self.back, self.skips, strict=True):
            (reach,) = filters.dilation
            value, gate = filters(F.pad(x, (reach, 0))).chunk(2, 1)
            inner = torch.tanh(value) * torch.sigmoid(gate)
            x = x + back(inner)
            told = skip(inner) if told is None else told + skip(inner)
        found: Tensor = self.out(told).transpose(1, 2)
        return found


class Reviews(nn.Module):
    """A transformer of two blocks that says whether a review praises."""

    def __init__(self, width: int = 48, length: int = 96) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(WORDS, width), nn.Embedding(length, width)
        blocks = (Block(width, MLP(width, 4 * width), nn.LayerNorm, False, True, False) for _ in range(2))
        self.blocks, self.norm, self.head = nn.Sequential(*blocks), nn.LayerNorm(width), nn.Linear(width, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        found: Tensor = self.head(self.norm(self.blocks(x)).mean(1))
        return found


class ReviewConvolutions(nn.Module):
    """Convolutions over words, the largest of each channel, and a layer (Kim 2014)."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.tokens = nn.Embedding(WORDS, width)
        self.convolutions = nn.ModuleList(nn.Conv1d(width, width, size) for size in (3, 4, 5))
        self.head = nn.Linear(3 * width, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids).transpose(1, 2)
        found: Tensor = self.head(torch.cat([F.relu(part(x)).amax(-1) for part in self.convolutions], -1))
        return found


class Sorter(nn.Module):
    """A transformer of two blocks, with norms behind its branches, that says at each place what belongs there."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(SYMBOLS, width), nn.Embedding(LENGTH, width)
        blocks = (Block(width, MLP(width, 4 * width), nn.LayerNorm, False, True, True) for _ in range(2))
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(width, SYMBOLS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        found: Tensor = self.head(self.blocks(x))
        return found


class Translator(nn.Module):
    """An encoder and a decoder of two blocks each, norms before the branches."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(SYMBOLS, width), nn.Embedding(SYMBOLS + 1, width)
        self.places = nn.Embedding(LENGTH, width)
        parts = [Block(width, MLP(width, 2 * width), nn.LayerNorm, False, True, False) for _ in range(2)]
        self.encoder, self.encoded = nn.Sequential(*parts), nn.LayerNorm(width)
        self.decoder = nn.ModuleList(
            Block(width, MLP(width, 2 * width), nn.LayerNorm, True, True, False) for _ in range(2)
        )
        self.cross = nn.ModuleList(Attention(width) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, SYMBOLS)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        places = self.places(torch.arange(LENGTH, device=source.device))
        read = self.encoded(self.encoder(self.source(source) + places))
        x = self.target(target) + places
        for block, cross, norm in zip(self.decoder, self.cross, self.norms, strict=True):
            x = block(x + cross(norm(x), read))
        found: Tensor = self.head(self.norm(x))
        return found


def turned(generator: Generator) -> Batch:
    """Return sequences, what the decoder has written so far, and the sequences the other way round."""
    source = torch.randint(SYMBOLS, (24, LENGTH), generator=generator)
    target = source.flip(1)
    return source, F.pad(target[:, :-1], (1, 0), value=SYMBOLS), target


def unsorted(generator: Generator) -> Batch:
    """Return sequences, and the same in order."""
    ids = torch.randint(SYMBOLS, (48, LENGTH), generator=generator)
    return ids, ids.sort(1).values


def translate(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean cross-entropy of each place of the last tensor."""
    return F.cross_entropy(model(*batch[:-1]).flatten(0, 1), batch[-1].flatten())


def short_reviews() -> Data:
    """Return the last 96 words of reviews."""
    found = reviews()

    def cut(batch: Batch) -> Batch:
        return batch[0][:, :96], batch[1]

    return Data(lambda generator: cut(found.draw(generator)), [cut(batch) for batch in found.held])


ENDS, TABLES = ("proj.weight", "down.weight", "head.weight"), ("tokens.weight", "positions.weight")


def language(name: str, kind: str, of: str, steps: int = 130) -> Task:
    """Return the training of a language model."""
    ends = tuple(end for end in ENDS if kind != "tied" or end != "head.weight")
    return Task(
        name,
        "language",
        "aside" if of == "aside" else "chosen",
        lambda: LanguageModel(kind),
        lambda: characters(16),
        next_token,
        "adamw",
        (3e-3, 1e-2, 3e-2),
        steps,
        warmup=20,
        clip=1.0,
        transformer=Transformer(WIDTH, ends, TABLES),
        inputs=windows,
    )


def recurrent(name: str, layer: type[nn.RNNBase]) -> Task:
    """Return the training of a recurrent layer on characters."""
    rates = (3e-3, 1e-2, 3e-2)
    return Task(
        name,
        "recurrence",
        "chosen",
        lambda: Recurrent(layer),
        lambda: characters(16),
        next_token,
        "adam",
        rates,
        clip=1.0,
        inputs=windows,
    )


TASKS = (
    language("GPT", "untied", "chosen"),
    language("GPT, tied", "tied", "chosen"),
    language("GPT, post-norm", "post-norm", "chosen"),
    recurrent("LSTM, characters", nn.LSTM),
    recurrent("GRU, characters", nn.GRU),
    Task(
        "reviews, convolutions",
        "text classification",
        "chosen",
        ReviewConvolutions,
        short_reviews,
        classify,
        rates=(3e-4, 1e-3, 3e-3),
    ),
    Task(
        "sorting",
        "sequence to sequence",
        "chosen",
        Sorter,
        lambda: Data.made(unsorted),
        translate,
        steps=200,
        warmup=20,
        clip=1.0,
    ),
    language("Llama", "llama", "aside"),
    language("mixture of experts", "mixture", "aside", 100),
    Task(
        "WaveNet",
        "language",
        "aside",
        WaveNet,
        lambda: characters(8),
        next_token,
        "adam",
        (1e-3, 3e-3, 1e-2),
        250,
        inputs=windows,
    ),
    Task("reviews", "text classification", "aside", Reviews, short_reviews, classify, "adam", steps=90, warmup=10),
    Task(
        "reversal",
        "sequence to sequence",
        "aside",
        Translator,
        lambda: Data.made(turned),
        translate,
        "adam",
        steps=130,
        warmup=20,
        clip=1.0,
        inputs=lambda batch: batch[:2],
    ),
)
