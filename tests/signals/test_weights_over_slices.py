"""Sums of values over tokens, weighted by a softmax over slices, of keys that meet keys again, and rays that end in the
far distance.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import wellposed as wp


class Slices(nn.Module):
    """Tokens of few dimensions, added up in slices by weights that another projection of them makes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 32)), nn.LayerNorm(32)
        self.values, self.scores = nn.Linear(32, 16), nn.Sequential(nn.Linear(32, 16), nn.Linear(16, 12))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(self.embed(x))
        return torch.einsum("bnc,bng->bgc", self.values(tokens), (3.0 * self.scores(tokens)).softmax(-1))


class Means(Slices):
    """The means of the tokens in slices: their sums over the sums of their weights."""

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(self.embed(x))
        weights = (3.0 * self.scores(tokens)).softmax(-1)
        return torch.einsum("bnc,bng->bgc", self.values(tokens), weights) / (weights.sum(1) + 1e-5)[..., None]


class Retrieved(nn.Module):
    """How alike keys are to the mean of keys that a query read (one more step of a Hopfield net)."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.keys = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        query, key = self.queries(x), self.keys(x)
        return 0.5 * (0.2 * query @ key.mT).softmax(-1) @ key @ key.mT


class Ray(nn.Module):
    """What is left of light along rays, whose last sample lies in the far distance."""

    def __init__(self) -> None:
        super().__init__()
        self.density = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, points: Tensor, direction: Tensor) -> Tensor:
        steps = torch.cat([torch.full((15,), 0.25), torch.tensor([1e10])])
        length = steps * direction.norm(dim=-1, keepdim=True)
        return torch.exp(-torch.relu(self.density(points)[..., 0]) * length)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]], str, float]] = {
    "slices": (Slices, lambda: (torch.randn(4, 100, 6),), "einsum", 0.87),
    "means of slices": (Means, lambda: (torch.randn(4, 100, 6),), "div", 0.47),
    "keys that were read": (Retrieved, lambda: (torch.randn(4, 20, 32),), "matmul#3", 2.0),
    "rays": (Ray, lambda: (torch.randn(32, 16, 6), torch.randn(32, 3)), "exp", math.inf),
}
"""Models, their inputs, the node that is compared, and the octaves that it was off by without the rule."""


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_weights_over_slices_and_along_rays_are_as_measured(name: str) -> None:
    torch.manual_seed(0)
    made, given, node, without = MODELS[name]
    graph = wp.trace(made(), *given())
    plan = wp.plan(graph)
    predicted = math.log2(wp.propagate(graph, weights=plan)[node].second_moment)
    draws = [wp.measure(graph, plan=plan, draws=1, seed=seed)[node].second_moment for seed in range(128)]
    error = float(np.std(np.log2(draws), ddof=1)) / math.sqrt(len(draws))
    off = predicted - math.log2(float(np.mean(draws)))
    assert abs(off) < 4.0 * error + 0.2 < 0.9 * without, (off, error)
