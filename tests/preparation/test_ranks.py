"""Preparation over two ranks: each has batches of its own, and all get the same start."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.ranks import on_two_ranks
from torch import nn

import wellposed as wp
from wellposed.errors import DivergedError, RankError

pytestmark = pytest.mark.slow


def _batches(rank: int) -> list[Any]:
    generator = torch.Generator().manual_seed(rank)
    return [(torch.randint(9, (8, 5), generator=generator), torch.randint(3, (8,), generator=generator))] * 4


def _loss(model: Any, batch: Any) -> Any:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(20, 16), nn.GELU(), nn.Linear(16, 3))


def _work(rank: int) -> dict[str, Any]:
    model = _model()
    start = wp.prepare_(model, _loss, _batches(rank), steps=20, progress=False)
    found: dict[str, Any] = {"rate": start.rate, "plan": start.plan, "state": model.state_dict()}
    model = _model()
    if rank == 1:
        with torch.no_grad():
            next(model.parameters()).fill_(float("nan"))
    try:
        wp.prepare(model, _loss, _batches(rank), method="own", progress=False)
    except (DivergedError, RankError) as error:
        found["failed"] = type(error)
    return found


def test_ranks_agree_on_a_start_and_fail_together(tmp_path: Any) -> None:
    one, other = on_two_ranks(_work, tmp_path)
    assert one["rate"] == other["rate"]
    assert one["plan"] == other["plan"]
    assert all(torch.equal(value, other["state"][name]) for name, value in one["state"].items())
    assert (one["failed"], other["failed"]) == (RankError, DivergedError)
