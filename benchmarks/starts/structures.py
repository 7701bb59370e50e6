"""Structures: graphs, sets, and what has to be remembered over many steps."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from starts.data import mnist
from starts.tables import deep
from starts.task import Batch, Data, Task, classify, regress

NODES, FEATURES = 16, 8
POINTS = 24
SPAN = 40
"""Steps of the adding task."""
KEPT, SYMBOLS = 12, 8
"""Steps and symbols of the memory task."""


class GraphNet(nn.Module):
    """Five layers that sum over neighbours, and a sum over nodes (Xu et al. 2019); or means, with ``means``."""

    def __init__(self, means: bool = False, width: int = 48) -> None:
        super().__init__()
        self.means = means
        sizes = (FEATURES, *[width] * 5)
        self.layers = nn.ModuleList(deep([a, width, b], nn.ReLU) for a, b in pairwise(sizes))
        self.head = deep([width, width, 1], nn.ReLU)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        share = edges / edges.sum(-1, keepdim=True) if self.means else edges
        for layer in self.layers:
            x = F.relu(layer(share @ x))
        found: Tensor = self.head(x.mean(1) if self.means else x.sum(1))
        return found


class DeepSet(nn.Module):
    """A net of each point, a sum, and a net of the sum (Zaheer et al. 2017)."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.each, self.all = deep([3, *[width] * 3], nn.ReLU), deep([width, width, width, 2], nn.ReLU)

    def forward(self, points: Tensor) -> Tensor:
        found: Tensor = self.all(self.each(points).sum(1))
        return found


class SetAttention(nn.Module):
    """Attention between points without norms, and a mean."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.first = nn.Linear(3, width)
        self.attention = nn.ModuleList(nn.MultiheadAttention(width, 4, batch_first=True) for _ in range(2))
        self.mlps = nn.ModuleList(deep([width, 2 * width, width], nn.ReLU) for _ in range(2))
        self.head = nn.Linear(width, 2)

    def forward(self, points: Tensor) -> Tensor:
        x = self.first(points)
        for attention, mlp in zip(self.attention, self.mlps, strict=True):
            x = x + attention(x, x, x, need_weights=False)[0]
            x = x + mlp(x)
        found: Tensor = self.head(x.mean(1))
        return found


class Last(nn.Module):
    """A recurrent layer, and what its last step says."""

    def __init__(self, layer: nn.RNNBase, outputs: int) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(layer.hidden_size, outputs)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.layer(x)[0][:, -1])
        return found


class Gated(nn.Module):
    """A gated cell, written by hand and met at every step."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS + 1, width)
        self.keep, self.new = nn.Linear(2 * width, width), nn.Linear(2 * width, width)
        self.head = nn.Linear(width, SYMBOLS)

    def forward(self, ids: Tensor) -> Tensor:
        steps = self.symbols(ids)
        state = torch.zeros_like(steps[:, 0])
        for step in steps.unbind(1):
            both = torch.cat((step, state), -1)
            keep = torch.sigmoid(self.keep(both))
            state = keep * state + (1 - keep) * torch.tanh(self.new(both))
        found: Tensor = self.head(state)
        return found


def connected(generator: Generator) -> Batch:
    """Return features of nodes, edges (with those of nodes to themselves), and a target: the mean over edges of a
    product of features."""
    edges = (torch.rand(32, NODES, NODES, generator=generator) < 0.3).float().triu(1)
    edges = edges + edges.transpose(1, 2) + torch.eye(NODES)
    x = torch.randn(32, NODES, FEATURES, generator=generator)
    signs = torch.tanh(x[..., :1] + x[..., 1:2])
    met = (signs * (edges @ signs)).sum((1, 2)) / NODES
    return x, edges, met.unsqueeze(1)


def clouds(generator: Generator) -> Batch:
    """Return sets of points, and the logarithms of their spread and of their largest distance from the origin."""
    scale = torch.exp(0.5 * torch.randn(48, 1, 3, generator=generator))
    points = scale * torch.randn(48, POINTS, 3, generator=generator)
    return points, torch.stack((points.std((1, 2)).log(), points.norm(dim=2).amax(1).log()), 1)


def adding(generator: Generator) -> Batch:
    """Return random numbers with two that are marked, and the sum of those two."""
    x, marks, half = torch.rand(32, SPAN, generator=generator), torch.zeros(32, SPAN), SPAN // 2
    rows = torch.arange(32)
    marks[rows, torch.randint(half, (32,), generator=generator)] = 1
    marks[rows, torch.randint(half, SPAN, (32,), generator=generator)] = 1
    return torch.stack((x, marks), 2), (x * marks).sum(1, keepdim=True)


def remembered(generator: Generator) -> Batch:
    """Return sequences whose first symbol is to be told after noise that uses the same symbols, and that symbol."""
    ids = torch.randint(SYMBOLS, (64, KEPT), generator=generator)
    symbol = ids[:, 0].clone()
    ids[:, -1] = SYMBOLS
    return ids, symbol


def rows() -> Data:
    """Return digits as sequences of their rows."""
    pixels, labels = mnist()
    lines = 2 * pixels.squeeze(1) - 0.5
    return Data.pool((lines[:8000], labels[:8000]), (lines[8000:], labels[8000:]), 48)


def graphs(name: str, aside: bool, means: bool) -> Task:
    """Return a training on graphs."""
    return Task(
        name,
        "graphs",
        "aside" if aside else "chosen",
        lambda: GraphNet(means),
        lambda: Data.made(connected),
        regress,
        rates=(3e-4, 1e-3, 3e-3),
        steps=600,
        inputs=lambda batch: batch[:2],
    )


def sums(name: str, layer: type[nn.RNNBase]) -> Task:
    """Return the training of a recurrent layer on adding."""
    return Task(
        name,
        "memory",
        "chosen",
        lambda: Last(layer(2, 48, batch_first=True), 1),  # type: ignore[call-arg,arg-type]
        lambda: Data.made(adding),
        regress,
        rates=(3e-3, 1e-2, 3e-2),
        steps=250,
        clip=1.0,
    )


TASKS = (
    graphs("graphs, means", False, True),
    Task("sets, attention", "sets", "chosen", SetAttention, lambda: Data.made(clouds), regress, steps=250),
    sums("RNN, adding", nn.RNN),
    sums("LSTM, adding", nn.LSTM),
    graphs("graphs, sums", True, False),
    Task("deep sets", "sets", "aside", DeepSet, lambda: Data.made(clouds), regress, steps=700),
    Task(
        "GRU, rows of digits",
        "recurrence",
        "aside",
        lambda: Last(nn.GRU(14, 64, batch_first=True), 10),
        rows,
        classify,
        steps=400,
        clip=1.0,
    ),
    Task(
        "gated cell, memory",
        "memory",
        "aside",
        Gated,
        lambda: Data.made(remembered),
        classify,
        steps=300,
        clip=1.0,
    ),
)
