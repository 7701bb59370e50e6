"""Transformations of one activation: their conditions by another quadrature, and the map of leaky rectifiers."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from wellposed.errors import UnsupportedError
from wellposed.shaping.local import leaky, smooth

CURVATURE = 0.015
ACTIVATIONS = [nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Tanh(), nn.Softplus(), nn.ELU(), nn.Mish()]


def derivative(f, z, order, step=1e-3):
    """A central difference, as the transformation takes its derivatives by autograd."""
    if order == 1:
        return (f(z + step) - f(z - step)) / (2.0 * step)
    return (f(z + step) - 2.0 * f(z) + f(z - step)) / step**2


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda a: str(a))
def test_a_transformed_activation_keeps_second_moments_and_slopes(activation):
    made = smooth(activation, CURVATURE)

    def f(z):
        inner = made.input_scale * torch.from_numpy(z) + made.input_shift
        return (made.output_scale * (activation(inner) + made.output_shift)).numpy()

    z, step = np.linspace(-9.0, 9.0, 400_001, retstep=True)
    weight = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi) * step
    slope, curve = derivative(f, z, 1), derivative(f, z, 2)
    assert weight @ f(z) ** 2 == pytest.approx(1.0, abs=1e-5)
    assert weight @ (f(z) * slope * z) == pytest.approx(1.0, abs=1e-5)
    assert weight @ slope**2 == pytest.approx(1.0, abs=1e-5)
    assert weight @ curve**2 == pytest.approx(CURVATURE, rel=1e-2)


def test_transformations_are_those_of_the_authors_code():
    """dks 0.1.2, get_transformed_activations with TAT, 20 layers and c_curve_target 0.3; quadrature of order 2,000."""
    expected = {
        nn.Tanh(): (0.129712, 0.5378359, 10.135855, -0.4937357),
        nn.GELU(): (0.1301025, 0.326161, 10.2091127, -0.2023266),
        nn.SiLU(): (0.1969359, 0.4487912, 7.0658643, -0.2703798),
        nn.Softplus(): (0.3411273, 0.5476788, 4.6170278, -0.9986475),
    }
    for activation, numbers in expected.items():
        made = smooth(activation, 0.3 / 20)
        found = (made.input_scale, made.input_shift, made.output_scale, made.output_shift)
        assert found == pytest.approx(numbers, rel=1e-5)


@pytest.mark.parametrize("slope", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("correlation", [-0.5, 0.0, 0.8, 1.0])
def test_the_map_of_leaky_rectifiers_is_that_of_draws(slope, correlation):
    generator = np.random.default_rng(0)
    z = generator.standard_normal((2, 1_000_000))
    z[1] = correlation * z[0] + math.sqrt(1.0 - correlation**2) * z[1]
    made = np.where(z > 0.0, z, slope * z)
    products = made[0] * made[1] / np.mean(made[0] ** 2)
    error = products.std() / math.sqrt(products.size)
    assert leaky(correlation, slope) == pytest.approx(products.mean(), abs=5.0 * error + 1e-12)


def test_a_function_that_has_no_such_form_is_refused():
    with pytest.raises(UnsupportedError, match="cannot be transformed"):
        smooth(torch.cos, 40.0)
