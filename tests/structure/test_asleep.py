"""Weights that stay at zero: what is named is what training leaves there, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import wellposed as wp

X = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))


def zeroed(*modules: nn.Module) -> None:
    for module in modules:
        for parameter in module.parameters():
            nn.init.zeros_(parameter)


class Branch(nn.Module):
    """A residual branch of two layers, beside a stem and before a head; some of them start at zero."""

    def __init__(self, *zero: str, function: Callable[[Tensor], Tensor] = torch.relu) -> None:
        super().__init__()
        self.stem, self.first, self.second, self.head = (nn.Linear(8, 8) for _ in range(4))
        self.function = function
        zeroed(*(getattr(self, name) for name in zero))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(x + self.second(self.function(self.first(x))))


class LowRank(nn.Module):
    def __init__(self, zero: bool) -> None:
        super().__init__()
        self.down, self.up = nn.Parameter(torch.randn(4, 8)), nn.Parameter(torch.zeros(8, 4))
        self.out = nn.Linear(8, 4)
        if zero:
            nn.init.zeros_(self.down)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x + x @ self.down.T @ self.up.T)


class Gated(nn.Module):
    """A gain of zero before a layer of zero, and a scale of zero behind a norm of gain zero."""

    def __init__(self, zero: bool) -> None:
        super().__init__()
        self.norm, self.out, self.scale = nn.LayerNorm(8), nn.Linear(8, 8, bias=False), nn.Parameter(torch.zeros(8))
        if zero:
            zeroed(self.norm, self.out)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.out(self.norm(x))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        zeroed(self.out)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x[None, None]).chunk(3, -1)
        return x + self.out(F.scaled_dot_product_attention(q, k, v))[0, 0]


class Tied(nn.Module):
    """A table of zeros that reads and writes: without biases nothing wakes it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return F.embedding(x.argmax(-1), self.table) @ self.table.T


MODELS: dict[str, Callable[[], nn.Module]] = {
    "both layers": lambda: Branch("first", "second"),
    "both layers, smooth": lambda: Branch("first", "second", function=torch.tanh),
    "the first, flat at zero": lambda: Branch("first"),
    "the first, smooth": lambda: Branch("first", function=F.gelu),
    "the second": lambda: Branch("second"),
    "the second and the head": lambda: Branch("second", "head"),
    "all": lambda: Branch("stem", "first", "second", "head"),
    "low rank": lambda: LowRank(True),
    "low rank, one factor": lambda: LowRank(False),
    "gains": lambda: Gated(True),
    "one gain": lambda: Gated(False),
    "attention": Attention,
    "tied": Tied,
}


def left_at_zero(model: nn.Module, steps: int = 8) -> set[str]:
    """Train, and return the parameters that held zeros and do so still."""
    before = {name for name, parameter in model.named_parameters() if not parameter.any()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        (model(X) - 1.0).square().mean().backward()
        optimizer.step()
    return {name for name, parameter in model.named_parameters() if name in before and not parameter.any()}


def told(text: str, model: nn.Module) -> set[str]:
    lines = [line for line in text.splitlines() if "stay at zero" in line]
    return {name for name, _ in model.named_parameters() for line in lines if repr(name) in line}


@pytest.mark.parametrize("name", MODELS)
def test_a_plan_names_what_training_leaves_at_zero(name: str) -> None:
    model = MODELS[name]()
    plan = wp.plan(model, X)
    plan.apply_(model)
    assert told("\n".join(plan.warnings), model) == left_at_zero(model)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_check_names_what_training_leaves_at_zero(name: str) -> None:
    model = MODELS[name]()
    summary = wp.check(model, X, draws=2).summary()
    assert told(summary, model) == left_at_zero(model)


def test_what_is_frozen_at_zero_on_purpose_is_not_named_but_counts() -> None:
    model = Branch("second")
    model.second.requires_grad_(False)
    assert wp.plan(model, X).warnings == wp.plan(Branch("second"), X).warnings
    model = Branch("first", "second", function=torch.tanh)
    model.second.requires_grad_(False)
    assert told("\n".join(wp.plan(model, X).warnings), model) == {"first.weight", "first.bias"}


def test_what_the_example_does_not_reach_is_not_named_here() -> None:
    model = Branch()
    model.aside = nn.Parameter(torch.zeros(4, 4))
    assert not any("stay at zero" in warning for warning in wp.plan(model, X).warnings)
