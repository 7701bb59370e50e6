"""Sums of a signal and of products with matrices of known numbers, against their values."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import wellposed as wp

NODES = 20
RING = 0.5 * (torch.eye(NODES).roll(1, 0) + torch.eye(NODES).roll(-1, 0))


class Polynomial(nn.Module):
    """a x + b L x + c L² x, as a Chebyshev filter is written."""

    def __init__(self, a: float, b: float, c: float) -> None:
        super().__init__()
        self.register_buffer("ring", RING)
        self.factors = a, b, c

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b, c = self.factors
        once = self.ring @ x
        return a * x + b * once + c * (self.ring @ once)


@pytest.mark.parametrize("factors", [(-1.0, 0.0, 2.0), (1.0, 0.0, 2.0), (0.0, 1.0, 1.0), (0.3, -1.0, 0.5)])
def test_polynomials_of_a_known_matrix_have_the_variance_of_its_values(factors: tuple[float, float, float]) -> None:
    graph = wp.trace(Polynomial(*factors), torch.randn(4, NODES, 3))
    (*_, last) = wp.propagate(graph, inputs=wp.Input.white())
    whole = factors[0] * torch.eye(NODES) + factors[1] * RING + factors[2] * RING @ RING
    assert last.second_moment == pytest.approx(float(whole.square().sum(dim=1).mean()), rel=1e-6)
