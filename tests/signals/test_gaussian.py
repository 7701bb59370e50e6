"""Expectations of functions of a Gaussian against quadrature that is told where kinks and jumps are."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import eval_hermitenorm
from torch.nn import functional as F

from wellposed.signals.integration.gaussian import ORDER, expectations, gaussian_moments, hermite, hermite_many

mp = mpmath.mp
POINTS = [(0.0, 1.0), (0.0, 0.1), (0.7, 0.5), (-1.3, 2.0), (0.2, 10.0), (3.0, 0.01)]
TOLERANCE = 1e-6


def _gelu(x):
    return x * mpmath.ncdf(x)


def _elu(x):
    return x if x > 0 else mpmath.expm1(x)


def _selu(x):
    scale, alpha = mpmath.mpf("1.0507009873554804934193349852946"), mpmath.mpf("1.6732632423543772848170429916717")
    return scale * (x if x > 0 else alpha * mpmath.expm1(x))


def _sigmoid(x):
    return 1 / (1 + mpmath.exp(-x))


def _softplus(x):
    return mpmath.log1p(mpmath.exp(-abs(x))) + max(x, 0)


# name: (the function in torch, in mpmath, where it has a kink or a jump)
ACTIVATIONS = {
    "elu": (F.elu, _elu, [0]),
    "exponential": (torch.exp, mpmath.exp, []),
    "gelu": (F.gelu, _gelu, []),
    # Keras' hard sigmoid, as AutoInit has it
    "hard_sigmoid (Keras)": (
        lambda x: torch.clamp(0.2 * x + 0.5, 0, 1),
        lambda x: min(max(x / 5 + mpmath.mpf(1) / 2, 0), 1),
        [-2.5, 2.5],
    ),
    "hard_sigmoid": (F.hardsigmoid, lambda x: min(max(x / 6 + mpmath.mpf(1) / 2, 0), 1), [-3, 3]),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.3), lambda x: x if x > 0 else mpmath.mpf(3) / 10 * x, [0]),
    "linear": (lambda x: x, lambda x: x, []),
    "prelu": (lambda x: torch.where(x > 0, x, -0.25 * x), lambda x: x if x > 0 else -x / 4, [0]),
    "relu": (F.relu, lambda x: max(x, 0), [0]),
    "selu": (F.selu, _selu, [0]),
    "sigmoid": (torch.sigmoid, _sigmoid, []),
    "softplus": (F.softplus, _softplus, []),
    "softsign": (lambda x: x / (1 + x.abs()), lambda x: x / (1 + abs(x)), [0]),
    "swish": (F.silu, lambda x: x * _sigmoid(x), []),
    "tanh": (torch.tanh, mpmath.tanh, []),
    "thresholded_relu": (lambda x: torch.where(x > 1.0, x, 0.0), lambda x: x if x > 1 else mpmath.mpf(0), [1]),
    # further kinks and jumps
    "relu6": (F.relu6, lambda x: min(max(x, 0), 6), [0, 6]),
    "hardswish": (F.hardswish, lambda x: x * min(max(x + 3, 0), 6) / 6, [-3, 3]),
    "sign": (torch.sign, lambda x: mpmath.sign(x), [0]),
    "hardshrink": (lambda x: F.hardshrink(x, 0.5), lambda x: x if abs(x) > 0.5 else mpmath.mpf(0), [-0.5, 0.5]),
    "abs": (torch.abs, abs, [0]),
    "square": (torch.square, lambda x: x * x, []),
    "mish": (F.mish, lambda x: x * mpmath.tanh(_softplus(x)), []),
    "sin 5x": (lambda x: torch.sin(5 * x), lambda x: mpmath.sin(5 * x), []),
}


def in_numpy(function):
    return lambda x: function(torch.from_numpy(np.ascontiguousarray(x))).numpy()


_X, _W = np.polynomial.legendre.leggauss(48)


def reference(function, kinks, mean, std):
    """E f and E f² by 48-point Gauss-Legendre quadrature on panels that end at every kink and jump."""
    inner = [(k - mean) / std for k in kinks]
    edges = np.unique([*np.arange(-38, 38.1, 0.25 if std > 5 else 1.0), *(z for z in inner if abs(z) < 38)])
    half, middle = np.diff(edges)[:, None] / 2, ((edges[1:] + edges[:-1]) / 2)[:, None]
    z = middle + half * _X
    # nodes lie strictly inside their panel: a jump's own value never counts
    weights = half * _W * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    values = function(mean + std * z.ravel()).reshape(z.shape)
    return float((weights * values).sum()), float((weights * values**2).sum())


@pytest.mark.parametrize("name", ["gelu", "selu", "softsign", "thresholded_relu"])
def test_the_reference_agrees_with_mpmath(name):
    """The quadrature that the others are held against, in 20 digits with the functions written out in mpmath."""
    function, exact, kinks = ACTIVATIONS[name]
    mean, std = 0.4, 1.3
    with mp.workdps(20):
        edges = sorted(
            {
                *map(mpmath.mpf, range(-14, 15, 2)),
                *((mpmath.mpf(k) - mpmath.mpf(mean)) / mpmath.mpf(std) for k in kinks),
            }
        )
        density = lambda z: mpmath.exp(-z * z / 2) / mpmath.sqrt(2 * mp.pi)  # noqa: E731
        expected = [
            float(mpmath.quad(lambda z, p=p: exact(mean + std * z) ** p * density(z), edges, maxdegree=5))
            for p in (1, 2)
        ]
    assert reference(in_numpy(function), kinks, mean, std) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_moments_of_activations_agree_with_the_reference(name):
    function, _, kinks = ACTIVATIONS[name]
    for mean, std in POINTS:
        if name == "exponential" and std > 5:
            continue  # E exp(2x) with a deviation of 10 lies 20 deviations out: held in closed form below
        first, second = gaussian_moments(in_numpy(function), mean, std)
        expected = reference(in_numpy(function), kinks, mean, std)
        assert second == pytest.approx(expected[1], rel=TOLERANCE, abs=1e-14), (mean, std)
        assert first == pytest.approx(expected[0], rel=TOLERANCE, abs=TOLERANCE * math.sqrt(expected[1]) + 1e-14), (
            mean,
            std,
        )


@pytest.mark.slow
@given(mean=st.floats(-3, 3), std=st.floats(0.05, 3), at=st.floats(-3, 3))
def test_moments_agree_with_closed_forms_wherever_the_kink_falls(mean, std, at):
    """ReLU, exp and a step, wherever the kink or the jump falls in a panel."""
    phi = math.exp(-0.5 * (mean / std) ** 2) / math.sqrt(2 * math.pi)
    inside = 0.5 * math.erfc(-mean / std / math.sqrt(2))
    first, second = gaussian_moments(lambda x: np.maximum(x, 0.0), mean, std)
    # far out both closed forms are differences of nearly equal numbers
    rounding = 1e-15 * (mean**2 + std**2)
    assert first == pytest.approx(mean * inside + std * phi, rel=TOLERANCE, abs=rounding)
    assert second == pytest.approx((mean**2 + std**2) * inside + mean * std * phi, rel=TOLERANCE, abs=rounding)
    first, second = gaussian_moments(np.exp, mean, std)
    assert first == pytest.approx(math.exp(mean + std**2 / 2), rel=TOLERANCE)
    assert second == pytest.approx(math.exp(2 * mean + 2 * std**2), rel=TOLERANCE)
    first, _ = gaussian_moments(lambda x: (x > at).astype(float), mean, std)
    assert first == pytest.approx(0.5 * math.erfc((at - mean) / std / math.sqrt(2)), rel=TOLERANCE, abs=1e-250)


def test_a_jump_beside_the_end_of_a_panel_is_integrated():
    """A jump that lies between a panel's last node and its end is seen by no node of the rule."""
    std = 1.5876916315897849
    first, _ = gaussian_moments(lambda x: (x > 0.4).astype(float), 0.0, std)
    assert first == pytest.approx(0.5 * math.erfc(0.4 / std / math.sqrt(2)), rel=TOLERANCE)


def test_what_lies_too_far_out_to_matter_takes_no_time():
    """Products with the density that are no longer resolved must not be halved for ever."""
    points = []

    def step(x):
        points.append(x.size)
        return (x > 37.5).astype(float)

    first, second = gaussian_moments(step, 0.0, 1.0)
    assert 0.0 <= first < 1e-300
    assert 0.0 <= second < 1e-300
    assert sum(points) < 1e6


def test_several_functions_are_integrated_at_once():
    stacked = lambda x: np.stack([x, x**2, np.maximum(x, 0.0)])  # noqa: E731
    assert expectations(stacked, 0.5, 0.0) == pytest.approx([0.5, 0.25, 0.5])
    assert expectations(stacked, 0.0, 2.0) == pytest.approx([0.0, 4.0, 2.0 / math.sqrt(2 * math.pi)], abs=1e-9)


def test_a_moment_that_does_not_exist_is_not_finite():
    with np.errstate(all="ignore"):
        assert not np.isfinite(gaussian_moments(lambda x: np.exp(x**2), 0.0, 1.0)[1])


@pytest.mark.parametrize("name", ["tanh", "gelu", "relu", "elu", "softsign"])
def test_hermite_coefficients_agree_with_the_reference(name):
    """a_n = E f(m + s Z) h_n(Z), against the reference; 3e-6 of the function's size where it has kinks."""
    function, _, kinks = ACTIVATIONS[name]
    mean, std = 0.4, 1.3
    got, second = hermite(in_numpy(function), mean, std)
    scale = math.sqrt(second)
    for n in (0, 1, 2, 5, 11, ORDER):

        def product(x, n=n):
            polynomial = eval_hermitenorm(n, (x - mean) / std) / math.sqrt(math.factorial(n))
            return in_numpy(function)(x) * polynomial

        expected, _ = reference(product, kinks, mean, std)
        # the nodes end at 8.5 deviations, where h_24 times the density is 2e-10
        assert got[n] == pytest.approx(expected, abs=(1e-5 if kinks else 1e-8) * scale), n


@given(rho=st.floats(-1, 1), std=st.floats(0.1, 5))
def test_the_expansion_gives_the_arc_cosine_kernel(rho, std):
    """E relu(x) relu(y) of Cho & Saul 2009, from the Hermite coefficients; the tail decides the last digits near 1."""
    a, second = hermite(lambda x: np.maximum(x, 0.0), 0.0, std)
    tail = second - float((a * a).sum())
    got = float(sum(c * c * rho**n for n, c in enumerate(a))) + tail * rho ** (ORDER + 1)
    exact = std**2 * (math.sqrt(1 - rho**2) + rho * (math.pi - math.acos(rho))) / (2 * math.pi)
    assert got == pytest.approx(exact, abs=2 * tail + 1e-5 * std**2)


def test_many_points_are_as_one_by_one():
    mean, std = np.array([0.0, 0.5, -1.0]), np.array([1.0, 0.3, 2.0])
    coefficients, second = hermite_many(np.tanh, mean, std)
    for i in range(3):
        one, square = hermite(np.tanh, mean[i], std[i])
        np.testing.assert_allclose(coefficients[:, i], one, atol=1e-8)
        assert second[i] == pytest.approx(square)
