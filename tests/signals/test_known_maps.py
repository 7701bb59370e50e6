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


def _sines(positions: int, width: int) -> torch.Tensor:
    """The table of positions of Vaswani et al. (2017)."""
    angles = torch.arange(positions)[:, None] / 10_000.0 ** (torch.arange(width) // 2 * 2 / width)
    return torch.where(torch.arange(width) % 2 == 0, angles.sin(), angles.cos())


class WithTable(nn.Module):
    """Tokens to which a table is added, through a norm: what two of them have in common is the table's."""

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table)
        self.norm = nn.LayerNorm(table.shape[-1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.table).mean(-2)


@pytest.mark.parametrize("positions", [48, 200])
@pytest.mark.parametrize("table", [_sines, torch.randn], ids=["sines", "noise"])
def test_large_tables_keep_what_their_rows_have_in_common(positions: int, table) -> None:
    """Of 48 positions the table is followed one by one, of 200 by its correlations.

    What 64 columns of noise have in common by chance is none: three standard errors of the mean of so many squares.
    """
    net = WithTable(table(positions, 64))
    x = torch.randn(64, positions, 64, generator=torch.Generator().manual_seed(0))
    graph = wp.trace(net, x)
    (*_, last) = wp.propagate(graph, inputs=wp.Input.white())
    with torch.no_grad():
        measured = float(net(x).square().mean())
    assert last.second_moment == pytest.approx(measured, rel=3.0 * (2.0 / 64.0) ** 0.5)
