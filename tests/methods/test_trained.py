"""What a training has left is told from initial weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import wellposed as wp
from wellposed.methods.trained import signs_of_training


def net(norm: bool) -> nn.Sequential:
    layers = [nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3)]
    return nn.Sequential(layers[0], nn.LayerNorm(32), *layers[1:]) if norm else nn.Sequential(*layers)


def train_(model: nn.Module, steps: int = 50) -> None:
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), x[:, :3].argmax(1)).backward()
        optimizer.step()


@pytest.mark.parametrize("method", ["default", "autoinit", "xavier"])
def test_trained_weights_show_it_and_initial_ones_do_not(method: str) -> None:
    for seed in range(4):
        torch.manual_seed(seed)
        model, x = net(norm=False), torch.zeros(4, 8)
        wp.initialize_(model, x, method=method, seed=seed)
        assert not signs_of_training(wp.trace(model, x))
        train_(model)
        assert signs_of_training(wp.trace(model, x))


def test_a_plan_warns_of_gains_that_vary() -> None:
    torch.manual_seed(0)
    model, x = net(norm=True), torch.zeros(4, 8)
    assert not wp.plan(model, x).warnings
    train_(model)
    (warning,) = wp.plan(model, x).warnings
    assert "looks trained" in warning
    assert "'1.weight'" in warning
    assert not wp.plan(model, x, only="5.*").warnings


def test_gains_that_are_drawn_about_zero_are_no_training() -> None:
    torch.manual_seed(0)
    model, x = net(norm=True), torch.zeros(4, 8)
    nn.init.normal_(model[1].weight, std=0.02)
    plan = wp.plan(model, x)
    assert plan.warnings == ()
    assert plan.prescriptions["1.weight"].constant == 1.0
    with torch.no_grad():
        model[1].weight.add_(0.1)  # all on one side, as trainings leave gains
        assert wp.plan(model, x).warnings == ()  # but those that GANs draw, whose shifts are zero
        nn.init.normal_(model[1].bias, std=0.02)
    assert "looks trained" in wp.plan(model, x).warnings[0]
