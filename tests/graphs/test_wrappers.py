"""Wrapped, compiled and sharded models have the graph of the model inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

from wellposed.graphs import Graph, trace


def make() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Sequential(nn.ReLU(), nn.Linear(16, 8, bias=False)), nn.LayerNorm(8))


def example() -> torch.Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(1))


def outline(graph: Graph) -> list[tuple[object, ...]]:
    nodes = [(n.name, n.op, n.module, n.module_class, [graph.values[v].shape for v in n.outputs]) for n in graph]
    parameters = [(name, [graph.nodes[i].name for i in p.uses]) for name, p in graph.parameters.items()]
    shapes = [(name, graph.values[p.value].shape) for name, p in graph.parameters.items()]
    return [*nodes, *parameters, *shapes]


@pytest.fixture
def world() -> Iterator[None]:
    """A process group of four ranks, of which this process is one and the others are pretended."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield
    dist.destroy_process_group()


def nested(wrap: Callable[[nn.Module], nn.Module]) -> nn.Module:
    model = make()
    model[1] = wrap(model[1])
    return wrap(model)


WRAPPERS: dict[str, Callable[[], nn.Module]] = {
    "data parallel": lambda: nn.DataParallel(make()),
    "distributed data parallel": lambda: nn.parallel.DistributedDataParallel(make()),
    "checkpoint wrapper": lambda: nested(checkpoint_wrapper),
    "compiled": lambda: nested(lambda module: torch.compile(module, backend="eager")),
    "compiled distributed": lambda: torch.compile(nn.parallel.DistributedDataParallel(make()), backend="eager"),
    "fsdp": lambda: nested(lambda module: FullyShardedDataParallel(module, device_id=torch.device("cpu"))),
    "fsdp, original parameters": lambda: nested(
        lambda module: FullyShardedDataParallel(module, device_id=torch.device("cpu"), use_orig_params=True)
    ),
}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", WRAPPERS)
@pytest.mark.usefixtures("world")
def test_names_carry_no_prefixes(name: str) -> None:
    model = WRAPPERS[name]()
    modules = [(path, id(module)) for path, module in model.named_modules()]
    parameters = [(path, id(parameter)) for path, parameter in model.named_parameters()]
    assert outline(trace(model, example())) == outline(trace(make(), example()))
    assert [(path, id(module)) for path, module in model.named_modules()] == modules
    assert [(path, id(parameter)) for path, parameter in model.named_parameters()] == parameters


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.usefixtures("world")
def test_fully_sharded_parameters_have_global_shapes() -> None:
    model = make()
    mesh = dist.device_mesh.init_device_mesh("cpu", (4,))
    fully_shard(model[1], mesh=mesh)
    fully_shard(model, mesh=mesh)
    hooks = [len(module._forward_pre_hooks) for module in model.modules()]
    assert outline(trace(model, example())) == outline(trace(make(), example()))
    assert [len(module._forward_pre_hooks) for module in model.modules()] == hooks


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.usefixtures("world")
def test_tensor_parallel_parameters_have_global_shapes() -> None:
    mesh = dist.device_mesh.init_device_mesh("cpu", (4,))
    model = make()
    parallelize_module(model[0], mesh, ColwiseParallel())
    parallelize_module(model[1][1], mesh, RowwiseParallel())
    assert outline(trace(model, example())) == outline(trace(make(), example()))


def test_a_module_compiled_in_place_is_traced_as_it_was() -> None:
    model = make()
    model[0].compile(backend="eager")
    model.compile(backend="eager")
    assert outline(trace(model, example())) == outline(trace(make(), example()))
    assert model._compiled_call_impl is not None


def test_compiled_function_inside_a_model_runs_as_written() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)
            self.gate = torch.compile(lambda x: x * x.sigmoid(), backend="eager")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.gate(self.fc(x))

    assert [node.name for node in trace(Gated(), example())] == ["fc", "sigmoid", "mul"]
