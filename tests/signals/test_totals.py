"""Totals of draws, against NumPy on what is finite."""

import math

import numpy as np
import pytest
import torch

from wellposed.signals.sampling.totals import MANY_ELEMENTS, totals_of


@pytest.mark.parametrize(
    ("dtype", "shut"),
    [(torch.float32, False), (torch.float32, True), (torch.float64, True), (torch.int64, False), (torch.bool, False)],
)
def test_totals_are_those_of_finite_elements(dtype, shut):
    draws = [(3.0 * torch.randn(5, 7, generator=torch.Generator().manual_seed(i)) - 1.0).to(dtype) for i in range(4)]
    if shut:
        draws[1][2] = -math.inf
    kept = [values[np.isfinite(values)] for values in (draw.double().numpy() for draw in draws)]
    found = totals_of(draws)
    assert found.counts == [values.size for values in kept]
    assert np.allclose(found.sums, [values.sum() for values in kept])
    assert np.allclose(found.squares, [np.square(values).sum() for values in kept])
    whole = np.concatenate(kept)
    assert found.mean == pytest.approx(whole.mean())
    assert found.second_moment == pytest.approx(np.square(whole).mean())
    assert (found.infinite, found.undefined, found.heavy) == (shut, False, False)


def test_an_element_with_most_of_the_squares_makes_totals_heavy():
    values = torch.ones(MANY_ELEMENTS)
    assert not totals_of([values]).heavy
    values[3] = MANY_ELEMENTS**0.5
    assert totals_of([values]).heavy
    assert not totals_of([values[: MANY_ELEMENTS // 2]]).heavy  # too few to say so


def test_a_row_with_most_of_the_squares_makes_totals_heavy_where_many_draws_say_so():
    draws = [torch.ones(8, 100) for _ in range(MANY_ELEMENTS // 8)]
    assert not totals_of(draws).heavy
    draws[5][2] = MANY_ELEMENTS**0.5  # as quotients by one number are large together
    assert totals_of(draws).heavy
    few = torch.zeros(MANY_ELEMENTS, 100)
    few[0] = 1.0
    assert not totals_of([few, few]).heavy  # one place that holds most in each of them


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_totals_with_nan_or_infinity_are_undefined_and_heavy(number):
    found = totals_of([torch.tensor([1.0, number]), torch.ones(2)])
    assert found.undefined
    assert found.heavy


def test_no_elements_have_no_moments():
    found = totals_of([torch.zeros(0, 3)])
    assert (found.mean, found.second_moment, found.heavy) == (0.0, 0.0, False)
