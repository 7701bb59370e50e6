"""GradCosine as it is predicted: against the gradients of single samples, by what inputs and labels have in common."""

from __future__ import annotations

import itertools
import math
import statistics
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import wellposed as wp
from wellposed.errors import GradientError
from wellposed.gradients import predicted_gradcosine

CLASSES = 10


def dense(act: type[nn.Module], depth: int, width: int = 256) -> nn.Module:
    pairs = itertools.chain.from_iterable((nn.Linear(width, width), act()) for _ in range(depth))
    return nn.Sequential(*pairs, nn.Linear(width, CLASSES))


def convolutional(depth: int, width: int = 64) -> nn.Module:
    widths = itertools.pairwise([3] + [width] * depth)
    stack = itertools.chain.from_iterable((nn.Conv2d(a, b, 3, padding=1), nn.Tanh()) for a, b in widths)
    return nn.Sequential(*stack, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES))


def alike(shape: tuple[int, ...], similarity: float) -> Tensor:
    """Return normal inputs of which two have this similarity."""
    return similarity**0.5 * torch.randn(1, *shape[1:]) + (1.0 - similarity) ** 0.5 * torch.randn(shape)


def squared_norms(
    model: nn.Module, shape: tuple[int, ...], gain: float, similarity: float, seed: int
) -> tuple[float, float]:
    """Return ‖Σ g‖² and Σ ‖g‖² of one draw of weights, inputs and labels; the readout is larger by a factor."""
    wp.initialize_(model, torch.zeros(shape), seed=seed, method="autoinit")
    with torch.no_grad():
        next(reversed(list(model.children()))).weight.mul_(gain)
    torch.manual_seed(seed)
    x, y = alike(shape, similarity), torch.randint(CLASSES, shape[:1])
    rows = []
    for one in range(len(x)):
        value = functional.cross_entropy(model(x[one : one + 1]), y[one : one + 1])
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(value, list(model.parameters()))]))
    gradients = torch.stack(rows).double()
    return float(gradients.sum(0).square().sum()), float(gradients.square().sum())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "shape", "gain", "similarity"),
    [
        (dense(nn.ReLU, 2), (8, 256), 1.0, 0.0),
        (dense(nn.ReLU, 2), (8, 256), 8.0, 0.0),
        (dense(nn.Tanh, 3), (8, 256), 8.0, 0.8),
        (convolutional(2), (8, 3, 8, 8), 8.0, 0.8),
    ],
)
def test_it_is_what_gradients_of_samples_have_in_common(
    model: nn.Module, shape: tuple[int, ...], gain: float, similarity: float
):
    draws, n = 48, shape[0]
    seen = [squared_norms(model, shape, gain, similarity, seed) for seed in range(draws)]
    together, apart = (statistics.mean(side) for side in zip(*seen, strict=True))
    told = predicted_gradcosine(model, torch.zeros(shape), inputs=wp.Input.white(similarity=similarity))
    rest = [total - together / apart * own for total, own in seen]
    error = statistics.stdev(rest) / math.sqrt(draws) / apart / (n - 1)
    assert abs(told.between - (together / apart - 1.0) / (n - 1)) < 3.0 * error
    scatter = statistics.stdev(own for _, own in seen) / math.sqrt(draws) / apart
    assert abs(told.norm**2 * n / apart - 1.0) < 3.0 * scatter


def test_inputs_that_have_more_in_common_have_gradients_that_agree_more():
    model, x = dense(nn.ReLU, 2, 64), torch.zeros(8, 64)
    plan = wp.plan(model, x, method="autoinit")
    apart, close = (
        predicted_gradcosine(model, x, plan=plan, inputs=wp.Input.white(similarity=s)).between for s in (0.0, 0.9)
    )
    assert 0.0 <= apart < close < 1.0


def test_each_sample_agrees_with_itself():
    told = predicted_gradcosine(dense(nn.Tanh, 1, 32), torch.zeros(4, 32))
    assert told.gradcosine(1) == 1.0
    assert told.gradcosine(10**9) == pytest.approx(told.between, abs=1e-8)
    with pytest.raises(wp.errors.OptionError, match="samples"):
        told.gradcosine(0)


def test_the_model_is_as_it_was():
    model = dense(nn.Tanh, 1, 32)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    predicted_gradcosine(model, torch.zeros(4, 32))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("model", "shape", "said"),
    [
        (nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)), (4, 8), "1 norms over the batch"),
        (nn.Conv1d(2, 3, 1), (4, 2, 5), r"gives \[\(4, 3, 5\)\]"),
        (nn.Linear(8, 3), (1, 8), "two or more"),
        (nn.Linear(8, 3).requires_grad_(requires_grad=False), (4, 8), "no trained parameter"),
    ],
)
def test_what_has_no_gradients_of_samples_is_refused(model: Any, shape: tuple[int, ...], said: str):
    with pytest.raises(GradientError, match=said):
        predicted_gradcosine(model, torch.zeros(shape))
