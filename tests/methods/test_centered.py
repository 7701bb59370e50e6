"""`nn.Centered`: Gaussian means against closed forms, and activations that have none."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from wellposed.errors import OptionError
from wellposed.nn import Centered


@pytest.mark.parametrize(
    ("f", "mean"),
    [
        (nn.ReLU(), 1 / math.sqrt(2 * math.pi)),
        (nn.ReLU(inplace=True), 1 / math.sqrt(2 * math.pi)),
        (nn.LeakyReLU(0.1), 0.9 / math.sqrt(2 * math.pi)),
        (nn.GELU(), 1 / (2 * math.sqrt(math.pi))),  # E[z Φ(z)] by parts
        (torch.tanh, 0.0),
        (nn.Sigmoid(), 0.5),
        (torch.exp, math.exp(0.5)),
        (torch.square, 1.0),
        (lambda x: (x > 1).to(x.dtype), 0.5 * math.erfc(1 / math.sqrt(2))),
    ],
)
def test_means_have_their_closed_forms(f, mean):
    assert Centered(f).mean == pytest.approx(mean, rel=1e-6, abs=1e-9)


def test_it_subtracts_the_mean_and_nothing_else():
    x = torch.randn(4, 5, requires_grad=True)
    module = Centered(functional.relu)
    torch.testing.assert_close(module(x), x.relu() - 1 / math.sqrt(2 * math.pi))
    assert not module.state_dict()
    assert "mean=0.398942" in repr(module)


def test_it_can_be_built_on_meta():
    with torch.device("meta"):
        assert Centered(nn.ReLU()).mean == pytest.approx(1 / math.sqrt(2 * math.pi))


def test_centred_outputs_have_mean_zero():
    z = torch.randn(1_000_000, dtype=torch.float64)
    y = Centered(nn.SiLU())(z)
    assert abs(y.mean().item()) < 4 * y.std().item() / math.sqrt(z.numel())


@pytest.mark.parametrize(
    ("f", "message"),
    [
        (lambda x: x.sum(), r"element-wise function .*made \(\) of"),
        (lambda x: 3.0, "made float of"),
        (lambda x: torch.full_like(x, torch.nan), "no finite mean and variance over a standard normal"),
        (lambda x: torch.exp(x * x), "no finite mean and variance over a standard normal"),
    ],
)
def test_functions_without_a_mean_are_refused(f, message):
    with pytest.raises(OptionError, match=message):
        Centered(f)
