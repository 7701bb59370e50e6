"""Scales rest on signals that tell them: fan-in and a warning elsewhere, and numbers that a type holds."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import wellposed as wp
from wellposed.errors import PlanError
from wellposed.plans import Drawn, Plan


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def stack(function, width: int = 16, depth: int = 1) -> nn.Sequential:
    torch.manual_seed(0)
    parts = [part for _ in range(depth) for part in (nn.Linear(width, width), Function(function))]
    return nn.Sequential(*parts, nn.Linear(width, 2))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: torch.sigmoid(x - 20), r"has the second moment 4\.2e-17"),
        (torch.tan, "has no second moment that means anything"),
        (torch.reciprocal, "has no second moment that means anything"),
        (lambda x: torch.exp(torch.exp(4 * x).square()), "is NaN or infinite"),
        (lambda x: 1e7 * x.square(), r"has the second moment 3\.4e\+14"),
        (lambda x: (x + 1.0) - x - 1.0, "has the second moment"),
    ],
    ids=["closed gate", "tan", "1/x", "infinite", "large", "rounding"],
)
def test_a_signal_that_tells_no_scale_leaves_that_of_fan_in_and_is_named(function, words):
    model = stack(function)
    x = torch.zeros(64, 16)
    plan = wp.plan(model, x, method="autoinit")
    one = plan.prescriptions["2.weight"]
    assert one.std == pytest.approx(0.25)
    assert (one.signal_before, one.signal_after) == (None, None)
    said = [warning for warning in plan.warnings if "'2.weight' (what it meets at 2 (linear.default), '1" in warning]
    assert len(said) == 1
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(said[0])
    with pytest.raises(PlanError, match="no signal tells the scale of 1 weight"):
        wp.plan(model, x, method="autoinit", strict=True)


def test_a_kept_parameter_of_nan_chooses_no_scale():
    model = stack(torch.relu, depth=2)
    with torch.no_grad():
        model[0].weight.fill_(math.nan)
    plan = wp.plan(model, torch.zeros(4, 16), method="autoinit", skip="0.weight")
    assert plan.prescriptions["2.weight"].std == pytest.approx(0.25)
    assert "is NaN or infinite" in " ".join(plan.warnings)


def test_standard_deviations_far_from_fan_in_are_named_with_what_they_rest_on():
    (said,) = wp.plan(stack(lambda x: torch.tanh(1e6 * x)), torch.zeros(4, 16)).warnings
    assert "'0.weight' has 1.37e-07 at 0 (linear.default), where 1/√fan-in is 0.25" in said
    assert "the function behind it takes 1e+06 times this" in said
    assert wp.plan(stack(lambda x: torch.tanh(30 * x)), torch.zeros(4, 16)).warnings == ()
    (said,) = wp.plan(stack(lambda x: torch.tanh(1e6 * x), depth=3), torch.zeros(4, 16)).warnings
    assert all(f"'{name}.weight'" in said for name in (0, 2, 4))


def test_two_uses_of_a_weight_count_where_they_tell_a_scale():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.shared, self.out = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            return self.out(torch.relu(self.shared(h)) + self.shared(torch.sigmoid(h - 30)))

    plan = wp.plan(Twice(), torch.zeros(4, 8), method="autoinit")
    assert plan.prescriptions["shared.weight"].std == pytest.approx(8**-0.5)


@pytest.mark.parametrize(("dtype", "std"), [(torch.float16, 1e-7), (torch.float32, 1e-45), (torch.float64, 2.7e-75)])
def test_numbers_that_a_type_holds_as_zeros_are_refused(dtype, std):
    model = nn.Linear(4, 4, bias=False).to(dtype)
    before = model.weight.detach().clone()
    drawn = Drawn(name="weight", shape=(4, 4), distribution="normal", std=std, reason="by hand")
    plan = Plan(method="by hand", seed=0, model="Linear", prescriptions={"weight": drawn})
    with pytest.raises(PlanError, match=r"'weight' is planned with .* numbers of size .* holds as zeros"):
        plan.apply_(model)
    assert torch.equal(model.weight, before)
    fine = plan.model_copy(update={"prescriptions": {"weight": drawn.changed(std=1e-6)}})
    fine.apply_(model)
    assert bool(model.weight.any())


@pytest.mark.slow
@pytest.mark.parametrize("function", [torch.tan, torch.reciprocal, lambda x: x * torch.exp(2 * x)])
def test_a_check_does_not_hold_where_weights_meet_what_has_no_expectation(function):
    model, x = stack(function, depth=3), torch.zeros(64, 16)
    verdict = wp.check(model, x, plan=wp.plan(model, x))
    assert verdict.heavy
    assert not verdict.ok
    assert "without an expectation, which weights meet" in verdict.summary()


@pytest.mark.slow
def test_no_standard_deviation_is_far_off_in_silence():
    path = Path(__file__).parents[2] / "benchmarks" / "expressions.py"
    spec = importlib.util.spec_from_file_location("expressions", path)
    assert spec is not None
    assert spec.loader is not None
    expressions = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(expressions)
    for seed in range(8):
        model = expressions.net(seed)
        plan = wp.plan(model, torch.zeros(64, expressions.WIDTH))
        assert expressions.outside(plan) == [], seed
        assert expressions.zeros(model.half(), plan) == [], seed


class Placed(nn.Module):
    """A table of positions, of which a part is added to a signal."""

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__()
        self.first, self.last, self.table = nn.Linear(8, 16), nn.Linear(16, 4), nn.Parameter(table)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x) + self.table[: x.shape[1]])


@pytest.mark.parametrize("power", [-37, 33])
def test_memory_that_nothing_has_filled_is_named(power):
    table = torch.randn(12, 16) * 10.0**power
    (told,) = [w for w in wp.plan(Placed(table), torch.randn(4, 6, 8)).warnings if "'table'" in w]
    assert "hold what no model gives them" in told
    assert "fill them where the model makes them" in told


@pytest.mark.parametrize("table", [torch.zeros(12, 16), torch.randn(12, 16) * 1e-6, torch.full((12, 16), -1e4)])
def test_a_table_that_a_model_fills_is_not_named(table):
    assert not any("what no model gives" in w for w in wp.plan(Placed(table), torch.randn(4, 6, 8)).warnings)


class Equalised(nn.Module):
    """A layer whose weight is drawn large, and made smaller in the forward (Karras et al. 2018, section 4.1)."""

    def __init__(self, over: float, size: float) -> None:
        super().__init__()
        self.weight, self.over = nn.Parameter(size * torch.randn(16, 16)), over

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight / self.over)


@pytest.mark.parametrize("over", [1e3, 1e-5])
def test_sizes_that_the_model_itself_draws_are_not_named(over: float) -> None:
    for size, named in ((over / 4, False), (0.25, True)):
        model = nn.Sequential(Equalised(over, size), nn.LeakyReLU(0.2), nn.Linear(16, 4))
        warnings = wp.plan(model, torch.zeros(8, 16)).warnings
        assert any("far from any usual one" in warning for warning in warnings) is named
