"""Forward passes that write to the batch, to parameters, or to tensors that modules hold: what they write to is a copy,
and the numbers are those of the same model without writes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wellposed as wp
from wellposed.errors import GradientError
from wellposed.gradients import gradcosine, gradient_norm, gradient_quotient, gradinit, lsuv, metainit, nio
from wellposed.rates import find_max_lr

X, LABELS = torch.randn(16, 6, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 3


class Net(nn.Module):
    """What all of them compute, without writes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.last = nn.Linear(8, 3)
        self.last.bias.requires_grad_(False)
        self.register_buffer("steps", torch.zeros(()))
        self.calls = torch.zeros(())
        self.cache = [torch.zeros(2)]
        self.by_name = {"x": torch.zeros(2)}

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x * 0.5)))


class WritesToTheBatch(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x.mul_(0.5))))


class WritesToParameters(Net):
    """Not idempotent: a second call on the same memory would differ."""

    def forward(self, x: Tensor) -> Tensor:
        self.first.weight.data.mul_(0.5)
        with torch.no_grad():
            self.last.bias.add_(1.0)
        return self.last(torch.relu(self.first(x))) - 1.0


class StraightThrough(Net):
    """The same without writes: what is halved behind autograd's back has the gradient of what it was."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.first.weight
        return self.last(torch.relu(F.linear(x, weight - 0.5 * weight.detach(), self.first.bias)))


class WritesToAttributes(Net):
    def forward(self, x: Tensor) -> Tensor:
        for tensor in (self.steps, self.calls, self.cache[0], self.by_name["x"]):
            tensor.add_(1.0)
        return super().forward(x)


class Remembers(Net):
    """What it has seen changes what it makes: each call is to find what the first one found."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = {"x": [], "scale": (torch.ones(()), [1.0])}

    def forward(self, x: Tensor) -> Tensor:
        scale, factors = self.seen["scale"]
        y = super().forward(x) * scale.clone() * factors[-1] + sum(len(earlier) for earlier in self.seen["x"])
        scale.mul_(2.0)
        factors.append(3.0)
        self.seen["x"].append(y)
        return y


WITHOUT_WRITES = {
    WritesToTheBatch: Net,
    WritesToParameters: StraightThrough,
    WritesToAttributes: Net,
    Remembers: Net,
}


def loss_fn(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    labels = batch.pop("labels")  # a common way to take a batch apart: the caller's keeps its items too
    return F.cross_entropy(model(batch["x"]), labels)


def made(kind: type[Net]) -> Net:
    torch.manual_seed(1)
    return kind()


def held(model: nn.Module) -> dict[str, Tensor]:
    tensors = dict(model.state_dict())
    tensors |= {"calls": model.calls, "cache": model.cache[0], "by name": model.by_name["x"]}
    return {name: tensor.clone() for name, tensor in tensors.items()}


Batch = dict[str, Any]
SCORES: dict[str, Callable[[nn.Module, Batch], float]] = {
    "gradcosine": lambda model, batch: gradcosine(model, loss_fn, batch).cosine,
    "gradcosine by vmap": lambda model, batch: gradcosine(model, loss_fn, batch, engine="vmap").cosine,
    "gradcosine one by one": lambda model, batch: gradcosine(model, loss_fn, batch, engine="loop").cosine,
    "gradcosine of sub-batches": lambda model, batch: gradcosine(model, loss_fn, batch, sub_batches=3).norm,
    "gradient_quotient": lambda model, batch: gradient_quotient(model, loss_fn, batch),
    "gradient_norm": lambda model, batch: gradient_norm(model, loss_fn, [batch], gamma=0.3).figures["factor"],
    "nio": lambda model, batch: nio(model, loss_fn, [batch], iterations=3).figures["after"]["cosine"],
    "gradinit": lambda model, batch: gradinit(model, loss_fn, [batch], iterations=3).figures["after"]["cosine"],
    "metainit": lambda model, batch: metainit(model, loss_fn, [batch], iterations=2).figures["after"]["cosine"],
    "lsuv": lambda model, batch: lsuv(model, loss_fn, [batch], orthogonal=False).figures["after"]["cosine"],
    "report": lambda model, batch: wp.report(model, batch["x"], loss_fn=loss_fn, batches=[batch]).agreement["own"].norm,
    "find_max_lr": lambda model, batch: find_max_lr(lambda: made(type(model)), loss_fn, [batch] * 4, steps=4).value,
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", WITHOUT_WRITES)
@pytest.mark.parametrize("score", SCORES)
def test_nothing_of_the_callers_changes_and_the_numbers_are_those_without_writes(score, kind):
    model, batch = made(kind), {"x": X.clone(), "labels": LABELS.clone()}
    before = held(model)
    found = SCORES[score](model, batch)
    now = held(model)
    assert [name for name in before if not torch.equal(before[name], now[name])] == []
    assert torch.equal(batch["x"], X)
    assert torch.equal(batch["labels"], LABELS)
    if score != "find_max_lr" or kind not in (WritesToParameters, Remembers):  # these train otherwise
        reference = made(WITHOUT_WRITES[kind])
        assert found == pytest.approx(SCORES[score](reference, {"x": X, "labels": LABELS}), rel=1e-5)


def test_a_tensor_that_stands_twice_in_a_batch_stays_one():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, x: Tensor, same: Tensor) -> Tensor:
            assert x is same
            return self.layer(x)

    x = X.clone()
    gradient_quotient(Twice(), lambda model, batch: model(*batch).square().mean(), (x, x))


class Held:
    """A batch that is one thing with what cannot be copied."""

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.lock = threading.Lock()


@pytest.mark.parametrize(
    "use",
    [
        lambda model, batch: gradient_quotient(model, lambda m, b: m(b.x).square().mean(), batch),
        lambda model, batch: find_max_lr(lambda: model, lambda m, b: m(b.x).square().mean(), [batch] * 3, seeds=1),
        lambda model, batch: wp.trace(TakesHeld(), batch),
    ],
)
def test_batches_that_cannot_be_copied_whole_are_left_alone(use):
    batch = Held(X.clone())
    x, lock = batch.x, batch.lock
    use(made(WritesToTheBatch), batch)
    assert batch.x is x
    assert batch.lock is lock
    assert vars(batch).keys() == {"x", "lock"}
    assert torch.equal(x, X)


class TakesHeld(Net):
    def forward(self, batch: Held) -> Tensor:
        batch.seen = 1
        return super().forward(batch.x.mul_(0.5)) * float(batch.x.sum())


class Steps(Net):
    """Takes a step of its own weights in every pass, by an assignment or in place."""

    def __init__(self, assigns: bool) -> None:
        super().__init__()
        self.assigns = assigns

    def forward(self, x: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(self.first(x).square().mean(), [self.first.weight])
        with torch.no_grad():
            if self.assigns:
                self.first.weight -= 0.1 * slope
            else:
                self.first.weight.sub_(0.1 * slope)
        return super().forward(x)


def stepping(assigns: bool) -> nn.Module:
    torch.manual_seed(1)
    return Steps(assigns)


@pytest.mark.parametrize("score", ["gradcosine", "gradcosine one by one", "lsuv"])
def test_weights_that_a_pass_assigns_to_are_those_that_it_writes_to(score):
    model, batch = stepping(assigns=True), {"x": X, "labels": LABELS}
    before = held(model)
    found = SCORES[score](model, batch)
    assert all(torch.equal(tensor, before[name]) for name, tensor in held(model).items())
    assert found == pytest.approx(SCORES[score](stepping(assigns=False), batch), rel=1e-5)


@pytest.mark.parametrize("score", ["gradient_quotient", "metainit", "gradinit"])
def test_a_pass_that_both_writes_and_differentiates_is_differentiated_twice(score):
    batch = {"x": X, "labels": LABELS}
    assert SCORES[score](stepping(assigns=False), batch) > 0
    with pytest.raises(GradientError, match=r"a forward pass assigns to the parameter 'weight'"):
        SCORES[score](stepping(assigns=True), batch)


def test_a_loss_that_steps_by_data_and_puts_it_back_is_differentiated_twice():
    def ascended(model: nn.Module, batch: Any, *, in_place: bool) -> Tensor:
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        slopes = torch.autograd.grad(F.cross_entropy(model(batch), LABELS), parameters)
        own = [parameter.data.clone() if in_place else parameter.data for parameter in parameters]
        for parameter, slope in zip(parameters, slopes, strict=True):
            if in_place:
                parameter.data.add_(slope, alpha=0.05)
            else:
                parameter.data = parameter.data + 0.05 * slope
        loss = F.cross_entropy(model(batch), LABELS)
        for parameter, memory in zip(parameters, own, strict=True):
            parameter.data = memory
        return loss

    found = [
        gradient_quotient(made(Net), partial(ascended, in_place=in_place), X.clone()) for in_place in (True, False)
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-5)
