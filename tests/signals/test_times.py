"""The times of a loop, one after another: what they have in common counts in all that reads them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wellposed as wp

WIDTH = 64


class Leaky(nn.Module):
    """A state that forgets at a rate of each channel's own, and what is made of its times."""

    def __init__(self, then: Callable[[Tensor, nn.Linear], Tensor], times: int, decays: bool) -> None:
        super().__init__()
        self.enter, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.then, self.times = then, times
        self.decay = nn.Parameter(torch.linspace(0.3, 0.9, WIDTH) if decays else torch.tensor(0.6))
        nn.init.normal_(self.enter.bias, std=1.0)  # which all times share

    def forward(self, x: Tensor) -> Tensor:
        """Return what is made of all times."""
        h = torch.zeros(len(x), WIDTH)
        found = []
        for time in range(self.times):
            h = self.decay * h + (1 - self.decay) * self.enter(x[:, time])
            found.append(h)
        return self.then(torch.stack(found, 1), self.out)


READERS: dict[str, Callable[[Tensor, nn.Linear], Tensor]] = {
    "last": lambda h, _: h[:, -1],
    "norm, mean": lambda h, _: F.rms_norm(h, (WIDTH,)).mean(1),
    "layer, mean": lambda h, out: out(h).mean(1),
    "norm, layer, mean": lambda h, out: out(F.rms_norm(h, (WIDTH,))).mean(1),
    "norm beside it": lambda h, _: h + F.rms_norm(h, (WIDTH,)),
}


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("decays", [True, False])
@pytest.mark.parametrize("times", [6, 20])
def test_what_reads_the_times_of_a_loop_sees_what_they_share(reader: str, decays: bool, times: int) -> None:
    model = Leaky(READERS[reader], times, decays)
    x = torch.randn(16, times, WIDTH)
    check = wp.check(model, x, plan=wp.plan(model, x))
    assert check.ok, check


@pytest.mark.slow
@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("layer", ["lstm", "leaky"])
@pytest.mark.parametrize("times", [6, 20])
def test_a_loop_over_the_times_of_a_loop_adds_up_what_they_share(times: int, layer: str, turned: bool) -> None:
    recurrent = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def then(h: Tensor, out: nn.Linear) -> Tensor:
        h = h.flip(1) if turned else h
        if layer == "lstm":
            return recurrent(h)[1][1]
        state = torch.zeros(len(h), WIDTH)
        for time in range(times):
            state = 0.8 * state + 0.2 * out(h[:, time])
        return state

    model = Leaky(then, times, False)
    model.recurrent = recurrent
    x = torch.randn(16, times, WIDTH)
    check = wp.check(model, x, plan=wp.plan(model, x))
    assert check.ok, check


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_a_norm_takes_what_a_layer_with_equal_biases_gives(norm: type[nn.Module]) -> None:
    layer = nn.Linear(16, WIDTH)
    nn.init.constant_(layer.bias, 0.1)
    model = nn.Sequential(layer, norm(WIDTH), nn.Tanh(), nn.Linear(WIDTH, 4))
    x = torch.randn(16, 16)
    assert wp.check(model, x, plan=wp.plan(model, x)).ok


@pytest.mark.slow
@pytest.mark.parametrize("kept", ["the state", "its products with queries", "parts of values"])
def test_a_loop_over_products_of_what_layers_made_adds_up_what_they_share(kept: str) -> None:
    class Gated(nn.Module):
        """A state that adds up products, without means, of two layers of tokens that have much in common."""

        def __init__(self) -> None:
            super().__init__()
            self.made = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)])

        def forward(self, x: Tensor) -> Tensor:
            value, key, query = (each(x + 5.0 * x.mean(1, keepdim=True)) for each in self.made)
            h, found = torch.zeros(len(x), WIDTH), []
            for time in range(x.shape[1]):
                h = 0.5 * h + value[:, time] * key[:, time]
                read = {"the state": h, "its products with queries": h * query[:, time]}
                found.append(read[kept] if kept in read else value[:, time, : WIDTH // 2])
            return torch.stack(found, 1).mean(1)

    torch.manual_seed(0)
    graph = wp.trace(Gated(), torch.randn(8, 16, WIDTH))
    plan = wp.plan(graph)
    last = graph.nodes[-1].name
    predicted = wp.propagate(graph, weights=plan)[last].second_moment
    draws = [wp.measure(graph, plan=plan, draws=1, seed=seed)[last].second_moment for seed in range(24)]
    mean, error = float(np.mean(draws)), float(np.std(draws, ddof=1)) / 24.0**0.5
    assert abs(predicted - mean) < 4.0 * error < 0.8 * mean  # 2.5 to 3.5 octaves below, had times nothing in common
