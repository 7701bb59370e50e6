"""Method `mup`: readouts by width, queries that carry the division of their scores, and what is warned of."""

import math

import pytest
import torch
from torch import nn

import wellposed as wp
from wellposed.errors import OptionError


def mlp(width, bias=True):
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4, bias))


class Attention(nn.Module):
    def __init__(self, width=32, heads=2, fused=False):
        super().__init__()
        self.heads, self.fused = heads, fused
        self.read = nn.Linear(6, width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.qkv = nn.Linear(width, 3 * width)
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        x = self.read(x)
        parts = self.qkv(x).chunk(3, -1) if self.fused else (self.q(x), self.k(x), self.v(x))
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(-2, -3) for t in parts)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(-2, -3).flatten(-2)
        return self.head(mixed)


class Backbone(nn.Module):
    """Its output is the residual stream."""

    def __init__(self, width=16):
        super().__init__()
        self.read, self.hidden = nn.Linear(6, width), nn.Linear(width, width)

    def forward(self, x):
        x = self.read(x)
        return x + self.hidden(x.relu())


@pytest.mark.parametrize("scheme", ["autoinit", "lecun", "kaiming"])
def test_readouts_over_their_width_and_the_rest_as_the_scheme_says(scheme):
    model, x = mlp(48), torch.randn(8, 6)
    ours = wp.plan(model, x, method="mup", scheme=scheme).prescriptions
    narrow = wp.plan(model, x, method="mup", scheme=scheme, base_width=12).prescriptions
    theirs = wp.plan(model, x, method=scheme).prescriptions
    assert ours["4.weight"].std == pytest.approx(theirs["4.weight"].std * math.sqrt(128 / 48), rel=1e-12)
    assert narrow["4.weight"].std == pytest.approx(theirs["4.weight"].std * math.sqrt(12 / 48), rel=1e-12)
    assert "Table 3" in ours["4.weight"].reason
    for name in ("0.weight", "2.weight", "0.bias", "4.bias"):
        assert ours[name] == theirs[name]


@pytest.mark.slow
def test_logits_vanish_with_the_width_and_hidden_signals_do_not():
    """Root mean squares of real passes: 1/√width for the logits, the same at every width for hidden ones."""
    x = torch.randn(256, 6)
    sizes = {}
    for width in (64, 1024):
        logits, hidden = [], []
        for seed in range(8):
            model = mlp(width, bias=False)
            wp.initialize_(model, x, method="mup", seed=seed)
            with torch.no_grad():
                hidden.append(model[:3](x).square().mean().log())
                logits.append(model(x).square().mean().log())
        sizes[width] = torch.stack(hidden), torch.stack(logits)
    for index, expected in ((0, 0.0), (1, -math.log(16))):
        small, large = sizes[64][index], sizes[1024][index]
        error = math.sqrt(float(small.var() + large.var()) / 8)
        assert abs(float(large.mean() - small.mean()) - expected) < 4 * error


def test_at_its_base_width_a_model_is_drawn_and_trained_as_by_the_scheme():
    model, x = mlp(48), torch.randn(8, 6)
    plan = wp.plan(model, x, method="mup", base_width=48)
    scheme = wp.plan(model, x, method="autoinit").prescriptions
    assert all(plan.prescriptions[name].how == scheme[name].how for name in scheme)
    for kind in ("sgd", "adam", "adamw", "muon"):
        others = ("adam", 1.0) if kind == "muon" else None
        assert {group["lr"] for group in plan.param_groups(model, 1.0, kind, others=others)} == {1.0}


def test_plans_from_before_readouts_had_a_base_keep_their_rates():
    model, x = mlp(64), torch.randn(8, 6)
    plan = wp.plan(model, x, method="mup", base_width=32)
    old = plan.model_copy(update={"options": {k: v for k, v in plan.options.items() if k != "base_width"}})
    rates = [{n: g["lr"] for g in p.param_groups(model, 1.0, "adam") for n in g["param_names"]} for p in (plan, old)]
    assert rates[0]["2.weight"] == 32 / 64
    assert rates[1]["2.weight"] == 128 / 64


def test_readouts_are_zero_where_asked():
    said = wp.plan(mlp(16), torch.randn(8, 6), method="mup", readout="zero").prescriptions["4.weight"]
    assert (said.distribution, said.constant) == ("constant", 0.0)


def test_queries_carry_the_division_of_their_scores():
    """With heads of size d, scores are as if divided by d/√head_dim: on real passes, in double precision."""
    model, x = Attention().double(), torch.randn(2, 5, 6, dtype=torch.float64)
    plain = wp.plan(model, x, method="mup")
    carried = wp.plan(model, x, method="mup", head_dim=4)
    factor = math.sqrt(4 / 16)
    assert carried.prescriptions["q.weight"].std == pytest.approx(factor * plain.prescriptions["q.weight"].std)
    assert carried.prescriptions["q.bias"].absorbed == carried.prescriptions["q.weight"].absorbed == factor
    assert carried.prescriptions["k.weight"] == plain.prescriptions["k.weight"]
    lrs = {
        kind: {name: group["lr"] for group in carried.param_groups(model, 1.0, kind) for name in group["param_names"]}
        for kind in ("sgd", "adam")
    }
    assert lrs["adam"]["q.weight"] == pytest.approx(factor * lrs["adam"]["k.weight"])
    assert lrs["sgd"]["q.weight"] == pytest.approx(factor**2 * lrs["sgd"]["k.weight"])


@pytest.mark.parametrize(("kind", "optimizer"), [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam)])
def test_carrying_it_is_the_same_as_dividing(kind, optimizer):
    """Yang & Hu 2021's symmetry: a factor in the forward pass, or in the parameter and its rate, trains alike."""

    class Divided(Attention):
        def forward(self, x):
            x = self.read(x)
            parts = (self.q(x) * math.sqrt(4 / 16), self.k(x), self.v(x))
            q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(-2, -3) for t in parts)
            mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(-2, -3).flatten(-2)
            return self.head(mixed)

    x, y = torch.randn(4, 5, 6, dtype=torch.float64), torch.randn(4, 5, 4, dtype=torch.float64)
    outputs = []
    for model, head_dim in ((Attention().double(), 4), (Divided().double(), None)):
        # float64 draws differ in rounding only: both are drawn in float32, so the factor is applied to one of them
        plan = wp.plan(Attention(), x.float(), method="mup", head_dim=head_dim, skip=["qkv*"])
        plan.apply_(model, skip=["qkv*"])
        if head_dim is not None:
            base = wp.plan(Attention(), x.float(), method="mup", skip=["qkv*"])
            base.apply_(model, skip=["qkv*"])
            with torch.no_grad():
                model.q.weight.mul_(math.sqrt(4 / 16))
        steps = optimizer(plan.param_groups(model, 0.05, kind), **({"eps": 1e-30} if kind == "adam" else {}))
        for _ in range(4):
            steps.zero_grad()
            (model(x) - y).square().mean().backward()
            for parameter in model.parameters():
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            steps.step()
        outputs.append(model(x).detach())
    torch.testing.assert_close(*outputs, rtol=1e-9, atol=1e-12)


def test_heads_and_missing_readouts_are_warned_of():
    x = torch.randn(2, 5, 6)
    assert wp.plan(mlp(16), torch.randn(8, 6), method="mup").warnings == ()
    apart = {"method": "mup", "skip": "qkv.*"}
    (said,) = wp.plan(Attention(), x, **apart).warnings
    assert "heads of size 16" in said
    assert wp.plan(Attention(), x, head_dim=16, **apart).warnings == ()
    (said,) = wp.plan(Attention(fused=True), x, method="mup", head_dim=8, skip=["q.*", "k.*", "v.*"]).warnings
    assert "fused" in said
    (said,) = wp.plan(Backbone(), torch.randn(8, 6), method="mup").warnings
    assert "no readout" in said
    plan = wp.plan(mlp(16), torch.randn(8, 6), method="mup", scheme="default")
    assert any("'4.weight' is left as it is" in said for said in plan.warnings)


def test_options_reach_the_scheme_and_wrong_ones_are_refused():
    model, x = mlp(16), torch.randn(8, 6)
    plan = wp.plan(model, x, method="mup", scheme="kaiming", scheme_options={"distribution": "uniform"})
    assert plan.prescriptions["2.weight"].distribution == "uniform"
    with pytest.raises(OptionError, match="did you mean 'distribution'"):
        wp.plan(model, x, method="mup", scheme="kaiming", scheme_options={"distributoin": "uniform"})
    with pytest.raises(OptionError, match="'mup' itself"):
        wp.plan(model, x, method="mup", scheme="mup")
    with pytest.raises(OptionError, match="unknown readout"):
        wp.plan(model, x, method="mup", readout="one")
    with pytest.raises(OptionError, match="head_dim"):
        wp.plan(model, x, method="mup", head_dim=0)
