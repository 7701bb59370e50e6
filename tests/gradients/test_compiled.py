"""Modules that torch.jit compiled: planned like others, refused by name where their parameters cannot be put back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import wellposed as wp
from wellposed.errors import GradientError
from wellposed.gradients import gradcosine, gradient_norm, gradinit, lsuv, metainit, nio

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
