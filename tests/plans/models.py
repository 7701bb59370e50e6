"""Models of the tests, and plans for them that are written by hand."""

import torch
from torch import nn

from wellposed.plans import Plan, parameters_by_name


def net():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Sequential(nn.Conv2d(8, 6, 3, groups=2), nn.ReLU()), nn.Linear(6, 5)
    )


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 4)
        self.head = nn.Linear(4, 11, bias=False)
        self.head.weight = self.embed.weight


def plan_for(model, distribution="truncated_normal", seed=0, **changes):
    """Draw every parameter of two or more axes, and put 0.5 into the others; name by name in ``changes``."""
    prescriptions, first = {}, {}
    for name, parameter in parameters_by_name(model).items():
        fields = {"name": name, "shape": tuple(parameter.shape), "action": "write", "reason": "test"}
        if id(parameter) in first:
            fields |= {"action": "tied", "distribution": "keep", "tied_to": first[id(parameter)]}
        elif parameter.ndim < 2:
            fields |= {"distribution": "constant", "constant": 0.5}
        else:
            fields |= {"distribution": distribution, "std": 0.1, "output_axis": 0}
        first.setdefault(id(parameter), name)
        prescriptions[name] = fields | changes.get(name, {})
    return Plan(method="test", seed=seed, model=type(model).__name__, prescriptions=prescriptions)


def snapshot(model):
    """Return copies of everything that a failed call must leave alone."""
    state = {name: tensor.clone() for name, tensor in model.state_dict(keep_vars=True).items()}
    versions = {name: tensor._version for name, tensor in model.state_dict(keep_vars=True).items()}
    return state, versions, torch.random.get_rng_state()


def assert_untouched(model, before):
    state, versions, rng = before
    now = model.state_dict(keep_vars=True)
    assert now.keys() == state.keys()
    for name, tensor in now.items():
        assert torch.equal(tensor, state[name]), name
        assert tensor._version == versions[name], name
    assert torch.equal(torch.random.get_rng_state(), rng)


def values(model):
    return {name: parameter.detach().clone() for name, parameter in parameters_by_name(model).items()}


def assert_same(left, right):
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name
