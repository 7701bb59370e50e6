"""Moments of tensors and their standard errors, against float64 numpy and against sampling distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from wellposed.measuring.moments import log2_error, moments


def reference(tensor: torch.Tensor) -> tuple[float, float]:
    values = tensor.double().numpy()
    return float(values.mean()), float(values.var())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("view", ["contiguous", "permuted", "strided", "expanded", "scalar"])
def test_equals_numpy_whatever_the_layout_and_type(dtype: torch.dtype, view: str) -> None:
    tensor = (torch.randn(6, 5, 40, 30, generator=torch.Generator().manual_seed(1)) * 2 + 0.7).to(dtype)
    tensor = {
        "contiguous": tensor,
        "permuted": tensor.permute(0, 2, 3, 1),
        "strided": tensor[..., ::3],
        "expanded": tensor[:, :1].expand(6, 5, 40, 30),
        "scalar": tensor[0, 0, 0, 0],
    }[view]
    mean, variance = moments(tensor)
    # Pairwise float32 sums: relative rounding of about log2(n) * 2**-24 of the second moment.
    rounding = 32 * 2.0**-24 * float(tensor.double().square().mean())
    expected = reference(tensor)
    assert abs(mean - expected[0]) <= rounding
    assert abs(variance - expected[1]) <= rounding


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e18, 1e25])
def test_squares_beyond_float32_are_not_lost(scale: float) -> None:
    tensor = torch.randn(1000, generator=torch.Generator().manual_seed(2)) * scale
    mean, variance = moments(tensor)
    expected = reference(tensor)
    assert mean == pytest.approx(expected[0], rel=1e-12)
    assert variance == pytest.approx(expected[1], rel=1e-12)


def test_a_small_variance_beside_a_large_mean_is_exact() -> None:
    tensor = 1000 + 1e-2 * torch.randn(4096, generator=torch.Generator().manual_seed(3))
    mean, variance = moments(tensor)
    expected = reference(tensor)
    assert mean == pytest.approx(expected[0], rel=1e-12)
    assert variance == pytest.approx(expected[1], rel=1e-9)


def test_constants_have_no_variance() -> None:
    assert moments(torch.zeros(7, 3)) == (0.0, 0.0)
    assert moments(torch.full((1000,), 0.1, dtype=torch.float64))[1] < 1e-30


def test_infinities_and_nan_are_shown() -> None:
    tensor = torch.ones(8)
    tensor[3] = -math.inf
    assert moments(tensor) == (-math.inf, math.inf)
    tensor[4] = math.inf
    mean, variance = moments(tensor)
    assert math.isnan(mean)
    assert variance == math.inf
    tensor[5] = math.nan
    assert all(math.isnan(figure) for figure in moments(tensor))


def test_moments_leave_the_tensor_alone() -> None:
    tensor = torch.randn(100, generator=torch.Generator().manual_seed(4))
    before, version = tensor.clone(), tensor._version
    moments(tensor)
    assert torch.equal(tensor, before)
    assert tensor._version == version


@pytest.mark.slow
def test_standard_error_matches_the_spread_of_repeated_measurements() -> None:
    """The mean of 16 draws, measured 4000 times: the jackknife's square must average to the variance that is seen."""
    rng = np.random.default_rng(5)
    experiments = rng.lognormal(sigma=0.5, size=(4000, 16))
    seen = np.log2(experiments.mean(axis=1)).var()
    squares = np.array([log2_error(experiment) ** 2 for experiment in experiments])
    # Both the mean of the squares and the variance seen have sampling errors of their own.
    error = math.hypot(squares.std() / math.sqrt(4000), seen * math.sqrt(2 / 4000))
    # Leaving one out makes a standard error of 15 draws, not 16: a bias upwards of at most 1/15 in the square.
    assert -3 * error <= squares.mean() - seen <= 3 * error + seen / 15


def test_the_standard_error_of_constants_is_0_and_of_one_draw_unknown() -> None:
    assert math.isnan(log2_error(np.array([2.0])))
    assert log2_error(np.zeros(4)) == 0.0
    assert log2_error(np.full(3, 5.0)) == 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        assert not math.isfinite(log2_error(np.array([0.0, 0.0, 1.0])))
