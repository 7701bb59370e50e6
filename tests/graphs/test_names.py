"""Names, places and sources of nodes; what is known, unused and dead."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.nn.functional as F
from tests.graphs.cases import CASES
from torch import nn

from wellposed.graphs import trace
from wellposed.graphs.modules import running


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.qkv = nn.Linear(8, 24)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        a = (q @ k.transpose(-2, -1)).softmax(-1).softmax(-1)
        return x + self.act(a @ v)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.add = nn.Flatten()
        self.unused = nn.Linear(2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.block(self.block(x)) + 1
        F.gelu(x)
        return self.add(x) + 2


def test_names_follow_modules_and_operators() -> None:
    graph = trace(Net(), torch.randn(2, 3, 8))
    once = [
        "block.norm",
        "block.qkv",
        "block:chunk",
        "block:transpose",
        "block:matmul",
        "block:softmax",
        "block:softmax#2",
        "block:matmul#2",
        "block.act",
        "block:add",
    ]
    twice = [name.replace("block.norm", "block.norm@2").replace("block:", "block@2:") for name in once]
    twice = [name.replace("block.qkv", "block.qkv@2").replace("block.act", "block.act@2") for name in twice]
    assert [node.name for node in graph] == [*once, *twice, "add", "gelu", "add:flatten", "add#2"]


def test_a_node_tells_its_module_call_and_source() -> None:
    graph = trace(Net(), torch.randn(2, 3, 8))
    node = graph["block.qkv@2"]
    assert (node.module, node.module_class, node.call, node.op_name) == ("block.qkv", "Linear", 1, "linear.default")
    assert (graph["block:softmax"].module, graph["block:softmax"].module_class) == ("block", "Block")
    start = inspect.getsourcelines(Block.forward)[1]
    assert graph["block:softmax"].source == f"tests/graphs/test_names.py:{start + 2}"
    assert graph["block.act"].source == f"tests/graphs/test_names.py:{start + 3}"
    assert graph["block.act"].op_name == "relu_.default"


def test_modules_of_torch_alone_have_no_line_of_a_users() -> None:
    assert [node.source for node in trace(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), torch.zeros(2, 3))] == ["", ""]


def test_unused_parameters_and_dead_nodes_are_listed() -> None:
    graph = trace(Net(), torch.randn(2, 3, 8))
    assert graph.unused_parameters == ("unused.weight", "unused.bias")
    assert [graph.nodes[i].name for i in graph.dead_nodes] == ["gelu"]
    raw = trace(*_model("RawParameters"))
    assert raw.unused_parameters == ("never",)
    assert [raw.nodes[i].name for i in raw.dead_nodes] == ["sin"]


def _model(name: str) -> tuple[nn.Module, torch.Tensor]:
    model, args, _ = CASES[name]()
    return model, args[0]


def test_tied_parameters_are_one() -> None:
    model, ids = _model("TiedEmbedding")
    graph = trace(model, ids)
    assert list(graph.parameters) == ["embed.weight"]
    tied = graph.parameters["embed.weight"]
    assert tied.names == ("embed.weight", "head.weight")
    assert dict(graph.aliases) == {"head.weight": "embed.weight"}
    assert [graph.nodes[i].name for i in tied.uses] == ["embed", "head"]
    assert tied.tensor is model.embed.weight


def test_a_module_under_two_names_is_one() -> None:
    graph = trace(*_model("CalledTwice"))
    assert [node.name for node in graph] == ["shared.0", "shared.1", "shared.0@2", "shared.1@2"]
    assert graph.parameters["shared.0.weight"].names == ("shared.0.weight", "again.0.weight")


@pytest.mark.parametrize(("name", "weight"), [("Lstm", "weight_ih_l0"), ("Gru", "weight_hh_l0"), ("Rnn", "bias_ih_l0")])
def test_recurrent_layers_use_their_own_parameters(name: str, weight: str) -> None:
    model, args, _ = CASES[name]()
    graph = trace(model, *args)
    assert graph.unused_parameters == ()
    (use,) = graph.parameters[weight].uses
    assert graph.nodes[use].op_name in ("lstm.input", "gru.input", "rnn_relu.input")


def test_parametrizations_keep_the_originals() -> None:
    graph = trace(*_model("WeightNorm"))
    assert set(graph.parameters) == {
        "0.bias",
        "0.parametrizations.weight.original0",
        "0.parametrizations.weight.original1",
    }
    assert graph.unused_parameters == ()
    assert graph["0"].op_name == "conv1d.default"


def test_inputs_are_named_by_their_paths() -> None:
    model, args, kwargs = CASES["Structures"]()
    graph = trace(model, *args, **kwargs)
    names = [graph.values[value].name for value in graph.inputs]
    assert names == ["0.ids", "0.features", "1.a.0", "1.a.1.0", "pair.first", "pair.second"]
    assert all(graph.example[value] is not None for value in graph.inputs)


def test_known_values_are_those_of_integers_and_constants() -> None:
    model, ids = _model("MaskFromIds")
    graph = trace(model, ids)
    known = {graph.values[value].name: tensor for value, tensor in graph.known.items()}
    assert torch.equal(known["0"], ids)
    assert torch.equal(known["ne"], ids != 0)
    longest = int((ids != 0).sum(1).max())
    assert torch.equal(known["triu"], torch.full((longest, longest), float("-inf")).triu(1))
    assert not {"embed", "softmax", "fc"} & set(known)
    assert all(graph.values[p.value].id not in graph.known for p in graph.parameters.values())


def test_random_numbers_and_float_inputs_are_not_known() -> None:
    model, x = _model("RandomBranch")
    graph = trace(model, x)
    known = {graph.values[value].name for value in graph.known}
    assert not {"0", "rand", "bernoulli", "randn_like"} & known


def test_buffers_written_in_forward_are_known_before_and_not_after() -> None:
    model, args, _ = CASES["BufferWritten"]()
    graph = trace(model, *args)
    assert torch.equal(graph.known[graph.buffers["history"]], torch.zeros(3, 6))
    (write,) = [node for node in graph if str(node.op) == "wellposed.view_write.default"]
    assert write.outputs[0] not in graph.known
    count = next(node for node in graph if node.op_name == "add_.Tensor")
    assert int(graph.known[count.outputs[0]]) == 1


def test_constants_that_unknown_values_are_written_to_take_the_memory_of_one_element() -> None:
    class Collects(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            whole = x.new_zeros(64, 128)
            whole[:32] = x
            return whole

    graph = trace(Collects(), torch.randn(32, 128))
    (zeros,) = [graph.known[node.outputs[0]] for node in graph.nodes if node.op_name == "new_zeros.default"]
    assert torch.equal(zeros, torch.zeros(64, 128))
    assert zeros.untyped_storage().nbytes() == 4  # and no view keeps the whole
    assert sum(tensor.untyped_storage().nbytes() for tensor in graph.known.values()) < 64


def test_who_reads_a_value_is_found_once() -> None:
    graph = trace(nn.Sequential(nn.Linear(2, 2), nn.Tanh()), torch.randn(3, 2))
    assert graph.users()[graph.nodes[0].outputs[0]] == [1]
    assert graph.users() is graph.users()


def test_integers_written_in_the_real_engine_stay_known() -> None:
    model, args, _ = CASES["IntegersWritten"]()
    graph = trace(model, *args)
    assert graph.engine == "real"
    known = {graph.values[value].name: tensor.tolist() for value, tensor in graph.known.items()}
    assert known["1"] == [0, 0, 0]
    assert known["view_write"] == [0, 4, 0]
    assert args[1].tolist() == [0, 0, 0]


def test_a_front_end_says_which_layer_runs() -> None:
    """Layers that are no modules are named by whoever runs them; outside of a trace there is nobody to be told."""

    class Foreign(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            stack = running()
            for path, leaf in (("a/b", True), ("a/b", True), ("a", False)):
                if stack is not None:
                    stack.enter(hash(path), path, "Layer", leaf)
                x = torch.tanh(x)
                if stack is not None:
                    stack.leave(hash(path))
            return x + 1

    nodes = list(trace(Foreign(), torch.randn(2, 3)))
    assert [node.name for node in nodes] == ["a/b", "a/b@2", "a:tanh", "add"]
    assert [(node.module, node.module_class, node.call) for node in nodes[1:3]] == [
        ("a/b", "Layer", 1),
        ("a", "Layer", 0),
    ]
    assert running() is None
