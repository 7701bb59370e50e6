"""Known filters, standardised filters, and norms over what is dead, uneven or centred by position."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wellposed as wp
from wellposed.signals.algebra.linear_maps import MOST_PAIRS

from .test_joint_sampling import assert_by_chance

TAPS = torch.tensor([-0.1, 0.2, 0.8, 0.8, 0.2, -0.1])
BLUR, SLOPE = torch.tensor([1.0, 2.0, 1.0]) / 4, torch.tensor([1.0, 0.0, -1.0])


def last(net: nn.Module, x: Tensor, draws: int) -> tuple[wp.Signal, wp.Signal]:
    """Return the last signal of a planned model as predicted and as measured."""
    torch.manual_seed(0)
    graph = wp.trace(net, x)
    plan = wp.plan(graph, method="autoinit")
    predicted, measured = wp.propagate(graph, weights=plan), wp.measure(graph, plan=plan, draws=draws)
    name = graph.values[graph.outputs[0]].name
    return predicted[name], measured[name]


class Filtered(nn.Module):
    """A known filter, one for all channels, slides over what a convolution has made."""

    def __init__(self, taps: Tensor, stride: int, *, transposed: bool, channels: int = 16) -> None:
        super().__init__()
        rank = taps.ndim
        self.register_buffer("taps", taps[None, None])
        self.conv = (nn.Conv1d, nn.Conv2d)[rank - 1](4, channels, 3)
        name = ("conv_transpose" if transposed else "conv") + f"{rank}d"
        self.slide, self.options = getattr(F, name), {"stride": stride, "padding": 1, "groups": channels}

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x))
        return self.slide(x, self.taps.expand(x.shape[1], *self.taps.shape[1:]), **self.options)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(
    ("taps", "length"),
    [(TAPS, 40), (TAPS, 1400), (BLUR[:, None] * BLUR, 14), (BLUR[:, None] * SLOPE, 14)],
    ids=["low pass", "long low pass", "blur", "slope"],
)
def test_known_filters_have_the_size_of_their_own_taps(taps: Tensor, length: int, stride: int, transposed: bool):
    net = Filtered(taps, stride, transposed=transposed)
    x = torch.randn(8, 4, *[length] * taps.ndim)
    assert_by_chance(*last(net, x, 24))


@pytest.mark.parametrize("taps", [torch.ones(5) / 5, torch.tensor([0.25, 0.5, 0.25])], ids=["mean", "binomial"])
def test_a_known_filter_of_one_channel_counts_its_mean_once(taps: Tensor):
    """As moving averages of a series and blurs of a grey picture have it: all outputs see one channel."""

    class Smoothed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("taps", taps[None, None])
            self.into, self.out = nn.Linear(24, 24), nn.Linear(24, 12)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(F.conv1d(self.into(x), self.taps, padding=len(taps) // 2))

    assert_by_chance(*last(Smoothed(), torch.randn(8, 1, 24), 64))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("taps", "options"),
    [
        (torch.ones(5), {"dilation": 256, "padding": 512}),
        (torch.tensor([1.0, 0.0, -1.0]), {"dilation": 400, "padding": 400}),
        (torch.ones(601), {}),
    ],
    ids=["dilated", "difference", "long"],
)
def test_windows_that_are_as_long_as_what_is_left_of_an_axis_are_not_cut(taps: Tensor, options: dict[str, int]):
    net = Filtered(taps, 1, transposed=False, channels=8)
    net.options |= {"padding": 0} | options
    assert_by_chance(*last(net, torch.randn(4, 4, 2048), 16))


class Placed(nn.Module):
    """A smoothed signal whose mean differs by position, along a long axis: that of one end is not that of the other."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(50, 8), nn.Linear(8, 8)
        self.register_buffer("table", torch.linspace(0.0, 6.0, length)[:, None].cos().expand(-1, 8))
        self.register_buffer("taps", torch.ones(1, 1, 5) / 5)

    def forward(self, x: Tensor) -> Tensor:
        x = (self.embed(x) + self.table).transpose(1, 2)
        return self.out(F.relu(F.conv1d(x, self.taps.expand(8, 1, -1), padding=2, groups=8)).transpose(1, 2))


@pytest.mark.slow
def test_means_that_differ_along_a_long_axis_are_not_cut():
    assert_by_chance(*last(Placed(2000), torch.randint(0, 50, (2, 2000)), 16))


def standardised(w: Tensor, gain: Tensor) -> Tensor:
    mean, var = w.mean((1, 2, 3), keepdim=True), w.var((1, 2, 3), keepdim=True, unbiased=False)
    return (w - mean) * torch.rsqrt(var * w[0].numel() + 1e-4) * gain


def folded(w: Tensor, gain: Tensor) -> Tensor:
    """As normaliser-free networks write it (Brock et al. 2021)."""
    mean, var = w.mean((1, 2, 3), keepdim=True), w.var((1, 2, 3), keepdim=True, unbiased=False)
    scale = torch.rsqrt(torch.maximum(var * w[0].numel(), torch.tensor(1e-4))) * gain
    return w * scale - mean * scale


class StandardisedFilters(nn.Module):
    def __init__(self, make: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(24, 24, 3, 3) for _ in range(3))
        self.gains = nn.ParameterList(torch.ones(24, 1, 1, 1) for _ in range(3))
        self.make = make

    def forward(self, x: Tensor) -> Tensor:
        for weight, gain in zip(self.weights, self.gains, strict=True):
            x = F.conv2d(F.relu(x), self.make(weight, gain))
        return x


@pytest.mark.parametrize("make", [standardised, folded])
def test_filters_of_mean_zero_with_a_gain_pass_no_mean_on(make):
    """Without that, ReLU's mean adds half an octave at each layer."""
    assert_by_chance(*last(StandardisedFilters(make), torch.randn(8, 24, 12, 12), 24))


class OwnFilters(nn.Module):
    """A convolution of pictures with filters divided by their own size, which keep their values (Salimans & Kingma)."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(4, 3, 3, 3, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight / (self.weight.square().sum((1, 2, 3), keepdim=True).sqrt() + 1e-5))


@pytest.mark.parametrize("seed", range(4))
def test_filters_that_keep_their_values_let_through_what_these_do(seed: int):
    """Four filters of pictures, which are smooth: by chance they let through up to twice as much, or half."""
    graph = wp.trace(OwnFilters(seed), torch.randn(8, 3, 24, 24))
    plan = wp.plan(graph, method="autoinit")
    (predicted, measured) = wp.propagate(graph, weights=plan)[-1], wp.measure(graph, plan=plan, draws=64)[-1]
    assert_by_chance(predicted, measured)


class NormOfAlike(nn.Module):
    """A batch norm of a function of samples that are alike, as a maximum over many points makes them."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.points, self.dense, self.norm = nn.Linear(64, 256), nn.Linear(256, 256), nn.BatchNorm1d(256)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(self.points(x).amax(1))))


@pytest.mark.parametrize("samples", [4, 16])
@pytest.mark.parametrize("activation", [nn.ReLU(), nn.ReLU6(), nn.Hardtanh(-0.5, 0.5)], ids=repr)
def test_a_norm_leaves_channels_zero_in_which_no_sample_differs(activation: nn.Module, samples: int):
    """Where all samples are zero, as in a third of the channels after ReLU, a norm has nothing to bring to size 1."""
    assert_by_chance(*last(NormOfAlike(activation), torch.randn(samples, 40, 64), 32))


class ShuffledHalves(nn.Module):
    """Two normed halves, shuffled, through grouped filters with padding, and a norm: its mean is 0 but for rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.norm, self.last = nn.BatchNorm2d(16), nn.BatchNorm2d(16)
        self.conv = nn.Conv2d(32, 16, 3, stride=2, padding=1, groups=2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.stem(x))
        both = torch.cat([self.norm(x), self.norm(F.silu(x))], 1)
        shuffled = both.reshape(len(x), 2, 16, *x.shape[2:]).permute(0, 2, 1, 3, 4).flatten(1, 2)
        return self.last(self.conv(shuffled))


def test_a_norm_gives_one_whatever_its_margins_are():
    predicted, _ = last(ShuffledHalves(), torch.randn(8, 3, 8, 8), 2)
    assert predicted.second_moment == pytest.approx(1.0, abs=1e-3)


class MeansOfThoseThere(nn.Module):
    """Means over those of several paths that a mask of each sample lets through."""

    def __init__(self) -> None:
        super().__init__()
        self.paths = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(3))
        there = torch.rand(3, 24, 1, generator=torch.Generator().manual_seed(0)) < 0.5
        there[0] |= ~there.any(0)
        self.register_buffer("there", there.float())

    def forward(self, x: Tensor) -> Tensor:
        made = torch.stack([path(x) for path in self.paths])
        return (made * self.there).sum(0) / self.there.sum(0)


def test_means_over_parts_that_differ_by_sample_have_the_variance_of_their_own_number():
    assert_by_chance(*last(MeansOfThoseThere(), torch.randn(24, 32), 64))


def test_maps_of_known_numbers_along_two_long_axes_tell_pairs_apart_along_one_at_a_time():
    """Along both they would have 240 million pairs; what they have in common along the other one is an average."""
    tokens, features = (torch.linalg.qr(torch.randn(size, size))[0] for size in (96, 160))

    class Mixed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            for _ in range(2):
                x = F.linear(F.linear(x.transpose(1, 2), tokens).transpose(1, 2), features)
            return x

    graph = wp.trace(Mixed(), torch.randn(4, 96, 160))
    tracemalloc.start()
    (*_, made) = wp.propagate(graph, inputs=wp.Input.white())
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert made.second_moment == pytest.approx(1.0, rel=1e-6)  # turned white noise is white
    assert most < 10 * 8 * MOST_PAIRS  # bytes of some kernels; one of all pairs has 1.9 GB


@pytest.mark.parametrize(("window", "length"), [(142, 400), (143, 400), (224, 400), (143, 144)])
def test_means_over_long_windows_vary_by_the_share_of_one_element(window: int, length: int):
    """Of white elements it is 1 / window, whatever number of displacements lie within a window (144 is a square)."""
    graph = wp.trace(nn.AvgPool1d(window, stride=1), torch.zeros(2, 2, length))
    assert [signal.second_moment for signal in wp.propagate(graph)][-1] == pytest.approx(1 / window)


class Identity(nn.Module):
    """A signal, and what a weight that the model sets to a multiple of the identity makes of it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.first = kind, nn.Conv2d(3, 16, 3)
        side, dilation = {"by one tap": (1, 1), "dilated": (3, 2)}.get(kind, (3, 1))
        self.second = nn.Conv2d(16, 16, side, padding="same", dilation=dilation)
        self.dense = nn.Linear(16, 16, bias=False)
        nn.init.dirac_(self.second.weight)
        with torch.no_grad():
            self.dense.weight.copy_(-0.5 * torch.eye(16))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).tanh()
        if self.kind == "dense":
            return x.movedim(1, -1) + self.dense(x.movedim(1, -1))
        return x + self.second(x)


@pytest.mark.parametrize("kind", ["by one tap", "by nine", "dilated", "dense"])
def test_a_known_identity_makes_the_signal_itself(kind: str) -> None:
    """Beside an independent signal the sum would have half of the second moment, or five times that of x − x / 2."""
    predicted, measured = last(Identity(kind), torch.randn(8, 3, 14, 14), 24)
    assert_by_chance(predicted, measured)
