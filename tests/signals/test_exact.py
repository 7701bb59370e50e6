"""Windows of any size: the maps of mean and variance are known exactly, position by position."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.signals.driver import Case, Source, Weight, dense_moments, predict, traced

aten = torch.ops.aten
MEAN, VAR = 0.5, 2.0
small = st.integers(1, 3)
pairs = st.tuples(small, small)


def maps(function: Any, shape: tuple[int, ...], **weights: Weight) -> tuple[np.ndarray, np.ndarray]:
    """Predicted mean and variance of every element."""
    case = Case("exact", function, (Source(shape, MEAN, VAR**0.5),), weights)
    graph = traced(case)[1]
    state = predict(case, graph).states[graph.outputs[0]]
    assert state is not None
    return dense_moments(state)


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.float64)


@pytest.mark.slow
@settings(max_examples=40)
@given(
    kernel=pairs,
    stride=pairs,
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=pairs,
    groups=st.sampled_from([1, 2, 4]),
)
def test_convolution_sums_the_squares_inside_the_window(kernel, stride, padding, dilation, groups):
    """E y² = Var(w) times the sum of E x² over the taps that lie inside."""
    shape = (2, 4, 7, 6)
    assume(all(n + 2 * p > d * (k - 1) for n, p, d, k in zip(shape[2:], padding, dilation, kernel, strict=True)))
    mean, var = maps(
        lambda x, w: aten.conv2d(x, w, None, stride, padding, dilation, groups),
        shape,
        w=Weight((4, 4 // groups, *kernel), 0.3),
    )
    exact = torch.conv2d(
        (MEAN**2 + VAR) * ones(*shape), 0.09 * ones(4, 4 // groups, *kernel), None, stride, padding, dilation, groups
    )
    np.testing.assert_allclose(var, exact.numpy(), rtol=1e-9)
    np.testing.assert_array_equal(mean, 0.0)


@pytest.mark.slow
@settings(max_examples=40)
@given(
    kernel=pairs,
    stride=pairs,
    padding=st.tuples(st.integers(0, 1), st.integers(0, 1)),
    groups=st.sampled_from([1, 2]),
    extra=st.integers(0, 1),
)
def test_transposed_convolution_sums_the_squares_of_its_taps(kernel, stride, padding, groups, extra):
    assume(all(p < k for p, k in zip(padding, kernel, strict=True)) and extra < min(stride))
    shape = (2, 4, 5, 4)
    rest = (None, stride, padding, (extra, extra), groups)
    mean, var = maps(lambda x, w: aten.conv_transpose2d.input(x, w, *rest), shape, w=Weight((4, 3, *kernel), 0.3))
    exact = aten.conv_transpose2d.input((MEAN**2 + VAR) * ones(*shape), 0.09 * ones(4, 3, *kernel), *rest)
    np.testing.assert_allclose(var, exact.numpy(), rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(mean, 0.0)


@pytest.mark.slow
@settings(max_examples=40)
@given(
    kernel=pairs,
    stride=pairs,
    padding=st.tuples(st.integers(0, 1), st.integers(0, 1)),
    ceil=st.booleans(),
    counted=st.booleans(),
)
def test_average_pooling_of_white_noise_divides_by_the_window(kernel, stride, padding, ceil, counted):
    """The mean is pooled; so is the variance, once more divided by the number of values."""
    assume(all(2 * p <= k for p, k in zip(padding, kernel, strict=True)))
    shape = (2, 3, 7, 6)
    rest = (kernel, stride, padding, ceil, counted)
    mean, var = maps(lambda x: aten.avg_pool2d(x, *rest), shape)
    np.testing.assert_allclose(mean, aten.avg_pool2d(MEAN * ones(*shape), *rest).numpy(), rtol=1e-9)
    impulses = torch.eye(42, dtype=torch.float64).view(42, 1, 7, 6)
    exact = VAR * (aten.avg_pool2d(impulses, *rest)[:, 0] ** 2).sum(dim=0)
    np.testing.assert_allclose(var, np.broadcast_to(exact.numpy(), var.shape), rtol=1e-9)


@pytest.mark.slow
@settings(max_examples=30)
@given(size=st.tuples(st.integers(1, 11), st.integers(1, 11)))
def test_pooling_and_interpolation_are_their_matrices(size):
    """Adaptive pooling and interpolation: the operator itself, on unit impulses, gives the matrix."""
    shape = (2, 3, 7, 6)
    impulses = torch.eye(42, dtype=torch.float64).view(42, 1, 7, 6)
    for op in (
        lambda x: aten.adaptive_avg_pool2d(x, list(size)),
        lambda x: aten.upsample_bilinear2d.vec(x, list(size), False, None),
        lambda x: aten.upsample_nearest2d.vec(x, list(size), None),
        lambda x: aten._upsample_nearest_exact2d.vec(x, list(size), None),
    ):
        mean, var = maps(op, shape)
        response = op(impulses)[:, 0]
        np.testing.assert_allclose(mean, np.broadcast_to(MEAN * response.sum(dim=0).numpy(), mean.shape), rtol=1e-9)
        np.testing.assert_allclose(var, np.broadcast_to(VAR * (response**2).sum(dim=0).numpy(), var.shape), rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
@settings(max_examples=20)
@given(widths=st.tuples(*[st.integers(0, 3)] * 4))
def test_padding_pads_the_maps_of_moments(mode, widths):
    shape = (2, 3, 5, 4)
    assume(any(widths))
    mean, var = maps(lambda x: aten.pad(torch.relu(x), list(widths), mode), shape)
    inside = maps(torch.relu, shape)
    for got, source in ((mean, inside[0]), (var, inside[1])):
        expected = torch.nn.functional.pad(torch.from_numpy(source), widths, mode)
        np.testing.assert_allclose(got, expected.numpy(), rtol=1e-9)
