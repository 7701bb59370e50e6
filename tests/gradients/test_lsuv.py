"""LSUV: unit variances on the model itself, the published algorithm written out, and one pass on drawn inputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.gradients.nets import cross_entropy, pictures, same, state
from torch import Tensor, nn

import wellposed as wp
from wellposed.errors import GradientError, InputError, OptionError
from wellposed.gradients import gradcosine, lsuv
from wellposed.gradients.scaling_pass import ScalingRule
from wellposed.plans import draw

TOLERANCE = inspect.signature(lsuv).parameters["tolerance"].default
"""What the function promises of a variance."""


class Everything(nn.Module):
    """Contractions of many kinds, each of whose products (before its bias) `products` returns."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.grouped = nn.Conv2d(8, 8, 3, groups=2)
        self.up = nn.ConvTranspose2d(8, 6, 2, stride=2)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(6, 12))
        self.attention = nn.MultiheadAttention(12, 3, batch_first=True)
        self.matrix = nn.Parameter(torch.randn(12, 10))
        self.tensor = nn.Parameter(torch.randn(2, 5, 7))
        self.readout = nn.Linear(7, 4)
        self.found: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.norm(self.stem(x)))
        x = F.gelu(self.up(F.gelu(self.grouped(x))))
        x = F.dropout(self.normed(x.flatten(2).transpose(1, 2)), 0.2, self.training)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = F.gelu(x @ self.matrix).unflatten(-1, (2, 5))
        return self.readout(F.gelu(torch.einsum("nthd,hde->nte", x, self.tensor)).mean(1))


def products(model: nn.Module, run: Callable[[], Any], training: bool = True) -> dict[str, Tensor]:
    """What every contraction makes before its bias, seen at the functions that the model calls."""
    from torch.utils._python_dispatch import TorchDispatchMode

    aten, found = torch.ops.aten, {}
    biased = {aten.convolution.default: 2, aten.addmm.default: 0}

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            if func in (aten.convolution.default, aten.addmm.default, aten.mm.default, aten.bmm.default):
                own = out
                if func in biased and args[biased[func]] is not None:
                    bias = args[biased[func]]
                    own = out - (bias if func is aten.addmm.default else bias[:, None, None])
                found[f"{len(found)} {func}"] = own
            return out

    model.train(training)
    with torch.no_grad(), Watch():
        run()
    return found


def test_every_product_has_unit_variance_on_the_model_itself() -> None:
    torch.manual_seed(0)
    model, (x, y) = Everything().double(), pictures(16)
    before = state(model)
    plan = lsuv(model, cross_entropy, [(x, y)], seed=3)
    assert same(before, state(model))
    assert wp.Plan.model_validate_json(plan.to_json()) == plan
    assert plan.method == "orthogonal+lsuv"
    plan.apply_(model)
    once = state(model)
    plan.apply_(model)
    assert same(once, state(model))
    agreement = gradcosine(model, cross_entropy, (x, y), seed=3)
    assert agreement.norm == pytest.approx(plan.figures["after"]["norm"], rel=1e-4)
    torch.manual_seed(3)
    found = products(model, lambda: model(x))
    variances = [float(v.var(correction=0)) for v in found.values()]
    # to the float32 of the draw; attention may show two more products, of signals, which have no weight
    assert sum(abs(v - 1.0) < 1e-5 for v in variances) == 9
    assert len(variances) in (9, 11)
    assert len(plan.figures["moments"]["after"]) == 9
    assert all(abs(v - 1.0) < 1e-5 for v in plan.figures["moments"]["after"].values())


def test_weights_are_those_of_the_published_algorithm() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 12, 3), nn.Tanh(), nn.Flatten(), nn.Linear(108, 16), nn.ReLU(),
        nn.Linear(16, 4),
    ).double()  # fmt: skip
    batch = pictures(16)
    plan = lsuv(model, cross_entropy, [batch])
    # Algorithm 1 with hooks and a pass of the model for every attempt, from the plan's own orthogonal matrices.
    reference = wp.Plan(**{**dict(plan), "prescriptions": dict(plan.prescriptions)})
    reference.apply_(model)
    layers = [m for m in model if isinstance(m, nn.Conv2d | nn.Linear)]
    with torch.no_grad():
        for layer in layers:
            layer.weight *= 0.3 + torch.rand(())  # whatever their scale was
            assert not layer.bias.any()
        for layer in layers:
            seen: list[float] = []
            handle = layer.register_forward_hook(lambda m, i, o, seen=seen: seen.append(float(o.var(correction=0))))
            model(batch[0])
            while abs(seen[-1] - 1.0) >= 1e-9:
                layer.weight /= seen[-1] ** 0.5
                model(batch[0])
            handle.remove()
    expected = state(model)
    plan.apply_(model)
    for name, value in state(model).items():
        if name.endswith("weight"):
            assert torch.allclose(value, expected[name], rtol=1e-5)


def test_start_is_orthogonal_within_groups_and_fused_projections() -> None:
    torch.manual_seed(0)
    model, batch = Everything(), pictures(16, torch.float32)
    lsuv(model, cross_entropy, [batch]).apply_(model)
    q, k, v = model.attention.in_proj_weight.chunk(3)
    matrices = [model.stem.weight.flatten(1), *model.grouped.weight.flatten(1).chunk(2), q, k, v, model.matrix.T]
    for matrix in matrices:
        gram = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
        assert torch.allclose(gram / gram[0, 0], torch.eye(len(gram)), atol=1e-5)


def test_bias_neither_counts_nor_moves() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double(), torch.randn(64, 5).double()
    with torch.no_grad():
        model[0].bias.normal_(0.0, 10.0)
    plan = lsuv(model, None, [x], orthogonal=False)
    bias = model[0].bias.detach().clone()
    plan.apply_(model)
    assert torch.equal(bias, model[0].bias)
    weights = [layer.weight.detach() for layer in (model[0], model[2])]
    h = x @ weights[0].T
    assert float(h.var(correction=0)) == pytest.approx(1.0, rel=1e-9)
    h = torch.tanh(h + bias) @ weights[1].T
    assert float(h.var(correction=0)) == pytest.approx(1.0, rel=1e-9)
    assert plan.prescriptions["0.weight"].distribution == "rescale"


def test_biases_that_centre_follow_their_weight() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.ReLU(), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
    x = torch.randn(64, 16)
    plan = lsuv(model, None, [3.0 * x], plan=wp.plan(model, x, center=True, method="autoinit"))
    assert plan.prescriptions["1.bias"].distribution == "centering"
    assert plan.figures["omega"]["1.weight"] < 0.5
    plan.apply_(model)
    with torch.no_grad():
        h = torch.relu(3.0 * x) @ model[1].weight.T
        assert float(h.var(correction=0)) == pytest.approx(1.0, rel=1e-4)
        h = torch.relu(h + model[1].bias) @ model[3].weight.T
        assert float(h.var(correction=0)) == pytest.approx(1.0, rel=TOLERANCE)


def test_tied_tables_shared_layers_and_frozen_weights() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(11, 8)
            self.shared = nn.Linear(8, 8, bias=False)
            self.frozen = nn.Linear(8, 8).requires_grad_(False)
            self.scores = nn.Linear(8, 11, bias=False)
            self.scores.weight = self.table.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.scores(self.frozen(self.shared(torch.tanh(self.shared(self.table(ids))))))

    torch.manual_seed(0)
    model, ids = Tied(), torch.randint(0, 11, (8, 6))
    plan = lsuv(model, None, [ids])
    assert plan.figures["omega"].keys() == {"shared.weight"}
    assert plan.prescriptions["table.weight"].action == "keep"
    assert plan.prescriptions["scores.weight"].action == "tied"
    plan.apply_(model)
    first = model.shared(model.table(ids))
    assert float(first.var(correction=0).detach()) == pytest.approx(1.0, rel=1e-5)
    described = lsuv(model, example=ids)
    assert described.figures["statistic"] == "second moment"


def test_later_uses_of_a_weight_see_its_scale() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.matrix, self.last = nn.Parameter(torch.randn(6, 6)), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(3):
                x = torch.tanh(x @ self.matrix.T)
            return self.last(x)

    torch.manual_seed(0)
    model, x = Shared().double(), 5.0 * torch.randn(32, 6).double()
    lsuv(model, None, [x], tolerance=1e-9).apply_(model)
    with torch.no_grad():
        assert float((x @ model.matrix.T).var(correction=0)) == pytest.approx(1.0, rel=1e-5)
        assert float((model(x) - model.last.bias).var(correction=0)) == pytest.approx(1.0, rel=1e-5)


@pytest.mark.slow
def test_one_pass_after_an_analytic_plan_removes_the_fluctuation_of_a_draw() -> None:
    # A narrow, deep ReLU net: the second moment behind it varies by several octaves over draws of the same plan.
    depth, width = 40, 24
    layers = [m for _ in range(depth) for m in (nn.Linear(width, width), nn.ReLU())]
    model, x = nn.Sequential(*layers[:-1]), torch.randn(512, width)
    spread: dict[str, list[float]] = {"autoinit": [], "lsuv": []}
    for seed in range(8):
        base = wp.plan(model, x, seed=seed, method="autoinit")
        refined = lsuv(model, example=x, plan=base, seed=seed)
        assert refined.method == "autoinit+lsuv"
        for name, plan in (("autoinit", base), ("lsuv", refined)):
            plan.apply_(model)
            with torch.no_grad():
                spread[name].append(float(model(x).square().mean().log2()))
    before, after = (torch.tensor(spread[name]).std() for name in spread)
    assert float(before) > 1.0
    assert float(after) < 0.25 * float(before)


@pytest.mark.slow
def test_targets_are_those_of_the_plan_on_drawn_inputs() -> None:
    torch.manual_seed(0)
    model, (x, _) = Everything(), pictures(8, torch.float32)
    base = wp.plan(model, x, target_variance=2.5, seed=1, method="autoinit")
    plan = lsuv(model, example=x, plan=base, inputs=wp.Input.white(mean=0.3, var=4.0))
    assert all(abs(v / 2.5 - 1.0) < 0.01 for v in plan.figures["moments"]["after"].values())
    scale = plan.prescriptions["matrix"].std / base.prescriptions["matrix"].std
    assert scale == pytest.approx(plan.figures["omega"]["matrix"])
    drawn = draw(plan, current=dict(model.named_parameters()))
    assert float(drawn["matrix"].std()) == pytest.approx(
        scale * float(draw(base, current=dict(model.named_parameters()))["matrix"].std())
    )


def test_batches_of_the_models_own_arguments_and_modes() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(5, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor, scale: Tensor) -> Tensor:
            return self.b(F.dropout(torch.tanh(self.a(x * scale)), 0.5, self.training))

    torch.manual_seed(0)
    model, x, scale = Net(), torch.randn(32, 5), torch.tensor(3.0)
    plans = [lsuv(model, None, [batch]) for batch in ((x, scale), {"x": x, "scale": scale})]
    assert plans[0] == plans[1]
    still = lsuv(model, None, [(x, scale)], training=False)
    still.apply_(model)
    model.eval()
    assert float(model(x, scale).sub(model.b.bias).var(correction=0).detach()) == pytest.approx(1.0, rel=1e-5)
    assert still.figures["omega"]["b.weight"] > plans[0].figures["omega"]["b.weight"]  # dropout adds variance


@pytest.mark.slow
def test_half_precision_autocast_and_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    def autocast(model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return cross_entropy(model, batch)

    torch.manual_seed(0)
    model, batch = Everything(), pictures(8, torch.float32)
    assert lsuv(model, autocast, [batch]).figures["finished"]
    half = Everything().bfloat16()
    plan = lsuv(half, cross_entropy, [(batch[0].bfloat16(), batch[1])], tolerance=0.02)
    assert all(abs(v - 1.0) < 0.02 for v in plan.figures["moments"]["after"].values())
    plan.apply_(half)

    before, calls = state(model), []
    original = ScalingRule.of

    def interrupted(self: Any, output: Tensor) -> float:
        calls.append(None)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return original(self, output)

    monkeypatch.setattr(ScalingRule, "of", interrupted)
    with pytest.warns(UserWarning, match="interrupted after 2 weights"):
        plan = lsuv(model, cross_entropy, [batch])
    assert plan.figures["finished"] is False
    assert same(before, state(model))


def test_silent_outputs_are_noted_and_bad_ones_named() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2)), torch.randn(8, 5)
    plan = lsuv(model, None, [torch.zeros(8, 5)])
    assert len(plan.warnings) == 2
    assert "0: the output of '0.weight' has no variance on a batch" in plan.warnings[0]
    before = state(model)
    x[3, 2] = float("nan")
    with pytest.raises(GradientError, match=r"0: the output of '0\.weight' is not finite on a batch"):
        lsuv(model, None, [x])
    with pytest.raises(InputError, match="needs batches, or example="):
        lsuv(model)
    with pytest.raises(GradientError, match="holds no batch"):
        lsuv(model, None, [])
    with pytest.raises(OptionError, match="tolerance must be"):
        lsuv(model, example=x, tolerance=0.0)
    assert same(before, state(model))
