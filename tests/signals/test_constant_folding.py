"""What a model computes of its weights alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import wellposed as wp
from wellposed.signals.context.parameters import Weights, state_of_values

X = torch.zeros(64, 96)


def spectral(new, iterations=30, **kwargs):
    norm = nn.utils.parametrizations.spectral_norm if new else nn.utils.spectral_norm
    torch.manual_seed(0)
    inner = norm(nn.Linear(96, 192, bias=False, **kwargs), n_power_iterations=iterations)
    return nn.Sequential(inner, nn.ReLU(), nn.Linear(192, 48, **kwargs))


@pytest.mark.slow
@pytest.mark.parametrize("new", [False, True], ids=["old form", "parametrisation"])
@pytest.mark.parametrize("method", ["autoinit", "kaiming"])
def test_a_spectral_norm_is_that_of_its_own_weight(new, method):
    graph = wp.trace(spectral(new), X)
    plan = wp.plan(graph, method=method)
    check = wp.check(graph, plan=plan, draws=4)
    assert check.ok, check.summary()
    hidden = next(s for s in wp.propagate(graph, weights=plan) if s.shape == (64, 192))
    # Gaussian W of m x n: W / sigma has entries of variance 1 / (sqrt(m) + sqrt(n))² (Marchenko & Pastur)
    assert hidden.second_moment == pytest.approx(96 / (96**0.5 + 192**0.5) ** 2, rel=0.1)
    if method == "autoinit":
        assert plan.prescriptions["2.weight"].std == pytest.approx((192 * hidden.second_moment / 2) ** -0.5, rel=1e-3)


@pytest.mark.slow
def test_a_spectral_norm_on_meta():
    plan = wp.plan(spectral(True, device="meta"), X, method="autoinit")
    expected = (96 * 96 / (96**0.5 + 192**0.5) ** 2) ** -0.5
    assert plan.prescriptions["2.weight"].std == pytest.approx(expected, rel=0.15)


def test_numbers_of_a_parameter_that_are_known_in_part_or_not_at_all():
    graph = wp.trace(nn.Sequential(nn.Linear(96, 192)), X)
    weights = Weights(graph)
    torch.manual_seed(0)
    sampled = replace(graph.parameters["0.weight"], values=0.5 + 0.1 * torch.randn(4096))
    assert weights.state(sampled, 1).shape == (192, 96)
    assert weights.values(sampled, drawn=False) is None
    drawn = weights.values(sampled, drawn=True)
    assert drawn.shape == (192, 96)
    assert (float(drawn.mean()), float(drawn.std())) == pytest.approx((0.5, 0.1), rel=0.05)
    assert not weights.assumed
    unknown = replace(sampled, values=None)
    assert weights.values(unknown, drawn=False) is None
    assert float(weights.values(unknown, drawn=True).std()) == pytest.approx(0.02, rel=0.05)
    assert weights.assumed == {"0.weight": "N(0, 0.02²)"}


def test_kept_values_are_known_by_position_where_they_are_no_draws():
    torch.manual_seed(0)
    gates = torch.randn(4 * 64) / 8
    assert state_of_values(gates, 1, False).mean.size == 1
    gates[64:128] += 1.0
    assert state_of_values(gates, 1, False).mean.size == 256
    rates = torch.arange(1.0, 17.0).log().repeat(300, 1)
    state = state_of_values(rates, 1, False)
    assert state.mean.shape == (1, 16)
    assert not state.var.any()
    assert not state.roots
    assert state_of_values(torch.randn(100, 100), 1, False).mean.size == 1
    assert state_of_values(torch.randn(100), 1, True).mean.size == 100


@pytest.mark.parametrize("width", [48, 320])
@pytest.mark.parametrize("cell", [nn.LSTM, nn.LSTMCell], ids=["layer", "cell"])
def test_biases_of_gates_are_those_of_their_gate(cell, width):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = cell(32, width)
            with torch.no_grad():
                for name, p in self.cell.named_parameters():
                    if "bias" in name:
                        p.zero_()[width : 2 * width] = 1.0

        def forward(self, x):
            return self.cell(x[0] if cell is nn.LSTMCell else x)[0]

    torch.manual_seed(0)
    graph = wp.trace(Model(), torch.zeros(6, 16, 32))
    plan = wp.plan(graph, method="autoinit")
    predicted, measured = wp.propagate(graph, weights=plan)[-1], wp.measure(graph, plan=plan, draws=8)[-1]
    assert predicted.second_moment == pytest.approx(measured.second_moment, rel=0.1)


class SelectiveScan(nn.Module):
    """A state space with rates of decay of its own for each channel, run step by step."""

    def __init__(self, width=128, states=16):
        super().__init__()
        self.rates = nn.Parameter(torch.arange(1.0, states + 1).log().repeat(width, 1))
        self.steps = nn.Parameter(torch.empty(width).uniform_(-7.0, -2.5))
        self.step, self.enter, self.leave = nn.Linear(width, width), nn.Linear(width, states), nn.Linear(width, states)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        step = nn.functional.softplus(self.step(x) + self.steps)
        decay = torch.exp(step[..., None] * -torch.exp(self.rates))
        given = (step * x)[..., None] * self.enter(x)[..., None, :]
        state, seen = torch.zeros_like(given[:, 0]), []
        for t in range(x.shape[1]):
            state = decay[:, t] * state + given[:, t]
            seen.append((state @ self.leave(x)[:, t, :, None])[..., 0])
        return self.out(torch.stack(seen, 1))


@pytest.mark.slow
def test_a_selective_scan_fades():
    torch.manual_seed(0)
    graph = wp.trace(SelectiveScan(), torch.zeros(4, 24, 128))
    plan = wp.plan(graph, method="autoinit")
    signals = wp.propagate(graph, weights=plan)
    decay = next(s for s in signals if s.op == "exp.default" and s.shape == (4, 24, 128, 16))
    assert decay.second_moment < 1.0
    assert plan.prescriptions["rates"].action == plan.prescriptions["steps"].action == "keep"
    measured = wp.measure(graph, plan=plan, draws=8)
    for name in ("stack", "out"):
        seen = next(s for s in measured if s.name == name)
        predicted = next(s for s in signals if s.name == name)
        assert predicted.second_moment == pytest.approx(seen.second_moment, rel=0.3)
