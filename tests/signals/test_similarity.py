"""Similarity of two samples' signals, predicted, against real passes and the textbook's map."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import wellposed as wp
from wellposed.signals.distributions.mixtures import given_scales

WITHIN = 0.05


def convolutions(depth: int, padding: int, kernel: int = 3) -> nn.Module:
    channels = [3] + [64] * depth
    layers = [
        layer
        for before, after in itertools.pairwise(channels)
        for layer in (nn.Conv2d(before, after, kernel, padding=padding), nn.ReLU())
    ]
    return nn.Sequential(*layers)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Conv2d(3, 64, 3, padding=1)
        self.convs = nn.ModuleList([nn.Conv2d(64, 64, 3, padding=1) for _ in range(6)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(64) for _ in range(6)])
        self.out = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.into(x)
        for norm, conv in zip(self.norms, self.convs, strict=True):
            x = x + conv(functional.relu(norm(x)))
        return self.out(x.mean((2, 3)))


class Times(nn.Module):
    """A batch whose axis is the second, and lies inside another one for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.mixed, self.out = nn.Linear(64, 128), nn.Linear(128, 128), nn.Linear(128, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.into(x)).transpose(0, 1)
        x = functional.gelu(self.mixed(x.reshape(-1, 128)))
        return self.out(x.unflatten(0, (5, -1)).mean(0))


class Decays(nn.Module):
    """A loop with decays that differ by channel and are the same for all samples, beside a running maximum (RWKV)."""

    def __init__(self) -> None:
        super().__init__()
        self.keys, self.values, self.out = nn.Linear(64, 96), nn.Linear(64, 96), nn.Linear(96, 16)
        self.decay = nn.Parameter(torch.linspace(-2.0, 2.0, 96))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        keys, values = self.keys(x), self.values(x)
        most = keys[:, 0]
        above, below = values[:, 0], torch.ones_like(most)
        decay = -torch.exp(self.decay)
        for at in range(1, x.shape[1]):
            now = torch.maximum(most + decay, keys[:, at])
            old, new = torch.exp(most + decay - now), torch.exp(keys[:, at] - now)
            above, below, most = old * above + new * values[:, at], old * below + new, now
        return self.out(above / below)


NETS = {
    "padded convolutions": (lambda: convolutions(12, 1), (8, 3, 12, 12)),
    "decays": (Decays, (8, 8, 64)),
    "convolutions without padding": (lambda: convolutions(5, 0), (8, 3, 16, 16)),
    "convolutions of single positions": (lambda: convolutions(8, 0, 1), (8, 3, 8, 8)),
    "residual branches behind batch norms": (Residual, (8, 3, 12, 12)),
    "tanh": (lambda: nn.Sequential(*[m for _ in range(10) for m in (nn.Linear(256, 256), nn.Tanh())]), (8, 256)),
    "a transformer": (
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True, norm_first=True), 3,
            enable_nested_tensor=False,
        ),
        (8, 10, 128),
    ),
    "times before samples": (Times, (8, 5, 64)),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_similarity_is_that_of_real_passes(name):
    make, shape = NETS[name]
    torch.manual_seed(0)
    graph = wp.trace(make(), torch.randn(shape))
    plan = wp.plan(graph, method="autoinit")
    predicted, measured = wp.propagate(graph, weights=plan), wp.measure(graph, plan=plan, draws=16)
    pairs = [(signal.similarity, measured[signal.name].similarity) for signal in predicted]
    apart = [abs(one - other) for one, other in pairs if not math.isnan(one + other)]
    assert all(
        math.isnan(one) == math.isnan(other) for one, other in pairs
    )  # what parameters alone make has no samples
    assert len(apart) >= 0.9 * len(pairs)
    assert np.mean(np.array(apart) <= WITHIN) >= 0.9


def test_similarity_follows_the_map_of_the_textbook():
    """Cho & Saul 2009: two inputs at an angle of 90 degrees, ReLU after ReLU."""
    layers = [layer for _ in range(6) for layer in (nn.Linear(4096, 4096, bias=False, device="meta"), nn.ReLU())]
    graph = wp.trace(nn.Sequential(*layers), torch.randn(4, 4096, device="meta"))
    expected, c = [], 0.0
    for _ in range(6):
        expected.append(c)
        c = (math.sqrt(1.0 - c * c) + c * (math.pi - math.acos(c))) / math.pi
    found = [s.similarity for s in wp.propagate(graph, weights="planned") if s.op.startswith("linear")]
    assert found == pytest.approx(expected, abs=1e-3)


def test_signals_of_one_sample_tell_no_similarity():
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
    graph = wp.trace(net, torch.randn(1, 8))
    assert all(math.isnan(s.similarity) for s in (*wp.propagate(graph), *wp.measure(graph, draws=2)))


def test_what_does_not_depend_on_the_samples_is_the_same_for_all():
    class Biased(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, x):
            return self.layer(torch.zeros_like(x)) + 1e-9 * x

    net = Biased()
    graph = wp.trace(net, torch.randn(8, 64))
    last = wp.measure(graph, draws=2)[-1]
    assert last.similarity == pytest.approx(1.0, abs=1e-6)
    assert wp.propagate(graph)[-1].similarity == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("shared", [0.0, 1.0])
@pytest.mark.parametrize("kappa", [0.3, 0.8])
def test_scales_that_differ_hide_a_part_of_the_correlation(shared, kappa):
    """The covariance of sqrt(tau) g and sqrt(tau') g', of Gamma-distributed scales, by sampling."""
    generator = np.random.default_rng(0)
    taus = generator.gamma(1.0 / kappa, kappa, (2, 400_000))
    taus[1] = taus[0] if shared else taus[1]
    g = generator.standard_normal((2, 400_000))
    g[1] = 0.6 * g[0] + 0.8 * g[1]
    x, y = np.sqrt(taus) * g
    corr = np.array([1.0, np.mean(x * y) / math.sqrt(np.mean(x * x) * np.mean(y * y))])
    found = given_scales(corr, np.array([1.0, shared]), kappa)
    assert found == pytest.approx([1.0, 0.6], abs=0.015)  # six nodes give E sqrt(tau) to 0.008


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_norms_take_out_what_all_positions_of_pooled_pictures_share(size):
    """Zero padding makes borders darker, in proportion: nothing of that is left where windows lie side by side."""
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 128, 3, padding=1), nn.ReLU(), nn.Conv2d(128, 128, 1), nn.AvgPool2d(size))
    graph = wp.trace(nn.Sequential(*layers, nn.BatchNorm2d(128)), torch.randn(8, 3, 16, 16))
    plan = wp.plan(graph, inputs=wp.Input.white(), method="autoinit")
    predicted = wp.propagate(graph, inputs=wp.Input.white(), weights=plan)[-1].similarity

    def inputs(draw):
        return torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(draw))

    passes = [
        wp.measure(graph, plan=plan, draws=1, inputs=lambda _, draw=draw: inputs(draw), seed=draw)[-1].similarity
        for draw in range(24)
    ]
    assert abs(predicted - np.mean(passes)) < 4 * np.std(passes, ddof=1) / math.sqrt(len(passes))


class Attending(nn.Module):
    """Softmax of scores under a causal mask, with a bias that falls with distance where there is one."""

    def __init__(self, fall: float, size: int = 16, width: int = 64):
        super().__init__()
        self.query, self.key, self.size = nn.Linear(width, width), nn.Linear(width, width), size
        place = torch.arange(size)
        self.register_buffer("bias", -fall * (place[:, None] - place).abs().float())
        self.register_buffer("mask", torch.full((size, size), -math.inf).triu(1))

    def forward(self, x):
        scores = self.query(x) @ self.key(x).transpose(1, 2) / x.shape[-1] ** 0.5
        return (scores + self.bias + self.mask).softmax(-1)


@pytest.mark.parametrize("fall", [0.0, 0.5])
def test_weights_of_a_softmax_share_what_a_mask_and_a_bias_make_of_them(fall):
    """E a a' of one query and key in two samples is the product of means, by sampling of independent scores."""
    net = Attending(fall)
    graph = wp.trace(net, torch.randn(4, 16, 64))
    found = wp.propagate(graph, weights=wp.plan(graph, method="autoinit"))[-1].similarity
    scores = torch.randn(20_000, 16, 16, generator=torch.Generator().manual_seed(0)) + net.bias + net.mask
    weights = scores.softmax(-1)
    expected = float(weights.mean(0).square().mean() / weights.square().mean())
    assert found == pytest.approx(expected, abs=WITHIN)
