"""NIO and GradInit in the form of their authors' code, written out again with plain autograd."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.gradients.nets import Skip, cross_entropy, pictures, same, state
from torch import Tensor, nn

from wellposed.errors import GradientError, OptionError
from wellposed.gradients import gradinit, nio
from wellposed.gradients.published_nio import spans


def written_out(model: Skip, batches: list[Any], gamma: float, weight: float, count: int, overlap: float) -> Any:
    """Return the coefficients by name and the mean norms, iteration by iteration: one loop, no closed forms."""
    base = {name: p.detach().clone() for name, p in model.named_parameters()}
    counted = [name for name in base if "norm" not in name]
    omega = dict.fromkeys(base, 1.0)
    first: dict[tuple[bool, str], float] = {}
    second, steps, sizes = dict.fromkeys(base, 0.0), {True: 0, False: 0}, []
    for x, y in batches:
        copy = Skip(norm=True).double().eval()
        copy.load_state_dict(model.state_dict() | {name: omega[name] * value for name, value in base.items()})
        copy.norm.train()
        parameters = dict(copy.named_parameters())
        each = F.cross_entropy(copy(x), y, reduction="none")
        gradients = []
        for start, stop in spans(len(x), count, overlap):
            parts = torch.autograd.grad(each[start:stop].mean(), [parameters[n] for n in counted], create_graph=True)
            gradients.append(torch.cat([part.flatten() for part in parts]))
        norms = torch.stack([g.norm() for g in gradients])
        pairs = [
            F.cosine_similarity(a, b, dim=0) for i, a in enumerate(gradients) for j, b in enumerate(gradients) if i != j
        ]
        sizes.append(float(norms.mean().detach()))
        within = sizes[-1] <= gamma
        goal = -weight * torch.stack(pairs).mean() - norms.sum() if within else norms.mean()
        steps[within] += 1
        for name, slope in zip(base, torch.autograd.grad(goal, list(parameters.values())), strict=True):
            g = max(-1.0, min(1.0, float((slope * base[name]).sum())))
            first[within, name] = 0.9 * first.get((within, name), 0.0) + 0.1 * g
            second[name] = 0.999 * second[name] + 0.001 * g**2
            scale = (second[name] / (1 - 0.999 ** sum(steps.values()))) ** 0.5 + 1e-8
            moved = omega[name] - 0.05 * first[within, name] / (1 - 0.9 ** steps[within]) / scale
            omega[name] = max(moved, 0.0 if name.endswith("bias") else 0.01)
    return omega, sizes


@pytest.mark.parametrize("gamma", [0.5, 1.9, 50.0], ids=["outside", "both", "inside"])
def test_nio_as_published_is_its_loop_written_out(gamma: float) -> None:
    torch.manual_seed(0)
    model = Skip(norm=True).double()
    with torch.no_grad():
        model.norm.bias.normal_()
    batches = [pictures(14, seed=seed) for seed in range(6)]
    expected, sizes = written_out(model, batches, gamma, 1.7, 4, 0.2)
    before = state(model)
    plan = nio(model, cross_entropy, batches, form="published", gamma=gamma, agreement=1.7, sub_batches=4, iterations=6)
    assert same(before, state(model))
    assert plan.figures["omega"] == pytest.approx(expected, rel=1e-6)
    assert plan.figures["history"]["GN"] == pytest.approx(sizes, rel=1e-9)
    if gamma == 1.9:
        assert min(sizes) <= gamma < max(sizes)


def test_published_nio_goes_on_where_it_was() -> None:
    model = Skip(norm=True)
    batches = [pictures(12, torch.float32, seed) for seed in range(4)]
    whole = nio(model, cross_entropy, batches, form="published", iterations=4, gamma=1.0)
    half = nio(model, cross_entropy, batches, form="published", iterations=2, gamma=1.0)
    resumed = nio(model, cross_entropy, batches, form="published", iterations=4, gamma=1.0, resume=half)
    assert resumed.figures["omega"] == whole.figures["omega"]


def test_published_nio_sees_a_batch_norm_of_the_whole_batch() -> None:
    seen: list[int] = []

    class Watched(nn.BatchNorm2d):
        def forward(self, x: Tensor) -> Tensor:
            assert self.training
            seen.append(len(x))
            return super().forward(x)

    model = Skip()
    model.norm = Watched(6)
    nio(model, cross_entropy, [pictures(12, torch.float32)], form="published", iterations=3)
    assert seen.count(12) == 3  # sub-batches alone are met before and after, where the plan is scored


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (lambda model, batch: F.cross_entropy(model.readout(model.stem(batch[0]).mean((2, 3))), batch[1]), "0 time"),
        (lambda model, batch: cross_entropy(model, batch) + model(batch[0]).mean(), "2 time"),
    ],
)
def test_published_nio_says_what_form_a_loss_has_to_have(loss: Any, told: str) -> None:
    with pytest.raises(GradientError, match=told):
        nio(Skip(), loss, [pictures(8, torch.float32)], form="published", iterations=1)


def test_losses_may_read_the_model_beside_calling_it() -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        return cross_entropy(model, batch) + 0.1 * sum(p.square().sum() for p in model.parameters())

    plan = nio(Skip(), loss, [pictures(8, torch.float32)], form="published", iterations=2)
    assert all(value != 1.0 for value in plan.figures["omega"].values())


def test_sub_batches_overlap_as_published() -> None:
    assert spans(128, 4, 0.0) == [(0, 32), (32, 64), (64, 96), (96, 128)]
    assert spans(100, 3, 0.2) == [(0, 39), (26, 79), (52, 100)]
    for count in (1, 7):
        with pytest.raises(GradientError, match="cannot be split"):
            spans(6, count, 0.0)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_gradinit_as_published_takes_a_constant_step_of_unit_length(optimizer: Any) -> None:
    torch.manual_seed(0)
    model = Skip().double()
    batch = pictures(8)
    base = {name: p.detach().clone() for name, p in model.named_parameters()}
    halves = [tuple(rows[:6] for rows in batch), tuple(rows[2:] for rows in batch)]  # half of their samples are shared
    gradients = torch.autograd.grad(cross_entropy(model, halves[0]), list(model.parameters()))
    norm = torch.cat([g.flatten() for g in gradients]).norm()
    moved = Skip().double()
    steps = [g / norm if optimizer == "sgd" else g.sign() for g in gradients]
    moved.load_state_dict({n: v - 0.1 * s for (n, v), s in zip(base.items(), steps, strict=True)})
    after = cross_entropy(moved, halves[1])
    slopes = torch.autograd.grad(after, list(moved.parameters()))
    expected = {
        name: 1.0 - 0.01 * float(torch.sign((slope * base[name]).sum()))  # Adam's first step is a sign
        for name, slope in zip(base, slopes, strict=True)
    }
    plan = gradinit(model, cross_entropy, [batch], optimizer=optimizer, gamma=1e3, iterations=1, form="published")
    assert plan.figures["omega"] == pytest.approx(expected, abs=1e-6)
    assert plan.figures["history"]["step loss"] == pytest.approx([float(after.detach())])


def test_an_unknown_form_is_refused_by_name() -> None:
    for refine in (nio, gradinit):
        with pytest.raises(OptionError, match="publisht"):
            refine(Skip(), cross_entropy, [pictures(8, torch.float32)], form="publisht")


def test_a_weight_on_gradcosine_raises_it_further() -> None:
    torch.manual_seed(0)
    model, batches = Skip().double(), [pictures(8)]
    how: Any = {"gamma": 1e3, "sub_batches": 4, "iterations": 5, "step": 1e-4}  # short steps: uphill to first order
    without, weighed = (nio(model, cross_entropy, batches, agreement=a, **how).figures for a in (0.0, 100.0))
    assert weighed["after"]["cosine"] > max(without["after"]["cosine"], weighed["before"]["cosine"])
