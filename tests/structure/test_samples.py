"""Samples of a batch are found wherever views and products have put their index."""

import pytest
import torch
from torch import nn

from wellposed import trace
from wellposed.structure.samples import samples_of


class Applied(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, *xs):
        return self.function(self.weight, *xs)


def last(function, *xs):
    graph = trace(Applied(function), *xs)
    found = samples_of(graph).get(graph.outputs[0])
    return None if found is None else tuple(found)


X = torch.randn(4, 6, 8)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda w, x: x @ w, (0, 1, 4, 1)),
        (lambda w, x: x.transpose(0, 1) @ w, (1, 1, 4, 1)),
        (lambda w, x: x.reshape(24, 8) @ w, (0, 1, 4, 6)),
        (lambda w, x: x.transpose(0, 1).reshape(24, 8) @ w, (0, 6, 4, 1)),
        (lambda w, x: x.mean(1), (0, 1, 4, 1)),
        (lambda w, x: x.unflatten(1, (2, 3)).transpose(0, 1).reshape(8, 3, 8), (0, 2, 4, 1)),
        (lambda w, x: x.mean(0) @ w, None),
        (lambda w, x: w + 1.0, None),
        (lambda w, x: torch.einsum("atc,btc->ab", x, x), None),
    ],
)
def test_samples_are_where_views_put_them(function, expected):
    assert last(function, X) == expected


def test_inputs_of_as_many_samples_are_one_batch():
    assert last(lambda w, x, y: x.mean(1) @ w + y, X, torch.randn(4, 8)) == (0, 1, 4, 1)


def test_indices_of_another_length_are_no_samples():
    edges = torch.tensor([[0, 1, 2], [1, 2, 3]])
    assert last(lambda w, x, edges: x.mean(1)[edges[0]], X, edges) != (0, 1, 2, 1)


def test_a_batch_of_one_tells_nothing():
    assert last(lambda w, x: x @ w, X[:1]) is None


@pytest.mark.parametrize(("places", "expected"), [(5, (0, 1, 5, 1)), (7, None)])
def test_sums_over_links_are_samples_where_there_are_as_many(places, expected):
    edges = torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 2]])
    assert last(lambda w, x, e: x.new_zeros(places, 8).index_add(0, e[1], x[e[0]] @ w), X[0, :5], edges) == expected
