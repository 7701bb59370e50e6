"""Every entry of the tables by which sums and products are worked out is needed: without it, moments are wrong."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.signals.driver import Case, Source, verify

from wellposed.signals.algebra import elementwise_products, sums

TWO = (Source((4, 6)), Source((4, 6)))
KEPT = torch.tensor([True, True, False, True, False, False])
MASK = torch.zeros(6, dtype=torch.float64).masked_fill(~KEPT, -torch.inf)
RISING = torch.linspace(-1.0, 1.0, 6, dtype=torch.float64)


def size(x):
    return x.square().mean(-1, keepdim=True)


def over_its_deviation(x):
    mean = x.mean(-1, keepdim=True)
    return (x - mean) * torch.rsqrt(size(x) - mean.square())


def maximum_less_an_operand(x, y):
    return (torch.maximum(x, y) - y).square()


SUMS = {
    "scores and a mask": Case(
        "scores and a mask",
        lambda x: torch.softmax(x + MASK, -1),
        (Source((64, 6)),),
        flat="which keys the mask lets through is not told apart",
    ),
    "masked scores": Case(
        "masked scores",
        lambda x, y: torch.softmax(x.masked_fill(~KEPT, -1e30) + y, -1),
        TWO,
        flat="which keys the mask lets through is not told apart",
    ),
    "a number": Case("a number", lambda x: (x + torch.ones(4, 6, dtype=torch.float64)) * x.square()),
    "a difference and what was taken away": Case(
        "a difference and what was taken away", lambda x, y: F.relu(1.0 - (x + (y.square() - x))), TWO
    ),
    "a maximum less an operand": Case("a maximum less an operand", maximum_less_an_operand, TWO),
    "a sum written before": Case("a sum written before", lambda x: F.relu(x + RISING) * torch.sigmoid(x + RISING)),
    "functions of one tensor": Case("functions of one tensor", lambda x: (F.relu(x) + torch.tanh(x)).square()),
    "concatenations": Case("concatenations", lambda x, y: F.relu(z := torch.cat([x, 2 * y], 1)) + F.relu(-z), TWO),
    "a stack": Case("a stack", lambda x, y: (torch.stack([x, y]) + (x + y))[0], TWO),
    "a tensor less its mean": Case(
        "a tensor less its mean",
        over_its_deviation,
        (Source((4, 24)),),
        bound=0.05,
        why="that elements sum to 0 leaves each pair a covariance of -1/23",
    ),
    "maps of one tensor": Case(
        "maps of one tensor", lambda x: x.cumsum(-1)[:, 2:] - x.cumsum(-1)[:, :-2], (Source((64, 12)),)
    ),
    "differences of one running sum": Case(
        "differences of one running sum",
        lambda x: (c := x.cumsum(-1))[:, :, None] - c[:, None, :],
        bound=0.1,
        why="pairs with an end in common are averaged",
    ),
}
PRODUCTS = {
    "a number": Case("a number", lambda x: F.relu(x * torch.full((4, 6), 2.0, dtype=torch.float64)) * x),
    "concatenations": Case(
        "concatenations", lambda x, y: F.relu(z := torch.cat([x, 2 * y], 1)) * torch.sigmoid(z), TWO
    ),
    "functions of one tensor": Case("functions of one tensor", lambda x: x * x.square()),
    "a tensor and its statistic": Case("a tensor and its statistic", lambda x: x * torch.rsqrt(size(x))),
    "a stack": Case("a stack", lambda x, y: (torch.stack([x, y]) * (x + y))[0], TWO),
}
TABLES = {"SUMS": (sums, SUMS), "PRODUCTS": (elementwise_products, PRODUCTS)}
ENTRIES = [(table, entry.name) for table, (module, _) in TABLES.items() for entry in getattr(module, table)]


@pytest.mark.parametrize(("table", "name"), ENTRIES)
def test_every_entry_is_needed(monkeypatch, table, name):
    module, cases = TABLES[table]
    verify(None, cases[name])
    others = tuple(entry for entry in getattr(module, table) if entry.name != name)
    monkeypatch.setattr(module, table, others)
    with pytest.raises(AssertionError, match="is not what its rule says"):
        verify(None, cases[name])


@pytest.mark.parametrize(("table", "name"), ENTRIES)
def test_only_a_mask_has_to_come_before_others(monkeypatch, table, name):
    module, cases = TABLES[table]
    entries = getattr(module, table)
    monkeypatch.setattr(module, table, tuple(sorted(entries, key=lambda entry: entry.name == name)))
    if name == "scores and a mask":
        with pytest.raises(AssertionError, match="is not what its rule says"):
            verify(None, cases[name])
    else:
        verify(None, cases[name])


def test_no_case_outlives_its_entry():
    assert {(table, name) for table, (_, cases) in TABLES.items() for name in cases} == set(ENTRIES)
