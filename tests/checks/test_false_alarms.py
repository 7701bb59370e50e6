"""Models that are as predicted: a check that fails on one of them is a false alarm."""

from __future__ import annotations

import math

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
def test_an_orthogonal_parametrisation_raises_no_alarm(planned: bool, way: str, width: int) -> None:
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


class Codes(nn.Module):
    """The nearest code of what a layer makes, passed on with the layer's gradient."""

    def __init__(self, near: str, learnt: bool, width: int = 16) -> None:
        super().__init__()
        self.into, self.out, self.near = (
            nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, width)),
            nn.Linear(width, 4),
            near,
        )
        codes = torch.randn(64, width, generator=torch.Generator().manual_seed(1))
        self.codes: Tensor
        if learnt:
            self.codes = nn.Parameter(codes)
        else:
            self.register_buffer("codes", codes)

    def forward(self, x: Tensor) -> Tensor:
        z, codes = self.into(x), self.codes
        if self.near == "cdist":
            chosen = torch.cdist(z, codes).argmin(-1)
        elif self.near == "squares":
            chosen = (z.square().sum(1, keepdim=True) - 2.0 * z @ codes.T + codes.square().sum(1)).argmin(1)
        else:
            chosen = (z @ codes.T).argmax(1)
        return self.out(z + (nn.functional.embedding(chosen, codes) - z).detach())


@pytest.mark.parametrize("learnt", [False, True])
@pytest.mark.parametrize("near", ["cdist", "squares", "products"])
def test_the_nearest_code_of_a_codebook(near: str, learnt: bool) -> None:
    model = Codes(near, learnt)
    verdict = wp.check(model, X, plan=wp.plan(model, X))
    assert verdict.ok, verdict.summary()


class Solver(nn.Module):
    """A differential equation in steps whose size follows the error of each (Bogacki & Shampine 1989)."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(16, 16), nn.Linear(16, 3)
        self.field = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16))

    def forward(self, x: Tensor) -> Tensor:
        y, at, step = self.into(x), 0.0, 0.1
        for _ in range(20):
            step = min(step, 1.0 - at)
            first = self.field(y)
            second = self.field(y + step / 2 * first)
            third = self.field(y + 0.75 * step * second)
            new = y + step * (2 / 9 * first + 1 / 3 * second + 4 / 9 * third)
            gap = step * (-5 / 72 * first + second / 12 + third / 9 - self.field(new) / 8)
            error = float((gap / (1e-3 + 1e-3 * torch.maximum(y.abs(), new.abs()))).square().mean().sqrt())
            if error <= 1.0:
                at, y = at + step, new
            if at >= 1.0 - 1e-9:
                break
            step *= min(5.0, max(0.2, 0.9 * max(error, 1e-10) ** (-1 / 3)))
        return self.out(y)


def test_a_solver_that_adapts_its_steps() -> None:
    torch.manual_seed(0)
    model = Solver()
    verdict = wp.check(model, X, plan=wp.plan(model, X))
    assert verdict.ok, verdict.summary()


class Pooled(nn.Module):
    """Maxima of maxima, as detectors pool one map three times."""

    def __init__(self, kernel: int, stride: int) -> None:
        super().__init__()
        self.into = nn.Sequential(nn.Conv2d(8, 8, 1, bias=False), nn.BatchNorm2d(8), nn.SiLU())
        self.pool, self.last = nn.MaxPool2d(kernel, 1, kernel // 2), nn.MaxPool2d(3, stride, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = self.into(x)
        once = self.pool(x)
        twice = self.pool(once)
        return x, once, twice, self.last(twice)


@pytest.mark.parametrize(("kernel", "stride"), [(5, 1), (3, 2)])
def test_maxima_of_maxima_raise_no_alarm(kernel: int, stride: int) -> None:
    graph = wp.trace(Pooled(kernel, stride), torch.zeros(16, 8, 12, 12))
    verdict = wp.check(graph, plan=wp.plan(graph))
    assert verdict.ok, verdict.summary()
    off = [c for c in verdict.comparisons if abs(math.log2(c.predicted / c.measured)) > 0.1]
    assert off == []
