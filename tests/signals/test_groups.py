"""Groups of positions."""

from __future__ import annotations

import numpy as np
import pytest

from wellposed.signals.distributions.groups import MOST, _tenth_percentile, grouped


@pytest.mark.parametrize("size", [2, 3, 37, 100, 3136])
@pytest.mark.parametrize("digits", [1, 16])
def test_the_tenth_percentile_is_that_of_numpy(size: int, digits: int) -> None:
    for seed in range(20):
        sizes = np.abs(np.round(np.random.default_rng(seed).normal(size=size), digits))
        assert _tenth_percentile(sizes) == np.quantile(sizes, 0.1)


def test_positions_of_few_kinds_have_a_group_each() -> None:
    found = grouped(np.zeros((1, 1)), np.array([[1.0, 2.0, 1.0], [2.0, 3.0, 1.0]]))
    assert found.stds.tolist() == [1.0, 2.0, 3.0]
    assert found.shares.tolist() == [0.5, 2 / 6, 1 / 6]
    assert found.by_position(found.stds).tolist() == [[1.0, 2.0, 1.0], [2.0, 3.0, 1.0]]


@pytest.mark.parametrize("mean", [0.0, 1.0])
def test_many_kinds_of_positions_share_groups_of_nearly_equal_deviation(mean: float) -> None:
    stds = np.random.default_rng(0).uniform(1.0, 2.0, size=(40, 40))
    found = grouped(np.full((1, 1), mean), stds)
    assert len(found.stds) <= MOST
    assert found.means.tolist() == pytest.approx([mean] * len(found.means))
    assert np.abs(found.by_position(found.stds) - stds).max() <= 1.0 / MOST
    assert found.shares @ found.stds**2 == pytest.approx(float(np.mean(stds**2)))
