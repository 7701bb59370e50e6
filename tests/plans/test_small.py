"""Small parameters, which are drawn many at a time: the numbers of NumPy's own streams, one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import wellposed as wp
from wellposed.plans.small import _states, small_draw, together, write_together_
from wellposed.plans.streams import stream_of

KEYS = [0, 1, (1 << 32) - 1, 1 << 32, (1 << 96) + 5, (1 << 128) - 1, *range(7, 1 << 90, 1 << 86)]


def test_states_are_those_of_numpys_seeding() -> None:
    expected = [np.random.SFC64(np.random.SeedSequence(key, spawn_key=(0,))).state["state"]["state"] for key in KEYS]
    assert np.array_equal(_states(KEYS), np.stack(expected))


@pytest.mark.parametrize("distribution", ["truncated_normal", "normal", "uniform"])
@pytest.mark.parametrize("mean", [0.0, 0.25])
def test_numbers_are_those_of_each_stream_alone(distribution: wp.plans.Distribution, mean: float) -> None:
    shapes = [(3,), (5, 7), (64, 64), (1,), (4, 4, 3, 3), (2, 1)]
    drawn = [
        wp.plans.Drawn(
            name=f"p{i}",
            shape=shape,
            reason="",
            action="write",
            distribution=distribution,
            mean=mean,
            std=0.1 + 0.01 * i,
        )
        for i, shape in enumerate(shapes * 6)
    ]
    memory = [torch.empty(p.shape, dtype=torch.float32 if i % 2 else torch.float64) for i, p in enumerate(drawn)]
    draws = [one for out, p in zip(memory, drawn, strict=True) if (one := small_draw(out, p, 3)) is not None]
    assert len(draws) == len(drawn)
    batches = list(together(draws))
    assert len(batches) > 1
    assert sum(len(batch.draws) for batch in batches) == len(drawn)
    for batch in batches:
        write_together_(batch)
    for out, prescription in zip(memory, drawn, strict=True):
        stream, alone = stream_of(prescription, 3), np.empty(out.numel(), np.float32)
        stream.numbers(stream.bits(0, out.numel()), alone)
        assert np.array_equal(out.to(torch.float32).numpy().ravel(), alone)


def test_what_is_large_or_of_another_kind_is_drawn_by_itself() -> None:
    plan = wp.plan(nn.Linear(80, 80), torch.zeros(1, 80), method="autoinit")
    weight, bias = plan.prescriptions["weight"], plan.prescriptions["bias"]
    assert small_draw(torch.empty(80, 80), weight, 0) is None
    assert small_draw(torch.empty(80), bias, 0) is None  # one number
    assert list(together([])) == []
