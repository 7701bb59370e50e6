"""Sharded models on meta: every rank gets memory for its part, and what the plan does not write as the whole has it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import wellposed as wp
from wellposed.errors import PlanError

X = torch.zeros(2, 10)


class Net(nn.Module):
    """Keeps its arguments, so that it can be made again: a gain of 3 that plans keep, a buffer, a tied weight."""

    def __init__(self, width: int, gain: float) -> None:
        super().__init__()
        self.width, self.gain = width, gain
        self.first = nn.Linear(10, width)
        self.norm = nn.LayerNorm(width)
        self.again = nn.Linear(width, width)
        self.last = nn.Linear(width, width)
        self.last.weight = self.again.weight
        nn.init.constant_(self.norm.weight, gain)
        self.register_buffer("frequencies", 2.0 ** torch.arange(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.again(self.norm(self.first(x)) * self.frequencies.reciprocal())))


class Forgetful(Net):
    """Does not say how it was made."""

    def __init__(self, width: int, number: float) -> None:
        super().__init__(width, number)
        del self.gain


@pytest.fixture(params=[(1, 0), (3, 2)], ids=["alone", "the last of three"])
def ranks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[int, int]]:
    count, rank = request.param
    if count == 1:
        dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    else:
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=count)
    yield count, rank
    dist.destroy_process_group()


def on_meta(kind: type[Net] = Net) -> Net:
    with torch.device("meta"):
        return kind(7, 3.0)


def shard(model: Net, count: int) -> Net:
    mesh = init_device_mesh("cpu", (count,))
    fully_shard(model.first, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def test_every_rank_holds_its_part_of_the_whole(ranks: tuple[int, int]) -> None:
    count, rank = ranks
    model = on_meta()
    plan = wp.plan(model, X, skip="norm.*")
    assert plan.prescriptions["norm.weight"].action == "keep"
    shard(model, count)
    state = torch.random.get_rng_state()
    plan.apply_(model, materialize="cpu")
    assert torch.equal(torch.random.get_rng_state(), state)
    whole = on_meta()
    plan.apply_(whole, materialize="cpu")
    assert float(whole.norm.weight[0].detach()) == 3.0
    for name, parameter in model.named_parameters():
        expected = torch.chunk(whole.get_parameter(name).detach(), count)
        own = parameter.to_local().detach()
        assert torch.equal(own, expected[rank] if rank < len(expected) else own[:0]), name
    assert torch.equal(model.frequencies, whole.frequencies)
    assert model.last.weight is model.again.weight
    if count == 1:
        assert torch.equal(model(X), whole(X))
        torch.optim.SGD(model.parameters(), 0.1).step()


def test_the_plan_on_meta_is_that_of_the_whole(ranks: tuple[int, int]) -> None:
    assert wp.plan(shard(on_meta(), ranks[0]), X) == wp.plan(on_meta(), X)


def test_what_no_means_restore_is_refused_and_nothing_changes(ranks: tuple[int, int]) -> None:
    model = on_meta(Forgetful)
    plan = wp.plan(model, X, skip="norm.*")
    shard(model, ranks[0])
    tensors = {name: id(parameter) for name, parameter in model.named_parameters()}
    with pytest.raises(PlanError, match=r"'norm.weight'.* of FSDPForgetful are written neither by the plan"):
        plan.apply_(model, materialize="cpu")
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == tensors
    assert all(parameter.is_meta for parameter in model.parameters())


def test_an_error_leaves_the_model_on_meta(ranks: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    model = on_meta()
    plan = wp.plan(model, X)
    shard(model, ranks[0])
    model.frequencies = torch.full((7,), 3.0)  # one that has values already keeps them, whatever happens

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("a full memory")

    with monkeypatch.context() as patched:
        patched.setattr("wellposed.plans.write.start_", fails)
        with pytest.raises(RuntimeError, match="a full memory"):
            plan.apply_(model, materialize="cpu")
    assert all(parameter.is_meta for parameter in model.parameters())
    assert torch.equal(model.frequencies, torch.full((7,), 3.0))
    plan.apply_(model, materialize="cpu")
    assert torch.equal(model.frequencies, torch.full((7,), 3.0))
    assert not any(parameter.is_meta for parameter in model.parameters())
