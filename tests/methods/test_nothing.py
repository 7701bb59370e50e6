"""Weights and examples without elements, and numbers of eight bits: named or left alone, never a raw error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import wellposed as wp
from wellposed.errors import InputError
from wellposed.gradients import gradcosine, gradient_quotient, lsuv, nio
from wellposed.methods import methods

pytestmark = pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))


class BesideNothing(nn.Module):
    """A branch of no width, as pruning leaves it."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up, self.beside = nn.Linear(8, 0), nn.Linear(0, 4), nn.Linear(8, 4)
        self.empty = nn.Parameter(torch.zeros(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(torch.relu(self.down(x))) + self.beside(x) + self.empty.sum()


class NoTokens(nn.Module):
    """Tokens that are learnt, none of them here, and a table of no width."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.out = nn.Linear(8, 4), nn.Linear(4, 2)
        self.tokens = nn.Parameter(torch.zeros(1, 0, 4))
        self.table = nn.Embedding(3, 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.cat([self.lift(x), self.table(torch.zeros(len(x), dtype=torch.long))], -1)
        return self.out(torch.cat([self.tokens.expand(len(x), -1, -1), rows[:, None]], 1)).mean(1)


def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


USES: dict[str, Callable[[nn.Module, torch.Tensor], Any]] = {
    "check": lambda model, x: wp.check(model, x).ok,
    "check of the plan": lambda model, x: wp.check(model, x, plan=wp.plan(model, x)).ok,
    "measure": lambda model, x: wp.measure(model, x, backward=True, draws=2),
    "report": lambda model, x: wp.report(model, x),
    "propagate": lambda model, x: wp.propagate(wp.trace(model, x), backward=True),
    "gradcosine": lambda model, x: gradcosine(model, loss_fn, x),
    "gradient_quotient": lambda model, x: gradient_quotient(model, loss_fn, x),
    "nio": lambda model, x: nio(model, loss_fn, [x], iterations=1),
    "lsuv": lambda model, x: lsuv(model, batches=[x]),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [BesideNothing, NoTokens])
@pytest.mark.parametrize("use", USES)
def test_weights_without_elements_are_passed_over(use: str, kind: type[nn.Module]) -> None:
    assert USES[use](kind(), X)


@pytest.mark.parametrize("kind", [BesideNothing, NoTokens])
@pytest.mark.parametrize("method", sorted(set(methods()) - {"complete_p", "fixup"}))
def test_weights_without_elements_are_kept_and_the_others_planned(method: str, kind: type[nn.Module]) -> None:
    model = kind()
    plan = wp.plan(model, X, method=method)
    plan.apply_(model)
    empty = [name for name, parameter in model.named_parameters() if not parameter.numel()]
    assert {plan.prescriptions[name].action for name in empty} == {"keep"}
    others = [n for n in plan.prescriptions if n.endswith("weight") and n not in empty]
    if method != "default":
        assert {plan.prescriptions[name].action for name in others} == {"write"}


@pytest.mark.parametrize("use", [wp.plan, wp.check, wp.measure, wp.report, wp.trace, wp.initialize_])
def test_an_example_without_elements_is_refused(use: Any) -> None:
    model = nn.Linear(8, 2)
    before = model.weight.tolist()
    with pytest.raises(InputError, match=r"the example has no elements \(0: float32\[0, 8\]\); give a batch"):
        use(model, torch.zeros(0, 8))
    assert model.weight.tolist() == before


def test_an_input_without_elements_beside_others_is_none() -> None:
    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(8, 2)

        def forward(self, x: torch.Tensor, past: torch.Tensor) -> torch.Tensor:
            return self.out(torch.cat([past, x], 0))

    assert wp.check(Cached(), X, torch.zeros(0, 8)).ok


class Eighths(nn.Module):
    """A frozen weight of eight bits, as quantised models store them."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 8).to(dtype), requires_grad=False)
        self.register_buffer("scale", torch.ones(16).to(dtype))
        self.out = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(x @ self.weight.to(x.dtype).T) * self.scale.to(x.dtype))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("use", USES)
def test_frozen_weights_of_eight_bits_are_read(use: str, dtype: torch.dtype) -> None:
    model = Eighths(dtype)
    before = model.weight.float().tolist()
    assert USES[use](model, X)
    assert model.weight.float().tolist() == before


def test_the_layer_after_a_weight_of_eight_bits_is_planned_by_its_values() -> None:
    model = Eighths(torch.float8_e5m2)
    wide = Eighths(torch.float8_e5m2)
    wide.load_state_dict(model.state_dict())
    wide.weight = nn.Parameter(wide.weight.float(), requires_grad=False)
    assert wp.plan(model, X).prescriptions["out.weight"].std == wp.plan(wide, X).prescriptions["out.weight"].std
