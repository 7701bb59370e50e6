"""Layers of many kinds, for nets that are composed of them at random: (samples, tokens, features) in and out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TOKENS, HEADS = 16, 4
KINDS: dict[str, Callable[[int], nn.Module]] = {}
"""By name, what makes a layer of a width."""


class Layer(nn.Module):
    """A function of itself and of a signal, and the modules and parameters that it names."""

    def __init__(self, function_: Callable[[Any, Tensor], Tensor], **parts: nn.Module | nn.Parameter | Tensor) -> None:
        super().__init__()
        self.function_ = function_
        for name, part in parts.items():
            if isinstance(part, (nn.Module, nn.Parameter)):
                setattr(self, name, part)
            else:
                self.register_buffer(name, part)

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of the signal."""
        return self.function_(self, x)


def kind(make: Callable[[int], nn.Module]) -> Callable[[int], nn.Module]:
    """Enter a maker of layers under its name."""
    KINDS[make.__name__.replace("_", " ").strip()] = make
    return make


def linear(width: int, out: int | None = None, bias: bool = True) -> nn.Linear:
    return nn.Linear(width, width if out is None else out, bias=bias)


def split(x: Tensor, heads: int = HEADS) -> Tensor:
    """Return tokens by head: (samples, heads, tokens, features)."""
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def joined(x: Tensor) -> Tensor:
    """Return the features of all heads beside each other."""
    return x.transpose(1, 2).flatten(2)


def distances() -> Tensor:
    place = torch.arange(TOKENS)
    return place[:, None] - place


def perceptron(width: int, activation: type[nn.Module] = nn.GELU) -> nn.Sequential:
    return nn.Sequential(linear(width, 2 * width), activation(), linear(2 * width, width))


def attending(width: int, mix: Callable[[Any, Tensor, Tensor, Tensor], Tensor], **parts: Any) -> Layer:
    """Return a layer of heads that mixes values by queries and keys."""

    def run(me: Any, x: Tensor) -> Tensor:
        return me.out(joined(mix(me, *(split(each) for each in me.made(x).chunk(3, -1)))))

    return Layer(run, made=linear(width, 3 * width), out=linear(width), **parts)


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])


# --- attention -------------------------------------------------------------------------------------------------------


@kind
def attention(width: int) -> nn.Module:
    return attending(width, lambda me, q, k, v: F.scaled_dot_product_attention(q, k, v))


@kind
def causal_attention(width: int) -> nn.Module:
    return attending(width, lambda me, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True))


@kind
def normed_queries(width: int) -> nn.Module:
    def mix(me: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ((F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-1, -2)) * me.scale.exp()).softmax(-1) @ v

    return attending(width, mix, scale=nn.Parameter(torch.tensor(2.0)))


@kind
def linear_attention(width: int) -> nn.Module:
    def mix(me: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = F.elu(q) + 1, F.elu(k) + 1
        return q @ (k.transpose(-1, -2) @ v) / (q @ k.sum(-2).unsqueeze(-1) + 1e-6)

    return attending(width, mix)


@kind
def relative_bias(width: int) -> nn.Module:
    def mix(me: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (scores(q, k) + me.bias[distances() + TOKENS].permute(2, 0, 1)).softmax(-1) @ v

    return attending(width, mix, bias=nn.Parameter(torch.randn(2 * TOKENS, HEADS) * 0.02))


@kind
def linear_bias(width: int) -> nn.Module:
    slopes = 2.0 ** -(2 * torch.arange(1, HEADS + 1.0))[:, None, None]
    return attending(width, lambda me, q, k, v: (scores(q, k) - distances().abs() * slopes).softmax(-1) @ v)


@kind
def window_attention(width: int) -> nn.Module:
    far = distances().abs() > 2
    return attending(width, lambda me, q, k, v: scores(q, k).masked_fill(far, -math.inf).softmax(-1) @ v)


@kind
def sparse_attention(width: int) -> nn.Module:
    def mix(me: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found = scores(q, k)
        return found.masked_fill(found < found.topk(4, -1).values[..., -1:], -1e9).softmax(-1) @ v

    return attending(width, mix)


@kind
def rotary_attention(width: int) -> nn.Module:
    size = width // HEADS
    angle = torch.arange(TOKENS)[:, None] * 10000 ** (-torch.arange(0, size, 2) / size)

    def turned(x: Tensor) -> Tensor:
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), -1).flatten(-2)

    return attending(width, lambda me, q, k, v: F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True))


@kind
def talking_heads(width: int) -> nn.Module:
    def mix(me: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mixed = torch.einsum("bhqk,hg->bgqk", scores(q, k), me.before).softmax(-1)
        return torch.einsum("bhqk,hg->bgqk", mixed, me.after) @ v

    before, after = (nn.Parameter(torch.randn(HEADS, HEADS) * 0.5) for _ in range(2))
    return attending(width, mix, before=before, after=after)


@kind
def differential_attention(width: int) -> nn.Module:
    def run(me: Any, x: Tensor) -> Tensor:
        q, k, r, s, v = (split(each) for each in me.made(x).chunk(5, -1))
        return me.out(joined((scores(q, k).softmax(-1) - me.part * scores(r, s).softmax(-1)) @ v))

    return Layer(run, made=linear(width, 5 * width), out=linear(width), part=nn.Parameter(torch.tensor(0.5)))


@kind
def grouped_queries(width: int) -> nn.Module:
    def run(me: Any, x: Tensor) -> Tensor:
        k, v = (split(each, 2).repeat_interleave(2, 1) for each in me.pairs(x).chunk(2, -1))
        return me.out(joined(F.scaled_dot_product_attention(split(me.queries(x)), k, v)))

    return Layer(run, queries=linear(width), pairs=linear(width), out=linear(width))


@kind
def latent_attention(width: int) -> nn.Module:
    def run(me: Any, x: Tensor) -> Tensor:
        q = split(me.queries(me.norm_q(me.low_q(x))))
        k, v = (split(each) for each in me.pairs(me.norm_k(me.low_k(x))).chunk(2, -1))
        return me.out(joined(F.scaled_dot_product_attention(q, k, v, is_causal=True)))

    half, quarter = width // 2, width // 4
    return Layer(
        run, low_q=linear(width, half), norm_q=nn.RMSNorm(half), queries=linear(half, width),
        low_k=linear(width, quarter), norm_k=nn.RMSNorm(quarter), pairs=linear(quarter, 2 * width), out=linear(width),
    )  # fmt: skip


@kind
def latent_tokens(width: int) -> nn.Module:
    def run(me: Any, x: Tensor) -> Tensor:
        few = me.into(me.tokens.expand(len(x), -1, -1), x, x, need_weights=False)[0]
        few = few + me.between(few)
        return me.back(x, few, few, need_weights=False)[0]

    into, back = (nn.MultiheadAttention(width, HEADS, batch_first=True) for _ in range(2))
    return Layer(
        run, tokens=nn.Parameter(torch.randn(8, width) * 0.02), into=into, back=back, between=perceptron(width)
    )


@kind
def slots(width: int) -> nn.Module:
    def run(me: Any, x: Tensor) -> Tensor:
        found = me.slots.expand(len(x), -1, -1)
        for _ in range(2):
            share = (me.keys(x) @ me.queries(found).transpose(1, 2) * width**-0.5).softmax(-1)
            share = share / (share.sum(1, keepdim=True) + 1e-6)
            met = share.transpose(1, 2) @ me.values(x)
            found = me.cell(met.flatten(0, 1), found.flatten(0, 1)).view(found.shape)
        return x + me.out(found.mean(1, keepdim=True))

    layers = {name: linear(width) for name in ("queries", "keys", "values", "out")}
    return Layer(run, slots=nn.Parameter(torch.randn(4, width)), cell=nn.GRUCell(width, width), **layers)


@kind
def balanced_matching(width: int) -> nn.Module:
    def run(me: Any, x: Tensor) -> Tensor:
        log = me.queries(x) @ me.keys(x).transpose(1, 2) * width**-0.5
        for _ in range(3):
            log = log - log.logsumexp(-1, keepdim=True)
            log = log - log.logsumexp(-2, keepdim=True)
        return log.exp() @ me.values(x)

    return Layer(run, **{name: linear(width) for name in ("queries", "keys", "values")})


@kind
def graph_attention(width: int) -> nn.Module:
    def run(me: Any, x: Tensor) -> Tensor:
        sent = me.sent(x)
        edges = F.leaky_relu(sent[:, :, None] + me.met(x)[:, None], 0.2) @ me.weigh
        return edges.softmax(-1) @ sent

    return Layer(run, sent=linear(width), met=linear(width), weigh=nn.Parameter(torch.randn(width) / width**0.5))


@kind
def pooled_attention(width: int) -> nn.Module:
    def run(me: Any, x: Tensor) -> Tensor:
        share = me.score(torch.tanh(me.first(x))).softmax(1)
        return x + me.out((share * x).sum(1, keepdim=True))

    return Layer(run, first=linear(width), score=linear(width, 1, False), out=linear(width))


@kind
def retention(width: int) -> nn.Module:
    decay = (1 - 2.0 ** (-3 - torch.arange(HEADS)))[:, None, None] ** distances().clamp(min=0) * (distances() >= 0)

    def run(me: Any, x: Tensor) -> Tensor:
        q, k, v = (split(each) for each in me.made(x).chunk(3, -1))
        mixed = joined(scores(q, k) * decay @ v)
        return me.out(me.norm(mixed.flatten(0, 1)).view(x.shape) * F.silu(me.gate(x)))

    return Layer(
        run, made=linear(width, 3 * width), norm=nn.GroupNorm(HEADS, width), gate=linear(width), out=linear(width)
    )
