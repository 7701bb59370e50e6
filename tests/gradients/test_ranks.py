"""Scores and refinements over two ranks: the sub-batches of both count together, and both arrive at the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tests.gradients.nets import Skip, cross_entropy, pictures

import wellposed as wp
from wellposed.errors import GradientError, RankError
from wellposed.gradients import gradcosine, gradient_norm, metainit, nio
from wellposed.gradients.agreement import Sums
from wellposed.gradients.cotangents import Objective, Weighing
from wellposed.gradients.problem import Batch, Problem, sub_batches
from wellposed.gradients.scales import Scales

STEP = 0.05


def model(seed: int) -> Skip:
    torch.manual_seed(seed)
    return Skip().double()


def _work(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    net, batch = model(rank), pictures(8, seed=rank)  # other weights on rank 1: those of rank 0 count
    found: dict[str, Any] = {}
    found["score"] = gradcosine(model(0), cross_entropy, batch, by="layer")
    before = {name: value.clone() for name, value in net.state_dict().items()}
    found["nio"] = nio(net, cross_entropy, [batch], iterations=1, gamma=1e-3, step=STEP)
    found["norm"] = gradient_norm(net, cross_entropy, [batch], gamma=0.5)
    found["same"] = all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    try:
        metainit(net, cross_entropy, [batch])
    except GradientError as error:
        found["refused"] = str(error)
    nan = float("nan") if rank == 1 else 1.0
    try:
        nio(net, lambda m, b: cross_entropy(m, b) * nan, [batch], iterations=1)
    except (GradientError, RankError) as error:
        found["failed"] = (type(error), str(error))
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder: Path = tmp_path_factory.mktemp("ranks")
    mp.spawn(_work, (str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in (0, 1)]


def parts() -> list[Any]:
    return [part for rank in (0, 1) for part in sub_batches(Batch.of(pictures(8, seed=rank)), 2, 0.2)]


def test_score_is_that_of_all_sub_batches(found: list[dict[str, Any]]) -> None:
    problem = Problem(model(0), cross_entropy)
    sums = Sums("layer")
    with problem.running():
        for rows in parts():
            loss, gradients = problem.gradient(problem.parameters, rows)
            sums.add({name: g.unsqueeze(0) for name, g in gradients.items()}, torch.tensor([loss]))
    expected = sums.score("sub-batch")
    assert found[0]["score"] == found[1]["score"]
    assert found[0]["score"].count == 4
    for name in ("cosine", "norm", "ratio", "sign_density", "loss"):
        assert getattr(found[0]["score"], name) == pytest.approx(getattr(expected, name), rel=1e-6)
    assert found[0]["score"].parts["branch"].cosine == pytest.approx(expected.parts["branch"].cosine, rel=1e-9)


def test_one_step_of_nio_is_that_of_all_sub_batches(found: list[dict[str, Any]]) -> None:
    problem = Problem(model(0), cross_entropy)
    scales = Scales(problem)
    with problem.running():
        objective = Objective(problem, "double_backward")
        _, pending = objective.at(scales.parameters(), parts())
        slopes = scales.pulled_back(objective.gradient(pending, Weighing(0.0, 1.0)))
    assert found[0]["nio"] == found[1]["nio"]
    for name, omega in found[0]["nio"].figures["omega"].items():
        assert omega == pytest.approx(1.0 - STEP * float(slopes[name]), rel=1e-9)


def test_gradient_norm_is_averaged(found: list[dict[str, Any]]) -> None:
    assert found[0]["norm"].figures["omega"] == found[1]["norm"].figures["omega"]
    net = model(0)
    found[0]["norm"].apply_(net)
    problem = Problem(net, cross_entropy)
    norms = []
    with problem.running():
        for rows in parts():
            _, gradients = problem.gradient(problem.parameters, rows)
            norms.append(float(torch.cat([g.flatten() for g in gradients.values()]).norm()))
    assert sum(norms) / 4 == pytest.approx(0.5, rel=0.011)


def test_models_stay_and_what_fails_on_one_rank_fails_on_all(found: list[dict[str, Any]]) -> None:
    for rank in (0, 1):
        assert found[rank]["same"]
        assert "does not join the ranks" in found[rank]["refused"]
    assert found[0]["failed"][0] is RankError
    assert "rank 1 failed: GradientError: the loss of a batch is nan" in found[0]["failed"][1]
    assert found[1]["failed"][0] is GradientError


def test_plans_are_plain(found: list[dict[str, Any]]) -> None:
    assert wp.Plan.model_validate_json(found[0]["nio"].to_json()) == found[0]["nio"]
