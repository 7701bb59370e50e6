"""Norms that a model writes itself, and what is left of the spread between weight draws after them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wellposed as wp
from wellposed.signals.distributions.spread import BLOCK, NONE, STEADY, Sources, Spread, mean_spread, source

DRAWS = 48


def squared_mean(x, dim):
    return (x * x).mean(dim, keepdim=True) - x.mean(dim, keepdim=True) ** 2


def folded(x, dim):
    inverse = torch.rsqrt(squared_mean(x, dim) + 1e-5)
    return x * inverse + (-x.mean(dim, keepdim=True) * inverse)


def centred_twice(x, dim):
    d = x - x.mean(dim, keepdim=True)
    return d * torch.rsqrt(d.pow(2).mean(dim, keepdim=True) + 1e-5)


def difference_twice(x, dim):
    mean = x.mean(dim, keepdim=True)
    return (x - mean) / torch.sqrt((x - mean).pow(2).mean(dim, keepdim=True) + 1e-6)


def mean_twice(x, dim):
    spread = ((x - x.mean(dim, keepdim=True)) ** 2).mean(dim, keepdim=True)
    return (x - x.mean(dim, keepdim=True)) / (spread + 1e-6) ** 0.5


def by_var_mean(x, dim):
    var, mean = torch.var_mean(x, dim=dim, keepdim=True, unbiased=False)
    return (x - mean) * torch.rsqrt(var + 1e-5)


def by_einsum(x, dim):
    return x * torch.rsqrt(torch.einsum("bct,bct->bt", x, x).unsqueeze(1) / x.shape[1])


ROOT_MEAN_SQUARE = {
    "pow, mean, rsqrt": lambda x, d: x * torch.rsqrt(x.pow(2).mean(d, keepdim=True) + 1e-6),
    "product, sqrt, division": lambda x, d: x / torch.sqrt((x * x).mean(d, keepdim=True) + 1e-8),
    "sum of squares": lambda x, d: x * (x.square().sum(d, keepdim=True) / x.shape[d]) ** -0.5,
    "norm": lambda x, d: x / (x.norm(dim=d, keepdim=True) * x.shape[d] ** -0.5),
    "normalize": lambda x, d: F.normalize(x, dim=d) * x.shape[d] ** 0.5,
    "scaled before": lambda x, d: (5 * x) / torch.sqrt((x * x).mean(d, keepdim=True)) / 5,
    "einsum": by_einsum,
}
CENTRED = {
    "var": lambda x, d: (x - x.mean(d, keepdim=True)) / torch.sqrt(x.var(d, keepdim=True, unbiased=False) + 1e-5),
    "centred twice": centred_twice,
    "difference written twice": difference_twice,
    "mean written twice": mean_twice,
    "E x² - (E x)²": lambda x, d: (x - x.mean(d, keepdim=True)) * torch.rsqrt(squared_mean(x, d) + 1e-5),
    "folded": folded,
    "var_mean": by_var_mean,
}


class Between(nn.Module):
    """A convolution, what is tried, and another convolution."""

    def __init__(self, form, width, dim, act):
        super().__init__()
        self.form, self.dim, self.act = form, dim, act
        self.first = nn.Conv1d(6, width, 3, padding=1, bias=False)
        self.second = nn.Conv1d(width, 8, 1, bias=False)

    def forward(self, x):
        return self.second(self.form(self.act(self.first(x)), self.dim))


def compared(model, x, draws=DRAWS):
    """Return predicted and measured signals by name, the weights as planned."""
    graph = wp.trace(model, x)
    plan = wp.plan(graph, inputs=x, method="autoinit")
    predicted = wp.propagate(graph, inputs=x, weights=plan)
    return predicted, wp.measure(graph, plan=plan, draws=draws, inputs=x)


def norm_of(predicted):
    """Return the signal that enters the second convolution."""
    names = [signal.name for signal in predicted]
    return predicted[names[names.index("second") - 1]]


@pytest.mark.parametrize(("width", "act"), [(4, nn.Identity()), (32, nn.ReLU())], ids=["few channels", "after ReLU"])
@pytest.mark.parametrize("form", ROOT_MEAN_SQUARE)
def test_a_division_by_the_root_mean_square_is_a_norm(form, width, act):
    torch.manual_seed(0)
    predicted, measured = compared(Between(ROOT_MEAN_SQUARE[form], width, 1, act), torch.randn(16, 6, 12))
    signal = norm_of(predicted)
    assert signal.second_moment == pytest.approx(measured[signal.name].second_moment, rel=0.01)
    assert signal.log2_std <= measured[signal.name].log2_std + 0.01


@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("form", CENTRED)
def test_a_division_by_the_standard_deviation_is_a_norm(form, dim):
    torch.manual_seed(0)
    predicted, measured = compared(Between(CENTRED[form], 24, dim, nn.Identity()), torch.randn(16, 6, 12))
    signal = norm_of(predicted)
    assert signal.tag in ("exact", "approximate")
    assert signal.second_moment == pytest.approx(measured[signal.name].second_moment, rel=0.01)
    assert signal.log2_std <= measured[signal.name].log2_std + 0.01
    out = measured["second"]
    assert abs(math.log2(predicted["second"].second_moment / out.second_moment)) < 4 * out.log2_std / DRAWS**0.5 + 0.02


@pytest.mark.parametrize("form", CENTRED)
def test_norms_over_last_channels_are_found(form):
    """Positions in front of the channels, of which there are fewer; a bias that varies by channel."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 10, 3, padding=1), nn.Linear(10, 8, bias=False)

        def forward(self, x):
            return self.second(CENTRED[form](self.first(x).flatten(2).transpose(1, 2), 2))

    torch.manual_seed(0)
    model = Net()
    nn.init.normal_(model.first.bias, 1.0, 2.0)
    x = torch.randn(8, 3, 6, 7)
    predicted, measured = (made(wp.trace(model, x), inputs=x) for made in (wp.propagate, wp.measure))
    signal = norm_of(predicted)
    assert signal.second_moment == pytest.approx(measured[signal.name].second_moment, rel=0.01)


@pytest.mark.parametrize("gain", [1.0, 3.0])
def test_the_mean_that_a_norm_took_out_is_zero(gain):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 12, 3, padding=1)
            self.gain, self.shift = torch.full((12, 1, 1), gain), torch.zeros(12, 1, 1)

        def forward(self, x):
            x = CENTRED["var"](self.conv(x), 1) * self.gain + self.shift
            return x.mean(1), x.mean((1, 2)), x.movedim(1, 3).sum(-1), x.mean(2)

    x = torch.randn(4, 3, 8, 8)
    graph = wp.trace(Net(), x)
    predicted = wp.propagate(graph)
    over, with_places, total, places = (predicted[graph.values[v].name] for v in graph.outputs)
    assert over.second_moment == with_places.second_moment == total.second_moment == 0.0
    assert places.second_moment > 0.1
    assert wp.check(graph, draws=4).ok


def test_a_batch_norm_written_out_is_the_operator():
    class Net(nn.Module):
        def __init__(self, written):
            super().__init__()
            self.conv, self.written = nn.Conv2d(3, 6, 3, padding=1, bias=False), written

        def forward(self, x):
            x = self.conv(x)
            return folded(x, (0, 2, 3)) if self.written else F.batch_norm(x, None, None, training=True)

    x = torch.randn(4, 3, 8, 8)
    written, operator = (wp.propagate(wp.trace(Net(choice), x)) for choice in (True, False))
    assert written[-1].second_moment == pytest.approx(operator[-1].second_moment, rel=1e-5)
    assert written[-1].log2_std == pytest.approx(0.0, abs=1e-3)


@pytest.mark.slow
def test_a_statistic_of_other_groups_is_no_norm():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(20, 12, bias=False)

        def forward(self, x):
            x = self.layer(x)  # (12, 12)
            return x * torch.rsqrt(x.pow(2).mean(1)).unsqueeze(0)  # each row's scale on a column

    torch.manual_seed(0)
    predicted, measured = compared(Net(), torch.randn(12, 20), draws=256)
    assert measured[-1].second_moment > 1.1  # what a norm would have is 1
    assert predicted[-1].second_moment == pytest.approx(measured[-1].second_moment, rel=0.1)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate, self.up = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x):
        h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


@pytest.mark.slow
def test_the_spread_does_not_compound_through_norms():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 64), *(Block(64) for _ in range(24)))
    predicted, measured = compared(net, torch.randn(32, 16), draws=64)
    pairs = [(p.log2_std, measured[p.name].log2_std) for p in predicted if measured[p.name].log2_std > 0.02]
    ratios = np.array([a / b for a, b in pairs])
    assert 0.5 < np.median(ratios) < 2.0
    assert ratios.max() < 4.0
    assert not any(
        "weight draws" in warning for warning in wp.plan(net, torch.randn(32, 16), method="autoinit").warnings
    )


def test_without_norms_the_spread_still_compounds():
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False)

        def forward(self, x):
            return self.a(x) * self.b(x)

    torch.manual_seed(0)
    predicted, measured = compared(nn.Sequential(*(Gated() for _ in range(5))), torch.randn(32, 32), draws=64)
    # each product doubles what its factors inherit alike
    assert measured[-1].log2_std > 1.0
    assert predicted[-1].log2_std > 1.0


def test_sources_add_up_by_number():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(10, 200_000))
    a, b = Sources(2, np.array([1.0, -2.0, 0.5])), Sources(4, np.array([1.5, 0.0, 3.0]))

    def drawn(sources):
        return sources.amounts @ z[sources.start : sources.start + sources.amounts.size]

    np.testing.assert_allclose(drawn(a + b), drawn(a) + drawn(b), atol=1e-12)
    np.testing.assert_allclose(drawn((a + b).times(-0.5)), -0.5 * (drawn(a) + drawn(b)), atol=1e-12)
    assert (a + b).variance == pytest.approx(np.var(drawn(a) + drawn(b)), rel=0.02)
    assert (a + a.times(-1.0)).variance == 0.0
    assert a + NONE is a
    assert source(3, 0.0) is NONE


def test_adding_a_source_shares_the_memory_of_those_before():
    total = source(0, 1.0)
    for number in range(1, 1000):
        total += source(2 * number, 1.0 + number)
    more, other = total + source(2001, 4.0), total + source(2005, 9.0)
    assert np.shares_memory(total.amounts, more.amounts)
    assert total.variance == pytest.approx(1.0 + sum(range(2, 1001)))
    assert (more.variance, other.variance) == (total.variance + 4.0, total.variance + 9.0)  # neither knows of the other
    assert total.amounts.size == 1999
    assert more.amounts.tolist() == [*total.amounts, 0.0, 0.0, 2.0]
    assert other.amounts.tolist() == [*total.amounts, *[0.0] * 6, 3.0]


def test_sources_add_up_over_blocks():
    amounts = np.random.default_rng(0).normal(size=2 * BLOCK + 77)
    whole, grown = Sources(5, amounts), Sources(5, amounts[:1])
    for number, amount in enumerate(amounts[1:].tolist(), 6):
        grown += Sources(number, np.array([amount]))
    assert grown.start == 5
    assert np.array_equal(grown.amounts, amounts)
    assert whole.variance == grown.variance == pytest.approx(float(amounts @ amounts), rel=1e-12)
    assert grown.covariance(whole.times(2.0)) == pytest.approx(2.0 * whole.variance, rel=1e-12)


def test_first_sources_that_have_shrunk_to_nothing_are_let_go():
    amounts = np.ones(3 * BLOCK)
    amounts[: 2 * BLOCK - 1] = 1e-200
    shrunk = Sources(7, amounts).times(1e-200)
    assert (shrunk.start, shrunk.amounts.size) == (7 + BLOCK, 2 * BLOCK)
    assert shrunk.amounts.tolist() == [0.0] * (BLOCK - 1) + [1e-200] * (BLOCK + 1)
    assert Sources(0, amounts).times(1e-200).times(1e-200).amounts.size  # all of them: still a sum of what there was


def test_a_quotient_has_no_spread_and_a_product_has_both():
    x, y = Spread(source(0, 0.4), source(1, 0.1)), Spread(source(2, 0.3))
    assert (x + x.times(-1.0)).variance == 0.0
    assert (x + y).variance == pytest.approx(0.8)
    assert x + STEADY is x
    assert mean_spread([(0.25, x), (0.75, x)]).variance == pytest.approx(x.variance)


class Streams(nn.Module):
    """Two streams of different size, one after the other along an axis, each token of each divided by its own size."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Linear(64, 96, bias=False) for _ in range(2))
        self.last = nn.Linear(96, 8)

    def forward(self, x):
        both = torch.stack([self.first(x), 0.2 * self.second(x)], -2)
        return self.last(both * torch.rsqrt(both.square().mean(-1, keepdim=True) + 1e-6))


def test_parts_one_after_another_are_each_divided_by_their_own_statistic() -> None:
    graph = wp.trace(Streams(), torch.randn(8, 16, 64))
    plan = wp.plan(graph, method="autoinit")
    predicted, measured = wp.propagate(graph, weights=plan), wp.measure(graph, plan=plan, draws=8)
    for name in ("mean", "rsqrt", "mul#2", "last"):
        assert predicted[name].second_moment == pytest.approx(measured[name].second_moment, rel=0.1), name
    assert predicted["mul#2"].log2_std < 1e-3


class CompositeScales(nn.Module):
    """Two maps of a signal, or of one another, one after another along the features of a norm."""

    def __init__(self, norm, dependent):
        super().__init__()
        self.norm, self.dependent = norm, dependent
        self.first, self.second, self.last = nn.Linear(32, 48), nn.Linear(48 if dependent else 32, 16), nn.Linear(64, 8)

    def forward(self, x):
        a = self.first(x)
        b = 3.0 * a[..., :16] + self.second(a) if self.dependent else F.relu(self.second(x))
        return self.last(self.norm(torch.cat([a, b], -1), -1))


@pytest.mark.parametrize("dependent", [False, True])
@pytest.mark.parametrize("form", ["pow, mean, rsqrt", "sum of squares", "centred twice", "var"])
def test_a_norm_over_a_concatenation_gives_it_unit_size(form, dependent) -> None:
    centred = {
        "centred twice": centred_twice,
        "var": lambda x, d: (x - x.mean(d, keepdim=True)) * torch.rsqrt(x.var(d, keepdim=True, unbiased=False) + 1e-6),
    }
    norm = centred.get(form) or ROOT_MEAN_SQUARE[form]
    graph = wp.trace(CompositeScales(norm, dependent), torch.randn(8, 16, 32))
    plan = wp.plan(graph, method="autoinit")
    predicted = wp.propagate(graph, weights=plan)
    (weight,) = (node for node in graph if node.name == "last")
    normed = predicted[graph.values[weight.inputs[0]].name]
    assert normed.second_moment == pytest.approx(1.0, abs=1e-4)  # as it is in every draw, but for eps
    assert normed.log2_std < 1e-3


class OfOneSize(nn.Module):
    """A map of a signal that is given the signal's size."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 64, bias=False), nn.Linear(64, 8)

    def forward(self, x):
        target = x.square().mean(-1, keepdim=True) ** 0.5
        y = self.first(x)
        return self.last(y * target / torch.sqrt(y.square().mean(-1, keepdim=True).clamp(min=1e-5)))


def test_a_signal_is_given_the_size_of_another_one() -> None:
    graph = wp.trace(OfOneSize(), torch.randn(8, 16, 64))
    plan = wp.plan(graph, inputs=wp.Input.white(0.0, 4.0), method="autoinit")
    predicted = wp.propagate(graph, inputs=wp.Input.white(0.0, 4.0), weights=plan)["div"]
    assert predicted.second_moment == pytest.approx(4.0, rel=1e-3)


class Corrected(nn.Module):
    """A stream to which what a layer has beyond it is added, layer by layer."""

    def __init__(self, depth):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(depth))
        self.last = nn.Linear(64, 64, bias=False)

    def forward(self, x):
        for layer in self.layers:
            made = x + layer(F.rms_norm(x, x.shape[-1:]))
            x = 0.5 * (made - x) + x
        return self.last(F.rms_norm(x, x.shape[-1:]))


@pytest.mark.slow
def test_the_spread_of_a_small_difference_does_not_compound() -> None:
    graph = wp.trace(Corrected(16), torch.randn(8, 8, 64))
    plan = wp.plan(graph, method="autoinit")
    predicted, measured = wp.propagate(graph, weights=plan), wp.measure(graph, plan=plan, draws=DRAWS)
    for name in ("sub#16", "add#32", "last"):
        # the standard deviation of a standard deviation is 1 / sqrt(2 n) of it
        least, most = (measured[name].log2_std * (1.0 + sign * 3.0 / math.sqrt(2 * DRAWS)) for sign in (-1, 1))
        assert 0.5 * least < predicted[name].log2_std < 2.0 * most, name


class OfFew(nn.Module):
    """Even powers and a GELU of what a norm over few elements gives."""

    def __init__(self, norm, width):
        super().__init__()
        self.norm, self.first = norm, nn.Linear(40, width)

    def forward(self, x):
        normed = self.norm(self.first(x))
        return normed**4, F.gelu(normed)


@pytest.mark.parametrize(
    ("norm", "width", "samples"),
    [
        (lambda x: F.batch_norm(x, None, None, training=True), 160, 2),
        (lambda x: F.batch_norm(x, None, None, training=True), 64, 8),
        (lambda x: F.layer_norm(x, x.shape[-1:]), 5, 16),
        (lambda x: F.rms_norm(x.unflatten(-1, (-1, 4)), (4,)), 80, 8),
    ],
    ids=["batch of 2", "batch of 8", "layer", "root mean square"],
)
def test_elements_of_a_small_group_are_no_gaussians(norm, width, samples):
    torch.manual_seed(0)
    predicted, measured = compared(OfFew(norm, width), torch.randn(samples, 40), 120)
    for name in ("pow", "gelu"):
        # two samples may be so near each other that what is added to their variance counts
        allowed = 0.02 + 4.0 * measured[name].log2_error
        assert abs(math.log2(predicted[name].mean / measured[name].mean)) < allowed
        assert abs(math.log2(predicted[name].second_moment / measured[name].second_moment)) < allowed


def test_uniform_biases_leave_a_linear_layer_all_but_gaussian():
    """A norm over few of its outputs gives what it gives of Gaussians."""
    torch.manual_seed(0)
    net = OfFew(lambda x: F.layer_norm(x.unflatten(-1, (-1, 3)), (3,)), 60)
    graph = wp.trace(net, torch.randn(64, 40))
    plan = wp.plan(graph)
    assert plan.prescriptions["first.bias"].distribution == "uniform"
    predicted, measured = wp.propagate(graph, weights=plan), wp.measure(graph, plan=plan, draws=24)
    for name in ("pow", "gelu"):
        off = math.log2(predicted[name].second_moment / measured[name].second_moment)
        assert abs(off) < 0.02 + 4.0 * measured[name].log2_error


@pytest.mark.parametrize("dim", [0, 1, (0, 1)])
def test_what_a_batch_norm_has_centred_has_the_variance_of_its_axis(dim) -> None:
    """Regularisers ask for it (VICReg). How it varies over channels, where a norm has left nothing, is not followed."""

    class Varied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = nn.Linear(16, 64), nn.BatchNorm1d(64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.first(x)).var(dim)

    predicted, measured = compared(Varied(), torch.randn(8, 16), 60)
    allowed = 0.01 + 4.0 * measured["var"].log2_error
    assert abs(math.log2(predicted["var"].mean / measured["var"].mean)) < allowed


@pytest.mark.parametrize(
    ("norm", "over", "shape"),
    [
        (nn.InstanceNorm2d(8), (2, 3), (4, 8, 6, 6)),
        (nn.InstanceNorm2d(8, affine=True), (2, 3), (4, 8, 6, 6)),
        (nn.BatchNorm2d(8), (2, 3), (1, 8, 6, 6)),
        (nn.BatchNorm2d(8), (0, 2, 3), (4, 8, 6, 6)),
        (nn.LayerNorm(6), -1, (4, 8, 6)),
    ],
)
def test_the_mean_of_what_a_norm_has_centred_is_zero(norm, over, shape):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.gain = norm, nn.Parameter(torch.ones(()))

        def forward(self, x):
            return self.norm(self.gain * x.relu()).mean(over)

    predicted = wp.propagate(wp.trace(Net(), torch.randn(shape)))
    assert predicted[-1].second_moment == 0.0
    assert predicted[-2].second_moment > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("picked", [5, 12, 30])
def test_picks_of_statistics_are_none_of_the_whole(picked):
    """Distances of pairs, of which those within a radius are picked, as interatomic potentials do."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(1, 4)

        def forward(self, x, pairs):
            near = x.norm(dim=-1).index_select(0, pairs)
            return self.layer((near / (near.mean() + 1.0))[:, None])

    graph = wp.trace(Net(), torch.randn(25, 3), torch.randint(25, (picked,)))
    assert not any("failed" in text for text in wp.plan(graph).warnings)
    predicted, measured = wp.propagate(graph)["index_select"], wp.measure(graph)["index_select"]
    assert abs(math.log2(predicted.second_moment / measured.second_moment)) < 0.5 + 3 * measured.log2_std / 8**0.5


class Residual(nn.Module):
    """The second block of a pre-activation network: its norm reads a sum of what is never negative and a branch."""

    def __init__(self, gate):
        super().__init__()
        self.enter, self.branch, self.gate = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1), gate
        self.norms = nn.ModuleList([nn.BatchNorm2d(16) for _ in range(3)])

    def forward(self, x):
        x = self.norms[0](self.enter(x)).relu()
        x = x + self.gate * self.branch(self.norms[1](x).relu())
        return self.norms[2](x).relu()


@pytest.mark.slow
@pytest.mark.parametrize("gate", [0.3, 1.0])
def test_a_norm_leaves_most_of_the_shape_of_what_it_reads(gate):
    torch.manual_seed(0)
    graph = wp.trace(Residual(gate), torch.randn(4, 3, 24, 24))
    plan = wp.plan(graph, method="autoinit")
    predicted, measured = wp.propagate(graph, weights=plan)[-1], wp.measure(graph, plan=plan, draws=20)[-1]
    error = measured.log2_std / 20**0.5
    assert abs(math.log2(predicted.second_moment / measured.second_moment)) < 0.1 + 3 * error


@pytest.mark.slow
def test_a_norm_leaves_most_of_the_shape_of_a_function():
    """Rectified features, of which all samples have a part in common, are skewed behind a batch norm as well."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.enter, self.norm = nn.Linear(32, 64), nn.BatchNorm1d(64)

        def forward(self, x):
            return self.norm(self.enter(torch.cat([x, 0.7 * torch.ones_like(x)], -1)).relu()).tanh()

    torch.manual_seed(0)
    graph = wp.trace(Net(), torch.randn(128, 16))
    plan = wp.plan(graph, method="autoinit")
    predicted, measured = wp.propagate(graph, weights=plan)[-1], wp.measure(graph, plan=plan, draws=20)[-1]
    error = measured.log2_std / 20**0.5
    assert abs(math.log2(predicted.second_moment / measured.second_moment)) < 0.1 + 3 * error


@pytest.mark.parametrize("groups", [1, 4, 8])
def test_what_a_group_norm_gives_is_told_from_what_it_reads(groups: int) -> None:
    class Less(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.norm = nn.Conv1d(8, 32, 1), nn.GroupNorm(groups, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.layer(x)
            return self.norm(h) - h

    model = Less()
    x = torch.randn(16, 8, 12)
    check = wp.check(model, x, plan=wp.plan(model, x))
    assert check.ok, check


class SquaresAboutTheMean(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = a + 0.3 * b
        apart = x - x.mean(1, keepdim=True)
        return x.var(1), apart.square(), apart.square().mean(1)


@pytest.mark.parametrize(("count", "shared"), [(3, 0.0), (6, 0.0), (12, 0.0), (3, 1.0), (6, 1.0), (12, 1.0), (24, 1.0)])
def test_squares_about_the_mean_vary_as_those_of_a_chi_square(count: int, shared: float) -> None:
    """What all elements have in common leaves them, and the mean of few Gaussians takes a degree of freedom."""
    graph = wp.trace(SquaresAboutTheMean(), torch.zeros(8, 1, 32), torch.zeros(8, count, 32))
    first = wp.Input.white(var=shared)
    signals = wp.propagate(graph, inputs={"0": first, "1": wp.Input.white()})
    of_all, of_one, of_mean = (signals[graph.values[v].name] for v in graph.outputs)
    size, free = 0.09, count - 1
    assert of_all.mean == pytest.approx(size)
    assert of_all.var == pytest.approx(2 * size**2 / free)
    assert of_one.var == pytest.approx(2 * (size * free / count) ** 2)
    assert of_mean.var == pytest.approx(2 * size**2 * free / count**2)
