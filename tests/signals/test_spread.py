"""Wide spreads: of few elements whose squares vary by more than their mean, and of sums of which they are a part."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import wellposed as wp
from wellposed.measuring.comparison import SPREAD_FACTOR
from wellposed.measuring.intervals import std_range
from wellposed.signals.distributions.spread import NONE, Spread, source

DRAWS = 400
NINE = 0.15
"""What a sum over nine scales may miss of a log-normal variable; the error of a million draws is far below."""


@pytest.mark.parametrize("share", [0.05, 0.3, 0.7, 0.97])
@pytest.mark.parametrize("std", [0.1, 1.2, 2.0, 4.0])
def test_a_part_of_a_sum_is_that_of_a_log_normal_variable(share: float, std: float) -> None:
    """1 − w + w e^(d + s z), by a million draws: far from proportional to w where s is large."""
    variance = std * std
    logs = std * np.random.default_rng(0).standard_normal(1_000_000) - 0.5 * variance
    sums = np.log1p(share * np.expm1(logs))
    inherited, own = Spread(source(3, variance)), Spread(NONE, source(3, variance))
    for whole in (inherited, own):
        part = Spread().beside(whole, share)
        assert math.sqrt(part.variance) == pytest.approx(sums.std(), rel=NINE)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("corr", [-0.5, 0.0, 0.6, 0.95])
@pytest.mark.parametrize(("one", "other"), [(0.3, 2.0), (2.0, 2.0), (1.5, 3.0), (4.0, 5.0)])
def test_a_sum_of_log_normal_variables_has_the_spread_of_samples(
    one: float, other: float, corr: float, share: float
) -> None:
    """(1 − w) e^a + w e^b of correlated a and b, by a million draws: what goes along with both stays whole."""
    z, rest = np.random.default_rng(0).standard_normal((2, 1_000_000))
    first, second = one * z, other * (corr * z + math.sqrt(1.0 - corr * corr) * rest)
    sums = np.log((1.0 - share) * np.exp(first - one * one / 2) + share * np.exp(second - other * other / 2))
    both = source(4, other * other * (1.0 - corr * corr)) + source(3, 1.0).times(other * corr)
    for x in (Spread(source(3, one * one)), Spread(NONE, source(3, one * one))):
        made = x.beside(Spread(both), share)
        assert math.sqrt(made.variance) == pytest.approx(sums.std(), rel=NINE)


def assert_spreads(model: nn.Module, x: Tensor, names: Iterable[str]) -> None:
    """Predicted and measured spread at these nodes agree within a factor and the interval of the measurement."""
    graph = wp.trace(model, x)
    plan = wp.plan(graph, method="autoinit")
    predicted, measured = wp.propagate(graph, weights=plan), wp.measure(graph, plan=plan, draws=DRAWS)
    for name in names:
        least, most = (bound * measured[name].log2_std for bound in std_range(DRAWS - 1))
        assert least / SPREAD_FACTOR < predicted[name].log2_std < most * SPREAD_FACTOR, name


class Few(nn.Module):
    """Exponentials of few elements, and what they are a part of."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.one, self.many = nn.Linear(32, 1, bias=False), nn.Linear(32, 7, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        few = (1.5 * self.one(x)).exp()
        if self.how == "alone":
            return few
        return torch.cat([few, 9 * self.many(x)], -1) if self.how == "cat" else few + 9 * self.many(x)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["alone", "cat", "sum"])
def test_the_spread_of_few_elements_is_as_measured(how: str) -> None:
    """Four elements, the mean of whose squares has a relative variance of 48: ten octaves, taken for a logarithm."""
    torch.manual_seed(0)
    names = ("exp", {"alone": "exp", "cat": "cat", "sum": "add"}[how])
    assert_spreads(Few(how), torch.zeros(4, 32), names)


class Centred(nn.Module):
    """A sigmoid about its middle, behind layers of few channels."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(6))
        self.last = nn.Linear(8, 64, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return torch.sigmoid(self.last(x)) - 0.5


@pytest.mark.slow
def test_a_shift_by_the_mean_leaves_the_spread_of_the_input() -> None:
    """The second moment of a sigmoid rests on its mean and hardly varies; without it, it varies as its input does."""
    torch.manual_seed(0)
    assert_spreads(Centred(), torch.zeros(64, 8), ("sigmoid", "sub"))


class Frozen(nn.Module):
    """A gated stack without norms, whose weights are frozen or not."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 16, bias=False) for _ in range(12))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            a, b = layer(x).chunk(2, -1)
            x = a * b
        return x


@pytest.mark.parametrize("frozen", [False, True])
def test_no_warning_of_draws_that_a_plan_does_not_make(frozen: bool) -> None:
    torch.manual_seed(0)
    model = Frozen().requires_grad_(not frozen)
    x = torch.zeros(4, 8)
    plan = wp.plan(model, x, method="autoinit")
    told = [text for text in plan.warnings if "between weight draws" in text]
    assert len(told) == (not frozen)


class Shifted(nn.Module):
    """Functions of a signal about biases that a plan keeps, behind few channels."""

    def __init__(self, bias: float) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 8, bias=False), nn.Linear(8, 64, bias=False)
        self.register_buffer("bias", bias + 0.3 * torch.randn(64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.first(x)
        x = self.second(x * x.square().mean().sqrt()) + self.bias
        return x, nn.functional.softplus(x), torch.sigmoid(x)


@pytest.mark.slow
@pytest.mark.parametrize("bias", [-4.0, 1.0])
def test_a_bias_holds_the_spread_down(bias: float) -> None:
    """A bias does not grow with the signal: its second moment hardly moves, a function of it as the signal does."""
    torch.manual_seed(0)
    assert_spreads(Shifted(bias), torch.zeros(64, 64), ("add", "softplus", "sigmoid"))


class Steps(nn.Module):
    """Step sizes, as state spaces have them: of few numbers, by channel, their biases spread over three decades."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.few = nn.Linear(16, rank, bias=False) if rank < 16 else nn.Identity()
        self.linear = nn.Linear(rank, 64, bias=False)
        self.bias = nn.Parameter(torch.linspace(math.log(1e-4), math.log(1e-1), 64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = nn.functional.layer_norm(x, (16,))
        steps = nn.functional.softplus(self.linear(self.few(x)) + self.bias)
        return steps, steps[:, 3]


@pytest.mark.slow
@pytest.mark.parametrize("rank", [16, 8, 4])
def test_the_spread_of_few_channels_and_of_a_part_is_as_measured(rank: int) -> None:
    """A few channels hold most of the squares, whose chance does not average out; nor does that of fewer positions."""
    torch.manual_seed(0)
    assert_spreads(Steps(rank), torch.randn(4, 32, 16), ("softplus", "select"))


@pytest.mark.slow
@pytest.mark.parametrize("value", [0.0, 1.0, -1e10])
def test_numbers_around_a_signal_take_their_part_of_its_spread(value: float) -> None:
    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 12)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.pad(self.second(torch.relu(self.first(x))), (2, 2), value=value)

    torch.manual_seed(0)
    graph = wp.trace(Padded(), torch.randn(16, 8))
    plan = wp.plan(graph)
    draws = 60
    predicted = wp.propagate(graph, weights=plan)["pad"].log2_std
    measured = wp.measure(graph, plan=plan, draws=draws)["pad"].log2_std
    assert abs(predicted - measured) < 4.0 * measured / math.sqrt(2 * draws) + 1e-6
