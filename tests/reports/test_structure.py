"""The graph as a picture needs it: branches, merges and the tree that folds it."""

import pytest
import torch
from tests.reports.nets import mlp, residual
from torch import nn

import wellposed as wp
from wellposed import zoo
from wellposed.reports.spans import trunk_names
from wellposed.reports.structure import GROUP, structure_of


def traced(model, *args):
    return structure_of(wp.trace(model, *args))


def names(structure, indices):
    return [structure.operations[i].name for i in indices]


def test_the_trunk_goes_through_the_sums_and_each_branch_beside_it():
    structure = traced(*residual(2))
    trunk, *others = structure.branches
    assert names(structure, trunk.path) == ["0", "1.0:add", "1.1:add"]
    assert (trunk.leaves, trunk.joins) == (None, None)
    told = [
        (names(structure, b.path), structure.operations[b.leaves].name, structure.operations[b.joins].name)
        for b in others
    ]
    assert told == [
        (["1.0.up", "1.0:relu", "1.0.down"], "0", "1.0:add"),
        (["1.1.up", "1.1:relu", "1.1.down"], "1.0:add", "1.1:add"),
    ]


def test_every_signal_is_on_one_branch():
    class Dense(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(4 * k, 4) for k in (1, 2, 3))

        def forward(self, x):
            for layer in (self.a, self.b, self.c):
                x = torch.cat([layer(x), x], 1)
            return x, x.sum()

    structure = traced(Dense(), torch.randn(2, 4))
    covered = [i for branch in structure.branches for i in branch.path]
    assert sorted(covered) == [i for i, operation in enumerate(structure.operations) if operation.signal]
    assert names(structure, structure.merges) == ["cat", "cat#2", "cat#3"]


def test_merges_are_where_signals_meet_and_not_where_a_constant_is_added():
    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(4))

        def forward(self, x):
            return (x + self.shift) + x * 2 + 1

    structure = traced(Shifted(), torch.randn(2, 4))
    assert names(structure, structure.merges) == ["add#2"]


def test_modules_fold_their_operations_and_single_ones_stand_for_themselves():
    structure = traced(*residual(2))
    tree = [(group.label, group.parent) for group in structure.groups]
    assert tree[0] == ("Sequential", -1)
    assert sorted(tree[1:]) == [("0", 1), ("1", 0), ("1", 1)]
    assert structure.operations[0].group == 0  # the first Linear
    block = tree.index(("0", 1))
    assert [operation.name for operation in structure.operations if operation.group == block] == [
        "1.0.up", "1.0:relu", "1.0.down", "1.0:add",
    ]  # fmt: skip


def test_a_module_that_is_called_twice_is_two_boxes():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = nn.Sequential(nn.Linear(4, 4), nn.GELU())
            self.norm = nn.LayerNorm(4)

        def forward(self, x):
            return self.norm(self.act(self.norm(x)))

    structure = traced(Twice(), torch.randn(2, 4))
    assert [operation.name for operation in structure.operations if operation.group == 0] == ["norm", "norm@2"]


@pytest.mark.slow
def test_a_crowd_is_folded_into_runs_with_at_most_so_many_children():
    class Loop(nn.Module):
        def forward(self, x):
            for _ in range(3000):
                x = torch.sin(x)
            return x

    structure = traced(Loop(), torch.randn(2, 4))
    children = [0] * len(structure.groups)
    for group in structure.groups[1:]:
        children[group.parent] += 1
    for operation in structure.operations:
        children[operation.group] += 1
    assert max(children) <= GROUP
    labels = [group.label for group in structure.groups if group.parent == 0]
    assert labels[-1].startswith("sin … ")  # runs are found last to first


def test_parameters_alone_are_no_signal():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4))

        def forward(self, x):
            return x @ (self.weight.t() * 0.5)

    structure = traced(Tied(), torch.randn(2, 4))
    assert [(operation.name, operation.signal) for operation in structure.operations] == [
        ("t", False), ("mul", False), ("matmul", True),
    ]  # fmt: skip
    assert names(structure, [i for branch in structure.branches for i in branch.path]) == ["matmul"]


def test_inputs_and_outputs_are_told():
    structure = traced(mlp(1)[0], torch.randn(2, 32))
    assert structure.inputs == ("0",)
    assert names(structure, structure.outputs) == ["2"]
    assert structure.operations[0].inputs == (-1,)


def test_the_trunk_is_what_every_path_leads_through():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c, self.d = (nn.Linear(4, 4) for _ in range(4))

        def forward(self, x):
            x = self.a(x)
            return self.d(x + self.c(torch.relu(self.b(x))))

    assert trunk_names(structure_of(wp.trace(Net(), torch.zeros(2, 4)))) == {"a", "add", "d"}

    class Caching(Net):
        def forward(self, x):
            return super().forward(x), self.c(x)

    assert trunk_names(structure_of(wp.trace(Caching(), torch.zeros(2, 4)))) == {"a", "add", "d"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["torchvision:resnet18", "torchvision:mobilenet_v3_small", "timm:convnext_atto", "timm:mixer_s32_224"]
)
def test_nets_that_are_known_to_train_are_not_called_bad(name):
    """ConvNeXt closes its branches by a scale of 1e-6, on purpose; the readout of the mixer is zero."""
    model, args, kwargs = zoo.load(name, device="cpu")
    assert wp.report(model, *args, draws=0, **kwargs).judgement.level == "good"
