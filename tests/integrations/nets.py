"""What the tests of all integrations train."""

import copy

import torch
from torch import nn

X = torch.randn(24, 6, generator=torch.Generator().manual_seed(1))
Y = torch.arange(24) % 4


class Net(nn.Module):
    """Batch norm, dropout and a residual sum: state and random numbers that watching must not touch."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(6, 16)
        self.norm = nn.BatchNorm1d(16)
        self.inner = nn.Linear(16, 16)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        x = self.norm(self.stem(x))
        return self.head(x + self.drop(torch.relu(self.inner(x))))


class Stubborn(nn.Module):
    """Cannot be traced, though it runs."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x):
        if torch.is_inference_mode_enabled():
            raise ValueError("not here")
        return self.layer(x)


def mlp():
    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))


def loss_of(model, x=X, y=Y):
    return nn.functional.cross_entropy(model(x), y)


def state_of(model):
    return copy.deepcopy(model.state_dict())


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


class Record:
    """A log function that keeps what it is given."""

    def __init__(self):
        self.figures = {}

    def __call__(self, figures, step):
        assert step not in self.figures
        self.figures[step] = figures

    def __getitem__(self, step):
        return self.figures[step]

    @property
    def steps(self):
        return list(self.figures)


CARRIED = {"0.weight": 1.0, "2.weight": 0.25, "4.weight": 0.5}
"""Constants that parameters of `mlp` are taken to carry."""


def carrying(net, prefix="", constants=CARRIED, lr=0.1):
    """Return groups of an `mlp`, of which some carry constants."""
    groups = {}
    for name, parameter in net.named_parameters():
        carried = constants.get(name, 1.0)
        group = groups.setdefault(carried, {"params": [], "param_names": [], "carried": carried, "lr": lr})
        group["params"].append(parameter)
        group["param_names"].append(prefix + name)
    return list(groups.values())
