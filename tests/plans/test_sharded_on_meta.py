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
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
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
    with pytest.raises(
        PlanError, match=r"'frequencies' of FSDPForgetful are written neither by the plan.*model.to_empty\(device"
    ):
        plan.apply_(model, materialize="cpu")
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == tensors
    assert all(parameter.is_meta for parameter in model.parameters())


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor.detach()


def assert_parts_of(model: nn.Module, whole: nn.Module, ranks: tuple[int, int]) -> None:
    for name, parameter in model.named_parameters():
        expected = whole.get_parameter(name).detach()
        if isinstance(parameter, DTensor) and parameter.placements != (Shard(1),):
            parts = torch.chunk(expected, ranks[0])
            expected = parts[ranks[1]] if ranks[1] < len(parts) else expected[:0]
        assert torch.equal(local(parameter), expected), name
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, whole.get_buffer(name)), name


def test_modules_that_do_not_say_how_they_were_made_initialise_a_copy(ranks: tuple[int, int]) -> None:
    """Gains and statistics by ``reset_parameters``; random weights that are kept are cut from one draw of the whole."""

    def build() -> nn.Module:
        with torch.device("meta"):
            return nn.Sequential(nn.Linear(10, 7), nn.BatchNorm1d(7), nn.LSTM(7, 5))

    model, whole = build(), build()
    plan = wp.plan(build(), X, only="0.*")
    fully_shard(model, mesh=init_device_mesh("cpu", (ranks[0],)))
    plan.apply_(model, materialize="cpu")
    plan.apply_(whole, materialize="cpu")
    assert float(whole[2].weight_ih_l0.detach().std()) > 0.1
    assert_parts_of(model, whole, ranks)


def test_what_is_set_once_a_model_is_made_says_nothing_of_its_values(ranks: tuple[int, int]) -> None:
    """Tensor parallelism marks layers; checkpointing is switched on."""

    def build() -> Net:
        model = on_meta()
        model.gradient_checkpointing = True
        return model

    plan = wp.plan(on_meta(), X, skip="norm.*")
    model, whole = build(), on_meta()
    plan.apply_(whole, materialize="cpu")
    parallelize_module(model, init_device_mesh("cpu", (ranks[0],)), {"first": ColwiseParallel()})
    assert wp.plan(model, X, skip="norm.*") == plan
    plan.apply_(model, materialize="cpu")
    assert_parts_of(model, whole, ranks)
    assert model.last.weight is model.again.weight
    assert torch.equal(model.norm.weight.detach(), torch.full((7,), 3.0))


def test_ties_and_attributes_of_parameters_stay(ranks: tuple[int, int]) -> None:
    model = on_meta()
    plan = wp.plan(model, X)
    model.again.weight.unsharded = True
    fully_shard(model, mesh=init_device_mesh("cpu", (ranks[0],)), ignored_params={model.again.weight})
    model.first.weight.sharded = True
    plan.apply_(model, materialize="cpu")
    assert model.last.weight is model.again.weight
    assert model.again.weight.unsharded
    assert model.first.weight.sharded
    whole = on_meta()
    plan.apply_(whole, materialize="cpu")
    assert_parts_of(model, whole, ranks)


def test_an_error_leaves_the_model_on_meta(ranks: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    model = on_meta()
    plan = wp.plan(model, X)
    shard(model, ranks[0])
    held = model.frequencies = torch.full((7,), 3.0)  # one that has values already keeps them, whatever happens
    objects = {name: id(parameter) for name, parameter in model.named_parameters()}

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("a full memory")

    with monkeypatch.context() as patched:
        patched.setattr("wellposed.plans.write.start_", fails)
        with pytest.raises(RuntimeError, match="a full memory"):
            plan.apply_(model, materialize="cpu")
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == objects
    assert all(parameter.is_meta for parameter in model.parameters())
    assert model.frequencies is held
    plan.apply_(model, materialize="cpu")
    assert torch.equal(model.frequencies, torch.full((7,), 3.0))
    assert not any(parameter.is_meta for parameter in model.parameters())
