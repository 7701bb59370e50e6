"""Plans for singular values near 1, against the Jacobian itself."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import wellposed as wp
from wellposed.checks import jacobian_spectrum
from wellposed.errors import OptionError
from wellposed.methods.isometry import WIDTH

WHITE = wp.Input.white()
X = torch.zeros(4, 64)


def chain(activation: type[nn.Module], depth: int = 20, width: int = 64, end: bool = False) -> nn.Sequential:
    layers = [m for _ in range(depth) for m in (nn.Linear(width, width), activation())]
    return nn.Sequential(*layers[: None if end else -1])


def spectrum(model: nn.Module, plan: wp.Plan):
    return jacobian_spectrum(model, X, plan=plan, inputs=WHITE, draws=2)


@pytest.mark.slow
@pytest.mark.parametrize("activation", [nn.Tanh, nn.GELU, nn.SiLU, nn.Hardtanh])
def test_the_spectrum_is_narrow_where_others_are_wide(activation: type[nn.Module]) -> None:
    model = chain(activation)
    plan = wp.plan(model, X, objective="isometry", inputs=WHITE, method="autoinit")
    assert not any("isometry" in warning for warning in plan.warnings)
    found = spectrum(model, plan)
    assert found.exact
    # the mean is 1 and the variance at most WIDTH in the limit of large width; at width 64, to a few 1 / 64
    assert found.mean_square == pytest.approx(1.0, abs=4 / 64)
    assert found.variance < WIDTH + 2 / 64
    assert found.largest < math.sqrt(1 + 6 * math.sqrt(WIDTH))
    for options in ({}, {"distribution": "orthogonal"}):
        other = spectrum(model, wp.plan(model, X, inputs=WHITE, **options))
        assert other.variance > 10 * found.variance


@pytest.mark.slow
def test_gains_are_those_of_the_theory() -> None:
    plan = wp.plan(chain(nn.Tanh, depth=4), X, objective="isometry", inputs=WHITE, method="autoinit")
    gains = [plan.prescriptions[f"{2 * i}.weight"].std ** 2 * 64 for i in range(4)]
    level = gains[0]
    assert all(p.distribution == "orthogonal" for n, p in plan.prescriptions.items() if n.endswith("weight"))
    z = torch.linspace(-10, 10, 20001, dtype=torch.float64)
    weights = torch.exp(-z * z / 2) / torch.exp(-z * z / 2).sum()
    slope = 1 - torch.tanh(level**0.5 * z) ** 2
    square, fourth = float(weights @ slope**2), float(weights @ slope**4)
    assert gains[1] == pytest.approx(1 / square, rel=1e-3)
    # As large as the depth allows, to the last of twelve halvings of ln(1e8); κ goes with the square of the variance.
    # The plan counts what energy varies by at width 64, which the theory of infinite width does not.
    assert math.exp(-2 * math.log(1e8) / 2**12) * WIDTH <= 3 * (fourth / square**2 - 1) <= WIDTH * (1 + 1 / 64)
    assert gains[3] * level == pytest.approx(gains[2], rel=1e-3)  # the last one undoes the first


@pytest.mark.slow
def test_linear_layers_are_isometries() -> None:
    plan = wp.plan(chain(nn.Identity), X, objective="isometry", inputs=WHITE, method="autoinit")
    found = spectrum(chain(nn.Identity), plan)
    assert (found.smallest, found.largest) == (pytest.approx(1.0, abs=1e-3), pytest.approx(1.0, abs=1e-3))


@pytest.mark.slow
def test_layers_of_different_widths_stay_near_an_isometry() -> None:
    model = nn.Sequential(nn.Linear(64, 200), nn.Tanh(), nn.Linear(200, 100), nn.Tanh(), nn.Linear(100, 40))
    found = spectrum(model, wp.plan(model, X, objective="isometry", inputs=WHITE, method="autoinit"))
    assert found.outputs == 40
    assert found.largest < 1.3
    narrow = nn.Sequential(nn.Linear(64, 9))
    alone = spectrum(narrow, wp.plan(narrow, X, objective="isometry", inputs=WHITE, method="autoinit"))
    assert (alone.smallest, alone.largest) == (pytest.approx(1.0, abs=1e-3), pytest.approx(1.0, abs=1e-3))


@pytest.mark.slow
def test_relu_is_said_to_be_impossible_and_made_critical() -> None:
    model = chain(nn.ReLU, depth=6, width=64)
    plan = wp.plan(model, X, objective="isometry", inputs=WHITE, method="autoinit")
    assert "isometry is out of reach: before 2," in plan.warnings[0]
    assert "about 5 at any scale" in plan.warnings[0]  # five layers behind a ReLU, 1 each
    for name in ("2.weight", "10.weight"):
        assert plan.prescriptions[name].std ** 2 * 64 == pytest.approx(2.0, rel=1e-3)
    found = jacobian_spectrum(model, X, plan=plan, inputs=WHITE, draws=24)
    assert abs(found.mean_square - 1.0) < 4 * found.mean_square_error * math.sqrt(4)  # four samples share their weights
    assert found.variance > 1.0


@pytest.mark.slow
def test_behind_a_last_activation_the_scale_is_not_undone() -> None:
    plan = wp.plan(chain(nn.Tanh, depth=4, end=True), X, objective="isometry", inputs=WHITE, method="autoinit")
    assert "undoes" not in plan.prescriptions["6.weight"].reason
    assert (
        "undoes"
        in wp.plan(chain(nn.Tanh, depth=4), X, objective="isometry", method="autoinit").prescriptions["6.weight"].reason
    )


def test_what_the_theory_leaves_out_is_said() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(x) + torch.tanh(self.conv(x) + x)

    plan = wp.plan(Block(), torch.zeros(4, 8, 6, 6), objective="isometry", method="autoinit")
    said = plan.warnings[0]
    assert said.startswith("isometry is worked out for layers in a row; here are also ")
    assert all(part in said for part in ("norms", "2 sums of branches", "convolutions of more than one tap"))


def test_options_that_do_not_go_together_are_refused() -> None:
    for options in ({"direction": "both"}, {"distribution": "uniform"}):
        with pytest.raises(OptionError, match="objective='isometry' draws orthogonal weights"):
            wp.plan(chain(nn.Tanh), X, objective="isometry", method="autoinit", **options)
    with pytest.raises(OptionError, match="unknown objective 'width'"):
        wp.plan(chain(nn.Tanh), X, objective="width", method="autoinit")
