"""A module in the place of the function that makes it, and what one draw of the weights says of others."""

import copy
import threading

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import wellposed as wp
from wellposed.errors import OptionError, RateError


def loss(model, batch):
    return (model(batch) - batch.sum(1, keepdim=True)).square().mean()


@pytest.fixture
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


@pytest.fixture
def batches():
    return list(torch.randn(3, 8, 4, generator=torch.Generator().manual_seed(0)))


OPTIONS = {"grid": [0.01, 0.02, 0.04], "widen": 0, "progress": False, "vectorize": False}


def test_a_module_is_copied_where_each_seed_has_weights_of_its_own(net, batches):
    before = {name: value.clone() for name, value in net.state_dict().items()}
    plan = wp.plan(net, batches[0])
    found = wp.rates.find_max_lr(net, loss, batches, seeds=2, initialize=plan, **OPTIONS)
    made = wp.rates.find_max_lr(lambda: copy.deepcopy(net), loss, batches, seeds=2, initialize=plan, **OPTIONS)
    assert found.curve == made.curve
    assert len(set(found.curve[0].losses)) == 2
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


def test_a_module_is_taken_as_it_is_for_one_seed(net, batches):
    found = wp.rates.find_max_lr(net, loss, batches, seeds=1, **OPTIONS)
    assert found.curve[0].losses[0] is not None
    assert found.interval is None
    assert found.scaled(2.0, "twice").interval is None


def test_a_module_whose_weights_all_seeds_would_have_is_refused(net, batches):
    with pytest.raises(OptionError, match=r"received a Sequential.*lambda: Sequential\(\.\.\.\).*initialize="):
        wp.rates.find_max_lr(net, loss, batches, **OPTIONS)
    with pytest.raises(OptionError, match="leave out the start 'own'"):
        wp.compare_starts(net, loss, batches, **OPTIONS)
    with pytest.raises(OptionError, match="received str"):
        wp.rates.find_max_lr("net", loss, batches, **OPTIONS)


def test_starts_that_draw_anew_take_a_module(net, batches):
    contest = wp.compare_starts(net, loss, batches, ["kaiming", "autoinit"], seeds=2, **OPTIONS)
    assert len(contest.entrants) == 2


def test_unknown_names_have_near_ones():
    with pytest.raises(AttributeError, match="'chek'; did you mean 'check'"):
        wp.chek  # noqa: B018
    assert not hasattr(wp, "__wrapped__")


def test_what_cannot_be_copied_is_named(net, batches):
    pruned = copy.deepcopy(net)
    prune.l1_unstructured(pruned[0], "weight", 0.5)
    net.lock = threading.Lock()
    for model in (net, pruned):
        with pytest.raises(RateError, match=r"Sequential cannot be copied \(.*a function that makes it needs"):
            wp.rates.find_max_lr(model, loss, batches, seeds=1, **OPTIONS)


def test_functions_that_a_module_shares_with_its_copies_leave_it_alone(net, batches):
    seen = net.seen = []
    net[0].register_forward_hook(lambda *_: seen.append(1))
    once = net[1].register_forward_hook(lambda *_: once.remove())
    hooks = list(net[1]._forward_hooks.values())
    wp.rates.find_max_lr(net, loss, batches, seeds=1, **OPTIONS)
    wp.compare_starts(net, loss, batches, ["autoinit", "orthogonal"], seeds=2, **OPTIONS)
    assert seen == []
    assert list(net[1]._forward_hooks.values()) == hooks


def test_a_module_whose_own_parameters_are_not_run_is_refused(batches):
    class Bound(nn.Linear):
        def __init__(self):
            super().__init__(4, 1)
            run = self.forward
            self.forward = lambda x: run(x)  # a copy runs this one

    with pytest.raises(
        RateError, match="the loss depends on no parameter that the optimizer trains: does the model run"
    ):
        wp.rates.find_max_lr(Bound(), loss, batches, seeds=1, **{**OPTIONS, "vectorize": None})


def test_buffers_on_meta_are_refused(net, batches):
    net.register_buffer("table", torch.empty(2, device="meta"))
    with pytest.raises(RateError, match="Sequential is on the meta device; model_fn must build it on a real one"):
        wp.rates.find_max_lr(net, loss, batches, seeds=1, **OPTIONS)
