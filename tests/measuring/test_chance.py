"""What chance alone does beside the scatter of passes: whole samples dropped, rounding."""

import math

import pytest
import torch
from torch import nn

import wellposed as wp
from wellposed.measuring.chance import shares
from wellposed.measuring.measure import one_set_of

KEPT = 0.8


class Dropping(nn.Module):
    """A residual branch that is dropped for whole samples, as libraries write it."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.branch = nn.Sequential(nn.Linear(64, 64, bias=False), nn.LayerNorm(64))

    def forward(self, x):
        shape = (x.shape[0], 1)
        mask = {
            "bernoulli": lambda: x.new_empty(shape).bernoulli_(KEPT),
            "floor": lambda: (KEPT + torch.rand(shape)).floor(),
            "comparison": lambda: (torch.rand(shape) < KEPT).to(x.dtype),
            "tensor": lambda: torch.bernoulli(torch.full(shape, KEPT)),
        }[self.how]()
        return self.branch(x) * mask.div(KEPT)


HOW = ["bernoulli", "floor", "comparison", "tensor"]


@pytest.mark.slow
@pytest.mark.parametrize("how", HOW)
def test_samples_that_all_passes_keep_are_no_fault(how):
    torch.manual_seed(0)
    graph = wp.trace(Dropping(how), torch.randn(2, 64))
    verdicts = [wp.check(graph, draws=4, seed=seed) for seed in range(30)]
    measured = {round(c.measured, 3) for verdict in verdicts for c in verdict.comparisons if c.op == "mul.Tensor"}
    assert len(measured) > 3, "the shares differ"
    assert sum(not verdict.ok for verdict in verdicts) <= 2


@pytest.mark.parametrize("how", HOW)
def test_the_interval_of_a_share_holds_the_binomial_quantiles(how):
    graph = wp.trace(Dropping(how), torch.randn(2, 64))
    predicted = {signal.name: signal for signal in wp.propagate(graph)}
    found = shares(graph, predicted, 4)
    masks = [share for name, share in found.items() if predicted[name].mean == pytest.approx(KEPT)]
    counts = torch.distributions.Binomial(8, torch.tensor(KEPT)).sample((20_000,)) / 8
    least, most = KEPT * 2.0 ** -masks[0].below, KEPT * 2.0 ** masks[0].above
    assert float((counts < least - 1e-6).float().mean()) < 0.011
    assert float((counts <= least + 1e-6).float().mean()) > 0.003
    assert most == pytest.approx(1.0)


def test_many_elements_are_given_little():
    class Net(nn.Module):
        def forward(self, x):
            return x * (torch.rand_like(x) < KEPT).to(x.dtype)

    graph = wp.trace(Net(), torch.randn(64, 256))
    found = shares(graph, {signal.name: signal for signal in wp.propagate(graph)}, 8)
    assert found
    assert all(0.0 < share.below < 0.01 for share in found.values())


def test_a_share_that_is_wrong_is_named():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.kept = nn.Linear(64, 64, bias=False), KEPT

        def forward(self, x):
            return self.layer(x) * (torch.rand(x.shape[0], 1) < self.kept).to(x.dtype)

    net = Net()
    graph = wp.trace(net, torch.randn(64, 64))
    predicted = wp.propagate(graph)
    net.kept = 0.4
    measured = wp.measure(wp.trace(net, torch.randn(64, 64)), draws=8)
    verdict = wp.checks.compare(predicted, measured, draws=8, weight_draws=8, graph=graph)
    assert not verdict.ok
    assert verdict.first.op in ("to.dtype", "lt.Scalar")


def test_norms_of_equal_numbers_are_rounding():
    """As of pictures that shrink to one pixel, beside others."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm, self.last = nn.Conv2d(3, 32, 1), nn.GroupNorm(32, 32), nn.Conv2d(32, 8, 1)

        def forward(self, x):
            x = self.first(x)
            x, rest = torch.cat([self.norm(x), x], -1).split(1, -1)
            return self.last(x), rest

    net = Net()
    x = torch.randn(16, 3, 1, 1, generator=torch.Generator().manual_seed(0))
    graph = wp.trace(net, x)
    measured = wp.measure(graph, draws=4)
    assert any(0.0 < signal.second_moment < 1e-8 for signal in measured)  # what is left is not 0
    verdict = wp.check(graph, draws=4)
    assert verdict.ok, verdict.summary()


def test_rounding_is_zero_where_zero_is_predicted():
    class Net(nn.Module):
        def __init__(self, offset):
            super().__init__()
            self.layer, self.offset = nn.Linear(32, 32), offset

        def forward(self, x):
            x = self.layer(x)
            x = x - x.mean(-1, keepdim=True)
            x = x / (x.square().mean(-1, keepdim=True)).sqrt()
            return x.mean(-1) + self.offset

    x = torch.randn(16, 32)
    graph = wp.trace(Net(0.0), x)
    assert wp.check(graph, draws=4).ok
    predicted, measured = wp.propagate(graph), wp.measure(wp.trace(Net(1e-3), x), draws=4)
    verdict = wp.checks.compare(predicted, measured, draws=4, weight_draws=4, graph=graph)
    assert verdict.first is not None
    assert math.isinf(verdict.first.error)


def test_rounding_is_as_predicted_where_the_prediction_is_rounding():
    class Net(nn.Module):
        def __init__(self, offset):
            super().__init__()
            self.layer, self.norm, self.offset = nn.Linear(32, 32), nn.BatchNorm1d(32), offset

        def forward(self, x):
            x = torch.tanh(self.layer(x))
            x = x - x.mean(1, keepdim=True)
            x = x / x.square().mean((0, 1), keepdim=True).sqrt()
            return self.norm(x.transpose(1, 2)).mean(2) + self.offset

    x = torch.randn(8, 24, 32)
    graph = wp.trace(Net(0.0), x)
    predicted, measured = wp.propagate(graph), wp.measure(graph, draws=4)
    assert 0.0 < predicted["add"].second_moment < 1e-15
    assert measured["add"].second_moment > 10 * predicted["add"].second_moment
    assert wp.check(graph, draws=4).ok
    shifted = wp.measure(wp.trace(Net(1e-5), x), draws=4)
    assert not wp.checks.compare(predicted, shifted, draws=4, weight_draws=4, graph=graph).ok


def test_what_follows_large_negative_scores_is_checked_as_ever():
    """Beside scores of -1e9 the weights of a softmax are no rounding."""

    class Masked(nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.query, self.key, self.value = (nn.Linear(32, 32) for _ in range(3))
            self.factor = factor

        def forward(self, x, mask):
            scores = (self.query(x) @ self.key(x).transpose(1, 2) / 32**0.5).masked_fill(mask, -1e9)
            return torch.tanh(self.factor * (scores.softmax(-1) @ self.value(x)))

    x, mask = torch.randn(8, 12, 32), torch.ones(12, 12).triu(1).bool()
    graph, other = wp.trace(Masked(1.0), x, mask), wp.trace(Masked(2.0), x, mask)
    plan = wp.plan(graph)
    predicted, measured = wp.propagate(graph, weights=plan), wp.measure(other, plan=plan, draws=8)
    verdict = wp.checks.compare(predicted, measured, draws=8, weight_draws=8, graph=graph)
    assert not verdict.ok
    assert verdict.first.name == "mul"


class Mixed(nn.Module):
    """One random number for a batch weighs two branches."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x):
        share = torch.rand(1)
        return share * self.first(x) + torch.randn(1) * self.second(x)


@pytest.mark.slow
def test_lone_random_numbers_are_no_false_alarm():
    """Of one number the second moment varies by octaves from pass to pass, which is no fault of a weight."""
    graph = wp.trace(Mixed(), torch.randn(8, 32))
    plan = wp.plan(graph)
    assert all(wp.check(graph, plan=plan, seed=seed).ok for seed in range(16))
    assert {s.name: s.log2_std > 1.0 for s in wp.propagate(graph, weights=plan)}["rand"]


class OwnSize(nn.Module):
    """Filters that are divided by their own size, and keep their values, behind offsets that a plan draws."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList([nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for one in self.convolutions:
            size = one.weight.square().sum((1, 2, 3), keepdim=True).sqrt()
            x = nn.functional.conv2d(x, one.weight / (size + 1e-5), one.bias)
        return x


def test_filters_that_keep_their_values_are_one_set_behind_drawn_offsets() -> None:
    graph = wp.trace(OwnSize(), torch.randn(8, 3, 12, 12))
    plan = wp.plan(graph)
    assert [plan.prescriptions[f"convolutions.0.{name}"].action for name in ("weight", "bias")] == ["keep", "write"]
    assert graph.outputs[0] in one_set_of(graph, plan)


def test_a_sum_of_parameters_that_cancel_is_rounding():
    """As the log-determinant of a rotation, which the logarithms of its factors add up to."""

    class Net(nn.Module):
        def __init__(self, offset):
            super().__init__()
            half = torch.randn(8, generator=torch.Generator().manual_seed(0))
            self.logs = nn.Parameter(torch.cat([half, -half + 1e-7 * half.flip(0)]))
            self.layer, self.offset = nn.Linear(16, 16), offset

        def forward(self, x):
            return self.layer(x) * self.logs.exp(), self.logs.sum() + self.offset

    for offset, alike in ((0.0, True), (1e-3, False)):
        graph = wp.trace(Net(0.0), torch.randn(16, 16))
        measured = wp.measure(wp.trace(Net(offset), torch.randn(16, 16)), draws=4)
        verdict = wp.checks.compare(wp.propagate(graph), measured, draws=4, weight_draws=4, graph=graph)
        assert verdict.ok is alike
