"""A forward that fails half way leaves the graph of what ran."""

import pytest
import torch
from torch import nn

import wellposed as wp
from wellposed.errors import TraceError
from wellposed.graphs import run


class Dies(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        y = self.layer(x)
        z = torch.relu(y)
        y.sum()
        z.add_(1.0)
        raise ValueError("half way")


def partial_of(model, x):
    with pytest.raises(TraceError, match="half way") as caught:
        wp.trace(model, x)
    return caught.value.partial


def test_the_error_carries_what_ran_and_what_was_left_unread():
    model, x = Dies(), torch.randn(2, 4)
    before = model.layer.weight.clone()
    partial = partial_of(model, x)
    assert [node.name for node in partial.nodes] == ["layer", "relu", "sum", "add"]
    assert [partial.values[value].name for value in partial.outputs] == ["sum", "add"]
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    summed, added = run(partial, parameters=parameters, inputs={partial.inputs[0]: x})
    y = model.layer(x)
    assert torch.equal(summed, y.sum())
    assert torch.equal(added, torch.relu(y) + 1.0)
    assert torch.equal(model.layer.weight, before)


def test_a_model_on_meta_leaves_what_ran_too():
    partial = partial_of(Dies().to("meta"), torch.randn(2, 4))
    assert partial.engine == "meta"
    assert [node.name for node in partial.nodes] == ["layer", "relu", "sum", "add"]


def test_a_forward_that_runs_nothing_leaves_nothing():
    class Refuses(nn.Module):
        def forward(self, x):
            raise ValueError("no")

    with pytest.raises(TraceError, match="no") as caught:
        wp.trace(Refuses(), torch.zeros(1))
    assert caught.value.partial is None
