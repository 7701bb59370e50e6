"""Ranks write one plan: what differs between them is found before anything is written, and one that fails stops all."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.ranks import on_two_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import wellposed as wp
from wellposed.errors import PlanError, WellposedError
from wellposed.plans.alike import Fingerprints, require_alike
from wellposed.signals import Input


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


X = torch.zeros(4, 6)


def attempt(model: nn.Module, *args: Any, **options: Any) -> tuple[str, str, bool]:
    """Return the class and text of the error, and whether the model is as it was."""
    before = numbers(model)
    kind, text = "", ""
    try:
        wp.initialize_(model, *args, **options)
    except WellposedError as error:
        kind, text = type(error).__name__, str(error)
    return kind, text, numbers(model) == before


def numbers(model: nn.Module) -> list[Any]:
    return [None if parameter.is_meta else parameter.tolist() for parameter in model.parameters()]


def situations(rank: int) -> dict[str, tuple[str, str, bool]]:
    """Every situation in one pair of processes, as starting them takes longest."""
    found = {"alike": attempt(net(), X), "wrapped": attempt(DistributedDataParallel(net()), X)}
    found["seed"] = attempt(DistributedDataParallel(net()), X, seed=rank)
    inputs = Input.white(var=1.0 + 3.0 * rank)
    found["inputs"] = attempt(DistributedDataParallel(net()), X, method="autoinit", inputs=inputs)
    found["trace"] = attempt(net(), X if rank else torch.zeros(4, 5))
    with torch.device("meta") if rank else nullcontext():
        unallocated = net()
    found["fit"] = attempt(unallocated, X)
    found["input"] = attempt(nn.Sequential(net(), net()) if rank else net(), X if not rank else torch.zeros(4, 7))
    found["stage"] = attempt(nn.Sequential(net()) if rank else net(), X)
    plan, model = wp.plan(net(), X), net()
    if rank == 0:
        plan.apply_(model)  # by one rank alone: no message is sent
    found["after"] = attempt(net(), X)
    return found


@pytest.mark.slow
def test_ranks_write_one_plan_or_none(tmp_path: Path) -> None:
    first, second = on_two_ranks(situations, tmp_path)
    for name in ("alike", "wrapped", "stage", "after"):
        assert first[name][:1] == second[name][:1] == ("",)
        assert not first[name][2]
        assert not second[name][2]
    for name, told in {"seed": "have the seeds 0 and 1", "inputs": "prescribe otherwise for 1 of 4 parameters"}.items():
        for kind, text, kept in (first[name], second[name]):
            assert kind == "PlanError"
            assert kept
            assert f"the plans of ranks 0 and 1 {told}" in text
            assert "plan(...).apply_(model)" in text
    assert [one["trace"][0] for one in (first, second)] == ["TraceError", "RankError"]
    assert "rank 0 failed: TraceError" in second["trace"][1]
    assert [one["input"][0] for one in (first, second)] == ["RankError", "TraceError"]
    assert [one["fit"][0] for one in (first, second)] == ["RankError", "PlanError"]
    for name in ("trace", "input", "fit"):
        assert first[name][2]
        assert second[name][2]


def test_plans_of_other_parameters_are_not_compared() -> None:
    require_alike([Fingerprints(0, {"a": "1"}), Fingerprints(1, {"b": "2"}), Fingerprints(0, {"a": "1"})])
    with pytest.raises(PlanError, match=r"ranks 0 and 2 prescribe otherwise for 1 of 1 parameters, 'a'"):
        require_alike([Fingerprints(0, {"a": "1"}), Fingerprints(1, {"b": "2"}), Fingerprints(0, {"a": "3"})])
