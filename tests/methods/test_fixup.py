"""Fixup: which branches it finds, what it draws, and that the function starts as its identity paths."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wellposed as wp
from wellposed.errors import PlanError
from wellposed.structure.streams import residual_streams


class Block(nn.Module):
    def __init__(self, width: int, out: int, layers: int) -> None:
        super().__init__()
        sizes = [width] + [out] * layers
        self.layers = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in pairwise(sizes))
        self.shortcut = nn.Conv2d(width, out, 1) if width != out else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = x
        for i, layer in enumerate(self.layers):
            h = layer(F.relu(h)) if i else layer(h)
        return F.relu(h + self.shortcut(x))


class Net(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        wide = 8 if layers == 1 else 16  # one layer beside a projection of one: neither is the shortcut
        self.blocks = nn.Sequential(Block(8, 8, layers), Block(8, wide, layers), Block(wide, wide, layers))
        self.readout = nn.Linear(wide, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.blocks(F.relu(self.stem(x))).mean((2, 3)))


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_branches_are_scaled_and_closed(layers: int) -> None:
    model, x = Net(layers), torch.randn(4, 3, 8, 8)
    plan = wp.plan(model, x, method="fixup")
    kaiming = wp.plan(model, x, method="kaiming")
    for name, said in plan.prescriptions.items():
        his = kaiming.prescriptions[name]
        if name == "readout.weight" or name.endswith(f"layers.{layers - 1}.weight"):
            assert (said.distribution, said.constant, said.std) == ("constant", 0.0, None)
        elif ".layers." in name and name.endswith("weight"):
            assert said.std == pytest.approx(his.std * 3 ** (-1 / (2 * layers - 2)), rel=1e-12)
            assert f"3^(-1/{2 * layers - 2}) for 3 residual branches of {layers} layers" in said.reason
        else:
            assert (said.std, said.constant) == (his.std, his.constant)
    assert "scalar multiplier" in plan.warnings[0]
    assert len(plan.warnings) == 1
    plan.apply_(model)
    with torch.no_grad():
        h = F.relu(model.stem(x))
        for block in model.blocks:
            h = F.relu(block.shortcut(h))
        assert torch.equal(model(x), torch.zeros(4, 5))
        assert torch.equal(model.blocks(F.relu(model.stem(x))), h)


def test_update_of_a_residual_branch_does_not_grow_with_depth() -> None:
    # What the factor is for: one step of gradient descent changes a net of L branches by as much as one of few.
    def change(blocks: int, method: str) -> float:
        torch.manual_seed(0)
        width = 32

        class Chain(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(blocks))
                self.last = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(blocks))
                self.readout = nn.Linear(width, 1, bias=False)

            def forward(self, x: Tensor) -> Tensor:
                for a, b in zip(self.first, self.last, strict=True):
                    x = x + b(F.relu(a(x)))
                return self.readout(x)

        model, x = Chain(), torch.randn(16, width)
        wp.initialize_(model, x, method=method)
        with torch.no_grad():
            model.readout.weight.normal_(0.0, width**-0.5)  # a readout of 0 would hide the first step
            before = model(x)
        model(x).mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter is not model.readout.weight:
                    parameter -= 0.01 * parameter.grad
            return float((model(x) - before).norm())

    shallow, deep = (change(blocks, "fixup") for blocks in (4, 64))
    assert 0.5 < deep / shallow < 2.0
    assert change(16, "kaiming") > 100 * change(4, "kaiming")


def test_branches_of_attention_and_side_by_side_are_found() -> None:
    class Parallel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
            self.inner = nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            h = self.up(x)
            h = h + self.inner(F.gelu(h))
            return x + self.attention(x, x, x, need_weights=False)[0] + self.down(F.gelu(h))

    graph = wp.trace(Parallel(), torch.randn(2, 5, 8))
    found = [
        ([graph.nodes[n].name for n in b.weights], [graph.nodes[n].name for n in sorted(b.last)], b.depth)
        for stream in residual_streams(graph)
        for b in stream.branches
    ]
    attention = ["attention:linear", "attention:linear#2"]
    assert (["inner"], ["inner"], 1) in found
    assert (attention, attention[1:], 2) in found
    assert (["up", "down"], ["down"], 3) in found
    assert len(found) == 3


def test_norms_are_warned_of_and_nets_without_branches_refused() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.a, self.b = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.b(F.relu(self.a(self.norm(x))))

    plan = wp.plan(Normed(), torch.randn(2, 8), method="fixup")
    assert "has 1 normalisation layer(s)" in plan.warnings[1]
    with pytest.raises(PlanError, match="needs residual branches, and Sequential has none"):
        wp.plan(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(2, 8), method="fixup")


class Cell(nn.Module):
    """A cell whose branch has one layer behind its fork, and a weight beside it that enters from before the fork."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.fork, self.beside, self.last = (nn.Conv2d(n, 8, 3, padding=1) for n in (3, 8, 8, 8))
        self.readout = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        forked = self.fork(x)
        joined = self.beside(x) + F.avg_pool2d(forked, 3, 1, 1)
        return self.readout((forked + self.last(F.relu(joined))).mean((2, 3)))


def test_a_weight_beside_a_branch_of_one_layer_keeps_its_scale() -> None:
    x = torch.zeros(2, 3, 8, 8)
    plan, kaiming = (wp.plan(Cell(), x, method=method) for method in ("fixup", "kaiming"))
    assert plan.prescriptions["last.weight"].constant == 0.0
    assert plan.prescriptions["beside.weight"].std == kaiming.prescriptions["beside.weight"].std


class Tied(nn.Module):
    """A language model of two residual blocks whose readout is its table of tokens, or one of its own."""

    def __init__(self, tied: bool, shared: bool = False) -> None:
        super().__init__()
        self.table, self.readout = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
        if tied:
            self.readout.weight = self.table.weight
        block = [nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)) for _ in range(2)]
        self.blocks = nn.ModuleList([block[0], block[0] if shared else block[1]])

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        for block in self.blocks:
            x = x + block(x)
        return self.readout(x)


@pytest.mark.parametrize("tied", [True, False])
def test_a_readout_that_is_looked_up_too_is_not_closed_and_a_warning_names_it(tied: bool) -> None:
    tokens = torch.arange(20)[None]
    model = Tied(tied)
    plan = wp.plan(model, tokens, method="fixup")
    plan.apply_(model)
    with torch.no_grad():
        assert len(model.table(tokens)[0].unique(dim=0)) == 20
        assert bool(model(tokens).any()) == tied
    told = "'table.weight' is drawn as by 'kaiming', neither 0 nor smaller, as table (embedding.default) uses it too"
    assert any(told in warning for warning in plan.warnings) == tied


def test_a_block_that_runs_twice_is_scaled_once() -> None:
    tokens = torch.arange(20)[None]
    plans = [wp.plan(Tied(False, shared), tokens, method="fixup").prescriptions for shared in (True, False)]
    shared, apart = (plan["blocks.0.0.weight"] for plan in plans)
    assert shared.std == pytest.approx(apart.std)
    assert plans[0]["blocks.0.2.weight"].constant == 0.0
