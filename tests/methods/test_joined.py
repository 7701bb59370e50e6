"""Weights that several parameters make: one scale for what they make together, shared out among them."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wellposed as wp

IN, OUT, RANK = 32, 48, 4
BATCH = 64


class Made(nn.Module):
    """linear(x, f(parameters)), then relu and a readout."""

    def __init__(self, function, **parameters):
        super().__init__()
        for name, values in parameters.items():
            setattr(self, name, nn.Parameter(values))
        self.function = function
        self.readout = nn.Linear(OUT, 10)

    def forward(self, x):
        return self.readout(torch.relu(F.linear(x, self.function(self))))


def normal(*shape, scale=1.0):
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def made(function, **parameters):
    return wp.trace(Made(function, **parameters), torch.zeros(BATCH, IN))


FULL = {"w": normal(OUT, IN)}
FACTORS = {"a": normal(OUT, RANK), "b": normal(RANK, IN)}
SCORED = FULL | {"g": normal(OUT, IN)}


def quantised(w):
    step = w.abs().max() / 127
    return torch.round(w / step) * step


CASES = {
    "a gate of another parameter": (lambda m: m.w * torch.sigmoid(m.g), SCORED, "w"),
    "a mask of scores": (lambda m: m.w * (m.g > 0.0), SCORED, "w"),
    "the largest scores": (lambda m: m.w * (m.g >= m.g.flatten().topk(400).values[-1]).float(), SCORED, "w"),
    "rows scaled by exp": (lambda m: m.w * torch.exp(m.g), FULL | {"g": normal(OUT, 1)}, "w"),
    "low rank": (lambda m: m.a @ m.b, FACTORS, "ab"),
    "low rank with a gain between": (lambda m: (m.a * m.d) @ m.b, FACTORS | {"d": torch.ones(RANK)}, "ab"),
    "three factors": (lambda m: m.a @ m.c @ m.b, FACTORS | {"c": normal(RANK, RANK)}, "abc"),
    "low rank beside a whole weight": (lambda m: m.w + 2.0 * (m.a @ m.b), FULL | FACTORS, "abw"),
    "a product of two low ranks": (
        lambda m: (m.a @ m.b) * (m.c @ m.d),
        FACTORS | {"c": normal(OUT, RANK, scale=2.0), "d": normal(RANK, IN)},
        "abcd",
    ),
    "canonical decomposition": (
        lambda m: torch.einsum("or,ir,jr->oij", m.a, m.c, m.d).reshape(OUT, IN),
        {"a": normal(OUT, 16), "c": normal(8, 16), "d": normal(4, 16)},
        "acd",
    ),
    "Kronecker": (lambda m: torch.kron(m.a, m.b), {"a": normal(6, 4), "b": normal(8, 8)}, "ab"),
    "two whole weights": (lambda m: m.w + m.v, FULL | {"v": normal(OUT, IN, scale=0.1)}, "vw"),
    "one above the other": (lambda m: torch.cat([m.v, m.w]), {"v": normal(16, IN), "w": normal(32, IN)}, "vw"),
    "mean and noise": (lambda m: m.w + m.s * torch.randn_like(m.w), FULL | {"s": torch.full((OUT, IN), 0.05)}, "w"),
    "mean and noise of drawn sizes": (
        lambda m: m.w + m.s * torch.randn_like(m.s),
        FULL | {"s": normal(OUT, IN, scale=0.05)},
        "w",
    ),
    "mean and noise of positive sizes": (
        lambda m: m.w + F.softplus(m.s) * torch.randn_like(m.w),
        FULL | {"s": normal(OUT, IN, scale=0.1) - 3.0},
        "w",
    ),
    "mean and noise by a distribution": (
        lambda m: torch.distributions.Normal(m.w, torch.exp(m.s)).rsample(),
        FULL | {"s": torch.full((OUT, IN), -3.0)},
        "w",
    ),
    "an antisymmetric weight": (
        lambda m: torch.cat([m.w - m.w.T - 0.01 * torch.eye(IN), m.v]),
        {"w": normal(IN, IN), "v": normal(16, IN)},
        "vw",
    ),
    "binary, straight through": (lambda m: (m.w.sign() * m.w.abs().mean() - m.w).detach() + m.w, FULL, "w"),
    "binary": (lambda m: m.w.sign() * m.w.abs().mean(), FULL, "w"),
    "quantised, straight through": (lambda m: m.w + (quantised(m.w) - m.w).detach(), FULL, "w"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_weight_is_planned_and_its_output_has_the_target_variance(name):
    function, parameters, written = CASES[name]
    torch.manual_seed(0)
    graph = made(function, **parameters)
    plan = wp.plan(graph, distribution="normal", method="autoinit")
    assert {n for n, p in plan.prescriptions.items() if p.action == "write"} == {
        *written, "readout.weight", "readout.bias",
    }  # fmt: skip
    assert not [warning for warning in plan.warnings if "no scale can be chosen" in warning]
    signals = wp.measure(graph, plan=plan, draws=32, seed=1)
    assert abs(math.log2(signals["linear"].second_moment)) < 4 * signals["linear"].log2_error + 0.05
    assert wp.check(graph, plan=plan, draws=16).ok


def test_factors_have_alike_relative_gradients():
    """n σ⁴ is the same for all factors of a product, by the gradients of a white cotangent too."""
    graph = made(lambda m: m.a @ m.b, **FACTORS)
    plan = wp.plan(graph, method="autoinit")
    a, b = plan.prescriptions["a"], plan.prescriptions["b"]
    assert a.std**4 * OUT * RANK == pytest.approx(b.std**4 * RANK * IN, rel=1e-9)
    assert RANK * a.std**2 * b.std**2 == pytest.approx(1 / IN, rel=1e-6)
    assert "relative gradients are alike" in a.reason
    ratios = []
    for draw in range(32):
        drawn = wp.plans.draw(plan, seed=draw)
        left, right = (drawn[name].requires_grad_() for name in "ab")
        (left @ right).backward(torch.randn(OUT, IN, generator=torch.Generator().manual_seed(draw)))
        one, other = (float(factor.grad.norm() / factor.detach().norm()) for factor in (left, right))
        ratios.append(one / other)
    assert sum(ratios) / len(ratios) == pytest.approx(1.0, rel=0.1)


def test_a_factor_of_zero_stays_zero_and_the_other_is_kept():
    """LoRA, merged: the low-rank part adds nothing, and the weight has all of the variance."""
    graph = made(lambda m: m.w + m.b @ m.a, w=normal(OUT, IN), a=normal(RANK, IN), b=torch.zeros(OUT, RANK))
    plan = wp.plan(graph, method="autoinit")
    assert plan.prescriptions["w"].std == pytest.approx(IN**-0.5, rel=1e-6)
    assert plan.prescriptions["b"].reason == "initialised to zero by the model, and kept (zeros='write' draws it)"
    assert plan.prescriptions["a"].reason == "what it is multiplied with is 0, so that no scale of it shows"
    drawn = wp.plan(graph, zeros="write", method="autoinit")
    assert {n for n, p in drawn.prescriptions.items() if p.action == "write"} >= {"a", "b", "w"}
    assert wp.check(graph, plan=drawn, draws=16).ok


def test_what_is_kept_beside_a_weight_counts_and_leaves_it_half_at_least():
    for size, expected in ((0.05, 1 / IN - 0.05**2), (1.0, 0.5 / IN)):
        graph = made(
            lambda m: m.w + m.s * torch.randn_like(m.w), w=normal(OUT, IN), s=torch.full((OUT, IN), size)
        )  # fmt: skip
        plan = wp.plan(graph, method="autoinit")
        assert plan.prescriptions["w"].std ** 2 == pytest.approx(expected, rel=1e-5)
        assert "its values count in the weight that 'w' scale(s) at linear" in plan.prescriptions["s"].reason
        assert wp.check(graph, plan=plan, draws=16).ok


class Hyper(nn.Module):
    """Weights that a small network makes of an embedding of the layer (Ha, Dai & Le 2017)."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Parameter(normal(16))
        self.inner, self.maker = nn.Linear(16, 64), nn.Linear(64, OUT * IN)
        self.readout = nn.Linear(OUT, 10)

    def forward(self, x):
        weight = self.maker(torch.relu(self.inner(self.layer))).view(OUT, IN)
        return self.readout(torch.relu(F.linear(x, weight)))


def test_a_hyper_network_makes_a_weight_of_the_right_scale():
    graph = wp.trace(Hyper(), torch.zeros(BATCH, IN))
    plan = wp.plan(graph, method="autoinit")
    assert "makes the weight that has it" in plan.prescriptions["maker.weight"].reason
    signals = wp.measure(graph, plan=plan, draws=32, seed=1)
    assert abs(math.log2(signals["linear"].second_moment)) < 4 * signals["linear"].log2_error + 0.05
    assert wp.check(graph, plan=plan, draws=16).ok


def test_a_made_weight_that_meets_zeros_is_planned_by_its_fan_in():
    class Zeros(Made):
        def forward(self, x):
            return super().forward(0.0 * x)

    graph = wp.trace(Zeros(lambda m: m.a @ m.b, **FACTORS), torch.zeros(BATCH, IN))
    plan = wp.plan(graph, method="autoinit")
    a, b = plan.prescriptions["a"], plan.prescriptions["b"]
    assert RANK * a.std**2 * b.std**2 == pytest.approx(1 / IN, rel=1e-6)
    with pytest.raises(wp.errors.PlanError, match="linear: the signal that meets the weight made at matmul is 0"):
        wp.plan(graph, zero_signal="error", method="autoinit")


def test_noise_of_a_gain_is_no_weight():
    """Random numbers that a small parameter multiplies are signals, as in generators."""

    class Generator(nn.Module):
        def __init__(self):
            super().__init__()
            self.strength, self.out = nn.Parameter(torch.ones(1)), nn.Linear(IN, OUT)

        def forward(self, x):
            return self.out(x + self.strength * torch.randn(BATCH, IN))

    plan = wp.plan(Generator(), torch.zeros(BATCH, IN), method="autoinit")
    assert plan.prescriptions["out.weight"].std == pytest.approx((2 * IN) ** -0.5, rel=1e-3)
