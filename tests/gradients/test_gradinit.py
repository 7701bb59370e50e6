"""GradInit: its slopes against the step written out, its steps against Adam, and what the plan promises."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.gradients.nets import Skip, cross_entropy, pictures, same, state
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

import wellposed as wp
from wellposed.errors import GradientError, OptionError
from wellposed.gradients import GradInitSettings, gradinit
from wellposed.gradients.batches import Batch, sub_batches

ETA = 0.1


def after_step(model: nn.Module, omega: dict[str, Tensor], parts: list[Any], optimizer: str) -> tuple[Tensor, Tensor]:
    """The bounded norm, and the loss after one step (Algorithm 1), written out and differentiable by ``omega``."""
    scaled = {name: p.detach() * omega.get(name, 1.0) for name, p in model.named_parameters()}

    def loss(given: dict[str, Tensor], part: Any) -> Tensor:
        return F.cross_entropy(functional_call(model, given, (part[0],)), part[1])

    leaves = {name: p if p.requires_grad else p.requires_grad_() for name, p in scaled.items()}
    g = torch.autograd.grad(loss(leaves, parts[0]), list(leaves.values()), create_graph=True)
    flat = torch.cat([v.flatten() for v in g])
    norm = flat.norm() if optimizer == "sgd" else flat.abs().sum()
    step = [v if optimizer == "sgd" else v.sign() for v in g]
    moved = {name: p - ETA * s for (name, p), s in zip(leaves.items(), step, strict=True)}
    return norm, loss(moved, parts[1])


def reference(model: nn.Module, batch: Any, optimizer: str, gamma: float, iterations: int) -> dict[str, Any]:
    """Algorithm 1 with autograd through everything, and torch's Adam, one for each phase."""
    parts = sub_batches(Batch.of(batch), 2, 0.5)
    omega = {n: torch.ones((), dtype=torch.float64, requires_grad=True) for n, p in model.named_parameters() if p.any()}
    phases = [torch.optim.Adam(list(omega.values()), lr=0.01) for _ in range(2)]
    norms, losses = [], []
    for _ in range(iterations):
        norm, after = after_step(model, omega, parts, optimizer)
        inside = bool(norm <= gamma)
        phases[inside].zero_grad()
        (after / ETA if inside else norm).backward()
        for coefficient in omega.values():
            coefficient.grad.clamp_(-1.0, 1.0)
        phases[inside].step()
        with torch.no_grad():
            for coefficient in omega.values():
                coefficient.clamp_(min=0.01)
        norms.append(float(norm.detach()))
        losses += [float(after.detach())] * inside
    return {"omega": {n: float(o.detach()) for n, o in omega.items()}, "GN": norms, "step loss": losses}


@pytest.mark.parametrize(("optimizer", "gamma"), [("sgd", 0.3), ("sgd", 9.0), ("adam", 2.0), ("adam", 99.0)])
@pytest.mark.parametrize("engine", ["double_backward", "finite_difference"])
def test_iterations_are_those_of_the_algorithm_written_out(optimizer: Any, gamma: float, engine: Any) -> None:
    torch.manual_seed(0)
    model, batch = Skip(norm=True).double(), pictures(12)
    with torch.no_grad():
        model.stem.bias.zero_()
    model.train()
    before = state(model)
    plan = gradinit(model, cross_entropy, [batch], optimizer=optimizer, gamma=gamma, iterations=6, engine=engine)
    assert same(before, state(model))
    copy = Skip(norm=True).double()
    copy.load_state_dict(model.state_dict())
    expected = reference(copy, batch, optimizer, gamma, 6)
    phases = {"GN": 6, "step loss": len(expected["step loss"])}
    assert 0 <= phases["step loss"] <= 6
    # A finite difference of the gradient is off by about 1e-5, and Adam's steps depend on the slopes' signs at most.
    tolerance = 1e-9 if engine == "double_backward" else 1e-3
    assert plan.figures["omega"] == pytest.approx(expected["omega"], rel=tolerance)
    for name in phases:
        assert plan.figures["history"].get(name, []) == pytest.approx(expected[name], rel=tolerance)
    assert {"norm.weight", "branch.bias"} <= plan.figures["omega"].keys()
    assert not {"norm.bias", "stem.bias"} & plan.figures["omega"].keys()  # zero: no coefficient


@pytest.mark.slow
def test_loss_after_the_step_falls_and_the_model_has_it() -> None:
    torch.manual_seed(0)
    model, batch = Skip().double(), pictures(24)
    plan = gradinit(model, cross_entropy, [batch], iterations=60)
    losses = plan.figures["history"]["step loss"]
    assert losses[-1] < losses[0]
    plan.apply_(model)
    _, after = after_step(model, {}, sub_batches(Batch.of(batch), 2, 0.5), "sgd")
    assert float(after.detach()) < losses[0]
    once = state(model)
    plan.apply_(model)
    assert same(once, state(model))


@pytest.mark.slow
def test_norm_comes_down_to_its_bound() -> None:
    torch.manual_seed(0)
    model, batch = Skip().double(), pictures(24)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 6.0
    plan = gradinit(model, cross_entropy, [batch], gamma=1.0, iterations=120)
    norms = plan.figures["history"]["GN"]
    assert norms[0] > 3.0
    # Once inside, the objective may push out again by one iteration's move, 1 % of each coefficient.
    assert norms[-1] < 1.0 * 1.01 ** (2 * len(plan.figures["omega"]))


def test_batch_norm_takes_batches_and_nothing_is_dropped() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.norm, self.b = nn.Linear(147, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(F.dropout(F.gelu(self.norm(self.a(x.flatten(1)))), 0.5, self.training))

    torch.manual_seed(0)
    model, batch = Net().double(), pictures(12)
    model.norm.running_var.fill_(50.0)
    before = state(model)
    plan = gradinit(model, cross_entropy, [batch], iterations=1)
    assert same(before, state(model))
    part = sub_batches(Batch.of(batch), 2, 0.5)[0]
    with torch.no_grad():
        h = model.a(part[0].flatten(1))
        h = F.gelu((h - h.mean(0)) / (h.var(0, correction=0) + 1e-5).sqrt())
        expected = float(F.cross_entropy(model.b(h), part[1]))
    assert plan.figures["history"]["loss"] == pytest.approx([expected], rel=1e-9)
    for training in (True, False):
        other = gradinit(model, cross_entropy, [batch], iterations=1, training=training)
        assert other.figures["history"]["loss"] != pytest.approx([expected], rel=1e-3)


def test_resumed_run_ends_where_an_unbroken_one_does() -> None:
    torch.manual_seed(0)
    model = Skip()
    batches = [pictures(12, torch.float32, seed) for seed in range(3)]
    whole = gradinit(model, cross_entropy, batches, iterations=7, gamma=0.5)
    part = gradinit(model, cross_entropy, batches, iterations=4, gamma=0.5)
    part = wp.Plan.model_validate_json(part.to_json())
    resumed = gradinit(model, cross_entropy, batches, iterations=7, gamma=0.5, resume=part)
    assert resumed.figures == whole.figures
    assert resumed.prescriptions == whole.prescriptions


def test_planned_half_precision_attention_and_autocast() -> None:
    def autocast(model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return cross_entropy(model, batch)

    torch.manual_seed(0)
    model, batch = Skip(), pictures(12, torch.float32)
    base = wp.plan(model, batch[0], method="kaiming", seed=3)
    plan = gradinit(model, autocast, [batch], plan=base, iterations=3)
    assert plan.method == "kaiming+gradinit"
    plan.apply_(model)
    drawn, omega = wp.plans.draw(base), plan.figures["omega"]
    assert torch.allclose(model.stem.weight, drawn["stem.weight"] * omega["stem.weight"])
    half = Skip().bfloat16()
    gradinit(half, cross_entropy, [(batch[0].bfloat16(), batch[1])], iterations=3).apply_(half)
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    plan = gradinit(encoder, lambda m, b: m(b).square().mean() + m(b).mean(), [torch.randn(6, 5, 8)], iterations=2)
    assert plan.figures["finished"]


def test_checkpoints_run_again_at_the_weights_before_the_step() -> None:
    class Checkpointed(Skip):
        def forward(self, x: Tensor) -> Tensor:
            h = checkpoint(lambda v: F.gelu(self.stem(v)), x, use_reentrant=False)
            return self.readout((h + F.gelu(self.branch(h))).mean((2, 3)))

    torch.manual_seed(0)
    plain, other = Skip().double(), Checkpointed().double()
    other.load_state_dict(plain.state_dict())
    plans = [
        gradinit(m, cross_entropy, [pictures(8)], iterations=5, gamma=1e3, eta=0.5, clip=1e6) for m in (plain, other)
    ]
    assert plans[0].figures["omega"] == pytest.approx(plans[1].figures["omega"], rel=1e-8)


def test_interruption_leaves_the_best_so_far() -> None:
    torch.manual_seed(0)
    model, batch, calls = Skip(), pictures(12, torch.float32), []

    def interrupted(model: nn.Module, batch: Any) -> Tensor:
        calls.append(None)
        if len(calls) == 9:  # two for the score before, two in each iteration
            raise KeyboardInterrupt
        return cross_entropy(model, batch)

    before = state(model)
    with pytest.warns(UserWarning, match="gradinit was interrupted after 3 of 50 iterations"):
        plan = gradinit(model, interrupted, [batch], iterations=50)
    assert same(before, state(model))
    assert plan.figures["finished"] is False


def test_bad_input_is_refused() -> None:
    torch.manual_seed(0)
    model, batch = Skip(), pictures(12, torch.float32)
    with pytest.raises(OptionError, match="unknown optimizer 'adamw'; did you mean 'adam'"):
        gradinit(model, cross_entropy, [batch], optimizer="adamw")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="unknown engine"):
        gradinit(model, cross_entropy, [batch], engine="double")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="training must be"):
        gradinit(model, cross_entropy, [batch], training="norm")  # type: ignore[arg-type]
    for name, wrong in (("gamma", 0.0), ("eta", -1.0), ("rate", 0.0), ("clip", 0.0), ("iterations", 0)):
        with pytest.raises(OptionError, match=f"{name} must be"):
            gradinit(model, cross_entropy, [batch], **{name: wrong})
    before = state(model)
    with pytest.raises(GradientError, match=r"after one step of sgd at eta=1e\+30: the loss of a batch is"):
        gradinit(model, cross_entropy, [batch], eta=1e30, gamma=9.0)
    assert same(before, state(model))


def test_settings_are_an_object_or_fields() -> None:
    batch = pictures(8, torch.float32)

    def refined(**options: Any) -> wp.Plan:
        torch.manual_seed(0)
        return gradinit(Skip(), cross_entropy, [batch], iterations=2, progress=False, **options)

    chosen = GradInitSettings(rate=0.1, overlap=0.25)
    assert refined(settings=chosen) == refined(rate=0.1, overlap=0.25)
    assert refined(settings=chosen, rate=0.2).options["rate"] == 0.2
    with pytest.raises(TypeError, match=r"GradInitSettings.* unexpected keyword argument 'clipp'"):
        refined(clipp=1.0)
