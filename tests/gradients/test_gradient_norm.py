"""The common factor: the norm that it promises, on the model, and what it says where there is none."""

from __future__ import annotations

import inspect
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.gradients.nets import Skip, cross_entropy, pictures, same, state
from torch import Tensor, nn

import wellposed as wp
from wellposed.errors import GradientError, OptionError
from wellposed.gradients import gradient_norm

TOLERANCE = inspect.signature(gradient_norm).parameters["tolerance"].default + 1e-4
"""What the function promises, and the rounding of a plan that is drawn in float32."""


def mean_norm(model: nn.Module, parts: list[Any]) -> float:
    norms = []
    for part in parts:
        found = torch.autograd.grad(cross_entropy(model, part), list(model.parameters()))
        norms.append(float(torch.cat([g.flatten() for g in found]).norm()))
    return sum(norms) / len(norms)


def halves(batch: tuple[Tensor, Tensor]) -> list[tuple[Tensor, Tensor]]:
    middle = len(batch[0]) // 2
    return [(batch[0][:middle], batch[1][:middle]), (batch[0][middle:], batch[1][middle:])]


@pytest.mark.parametrize("gamma", [0.42, 3.0], ids=["smaller", "larger"])
@pytest.mark.parametrize("planned", [False, True], ids=["as it is", "planned"])
def test_model_has_the_norm_after(gamma: float, planned: bool) -> None:
    torch.manual_seed(0)
    model, batches = Skip().double(), [pictures(8, seed=seed) for seed in range(2)]
    base = wp.plan(model, batches[0][0], method="kaiming") if planned else None
    before, drawn = state(model), wp.plans.draw(base) if base else deepcopy(dict(model.state_dict()))
    plan = gradient_norm(model, cross_entropy, batches, plan=base, gamma=gamma, overlap=0.0, batch_count=2)
    assert same(before, state(model))
    plan.apply_(model)
    parts = [half for batch in batches for half in halves(batch)]
    assert mean_norm(model, parts) == pytest.approx(gamma, rel=TOLERANCE)
    assert plan.figures["gradient_norm"] == pytest.approx(mean_norm(model, parts), rel=1e-5)
    for name in ("stem.weight", "branch.weight", "readout.weight"):
        factor = model.get_parameter(name).double() / drawn[name].double()
        assert torch.allclose(factor, torch.full_like(factor, plan.figures["factor"]), rtol=1e-5)


def test_factor_behind_normalisation_is_the_inverse_of_the_norm() -> None:
    # Both weights are followed by batch norm: the loss does not depend on the factor c, and every gradient is 1/c.
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(5, 8, bias=False),
        nn.BatchNorm1d(8, affine=False, eps=1e-12),
        nn.GELU(),
        nn.Linear(8, 4, bias=False),
        nn.BatchNorm1d(4, affine=False, eps=1e-12),
    ).double()
    x, y = pictures(16)
    batch = (x.flatten(1)[:, :5], y)
    start = gradient_norm(model, cross_entropy, [batch], gamma=1e-3).figures["before"]["norm"]
    for gamma in (start / 30, start * 30):
        plan = gradient_norm(model, cross_entropy, [batch], gamma=gamma, tolerance=1e-6)
        assert plan.figures["factor"] == pytest.approx(start / gamma, rel=2e-6)


def test_auto_bounds_the_norm_and_leaves_what_is_below() -> None:
    torch.manual_seed(0)
    model, batch = Skip().double(), pictures(16)
    small = gradient_norm(model, cross_entropy, [batch])
    assert small.figures["factor"] == 1.0
    assert small.figures["gradient_norm"] < small.figures["gamma"]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter *= 8.0
    plan = gradient_norm(model, cross_entropy, [batch], rate=0.2)
    assert plan.figures["factor"] < 0.5
    plan.apply_(model)
    from wellposed.gradients.batches import Batch, sub_batches

    parts = sub_batches(Batch.of(batch), 2, 0.2)
    loss = sum(float(cross_entropy(model, part).detach()) for part in parts) / 2
    assert mean_norm(model, parts) == pytest.approx((loss / 0.2) ** 0.5, rel=TOLERANCE)


def test_no_factor_reaches_a_norm_below_what_the_readout_bias_keeps() -> None:
    model, batch = Skip().double(), pictures(8)
    with pytest.raises(GradientError, match=r"no common factor .* γ = 1e-06: .* at 1.53e-05 times the weights"):
        gradient_norm(model, cross_entropy, [batch], gamma=1e-6)


def test_overflow_counts_as_a_norm_above_and_underflow_as_one_below() -> None:
    def steep(model: nn.Module, batch: Any) -> Tensor:
        return (model(batch[0]) * 1e-3).exp().exp().mean()

    torch.manual_seed(0)
    model, batch = Skip(), pictures(8, torch.float32)
    plan = gradient_norm(model, steep, [batch], gamma=1e4, overlap=0.0)
    assert plan.figures["gradient_norm"] == pytest.approx(1e4, rel=TOLERANCE)
    assert plan.figures["factor"] > 10


def test_interruption_returns_the_best_so_far() -> None:
    torch.manual_seed(0)
    model, batch, calls = Skip(), pictures(8, torch.float32), []

    def interrupted(model: nn.Module, batch: Any) -> Tensor:
        calls.append(None)
        if len(calls) == 8:  # two for the score before, two for each factor
            raise KeyboardInterrupt
        return cross_entropy(model, batch)

    before = state(model)
    with pytest.warns(UserWarning, match="interrupted after 2 factors"):
        plan = gradient_norm(model, interrupted, [batch], gamma=1e-1, tolerance=1e-6)
    assert same(before, state(model))
    assert plan.figures["finished"] is False
    assert plan.figures["gradient_norm"] == min(plan.figures["history"]["GN"], key=lambda norm: abs(norm - 1e-1))


def test_autocast_half_precision_dropout_and_one_pass_iterators() -> None:
    def autocast(model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(model(batch[0]), batch[1])

    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(147, 32), nn.GELU(), nn.Dropout(0.3), nn.Linear(32, 4))
    batch = pictures(32, torch.float32)
    before = state(model)
    for loss in (cross_entropy, autocast):
        plan = gradient_norm(model, loss, iter([batch]), gamma=3.0)
        assert plan.figures["after"]["norm"] == pytest.approx(3.0, rel=TOLERANCE)
    assert same(before, state(model))
    half = model.to(torch.bfloat16)
    plan = gradient_norm(half, cross_entropy, [(batch[0].bfloat16(), batch[1])], gamma=3.0)
    assert plan.figures["after"]["norm"] == pytest.approx(3.0, rel=TOLERANCE)
    plan.apply_(half)
    again = gradient_norm(half, cross_entropy, [(batch[0].bfloat16(), batch[1])], gamma=3.0)
    assert again.figures["factor"] == 1.0


def test_bad_input_is_refused() -> None:
    model, batch = Skip(), pictures(8, torch.float32)
    for name, wrong in (("gamma", -1.0), ("gamma", "car"), ("tolerance", 0.0), ("rate", 0.0), ("batch_count", 0)):
        with pytest.raises(OptionError, match=f"{name} must be"):
            gradient_norm(model, cross_entropy, [batch], **{name: wrong})
    with pytest.raises(GradientError, match="holds no batch"):
        gradient_norm(model, cross_entropy, [])
    with pytest.raises(GradientError, match="is not zero"):
        gradient_norm(model, lambda m, b: m(b[0]).sum() * 0.0, [batch])
