"""A signal that meets itself from another grid: pooled and enlarged, shifted, in part, repeated; against samples."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import wellposed as wp
from wellposed.signals.integration import taps

from .test_local_scales import assert_alike

SAMPLES = 4000
RUNNING = torch.arange(1.0, 13.0).view(1, 1, 12, 1)


class Smoothed(nn.Module):
    """A function of a smoothed picture: neighbours are correlated, all positions are alike."""

    def __init__(self, form: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.form = form

    def forward(self, x: Tensor) -> Tensor:
        return self.form(3.0 * F.avg_pool2d(x, 3, 1))


def rounded(x: Tensor, size: int = 2, mode: str = "nearest") -> Tensor:
    return F.interpolate(F.avg_pool2d(x, size), scale_factor=size, mode=mode)


def repeated(x: Tensor) -> Tensor:
    small = F.avg_pool2d(x, 2)[:, :, :, None, :, None]
    return small.expand(-1, -1, 6, 2, 6, 2).reshape(-1, 4, 12, 12)


def blocks(x: Tensor, size: int) -> Tensor:
    """Means over blocks of rows, by a view, at each of their rows."""
    means = x.view(-1, 4, 12 // size, size, 12).mean(3)
    return means[:, :, :, None].expand(-1, -1, -1, size, -1).reshape(-1, 4, 12, 12)


def steps(x: Tensor) -> Tensor:
    """Means over rows that lie three apart, at each of them."""
    return x.view(-1, 4, 4, 3, 12).mean(2).repeat(1, 1, 4, 1)


def squares(x: Tensor) -> Tensor:
    """Means over squares, by a view, at each of their pixels."""
    return x.view(-1, 4, 6, 2, 6, 2).mean((3, 5)).repeat_interleave(2, 2).repeat_interleave(2, 3)


def two_of_one(coarse: Tensor) -> Tensor:
    return F.interpolate(coarse, scale_factor=3) - F.interpolate(torch.tanh(coarse), scale_factor=3)


FORMS = {
    "enlarged": lambda x: x - rounded(x),
    "enlarged twice": lambda x: x - rounded(x) + rounded(x, 4),
    "enlarged linearly": lambda x: x + rounded(x, mode="bilinear"),
    "enlarged from the mean": lambda x: x + F.interpolate(F.adaptive_avg_pool2d(x, 1), size=(12, 12)),
    "rectified on the coarse grid": lambda x: x + F.interpolate(torch.relu(F.avg_pool2d(x, 4)), scale_factor=4),
    "two of one coarse grid": lambda x: two_of_one(F.avg_pool2d(x, 3)),
    "maximum enlarged": lambda x: x + F.interpolate(F.max_pool2d(x, 2), scale_factor=2),
    "gated from the coarse grid": lambda x: x * F.interpolate(F.avg_pool2d(x, 2), scale_factor=2),
    "repeated": lambda x: x - repeated(x),
    "repeated along both": lambda x: x - F.avg_pool2d(x, 2).repeat_interleave(2, 2).repeat_interleave(2, 3),
    "blocks by a view": lambda x: x + blocks(x, 3),
    "blocks of two sizes": lambda x: blocks(x, 2) + blocks(x, 3),
    "steps by a view": lambda x: x + steps(x),
    "squares by a view": lambda x: x + squares(x),
    "a stack of blocks": lambda x: torch.stack([x, blocks(x, 2), blocks(x, 4)], 1).sum(1),
    "rolled": lambda x: x - x.roll(1, 2),
    "rolled along both": lambda x: x + 0.5 * x.roll((1, 2), (2, 3)),
    "shifted": lambda x: F.pad(x, (1, 0))[..., :-1] - x,
    "mirrored": lambda x: x + x.flip(3),
    "reflected": lambda x: F.pad(x, (2, 2, 2, 2), mode="reflect")[..., 1:-3, 1:-3] - x,
    "neighbours": lambda x: x[:, :, 1:] - x[:, :, :-1],
    "neighbours, rectified": lambda x: torch.relu(x)[:, :, 1:] - torch.relu(x)[:, :, :-1],
    "even and odd": lambda x: x[:, :, 0::2] - x[:, :, 1::2],
    "first": lambda x: x - x[:, :, :1],
    "first and mean": lambda x: x[:, :, 0] - x.mean(2),
    "first and last": lambda x: x[:, :, 0] + x[:, :, -1],
    "picked": lambda x: x - x[:, :, torch.arange(11, -1, -1)],
    "parts in another order": lambda x: torch.cat([x[:, :, 2:], x[:, :, :2]], 2) + x,
    "all but the first": lambda x: x + torch.cat([0.0 * x[:, :, :2], x[:, :, 2:]], 2),
    "running mean": lambda x: x - x.cumsum(2) / RUNNING,
    "running mean, rectified": lambda x: x + torch.relu(x.cumsum(2) / RUNNING),
    "parts of channels": lambda x: torch.cat([x, torch.relu(x)], 1).view(-1, 2, 4, 12, 12).mean(1),
    "three parts of channels": lambda x: torch.cat([x, 0.5 * x, torch.relu(x)], 1).view(-1, 3, 4, 12, 12).sum(1),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_signal_meets_itself_from_another_grid(form: str) -> None:
    model = Smoothed(FORMS[form])
    predicted = wp.propagate(wp.trace(model, torch.randn(2, 4, 14, 14)), inputs=wp.Input.white())[-1]
    x = torch.randn(SAMPLES, 4, 14, 14, generator=torch.Generator().manual_seed(1))
    energy = model(x).double().square().flatten(1).mean(1)
    error = float(energy.std()) / SAMPLES**0.5
    assert predicted.second_moment == pytest.approx(float(energy.mean()), abs=4.0 * error)


class Hourglass(nn.Module):
    """A picture that skips a level, and what comes up from that: both by residual branches, the stem with a bias."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.first = first
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.skip, self.low = nn.Conv2d(32, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        skip = x + self.skip(torch.relu(x)) if self.first else None
        low = F.avg_pool2d(x, 2)
        up = F.interpolate(low + self.low(torch.relu(low)), scale_factor=2)
        return (x + self.skip(torch.relu(x)) if skip is None else skip) + up


@pytest.mark.parametrize("first", [True, False], ids=["skip first", "skip last"])
def test_what_skips_a_level_shares_the_picture_with_what_comes_up(first: bool) -> None:
    torch.manual_seed(0)
    graph = wp.trace(Hourglass(first), torch.randn(4, 3, 32, 32))
    plan = wp.plan(graph)
    assert_alike(wp.propagate(graph, weights=plan)[-1], wp.measure(graph, plan=plan, draws=4)[-1], 0.1)


def test_combinations_of_combinations_grow_no_longer_than_what_they_combine():
    rng = np.random.default_rng(0)
    chain = [rng.standard_normal(shape) for shape in ((6, 5), (5, 4), (4, 4), (4, 4))]
    made = taps.of_matrix(chain[0])
    for matrix in chain[1:]:
        made = made.of(taps.of_matrix(matrix))
    assert made.index.shape[1] == 4
    assert np.allclose(made.matrix(), np.linalg.multi_dot(chain))


@pytest.mark.parametrize("columns", [1, 9])
def test_covariances_of_combinations_are_those_of_the_matrix(columns):
    """Few taps pair by pair, many by matrices; both as by the covariance matrix itself."""
    rng = np.random.default_rng(1)
    first, second = (rng.standard_normal((12, 9)) * (np.arange(9) < columns) for _ in range(2))
    kernel = 0.5 ** np.arange(9.0)
    found = taps.covariances(kernel, 0, taps.of_matrix(first), taps.of_matrix(second), 12)
    whole = first @ kernel[np.abs(np.subtract.outer(np.arange(9), np.arange(9)))] @ second.T
    expected = [0.5 * (np.diagonal(whole, d).mean() + np.diagonal(whole, -d).mean()) for d in range(12)]
    assert np.allclose(found, expected)
