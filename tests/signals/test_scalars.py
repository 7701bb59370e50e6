"""Tensors without axes: sums, products and functions of single numbers."""

import numpy as np
import pytest
import torch
from torch import nn

import wellposed as wp


class Scalars(nn.Module):
    def forward(self, x):
        a, b = x[0].mean(), x[1].mean()
        return torch.relu(a + 2 * b) * a.exp(), torch.stack([a - b, a * b])


def test_single_numbers_agree_with_samples():
    x = torch.zeros(2, 16)
    signals = wp.propagate(wp.trace(Scalars(), x))
    draws = torch.randn(200_000, 2, 16).mean(-1)
    a, b = draws.unbind(1)
    for name, value in (("add", a + 2 * b), ("relu", (a + 2 * b).relu()), ("exp", a.exp()), ("mul", a * b)):
        found = [s for s in signals if s.name.partition("#")[0] == name and s.shape == ()]
        expected, error = value.square().mean(), value.square().std() / len(value) ** 0.5
        assert any(abs(s.second_moment - float(expected)) < 5 * float(error) for s in found), name
    assert all(np.isfinite(s.second_moment) for s in signals)


def test_a_parameter_without_axes_scales_the_signal():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.shift = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.tensor(0.5))

        def forward(self, x):
            return (self.scale + self.shift) * x

    signals = wp.propagate(wp.trace(Scaled(), torch.zeros(4, 8)))
    assert signals["mul"].second_moment == pytest.approx(2.5**2)


def test_a_complex_number_shifts_and_turns_a_signal():
    class Turned(nn.Module):
        def forward(self, x):
            z = torch.view_as_complex(x) + (0.5 + 2.0j)
            return torch.view_as_real(z * (3.0 + 0.0j))

    x = torch.zeros(4, 64, 2)
    signals = wp.propagate(wp.trace(Turned(), x), inputs=wp.Input.white())
    assert signals["add"].second_moment == pytest.approx(2.0 + 0.25 + 4.0)
    assert signals["view_as_real"].second_moment == pytest.approx(9.0 * (2.0 + 0.25 + 4.0) / 2.0)
