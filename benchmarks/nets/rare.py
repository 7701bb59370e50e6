"""Small nets that do what few nets do: each meets rules that none of the others reach.

`RARE` maps a name to a `Small`. Every net has a weight before and after what it is for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from .small import Small

WIDTH, TOKENS, BATCH = 64, 16, 8
Operate = Callable[..., Tensor]


class Between(nn.Module):
    """Some layers of the same input, what a function makes of their results, and a readout."""

    def __init__(self, operate: Operate, layers: int = 1, width: int = WIDTH, out: int = WIDTH) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, width) for _ in range(layers)])
        self.operate, self.out = operate, nn.Linear(out, 16)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(self.operate(*(layer(x) for layer in self.layers)))
        return y


def larger(x: Tensor, y: Tensor) -> Tensor:
    """The larger of two, and how far it is beyond the one."""
    most = torch.maximum(x, y)
    return most + torch.tanh(most - x)


def running_sums(x: Tensor) -> Tensor:
    """Sums over windows as differences of running sums, and a running mean."""
    sums = x.cumsum(1)
    window = torch.cat([sums[:, :4], sums[:, 4:] - sums[:, :-4]], 1)
    return window / 2 + sums / torch.arange(1, x.shape[1] + 1).view(1, -1, 1)


def decays(x: Tensor) -> Tensor:
    """Values mixed by decays between every two times, as state spaces have them."""
    rates = -F.softplus(x[..., 0]).cumsum(1)
    between = (rates[:, :, None] - rates[:, None, :]).masked_fill(
        ~torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(), -torch.inf
    )
    return between.exp() @ x


def total_of_gates(x: Tensor) -> Tensor:
    """The logarithm of running sums of what is never negative."""
    return torch.log(F.relu(x).cumsum(1) + 0.1) + x


def leaky(x: Tensor) -> Tensor:
    """A loop over times with no weight of its own."""
    state = torch.zeros_like(x[:, 0])
    kept = []
    for at in range(x.shape[1]):
        state = 0.8 * state + 0.6 * x[:, at]
        kept.append(state)
    return torch.stack(kept, 1)


def factorised(x: Tensor) -> Tensor:
    """The pairs of a factorisation machine: (sum x)² - sum x²."""
    return 0.5 * (x.sum(1) ** 2 - (x * x).sum(1))


def own_mean(x: Tensor) -> Tensor:
    """A tensor beside the mean of its rectified self, with which it goes along."""
    return x + 2 * F.relu(x).mean(1, keepdim=True)


def variance(x: Tensor) -> Tensor:
    """A norm by E x² - (E x)², written out, with uneven sizes of positions."""
    mean = x.mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt((x * x).mean(-1, keepdim=True) - mean * mean + 1e-5)


def resized(x: Tensor, y: Tensor) -> Tensor:
    """A product by groups, given the size of one factor."""
    return x * y[..., :1] / x.norm(dim=-1, keepdim=True)


def blocks(x: Tensor) -> Tensor:
    """What is left of a tensor without the means over blocks of its positions."""
    batch, tokens, width = x.shape
    means = x.view(batch, tokens // 4, 4, width).mean(2)
    return x - means.repeat_interleave(4, 1)


def outer(x: Tensor) -> Tensor:
    """Every feature times every other of some of them."""
    return (x[..., :8, None] * x[..., None, :8]).flatten(-2)


def gram(x: Tensor) -> Tensor:
    """Products of every two positions."""
    return x @ x.transpose(1, 2) / x.shape[-1]


def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention by products of positive features in place of a softmax."""
    q, k = F.elu(q) + 1, F.elu(k) + 1
    return (q @ (k.transpose(1, 2) @ v)) / (q @ k.sum(1)[..., None])


def scores_alone(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention with no softmax at all."""
    return (q @ k.transpose(1, 2) / 8).tril() @ v


def attention_masked_twice(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention whose weights are masked once more."""
    seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril()
    weights = (q @ k.transpose(1, 2) / 8).masked_fill(~seen, -torch.inf).softmax(-1)
    return weights.masked_fill(~seen, 0.0) @ v


def attention_by_exp(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A softmax written out, under a mask."""
    seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril()
    scores = (q @ k.transpose(1, 2) / 8).masked_fill(~seen, -1e9)
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return weights / weights.sum(-1, keepdim=True) @ v


def shifted(x: Tensor) -> Tensor:
    """Rows pushed on by one each, as relative positions are."""
    batch, tokens, _ = x.shape
    padded = F.pad(x[..., : 2 * tokens - 1], (0, 1)).flatten(1)
    padded = F.pad(padded, (0, tokens - 1)).view(batch, tokens + 1, 2 * tokens - 1)
    return padded[:, :tokens, tokens - 1 :]


def topmost(x: Tensor) -> Tensor:
    """The largest features, beside all of them."""
    return torch.cat([x.topk(8, -1).values, x[..., 8:]], -1)


def of_largest(x: Tensor) -> Tensor:
    """What is picked by where another signal of the same source is largest."""
    return x.gather(1, x.argmax(1, keepdim=True)).expand_as(x) + x


def by_its_noise(x: Tensor) -> Tensor:
    """A quotient of two signals that come near to 0: its tails are heavy."""
    return x[..., :32] / x[..., 32:]


def joined(x: Tensor, y: Tensor) -> Tensor:
    """A norm of two tensors put side by side, written out, then of each."""
    both = torch.cat([x, 2 * y], -1)
    both = both * torch.rsqrt(both.pow(2).mean(-1, keepdim=True) + 1e-6)
    return both[..., :WIDTH] + both[..., WIDTH:]


def stacked(x: Tensor) -> Tensor:
    """Branches and their weights as a stack."""
    branches = torch.stack([x, F.relu(x), torch.tanh(x)], 1)
    return (branches * torch.tensor([0.5, 0.3, 0.2]).view(1, 3, 1, 1)).sum(1)


def of_few(x: Tensor) -> Tensor:
    """Norms over few features."""
    batch, tokens, width = x.shape
    return F.layer_norm(x.view(batch, tokens, width // 4, 4), (4,)).flatten(2) ** 3


def gated_by_one(x: Tensor, y: Tensor) -> Tensor:
    """One number for all features of a token."""
    return torch.tanh(x * y[..., :1])


def means(x: Tensor) -> Tensor:
    """Functions of one tensor, averaged over its positions, and of its mean."""
    return torch.cat([x.relu().mean(1) - x.abs().mean(1), x.mean(1).exp() + x.relu().mean(1)], -1)


def regrouped(x: Tensor) -> Tensor:
    """Views whose axes end inside those of others, of positions that go along with one another."""
    return (x.cumsum(1) / 3)[:, :15, :60].reshape(len(x), 12, 75)[:, :, :WIDTH]


def two_times(x: Tensor) -> Tensor:
    """Differences of a running sum at every two times."""
    sums = x[..., 0].cumsum(1)
    return torch.tanh(sums[:, :, None] - sums[:, None, :])


def swish_of_both(x: Tensor, y: Tensor) -> Tensor:
    """Two tensors side by side, times a function of both."""
    both = torch.cat([x, 2 * y], -1)
    gated = both * torch.sigmoid(both[..., :1] + both)
    return gated[..., :WIDTH] + gated[..., WIDTH:]


def by_kernel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Values weighted by the exponential of scores under a mask, without a norm."""
    seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril()
    return (q @ k.transpose(1, 2) / 8).masked_fill(~seen, -torch.inf).exp() @ v / 8


def sums_alone(x: Tensor) -> Tensor:
    """Running sums weighted by their own products."""
    sums = x.cumsum(1)
    return (sums @ sums.transpose(1, 2)).tril() @ sums / 64


def poles(x: Tensor) -> Tensor:
    """A function with a pole that elements lie around, and one of wide tails."""
    return torch.tanh(x.reciprocal()) + torch.log1p(torch.exp(5 * x)) + 0.01 * x.reciprocal()


def tails(x: Tensor) -> Tensor:
    """A function that is carried by elements that no batch has."""
    return torch.exp(5 * x)


def parts_added(x: Tensor, y: Tensor) -> Tensor:
    """Tokens of two kinds, and what is added to all."""
    return torch.cat([x, 3 * F.relu(y)], 1) + torch.cat([y, x], 1)


class Experts(nn.Module):
    """Two experts of four for every token: rows picked, worked on, and put back."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.router, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 10)
        self.up, self.down = (nn.Parameter(torch.randn(4, *shape)) for shape in ((WIDTH, 128), (128, WIDTH)))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).flatten(0, 1)
        top, experts = torch.softmax(self.router(x), -1).topk(2)
        order = torch.argsort(experts.reshape(-1))
        h = torch.bmm(x[order // 2].unsqueeze(1), self.up[experts.reshape(-1)[order]]).relu()
        y = torch.bmm(h, self.down[experts.reshape(-1)[order]]).squeeze(1) * top.reshape(-1)[order].unsqueeze(-1)
        made: Tensor = self.out(x + torch.zeros_like(x).index_add(0, order // 2, y))
        return made


class OwnSquare(nn.Module):
    """A weight that is the product of a parameter with itself."""

    def __init__(self) -> None:
        super().__init__()
        self.root, self.out = nn.Parameter(torch.randn(WIDTH, 16) / 8), nn.Linear(WIDTH, 16)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(torch.relu(x @ (self.root @ self.root.T)))
        return y


class Positions(nn.Module):
    """A large table of known positions, which a weight reads."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.arange(1024)[:, None] * torch.exp(-torch.arange(WIDTH // 2) / 4)
        self.register_buffer("table", torch.cat([angles.sin(), angles.cos()], -1) + 0.5)
        self.of_table, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 16)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(torch.relu(x + self.of_table(self.table)))
        return y


class Edges(nn.Module):
    """Messages along the edges of a graph, of both of their ends."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.register_buffer("ends", torch.randint(TOKENS * 2, (2, 6 * TOKENS), generator=generator))
        self.first, self.second, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        source, target = self.ends
        degree = torch.zeros(x.shape[0]).index_add(0, target, torch.ones(len(target))).clamp(min=1)
        for layer in (self.first, self.second):
            h = layer(x)
            message = h[source] * (degree[source] * degree[target]).rsqrt()[:, None]
            near = torch.zeros_like(h).index_add(0, target, message)
            x = torch.relu(near + h) + 0.5 * (x - near)
        y: Tensor = self.out(x)
        return y


class LowRank(nn.Module):
    """A weight that is the product of two, beside one that keeps its values."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(WIDTH, 8)), nn.Parameter(torch.randn(8, WIDTH))
        self.out = nn.Linear(WIDTH, 16)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(torch.relu(x @ (self.a @ self.b)))
        return y


class Standardised(nn.Conv2d):
    """A convolution by a weight that is standardised first."""

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight
        w = (w - w.mean((1, 2, 3), keepdim=True)) / (w.std((1, 2, 3), keepdim=True) + 1e-5)
        return F.conv2d(x, w, self.bias, padding=1)


class Pools(nn.Module):
    """Pools of padded pictures, and what they leave."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.out = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 1)
        x = x - F.interpolate(F.avg_pool2d(x, 2), scale_factor=2)
        x = torch.relu(self.second(x + F.avg_pool2d(x, 3, 1, 1) + F.max_pool2d(x, 3, 1, 1)))
        y: Tensor = self.out(x.mean((2, 3)))
        return y


def spectral() -> nn.Sequential:
    """Layers under spectral norms."""
    layers = (parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)) for _ in range(3))
    return nn.Sequential(*(m for layer in layers for m in (layer, nn.Tanh())), nn.Linear(WIDTH, 10))


def shared(layers: int = 4) -> nn.Sequential:
    """One layer met several times."""
    layer = nn.Linear(WIDTH, WIDTH)
    return nn.Sequential(*(m for _ in range(layers) for m in (layer, nn.Tanh())), nn.Linear(WIDTH, 10))


def _nets() -> dict[str, Small]:
    nets: dict[str, Small] = {}

    def add(name: str, build: Callable[[], nn.Module], *shape: int) -> None:
        nets[name] = Small(name, "dense", False, build, partial(torch.zeros, shape or (BATCH, TOKENS, WIDTH)))

    one: tuple[Operate, ...] = (running_sums, total_of_gates, leaky, factorised, own_mean, variance, blocks, outer,
        decays, topmost, of_largest, stacked, of_few, regrouped, sums_alone, poles, tails)  # fmt: skip
    for operate in one:
        add(operate.__name__, partial(Between, operate))
    for operate in (larger, resized, joined, gated_by_one, swish_of_both, parts_added):
        add(operate.__name__, partial(Between, operate, 2))
    for operate in (linear_attention, scores_alone, attention_masked_twice, attention_by_exp, by_kernel):
        add(operate.__name__, partial(Between, operate, 3))
    add("by_its_noise", partial(Between, by_its_noise, out=WIDTH // 2))
    add("means", partial(Between, means, out=2 * WIDTH))
    add("experts", Experts, 64, TOKENS, WIDTH)  # few rows would be drawn, and not followed
    add("own_square", OwnSquare, BATCH, WIDTH)
    add("positions", Positions, 2, 1024, WIDTH)
    for operate in (gram, shifted, two_times):
        add(operate.__name__, partial(Between, operate, out=TOKENS))
    add("edges", Edges, 2 * TOKENS, WIDTH)
    add("low_rank", LowRank, BATCH, WIDTH)
    add("standardised", lambda: nn.Sequential(Standardised(3, 16, 3), nn.ReLU(), Standardised(16, 16, 3)), 4, 3, 16, 16)
    add("pools", Pools, 4, 3, 16, 16)
    add("spectral", spectral, BATCH, WIDTH)
    add("shared", shared, BATCH, WIDTH)
    return nets


RARE = _nets()
