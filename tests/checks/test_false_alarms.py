"""Models that are as predicted: a check that fails on one of them is a false alarm."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import wellposed as wp

X = torch.randn(64, 16, generator=torch.Generator().manual_seed(0))

pytestmark = pytest.mark.slow


def orthogonal(way: str, width: int) -> nn.Module:
    first = parametrizations.orthogonal(nn.Linear(16, width), orthogonal_map=way)
    return nn.Sequential(first, nn.Tanh(), nn.Linear(width, 4))


@pytest.mark.parametrize("width", [16, 8, 24])
@pytest.mark.parametrize("way", ["matrix_exp", "cayley", "householder"])
@pytest.mark.parametrize("planned", [False, True])
def test_an_orthogonal_parametrisation(planned: bool, way: str, width: int) -> None:
    model = orthogonal(way, width)
    verdict = wp.check(model, X, plan=wp.plan(model, X) if planned else None)
    assert verdict.ok, verdict.summary()


class Differences(nn.Module):
    """A function at two near places, as solvers take it to measure their error."""

    def __init__(self, step: float) -> None:
        super().__init__()
        self.field = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))
        self.step = step

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        first = self.field(x)
        gap = self.field(x + self.step * first) - first
        return gap.abs().max(), gap.abs().amax(-1), gap.max(), gap.norm()


@pytest.mark.parametrize("step", [1.0, 0.1, 0.01])
def test_the_largest_of_a_difference_of_near_values_follows_their_distance(step: float) -> None:
    model = Differences(step)
    verdict = wp.check(model, X, plan=wp.plan(model, X))
    assert all(abs(one.error) < 2.0 for one in verdict.comparisons), verdict.summary()  # strangers: 8 to 20 octaves


@pytest.mark.parametrize("most", [0.1, 1.0, 3.0, 100.0])
@pytest.mark.parametrize("order", [1.0, 2.0])
@pytest.mark.parametrize("planned", [False, True])
def test_rows_of_a_table_with_a_largest_norm(planned: bool, order: float, most: float) -> None:
    table = nn.Embedding(200, 16, max_norm=most, norm_type=order)
    model = nn.Sequential(table, nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    x = torch.arange(96).reshape(8, 12)
    before = table.weight.tolist()
    verdict = wp.check(model, x, plan=wp.plan(model, x) if planned else None)
    assert verdict.ok, verdict.summary()
    assert table.weight.tolist() == before
