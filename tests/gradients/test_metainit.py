"""MetaInit: the quotient against the Hessian itself, its slopes against differences, its moves against the rule."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.gradients.nets import Skip, cross_entropy, pictures, same, state
from torch import Tensor, nn
from torch.func import functional_call

from wellposed.errors import GradientError, OptionError
from wellposed.gradients import gradient_quotient, metainit, random_batches
from wellposed.gradients.metainit import _quotient, _slope
from wellposed.gradients.problem import Problem, leaves_of
from wellposed.gradients.scales import Scales


def small() -> tuple[nn.Sequential, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.GELU(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    return model, (torch.randn(6, 5, dtype=torch.float64), torch.randint(0, 3, (6,)))


def by_definition(model: nn.Module, parameters: dict[str, Tensor], batch: Any, epsilon: float = 1e-5) -> float:
    """Eq. 1 with the Hessian written out."""
    flat = torch.cat([p.detach().flatten() for p in parameters.values()])

    def loss(theta: Tensor) -> Tensor:
        parts = theta.split([p.numel() for p in parameters.values()])
        given = {name: part.view_as(p) for (name, p), part in zip(parameters.items(), parts, strict=True)}
        return F.cross_entropy(functional_call(model, given, (batch[0],)), batch[1])

    g = torch.autograd.functional.jacobian(loss, flat)
    hessian = torch.autograd.functional.hessian(loss, flat)
    sign = 2.0 * (g >= 0).double() - 1.0
    return float(((g - hessian @ g) / (g + epsilon * sign) - 1.0).abs().mean())


def test_quotient_is_that_of_the_hessian() -> None:
    model, batch = small()
    before = state(model)
    found = gradient_quotient(model, cross_entropy, batch)
    assert found == pytest.approx(by_definition(model, dict(model.named_parameters()), batch), rel=1e-9)
    assert same(before, state(model))


def test_linear_loss_has_quotient_zero() -> None:
    model = nn.Linear(5, 3, bias=False).double()
    x = torch.randn(6, 5, dtype=torch.float64)
    g = x.mean(0).repeat(3, 1) / 3
    expected = float((1e-5 / (g.abs() + 1e-5)).mean())  # H = 0 leaves ε
    assert gradient_quotient(model, lambda m, b: m(b).mean(), x) == pytest.approx(expected, rel=1e-9)
    assert gradient_quotient(model, lambda m, b: m(b).square().mean(), x) > 10 * expected


def test_slopes_agree_with_central_differences() -> None:
    model, batch = small()
    problem = Problem(model, cross_entropy)
    scales = Scales(problem)
    with problem.running():
        leaves = leaves_of(scales.parameters())
        quotient, _, _ = _quotient(problem, leaves, batch, 1e-5)
        found = scales.pulled_back(_slope(quotient, leaves))
    assert found.keys() == {"0.weight", "2.weight", "4.weight"}
    for name in found:
        ends = []
        for sign in (1, -1):
            scales.omega[name] = torch.tensor(1.0 + sign * 1e-5, dtype=torch.float64)
            ends.append(by_definition(model, scales.parameters(), batch))
        scales.omega[name] = torch.tensor(1.0, dtype=torch.float64)
        assert float(found[name]) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-4)


@pytest.mark.slow
def test_norms_move_by_momentum_on_signs() -> None:
    model, batch = small()
    norms = {name: float(p.detach().norm()) for name, p in model.named_parameters() if p.ndim > 1}
    moves = dict.fromkeys(norms, 0.0)
    omega = dict.fromkeys(norms, 1.0)
    for iteration in range(1, 4):
        plan = metainit(model, cross_entropy, [batch], iterations=iteration, rate=0.05, momentum=0.9)
        for name in norms:
            ends = []
            for sign in (1, -1):
                scaled = {n: p.detach() * omega.get(n, 1.0) for n, p in model.named_parameters()}
                scaled[name] *= 1 + sign * 1e-5
                ends.append(by_definition(model, scaled, batch))
            moves[name] = 0.9 * moves[name] - 0.05 * (1.0 if ends[0] > ends[1] else -1.0)
        omega = {name: omega[name] + moves[name] / norms[name] for name in norms}
        assert plan.figures["omega"] == pytest.approx(omega, rel=1e-9)


@pytest.mark.slow
def test_bad_start_gets_better_and_the_model_has_the_quotient_after() -> None:
    torch.manual_seed(0)
    sizes = ((16, 32), (32, 32), (32, 32), (32, 4))
    model = nn.Sequential(*(m for size in sizes for m in (nn.Linear(*size), nn.Tanh()))).double()[:-1]
    batch = (torch.randn(64, 16, dtype=torch.float64), torch.randint(0, 4, (64,)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 2.0
    before = state(model)
    plan = metainit(model, cross_entropy, [batch], iterations=40, rate=0.01)
    assert same(before, state(model))
    said = plan.figures["gradient_quotient"]
    assert said["after"] < 0.75 * said["before"]
    assert plan.warnings == ()
    plan.apply_(model)
    assert gradient_quotient(model, cross_entropy, batch) == pytest.approx(said["after"], rel=1e-9)


def test_quotient_that_does_not_fall_is_said() -> None:
    model, batch = small()
    plan = metainit(model, cross_entropy, [batch], iterations=1, rate=20.0)
    assert plan.figures["gradient_quotient"]["after"] > plan.figures["gradient_quotient"]["before"]
    assert "did not fall" in plan.warnings[0]


def test_resumed_run_ends_where_an_unbroken_one_does() -> None:
    model, _ = small()
    batches = [(torch.randn(6, 5, dtype=torch.float64), torch.randint(0, 3, (6,))) for _ in range(3)]
    whole = metainit(model, cross_entropy, batches, iterations=7)
    part = metainit(model, cross_entropy, batches, iterations=4)
    resumed = metainit(model, cross_entropy, batches, iterations=7, resume=part)
    assert resumed.figures == whole.figures
    assert resumed.prescriptions == whole.prescriptions


def test_the_model_is_refined_in_evaluation_mode_unless_asked() -> None:
    torch.manual_seed(0)
    model, batch = Skip(norm=True).double(), pictures(8)
    seen = []

    def loss(model: nn.Module, batch: Any) -> Tensor:
        seen.append((model.training, model.norm.training))
        return cross_entropy(model, batch)

    before = state(model)
    metainit(model, loss, [batch], iterations=1)
    assert set(seen) == {(False, False)}
    metainit(model, loss, [batch], iterations=1, training=True)
    assert seen[-1] == (True, True)
    assert same(before, state(model))


def test_attention_and_half_precision_are_refined() -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    x = torch.randn(4, 5, 8)
    plan = metainit(model, lambda m, b: m(b).square().mean() + m(b).mean(), [x], iterations=2)
    assert "self_attn.in_proj_weight" in plan.figures["omega"]
    half, batch = Skip().bfloat16(), pictures(8, torch.float32)
    metainit(half, cross_entropy, [(batch[0].bfloat16(), batch[1])], iterations=2).apply_(half)


def test_random_batches_have_the_structure_of_the_example() -> None:
    example = {"x": torch.randn(8, 3).bfloat16(), "y": torch.full((8,), 4), "mask": torch.ones(8, dtype=torch.bool)}
    first, second = islice(random_batches(example), 2)
    assert first["x"].dtype == torch.bfloat16
    assert not torch.equal(first["x"], second["x"])
    assert torch.equal(first["mask"], example["mask"])
    labels = torch.cat([batch["y"] for batch in islice(random_batches(example), 50)])
    assert labels.unique().tolist() == [0, 1, 2, 3, 4]
    labels = torch.cat([batch["y"] for batch in islice(random_batches(example, classes=7), 50)])
    assert labels.unique().tolist() == list(range(7))
    values = torch.cat([batch["x"].flatten() for batch in islice(random_batches(example), 400)]).double()
    count = values.numel()
    assert abs(float(values.mean())) < 4 / count**0.5
    assert abs(float(values.var()) - 1.0) < 4 * (2 / count) ** 0.5
    again = next(random_batches(example))
    assert torch.equal(again["x"], first["x"])
    model, batch = small()
    plan = metainit(model, cross_entropy, random_batches(batch), iterations=2)
    assert plan.figures["finished"]


def test_bad_input_is_refused() -> None:
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * 2

    model, batch = small()
    with pytest.raises(GradientError, match=r"cannot be differentiated twice .* gradient_norm"):
        metainit(model, lambda m, b: F.cross_entropy(Once.apply(m(b[0])), b[1]), [batch], iterations=1)
    for name, wrong in (("rate", 0.0), ("iterations", 0), ("epsilon", -1.0), ("minimum", 0.0), ("momentum", 1.0)):
        with pytest.raises(OptionError, match=f"{name} must be"):
            metainit(model, cross_entropy, [batch], **{name: wrong})
