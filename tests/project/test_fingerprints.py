"""Fingerprints of what is computed: the same for the same net, other ones where a number of it changes."""

import importlib
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def fingerprints():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        patch.delitem(sys.modules, "nets", raising=False)  # modules of tests bear that name too
        yield importlib.import_module("fingerprints")


pytestmark = pytest.mark.slow


def made(slope: float = 0.1):
    def make():
        net = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(slope), nn.Linear(16, 4))
        return net, (torch.zeros(2, 8),), {}

    return make


def test_what_a_net_has_in_common_with_its_like_is_told_from_a_change_of_one_number(fingerprints):
    first, again, other = (
        dict([fingerprints.fingerprint((name, make, True))])
        for name, make in (("net", made()), ("net", made()), ("net", made(0.1 + 1e-6)))
    )
    assert fingerprints.compared(first, again) == []
    changed = fingerprints.compared(first, other)
    assert any("plan, autoinit differs" in line for line in changed)
    assert any("signals, plan differs" in line for line in changed)


def test_a_net_that_is_left_out_on_one_side_is_named(fingerprints):
    (name, there), left_out = fingerprints.fingerprint(("net", made(), False)), {"left out": "no library"}
    assert fingerprints.compared({name: there}, {name: left_out}) == ["net: was there -> no library"]
