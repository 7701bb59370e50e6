"""A graph run by the interpreter gives what the model itself gives, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.graphs.cases import CASES, DIFFERENTIATING, REAL
from torch import Tensor, nn

from wellposed.errors import RunError
from wellposed.graphs import Graph, Ref, run, trace
from wellposed.graphs.trace import _Tracing
from wellposed.graphs.tree import output_tensors

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported:UserWarning")


def forward(name: str, training: bool) -> list[torch.Tensor]:
    """The model's own outputs, random numbers from seed 7."""
    model, args, kwargs = CASES[name]()
    model.train(training)
    torch.manual_seed(7)
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            return output_tensors(model(*args, **kwargs))
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def replay(graph: Graph, model: nn.Module) -> list[torch.Tensor]:
    """The graph's outputs, random numbers from seed 7."""
    return run(graph, parameters=dict(model.named_parameters()), seed=7)


def assert_same(got: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert torch.equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", CASES)
def test_interpreter_gives_the_models_outputs(name: str, training: bool) -> None:
    model, args, kwargs = CASES[name]()
    torch.manual_seed(7)
    graph = trace(model, *args, training=training, **kwargs)
    assert graph.engine == ("real" if name in REAL else "meta")
    assert_same(replay(graph, model), forward(name, training))


@pytest.mark.parametrize("name", CASES)
def test_real_engine_gives_the_models_outputs(name: str) -> None:
    model, args, kwargs = CASES[name]()
    graph = _Tracing(model, args, kwargs, False, "real", name in DIFFERENTIATING).run()
    assert_same(replay(graph, model), forward(name, False))


@pytest.mark.parametrize("name", CASES)
def test_graph_is_in_single_assignment_form(name: str) -> None:
    model, args, kwargs = CASES[name]()
    graph = trace(model, *args, **kwargs)
    made = {value.id for value in graph.values if value.node is None}
    assert [value.id for value in graph.values] == list(range(len(graph.values)))
    for index, node in enumerate(graph.nodes):
        assert node.index == index
        assert set(node.inputs) <= made
        assert made.isdisjoint(node.outputs)
        assert not _tensors([node.args, *node.kwargs.values()])
        made.update(node.outputs)
    assert set(graph.outputs) <= made
    names = [node.name for node in graph.nodes]
    assert len(set(names)) == len(names)


def _tensors(tree: Any) -> bool:
    if isinstance(tree, (list, tuple)):
        return any(_tensors(item) for item in tree)
    return isinstance(tree, torch.Tensor) and not isinstance(tree, Ref)


def test_memory_that_nobody_wrote_is_zero():
    class Parts(nn.Module):
        def forward(self, x):
            whole = torch.empty(x.shape[0], 2 * x.shape[1])
            whole[:, : x.shape[1]] = x
            return whole

    x = torch.randn(64, 512)
    graph = trace(Parts(), x)
    for _ in range(3):
        keep = [torch.full((64, 1024), 1e30) for _ in range(4)]  # memory that is given back, and taken again
        del keep
        assert not replay(graph, Parts())[0][:, 512:].any()


class Queues(nn.Module):
    """Places in a queue, as many as this batch has, of which there is room for two."""

    def forward(self, chosen: torch.Tensor) -> torch.Tensor:
        places = torch.cumsum(chosen, 0)
        return F.one_hot(places, max(int(places.max()) + 1, 2))[..., :2].float()


class Indexed(nn.Module):
    def forward(self, index: torch.Tensor) -> torch.Tensor:
        return F.one_hot(index, 3).float()


def test_a_one_hot_of_new_classes_is_that_of_the_model() -> None:
    graph = trace(Queues(), torch.tensor([1, 0, 0, 0]))
    many = torch.ones(4, dtype=torch.int64)
    (found,) = run(graph, parameters={}, inputs={graph.inputs[0]: many})
    assert torch.equal(found, Queues()(many))
    graph = trace(Indexed(), torch.tensor([0, 1]))
    with pytest.raises(RunError, match="a class is a number from 0 on; got -1"):
        run(graph, parameters={}, inputs={graph.inputs[0]: torch.tensor([0, -1])})


def test_a_tensor_that_is_there_already_comes_back_itself() -> None:
    """As in PyTorch: ``x.to(x.device)`` and ``x.to(x.dtype)`` are x; no operator runs, which would take time."""
    seen: list[bool] = []

    class Placed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = F.relu(x)
            seen.extend(y.to(there) is y for there in ("cpu", torch.device("cpu"), "cuda", torch.float32))
            z = y.to(torch.float64)
            seen.append(z is y)
            return z

    graph = trace(Placed(), torch.zeros(2, 3))
    assert seen == [True, True, True, True, False]
    assert [node.op_name for node in graph] == ["relu.default", "to.dtype"]


@pytest.mark.parametrize(
    "run",
    [
        lambda x, y: torch.outer(x[0], y[0]),
        lambda x, y: torch.ger(x[0], y[0]),
        lambda x, y: torch.einsum("ab,cd->cbad", x, y),
        lambda x, y: torch.einsum("ab,cb->bca", x, y),
        lambda x, y: torch.einsum("ab,c", x, y[0]),
    ],
)
def test_products_with_parameters_that_sum_nothing_are_products_of_elements(
    run: Callable[[Tensor, Tensor], Tensor],
) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rates = nn.Parameter(torch.randn(5, 4))

        def forward(self, x: Tensor) -> Tensor:
            return run(x, self.rates.exp())

    x = torch.randn(3, 4)
    graph = trace(Net(), x)
    assert graph.nodes[-1].op is torch.ops.aten.mul.Tensor
    assert graph.values[graph.outputs[0]].shape == run(x, torch.randn(5, 4)).shape
