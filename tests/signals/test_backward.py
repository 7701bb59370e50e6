"""The backward signal pass against closed forms and against real backward passes over weight draws."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wellposed as wp
from wellposed.errors import OptionError
from wellposed.signals import Input, adjoint
from wellposed.signals.context.parameters import Weights
from wellposed.signals.passes.backward import Gradients, back_propagate
from wellposed.signals.sampling.samples import repetitions

WHITE = Input.white()


def gradients(model: nn.Module, *example: torch.Tensor, inputs=WHITE, **options) -> Gradients:
    graph = wp.trace(model, *example)
    return back_propagate(graph, Weights(graph), inputs=inputs, **options)


def linear(fan_in: int, out: int, gain: float = 2.0) -> nn.Linear:
    layer = nn.Linear(fan_in, out)
    nn.init.normal_(layer.weight, 0.0, math.sqrt(gain / fan_in))
    nn.init.zeros_(layer.bias)
    return layer


def conv(fan_in: int, out: int, kernel: int, **options) -> nn.Conv2d:
    layer = nn.Conv2d(fan_in, out, kernel, **options)
    nn.init.normal_(layer.weight, 0.0, math.sqrt(2.0 / (layer.weight[0].numel())))
    nn.init.zeros_(layer.bias)
    return layer


# ---- closed forms ---------------------------------------------------------------------------------------------------


def test_gradients_of_a_linear_layer_have_their_closed_form():
    torch.manual_seed(0)
    layer = nn.Linear(7, 5)
    found = gradients(layer, torch.randn(3, 7))
    # dL/dW_oi = sum over 3 samples of g_o x_i, all of variance 1
    assert found.power("weight") == pytest.approx(5 * 7 * 3)
    assert found.power("bias") == pytest.approx(5 * 3)
    weight = layer.weight.detach().double()
    mean_square = float(weight.square().mean())
    assert found.states[found.graph.inputs[0]].second_moment == pytest.approx(5 * mean_square)


@pytest.mark.parametrize(
    "options",
    [
        {"padding": 1},
        {"stride": 2},
        {"stride": 2, "padding": 1},
        {"dilation": 2, "padding": 2},
        {"groups": 2},
        {"stride": 3, "padding": 2, "groups": 2},
    ],
    ids=str,
)
def test_a_convolution_of_white_signals_counts_every_pair_once(options):
    """White inputs and cotangents: every pair of an output and a tap inside the input counts once."""
    torch.manual_seed(0)
    layer = nn.Conv2d(4, 6, 3, **options)
    x = torch.randn(2, 4, 9, 9)
    found = gradients(layer, x)
    ones = F.conv2d(torch.ones(1, 1, 9, 9), torch.ones(1, 1, 3, 3), **{**options, "groups": 1})
    products = 2 * float(ones.sum()) * 6 * (4 // options.get("groups", 1))
    assert found.power("weight") == pytest.approx(products)
    assert found.power("bias") == pytest.approx(2 * 6 * ones.numel())
    mean_square = float(layer.weight.detach().double().square().mean())
    state = found.states[found.graph.inputs[0]]
    total = state.second_moment * x.numel()
    assert total == pytest.approx(mean_square * products)
    # position by position: each input is read by the outputs whose window covers it
    reads = F.conv_transpose2d(torch.ones_like(ones), torch.ones(1, 1, 3, 3), **_mirrored(options, ones, 9))[0, 0]
    row = np.broadcast_to(state.var[0, 0], (9, 9)) if state.var.ndim == 4 else state.var
    np.testing.assert_allclose(row, mean_square * 6 / options.get("groups", 1) * reads.double().numpy(), rtol=1e-9)


def _mirrored(options, ones, size):
    kept = {key: value for key, value in options.items() if key != "groups"}
    base = F.conv_transpose2d(torch.ones_like(ones), torch.ones(1, 1, 3, 3), **kept).shape[-1]
    return kept | {"output_padding": size - base}


def test_a_transposed_convolution_counts_its_products():
    layer = nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1)
    found = gradients(layer, torch.randn(2, 4, 5, 5))
    ones = F.conv_transpose2d(torch.ones(1, 1, 5, 5), torch.ones(1, 1, 3, 3), stride=2, padding=1)
    products = 2 * float(ones.sum()) * 4 * 6
    assert found.power("weight") == pytest.approx(products)
    mean_square = float(layer.weight.detach().double().square().mean())
    assert found.states[found.graph.inputs[0]].second_moment * 2 * 4 * 25 == pytest.approx(mean_square * products)


def test_global_pooling_makes_positions_add_coherently():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(4, 6, 1)

        def forward(self, x):
            return self.conv(x).mean((2, 3))

    found = gradients(Net(), torch.randn(2, 4, 5, 5))
    assert found.power("conv.bias") == pytest.approx(2 * 6)  # the mean of 25 equal gradients, summed again
    assert found.power("conv.weight") == pytest.approx(2 * 6 * 4 / 25)  # times an average of 25 white inputs


@pytest.mark.parametrize(
    ("function", "factor"),
    [
        (lambda x: x + x, 4.0),
        (lambda x: 3 * x - x, 4.0),
        (lambda x: x + F.relu(x), 2.5),  # E (1 + 1[x > 0])²
        (lambda x: F.relu(x) - F.relu(-x), 1.0),
        (lambda x: torch.cat([x, 2 * x], 1), 5.0),
        (lambda x: x.reshape(2, 5, 10).permute(2, 0, 1)[3:7], 0.4),
        (lambda x: x[:, :10] * 3 + x[:, 10:20], 2.0),
        (lambda x: torch.stack(x.chunk(5, 1)).sum(0), 1.0),
        (lambda x: x * x, 4.0),
        (lambda x: x / 2 + 1, 0.25),
        (lambda x: x.expand(3, 2, 50), 3.0),
        (lambda x: x.clamp(-1, 1), math.erf(1 / math.sqrt(2))),
        (lambda x: F.avg_pool1d(x[None], 5)[0], 0.04),
        (lambda x: F.pad(x, (1, 2)), 1.0),
        (lambda x: x.flip(1).roll(1, 0), 1.0),
    ],
)
def test_operators_without_weights_scale_gradients_by_their_factor(function, factor):
    class Net(nn.Module):
        def forward(self, x):
            return function(x)

    found = gradients(Net(), torch.randn(2, 50))
    assert found.states[found.graph.inputs[0]].second_moment == pytest.approx(factor, rel=1e-6)


MASK = torch.arange(24).reshape(1, 1, 4, 6) % 3 > 0
RUNNING = (torch.zeros(12), torch.full((12,), 4.0))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.layer_norm(x, (4, 6)),
        lambda x: F.layer_norm(x, (6,)),
        lambda x: F.rms_norm(x, (12, 4, 6)),
        lambda x: F.instance_norm(x),
        lambda x: F.group_norm(x, 3),
        lambda x: F.batch_norm(x, None, None, training=True),
        lambda x: F.relu(F.batch_norm(x, None, None, training=True)).mean((2, 3)),
        lambda x: F.batch_norm(x, *RUNNING, torch.full((12,), 3.0), training=False),
        lambda x: torch.where(MASK, x, 2 * x),
        lambda x: x.masked_fill(MASK, 1.0),
        lambda x: torch.lerp(x, F.relu(x), 0.3),
        lambda x: torch.addcmul(x, x, x, value=0.5),
        lambda x: x / (3 + 0.1 * x),
        lambda x: F.max_pool2d(x, 2),
        lambda x: F.max_pool2d(F.relu(x), 3, 1, 1),
        lambda x: F.adaptive_avg_pool2d(x, (3, 4)),
        lambda x: F.avg_pool2d(x, 3, 1, 1),
        lambda x: F.avg_pool2d(x, 3, 1, 1).mean((2, 3)),
        lambda x: x.movedim(1, 3).narrow(2, 1, 3).unbind(1)[2],
        lambda x: torch.stack([x[:, 3], x[:, 5]], 1).repeat(1, 2, 1, 1),
        lambda x: F.leaky_relu(torch.cat([F.relu(x), x], 1), 0.2),
        lambda x: x * x.mean((2, 3), keepdim=True).sigmoid(),
        lambda x: F.hardswish(x) - torch.tanh(x) * 0.5,
        lambda x: F.rrelu(x, 0.5, 0.5, training=True),
        lambda x: F.glu(x, 1),
    ],
)
def test_gradients_of_operators_are_those_of_real_derivatives(function):
    class Net(nn.Module):
        def forward(self, x):
            return function(x)

    found = gradients(Net(), torch.randn(6, 12, 4, 6)).states
    torch.manual_seed(0)
    squares = []
    for _ in range(60):
        x = torch.randn(6, 12, 4, 6, requires_grad=True)
        y = function(x)
        (g,) = torch.autograd.grad(y, x, torch.randn_like(y))
        squares.append(float(g.square().mean()))
    state = found[0]
    error = np.std(squares, ddof=1) / math.sqrt(len(squares))
    if state.tag == "sampled":
        error *= math.sqrt(1 + len(squares) / repetitions(x.numel() + y.numel()))
    assert abs(state.second_moment - np.mean(squares)) < 4 * error + 1e-6 * np.mean(squares)


def test_gates_written_out_are_one_function():
    """x * sigmoid(x) is differentiated as SiLU is: both factors know each other."""

    def net(gate):
        class Net(nn.Module):
            def forward(self, x):
                return gate(x)

        return gradients(Net(), torch.randn(4, 64))

    whole, written = net(F.silu), net(lambda x: x * torch.sigmoid(x))
    z = np.linspace(-9, 9, 20001)
    s = 1 / (1 + np.exp(-z))
    weights = np.exp(-z * z / 2) / np.exp(-z * z / 2).sum()
    expected = float(((s + z * s * (1 - s)) ** 2) @ weights)
    for found in (whole, written):
        assert found.states[found.graph.inputs[0]].second_moment == pytest.approx(expected, rel=1e-6)


def test_a_shift_before_a_batch_norm_changes_nothing():
    model = nn.Sequential(conv(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    found = gradients(model, torch.randn(8, 3, 8, 8))
    assert found.power("0.bias") < 1e-9 * found.power("0.weight")


def test_cotangents_scale_and_choose_outputs():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 5)

        def forward(self, x):
            return self.a(x), self.b(x)

    graph = wp.trace(Two(), torch.randn(2, 4))
    found = back_propagate(graph, Weights(graph), inputs=WHITE, cotangents={graph.outputs[1]: 9.0})
    assert found.power("a.weight") == 0.0
    assert found.power("b.weight") == pytest.approx(9.0 * 2 * 4 * 5)


def test_nothing_reaches_what_no_output_needs():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.left = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            self.left(x)
            return self.used(x)

    assert gradients(Net(), torch.randn(2, 4)).power("left.weight") == 0.0


# ---- against real backward passes -----------------------------------------------------------------------------------


class Residual(nn.Module):
    def __init__(self, width, norm, pre):
        super().__init__()
        self.first, self.second = conv(width, width, 3, padding=1), conv(width, width, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(width) if norm else nn.Identity()
        self.norm2 = nn.BatchNorm2d(width) if norm else nn.Identity()
        self.pre = pre

    def forward(self, x):
        if self.pre:
            return x + self.second(F.relu(self.norm2(self.first(F.relu(self.norm1(x))))))
        return F.relu(x + self.norm2(self.second(F.relu(self.norm1(self.first(x))))))


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.gate, self.value, self.out = linear(32, 192), linear(192, 192), linear(192, 192), linear(192, 8)
        self.down, self.norm = linear(192, 192), nn.LayerNorm(192)
        self.scale = nn.Parameter(torch.full((192,), 0.5))

    def forward(self, x):
        x = self.stem(x)
        x = x * torch.sigmoid(1.702 * x)
        x = x + self.scale * self.down(F.silu(self.gate(x)) * self.value(x))
        return self.out(self.norm(x) + F.relu(x) / 2)


class Skips(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.out = linear(32, 192), linear(192, 8)
        self.layers = nn.ModuleList([linear(192, 192) for _ in range(3)])

    def forward(self, x):
        first = F.relu(self.stem(x))
        second = F.relu(self.layers[0](first)) + first
        third = second + first + F.relu(self.layers[1](second))
        return self.out(third + second + F.relu(self.layers[2](first)))


class Dense(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.stem = conv(3, width, 3, padding=1)
        self.convs = nn.ModuleList([conv(width * (i + 1), width, 3, padding=1) for i in range(2)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(width * (i + 1)) for i in range(2)])
        self.out = linear(3 * width, 8)

    def forward(self, x):
        x = self.stem(x)
        for layer, norm in zip(self.convs, self.norms, strict=True):
            x = torch.cat([x, layer(F.relu(norm(x)))], 1)
        return self.out(F.relu(x).mean((2, 3)))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, 64), nn.Parameter(torch.randn(1, 12, 64) / 2)
        self.norm, self.norm2, self.qkv, self.proj = nn.LayerNorm(64), nn.LayerNorm(64), linear(64, 192), linear(64, 64)
        self.up, self.down, self.out = linear(64, 256), linear(256, 64), linear(64, 50)

    def forward(self, t):
        x = self.tokens(t) + self.places
        q, k, v = self.qkv(self.norm(x)).view(*t.shape, 3, 4, 16).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(*t.shape, 64))
        return self.out(x + self.down(F.gelu(self.up(self.norm2(x)))))


def chain(*layers):
    return lambda: nn.Sequential(*(layer() for layer in layers))


def stem():
    return conv(3, 48, 3, padding=1)


def head(width=48):
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), linear(width, 8))


def vectors():
    return torch.randn(4, 32)


def images():
    return torch.randn(6, 3, 8, 8)


def wide():
    return linear(192, 192)


NETS = {
    "mlp": (
        chain(lambda: linear(32, 192), nn.ReLU, wide, nn.Tanh, wide, nn.GELU, lambda: linear(192, 8)),
        vectors,
    ),
    "convolutions": (
        chain(
            stem,
            nn.ReLU,
            lambda: nn.AvgPool2d(2),
            lambda: conv(48, 48, 5, padding=2, groups=4),
            nn.ReLU,
            lambda: conv(48, 48, 3),
            nn.Flatten,
            lambda: linear(48 * 4, 8),
        ),
        images,
    ),
    "global pooling": (chain(stem, nn.ReLU, lambda: conv(48, 48, 3, stride=2), nn.ReLU, head), images),
    "max pooling": (
        chain(stem, nn.ReLU, lambda: nn.MaxPool2d(2), lambda: conv(48, 48, 3), nn.ReLU, head),
        images,
    ),
    "residual": (chain(stem, nn.ReLU, lambda: Residual(48, False, False), head), images),
    "batch norm": (
        chain(stem, lambda: Residual(48, True, True), lambda: nn.BatchNorm2d(48), nn.ReLU, head),
        images,
    ),
    "residual batch norm": (
        chain(stem, lambda: nn.BatchNorm2d(48), nn.ReLU, lambda: Residual(48, True, False), head),
        images,
    ),
    "group norm": (
        chain(stem, lambda: nn.GroupNorm(4, 48), nn.ReLU, lambda: conv(48, 48, 3), nn.ReLU, head),
        images,
    ),
    "gated": (Gated, vectors),
    "skips": (Skips, vectors),
    "concatenation": (Dense, images),
    "attention": (Attention, lambda: torch.randint(0, 50, (3, 12))),
}

# What is left out, and by how much a single weight can be off for it, as a factor.
ALLOWED = {
    "batch norm": 1.1,  # a stem of 27 products: channels differ in variance, and E 1/s² is 27/25 of 1/E s²
    "residual batch norm": 1.1,  # the same
    "group norm": 1.2,  # the same; and the gradient's dependence on its own output is not followed through the norm
    "attention": 1.1,  # a long output of attention makes the next norm divide its gradient by more: E g²x² < E g² E x²
    "gated": 1.1,  # gate and value share their input: their product is taken as one of independent factors
}
DRAWS = 40


def nominal(model):
    """Give every weight exactly the mean square that it is drawn with, instead of that of one draw."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Conv2d | nn.Embedding):
                level = 1.0 if isinstance(module, nn.Embedding) else 2.0 / module.weight[0].numel()
                module.weight -= module.weight.mean()
                module.weight *= math.sqrt(level) / module.weight.square().mean().sqrt()
    return model


def measured(make, example, draws=DRAWS):
    """Sums of squares of real gradients by each parameter, (draws, parameters), for cotangents of mean square 1."""
    rows = []
    for draw in range(draws):
        torch.manual_seed(100 + draw)
        model = make()
        output = model(example())
        cotangent = torch.randn_like(output)
        cotangent /= cotangent.square().mean().sqrt()
        found = torch.autograd.grad(output, list(model.parameters()), cotangent, allow_unused=True)
        rows.append([0.0 if g is None else float(g.double().square().sum()) for g in found])
    return np.array(rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_gradients_of_nets_are_those_of_real_backward_passes(name):
    make, example = NETS[name]
    found = gradients(nominal(make()), example(), inputs=WHITE if example().is_floating_point() else None)
    names = [n for n, _ in make().named_parameters()]
    rows = measured(make, example)
    mean, error = rows.mean(0), rows.std(0, ddof=1) / math.sqrt(len(rows))
    off = []
    for i, parameter in enumerate(names):
        if not names[i].endswith("weight") or mean[i] < 1e-6 * mean.max():
            continue
        predicted = found.power(parameter)
        slack = ALLOWED.get(name, 1.0)
        low, high = (mean[i] - 4 * error[i]) / slack, (mean[i] + 4 * error[i]) * slack
        if not low <= predicted <= high:
            off.append((parameter, predicted, mean[i], error[i]))
    assert not off
    total, total_error = rows.sum(1).mean(), rows.sum(1).std(ddof=1) / math.sqrt(len(rows))
    predicted = sum(found.power(parameter) for parameter in names)
    assert abs(predicted - total) <= 4 * total_error + (ALLOWED.get(name, 1.0) - 1.0) * total


def test_signals_are_named_as_in_the_forward_pass():
    graph = wp.trace(NETS["mlp"][0](), torch.randn(4, 32))
    found = back_propagate(graph, Weights(graph), inputs=WHITE)
    assert [s.name for s in found.signals] == [s.name for s in wp.propagate(graph)]
    assert found.signals["6"].var == pytest.approx(1.0)
    assert not found.outcomes


def test_operators_without_a_rule_are_differentiated_on_samples():
    class Net(nn.Module):
        def forward(self, x):
            return torch.log_softmax(x, -1)

    found = gradients(Net(), torch.randn(64, 32))
    assert [o.tag for o in found.outcomes] == ["sampled"]
    torch.manual_seed(0)
    x = torch.randn(64, 32, requires_grad=True)
    squares = []
    for _ in range(100):
        x = torch.randn(64, 32, requires_grad=True)
        y = torch.log_softmax(x, -1)
        (g,) = torch.autograd.grad(y, x, torch.randn_like(y))
        squares.append(float(g.square().mean()))
    state = found.states[found.graph.inputs[0]]
    assert abs(state.second_moment - np.mean(squares)) < 5 * np.std(squares) / 10
    assert state.tag == "sampled"


def test_a_second_rule_is_refused():
    with pytest.raises(OptionError, match="a backward rule already"):
        adjoint(torch.ops.aten.relu.default, source="none")(lambda call, gradients, x: None)


@pytest.mark.slow
def test_moments_whose_square_is_below_all_numbers_are_followed():
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(400) for layer in (nn.Linear(4, 4), nn.ReLU())))
    gradients = wp.propagate(wp.trace(model, torch.randn(8, 4)), backward=True).gradients
    assert 0.0 <= gradients["0"].second_moment < 1e-160
