"""Models that are sharded already (FSDP2, uneven shards): planned, or refused by name with nothing changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

import wellposed as wp
from wellposed import rates
from wellposed.errors import WellposedError
from wellposed.gradients import gradcosine, gradient_norm, gradinit, lsuv, metainit, nio

X, LABELS = torch.randn(6, 10), torch.tensor([0, 1, 2, 3, 0, 1])
BATCH = (X, LABELS)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(10, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 5), nn.LayerNorm(5), nn.Linear(5, 4)
    )
    nn.init.constant_(model[4].weight, 2.0)
    return model


def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def sharded(ranks: int) -> nn.Module:
    model, mesh = net(), init_device_mesh("cpu", (ranks,))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


@pytest.fixture
def alone(tmp_path) -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def one_of_three() -> Iterator[None]:
    """The last of three ranks, with less than the others or nothing; the others are pretended."""
    dist.init_process_group("fake", store=FakeStore(), rank=2, world_size=3)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("after_a_pass", [False, True])
@pytest.mark.parametrize("method", ["autoinit", "topology", "mup", "default"])
def test_a_sharded_model_has_the_plan_of_the_whole(method, after_a_pass):
    model = sharded(1)
    if after_a_pass:  # which leaves the root's parameters put together
        model(X)
    assert wp.plan(model, X, method=method) == wp.plan(net(), X, method=method)
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
    assert wp.check(model, X, plan=wp.plan(net(), X)).ok


@pytest.mark.usefixtures("one_of_three")
def test_uneven_shards_are_planned():
    model = sharded(3)
    plan = wp.plan(model, X)
    whole = wp.plan(net(), X)
    assert {name: said.shape for name, said in plan.prescriptions.items()} == {
        name: said.shape for name, said in whole.prescriptions.items()
    }
    assert wp.measure(model, X, plan=whole, draws=2)
    assert wp.report(model, X)


REFUSED: dict[str, Callable[[nn.Module], object]] = {
    "measure": lambda model: wp.measure(model, X),
    "check": lambda model: wp.check(model, X),
    "explain": lambda model: wp.explain(model, None, X),
    "gradcosine": lambda model: gradcosine(model, loss_fn, BATCH),
    "gradient_norm": lambda model: gradient_norm(model, loss_fn, [BATCH]),
    "nio": lambda model: nio(model, loss_fn, [BATCH]),
    "gradinit": lambda model: gradinit(model, loss_fn, [BATCH]),
    "metainit": lambda model: metainit(model, loss_fn, [BATCH]),
    "lsuv": lambda model: lsuv(model, loss_fn, [BATCH]),
    "relative": lambda model: rates.relative(model, X, rule="maximal_update"),
}


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("what", REFUSED)
def test_what_needs_all_values_is_refused_by_name(what, ranks, request):
    request.getfixturevalue("alone" if ranks == 1 else "one_of_three")
    model = sharded(ranks)
    before = {name: (id(p), p.to_local().clone()) for name, p in model.named_parameters()}
    with pytest.raises(WellposedError, match=r"'0.weight'.* sharded over ranks|sharded over ranks.*'0.weight'"):
        REFUSED[what](model)
    for name, parameter in model.named_parameters():
        assert id(parameter) == before[name][0]
        assert torch.equal(parameter.to_local(), before[name][1])
