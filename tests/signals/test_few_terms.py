"""Sums of few products of Gaussians, which are no Gaussians, against their closed moments and real passes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import wellposed as wp

FORMS = {
    "einsum": lambda a, b: torch.einsum("bik,bjk->bij", a, b),
    "bmm": lambda a, b: torch.bmm(a, b.transpose(1, 2)),
    "product and sum": lambda a, b: (a * b).sum(-1),
}


class Squared(nn.Module):
    """The square of what a form makes of its arguments, or another function of it."""

    def __init__(self, form, function=torch.square):
        super().__init__()
        self.form, self.function = form, function

    def forward(self, *given: Tensor) -> Tensor:
        return self.function(self.form(*given))


def assert_agrees(net: nn.Module, exact: float, *shapes: tuple[int, ...]) -> None:
    """Assert that a net's predicted second moment, and its closed form, are within the errors of real passes."""
    graph = wp.trace(net, *(torch.zeros(shape) for shape in shapes))
    name = graph.values[graph.outputs[0]].name
    predicted, measured = wp.propagate(graph)[name], wp.measure(graph, draws=24)[name]
    for level in (predicted.second_moment, exact):
        assert abs(math.log2(level / measured.second_moment)) < 4.0 * measured.log2_error


@pytest.mark.parametrize("terms", [2, 3, 8])
@pytest.mark.parametrize("form", FORMS)
def test_squares_of_sums_of_few_products_have_their_fourth_moment(form: str, terms: int) -> None:
    """Given one factor, the sum is a Gaussian whose variance is a chi square: E y⁴ = 3 k² (1 + 2 / k)."""
    assert_agrees(Squared(FORMS[form]), 3 * terms * (terms + 2), (64, 12, terms), (64, 12, terms))


@pytest.mark.parametrize("terms", [2, 3, 8, 64])
def test_a_gram_matrix_has_the_moments_of_chi_squares_on_its_diagonal(terms: int) -> None:
    tokens = 6
    graph = wp.trace(Squared(lambda x: torch.bmm(x, x.transpose(1, 2))), torch.zeros(4, tokens, terms))
    gram = wp.propagate(graph)["bmm"]
    assert gram.mean == pytest.approx(terms / tokens)
    assert gram.second_moment == pytest.approx((terms**2 + 2 * terms + (tokens - 1) * terms) / tokens)


@pytest.mark.parametrize("correlation", [-0.9, 0.0, 0.5, 1.0])
def test_a_product_of_two_positions_has_the_fourth_moment_of_correlated_gaussians(correlation: float) -> None:
    """E (x y)⁴ = 9 + 72 ρ² + 24 ρ⁴ for two Gaussians of variance 1 (Isserlis 1918)."""

    def form(a: Tensor, b: Tensor) -> Tensor:
        x = torch.cat([a, correlation * a + math.sqrt(1.0 - correlation**2) * b], 1)
        first, second = x.split(a.shape[1], 1)
        return first * second

    assert_agrees(Squared(form), 9 + 72 * correlation**2 + 24 * correlation**4, (64, 6, 8), (64, 6, 8))


FACTORS = {
    "with itself shifted": lambda h, b: h * (0.7 * h + 0.7 * b),
    "with its negative shifted": lambda h, b: -h * (0.7 * h + 0.7 * b),
}


@pytest.mark.parametrize("factors", FACTORS)
def test_products_of_falling_functions_are_skewed_the_right_way(factors: str) -> None:
    """A rectifier sees on which side of 0 such a product has its tail."""
    graph = wp.trace(Squared(FACTORS[factors], torch.relu), torch.zeros(64, 64), torch.zeros(64, 64))
    predicted, measured = wp.propagate(graph)["relu"], wp.measure(graph, draws=16)["relu"]
    error = math.log2(predicted.second_moment / measured.second_moment)
    assert abs(error) < 0.5 + 4.0 * measured.log2_error  # a quadrature of 200 by 200 quantiles, of few that are above 0


@pytest.mark.parametrize("share", [0.2, 0.5])
def test_a_gaussian_times_a_random_mask_keeps_its_fourth_moment(share: float) -> None:
    assert_agrees(Squared(lambda x: x * torch.bernoulli(torch.full_like(x, share))), 3 * share, (64, 32))


@pytest.mark.parametrize("function", [nn.GELU(), nn.Softplus(), nn.Tanh()], ids=["gelu", "softplus", "tanh"])
def test_functions_of_scores_of_few_features_agree_with_real_passes(function: nn.Module) -> None:
    class Scored(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key = nn.Linear(32, 3), nn.Linear(32, 3)

        def forward(self, x: Tensor) -> Tensor:
            scores = self.query(x) @ self.key(x).transpose(1, 2)
            return function(scores**3)  # what heavy tails make of it is seen by its size

    torch.manual_seed(0)
    graph = wp.trace(Scored(), torch.randn(16, 12, 32))
    plan = wp.plan(graph)
    predicted, measured = wp.propagate(graph, weights=plan), wp.measure(graph, plan=plan, draws=64)
    name = graph.values[graph.outputs[0]].name
    off = math.log2(predicted[name].second_moment / measured[name].second_moment)
    assert abs(off) < 0.15 + 4.0 * measured[name].log2_error
