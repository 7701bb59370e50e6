"""AutoInit++ in deep nets: weights whose sums are 0 pass on no mean, and what strays all the same is named."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import wellposed as wp


def stack(function: type[nn.Module], width: int, depth: int = 30) -> nn.Sequential:
    torch.manual_seed(0)
    parts = [part for _ in range(depth - 1) for part in (function(), nn.Linear(width, width))]
    return nn.Sequential(nn.Linear(width, width), *parts)


def ends(model: nn.Module, x: Tensor, **options: object) -> list[float]:
    graph, found = wp.trace(model, x), []
    for seed in range(3):
        wp.plan(graph, method="autoinit", center=True, seed=seed, **options).apply_(model)
        with torch.no_grad():
            found.append(math.log2(float(model(x).square().mean())))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("function", "width", "octaves"), [(nn.ReLU, 32, 3.0), (nn.ReLU, 128, 1.0), (nn.ELU, 32, 2.0)])
def test_centred_layers_keep_their_second_moment_through_thirty_layers(function, width, octaves):
    model, x = stack(function, width), torch.randn(128, width)
    assert max(map(abs, ends(model, x))) < octaves  # 17 to 67 times too large by biases alone
    assert wp.plan(model, x, method="autoinit", center=True).warnings == ()


@pytest.mark.slow
def test_centred_convolutions_keep_their_second_moment():
    parts = [part for _ in range(24) for part in (nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1))]
    model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), *parts)
    x = wp.Input.image().sample((8, 3, 12, 12), torch.Generator().manual_seed(0))
    assert max(map(abs, ends(model, x))) < 2.0


def test_what_one_output_sums_adds_up_to_zero_and_has_the_planned_size():
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.ConvTranspose2d(16, 8, 3, groups=2), nn.ReLU())
    model = nn.Sequential(*model, nn.Flatten(), nn.Linear(8 * 36, 64))
    x = torch.zeros(2, 3, 6, 6)
    plan = wp.plan(model, x, method="autoinit", center=True)
    plan.apply_(model)
    assert [name for name, one in plan.prescriptions.items() if one.centred] == ["2.weight", "5.weight"]
    sums = model[2].weight.detach().view(2, 8, 4, 9).sum((1, 3)), model[5].weight.detach().sum(1)
    for values, name in zip(sums, ("2.weight", "5.weight"), strict=True):
        assert float(values.abs().max()) < 1e-5, name
    drawn, std = model[5].weight.detach(), plan.prescriptions["5.weight"].std
    assert float(drawn.square().mean().sqrt()) == pytest.approx(std, rel=5 / math.sqrt(2 * drawn.numel()))
    assert float(model[5].bias.detach().abs().max()) < 1e-4
    assert wp.check(model, x, plan=plan).ok


def test_what_cannot_be_centred_by_itself_is_by_its_bias():
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))  # four terms are too few
    plan = wp.plan(model, torch.zeros(3, 8), method="autoinit", center=True)
    assert not plan.prescriptions["2.weight"].centred
    assert plan.prescriptions["2.bias"].distribution == "centering"
    model = stack(nn.ReLU, 32, 2)
    plan = wp.plan(model, torch.zeros(3, 32), method="autoinit", center=True, distribution="orthogonal")
    assert not plan.prescriptions["2.weight"].centred


@pytest.mark.parametrize(
    ("function", "width", "depth", "distribution", "strays"),
    [
        (nn.Softplus, 32, 30, "normal", True),
        (nn.Softplus, 512, 30, "normal", False),
        (nn.Softplus, 64, 10, "normal", False),
        (nn.ReLU, 128, 30, "orthogonal", True),
        (nn.ReLU, 128, 8, "orthogonal", False),
        (nn.Sigmoid, 32, 30, "normal", False),
        (nn.Tanh, 32, 30, "normal", False),
    ],
)
def test_stacks_in_which_second_moments_stray_are_named(function, width, depth, distribution, strays):
    model = stack(function, width, depth)
    warnings = wp.plan(model, torch.zeros(4, width), method="autoinit", center=True, distribution=distribution).warnings
    said = [
        warning for warning in warnings if warning.startswith(f"{depth} layers in a row") and "(center=True)" in warning
    ]
    assert len(said) == strays
    assert all(f"at {2 * depth - 2} those of single inputs vary by" in warning for warning in said)


@pytest.mark.slow
def test_norms_end_the_straying():
    parts = [part for _ in range(30) for part in (nn.Softplus(), nn.Linear(32, 32), nn.LayerNorm(32))]
    assert wp.plan(nn.Sequential(*parts), torch.zeros(4, 32), method="autoinit", center=True).warnings == ()


class StarReLU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 0.8944 * torch.relu(x) ** 2 - 0.4472


@pytest.mark.parametrize(("function", "strays"), [(StarReLU, True), (nn.ReLU, False), (nn.Tanh, False)])
def test_functions_that_square_are_named_without_centring_too(function, strays):
    warnings = wp.plan(stack(function, 128, 7), torch.zeros(256, 128), method="autoinit").warnings
    said = [warning for warning in warnings if warning.startswith("7 layers in a row each raise")]
    assert len(said) == strays
    assert all("to the power 2.08: at 12 those of single inputs vary by" in warning for warning in said)


@pytest.mark.slow
@pytest.mark.parametrize(("function", "depth", "strays"), [(nn.GELU, 20, False), (nn.SiLU, 50, True)])
def test_functions_that_are_straight_at_both_ends_are_named_where_they_do_not_train(function, depth, strays):
    warnings = wp.plan(stack(function, 128, depth), torch.zeros(8, 128)).warnings
    assert sum(warning.startswith(f"{depth} layers in a row each raise") for warning in warnings) == strays
    assert strays or not warnings
