"""Sums of a signal and of products with matrices of known numbers, against their values."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import wellposed as wp
from wellposed.measuring.comparison import TOLERANCE

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


@pytest.mark.parametrize("positions", [200, 20_000])
@pytest.mark.parametrize("table", [_sines, torch.randn], ids=["sines", "noise"])
def test_large_tables_keep_what_their_rows_have_in_common(positions: int, table) -> None:
    """Of 200 positions the table is followed one by one, of 20,000 by its correlations.

    What 64 columns of noise have in common by chance is none: three standard errors of the mean of so many squares.
    """
    net = WithTable(table(positions, 64))
    x = torch.randn(12_800 // positions or 4, positions, 64, generator=torch.Generator().manual_seed(0))
    graph = wp.trace(net, x)
    (*_, last) = wp.propagate(graph, inputs=wp.Input.white())
    with torch.no_grad():
        measured = float(net(x).square().mean())
    assert last.second_moment == pytest.approx(measured, rel=3.0 * (2.0 / 64.0) ** 0.5)


class Rotary(nn.Module):
    """Causal attention with rotary positions (Su et al. 2021), heads of the usual width."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(tokens), 10_000.0 ** -(torch.arange(0, width, 2) / width)).tile(2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * self.cos + torch.cat([-second, first], -1) * self.sin

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(self.turned(q), self.turned(k), v, is_causal=True)


@pytest.mark.parametrize("tokens", [32, 256])
def test_rotary_positions_change_no_size_at_any_length(tokens: int) -> None:
    net, generator = Rotary(tokens, 128), torch.Generator().manual_seed(0)
    shape = (2, 4, tokens, 128)
    graph = wp.trace(net, *(torch.zeros(shape) for _ in range(3)))
    (*_, last) = wp.propagate(graph, inputs=wp.Input.white())
    draws = [
        net(*(torch.randn(shape, generator=generator) for _ in range(3))).double().square().mean() for _ in range(8)
    ]
    error = wp.checks.log2_ratio(last.second_moment, float(torch.stack(draws).mean()))
    assert abs(error) < TOLERANCE["exact"]


class Shifted(nn.Module):
    """Means of few tokens as differences of running sums that were pushed on, for a part of the features."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sums = x.cumsum(dim=-2).chunk(2, dim=-1)[1]
        return nn.functional.pad(sums, (0, 0, 2, -2)) - nn.functional.pad(sums, (0, 0, 5, -5))


def test_shifted_differences_of_running_sums_count_the_tokens_that_are_left() -> None:
    """Three tokens are left, by position; fewer at the first ones, where zeros were pushed in."""
    graph = wp.trace(Shifted(), torch.randn(4, 64, 6))
    (*_, last) = wp.propagate(graph, inputs=wp.Input.white())
    counts = [min(max(t - 1, 0), 3) for t in range(64)]
    assert last.second_moment == pytest.approx(sum(counts) / 64, rel=1e-6)
