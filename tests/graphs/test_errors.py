"""What goes wrong is said with the place, what was received and what to do."""

from __future__ import annotations

import copy
import re
import sys

import pytest
import torch
from tests.graphs.cases import CASES
from torch import nn

from wellposed.errors import InputError, RunError, TraceError, UnsupportedError
from wellposed.graphs import run, trace
from wellposed.graphs.run import Interpreter
from wellposed.methods import plan


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x)


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Inner(), Inner()])

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        return self.blocks[1](self.blocks[0](x))


def test_wrong_shape_names_module_line_and_shapes() -> None:
    with pytest.raises(TraceError) as caught:
        trace(Outer(), torch.randn(2, 5), scale=torch.ones(3, dtype=torch.int64))
    message = str(caught.value)
    assert "forward of Outer failed in 'blocks.0.fc' (Linear) at tests/graphs/test_errors.py:" in message
    assert "mat1 and mat2 shapes cannot be multiplied (2x5 and 4x4)" in message
    assert "received: 0: float32[2, 5], scale: int64[3]" in message
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_missing_argument_names_the_model() -> None:
    with pytest.raises(
        TraceError, match=r"forward of Outer failed in Outer.*missing 1 required positional argument: 'x'"
    ):
        trace(Outer())


def test_values_read_on_meta_say_what_to_do() -> None:
    model, args, _ = CASES["BranchOnFloat"]()
    with pytest.raises(TraceError) as caught:
        trace(model.to("meta"), *args)
    message = str(caught.value)
    assert "tests/graphs/cases.py:" in message
    assert "reads values" in message
    assert "is on meta or sharded and has no values here: make them on CPU" in message


def test_lazy_parameters_are_named() -> None:
    with pytest.raises(
        UnsupportedError, match=r"'0.weight', '0.bias': not materialised yet \(lazy module\); run the model"
    ):
        trace(nn.Sequential(nn.LazyLinear(3)), torch.randn(2, 4))


def test_lazy_and_sparse_parameters_are_named_together() -> None:
    model = Outer()
    model.gain = nn.UninitializedParameter()
    model.table = nn.Parameter(torch.eye(3).to_sparse())
    with pytest.raises(UnsupportedError) as caught:
        trace(model, torch.randn(2, 4))
    message = str(caught.value)
    assert re.search(r"'gain': not materialised yet", message)
    assert re.search(r"'table': sparse \(sparse_coo\); keep a dense parameter", message)


def test_quantised_parameters_are_named() -> None:
    class Packed(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            return torch.Tensor._make_wrapper_subclass(cls, (4, 4)) if "detach" in str(func) else NotImplemented

    model = Outer()
    packed = torch.Tensor._make_wrapper_subclass(Packed, (4, 4))
    model.blocks[0].fc.weight = nn.Parameter(packed, requires_grad=False)
    with pytest.raises(
        UnsupportedError, match=r"'blocks.0.fc.weight': a tensor subclass \(Packed\), quantised or packed"
    ):
        trace(model, torch.randn(2, 4))


def test_a_module_without_a_hash_is_named() -> None:
    class Unhashable(Outer):
        def __eq__(self, other: object) -> bool:  # which takes the hash away
            return self is other

    with pytest.raises(UnsupportedError, match=r"parameters of Unhashable cannot be listed: .*unhashable"):
        trace(Unhashable(), torch.randn(2, 4))


def test_run_names_what_is_missing() -> None:
    model = Outer()
    x = torch.randn(2, 4)
    graph = trace(model, x)
    parameters = dict(model.named_parameters())
    held = parameters.pop("blocks.1.fc.bias")
    with pytest.raises(InputError, match=r"parameter 'blocks.1.fc.bias'; give one of shape \(4,\)"):
        run(graph, parameters=parameters)
    parameters["blocks.1.fc.bias"] = held.detach().to("meta")
    with pytest.raises(InputError, match=r"parameter 'blocks.1.fc.bias' of Outer is on meta and has no values"):
        run(graph, parameters=parameters)
    parameters["blocks.1.fc.bias"] = held
    with pytest.raises(InputError, match="input '0' of Outer is on meta"):
        run(graph, parameters=parameters, inputs={graph.inputs[0]: x.to("meta")})


def test_an_unknown_node_name_gets_the_nearest() -> None:
    graph = trace(Outer(), torch.randn(2, 4))
    with pytest.raises(InputError, match=r"no node 'block.1.fc'; did you mean 'blocks.1.fc'"):
        graph["block.1.fc"]


def test_nested_tensors_are_named() -> None:
    class Ragged(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nested.as_nested_tensor([x[0], x[1, :2]])

    with pytest.raises(UnsupportedError, match=r"at tests/graphs/test_errors.py:\d+ makes a nested tensor.*use padded"):
        trace(Ragged(), torch.randn(2, 4))


def test_what_is_no_module_is_said() -> None:
    with pytest.raises(InputError, match=r"trace takes a torch.nn.Module .*; got function"):
        trace(lambda x: x, torch.randn(2))  # type: ignore[arg-type]


class Lookup(nn.Module):
    """Chooses rows by an input, and by a mask computed from it."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.randn(5, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rows[x[x > 1]]


def again(x: torch.Tensor) -> None:
    graph = trace(Lookup(), torch.tensor([0, 2, 4]))
    run(graph, parameters={"rows": torch.randn(5, 4)}, inputs={graph.inputs[0]: x})


def test_operator_that_refuses_what_it_is_given_is_named() -> None:
    with pytest.raises(RunError) as caught:
        again(torch.tensor([0, 2, 9]))
    message = str(caught.value)
    where = r"index#2 \(index.Tensor, tests/graphs/test_errors.py:\d+\)"
    assert re.match(where + " of Lookup cannot be run: IndexError:", message)
    assert "index 9 is out of bounds" in message
    assert "in range" in message


def test_out_of_memory_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(sys.modules[Interpreter.__module__], "call", full)
    with pytest.raises(torch.OutOfMemoryError, match="no memory"):
        again(torch.tensor([0, 2, 4]))


def test_number_of_tensors_that_differs_from_the_traced_pass_is_said() -> None:
    class Groups(nn.Module):
        def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            return torch.stack([part.mean() for part in torch.tensor_split(x, at)])

    graph = trace(Groups(), torch.randn(6), torch.tensor([2, 4]))
    with pytest.raises(RunError, match=r"of Groups makes 4 tensors, and made 3 when the model was traced"):
        run(graph, parameters={}, inputs={graph.inputs[1]: torch.tensor([1, 2, 4])})


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3))

    def forward(self, x):
        return x @ self.weight


@pytest.mark.parametrize("net", [nn.Sequential(nn.Linear(4, 3)), nn.Conv1d(2, 3, 1), nn.LayerNorm(4), Product()])
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_whole_numbers_for_a_layer_of_floats_are_told_by_their_dtype(net, dtype, device):
    with pytest.raises(TraceError) as caught:
        trace(copy.deepcopy(net).to(device), torch.ones(2, 2, 4, dtype=dtype))
    assert f"the example holds {dtype} where the layer takes torch.float32" in str(caught.value)
    assert "example.to(torch.float32)" in str(caught.value)


def test_indices_that_are_no_whole_numbers_are_told_to_be_some():
    with pytest.raises(TraceError, match=r"holds torch.float32 where the layer takes torch.int64: .*to\(torch.int64\)"):
        trace(nn.Embedding(5, 3), torch.ones(2, 4))


class Speechless(Exception):
    def __str__(self) -> str:
        raise ValueError


def test_errors_without_a_text_are_named() -> None:
    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise Speechless

    with pytest.raises(TraceError, match=r"Speechless: \(no text: its __str__ raised ValueError\)"):
        trace(Net(), torch.ones(1))


def test_modules_that_answer_to_any_name_are_traced_and_planned() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def __getattr__(self, name: str) -> object:
            try:
                return super().__getattr__(name)
            except AttributeError:
                return lambda *_: None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x)

    model, x = Net(), torch.ones(1, 2)
    plan(model, x).apply_(model)
    assert len(trace(model, x)) == 1


def test_floats_of_another_type_are_refused_as_by_the_model_itself():
    net = nn.Sequential(nn.Linear(4, 3))
    with pytest.raises(TraceError, match=r"holds torch.float64 where the layer takes torch.float32: .*torch.float32\)"):
        trace(net, torch.ones(2, 4, dtype=torch.float64))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert len(trace(net, torch.ones(2, 4, dtype=torch.bfloat16))) > 0
