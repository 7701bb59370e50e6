"""What samples tell of a tensor, and what of it is chance."""

import pytest
import torch

from wellposed.signals.sampling.states_of_draws import state_of_samples


def draws(count, rows, scale=1.0):
    """Draws of 64 positions that are all alike in each draw, and of features that are independent."""
    generator = torch.Generator().manual_seed(count)
    return [scale * torch.randn(1, rows, generator=generator).expand(64, rows) for _ in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("count", [8, 12, 32, 128])
def test_features_that_are_alike_do_not_differ_by_chance(count):
    """The error of a mean is known from as many draws as there are: of eight, squares over it are 1.4 on average."""
    for rows in (256, 768, 2048):
        state = state_of_samples(draws(count, rows), 0)
        assert state.var.size == state.mean.size == 1


@pytest.mark.parametrize("count", [8, 32])
def test_features_that_differ_are_told_apart(count):
    scale = torch.linspace(0.2, 3.0, 768)
    state = state_of_samples(draws(count, 768, scale), 0)
    assert state.var.size == 768
    assert state.var.ravel()[700:].mean() > 20 * state.var.ravel()[:100].mean()


def test_places_that_do_not_vary_leave_the_correlation_of_the_others_as_it_is():
    """As of a result into which the first steps of a loop are written, one by one."""
    generator = torch.Generator().manual_seed(0)
    written = torch.zeros(16, 4, 32, 128)
    written[:, :, :2] = torch.randn(16, 4, 2, 128, generator=generator)
    state = state_of_samples(list(written), 0)
    assert state.corr.shape[0] == 1 or abs(state.corr[1].ravel()[0]) < 0.05
