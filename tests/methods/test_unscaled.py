"""Weights that no scale can be chosen for are named, with the true reason."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wellposed as wp
from wellposed.errors import UnsupportedError

WIDTH = 32


class Made(nn.Module):
    """x @ f(a, b)."""

    def __init__(self, function, shape=(WIDTH, WIDTH)):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.a = nn.Parameter(0.1 * torch.randn(shape, generator=generator))
        self.b = nn.Parameter(0.1 * torch.randn(shape, generator=generator))
        self.function = function

    def forward(self, x):
        return x @ self.function(self.a, self.b)


def planned(function, **options):
    graph = wp.trace(Made(function), torch.zeros(8, WIDTH))
    return wp.plan(graph, **options)


NO_SCALE = {
    "tanh": (lambda a, b: torch.tanh(a), "tanh (tanh.default) is no linear function of it, before matmul"),
    "square": (lambda a, b: a * a, "mul (mul.Tensor) is no linear function of it"),
    "shifted": (lambda a, b: a + 1.0, "add (add.Tensor) is no linear function of it"),
    "absolute": (lambda a, b: a.abs(), "no rule carries its scale through abs (abs.default)"),
}
JOINED = {
    "sum": (lambda a, b: a + b, "add (add.Tensor) joins it with 'b'"),
    "low rank": (lambda a, b: a @ b, "matmul (matmul.default) joins it with 'b'"),
    "side by side": (
        lambda a, b: torch.cat([a[:, :16], b[:, :16]], 1),
        "cat (cat.default) joins it with 'b', before matmul (matmul.default) sums it",
    ),
}


@pytest.mark.parametrize(
    ("name", "method"),
    [*((name, "autoinit") for name in NO_SCALE), *((name, "kaiming") for name in (*NO_SCALE, *JOINED))],
)
def test_a_weight_without_a_scale_is_named(name, method):
    """Classic methods give every weight a scale of its own, and so none to weights that several parameters make."""
    function, reason = (NO_SCALE | JOINED)[name]
    plan = planned(function, method=method)
    assert plan.prescriptions["a"].action == "keep"
    assert reason in plan.prescriptions["a"].reason
    (warning,) = [w for w in plan.warnings if "no scale can be chosen" in w]
    assert warning.startswith("weights that keep their values, as no scale can be chosen for them: 'a' (")
    assert reason in warning


@pytest.mark.parametrize("name", NO_SCALE)
def test_strict_raises_for_it(name):
    with pytest.raises(UnsupportedError, match=r"weight\(s\) of Made have no scale to choose:\n  a: "):
        planned(NO_SCALE[name][0], strict=True)


NORMALISED = {
    "normalize": lambda a, b: F.normalize(a, dim=0),
    "divided by its norm": lambda a, b: a / a.norm(dim=0, keepdim=True),
    "standardised": lambda a, b: (a - a.mean(0, keepdim=True)) / a.std(0, keepdim=True),
    "signs": lambda a, b: a.sign(),
}


@pytest.mark.parametrize("name", NORMALISED)
def test_a_weight_that_the_model_normalises_is_no_cause_for_a_warning(name):
    plan = planned(NORMALISED[name])
    assert "the model normalises this weight at" in plan.prescriptions["a"].reason
    assert not [w for w in plan.warnings if "no scale" in w]


def test_minus_a_weight_is_planned():
    """It was kept once, for the reason that the model normalised it."""
    assert planned(lambda a, b: -a).prescriptions["a"].action == "write"


def test_what_is_left_out_is_not_warned_of():
    graph = wp.trace(Made(lambda a, b: torch.tanh(a)), torch.zeros(8, WIDTH))
    assert not wp.plan(graph, skip=["a", "b"], method="autoinit").warnings


def test_a_weight_that_meets_constants_alone_is_kept_with_the_reason():
    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.v, self.w = (nn.Parameter(torch.randn(WIDTH, WIDTH)) for _ in range(2))

        def forward(self, x):
            return x @ self.v + torch.ones(8, WIDTH) @ self.w

    plan = wp.plan(Constant(), torch.zeros(8, WIDTH), strict=True, method="autoinit")
    assert plan.prescriptions["v"].action == "write"
    assert plan.prescriptions["w"].reason == (
        "at matmul#2 (matmul.default) it meets parameters and constants alone: no signal of the input reaches it there"
    )
    assert not plan.warnings


class Queries(nn.Module):
    """Learned queries that are projected before they meet the input, as in Perceiver and DETR."""

    def __init__(self):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(0)))
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        queries = self.query(self.latents).expand(len(x), -1, -1)
        return F.scaled_dot_product_attention(queries, self.key(x), self.value(x))


def test_the_weight_of_learned_queries_is_planned():
    graph = wp.trace(Queries(), torch.zeros(16, 12, WIDTH))
    plan = wp.plan(graph, method="autoinit")
    assert plan.prescriptions["query.weight"].action == "write"
    assert plan.prescriptions["latents"].action == "keep"
    assert not plan.warnings
    signals = wp.measure(graph, plan=plan, draws=24)
    assert signals["query"].second_moment == pytest.approx(1.0, rel=0.25)  # 24 draws of 8 x 32 elements
    assert wp.check(graph, plan=plan, draws=16).ok


def test_huge_weights_on_meta_are_not_computed():
    with torch.device("meta"):
        model = Made(lambda a, b: F.normalize(a, dim=0), shape=(WIDTH, 1 << 22))
    plan = wp.plan(model, torch.zeros(8, WIDTH, device="meta"), method="autoinit")
    assert "linalg_vector_norm" in plan.prescriptions["a"].reason
