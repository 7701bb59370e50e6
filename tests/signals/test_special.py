"""Special functions against SciPy's, and without waiting for SciPy."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import scipy.special

from wellposed.signals.integration import special

EDGES = [0.0, 1e-300, 1e-20, 0.5, 1.0 - 1e-16, 1.0]


def test_the_normal_distribution_is_that_of_scipy_as_far_as_doubles_go() -> None:
    x = np.linspace(-37.0, 37.0, 2001).reshape(3, -1)
    np.testing.assert_allclose(special.ndtr(x), scipy.special.ndtr(x), rtol=1e-13)
    p = np.concatenate([EDGES, np.linspace(0.001, 0.999, 999)])
    np.testing.assert_allclose(special.ndtri(p), scipy.special.ndtri(p), rtol=1e-12, atol=1e-15)
    assert float(special.ndtri(0.975)) == pytest.approx(1.959963984540054, rel=1e-14)


@pytest.mark.parametrize("shape", [0.5, 3.0, 4e3])
@pytest.mark.parametrize("ratio", [0.2, 0.97, 1.0, 1.1, 3.0])
def test_both_tails_of_gamma_variables_are_those_of_scipy(shape: float, ratio: float) -> None:
    x = shape * ratio
    for found, true in (
        (special.gamma_below(shape, x), scipy.special.gammainc(shape, x)),
        (special.gamma_above(shape, x), scipy.special.gammaincc(shape, x)),
    ):
        assert found == pytest.approx(float(true), rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("shape", [0.05, 0.125, 0.7, 1.0, 6.3, 200.0, 1e5])
@pytest.mark.parametrize("above", [False, True])
def test_quantiles_of_gamma_variables_are_those_of_scipy(shape: float, above: bool) -> None:
    p = np.array([1e-280, 1e-150, 1e-40, 1e-16, 1e-6, 0.01, 0.2, 0.5, 0.9, 1.0 - 1e-6])
    true = (scipy.special.gammainccinv if above else scipy.special.gammaincinv)(shape, p)
    np.testing.assert_allclose(special.gamma_quantile(shape, p, above=above), true, rtol=1e-9, atol=1e-300)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 31, 400])
@pytest.mark.parametrize("rate", [0.3, 0.01, 1e-6])
def test_quantiles_are_those_of_scipy(freedom: int, rate: float) -> None:
    student = scipy.special.stdtrit(freedom, 1.0 - rate / 2)
    assert special.student_quantile(freedom, rate) == pytest.approx(student, rel=1e-8)
    for above in (rate, 1.0 - rate):
        chi_squared = scipy.special.chdtri(freedom, above)
        assert special.chi_squared_quantile(freedom, above) == pytest.approx(chi_squared, rel=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layers", "shape"),
    [
        ("nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)", "4, 16"),
        (
            "nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)",
            "4, 3, 9, 9",
        ),
    ],
)
def test_a_plan_does_not_wait_for_scipy(layers: str, shape: str) -> None:
    program = (
        "import sys, torch, wellposed as wp; from torch import nn;"
        f"wp.initialize_(nn.Sequential({layers}), torch.randn({shape}));"
        "sys.exit('scipy' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
