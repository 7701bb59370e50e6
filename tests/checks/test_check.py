"""The check on running models: it agrees where the prediction is right, and names the node where it is made wrong."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import wellposed as wp
from wellposed.checks import check, measure
from wellposed.errors import OptionError
from wellposed.graphs import trace
from wellposed.methods import plan
from wellposed.signals import Input, Signals


def mlp(width: int = 256, depth: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(m for _ in range(depth) for m in (nn.Linear(width, width), nn.ReLU())))


class Gated(nn.Module):
    """A residual branch behind a zero-initialised gate, as in ReZero and adaptive layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.branch, self.gate = nn.Linear(64, 64), nn.Parameter(torch.zeros(64))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gate * self.branch(x)


def test_planned_weights_are_as_predicted() -> None:
    graph = trace(mlp(), torch.zeros(64, 256))
    verdict = check(graph, plan=plan(graph, method="autoinit"), draws=8)
    assert verdict.ok, verdict.summary()
    assert str(verdict) == verdict.summary()
    assert [c.name for c in verdict.comparisons] == [s.name for s in measure(graph, draws=1)]
    assert not verdict.unmatched
    assert (verdict.draws, verdict.weight_draws) == (8, 8)


def test_current_weights_are_as_predicted() -> None:
    verdict = check(mlp(), torch.zeros(64, 256), draws=4)
    assert verdict.ok, verdict.summary()
    assert verdict.weight_draws == 1


def test_convolutions_with_batch_norm_are_as_predicted() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU()
    )
    x = torch.zeros(16, 3, 16, 16)
    verdict = check(model, x, plan=plan(model, x, method="autoinit"), draws=8)
    assert verdict.ok, verdict.summary()


@pytest.mark.parametrize("fault", ["2", "3"])
def test_the_node_at_fault_is_named(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prediction that is made wrong from one node on, as a wrong rule would, is found at that node."""
    module = importlib.import_module("wellposed.checks.check")
    right = module.propagate

    def wrong(*args: Any, **kwargs: Any) -> Signals:
        items, factor = [], 1.0
        for signal in right(*args, **kwargs):
            factor = 4.0 if signal.name == fault else factor
            items.append(replace(signal, mean=signal.mean * factor, var=signal.var * factor**2))
        return Signals(tuple(items))

    monkeypatch.setattr(module, "propagate", wrong)
    graph = trace(mlp(), torch.zeros(64, 256))
    verdict = check(graph, plan=plan(graph, method="autoinit"), draws=8)
    assert not verdict.ok
    assert verdict.first is not None
    assert verdict.first.name == fault
    assert verdict.first.error == pytest.approx(4, abs=verdict.first.allowed)


def test_a_closed_gate_is_not_dead() -> None:
    verdict = check(Gated(), torch.zeros(32, 64), draws=4)
    assert verdict.ok, verdict.summary()
    assert any(c.zero for c in verdict.comparisons)


@pytest.mark.parametrize("form", ["descriptor", "batches"])
def test_inputs_are_told_to_both_sides(form: str) -> None:
    """Inputs of mean 3 and std 2: twelve times the default's second moment, on both sides."""
    generator = torch.Generator().manual_seed(1)
    batches = [3 + 2 * torch.randn(64, 256, generator=generator) for _ in range(4)]
    model, x = mlp(), torch.zeros(64, 256)
    inputs = Input.white(3.0, 4.0) if form == "descriptor" else batches
    verdict = check(model, x, draws=4, inputs=inputs)
    assert verdict.ok, verdict.summary()
    default = check(model, x, draws=4)
    assert verdict.comparisons[0].measured > 4 * default.comparisons[0].measured


def test_too_few_draws_are_refused() -> None:
    with pytest.raises(OptionError, match="a check needs at least 2 draws to know its own error, got 1"):
        check(mlp(), torch.zeros(64, 256), draws=1)


def test_constants_may_be_sparse() -> None:
    class Neighbours(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            ring = torch.sparse_coo_tensor(torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]), torch.ones(4), (4, 4))
            return self.second(torch.sparse.mm(ring, self.first(x)))

    graph = trace(Neighbours(), torch.randn(4, 8))
    assert wp.propagate(graph)["second"].var > 0


def test_empty_tensors_may_be_reshaped() -> None:
    class Nothing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.first(x) + self.second(x[:0].reshape(0, 2, 4)).sum()

    assert plan(Nothing(), torch.randn(4, 8), method="autoinit").prescriptions["first.weight"].action == "write"


class Kept(nn.Module):
    """Keeps what a condition finds; how many that are differs from draw to draw."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what is positive, counted."""
        y = self.layer(x)
        kept = y[y > 0]
        return kept.exp() * torch.arange(len(kept))


def test_a_shape_that_depends_on_values_ends_the_comparison_and_no_more() -> None:
    torch.manual_seed(0)
    graph = wp.trace(Kept(), torch.randn(8, 16))
    plan = wp.plan(graph, method="autoinit")
    verdict = wp.check(graph, plan=plan, draws=4)
    assert verdict.ok
    assert verdict.ended == "mul"
    assert verdict.unmatched == ("mul",)
    assert [c.name for c in verdict.comparisons][-2:] == ["index", "exp"]
    assert "not repeated from mul on: it depends on values how many elements meet there" in verdict.summary()
    assert wp.measure(graph, plan=plan, draws=4).ended == "mul"
