"""Models that are hard to trace, each with example inputs: name -> () -> (model, args, kwargs)."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from tests.versions import PINNED
from torch import nn
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

Case = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
CASES: dict[str, Callable[[], Case]] = {}
REAL: set[str] = set()
"""Cases that read float values, so that only the real engine can trace them."""
DIFFERENTIATING = {"ConvolutionalForces", "Forces"}
"""Cases that call autograd in their forward."""


def case(
    *args: Any, real: bool = False, newer: bool = False, **kwargs: Any
) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Register a module class with its example inputs (callables are called anew each time).

    ``real`` where float values are read; ``newer`` where the oldest torch that the package promises cannot do it.
    """

    def register(kind: type[nn.Module]) -> type[nn.Module]:
        if newer and not PINNED:
            return kind

        def make() -> Case:
            torch.manual_seed(0)
            model = kind()
            made = tuple(arg() if callable(arg) else arg for arg in args)
            return model, made, {key: arg() if callable(arg) else arg for key, arg in kwargs.items()}

        CASES[kind.__name__] = make
        if real:
            REAL.add(kind.__name__)
        return kind

    return register


def plain(name: str, make: Callable[[], nn.Module], *args: Any, **kwargs: Any) -> None:
    """Register a model made of existing modules."""

    def build() -> Case:
        torch.manual_seed(0)
        model = make()
        made = tuple(arg() if callable(arg) else arg for arg in args)
        return model, made, {key: arg() if callable(arg) else arg for key, arg in kwargs.items()}

    CASES[name] = build


def x(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def ids(high: int, *shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randint(0, high, shape, generator=torch.Generator().manual_seed(2))


# ------------------------------------------------------------------------------------------- memory and aliasing


@case(x(4, 6))
class InplaceActivation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)
        z = y.view(2, 12)
        self.act(y)
        return z + 1


@case(x(4, 6))
class WriteThroughView(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.fc(x)
        t = y.t()
        y[:, :3] = x[:, 3:]
        first = y[0]
        first.mul_(2)
        t[5, 1:].add_(1)
        return y, t, first, y.sum()


@case(x(4, 6))
class ViewsOfViews(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)
        a, b = y.chunk(2, dim=1)
        c = b.unflatten(1, (2, 3)).transpose(1, 2)
        c.copy_(torch.ones(4, 3, 2))
        a += b
        b.zero_()
        y[1:3, ::2] = 7.0
        return y * c.sum() + a.mean()


@case(x(4, 6))
class OutVariants(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(4, 6)
        torch.mm(x, self.weight, out=out)
        half = torch.zeros(8, 6)
        torch.add(out, 1.0, out=half[2:6])
        return half


@case(x(5, 6))
class IndexPut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)
        y[[0, 2]] = 0.0
        y[torch.tensor([1, 3]), torch.tensor([0, 5])] += 2.0
        mask = torch.arange(5) > 2
        y[mask] = -1.0
        y.index_add_(0, torch.tensor([0, 0]), torch.ones(2, 6))
        return y.masked_fill_(y > 1, 1.0)


@case(x(4, 6))
class InputWritten(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)
        x.add_(1)
        return y + x


@case(x(4, 6))
class StridedBase(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x).t().clone(memory_format=torch.preserve_format)
        y[1:3, :2] = 3.0
        y.diagonal().fill_(0.5)
        torch.as_strided(y, (2, 2), (1, 4), 3).sub_(9.0)
        return y


@case(x(2, 3, 8, 8))
class ChannelsLast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x.to(memory_format=torch.channels_last))
        y[:, 1, 2:4] = 1.0
        return y.permute(0, 2, 3, 1).reshape(2, -1)


@case(x(4, 6))
class ForeachAndSplit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)
        parts = list(y.split([2, 4], dim=1))
        torch._foreach_add_(parts, 1.0)
        torch._foreach_mul_(parts, [2.0, 3.0])
        return y


@case(x(4, 8))
class ComplexViews(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x).view(4, 4, 2)
        z = torch.view_as_complex(y)
        z.mul_(torch.polar(torch.ones(4), torch.arange(4.0)))
        return y.flatten(1) + torch.fft.irfft(torch.fft.rfft(x, dim=1), n=8, dim=1)


@case(x(4, 6))
class DetachAndData(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)
        y.detach()[0].add_(1.0)
        y.data[:, 1] = 4.0
        return y * y.detach().clone()


@case(x(2, 6))
class ExpandedAndBroadcast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.token.expand(2, -1, -1)
        y = torch.cat([tokens, x.unsqueeze(1)], dim=1)
        a, b = torch.broadcast_tensors(y, x[:, None])
        c, d = torch.meshgrid(x[0], x[1], indexing="ij")
        return (a * b).sum() + (c - d)


# ------------------------------------------------------------------------------------------- values read in Python


@case(ids(20, 2, 7))
class MaskFromIds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.fc = nn.Linear(8, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        mask = ids != 0
        h = self.embed(ids)
        if not mask.all():
            h = h.masked_fill(~mask[..., None], 0.0)
        longest = int(mask.sum(1).max())
        causal = torch.full((longest, longest), float("-inf")).triu(1)
        scores = h[:, :longest] @ h[:, :longest].transpose(1, 2) + causal
        return self.fc(scores.softmax(-1) @ h[:, :longest])


@case(ids(20, 3, 5))
class DataDependentShapes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        unique, inverse = torch.unique(ids, return_inverse=True)
        h = self.embed(unique)[inverse]
        rows = torch.nonzero(ids > 10)
        picked = h[ids > 10]
        lengths = [len(row.tolist()) for row in ids]
        counts = ids.flatten().bincount(minlength=20).numpy().tolist()
        total = sum(lengths) + counts[0]
        return h * total, picked, rows.float(), F.one_hot(ids).float()


@case(x(4, 6), real=True)
class BranchOnFloat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.register_buffer("calls", torch.zeros(1))
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        y = self.drop(self.fc(x))
        return y * 2 if y.abs().max() > 1e-3 else y


@case(x(6, 8), real=True)
class SparseExperts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            rows, slots = torch.where(chosen == index)
            out.index_add_(0, rows, expert(x[rows]) * weights[rows, slots, None])
        return out


@case(x(6, 8))
class DenseExperts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.up = nn.Parameter(torch.randn(4, 8, 16))
        self.down = nn.Parameter(torch.randn(4, 16, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2)
        dense = torch.zeros(6, 4).scatter(1, chosen, weights)
        hidden = torch.einsum("nd,edh->neh", x, self.up).relu()
        return torch.einsum("neh,ehd,ne->nd", hidden, self.down, dense)


@case(x(5, 6))
class RandomBranch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            if self.training and torch.rand([]) < 0.5:
                continue
            x = layer(x)
        keep = x.new_empty(5, 1).bernoulli_(0.5) if self.training else torch.ones(5, 1)
        return x * keep + torch.randn_like(x) * float(self.training)


@case(x(4, 6))
class Constants(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.table = torch.linspace(0, 1, 12).view(2, 6)
        self.register_buffer("scale", torch.tensor([1.0, 2, 3, 4, 5, 6]), persistent=False)
        self.steps = torch.zeros((), dtype=torch.long)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        y = self.fc(x) * self.table[1] + self.table.t()[2].sum()
        y = y + torch.tensor([1.0, 2, 3, 4, 5, 6], device=x.device)
        y = y + x.new_tensor([0.5]) + torch.as_tensor([[1.0]], dtype=x.dtype, device=x.device)
        return y * self.scale + math.log(float(self.scale.sum())) + int(self.steps)


@case(x(4, 6))
class BufferWritten(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("history", torch.zeros(3, 6))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.fc = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.history[int(self.count) % 3] = self.fc(x).mean(0)
        self.cache = self.history.clone()
        return x + self.history.sum(0)


# ------------------------------------------------------------------------------------------- parameters


@case(ids(20, 2, 5))
class TiedEmbedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(ids))


@case(x(4, 6))
class CalledTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        self.again = self.shared

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.again(self.shared(x))


@case(x(4, 6))
class RawParameters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(6, 5))
        self.many = nn.ParameterList([torch.randn(5, 5) for _ in range(2)])
        self.named = nn.ParameterDict({"b": torch.randn(5)})
        self.never = nn.Parameter(torch.randn(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x @ self.a
        for weight in self.many:
            y = torch.einsum("bi,io->bo", y, weight.softmax(0)) + self.named["b"]
        y.sin()
        return y


plain("WeightNormOld", lambda: nn.Sequential(_old_weight_norm(nn.Linear(6, 6)), nn.ReLU()), x(4, 6))
plain("WeightNorm", lambda: nn.Sequential(parametrizations.weight_norm(nn.Conv1d(6, 6, 3)), nn.ReLU()), x(4, 6, 9))
plain("SpectralNorm", lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(6, 5)), nn.ReLU()), x(4, 6))
plain("SpectralNormOld", lambda: nn.Sequential(nn.utils.spectral_norm(nn.Linear(6, 5)), nn.ReLU()), x(4, 6))
plain("Orthogonal", lambda: parametrizations.orthogonal(nn.Linear(6, 6)), x(4, 6))


def _old_weight_norm(module: nn.Module) -> nn.Module:
    """The hook-based weight_norm, without its deprecation warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.utils.weight_norm(module)


@case(x(4, 6))
class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Dropout(0.5))
        self.two = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(self.one, x, use_reentrant=False)
        return checkpoint(self.two, x, use_reentrant=False)


@case(x(4, 6))
class CustomFunction(nn.Module):
    class Straight(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x.round()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            return self.Straight.apply(self.fc(x))


@case(x(4, 6))
class ViewOfParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(18, 6))
        self.held = [self.weight]
        self.part = self.weight.detach()[:6]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, _ = self.weight.chunk(3)
        return F.linear(x, q) @ F.linear(x, k).t() @ F.linear(x, self.held[0][12:]) + F.linear(x, self.part)


# ------------------------------------------------------------------------------------------- modules of torch

plain("Lstm", lambda: nn.LSTM(6, 8, num_layers=2, bidirectional=True, batch_first=True, dropout=0.3), x(3, 5, 6))
plain("LstmProjected", lambda: nn.LSTM(6, 8, proj_size=4), x(5, 3, 6))
plain("Gru", lambda: nn.GRU(6, 8), x(5, 3, 6), x(1, 3, 8))
plain("Rnn", lambda: nn.RNN(6, 8, nonlinearity="relu"), x(5, 3, 6))
plain("LstmCell", lambda: nn.LSTMCell(6, 8), x(3, 6))
plain("MultiheadAttention", lambda: nn.MultiheadAttention(8, 2, batch_first=True), x(3, 5, 8), x(3, 5, 8), x(3, 5, 8))
plain(
    "TransformerEncoder",
    lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2),
    x(3, 5, 8),
    src_key_padding_mask=lambda: torch.tensor([[0, 0, 0, 0, 1]] * 3, dtype=torch.bool),
)
plain("Transformer", lambda: nn.Transformer(8, 2, 1, 1, 16, batch_first=True), x(3, 5, 8), x(3, 4, 8))
plain(
    "Norms",
    lambda: nn.Sequential(
        nn.Conv2d(4, 8, 3, padding="same"),
        nn.BatchNorm2d(8),
        nn.GroupNorm(2, 8),
        nn.InstanceNorm2d(8, affine=True, track_running_stats=True),
        nn.LocalResponseNorm(2),
        nn.PReLU(8),
        nn.Dropout2d(0.2),
        nn.AlphaDropout(0.1),
        nn.FractionalMaxPool2d(2, output_size=5),
        nn.AdaptiveMaxPool2d(3),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.PixelShuffle(2),
        nn.ConvTranspose2d(2, 3, 2),
        nn.ReflectionPad2d(1),
        nn.Flatten(),
        nn.RMSNorm(3 * 15 * 15),
        nn.Softmax(dim=-1),
    ),
    x(2, 4, 9, 9),
)
plain("EmbeddingBag", lambda: nn.EmbeddingBag(10, 4, mode="mean"), ids(10, 3, 5))


@case(x(3, 5, 6), lambda: torch.tensor([5, 3, 2]))
class PackedSequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(6, 4, batch_first=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        out, _ = self.rnn(packed)
        return nn.utils.rnn.pad_packed_sequence(out, batch_first=True)[0]


# ------------------------------------------------------------------------------------------- structures


@dataclass
class Batch:
    ids: torch.Tensor
    features: torch.Tensor
    name: str = "batch"


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


@case(
    lambda: Batch(torch.tensor([[1, 2, 3]]), torch.ones(1, 3, 4)),
    lambda: {"a": [torch.ones(4), (torch.zeros(4),)]},
    pair=lambda: Pair(torch.ones(4), torch.ones(4)),
    flag=True,
    nothing=None,
)
class Structures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)

    def forward(self, batch: Batch, tree: Any, pair: Pair, flag: bool, nothing: None) -> dict[str, Any]:
        assert flag
        assert nothing is None
        h = self.embed(batch.ids) * batch.features + tree["a"][0] + tree["a"][1][0] + pair.first
        return {"hidden": h, "all": [h.sum(), (pair, Batch(batch.ids, h))], "text": "x"}


@case(x(4, 6), x(4, 6))
class AutocastAndCasts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6).double()
        self.narrow = nn.Linear(6, 6).bfloat16()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = self.fc(x.double()).float()
        return (self.narrow(y.to(torch.bfloat16)).type_as(z) + z).to("cpu", non_blocking=True)


@case(x(2, 5, 8))
class RotaryAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)
        self.register_buffer("frequencies", 1.0 / 10000 ** (torch.arange(0, 4, 2) / 4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).view(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
        angle = torch.outer(torch.arange(5, device=x.device).float(), self.frequencies).repeat(1, 2)
        cos, sin = angle.cos(), angle.sin()
        turn = lambda t: t * cos + torch.cat([-t[..., 2:], t[..., :2]], -1) * sin  # noqa: E731
        a = F.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True)
        return self.out(a.transpose(1, 2).flatten(2))


@case(x(2, 6))
class FunctionalModule(nn.Module):
    """Modules made in forward, modules held in plain lists, vmap and scripted functions."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.act = [nn.SiLU()]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.Softmax(dim=-1)(self.act[0](self.fc(x)))
        return torch.vmap(lambda row: row * row.sum())(y)


# ------------------------------------------------------------------------------------------- gradients and transforms


@case(x(4, 3))
class Forces(nn.Module):
    """Differentiates in its own forward."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(3, 8)
        self.out = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.detach().requires_grad_(True)
        with torch.enable_grad():
            energy = self.out(torch.tanh(self.hidden(x))).sum()
            (force,) = torch.autograd.grad(energy, x, create_graph=True)
        return energy, force


@case(x(2, 3, 8, 8))
class ConvolutionalForces(nn.Module):
    """Differentiates through operators that autograd takes apart."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 4, 3, stride=2, padding=1),
            nn.SiLU(),
            nn.ConvTranspose2d(4, 6, 4, stride=2, padding=1, groups=2),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(24, 3),
            nn.LogSoftmax(dim=-1),
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.detach().requires_grad_(True)
        with torch.enable_grad():
            energy = self.net(x)[:, 0]
            (force,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
        return energy, force


@case(x(4, 3), newer=True)  # elsewhere torch.func.grad returns zeros in inference mode
class FunctionalTransforms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.weight = nn.Parameter(torch.randn(3, 3))
        self.inner = [nn.Linear(3, 3, bias=False)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        slopes = torch.vmap(torch.func.grad(lambda row: self.fc(row).sin().sum()))(x)
        swapped = torch.func.functional_call(self.inner[0], {"weight": self.weight}, (slopes,))
        return torch.cond(x.shape[0] > 2, lambda a: self.fc(a), lambda a: a, (swapped,))


@case(x(2, 16, 16), newer=True)  # elsewhere flex_attention cannot be seen by a dispatch mode
class FlexibleAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).view(2, 16, 3, 2, 8).permute(2, 0, 3, 1, 4)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + (i - j))


@case(x(4, 6))
class ClampedWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.fc.weight.data.clamp_(-0.01, 0.01)
        return self.fc(x)


@case(x(4, 6))
class DataReplaced(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)
        z = torch.zeros_like(y)
        z.data = y * 2
        return z + 1


def _scripted(compile: Callable[[nn.Module], nn.Module]) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return compile(nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2)))


plain("Scripted", lambda: _scripted(torch.jit.script), x(4, 6))
plain("JitTraced", lambda: _scripted(lambda model: torch.jit.trace(model, torch.ones(4, 6))), x(4, 6))
plain("SymbolicallyTraced", lambda: _scripted(torch.fx.symbolic_trace), x(4, 6))


@case(lambda: torch.eye(5).to_sparse(), x(5, 6), real=True)
class SparseInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 4)

    def forward(self, adjacency: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.sparse.mm(adjacency, self.fc(x)).relu()


@case(x(4, 6), lambda: torch.zeros(3, dtype=torch.long), real=True)
class IntegersWritten(nn.Module):
    """Reads a float, and counts in a tensor of the user's."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        before = counts + 1
        counts[1] += 4
        y = self.fc(x)
        return y * counts.sum() + before.sum() if float(y.sum()) < 1e9 else y


@case(x(4, 6))
class Sampling(nn.Module):
    """A variational bottleneck: torch.distributions checks its parameters' values."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Linear(6, 3)
        self.scale = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.distributions.Normal(self.mean(x), F.softplus(self.scale(x))).rsample()


@case(x(4, 6))
class IntegerLoop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        step = torch.tensor(0)
        while step < 3:
            x = F.gumbel_softmax(self.fc(x), hard=True)
            step += 1
        return x[torch.randperm(4)] * random.random()
