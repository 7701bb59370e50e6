"""A check compares the similarity of samples: what is off is a remark, and never one of a single set of weights."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import wellposed as wp
from wellposed.checks.matching import compare


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(128, 128), nn.ReLU())]
    graph = wp.trace(nn.Sequential(*layers), torch.randn(8, 128))
    return graph, wp.plan(graph, method="autoinit")


def wrong(signals, by):
    items = [replace(signal, similarity=signal.similarity - by) for signal in signals]
    return replace(signals, items=tuple(items))


def test_a_check_tells_how_far_similarities_are_off(net):
    graph, plan = net
    verdict = wp.check(graph, plan=plan)
    assert verdict.ok
    assert not verdict.similarity_off
    assert max(abs(c.similarity_error) for c in verdict.comparisons) < 0.05
    assert "error in similarity of samples: 50th percentile 0.0" in verdict.summary()


def test_a_similarity_that_is_off_is_a_remark(net):
    graph, plan = net
    predicted, measured = wp.propagate(graph, weights=plan), wp.measure(graph, plan=plan)
    told = compare(wrong(predicted, 0.4), measured, draws=8, weight_draws=8, graph=graph)
    assert told.ok
    assert told.similarity_off[0].name == predicted[0].name
    assert "a remark, which fails no check: similarity of samples is off at" in told.summary()
    assert not compare(predicted, measured, draws=8, weight_draws=8, graph=graph).similarity_off


def test_one_set_of_weights_does_not_tell_that_similarities_are_off(net):
    graph, _ = net
    predicted, measured = wp.propagate(graph), wp.measure(graph)
    told = compare(wrong(predicted, 0.5), measured, draws=8, weight_draws=1, graph=graph)
    assert not told.similarity_off
    assert all(math.isfinite(c.similarity_error) for c in told.comparisons)


def test_a_batch_of_one_has_no_line_on_similarity():
    graph = wp.trace(nn.Sequential(nn.Linear(16, 16), nn.ReLU()), torch.randn(1, 16))
    assert "similarity" not in wp.check(graph).summary()
