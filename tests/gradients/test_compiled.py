"""Modules that torch.jit compiled: planned like others, refused by name where their parameters cannot be put back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import wellposed as wp
from wellposed.errors import GradientError, RateError
from wellposed.gradients import gradcosine, gradient_norm, gradinit, lsuv, metainit, nio
from wellposed.rates import find_max_lr

X, LABELS = torch.randn(6, 10), torch.tensor([0, 1, 2, 3, 0, 1])
BATCH = (X, LABELS)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")


def plain() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 7), nn.Tanh(), nn.Linear(7, 4))


MADE: dict[str, Callable[[], nn.Module]] = {
    "scripted": lambda: torch.jit.script(plain()),
    "traced": lambda: torch.jit.trace(plain(), X),
    "scripted inside": lambda: nn.Sequential(torch.jit.script(plain())),
    "traced inside": lambda: nn.Sequential(torch.jit.trace(plain(), X)),
}


def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


USES: dict[str, Callable[[nn.Module], object]] = {
    "gradcosine": lambda model: gradcosine(model, loss_fn, BATCH),
    "gradient_norm": lambda model: gradient_norm(model, loss_fn, [BATCH]),
    "nio": lambda model: nio(model, loss_fn, [BATCH]),
    "gradinit": lambda model: gradinit(model, loss_fn, [BATCH]),
    "metainit": lambda model: metainit(model, loss_fn, [BATCH]),
    "lsuv": lambda model: lsuv(model, loss_fn, [BATCH]),
}


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("use", USES)
def test_gradient_functions_refuse_them_and_leave_them_alone(made, use):
    model = MADE[made]()
    before = {name: (type(p), p.data_ptr(), p.detach().clone()) for name, p in model.named_parameters()}
    with pytest.raises(GradientError, match=r"compiled by torch\.jit.*as it was before torch\.jit\.script"):
        USES[use](model)
    now = {name: (type(p), p.data_ptr()) for name, p in model.named_parameters()}
    assert now == {name: held[:2] for name, held in before.items()}
    assert all(torch.equal(p, before[name][2]) for name, p in model.named_parameters())


@pytest.mark.parametrize("made", MADE)
def test_they_are_planned_as_what_they_were_made_of(made):
    plan, whole = wp.plan(MADE[made](), X), wp.plan(plain(), X)
    assert [said.std for said in plan.prescriptions.values()] == [said.std for said in whole.prescriptions.values()]


@pytest.mark.parametrize("made", MADE)
def test_they_are_not_trained(made):
    with pytest.raises(RateError, match=r"compiled by torch\.jit.*as it was before torch\.jit\.script"):
        find_max_lr(lambda: MADE[made](), loss_fn, [BATCH], steps=1, seeds=1)


def test_frozen_ones_have_no_mode_and_no_parameters_of_their_own():
    frozen = torch.jit.freeze(torch.jit.script(plain().eval()))
    plan = wp.plan(nn.Sequential(frozen, nn.Linear(4, 2)), X)
    assert list(plan.prescriptions) == ["1.weight", "1.bias"]


@pytest.fixture
def exported() -> nn.Module:
    return torch.export.export(plain(), (X,), dynamic_shapes=({0: torch.export.Dim("batch")},)).module()


@pytest.mark.slow
@pytest.mark.parametrize("inside", [False, True])
def test_exported_programs_keep_their_one_mode(exported, inside):
    model = nn.Sequential(exported) if inside else exported
    train, modes = exported.train, [module.training for module in model.modules()]
    planned, whole = wp.plan(model, X), wp.plan(plain(), X)
    assert [said.std for said in planned.prescriptions.values()] == [s.std for s in whole.prescriptions.values()]
    found, expected = (gradcosine(net, loss_fn, BATCH).cosine for net in (model, plain()))
    assert found == pytest.approx(expected, rel=1e-4)
    assert exported.train == train
    assert [module.training for module in model.modules()] == modes
