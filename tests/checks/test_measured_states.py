"""States told by samples: kernels against sums over all pairs, and the moments of what was drawn."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from wellposed.checks.measured_states import Samples, mean_correlations
from wellposed.checks.sample_kernels import product_kernel
from wellposed.signals import Input
from wellposed.signals.distributions.making import make_state


def all_pairs(x, y, sizes, kinds):
    """The kernel by its definition: mean products of elements, by displacement."""
    lengths = [{"alone": 1, "pairs": 2, "constant": 2}.get(kind, n) for kind, n in zip(kinds, sizes, strict=True)]
    sums, counts = np.zeros(lengths), np.zeros(lengths)
    y = np.broadcast_to(y, x.shape)
    for p in itertools.product(*map(range, sizes)):
        for q in itertools.product(*map(range, sizes)):
            place = []
            for a, b, kind in zip(p, q, kinds, strict=True):
                if kind == "alone" and a != b:
                    break
                place.append(0 if kind == "alone" else int(a != b) if kind in ("pairs", "constant") else abs(a - b))
            else:
                sums[tuple(place)] += x[p] * y[q]
                counts[tuple(place)] += 1
    return sums / counts


@pytest.mark.parametrize(
    "kinds",
    [
        ("alone", "pairs", "profile"),
        ("pairs", "pairs", "alone"),
        ("profile", "alone", "profile"),
        ("pairs", "profile", "profile"),
    ],
)
def test_kernels_are_means_over_pairs(kinds):
    torch.manual_seed(0)
    sizes = (3, 4, 5)
    x, y = torch.randn(2, *sizes, dtype=torch.float64)
    found = product_kernel(x, y, sizes, kinds)
    assert found == pytest.approx(all_pairs(x.numpy(), y.numpy(), sizes, kinds), abs=1e-12)


def test_along_what_one_tensor_lacks_the_covariance_is_constant():
    torch.manual_seed(0)
    sizes = (3, 4)
    x, y = torch.randn(*sizes, dtype=torch.float64), torch.randn(3, 1, dtype=torch.float64)
    found = product_kernel(x, y, sizes, ("pairs", "constant"))
    level = (x.mean(dim=1, keepdim=True) * y).mean()
    assert found.shape == (2, 2)
    assert found[0] == pytest.approx(float(level))
    other = (x.mean(dim=1).sum() * y.sum() - 3 * level) / 6
    assert found[1] == pytest.approx(float(other))


def test_correlated_samples_of_a_white_prediction():
    generator = torch.Generator().manual_seed(0)
    shape = (8, 3, 16, 16)
    images = Input.image(mean=0.5, var=4.0)
    draws = [images.sample(shape, generator) for _ in range(16)]
    state = Samples(make_state(shape, 0.0, 1.0, gauss=True, roots=1), draws).state(range(16))
    told = images.state(shape, 1)
    assert state.second_moment == pytest.approx(told.second_moment, rel=0.1)
    assert state.shape == shape
    assert state.corr.shape[1:] == told.corr.shape[1:]
    assert state.corr[0, 0, :4, 0] == pytest.approx(told.corr[0, 0, :4, 0], abs=0.08)
    assert mean_correlations(state)[2:] == pytest.approx(mean_correlations(told)[2:], abs=0.08)
    assert mean_correlations(told)[0] == 0.0


def test_positions_that_differ_are_followed():
    torch.manual_seed(0)
    level = torch.linspace(0.0, 2.0, 6)
    draws = [torch.randn(32, 6) + level for _ in range(8)]
    samples = Samples(make_state((32, 6), 1.0, 1.0), draws)
    state = samples.state(range(8))
    assert state.mean.shape == (1, 6)
    assert state.mean[0] == pytest.approx(level.numpy(), abs=0.15)
    assert samples.kurtosis == pytest.approx(3.0, abs=0.3)
    alike = Samples(make_state((32, 6), 0.0, 1.0), [torch.randn(32, 6) for _ in range(8)]).state(range(8))
    assert (alike.mean.shape, alike.corr.shape) == ((1, 1), (1, 1))
