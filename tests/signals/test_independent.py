"""``state="independent"`` is AutoInit as published (arXiv 2109.08958, Appendix A), slips included."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import wellposed as wp

MEAN, VAR = 0.4, 1.5
SECOND = MEAN**2 + VAR


class Function(nn.Module):
    def __init__(self, function, **weights):
        super().__init__()
        self.function = function
        for name, weight in weights.items():
            self.register_parameter(name, nn.Parameter(weight))

    def forward(self, *xs):
        return self.function(*xs, **dict(self.named_parameters()))


def predicted(function, *shapes, state="independent", **weights):
    """Mean and variance of what a function makes of inputs of mean 0.4 and variance 1.5."""
    model = Function(function, **{k: v.clone() for k, v in weights.items()})
    graph = wp.trace(model, *(torch.zeros(s) for s in shapes))
    signal = wp.propagate(graph, inputs=wp.Input.white(MEAN, VAR), state=state)[-1]
    return signal.mean, signal.var


IMAGE = (2, 4, 8, 8)


def unit(*shape):
    """A weight of mean 0 and variance 1 exactly."""
    flat = torch.ones(math.prod(shape))
    flat[::2] = -1.0
    return flat.view(shape)


def test_dense_layers_follow_equations_3_to_6():
    assert predicted(lambda x, w: F.linear(x, w), (2, 6), w=unit(5, 6)) == pytest.approx((0.0, 6 * SECOND))


def test_convolution_counts_the_full_window_at_the_border():
    """Every output counts the full window, also at the border."""
    assert predicted(lambda x, w: F.conv2d(x, w, padding=1), IMAGE, w=unit(5, 4, 3, 3)) == pytest.approx(
        (0.0, 36 * SECOND)
    )
    corrected = predicted(lambda x, w: F.conv2d(x, w, padding=1), IMAGE, state="full", w=unit(5, 4, 3, 3))
    assert corrected == pytest.approx((0.0, 36 * (22 / 24) ** 2 * SECOND))


def test_depthwise_convolution_counts_one_channel():
    weight = unit(4, 1, 3, 3)
    assert predicted(lambda x, w: F.conv2d(x, w, groups=4), IMAGE, w=weight) == pytest.approx((0.0, 9 * SECOND))


def test_activations_are_integrated_against_their_own_input():
    mean, var = predicted(torch.relu, (2, 6))
    std = VAR**0.5
    phi, inside = (
        math.exp(-0.5 * (MEAN / std) ** 2) / math.sqrt(2 * math.pi),
        0.5 * math.erfc(-MEAN / std / math.sqrt(2)),
    )
    assert mean == pytest.approx(MEAN * inside + std * phi)
    assert mean**2 + var == pytest.approx(SECOND * inside + MEAN * std * phi)


SEVERAL = {
    "softsign": lambda x: x / (1 + x.abs()),
    "softsign, module": nn.Softsign(),
    "SiLU": lambda x: x * torch.sigmoid(x),
    "tanhshrink": lambda x: x - torch.tanh(x),
    "tanhshrink, functional": F.tanhshrink,
    "hard swish": lambda x: x * F.relu6(x + 3) / 6,
    "Mish": lambda x: x * torch.tanh(F.softplus(x)),
    "GELU": lambda x: 0.5 * x * (1 + torch.erf(x / 2**0.5)),
    "squared ReLU": lambda x: torch.relu(x) * torch.relu(x),
    "twice": lambda x: torch.relu(torch.relu(x) - 0.5),
    "leaky ReLU": lambda x: torch.where(x > 0, x, 0.1 * x),
    "snake": lambda x: x + torch.sin(x) ** 2,
    "with a scale and a shift": lambda x: torch.tanh(2 * x + 1) * x,
}


@pytest.mark.parametrize("name", SEVERAL)
def test_several_operators_on_one_signal_are_integrated_as_one_function(name):
    z = torch.linspace(-10, 10, 200_001, dtype=torch.float64)
    share = torch.exp(-0.5 * z * z) / torch.exp(-0.5 * z * z).sum()
    values = SEVERAL[name](MEAN + VAR**0.5 * z)
    mean = float(share @ values)
    assert predicted(SEVERAL[name], (2, 6)) == pytest.approx((mean, float(share @ (values - mean) ** 2)), rel=1e-4)


def test_functions_of_two_layers_are_independent():
    """Each layer's signal is a source of its own, and so is each noise."""
    w = unit(6, 6)
    relu = predicted(lambda x, w: torch.relu(F.linear(x, w)), (2, 6), w=w)
    both = predicted(lambda x, w: torch.relu(F.linear(x, w)) + F.linear(x, w), (2, 6), w=w)
    assert both[1] == pytest.approx(relu[1] + 6 * SECOND)
    dropped = predicted(lambda x: F.dropout(x, 0.5) + F.dropout(x, 0.5), (2, 6))
    assert dropped == pytest.approx((2 * MEAN, 2 * VAR / 0.5))


def test_dropout_follows_equation_12():
    """Var / (1 - r), without the mean's share m² r / (1 - r)."""
    assert predicted(lambda x: F.dropout(x, 0.2), (2, 6)) == pytest.approx((MEAN, VAR / 0.8))
    assert predicted(lambda x: F.dropout(x, 0.2), (2, 6), state="full") == pytest.approx(
        (MEAN, VAR / 0.8 + MEAN**2 * 0.25)
    )
    assert predicted(lambda x: F.dropout2d(x, 0.2), IMAGE) == pytest.approx((MEAN, VAR / 0.8))


def test_zero_padding_follows_equation_24():
    """(1 - z) Var, without the mean's share z (1 - z) m²."""
    z = 1 - 64 / 100
    assert predicted(lambda x: F.pad(x, (1, 1, 1, 1)), IMAGE) == pytest.approx(((1 - z) * MEAN, (1 - z) * VAR))
    full = predicted(lambda x: F.pad(x, (1, 1, 1, 1)), IMAGE, state="full")
    assert full == pytest.approx(((1 - z) * MEAN, (1 - z) * VAR + z * (1 - z) * MEAN**2))


def test_average_pooling_divides_the_variance_by_the_window():
    assert predicted(lambda x: F.avg_pool2d(x, 2), IMAGE) == pytest.approx((MEAN, VAR / 4))
    assert predicted(lambda x: F.adaptive_avg_pool2d(x, 1), IMAGE) == pytest.approx((MEAN, VAR / 64))


def test_max_pooling_of_independent_gaussians():
    """E max of 4 standard normals is 1.0294, its variance 0.4917; the rule samples 4096 points."""
    mean, var = predicted(lambda x: F.max_pool2d(x, 2), IMAGE)
    assert mean == pytest.approx(MEAN + 1.02938 * VAR**0.5, abs=3 / 64)
    assert var == pytest.approx(0.49172 * VAR, abs=3 / 64)


@pytest.mark.parametrize("classes", [2, 10, 200])
def test_softmax_of_independent_gaussians(classes):
    torch.manual_seed(0)
    draws = torch.softmax(MEAN + VAR**0.5 * torch.randn(20_000, classes, dtype=torch.float64), -1)
    mean, var = predicted(lambda x: torch.softmax(x, -1), (2, classes))
    assert mean == pytest.approx(1 / classes)
    seen = draws.var(-1, correction=0)  # of one draw, whose mean is 1 / classes
    error = float(seen.std() / len(seen) ** 0.5)
    assert var == pytest.approx(float(seen.mean()), abs=4 * error)


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm2d(4, affine=False), nn.GroupNorm(2, 4, affine=False), nn.InstanceNorm2d(4)], ids=str
)
def test_norms_give_mean_0_and_variance_1(norm):
    graph = wp.trace(norm, torch.zeros(IMAGE))
    signal = wp.propagate(graph, inputs=wp.Input.white(MEAN, VAR), state="independent")[-1]
    assert (signal.mean, signal.var) == pytest.approx((0.0, 1.0))


def test_sums_and_products_of_independent_signals():
    two = ((2, 6), (2, 6))
    assert predicted(lambda x, y: x + y, *two) == pytest.approx((2 * MEAN, 2 * VAR))
    assert predicted(lambda x, y: x - y, *two) == pytest.approx((0.0, 2 * VAR))
    assert predicted(lambda x, y: (x + y) / 2, *two) == pytest.approx((MEAN, VAR / 2))
    assert predicted(lambda x, y: x * y, *two) == pytest.approx((MEAN**2, VAR**2 + 2 * MEAN**2 * VAR))


def test_concatenation_is_a_mixture():
    mean, var = predicted(lambda x: torch.cat([x, 3 * x[:, :2] + 1], 1), (2, 6))
    m, q = (6 * MEAN + 2 * (3 * MEAN + 1)) / 8, (6 * SECOND + 2 * ((3 * MEAN + 1) ** 2 + 9 * VAR)) / 8
    assert (mean, var) == pytest.approx((m, q - m**2))


def test_a_matrix_product_multiplies_independent_moments():
    mean, var = predicted(lambda x, y: x @ y, (2, 5, 6), (2, 6, 3))
    assert (mean, var) == pytest.approx((6 * MEAN**2, 6 * (VAR**2 + 2 * MEAN**2 * VAR)))


def test_mean_and_sum_add_independent_variances():
    assert predicted(lambda x: x.mean(1), (2, 6)) == pytest.approx((MEAN, VAR / 6))
    assert predicted(lambda x: x.sum(1), (2, 6)) == pytest.approx((6 * MEAN, 6 * VAR))


@pytest.mark.parametrize(
    "same",
    [
        lambda x: x.flatten(1),
        lambda x: x.permute(0, 2, 3, 1),
        lambda x: x.reshape(2, -1, 4),
        lambda x: F.interpolate(x, scale_factor=2.0, mode="nearest"),
        lambda x: x[:, :, 1:-1, 2:],
        lambda x: x.split(2, 1)[1],
    ],
    ids=["flatten", "permute", "reshape", "upsample", "crop", "split"],
)
def test_moving_elements_keeps_mean_and_variance(same):
    assert predicted(same, IMAGE) == pytest.approx((MEAN, VAR))
