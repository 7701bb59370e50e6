"""Forwards that step optimizers, closures that write to tensors of theirs, losses that take whole batches alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.gradients.nets import Small
from torch import Tensor, nn

from wellposed.errors import GradientError, RunError
from wellposed.gradients import gradcosine, gradient_norm, gradient_quotient, gradinit, lsuv, metainit, nio

X, LABELS = torch.randn(16, 6, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 3


class Net(Small):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * 0.5)


class Adapts(Net):
    """Takes a step of an optimizer of its own before it answers, as learners of learning do."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        inner = torch.optim.SGD([self.first.weight], lr=0.1)
        with torch.enable_grad():
            loss = self.last(torch.relu(self.first(x * 0.5))).square().mean()
            (self.first.weight.grad,) = torch.autograd.grad(loss, [self.first.weight])
        inner.step()
        return super().forward(x)


class StepsItsOwn(Net):
    """Holds an optimizer of the parameters that it was made with, which it steps."""

    def __init__(self) -> None:
        super().__init__()
        self.optimizer = torch.optim.SGD([self.first.weight], lr=0.1, momentum=0.9)

    def forward(self, x: Tensor) -> Tensor:
        for parameter in self.optimizer.param_groups[0]["params"]:
            parameter.grad = torch.ones_like(parameter)
        self.optimizer.step()
        return super().forward(x)


def of_pair(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


SCORES: dict[str, Callable[[nn.Module, Any], Any]] = {
    "gradcosine": lambda model, loss: gradcosine(model, loss, (X, LABELS)),
    "gradcosine, samples": lambda model, loss: gradcosine(model, loss, (X, LABELS), sub_batches=None),
    "gradient_norm": lambda model, loss: gradient_norm(model, loss, [(X, LABELS)]),
    "gradient_quotient": lambda model, loss: gradient_quotient(model, loss, (X, LABELS)),
    "nio": lambda model, loss: nio(model, loss, [(X, LABELS)], iterations=1, engine="finite_difference"),
    "gradinit": lambda model, loss: gradinit(model, loss, [(X, LABELS)], iterations=1),
    "metainit": lambda model, loss: metainit(model, loss, [(X, LABELS)], iterations=1),
    "lsuv": lambda model, loss: lsuv(model, loss, batches=[(X, LABELS)]),
}


def state(model: nn.Module) -> list[Any]:
    weights = [(p.detach().clone(), p.grad) for p in model.parameters()]
    return [(w.tolist(), grad is None) for w, grad in weights]


@pytest.mark.filterwarnings("ignore:gradients of samples are taken one by one")
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("kind", [Adapts, StepsItsOwn])
def test_a_forward_that_steps_an_optimizer_leaves_the_weights(kind: type[Net], score: str) -> None:
    model = kind()
    before = state(model)
    with suppress(RunError):  # lsuv repeats operators, and those of some optimizers it cannot
        SCORES[score](model, of_pair)
    assert state(model) == before
    assert not getattr(model, "optimizer", torch.optim.SGD(model.parameters())).state


@pytest.mark.parametrize("score", SCORES)
def test_a_tensor_that_a_closure_holds_is_what_each_call_found_and_stays(score: str) -> None:
    calls, seen = torch.zeros(()), []

    def counting(model: nn.Module, batch: Any) -> Tensor:
        calls.add_(1.0)
        seen.append(calls.item() if not calls.is_meta and type(calls) is Tensor else 1.0)
        return of_pair(model, batch)

    model = Net()
    plain = SCORES[score](model, of_pair)
    found = SCORES[score](model, counting)
    assert calls.item() == 0.0
    assert set(seen) == {1.0}
    assert str(found) == str(plain)


def test_second_derivatives_through_an_optimizer_are_refused_with_the_remedy() -> None:
    with pytest.raises(GradientError, match=r"gives its parameters to an optimizer .* engine='finite_difference'"):
        nio(Adapts(), of_pair, [(X, LABELS)], iterations=1)


def of_all_rows(model: nn.Module, batch: Any) -> Tensor:
    return (model(batch[0]).sum(1).view(len(X)) - 1.0).square().mean()


@pytest.mark.filterwarnings("ignore:gradients of samples are taken one by one")
@pytest.mark.parametrize("score", [name for name in SCORES if name not in ("gradient_quotient", "lsuv")])
def test_a_loss_that_takes_whole_batches_alone_is_told_so(score: str) -> None:
    with pytest.raises(GradientError, match=r"fails on a part of the batch \(RuntimeError.*any number of samples"):
        SCORES[score](Net(), of_all_rows)


def test_an_error_of_the_loss_itself_is_passed_on() -> None:
    with pytest.raises(RuntimeError, match=r"shape '\[5\]' is invalid"):
        gradcosine(Net(), lambda model, batch: model(batch[0]).view(5).sum(), (X, LABELS))


def test_samples_of_a_loss_that_differentiates_are_scored() -> None:
    def slope(model: nn.Module, batch: Any) -> Tensor:
        at = batch[0].detach().requires_grad_()
        (found,) = torch.autograd.grad(model(at).sum(), at, create_graph=True)
        return (found - 1.0).square().mean()

    agreement = gradcosine(Net(), slope, (X, LABELS), sub_batches=None, engine="loop")
    assert 0.0 < agreement.cosine <= 1.0
