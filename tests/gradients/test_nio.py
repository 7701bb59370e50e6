"""NIO: its gradient against central differences in float64, its plans, and what it leaves behind."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.gradients.nets import Skip, cross_entropy, pictures, same, state
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import wellposed as wp
from wellposed.errors import GradientError, OptionError, PlanError
from wellposed.gradients import NioSettings, gradcosine, nio
from wellposed.gradients.batches import Batch, sub_batches
from wellposed.gradients.cotangents import ENGINES, Objective, Weighing
from wellposed.gradients.problem import Problem
from wellposed.gradients.scales import Scales
from wellposed.gradients.second_derivatives import _INNERMOST_HOOKS

WEIGHING = Weighing(cosine=1.3, norm=0.7)


def slopes(problem: Problem, scales: Scales, parts: list[Any], engine: Any) -> dict[str, Tensor]:
    with problem.running():
        objective = Objective(problem, engine, scales=scales)
        _, pending = objective.at(scales.parameters(), parts)
        return objective.slopes(pending, WEIGHING)


def value(model: nn.Module, scales: Scales, parts: list[Any]) -> float:
    """J by definition, on a copy of the model that holds the scaled weights."""
    copy = Skip(norm=isinstance(model.norm, nn.BatchNorm2d)).double()
    copy.load_state_dict(model.state_dict() | scales.parameters())
    gradients = []
    for part in parts:
        found = torch.autograd.grad(cross_entropy(copy, part), list(copy.parameters()))
        gradients.append(torch.cat([g.flatten() for g in found]))
    norms = torch.stack([g.norm() for g in gradients])
    units = sum(g / g.norm() for g in gradients)
    return float(WEIGHING.cosine * (units @ units) / len(parts) ** 2 + WEIGHING.norm * norms.mean())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("options", [{}, {"per_channel": True}, {"gains": True}], ids=["tensor", "channel", "gains"])
def test_gradient_agrees_with_central_differences(engine: Any, options: dict[str, bool]) -> None:
    torch.manual_seed(0)
    model = Skip(norm=True).double()
    parts = sub_batches(Batch.of(pictures(12)), 3, 0.2)
    problem = Problem(model, cross_entropy)
    scales = Scales(problem, **options)
    assert ("norm.weight" in scales.omega) == ("gains" in options)
    found = slopes(problem, scales, parts, engine)
    step = 1e-5
    for name, omega in scales.omega.items():
        for i in range(min(omega.numel(), 2)):
            ends = []
            for sign in (1, -1):
                moved = omega.clone()
                moved.view(-1)[i] += sign * step
                scales.omega[name] = moved
                ends.append(value(model, scales, parts))
            scales.omega[name] = omega
            expected = (ends[0] - ends[1]) / (2 * step)
            # Central differences err by about 1e-9 here; a finite difference of the gradient itself by 1e-3.
            tolerance = 5e-3 if engine == "finite_difference" else 1e-6
            assert float(found[name].view(-1)[i]) == pytest.approx(expected, rel=tolerance, abs=1e-3 * tolerance)


def test_centred_biases_follow_their_weight() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(147, 16), nn.ReLU(), nn.Linear(16, 4))
    plan = wp.plan(model, torch.randn(8, 3, 7, 7), center=True)
    assert plan.prescriptions["3.bias"].distribution == "centering"
    refined = nio(model, cross_entropy, [pictures(16, torch.float32)], plan=plan, iterations=3, gamma=0.1)
    refined.apply_(model)
    before = refined.prescriptions["3.bias"].value
    expected = -before * model[3].weight.double().sum(1)
    assert torch.allclose(model[3].bias.double(), expected, rtol=1e-5)
    after = gradcosine(model, cross_entropy, pictures(16, torch.float32))
    assert after.norm == pytest.approx(refined.figures["after"]["norm"], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("planned", [True, False])
def test_plan_gives_what_was_measured(planned: bool) -> None:
    torch.manual_seed(1)
    model, batch = Skip(), pictures(16, torch.float32)
    base = wp.plan(model, batch[0], method="kaiming", seed=5) if planned else None
    before = state(model)
    plan = nio(model, cross_entropy, [batch], plan=base, iterations=20, gamma=0.05)
    assert same(before, state(model))
    assert plan.method == ("kaiming+nio" if planned else "nio")
    assert wp.Plan.model_validate_json(plan.to_json()) == plan
    plan.apply_(model)
    once = state(model)
    plan.apply_(model)
    assert same(once, state(model))
    after = gradcosine(model, cross_entropy, batch)
    assert after.cosine == pytest.approx(plan.figures["after"]["cosine"], rel=1e-4)
    assert after.norm == pytest.approx(plan.figures["after"]["norm"], rel=1e-4)
    assert after.norm < plan.figures["before"]["norm"]


@pytest.mark.slow
def test_bound_on_the_gradient_norm_is_reached_and_auto_is_what_it_says() -> None:
    torch.manual_seed(1)
    model, batch = Skip(), pictures(32, torch.float32)
    with torch.no_grad():
        model.readout.weight *= 30.0
    plan = nio(model, cross_entropy, [batch], iterations=60)
    after = plan.figures["after"]
    assert plan.figures["before"]["norm"] > 2 * plan.figures["gamma"]
    assert plan.figures["gamma"] == pytest.approx((after["loss"] / 0.1) ** 0.5)
    gentle = nio(Skip(), cross_entropy, [batch], iterations=20)
    assert gentle.figures["gamma"] == pytest.approx(gentle.figures["before"]["norm"])  # below loss / rate: no climb
    # The coefficients of one iteration move by up to 2 / 60, so that the norm stops that close to its bound.
    assert after["norm"] < 1.2 * plan.figures["gamma"]


@pytest.mark.slow
def test_resumed_run_ends_where_an_unbroken_one_does() -> None:
    torch.manual_seed(0)
    model = Skip()
    batches = [pictures(8, torch.float32, seed) for seed in range(3)]
    whole = nio(model, cross_entropy, batches, iterations=8, step=0.01)
    part = nio(model, cross_entropy, batches, iterations=5, step=0.01)
    resumed = nio(model, cross_entropy, batches, iterations=8, step=0.01, resume=part)
    assert resumed.figures == whole.figures
    assert resumed.prescriptions == whole.prescriptions
    with pytest.raises(GradientError, match="holds no coefficients"):
        nio(model, cross_entropy, batches, iterations=8, resume=wp.plan(model, batches[0][0]))
    with pytest.raises(PlanError, match="scales other weights"):
        nio(nn.Sequential(nn.Flatten(), nn.Linear(147, 4)), cross_entropy, batches, iterations=8, resume=part)


def test_interruption_leaves_the_best_so_far() -> None:
    torch.manual_seed(0)
    model, batch = Skip(norm=True), pictures(8, torch.float32)
    calls = []

    def interrupted(model: nn.Module, batch: Any) -> Tensor:
        calls.append(None)
        if len(calls) == 12:  # two for the score before, two in each iteration
            raise KeyboardInterrupt
        return cross_entropy(model, batch)

    before = state(model)
    with pytest.warns(UserWarning, match="interrupted after 4 of 50 iterations"):
        plan = nio(model, interrupted, [batch], iterations=50)
    assert same(before, state(model))
    assert plan.figures["finished"] is False
    history = plan.figures["history"]["GC"]
    assert len(history) == 4
    assert plan.figures["after"]["cosine"] == pytest.approx(max(history), rel=1e-5)


@pytest.mark.slow
def test_checkpointed_and_half_precision_models() -> None:
    class Checkpointed(Skip):
        def forward(self, x: Tensor) -> Tensor:
            h = checkpoint(lambda v: F.relu(self.norm(self.stem(v))), x, use_reentrant=False)
            return self.readout((h + F.gelu(self.branch(h))).mean((2, 3)))

    class Plain(Skip):
        def forward(self, x: Tensor) -> Tensor:
            h = F.relu(self.norm(self.stem(x)))
            return self.readout((h + F.gelu(self.branch(h))).mean((2, 3)))

    torch.manual_seed(0)
    plain = Plain(norm=True)
    other = Checkpointed(norm=True)
    other.load_state_dict(plain.state_dict())
    batch = pictures(8, torch.float32)
    for engine in ENGINES if _INNERMOST_HOOKS else ENGINES[-1:]:
        plans = [nio(m, cross_entropy, [batch], iterations=3, engine=engine) for m in (plain, other)]
        assert plans[0].figures["omega"] == pytest.approx(plans[1].figures["omega"], rel=1e-6)

    def autocast(model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return cross_entropy(model, batch)

    mixed = nio(plain, autocast, [batch], iterations=3)
    assert mixed.figures["after"]["norm"] > 0
    half = Skip().to(torch.bfloat16)
    plan = nio(half, cross_entropy, [(batch[0].bfloat16(), batch[1])], iterations=3)
    plan.apply_(half)
    once = state(half)
    plan.apply_(half)
    assert same(once, state(half))


def test_operator_without_second_derivative_names_the_engine_that_works() -> None:
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.tanh()

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return gradient * (1 - x.tanh() ** 2)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(147, 8), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(Once.apply(self.a(x.flatten(1))))

    batch = pictures(8, torch.float32)
    with pytest.raises(GradientError, match="use engine='finite_difference'"):
        nio(Net(), cross_entropy, [batch], iterations=2)
    assert nio(Net(), cross_entropy, [batch], iterations=2, engine="finite_difference").figures["finished"]


def test_bad_input_is_refused() -> None:
    model, batch = Skip(), pictures(8, torch.float32)
    with pytest.raises(GradientError, match=r"batches ran out after 1 of 3; give a list or a DataLoader"):
        nio(model, cross_entropy, iter([batch]), iterations=3)
    with pytest.raises(GradientError, match="holds no batch"):
        nio(model, cross_entropy, [], iterations=3)
    with pytest.raises(OptionError, match="unknown engine 'doublebackward'; did you mean 'double_backward'"):
        nio(model, cross_entropy, [batch], engine="doublebackward")  # type: ignore[arg-type]
    for name, wrong in (("gamma", 0.0), ("gamma", "car"), ("step", -1.0), ("iterations", 0), ("minimum", 0.0)):
        with pytest.raises(OptionError, match=f"{name} must be"):
            nio(model, cross_entropy, [batch], **{name: wrong})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    with pytest.raises(GradientError, match="nothing to scale"):
        nio(model, cross_entropy, [batch])
    plan = wp.plan(Skip(norm=True), batch[0])
    with pytest.raises(PlanError, match=r"does not fit Skip: .*norm\.weight"):
        nio(model, cross_entropy, [batch], plan=plan)


def test_refining_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = nio(Skip(), cross_entropy, [pictures(8, torch.float32)], iterations=2)
    assert plan.warnings == ()


def test_settings_are_an_object_or_fields() -> None:
    batch = pictures(8, torch.float32)

    def refined(**options: Any) -> wp.Plan:
        torch.manual_seed(0)
        return nio(Skip(), cross_entropy, [batch], iterations=2, progress=False, **options)

    chosen = NioSettings(minimum=0.9, per_channel=True)
    assert refined(settings=chosen) == refined(minimum=0.9, per_channel=True)
    assert refined(settings=chosen, minimum=0.5).options["minimum"] == 0.5
    with pytest.raises(TypeError, match=r"NioSettings.* unexpected keyword argument 'minimun'"):
        refined(minimun=0.5)
