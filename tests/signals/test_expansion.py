"""Functions that grow so fast that expectations are carried by what no batch shows."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import roots_genlaguerre
from torch import nn

import wellposed as wp
from wellposed.errors import PlanError
from wellposed.signals.distributions.expansion import expand
from wellposed.signals.distributions.fluctuations import carried_spread, fluctuation
from wellposed.signals.distributions.functions import Pointwise
from wellposed.signals.distributions.groups import BINS, MOST
from wellposed.signals.distributions.mixtures import expand_mixture, gamma_nodes
from wellposed.signals.distributions.tails import clip_unseen_tails

ELEMENTS, BATCHES = 100_000, 25
EXP = Pointwise(("exp",), torch.exp)


def batches_show(function, std=1.0, kappa=0.0):
    """Return the median over batches of the second moment of the function; a thousand local scales in each batch."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(BATCHES):
        scale = rng.gamma(1 / kappa, kappa, 1000).repeat(ELEMENTS // 1000) if kappa else 1.0
        found.append(np.mean(function(std * np.sqrt(scale) * rng.standard_normal(ELEMENTS)) ** 2))
    return float(np.median(found))


@pytest.mark.parametrize("std", [3.0, 4.0, 6.0])
def test_a_wide_signal_under_exp_is_what_batches_show_of_it(std):
    shown = clip_unseen_tails(EXP, np.zeros(1), np.array([std]))
    predicted = expand(shown, np.zeros(1), np.array([std])).second[0]
    assert abs(math.log2(predicted / batches_show(np.exp, std))) < 1.5
    assert predicted < math.exp(2 * std**2) / 2  # the expectation


@pytest.mark.parametrize("kappa", [0.7, 1.0, 2.0])
def test_scales_that_no_batch_shows_do_not_count(kappa):
    predicted = expand_mixture(EXP, np.zeros(1), np.ones(1), kappa).average.second[0]
    assert abs(math.log2(predicted / batches_show(np.exp, kappa=kappa))) < 3.5  # what single batches differ by


@pytest.mark.parametrize(
    ("function", "mean", "std"),
    [
        (EXP, 0.0, 0.5),
        (EXP, 0.0, 1.5),
        (Pointwise(("power",), lambda x: x**10), 0.0, 1.0),
        (Pointwise(("far",), lambda x: torch.relu(x - 5)), 0.0, 1.0),  # nothing in the bulk, and no steep growth
        (Pointwise(("relu",), torch.relu), -5.0, 1.0),
        (Pointwise(("shrink",), lambda x: nn.functional.softshrink(x, 5.0)), 0.0, 1.0),
        (Pointwise(("root",), torch.sqrt), -5.0, 1.0),
        (Pointwise(("log",), torch.log), -5.0, 1.0),
    ],
    ids=["exp", "wider exp", "power", "far", "dead ReLU", "shrink", "root", "logarithm"],
)
def test_what_grows_like_a_power_or_shows_in_batches_is_left_alone(function, mean, std):
    assert clip_unseen_tails(function, np.array([mean]), np.array([std])) is function


@pytest.mark.parametrize("kappa", [2.0, 8.0])
@pytest.mark.parametrize("power", [2, 3, 4])
def test_powers_are_followed_over_all_scales(power, kappa):
    function = Pointwise(("power", power), lambda x: x**power)
    double = math.prod(range(2 * power - 1, 0, -2))  # E z^2n = (2n - 1)!!
    moment = math.prod(1 + k * kappa for k in range(power))  # E tau^n of a Gamma variable of mean 1
    mixed = expand_mixture(function, np.zeros(1), np.ones(1), kappa).average.second[0]
    assert mixed == pytest.approx(double * moment, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("variance", [0.0099, 0.0101])  # by the slope, and by seven scales
@pytest.mark.parametrize("std", [2.0, 3.0, 4.0])
def test_the_spread_is_that_of_what_is_shown(std, variance):
    """The logarithm of the second moment behind the function, sampled over that of the signal."""
    shown = clip_unseen_tails(EXP, np.zeros(1), np.array([std]))
    expansion = expand(shown, np.zeros(1), np.array([std]))
    predicted = carried_spread(shown, 0.0, std, variance, expansion.sensitivity)
    draws = 400
    stds = std * np.exp(np.random.default_rng(0).normal(0.0, math.sqrt(variance), draws) / 2)
    sampled = np.var([math.log(expand(shown, np.zeros(1), np.array([s])).second[0]) for s in stds], ddof=1)
    assert abs(predicted - sampled) < 4 * sampled * math.sqrt(2 / (draws - 1))  # standard error of a variance


def test_batches_show_what_the_page_says():
    assert 1.5e10 < batches_show(np.exp, 4.0) < 6e10


class Exp(nn.Module):
    def forward(self, x):
        return torch.exp(x)


def test_autoinit_does_not_silence_a_net_of_exponentials():
    """Weights scaled by the expectation, 34,000 where batches show about 15, would make the signal vanish."""
    net = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), Exp(), nn.Conv2d(12, 12, 3, padding=1), Exp())
    graph = wp.trace(net, torch.zeros(64, 3, 16, 16))
    plan = wp.plan(graph, method="autoinit")
    measured = wp.measure(graph, plan=plan, draws=8)
    name = [signal.name for signal in measured][2]
    assert measured[name].second_moment > 2**-5
    assert plan.prescriptions["2.weight"].std == pytest.approx((12 * 9) ** -0.5)  # and says that no signal tells it
    assert "'2.weight' (what it meets at 2 (conv2d.default), '1', has no second moment" in plan.warnings[0]


def test_no_warning_comes_of_what_overflows():
    class Steep(nn.Module):
        def forward(self, x):
            return torch.exp(torch.cosh(x))

    net = nn.Sequential(nn.Linear(8, 8), Steep(), nn.Linear(8, 8), Steep(), nn.Linear(8, 2))
    graph = wp.trace(net, torch.zeros(4, 8))
    wp.propagate(graph, weights="current", backward=True)
    wp.propagate(graph, weights="planned", backward=True)
    assert "is NaN or infinite" in " ".join(wp.plan(graph).warnings)
    with pytest.raises(PlanError, match="no signal tells the scale of 2 weight"):
        wp.plan(graph, strict=True)


@pytest.mark.slow
def test_positions_over_decades_are_binned_within_two_percent():
    """Frequencies of an embedding of time: bins of positions hold over all their orders of magnitude."""
    rate = 1000.0 * np.exp(-9.2 * np.arange(256) / 256)
    sine = Pointwise(("sin",), torch.sin)
    together = expand(sine, 0.45 * rate, 0.25 * rate)
    alone = [expand(sine, np.array([0.45 * r]), np.array([0.25 * r])) for r in rate]
    second = np.array([float((one.mean**2 + one.var).ravel()[0]) for one in alone])
    assert np.mean(together.mean**2 + together.var) == pytest.approx(second.mean(), rel=0.02)
    assert np.abs(together.mean**2 + together.var - second).max() < 0.2


@pytest.mark.parametrize("count", [2, 6, 12])
@pytest.mark.parametrize("kappa", [0.03, 0.5, 1.0, 8.0])
def test_nodes_of_a_gamma_distribution_are_those_of_laguerre(kappa, count):
    nodes, weights = gamma_nodes(kappa, count)
    reference, shares = roots_genlaguerre(count, 1.0 / kappa - 1.0)
    assert nodes == pytest.approx(reference * kappa, rel=1e-9)
    assert weights == pytest.approx(shares / shares.sum(), rel=1e-6)


def test_a_fluctuation_is_no_less_than_zero():
    """Elements that sum to zero, their correlations rounded: a variance below 0 has no root."""
    linear = np.eye(10)[1]
    assert fluctuation(linear, np.array([1.0, -1.0 / 3.0]), np.ones(1), (4,)) == pytest.approx(0.0, abs=1e-15)
    assert fluctuation(linear, np.array([1.0, -1.0 / 3.0 - 1e-12]), np.ones(1), (4,)) == 0.0


@pytest.mark.parametrize("unlike", ["both", "stds", "few", "decades", "late"])
def test_positions_in_groups_are_nearly_what_each_makes_by_itself(unlike):
    """Of few groups each is integrated; of many, bins. ``late``: one position in a thousand differs, the last ones."""
    rng = np.random.default_rng(0)
    means, stds = {
        "both": (rng.normal(size=(60, 90)), 0.5 + rng.random((60, 90))),
        "stds": (np.zeros((1, 1)), 0.5 + rng.random((100, 100))),
        "few": (rng.integers(0, 3, (70, 70)).astype(float), np.ones((1, 1))),
        "decades": (np.zeros((1, 1)), np.exp(4.0 * rng.normal(size=(50, 50)))),
        "late": (np.zeros((1, 1)), np.r_[np.ones(8000), np.linspace(1.0, 2.0, 100)][None]),
    }[unlike]
    relu = Pointwise(("shifted relu",), lambda x: (x - 0.1).clamp(min=0.0))
    found = expand(relu, means, stds)
    bins = BINS if unlike == "both" else MOST
    # the function changes by no more than its mean does, and by the density at its centre times its deviation
    width = 1e-3 if unlike == "few" else (np.ptp(means) + np.ptp(stds) * stats.norm.pdf(0.0)) / bins
    means, stds = np.broadcast_arrays(means - 0.1, stds)
    exact = means * stats.norm.cdf(means / stds) + stds * stats.norm.pdf(means / stds)
    assert np.abs(found.mean - exact).max() <= width
    assert found.mean.mean() == pytest.approx(exact.mean(), rel=1e-2)
