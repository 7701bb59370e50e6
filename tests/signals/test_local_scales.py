"""Products of signals that share the size of a position, gates and attention, against samples."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wellposed as wp
from wellposed.signals.algebra.effective_dims import of_one_size
from wellposed.signals.distributions.making import exchangeable
from wellposed.signals.distributions.views import reshape
from wellposed.signals.integration import kernels
from wellposed.signals.rules.shape.index_sums import _random_sums

WIDTH, DRAWS = 32, 40


class Gate(nn.Module):
    """A gated block with a skip, and no norm."""

    def __init__(self, activation):
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.activation = activation

    def forward(self, x):
        return x + self.down(self.activation(self.gate(x)) * self.up(x))


def predicted_and_measured(net, x, draws=DRAWS):
    torch.manual_seed(0)
    graph = wp.trace(net, *(x if isinstance(x, tuple) else (x,)))
    plan = wp.plan(graph, method="autoinit")
    return wp.propagate(graph, weights=plan), wp.measure(graph, plan=plan, draws=draws)


def assert_alike(one, other, tolerance):
    error = abs(math.log2(one.second_moment / other.second_moment))
    assert error < tolerance + 3 * other.log2_error, (one.name, one.second_moment, other.second_moment)


class TwoMaps(nn.Module):
    """Products of two maps: of one signal, and of it and another; each row may be multiplied with a number first."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, 64, bias=False), nn.Linear(WIDTH, 64, bias=False)

    def forward(self, x, y, s=None):
        x = x if s is None else x * s
        return self.a(x) * self.b(x), self.a(x) * self.b(y)


def products(*inputs):
    """Return the predicted second moments of both products."""
    graph = wp.trace(TwoMaps(), *inputs)
    signals = wp.propagate(graph, weights=wp.plan(graph, method="autoinit"))
    return [signals[graph.values[value].name].second_moment for value in graph.outputs]


def test_two_maps_of_one_signal_share_its_size():
    alike, apart = products(torch.randn(8, WIDTH), torch.randn(8, WIDTH))
    assert alike == pytest.approx(1.0 + 2.0 / WIDTH, rel=1e-6)  # E (|x|² / n)² = 1 + 2 / n
    assert apart == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("activation", [F.silu, torch.sigmoid, F.relu])
def test_gates_without_a_norm_are_as_measured(activation):
    predicted, measured = predicted_and_measured(
        nn.Sequential(Gate(activation), Gate(activation)), torch.randn(256, WIDTH)
    )
    for one, other in zip(predicted, measured, strict=True):
        assert_alike(one, other, 0.05)


@pytest.mark.slow
def test_few_samples_do_not_average_sizes_out():
    predicted, measured = predicted_and_measured(nn.Sequential(Gate(F.silu), Gate(F.silu)), torch.randn(8, WIDTH), 200)
    for one, other in zip(predicted, measured, strict=True):
        assert 0.75 < one.log2_std / other.log2_std < 1.35, one.name


ROUTERS = {
    "sigmoid": torch.sigmoid,
    "best of four": lambda s: s.softmax(-1).amax(-1, keepdim=True),
    "one in four": lambda s: torch.where(s[..., :1] >= s.amax(-1, keepdim=True), s[..., :1].sigmoid(), 0.0),
}


@pytest.mark.parametrize("router", ROUTERS)
def test_tokens_keep_the_weights_of_a_router(router):
    """Weighted before an expert, as in Llama 4: gate and up share the weight, and the result has its square."""

    class Expert(nn.Module):
        def __init__(self):
            super().__init__()
            self.router = nn.Linear(64, 1 if router == "sigmoid" else 4, bias=False)
            self.gate, self.up, self.down = (nn.Linear(64, 64, bias=False) for _ in range(3))

        def forward(self, x):
            x = F.layer_norm(x, (64,))
            weighted = x * ROUTERS[router](self.router(x))
            return self.down(F.silu(self.gate(weighted)) * self.up(weighted))

    predicted, measured = predicted_and_measured(Expert(), torch.randn(256, 64))
    for one in predicted:
        if one.module in ("gate", "up", "down") or one.op in ("silu.default", "mul.Tensor"):
            assert_alike(one, measured[one.name], 0.2)


def test_a_token_is_as_large_as_the_number_that_it_is_multiplied_with():
    """E x² y² of two maps of s x, s normal: E s⁴ / (E s²)² = 3 times what it is without s."""
    product, _ = products(torch.randn(64, WIDTH), torch.randn(64, WIDTH), torch.randn(64, 1))
    assert product == pytest.approx(3.0 * (1.0 + 2.0 / WIDTH), rel=1e-6)


class Attention(nn.Module):
    """Attention over tokens of given sizes, and over what a skip makes of its result."""

    def __init__(self, sizes, written):
        super().__init__()
        self.register_buffer("sizes", sizes)
        self.qkv, self.out = nn.Linear(64, 192, bias=False), nn.Linear(64, 64, bias=False)
        self.written = written

    def forward(self, x):
        x = x * self.sizes
        q, k, v = (t.unflatten(-1, (4, 16)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        if self.written:
            mixed = (q @ k.transpose(-1, -2) * 0.25).softmax(-1) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("few", [1, 4])
def test_large_tokens_are_picked(few, written):
    sizes = torch.full((16, 1), 0.1)
    sizes[:few] = 1.0
    predicted, measured = predicted_and_measured(Attention(sizes, written), torch.randn(8, 16, 64), 40)
    for one, other in zip(predicted, measured, strict=True):
        if one.second_moment:
            assert_alike(one, other, 0.25)


class Emptied(nn.Module):
    """Attention over tokens most of which are empty: a router shuts them out, or they are read beyond the border; with
    or without the largest score taken out.
    """

    def __init__(self, routed, shifted):
        super().__init__()
        self.routed = routed
        self.router, self.shifted = nn.Linear(64, 1, bias=False), shifted
        self.query, self.pair = nn.Linear(64, 64, bias=False), nn.Linear(64, 128, bias=False)

    def forward(self, x):
        logits = self.router(x)
        if self.routed:
            kept = torch.where(logits > 0.8, x, 0.0)
        else:
            places = torch.stack([torch.zeros_like(logits), 4.0 * torch.tanh(logits)], -1)
            kept = F.grid_sample(x.transpose(1, 2)[..., None], places, align_corners=False)[..., 0].transpose(1, 2)
        parts = self.query(x), *self.pair(kept).chunk(2, -1)
        q, k, v = (t.unflatten(-1, (4, 16)).transpose(1, 2) for t in parts)
        scores = q @ k.transpose(-1, -2) * 0.25
        scores = scores - scores.amax(-1, keepdim=True) if self.shifted else scores
        return scores.softmax(-1) @ v


@pytest.mark.slow
@pytest.mark.parametrize(("routed", "shifted"), [(True, False), (True, True), (False, False), (False, True)])
def test_empty_tokens_are_hardly_read(routed, shifted):
    torch.manual_seed(0)
    predicted, measured = predicted_and_measured(Emptied(routed, shifted), torch.randn(8, 16, 64), 40)
    assert_alike(predicted[-1], measured[-1], 0.25)


class Picks(nn.Module):
    """Squares of what heads read: of one feature, of the features of one head, and of all heads together."""

    def __init__(self, written, tokens):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(128, 64, bias=False) for _ in range(3))
        self.written, self.tokens = written, tokens

    def forward(self, x, size):
        x = F.layer_norm(x, (128,)) if self.tokens == "of one size" else x
        x = x * torch.exp(0.2 * size) if self.tokens == "of any size" else x
        q, k, v = (make(x).unflatten(-1, (4, 16)).transpose(1, 2) for make in (self.q, self.k, self.v))
        q = 1.5 * q
        weights = (q @ k.transpose(-1, -2) * 0.25).softmax(-1)
        if self.written == "whole":
            read = F.scaled_dot_product_attention(q, k, v)
        elif self.written == "written":
            read = weights @ v
        else:
            read = (v.transpose(-1, -2) @ weights.transpose(-1, -2)).transpose(-1, -2)
        energy = read.square()
        return energy, energy.mean(-1), energy.mean((1, 3))


@pytest.mark.slow
@pytest.mark.parametrize("written", ["whole", "written", "transposed"])
@pytest.mark.parametrize(("tokens", "tolerance"), [("of one size", 0.03), ("Gaussian", 0.15), ("of any size", 0.3)])
def test_some_queries_read_few_keys(written, tokens, tolerance):
    """A mean of few keys is larger than one of many: all features of a head share how many its query reads, and all
    heads share the size of the query.
    """
    inputs = torch.randn(8, 49, 128), torch.randn(8, 49, 1)
    predicted, measured = predicted_and_measured(Picks(written, tokens), inputs)
    for name in ("square", "mean", "mean#2"):
        assert_alike(predicted[name], measured[name], tolerance)


class Scaled(nn.Module):
    """Attention whose queries are multiplied with a number."""

    def __init__(self, factor):
        super().__init__()
        self.qkv, self.factor = nn.Linear(32, 96, bias=False), factor

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (2, 16)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return F.scaled_dot_product_attention(self.factor * q, k, v), (q * self.factor @ k.mT).softmax(-1) @ v


@pytest.mark.parametrize("tokens", [1, 2, 7])
@pytest.mark.parametrize(("factor", "read"), [(0.0, "all"), (1e-6, "all"), (1e8, "one")])
def test_attention_with_queries_of_any_size_is_finite(factor, read, tokens):
    graph = wp.trace(Scaled(factor), torch.randn(2, tokens, 32))
    signals = wp.propagate(graph, weights=wp.plan(graph, method="autoinit"))
    for value in graph.outputs:
        signal = signals[graph.values[value].name]
        assert signal.second_moment == pytest.approx(1.0 if read == "one" else 1.0 / tokens, rel=1e-3)
        assert math.isfinite(signal.log2_std)


class Patches(nn.Module):
    """Attention over patches of pictures, whose contrast differs, with a skip."""

    def __init__(self, layers=2):
        super().__init__()
        self.embed = nn.Conv2d(3, 64, 4, stride=4)
        self.layers = nn.ModuleList(Attention(torch.ones(1), True) for _ in range(layers))

    def forward(self, x):
        x = self.embed(x).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = x + layer(x)
        return x


@pytest.mark.slow
def test_patches_keep_contrasts_of_their_own():
    predicted, measured = predicted_and_measured(Patches(), torch.randn(8, 3, 16, 16), 100)
    for one, other in zip(predicted, measured, strict=True):
        if one.op.startswith(("linear", "add", "matmul")):
            # what patches of a sample have in common grows with the query faster than linearly, as long axes do
            assert_alike(one, other, 0.4 if one.name.endswith(("matmul#2", "out")) else 0.2)


class Fourth(nn.Module):
    """Convolutions and norms per channel; the square of what each norm gives."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.first, self.second = nn.BatchNorm2d(16), nn.BatchNorm2d(32)

    def forward(self, x):
        x = self.first(self.one(x))
        y = self.second(self.two(F.relu(x)))
        return x.square(), y.square()


@pytest.mark.slow
def test_a_norm_per_channel_keeps_the_sizes_that_channels_share():
    """Of one filter a picture makes Gaussian numbers; channels of one position share its contrast all the same."""
    predicted, measured = predicted_and_measured(Fourth(), torch.randn(8, 3, 32, 32))
    assert_alike(predicted["square"], measured["square"], 0.05)
    assert_alike(predicted["square#2"], measured["square#2"], 0.15)
    assert measured["square#2"].second_moment > 3.3


@pytest.mark.parametrize("written", [False, True])
def test_attention_over_channels_pulls_nothing_along_the_query(written):
    """Keys and values of one channel were made by weights of their own: nothing is pulled along the query."""

    class OverChannels(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(64, 64, bias=False) for _ in range(3))

        def forward(self, x):
            q, k, v = (f(x).transpose(1, 2).unflatten(1, (1, 64)) for f in (self.q, self.k, self.v))
            if written:
                return (q @ k.transpose(-1, -2) * 8**-0.5).softmax(-1) @ v
            return F.scaled_dot_product_attention(q, k, v, scale=8**-0.5)

    predicted, measured = predicted_and_measured(OverChannels(), torch.randn(8, 8, 64), 40)
    assert_alike(predicted[-1], measured[-1], 0.1)


class Gates(nn.Module):
    """Products of two maps of one signal of few features, and their mean over positions."""

    def __init__(self, form):
        super().__init__()
        self.form = form
        self.first, self.second = nn.Conv2d(5, FEW, 3, padding=1), nn.Conv2d(FEW, 2 * FEW, 1)
        self.other = nn.Conv2d(FEW, 2 * FEW, 1)
        self.third = nn.Conv2d(2 * FEW, 2 * FEW, 3, padding=1, groups=2 * FEW)

    def forward(self, x):
        hidden = F.group_norm(self.first(x), 1)
        both = self.second(hidden)
        if self.form == "two weights":
            gate, value = both, self.other(hidden)
        else:
            gate, value = (self.third(both) if self.form == "depthwise" else both).chunk(2, 1)
        product = gate * value
        return product, product.mean((2, 3))


FEW = 16


@pytest.mark.parametrize("form", ["halves", "two weights", "depthwise"])
def test_gates_are_alike_by_chance_at_all_positions(form):
    x = torch.randn(4, 5, 16, 16)
    signals, measured = predicted_and_measured(Gates(form), x, 60)
    at = [signal.name for signal in measured][-1]
    assert_alike(signals[at], measured[at], 0.35 if form == "depthwise" else 0.15)


class Squeezed(nn.Module):
    """A branch whose channels a number of the sample's own gates, added to another and rectified; what a batch norm
    leaves of the mean over positions.
    """

    def __init__(self, trunk):
        super().__init__()
        self.trunk = trunk
        self.first, self.second = (nn.Conv2d(96, 64, 1, bias=False) for _ in range(2))
        self.gate = nn.Linear(32, 64, bias=False)

    def forward(self, x, z):
        gates = torch.sigmoid(2.0 * self.gate(z))[..., None, None]
        rectified = F.relu(self.trunk(self.first(x)) + gates * self.second(x))
        return F.batch_norm(rectified, None, None, training=True).mean((2, 3))


@pytest.mark.slow
@pytest.mark.parametrize("trunk", [nn.Identity(), nn.ReLU()], ids=["signed", "rectified"])
def test_a_gate_of_a_sample_moves_means_over_its_positions(trunk):
    signals, measured = predicted_and_measured(Squeezed(trunk), (torch.randn(8, 96, 24, 24), torch.randn(8, 32)))
    assert_alike(signals["mean"], measured["mean"], 0.2)


class Steps(nn.Module):
    """Step sizes: a few features, a dense layer, a known bias of its own for each channel, and softplus."""

    def __init__(self, normed):
        super().__init__()
        self.few, self.steps = nn.Linear(WIDTH, 8, bias=False), nn.Linear(8, 256, bias=False)
        self.bias = nn.Buffer(torch.linspace(-6.0, -2.0, 256))
        self.normed = normed

    def forward(self, x):
        x = self.few(F.rms_norm(x, (WIDTH,)))
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) if self.normed else x
        return -F.softplus(self.steps(x) + self.bias) * torch.arange(1.0, 5.0)[:, None, None, None]


@pytest.mark.slow
@pytest.mark.parametrize("normed", [False, True])
def test_known_shifts_leave_sizes(normed):
    """Tails count: what a bias is added to is no Gaussian, unless a norm has given all rows one size."""
    predicted, measured = predicted_and_measured(Steps(normed), torch.randn(4, 32, WIDTH), 200)
    for op in ("softplus.default", "mul.Tensor"):
        assert_alike(*(next(s for s in signals if s.op == op) for signals in (predicted, measured)), 0.06)


class Gated(nn.Module):
    """Padded rows, gated, times all rows: the products of delta rules."""

    def __init__(self):
        super().__init__()
        self.keys, self.gates = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, 1, bias=False)

    def forward(self, x):
        keys, gates = F.pad(self.keys(x), (0, 0, 0, 12)), F.pad(self.gates(x).sigmoid(), (0, 0, 0, 12))
        return (keys * gates) @ keys.mT, keys.mT @ (gates * keys)


def test_the_product_of_a_row_and_its_gated_copy_has_a_mean():
    """A row and its own gated copy share all: the diagonal has a mean; its variance is taken from other pairs."""
    torch.manual_seed(0)
    graph = wp.trace(Gated(), torch.randn(16, 20, WIDTH))
    plan = wp.plan(graph, method="autoinit")
    predicted, measured = wp.propagate(graph, weights=plan), wp.measure(graph, plan=plan, draws=DRAWS)
    for value in graph.outputs:
        name = graph.values[value].name
        assert_alike(predicted[name], measured[name], 0.25)
        error = 3.0 * math.log(2.0) * measured[name].log2_error  # of the second moment, more than that of the mean
        assert predicted[name].mean == pytest.approx(measured[name].mean, rel=error)


class Stem(nn.Module):
    """Patches of pictures, divided by their own size, and attention over them."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Conv2d(3, 64, 8, stride=8), nn.LayerNorm(64)
        self.qkv = nn.Linear(64, 192, bias=False)

    def forward(self, x):
        x = self.norm(self.embed(x).flatten(2).transpose(1, 2))
        return F.scaled_dot_product_attention(
            *(t.unflatten(-1, (4, 16)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        )


@pytest.mark.slow
def test_patches_of_one_size_fill_more_dimensions():
    """Most of a patch is its brightness: once all patches have one size, its other features count for more."""
    predicted, measured = predicted_and_measured(Stem(), torch.randn(8, 3, 64, 64), 60)
    name = predicted[-1].name
    print(predicted[name].second_moment, measured[name].second_moment, measured[name].log2_error)
    assert_alike(predicted[name], measured[name], 0.4)


@pytest.mark.slow
@pytest.mark.parametrize("shared", [0.0, 0.9])
def test_the_factor_of_a_division_by_size_is_that_of_samples(shared):
    """The factor for Gaussians of a covariance in two directions and three channels, against 40,000 pairs of them."""
    profile = 0.8 ** np.arange(6.0)
    kernel = np.multiply.outer([1.0, shared], np.multiply.outer(profile, profile))
    line = profile[np.abs(np.subtract.outer(np.arange(6), np.arange(6)))]
    covariance = np.kron(shared + (1.0 - shared) * np.eye(3), np.kron(line, line))
    x, y = np.random.default_rng(0).standard_normal((2, 40_000, 108)) @ np.linalg.cholesky(covariance).T
    squares, sizes = (x * y).sum(-1) ** 2, (x * x).sum(-1) * (y * y).sum(-1)
    factor = squares / sizes / (np.square(covariance).sum() / 108**2)
    error = factor.std() / math.sqrt(factor.size)
    assert of_one_size(kernel, (3, 6, 6)) == pytest.approx(factor.mean(), abs=3 * error)
    assert factor.mean() < 1.0 - 10 * error


class Dispatched(nn.Module):
    """Tokens of known sizes in the order of a score that hangs on them."""

    def __init__(self, tokens):
        super().__init__()
        self.score, self.weight = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("sizes", torch.linspace(0.2, 1.8, tokens)[:, None])

    def forward(self, x):
        rows = (x * self.sizes).flatten(0, 1)
        order = self.score(rows).squeeze(-1).argsort()
        first, second = self.weight(rows[order]).chunk(2)
        return first**2, torch.cat([first, second]).pow(2).mean(-1)


def test_sizes_by_position_are_chance_where_the_order_is():
    signals, measured = predicted_and_measured(Dispatched(16), torch.randn(64, 16, WIDTH), draws=24)
    assert measured["pow"].second_moment > 1.3 * 3 * measured["pow"].mean ** 2  # of one size it would be 3
    for name in ("pow", "pow#2", "mean"):
        assert_alike(signals[name], measured[name], 0.1)


@pytest.mark.parametrize("count", [8, 64])
def test_rows_that_are_put_somewhere_have_in_common_what_they_had(count):
    size, rho, draws = 32, 0.3, 20000
    x = reshape(exchangeable((size,), 0.5, 2.0, rho), (size, 1))
    sums = _random_sums(SimpleNamespace(root=lambda: 0), x, 0, count)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(draws, size, generator=generator) * (1 - rho) ** 0.5
    rows = 0.5 + 2.0**0.5 * (noise + rho**0.5 * torch.randn(draws, 1, generator=generator))
    names = torch.randint(count, rows.shape, generator=generator)
    found = torch.zeros(draws, count).scatter_add(1, names, rows)
    level = sums.pooled_mean
    for predicted, squares in (
        (sums.pooled_var, ((found - level) ** 2).mean(1)),
        (kernels.pair_mean(sums.covariance(), sums.lengths).item(), (found.mean(1) - level) ** 2),
    ):
        assert abs(predicted - squares.mean().item()) < 4 * squares.std().item() / draws**0.5


class Prefixed(nn.Module):
    """Sums of few products of one token, before those of the others."""

    def __init__(self):
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(WIDTH, 4, bias=False) for _ in range(4))
        self.last = nn.Linear(4, WIDTH, bias=False)

    def forward(self, x):
        one, other = (self.maps[i](part) * self.maps[i + 2](part) for i, part in enumerate((x[:, :1], x[:, 1:])))
        parts = self.last(one), self.last(other)
        return torch.cat(parts, 1) ** 2, parts[1] ** 2


def test_a_concatenation_keeps_the_sizes_of_its_parts():
    graph = wp.trace(Prefixed(), torch.randn(64, 5, WIDTH))
    signals = wp.propagate(graph, weights=wp.plan(graph, method="autoinit"))
    whole, part = (signals[graph.values[value].name] for value in graph.outputs)
    assert part.second_moment > 5.0 * part.mean**2  # of one size it would be 3
    assert whole.second_moment == pytest.approx(part.second_moment, rel=1e-6)


class Causal(nn.Module):
    """Means over positions of what one filter makes of each channel, seen causally."""

    def __init__(self, heads):
        super().__init__()
        self.filters, self.heads = nn.Conv1d(64, 64, 4, groups=64, padding=3, bias=False), heads

    def forward(self, x):
        return F.silu(self.filters(x)[..., : x.shape[-1]].unflatten(1, (self.heads, -1))).mean(-1)


@pytest.mark.parametrize("heads", [1, 4])
def test_a_causal_part_has_the_size_of_its_filter(heads):
    predicted, measured = predicted_and_measured(Causal(heads), torch.randn(8, 64, 48))
    assert_alike(predicted["mean"], measured["mean"], 0.06)
