"""Parameters that the example does not reach: planned like their siblings, or named with the remedy."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import wellposed as wp


class Experts(nn.Module):
    def __init__(self, experts: int = 6) -> None:
        super().__init__()
        self.table, self.router = nn.Embedding(20, 16), nn.Linear(16, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(experts)
        )

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids).flatten(0, 1)
        weights, chosen = self.router(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        for place, expert in enumerate(self.experts):
            rows, at = torch.where(chosen == place)
            if rows.numel():
                out = out.index_add(0, rows, expert(x[rows]) * weights[rows, at, None])
        return out


class Dropped(nn.Module):
    def __init__(self, kept: int) -> None:
        super().__init__()
        self.kept, self.layers = kept, nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[: self.kept]:
            x = torch.relu(layer(x))
        return x


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator, self.critic = nn.Linear(8, 16), nn.Linear(16, 1)

    def forward(self, z: Tensor) -> Tensor:
        return self.generator(z)


@pytest.mark.parametrize(
    ("model", "x"), [(Experts(), torch.zeros(2, 4, dtype=torch.long)), (Dropped(2), torch.randn(8, 16))]
)
def test_what_has_siblings_is_planned_like_them_and_named(model: nn.Module, x: Tensor) -> None:
    plan = wp.initialize_(model, x)
    assert {said.action for said in plan.prescriptions.values()} == {"write"}
    (said,) = [words for words in plan.warnings if "planned like their siblings" in words]
    first = next(name for name, mine in plan.prescriptions.items() if mine.reason.startswith("like "))
    assert repr(first) in said
    drawn = {
        name: model.get_parameter(name).std()
        for name, mine in plan.prescriptions.items()
        if mine.std and "weight" in name
    }
    for name, std in drawn.items():
        assert std.item() == pytest.approx(plan.prescriptions[name].std, rel=0.3), name


class Branches(nn.Module):
    """Residual branches of two layers of one shape, the first of which are left out."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[1:]:
            x = x + layer(x)
        return x


def test_the_sibling_stands_at_the_same_place() -> None:
    said = wp.plan(Branches(), torch.randn(8, 16)).prescriptions
    assert said["layers.1.0.weight"].how != said["layers.1.2.weight"].how
    for place in ("0.weight", "2.weight"):
        assert said[f"layers.0.{place}"].how == said[f"layers.1.{place}"].how, place


def test_what_has_no_sibling_keeps_its_values_and_is_named_with_the_remedy() -> None:
    model = Pair()
    before = model.critic.weight.clone()
    plan = wp.initialize_(model, torch.randn(4, 8))
    assert torch.equal(model.critic.weight, before)
    (said,) = plan.warnings
    assert "'critic.weight', 'critic.bias'" in said
    assert "skip=" in said
    assert wp.plan(model, torch.randn(4, 8), skip="critic.*").warnings == ()


def test_what_is_left_out_stays_so_though_its_siblings_are_planned() -> None:
    plan = wp.plan(Dropped(2), torch.randn(8, 16), skip="layers.3.*")
    assert plan.prescriptions["layers.2.weight"].action == "write"
    assert plan.prescriptions["layers.3.weight"].action == "keep"
    assert not any("layers.3" in words for words in plan.warnings)


def test_a_plan_that_writes_nothing_since_all_is_frozen_says_so() -> None:
    model = nn.Linear(4, 4).requires_grad_(False)
    (said,) = wp.plan(model, torch.randn(2, 4)).warnings
    assert said.startswith("nothing is written, as all 2 parameters are kept")
    assert "frozen=True" in said


def test_a_model_that_the_example_reaches_is_not_warned_of() -> None:
    assert wp.plan(Dropped(4), torch.randn(8, 16)).warnings == ()
