"""Switches of the ablation: each switches off what it names, nothing else, and only while its block runs."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import wellposed as wp
from wellposed.signals.distributions.lazy import LocalScales
from wellposed.signals.distributions.state import Filters, Marginal

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def load():
    """Return a function that imports a script of the benchmarks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        patch.delitem(sys.modules, "nets", raising=False)  # modules of tests bear that name too
        yield importlib.import_module


@pytest.fixture(scope="module")
def mechanisms(load):
    return load("ablated").MECHANISMS


@pytest.fixture(scope="module")
def switches(load):
    return load("switches")


class Smoothed(nn.Module):
    """What is beside its own average over neighbours goes along with it, and has no weight in between."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)

    def forward(self, x):
        x = self.norm(self.first(x))
        return x + functional.avg_pool2d(x, 3, 1, 1)


def signals_of(model, *shape):
    graph = wp.trace(model, torch.zeros(shape))
    return {
        signal.name: (signal.second_moment, signal.log2_std)
        for signal in wp.propagate(graph, weights=wp.plan(graph, rehearse=False))
    }


def test_links_that_are_switched_off_make_a_sum_one_of_strangers(switches, mechanisms):
    torch.manual_seed(0)
    model = Smoothed()
    before = signals_of(model, 2, 3, 16, 16)
    with switches.off(mechanisms["links"]):
        without = signals_of(model, 2, 3, 16, 16)
    (end,) = [name for name in before if name.startswith("add")]
    (pooled,) = [name for name in before if name.startswith("avg_pool")]
    (normed,) = [name for name in before if "norm" in name]
    assert without[end][0] == pytest.approx(without[pooled][0] + without[normed][0])
    assert before[end][0] > 1.1 * without[end][0]
    assert signals_of(model, 2, 3, 16, 16) == before


@pytest.mark.slow
def test_a_mechanism_that_never_acts_changes_nothing_when_it_is_off(switches, mechanisms):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
    with switches.counting(list(mechanisms.values())) as acts:
        before = signals_of(model, 4, 16)
    silent = [mechanism for mechanism in mechanisms.values() if not acts[mechanism.name]]
    assert {"channel_norm_correction", "padded", "linear_map", "dispatched", "masked"} < {one.name for one in silent}
    assert acts["function"]
    assert acts["own"]
    with switches.off(*silent):
        assert signals_of(model, 4, 16) == before


def test_fields_keep_their_defaults_only_while_a_block_runs(switches, mechanisms):
    kernel = LocalScales.of(np.ones(1))
    with switches.off(mechanisms["local_scales"], mechanisms["channel_norm_correction"]):
        marginal = Marginal(True, local_scales=kernel)
        filters = Filters(channel_norm_correction=kernel, margin=kernel)
        assert marginal.local_scales is None
        assert filters.channel_norm_correction is None
        assert marginal.gauss
        assert filters.margin is kernel
    assert Marginal(local_scales=kernel).local_scales is kernel


def test_an_entry_of_a_table_is_missing_only_while_it_is_off_and_the_others_keep_their_order(switches, mechanisms):
    from wellposed.signals.algebra import sums

    before = sums.SUMS
    names = [entry.name for entry in before]
    with switches.off(mechanisms["statistics: plus"], mechanisms["maps: difference"]):
        without = [entry.name for entry in sums.SUMS]
    assert without == [name for name in names if name not in ("a tensor less its mean", "maps of one tensor")]
    assert sums.SUMS is before
    with pytest.raises(ValueError, match="SUMS has no entry"):
        switches.Entry(sums, "SUMS", "nothing")


def held_by_the_package():
    """Return every name of every module of the package, and of its classes: who has it, and what it stands for."""
    found = []
    for known, module in list(sys.modules.items()):
        if known.split(".")[0] == "wellposed":
            own = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == known]
            found += [(holder, name, value) for holder in (module, *own) for name, value in vars(holder).items()]
    return found


@pytest.mark.slow
def test_every_switch_replaces_something_and_gives_it_back(switches, mechanisms):
    switches.load_all()
    before = held_by_the_package()

    def replaced():
        return [name for holder, name, value in before if vars(holder)[name] is not value]

    for mechanism in mechanisms.values():
        for part in mechanism.parts:
            for count in (None, lambda: None):
                with part.replaced(count):
                    assert replaced(), mechanism.name
                assert not replaced(), mechanism.name


class Joined(nn.Module):
    """Two parts side by side, each a product with weights of local scales of its own."""

    def __init__(self):
        super().__init__()
        self.one, self.other, self.out = nn.Linear(16, 8), nn.Linear(16, 8), nn.Linear(16, 4)

    def forward(self, x):
        return self.out(torch.cat([self.one(x).relu(), self.other(x).tanh()], dim=-1))


@pytest.mark.parametrize("name", ["local_scales", "blocks", "function", "links"])
def test_what_is_predicted_without_a_field_is_a_state_whose_parts_agree(switches, mechanisms, name):
    model = Joined()
    with switches.counting([mechanisms[name]]) as acts:
        before = signals_of(model, 4, 16)
    assert acts[name]
    with switches.off(mechanisms[name]):
        assert signals_of(model, 4, 16).keys() == before.keys()


def test_switches_are_given_back_after_an_error(switches, mechanisms):
    from wellposed.signals.distributions import dependence
    from wellposed.signals.passes import application
    from wellposed.signals.sampling import constant_folding

    def held():
        return constant_folding.held, application._with_tails, dependence.WAYS, Marginal.__init__

    before = held()

    def fail():
        with switches.off(*mechanisms.values()):
            assert not any(now is then for now, then in zip(held(), before, strict=True))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert held() == before


@pytest.mark.slow
def test_every_mechanism_costs_lines_that_hold_code(mechanisms):
    lines = {name: mechanism.lines() for name, mechanism in mechanisms.items()}
    assert min(lines.values()) > 0
    assert lines["drawing together"] > lines["draws: _is_outer"]


def test_what_a_mechanism_is_worth_is_more_than_chance(load):
    ablation, tables = load("ablation"), load("ablation_tables")
    full, off = np.zeros(100), np.full(100, 0.5)
    sure = dict(zip(("p95", "p95_se", "mean", "mean_se"), ablation.gained(full, off, np.zeros(100)), strict=True))
    assert sure == pytest.approx({"p95": 0.5, "p95_se": 0.0, "mean": 0.5, "mean_se": 0.0})
    assert tables.helps(sure)
    chance = ablation.gained(full, np.full(100, 0.05), np.full(100, 0.1))
    assert not tables.helps(dict(zip(("p95", "p95_se", "mean", "mean_se"), chance, strict=True)))


def test_a_mechanism_that_is_not_reached_is_not_one_that_is_worth_nothing(load):
    of = load("ablation_tables").of_mechanism
    quiet = {"octaves": 0.0, "spread_octaves": 0.0, "seconds": 1.0}
    row = {"name": "small/one", "seconds": 1.0, "acts": {"idle": 3}, "mechanisms": {"idle": quiet}}
    assert of([row], "idle", "", 1)["class"] == "nothing"
    assert of([row], "other", "", 1)["class"] == "not reached"
    planned = {**row, "mechanisms": {"idle": {**quiet, "stds": 0.5}}}
    assert of([row, planned], "idle", "", 1)["class"] == "no gain"
    worse = {**row, "mechanisms": {"idle": {**quiet, "octaves": 1.0, "p95": 0.5, "p95_se": 0.1}}}
    assert of([row, worse], "idle", "", 1)["class"] == "few nets"
