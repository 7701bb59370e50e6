"""Trainings on tables, of values and of decisions: perceptrons."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from starts.data import adult, census
from starts.task import Batch, Data, Task, classify, regress


class Perceptron(nn.Sequential):
    """Linear layers with an activation between them."""

    def __init__(self, *sizes: int, activation: Callable[[], nn.Module]) -> None:
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairwise(sizes):
            layers += [nn.Linear(fan_in, fan_out), activation()]
        super().__init__(*layers[:-1])


def census_net(depth: int, width: int, activation: Callable[[], nn.Module]) -> nn.Module:
    """Return a perceptron for Adult with ``depth`` layers."""
    features = census().held[0][0].shape[1]
    return Perceptron(features, *[width] * (depth - 1), 2, activation=activation)


class TabularBlock(nn.Module):
    """A residual block of the tabular ResNet: norm, expansion, dropout, projection."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.BatchNorm1d(width), nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        """Return x, [rows, width], with the branch added."""
        return x + self.down(self.dropout(self.up(self.norm(x)).relu()))


class TabularResNet(nn.Module):
    """Embeddings of categories beside numbers, residual blocks, and a head."""

    def __init__(self, width: int = 64, depth: int = 4) -> None:
        super().__init__()
        numbers, codes, _ = adult()["train"]
        self.tables = nn.ModuleList(nn.Embedding(int(column.max()) + 1, 8) for column in codes.T)
        self.stem = nn.Linear(numbers.shape[1] + 8 * len(self.tables), width)
        self.blocks = nn.Sequential(*(TabularBlock(width, 2 * width) for _ in range(depth)))
        self.norm, self.head = nn.BatchNorm1d(width), nn.Linear(width, 2)

    def forward(self, numbers: Tensor, codes: Tensor) -> Tensor:
        """Return logits, [rows, 2], of numbers [rows, 5] and codes [rows, 7]."""
        found = [table(codes[:, place]) for place, table in enumerate(self.tables)]
        x = self.blocks(self.stem(torch.cat([numbers, *found], 1)))
        return self.head(self.norm(x).relu())


def classify_rows(model: nn.Module, batch: Batch) -> Tensor:
    """Return the cross-entropy of rows that have numbers and codes."""
    return functional.cross_entropy(model(*batch[:2]), batch[2])


def car_on_a_hill() -> Data:
    """Return states (position, speed), each in [-1, 1], and a value with kinks, as in control problems."""

    def make(generator: Generator) -> Batch:
        state = torch.rand(128, 2, generator=generator) * 2 - 1
        position, speed = state[:, 0], state[:, 1]
        energy = torch.sin(3 * position) + 2 * speed.abs() - (position + 0.3 * speed).abs()
        return state, (torch.where(energy > 0.4, 1.0, 1.5 * energy) + 0.5 * torch.cos(5 * speed)).unsqueeze(1)

    return Data.made(make)


class PolicyAndValue(nn.Module):
    """A trunk with two heads, as in actor-critic learning."""

    def __init__(self, observed: int = 8, actions: int = 5, width: int = 64) -> None:
        super().__init__()
        self.trunk = Perceptron(observed, width, width, width, activation=nn.Tanh)
        self.policy, self.value = nn.Linear(width, actions), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits [rows, 5] and values [rows] of observations [rows, 8]."""
        hidden = self.trunk(x).tanh()
        return self.policy(hidden), self.value(hidden).squeeze(1)


def demonstrations() -> Data:
    """Return observations, an expert's actions and the values of its states."""
    source = Generator().manual_seed(5)
    first, second = torch.randn(8, 24, generator=source) / 2, torch.randn(24, 5, generator=source) / 2

    def make(generator: Generator) -> Batch:
        seen = torch.randn(128, 8, generator=generator)
        scores = torch.sin(2 * seen @ first) @ second
        return seen, scores.argmax(1), scores.max(1).values

    return Data.made(make)


def clone(model: nn.Module, batch: Batch) -> Tensor:
    """Return the loss of behaviour cloning: actions, and half of the values' squared error."""
    logits, values = model(batch[0])
    return functional.cross_entropy(logits, batch[1]) + 0.5 * functional.mse_loss(values, batch[2])


class Pooled(nn.Module):
    """DeepSets: a net for each element, a pool over elements, a net for the set."""

    def __init__(self, inner: nn.Module, outer: nn.Module, most: bool = False) -> None:
        super().__init__()
        self.inner, self.outer, self.most = inner, outer, most

    def forward(self, x: Tensor) -> Tensor:
        """Return what the outer net makes of sets, [sets, elements, features]."""
        each = self.inner(x)
        return self.outer(each.amax(1) if self.most else each.sum(1))


def deep_sets() -> nn.Module:
    """Return a net that adds up what it makes of each element."""
    inner = Perceptron(4, 64, 64, 64, activation=nn.ReLU)
    return Pooled(inner, Perceptron(64, 64, 64, 1, activation=nn.ReLU))


def point_net() -> nn.Module:
    """Return a net that takes the largest of what it makes of each point."""
    inner = Perceptron(3, 32, 64, 64, activation=nn.ReLU)
    return Pooled(inner, Perceptron(64, 64, 32, 6, activation=nn.ReLU), most=True)


def statistics() -> Data:
    """Return sets of 20 points and a number that depends on all of them."""

    def make(generator: Generator) -> Batch:
        spread = 0.3 + torch.rand(32, 1, 4, generator=generator)
        points = torch.randn(32, 20, 4, generator=generator) * spread
        told = points.square().mean(1).sum(1) - 1.5 * points[..., 0].amax(1) + (points[..., 1] * points[..., 2]).mean(1)
        return points, told.unsqueeze(1)

    return Data.made(make)


def shapes() -> Data:
    """Return clouds of 48 points on one of six surfaces, turned and scaled, and which it is."""

    def make(generator: Generator) -> Batch:
        kind = torch.randint(6, (32,), generator=generator)
        angle, height = torch.rand(2, 32, 48, generator=generator)
        around, up = 2 * math.pi * angle, 2 * height - 1
        radius = torch.stack(
            [(1 - up**2).clamp(min=0).sqrt(), torch.ones_like(up), (1 - up) / 2, up.abs(), 0.3 + up**2, 0.5 + 0 * up]
        )[kind, torch.arange(32)]
        points = torch.stack([radius * around.cos(), radius * around.sin(), up], -1)
        turned = torch.linalg.qr(torch.randn(32, 3, 3, generator=generator)).Q
        return points @ turned + 0.05 * torch.randn(32, 48, 3, generator=generator), kind

    return Data.made(make)


@cache
def graphs(count: int = 16, nodes: int = 16, links: int = 32) -> Data:
    """Return graphs side by side: features [nodes, 8], both ends of links, and a number for each graph that counts
    pairs of alike neighbours; some nodes have many links."""
    source = Generator().manual_seed(3)
    first, second = torch.randn(2, 8, generator=source)

    def make(generator: Generator) -> Batch:
        features = torch.randn(count * nodes, 8, generator=generator)
        popular = (torch.rand(count, links, generator=generator) ** 1.5 * nodes).long()
        other = torch.randint(nodes, (count, links), generator=generator)
        offset = nodes * torch.arange(count).unsqueeze(1)
        start, stop = (popular + offset).flatten(), (other + offset).flatten()
        start, stop = torch.cat([start, stop]), torch.cat([stop, start])
        alike = torch.tanh(features @ first)[start] * torch.tanh(features @ second)[stop]
        told = alike.view(2, count, links).mean((0, 2)) * 4
        return features, start, stop, told.unsqueeze(1)

    return Data.made(make)


class GraphNet(nn.Module):
    """Message passing: each node adds up, or averages, what its neighbours say."""

    def __init__(self, nodes: int = 16, width: int = 32, depth: int = 4, average: bool = False) -> None:
        super().__init__()
        self.nodes, self.average = nodes, average
        self.stem = nn.Linear(8, width)
        self.own = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.others = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x: Tensor, start: Tensor, stop: Tensor) -> Tensor:
        """Return a number for each graph, [graphs, 1]."""
        x = self.stem(x)
        degree = torch.zeros(len(x), 1, device=x.device).index_add(0, stop, torch.ones(len(stop), 1, device=x.device))
        for own, others in zip(self.own, self.others, strict=True):
            heard = torch.zeros_like(x).index_add(0, stop, x[start])
            if self.average:
                x = x + (own(x) + others(heard / degree.clamp(min=1))).relu()
            else:
                x = (own(x) + others(heard)).relu()
        return self.head(x.unflatten(0, (-1, self.nodes)).mean(1))


def linked(batch: Batch) -> Batch:
    """Return what a graph net is called with."""
    return batch[:3]


TASKS = (
    Task(
        "adult_gelu_8", "tables", "Adult, 8 layers, GELU", partial(census_net, 8, 64, nn.GELU), census, classify, -7,
        steps=300,
    ),
    Task(
        "adult_tanh_24", "tables", "Adult, 24 layers, tanh", partial(census_net, 24, 64, nn.Tanh), census, classify, -6,
        optimizer="sgd", steps=300,
    ),
    Task(
        "adult_silu_24", "tables", "Adult, 24 layers, SiLU", partial(census_net, 24, 64, nn.SiLU), census, classify, -7,
        steps=300,
    ),
    Task(
        "adult_resnet", "tables", "Adult, tabular ResNet", TabularResNet, partial(census, one_hot=False), classify_rows,
        -7, steps=300, inputs=lambda batch: batch[:2],
    ),
    Task(
        "value", "decisions", "value of two inputs, ReLU", partial(Perceptron, 2, 64, 64, 1, activation=nn.ReLU),
        car_on_a_hill, regress, -5, steps=600,
    ),
    Task(
        "policy_value", "decisions", "policy and value, tanh", PolicyAndValue, demonstrations, clone, -6, steps=600,
    ),
    Task("deep_sets", "sets", "DeepSets, sum, ReLU", deep_sets, statistics, regress, -7, steps=400),
    Task("point_net", "sets", "clouds of points, maximum, ReLU", point_net, shapes, classify, -7, steps=400),
    Task("gnn_sum", "graphs", "graph net, sums, ReLU", GraphNet, graphs, regress, -6, steps=400, inputs=linked),
    Task(
        "gnn_mean", "graphs", "graph net, means, residual", partial(GraphNet, average=True), graphs, regress, -6,
        steps=400, inputs=linked,
    ),
)  # fmt: skip
