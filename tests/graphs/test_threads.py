"""Threads that share a model: each finds it as it is, and leaves it so."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from tests.plans.models import assert_same, values
from torch import nn

import wellposed as wp
from wellposed.gradients import gradcosine

X = torch.randn(4, 8)
LABELS = torch.tensor([0, 1, 2, 0])


def net() -> nn.Module:
    return nn.Sequential(
        *[layer for _ in range(6) for layer in (nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Tanh())]
    )


def loss_fn(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


USES: dict[str, Callable[[nn.Module], object]] = {
    "trace": lambda model: wp.trace(model, X),
    "plan": lambda model: wp.plan(model, X),
    "check": lambda model: wp.check(model, X),
    "score": lambda model: gradcosine(model, loss_fn, (X, LABELS)),
    "apply": lambda model: PLAN.apply_(model),
    "groups": lambda model: [group["params"] for group in PLAN.param_groups(model, lr=0.1)],
}
PLAN = wp.plan(net(), X)


def random_states() -> list[object]:
    return [torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())]  # noqa: NPY002


@pytest.mark.slow
@pytest.mark.parametrize("use", USES)
def test_two_threads_with_one_model_leave_it_as_it_was(use):
    for _ in range(3):
        model = net()
        PLAN.apply_(model)
        before, held = values(model), {name: id(p) for name, p in model.named_parameters()}
        states, start = random_states(), threading.Barrier(3)

        def together(which: str, model: nn.Module = model, start: threading.Barrier = start) -> object:
            start.wait()
            return USES[which](model)

        with ThreadPoolExecutor(3) as pool:
            done = list(pool.map(together, [use, "trace", use]))
        assert {name: id(p) for name, p in model.named_parameters()} == held
        assert_same(values(model), before)
        assert random_states() == states
        assert model.training
        if use == "groups":
            assert {id(p) for params in done[0] for p in params} == set(held.values())
