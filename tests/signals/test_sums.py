"""Sums and integrals that rules share, against enumeration or samples."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wellposed as wp
from wellposed.signals.algebra.softmax import participations
from wellposed.signals.algebra.softmax_overlap import overlap
from wellposed.signals.distributions.lazy import Lazy, evaluated
from wellposed.signals.integration import maps
from wellposed.signals.integration.quadratic import channel_norm_correction
from wellposed.signals.rules import pooling

ERRORS = 5.0
"""Standard errors that a sampled figure may be off."""


@pytest.mark.parametrize(
    ("lengths", "varying"),
    [
        ((5, 4), (5, 4)),
        ((3, 3), (5, 4)),
        ((5, 4), (1, 4)),
        ((2, 4), (1, 4)),
        ((1, 4), (1, 4)),
        ((5, 2), (5, 1)),
        ((5, 1), (1, 1)),
        ((2, 2), (1, 1)),
    ],
)
@pytest.mark.parametrize("over", [(0, 1), (1,), (0,)])
def test_the_covariance_with_the_mean_is_the_mean_covariance(lengths, varying, over):
    sizes = (5, 4)
    rng = np.random.default_rng(0)
    corr = rng.uniform(0.1, 0.9, lengths)
    std = rng.uniform(0.5, 2.0, varying)
    whole = np.broadcast_to(std, sizes)

    def at(lag: int, dim: int) -> float | int | None:
        if lag == 0:
            return 0
        return None if lengths[dim] == 1 else min(lag, lengths[dim] - 1)

    expected = np.zeros(sizes)
    for p in np.ndindex(*sizes):
        # along the other atoms: the same position only
        others = [range(sizes[d]) if d in over else (p[d],) for d in (0, 1)]
        terms = []
        for q in itertools.product(*others):
            index = [at(abs(p[d] - q[d]), d) for d in (0, 1)]
            terms.append(0.0 if None in index else whole[p] * whole[q] * corr[tuple(index)])
        expected[p] = np.mean(terms)
    found = maps.covariance_with_mean(std, corr, sizes, list(over))
    np.testing.assert_allclose(np.broadcast_to(found, sizes), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("keys", [(1.0, 2.0, 5.0), (40.0, 3.0)])
@pytest.mark.parametrize("sigma2", [0.0, 0.04, 1.0, 9.0, 60.0])
def test_the_participation_of_a_softmax_is_that_of_samples(keys, sigma2):
    generator = torch.Generator().manual_seed(0)
    for count, found in zip(keys, participations(keys, sigma2), strict=True):
        logits = torch.randn(40000, int(count), generator=generator, dtype=torch.float64) * sigma2**0.5
        squares = (torch.softmax(logits, dim=1) ** 2).sum(dim=1)
        error = float(squares.std()) / 200.0
        assert abs(found - float(squares.mean())) <= ERRORS * error + 1e-9


@pytest.mark.parametrize("keys", [2, 5, 24, 200])
@pytest.mark.parametrize("sigma2", [0.7, 8.0, 60.0, 400.0])
@pytest.mark.parametrize("alike", [-0.3, 0.05, 0.4, 0.9])
def test_what_two_queries_choose_together_is_that_of_samples(keys, sigma2, alike):
    torch.manual_seed(0)
    shared, *own = torch.randn(3, 4000, keys)
    part = abs(alike)
    first, second = (
        sigma2**0.5 * (part**0.5 * s + (1 - part) ** 0.5 * x)
        for s, x in zip((shared, math.copysign(1, alike) * shared), own, strict=True)
    )
    together = (first.softmax(-1) * second.softmax(-1)).sum(-1) * keys
    error = float(together.std() / together.mean()) / 4000**0.5 / math.log(2.0)
    square = float(participations((float(keys),), sigma2)[0])
    predicted = math.log2(float(overlap(alike, sigma2, keys, square)))
    limit = 0.25 if alike > 0.0 else 0.5
    assert abs(predicted - math.log2(float(together.mean()))) < limit + 3 * error


@pytest.mark.slow
def test_overlaps_are_right_by_a_fiftieth_of_an_octave_on_average():
    """Of numbers of keys, variances and correlations that its constants were not fitted to."""
    torch.manual_seed(0)
    errors, chance = [], []
    for keys, sigma2, alike in itertools.product([3, 12, 60], [0.8, 3.0, 10.0], [0.15, 0.5, 0.8]):
        shared, *own = torch.randn(3, 20000, keys)
        first, second = ((sigma2**0.5 * (alike**0.5 * shared + (1 - alike) ** 0.5 * x)).softmax(-1) for x in own)
        together = (first * second).sum(-1) * keys
        square = float(participations((float(keys),), sigma2)[0])
        errors.append(abs(math.log2(float(overlap(alike, sigma2, keys, square)) / float(together.mean()))))
        chance.append(float(together.std() / together.mean()) / 20000**0.5 / math.log(2.0))
    assert np.mean(errors) < 0.02 + 3 * np.mean(chance)


def test_the_overlap_of_equal_queries_is_that_of_one_and_of_strangers_none():
    keys, second = np.array([2.0, 9.0, 300.0]), np.array([0.9, 0.4, 0.1])
    np.testing.assert_allclose(overlap(np.array([0.0, 1.0]), 3.0, keys, second), [[1, 1, 1], keys * second], rtol=1e-6)
    assert overlap(0.5, 0.0, 4.0, 0.25) == 1.0
    assert overlap(0.5, 2.0, 1.0, 1.0) == 1.0


def test_participation_does_not_depend_on_the_company():
    """All numbers of keys share one grid; the longest sets its reach."""
    alone = [participations((count,), 0.7)[0] for count in (2.0, 30.0, 1000.0)]
    np.testing.assert_allclose(participations((2.0, 30.0, 1000.0), 0.7), alone, rtol=1e-9)


@pytest.mark.parametrize(("taps", "step", "dilation", "channels"), [(3, 1, 1, 1), (3, 2, 1, 2), (2, 1, 2, 3)])
def test_a_norm_decorrelates_random_filters_as_samples_do(taps, step, dilation, channels):
    profile = 0.9 ** np.arange(12.0)
    lags = 4
    found = channel_norm_correction(profile, [0], [taps], [step], [dilation], [lags], channels, 0.0)
    assert found is not None
    rng = np.random.default_rng(1)
    filters = rng.standard_normal((60000, channels, taps))
    place = dilation * np.arange(taps)
    shifted = [profile[np.abs(place[:, None] - place - step * d)] for d in range(lags)]
    forms = [np.einsum("nct,tu,ncu->n", filters, matrix, filters) for matrix in shifted]
    for d in range(1, lags):
        values = forms[d] / forms[0]
        plain = np.trace(shifted[d]) / np.trace(shifted[0])
        assert abs(found[d] - (values.mean() - plain)) <= ERRORS * values.std() / np.sqrt(values.size) + 1e-6
    assert found[0] == 0.0


class MaximumOfNeighbours(nn.Module):
    """Windows of three by three that overlap: the patch that they share has equal eigenvalues."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(torch.relu(self.conv(x)), 3, 2)


def test_rounding_does_not_choose_the_sample_of_a_maximum(monkeypatch):
    graph = wp.trace(MaximumOfNeighbours(), torch.zeros(2, 3, 16, 16))
    before = wp.propagate(graph, weights="planned")[-1]
    eigh = np.linalg.eigh
    noise = np.random.default_rng(0)

    def rounded_otherwise(matrix):
        tilt = 1e-14 * noise.standard_normal(matrix.shape)
        assert (matrix + tilt != matrix).any()
        return eigh(matrix + tilt + tilt.T)

    monkeypatch.setattr(pooling.np.linalg, "eigh", rounded_otherwise)
    after = wp.propagate(graph, weights="planned")[-1]
    assert after.mean == pytest.approx(before.mean, rel=1e-9)
    assert after.var == pytest.approx(before.var, rel=1e-9)


def test_a_deferred_value_is_made_once():
    made = []

    def make():
        made.append(1)
        return np.ones(2)

    later = Lazy(make)
    assert not made
    assert evaluated(later) is evaluated(later)
    assert made == [1]
    assert evaluated(None) is None
    assert evaluated(Lazy(lambda: None)) is None
    np.testing.assert_array_equal(evaluated(Lazy.of(np.zeros(3))), np.zeros(3))


@pytest.mark.slow
def test_a_long_chain_of_convolutions_is_not_worked_out_by_recursion():
    chain = [nn.Conv2d(4, 4, 3, padding=1, bias=False) for _ in range(400)]
    graph = wp.trace(nn.Sequential(*chain, nn.ReLU()), torch.zeros(1, 4, 8, 8))
    assert np.isfinite(wp.propagate(graph, weights="planned")[-1].var)


class Met(nn.Module):
    """A signal that meets the mean of what it was made of, or of what was made of it, over some of its axes."""

    def __init__(self, form):
        super().__init__()
        self.first, self.form = nn.Linear(32, 32), form

    def forward(self, x):
        return self.form(self.first(x))


MET = {
    "plus": lambda x: x + x.mean(1, keepdim=True),
    "minus half": lambda x: x - 0.5 * x.mean(1, keepdim=True),
    "mean first": lambda x: x.mean(1, keepdim=True) + x,
    "over features": lambda x: x + 2.0 * x.mean(-1, keepdim=True),
    "over both": lambda x: x - 3.0 * x.mean((1, 2), keepdim=True),
    "sum": lambda x: x + x.sum(1, keepdim=True),
    "expanded": lambda x: x + x.mean(1, keepdim=True).expand(-1, 4, -1),
    "rectified": lambda x: F.relu(x) + F.relu(x).mean(1, keepdim=True),
    "rectified mean": lambda x: x + F.relu(x).mean(1, keepdim=True),
    "mean rectified": lambda x: x + F.relu(x.mean(1, keepdim=True)),
    "running sum": lambda x: x + x.cumsum(1),
    "window": lambda x: x - F.avg_pool1d(x.mT, 4).mT,
    "pooled": lambda x: x.mT + 2.0 * F.adaptive_avg_pool1d(x.mT, 1),
    "product": lambda x: x * x.mean(1, keepdim=True),
    "two means": lambda x: x.mean(1, keepdim=True) + (2.0 * x + 1.0).mean((1, 2), keepdim=True),
    "sum of means": lambda x: (x + x.mean(1, keepdim=True)) - x.mean(1, keepdim=True),
}


def output_of(model):
    """Return the prediction and the measurement of a model's result."""
    torch.manual_seed(0)
    graph = wp.trace(model, torch.randn(64, 4, 32))
    plan = wp.plan(graph, method="autoinit")
    name = graph.values[graph.outputs[0]].name
    return wp.propagate(graph, weights=plan)[name], wp.measure(graph, plan=plan, draws=40)[name]


def assert_near(predicted, measured, octaves):
    error = abs(math.log2(predicted.second_moment / measured.second_moment))
    assert error < octaves + 3 * measured.log2_error, (predicted, measured)


@pytest.mark.parametrize("form", MET)
def test_a_mean_that_meets_its_own_signal_is_predicted(form):
    predicted, measured = output_of(Met(MET[form]))
    assert_near(predicted, measured, 0.06)


SHARES = torch.tensor([1.0, 2.0]).view(2, 1, 1, 1)
STACKED = {
    "mean": lambda x, y: torch.stack([x, x, y]).mean(0),
    "sum of functions": lambda x, y: torch.stack([x, F.relu(x), y], -1).sum(-1),
    "kept": lambda x, y: torch.stack([x, F.relu(x)], 1).mean(1, keepdim=True),
    "over two axes": lambda x, y: torch.stack([x, x + y], 1).mean((1, 2)),
    "one after another": lambda x, y: torch.cat([x, x + y, F.relu(x)], 1).mean(1),
    "known weights": lambda x, y: (torch.stack([x, F.relu(x), y]) * torch.tensor([0.2, 0.3, 0.5]).view(3, 1, 1, 1)).sum(
        0
    ),
    "gates": lambda x, y: (torch.stack([x, F.relu(x)]) * torch.sigmoid(y)).sum(0),
    "streams": lambda x, y: (torch.stack([x, y]) + (x + y).repeat(2, 1, 1, 1))[0],
    "streams less themselves": lambda x, y: (
        (both := torch.stack([x, y])) + (2.0 * F.rms_norm(x, x.shape[-1:]) + y - both[0]).repeat(2, 1, 1, 1)
    )[0],
    "a stream of several": lambda x, y: (torch.stack([x, y]) + (x + y).expand(2, -1, -1, -1) * SHARES)[1],
    "attention": lambda x, y: (torch.stack([x, F.relu(x)]) * torch.stack([y, x + y]).softmax(0)).sum(0),
}


class Stacked(nn.Module):
    """Two maps of a signal, put together and summed."""

    def __init__(self, form):
        super().__init__()
        self.first, self.second, self.form = nn.Linear(32, 32), nn.Linear(32, 32), form

    def forward(self, x):
        return self.form(self.first(x), self.second(x))


@pytest.mark.parametrize("form", STACKED)
def test_a_sum_over_a_stack_knows_the_dependence_of_its_parts(form):
    predicted, measured = output_of(Stacked(STACKED[form]))
    # that weights depend on what they weigh is not followed: .3 octaves where a softmax makes them
    assert_near(predicted, measured, {"attention": 0.35, "gates": 0.15}.get(form, 0.06))


DEPENDENT = {
    "difference": lambda x, y: F.relu(x) - F.relu(x + 0.5 * y),
    "magnitudes": lambda x, y: x.abs() + (x + y).abs(),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", DEPENDENT)
def test_functions_of_dependent_signals_covary_by_all_orders(form):
    predicted, measured = output_of(Stacked(DEPENDENT[form]))
    assert_near(predicted, measured, 0.06)


def beside(x, y):
    return torch.cat([x, y], -1)


SIDE_BY_SIDE = {
    "multiples": lambda z: 2.0 * z + 3.0 * z,
    "functions": lambda z: F.relu(z) + torch.tanh(z),
    "a difference": lambda z: z - F.relu(z),
    "its pool": lambda z: z + F.avg_pool1d(z.transpose(1, 2), 3, 1, 1).transpose(1, 2),
    "two pools": lambda z: F.avg_pool1d(z.transpose(1, 2), 3, 1, 1) - F.avg_pool1d(z.transpose(1, 2), 5, 1, 2),
}


@pytest.mark.parametrize("form", SIDE_BY_SIDE)
def test_two_signals_of_one_concatenation_know_their_common_parts(form):
    """Whatever stands side by side: part by part, the two know what they have in common."""
    predicted, measured = output_of(Stacked(lambda x, y: SIDE_BY_SIDE[form](beside(x, y))))
    assert_near(predicted, measured, 0.06)


class Quotient(nn.Module):
    """Numbers over a zero, as padding or an empty count leaves it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x):
        return self.layer(x) / 0.0


def test_a_quotient_by_zero_fails_no_rule():
    graph = wp.trace(Quotient(), torch.zeros(4, 8))
    assert not any("failed" in text for text in wp.plan(graph).warnings)
    assert len(wp.propagate(graph)) == 2


class Quantised(nn.Module):
    """A straight-through estimator: the values go one way, and gradients another."""

    def __init__(self):
        super().__init__()
        self.enter, self.codes = nn.Linear(32, 16), nn.Embedding(64, 16)

    def forward(self, x):
        z = self.enter(x)
        near = self.codes((z @ self.codes.weight.T).argmax(-1))
        return z + (near - z).detach()


@pytest.mark.slow
def test_what_was_taken_away_and_comes_back_leaves_the_other():
    graph = wp.trace(Quantised(), torch.randn(64, 32))
    predicted = wp.propagate(graph, weights=wp.plan(graph))
    through, codes = predicted["add"], predicted["codes"]
    assert through.second_moment == pytest.approx(codes.second_moment, rel=1e-9)
    measured = wp.measure(graph, plan=wp.plan(graph), draws=64)["add"].log2_std
    assert abs(through.log2_std - measured) < 0.05  # how the rows that are picked vary is not followed


@pytest.mark.slow
@pytest.mark.parametrize("over", [2, 8])
def test_windows_over_copies_know_that_they_are_copies(over):
    """Codes that are repeated in time, averaged over windows within the copies and beyond."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.codes, self.layer = nn.Embedding(512, 8), nn.Conv1d(8, 16, 1)

        def forward(self, tokens):
            return F.avg_pool1d(self.layer(self.codes(tokens).transpose(1, 2)).repeat_interleave(4, -1), over)

    torch.manual_seed(0)
    graph = wp.trace(Net(), torch.randint(512, (16, 64)))
    plan = wp.plan(graph)
    predicted, measured = wp.propagate(graph, weights=plan)[-1], wp.measure(graph, plan=plan, draws=20)[-1]
    error = measured.log2_std / 20**0.5
    assert abs(math.log2(predicted.second_moment / measured.second_moment)) < 0.2 + 3 * error
