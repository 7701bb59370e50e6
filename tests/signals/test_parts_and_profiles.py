"""Sums of a tensor with what its own parts became, and profiles by position: predicted as they are measured."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import wellposed as wp


class Parts(nn.Module):
    """x + [x₁, f(x₁, x₂)], of x or of what a norm makes of it."""

    def __init__(self, kind: str, norm: bool) -> None:
        super().__init__()
        self.kind = kind
        self.first, self.second, self.out = nn.Linear(24, 64), nn.Linear(32, 32), nn.Linear(64, 5)
        self.norm = nn.LayerNorm(64) if norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        a, b = self.norm(x).chunk(2, -1)
        made = {"new": self.second(a), "added": b + self.second(a), "scaled": b * torch.exp(torch.tanh(self.second(a)))}
        whole = torch.cat((a, made[self.kind]), -1)
        return self.out(x + whole)


class Means(nn.Module):
    """Means of the first n positions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(24, 64), nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.first(x).cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None])


class WithMaximum(nn.Module):
    """Tokens beside their maximum: features that vary, and features that hardly do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(24, 64), nn.Linear(128, 64), nn.Linear(64, 5)
        self.norm = nn.BatchNorm1d(64)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = self.second(torch.cat((x, x.amax(1, keepdim=True).expand_as(x)), -1))
        return self.out(self.norm(x.transpose(1, 2)).mean(2))


class Steps(nn.Module):
    """Products, one for each step, of signals that steps have in common."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(24, 64), nn.Linear(64, 64), nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x + 4 * x.mean(1, keepdim=True))
        z = self.second(x)
        return self.out(torch.stack([x[:, t] * z[:, t] for t in range(x.shape[1])], 1).mean(1))


class Averages(nn.Module):
    """Moving averages, with a decay for each channel, of a signal that steps have in common."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.keep, self.out = nn.Linear(24, 64), nn.Parameter(torch.randn(64)), nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        x, keep = self.first(x + 4 * x.mean(1, keepdim=True)), torch.sigmoid(self.keep)
        state = torch.zeros_like(x[:, 0])
        for t in range(6):
            state = keep * state + (1 - keep) * x[:, t]
        return self.out(state)


def off(model: nn.Module, x: Tensor, name: str, draws: int = 24) -> tuple[float, float]:
    """Return by how many octaves a node's second moment is off, and the standard error of what is measured."""
    graph = wp.trace(model, x)
    plan = wp.plan(graph)
    predicted = next(s for s in wp.propagate(graph, weights=plan) if s.name == name)
    measured = wp.measure(graph, plan=plan, draws=draws)[name]
    return math.log2(predicted.second_moment / measured.second_moment), measured.log2_error


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("kind", ["new", "added", "scaled"])
def test_a_tensor_and_what_its_own_parts_became_are_no_strangers(kind, norm):
    error, chance = off(Parts(kind, norm), torch.randn(16, 24), "add#2" if kind == "added" else "add")
    assert abs(error) < 3 * chance + 0.1


def test_means_of_the_first_positions_are_no_more_alike_than_their_sums():
    """Samples share a bias alone, of which the last sums consist most: averages of both profiles gave .57 for .05."""
    graph = wp.trace(Means(), torch.randn(8, 16, 24))
    plan = wp.plan(graph)
    predicted = {s.name: s.similarity for s in wp.propagate(graph, weights=plan)}
    assert predicted["div"] == pytest.approx(predicted["cumsum"])
    measured = wp.measure(graph, plan=plan, draws=24)["div"]
    assert abs(predicted["div"] - measured.similarity) < 0.1 + 3 * measured.similarity_error


def test_features_that_vary_count_most_in_what_positions_have_in_common():
    error, chance = off(WithMaximum(), torch.randn(8, 16, 24), "mean")
    assert abs(error) < 3 * chance + 0.3


@pytest.mark.slow
def test_products_without_means_have_in_common_what_their_factors_have():
    error, chance = off(Steps(), torch.randn(8, 16, 24), "mean#2")
    assert abs(error) < 3 * chance + 0.45


def test_decays_by_channel_keep_what_steps_have_in_common():
    torch.manual_seed(0)
    error, chance = off(Averages(), torch.randn(8, 16, 24), "add#7")
    assert abs(error) < 3 * chance + 0.1
