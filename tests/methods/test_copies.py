"""Copies of parameters, as target networks hold them, are drawn with what they copy."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from torch import Tensor, nn

import wellposed as wp

X = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 4, bias=False))


class Pair(nn.Module):
    """A net and its copy, which the forward runs or not."""

    def __init__(self, run: bool, frozen: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.online, self.run = net(), run
        self.target = copy.deepcopy(self.online).requires_grad_(not frozen)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (self.online(x), self.target(x).detach()) if self.run else (self.online(x),)


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("method", ["steady", "kaiming", "orthogonal"])
@pytest.mark.parametrize(("run", "frozen"), [(True, True), (False, True), (False, False), (True, False)])
def test_copies_are_copies_afterwards_and_named(run: bool, frozen: bool, method: str) -> None:
    model = Pair(run, frozen)
    before = copy.deepcopy(model.online)
    plan = wp.initialize_(model, X, method=method)
    assert not same(model.online, before)
    assert same(model.online, model.target)
    (said,) = plan.warnings
    assert re.match(f"{3 if run and not frozen else 5} parameters are copies of others", said)  # constants are alike
    assert "'target.0.weight' (of 'online.0.weight')" in said
    assert "skip=" in said
    assert wp.check(model, X, plan=wp.Plan.model_validate_json(plan.to_json()), draws=2).own.deviations == ()


def test_what_the_user_leaves_out_and_frozen_weights_of_their_own_stay() -> None:
    model = Pair(run=True, frozen=True)
    assert wp.plan(model, X, skip="target.*").prescriptions["target.0.weight"].action == "keep"
    torch.manual_seed(1)
    model.target = net().requires_grad_(False)
    plan = wp.plan(model, X)
    assert plan.prescriptions["target.0.weight"].action == "keep"
    assert plan.warnings == ()


def test_a_frozen_teacher_that_is_trained_stays_what_it_is() -> None:
    model = Pair(run=True, frozen=True)
    with torch.no_grad():
        for one in (model.online, model.target):
            one[1].weight.copy_(1.0 + 0.2 * torch.randn(16, generator=torch.Generator().manual_seed(2)))
            one[1].bias.copy_(0.2 * torch.randn(16, generator=torch.Generator().manual_seed(3)))
    plan = wp.plan(model, X)
    assert {one.action for name, one in plan.prescriptions.items() if name.startswith("target")} == {"keep"}


def test_parts_that_copy_each_other_within_a_trained_net_have_numbers_of_their_own() -> None:
    class Attention(nn.Module):
        def __init__(self, part: nn.Linear, pairs: bool) -> None:
            super().__init__()
            self.query, self.key = copy.deepcopy(part), copy.deepcopy(part)
            self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)
            if pairs:  # all of one side, a part of the other
                self.left, self.right = nn.Sequential(part, nn.Linear(8, 8)), nn.Sequential(part, nn.Linear(8, 8))

        def forward(self, x: Tensor) -> Tensor:
            return torch.softmax(self.query(x) @ self.key(x).mT, -1) @ self.left(x) + self.right(x)

    for pairs in (False, True):
        model = Attention(nn.Linear(8, 8), pairs)
        plan = wp.initialize_(model, X)
        assert not same(model.query, model.key)
        assert not any("copies" in said for said in plan.warnings)


@pytest.mark.slow
def test_nothing_is_a_copy_on_meta_where_numbers_that_are_made_again_are_alike() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.other = nn.Linear(512, 1 << 16), nn.Linear(512, 1 << 16)

        def forward(self, x: Tensor) -> Tensor:
            return self.first(x)

    with torch.device("meta"):
        model = Wide()
    plan = wp.plan(model, torch.zeros(2, 512))
    assert plan.prescriptions["other.weight"].action == "keep"
    assert not any("copies" in said for said in plan.warnings)


@pytest.mark.slow
def test_layers_that_are_made_as_copies_of_each_other_have_numbers_of_their_own() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    wp.initialize_(model, X[None])
    assert not same(model.layers[0], model.layers[1])


class Averaged(nn.Module):
    """A net with weights that are averaged over steps, as buffers, or in another type."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.net = nn.Linear(16, 4)
        if kind == "buffer":
            self.register_buffer("average", self.net.weight.detach().clone())
        elif kind == "type":
            self.average = copy.deepcopy(self.net).bfloat16().requires_grad_(False)
        else:
            self.register_buffer("average", torch.randn(4, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


@pytest.mark.parametrize("kind", ["buffer", "type", "none"])
def test_what_holds_the_numbers_that_are_written_over_is_named(kind: str) -> None:
    plan = wp.plan(Averaged(kind), torch.randn(8, 16))
    assert any("keep them: copy the new ones" in one for one in plan.warnings) == (kind != "none")


def test_a_copy_that_is_left_out_is_named() -> None:
    model = nn.ModuleDict({"net": nn.Linear(16, 4)})
    model["target"] = copy.deepcopy(model["net"]).requires_grad_(False)
    model.forward = lambda x: (model["net"](x), model["target"](x))
    plan = wp.plan(model, torch.randn(8, 16), only="net.*")
    assert any("'target.weight' (of 'net.weight')" in one for one in plan.warnings)
