"""Scores and refinements over two ranks: the sub-batches of both count together, and both arrive at the same."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from tests.gradients.nets import Skip, cross_entropy, pictures
from tests.ranks import on_two_ranks
from torch import nn

import wellposed as wp
from wellposed.errors import GradientError, RankError, RunError
from wellposed.gradients import gradcosine, gradient_norm, gradinit, lsuv, metainit, nio
from wellposed.gradients.agreement import Stack, Sums
from wellposed.gradients.batches import Batch, sub_batches
from wellposed.gradients.cotangents import Objective, Weighing
from wellposed.gradients.metainit import gradient_quotient
from wellposed.gradients.problem import Problem
from wellposed.gradients.scales import Scales

# All read what the two ranks of one fixture say, which takes seconds.
pytestmark = pytest.mark.slow

STEP = 0.05
ETA = 0.01
GRADINIT = [("sgd", 1e-3), ("sgd", 1e3), ("adam", 1e3)]
"""Outside γ, inside γ with the step's derivative, and inside γ without."""


def model(seed: int) -> Skip:
    torch.manual_seed(seed)
    return Skip().double()


def raising(rank: int, after: int) -> Any:
    """Return a loss that fails on rank 1, once it has been taken a few times."""
    calls: list[int] = []

    def loss(net: nn.Module, batch: Any) -> torch.Tensor:
        calls.append(rank)
        if len(calls) * rank > after:
            raise IndexError("on purpose")
        return cross_entropy(net, batch)

    return loss


def short_of_memory(rank: int) -> Any:
    """Return `Objective.slopes` as it is where memory runs out on rank 1, once."""
    slopes, left = Objective.slopes, [rank]

    def first_without(self: Objective, *given: Any) -> Any:
        if left.pop() if left else 0:
            raise torch.OutOfMemoryError("on purpose")
        return slopes(self, *given)

    return first_without


class Halved(nn.Module):
    """Runs its second layer for batches of an even size."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        return h if len(x) % 2 else self.second(h)


def _work(rank: int) -> dict[Any, Any]:
    net, batch = model(rank), pictures(8, seed=rank)  # other weights on rank 1: those of rank 0 count
    found: dict[Any, Any] = {}
    found["score"] = gradcosine(model(0), cross_entropy, batch, by="layer")
    before = {name: value.clone() for name, value in net.state_dict().items()}
    found["nio"] = nio(net, cross_entropy, [batch], iterations=1, gamma=1e-3, step=STEP)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Objective, "slopes", short_of_memory(rank))
        found["less memory"] = nio(net, cross_entropy, [batch], iterations=1, gamma=1e-3, step=STEP)
    found["norm"] = gradient_norm(net, cross_entropy, [batch], gamma=0.5)
    found["metainit"] = metainit(net, cross_entropy, [batch], iterations=1, rate=STEP)
    for optimizer, gamma in GRADINIT:
        settings: dict[str, Any] = {"optimizer": optimizer, "gamma": gamma, "iterations": 3, "eta": ETA}
        found["gradinit", optimizer, gamma] = gradinit(net, cross_entropy, [batch], **settings)
    found["lsuv"] = lsuv(net, cross_entropy, [batch], orthogonal=False, tolerance=1e-9, training=False)
    found["drawn"] = lsuv(net, example=(batch[0],), plan=wp.plan(model(rank), batch[0]), tolerance=1e-9)
    found["same"] = all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    nan = float("nan") if rank == 1 else 1.0
    try:
        nio(net, lambda m, b: cross_entropy(m, b) * nan, [batch], iterations=1)
    except (GradientError, RankError) as error:
        found["failed"] = (type(error), str(error))
    bad = batch if rank == 0 else (batch[0] * nan, batch[1])
    try:
        lsuv(net, cross_entropy, [bad])
    except (GradientError, RankError) as error:
        found["infinite"] = (type(error), str(error))
    try:
        lsuv(Halved(), None, [torch.randn(8 + rank, 6)])
    except GradientError as error:
        found["other operators"] = str(error)
    broken = (  # labels, and tokens, out of range on rank 1
        lambda: lsuv(net, cross_entropy, [(batch[0], batch[1] + 9 * rank)]),
        lambda: lsuv(nn.Sequential(nn.Embedding(4, 6), nn.Linear(6, 4)), None, [batch[1] + 9 * rank]),
        lambda: gradient_norm(net, raising(rank, after=6), [batch], gamma=0.01),
    )
    for case, call in enumerate(broken):
        try:
            call()
        except (IndexError, RunError, RankError) as error:
            found["broken", case] = (type(error), str(error))
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return on_two_ranks(_work, tmp_path_factory.mktemp("ranks"))


def parts() -> list[Any]:
    return [part for rank in (0, 1) for part in sub_batches(Batch.of(pictures(8, seed=rank)), 2, 0.2)]


def test_score_is_that_of_all_sub_batches(found: list[dict[str, Any]]) -> None:
    problem = Problem(model(0), cross_entropy)
    sums = Sums("layer")
    with problem.running():
        for rows in parts():
            loss, gradients = problem.gradient(problem.parameters, rows)
            sums.add({name: Stack(g.unsqueeze(0)) for name, g in gradients.items()}, torch.tensor([loss]))
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


def test_all_ranks_take_less_memory_where_one_has_too_little(found: list[dict[str, Any]]) -> None:
    assert found[0]["less memory"] == found[1]["less memory"]
    assert found[0]["nio"].figures["engine"] == "double_backward"
    assert found[0]["less memory"].figures["engine"] == "two_pass"
    assert found[0]["less memory"].figures["omega"] == pytest.approx(found[0]["nio"].figures["omega"], rel=1e-9)


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


def test_metainit_follows_the_mean_of_the_ranks_quotients(found: list[dict[str, Any]]) -> None:
    assert found[0]["metainit"] == found[1]["metainit"]
    quotients = {}
    for moved in (0.0, 1e-5, -1e-5):
        for name in found[0]["metainit"].figures["omega"]:
            net = model(0)
            with torch.no_grad():
                net.get_parameter(name).mul_(1.0 + moved)
            each = [gradient_quotient(net, cross_entropy, pictures(8, seed=rank)) for rank in (0, 1)]
            quotients[name, moved] = sum(each) / 2
    assert found[0]["metainit"].figures["history"]["GQ"][0] == pytest.approx(quotients[name, 0.0], rel=1e-9)
    for name, omega in found[0]["metainit"].figures["omega"].items():
        up = quotients[name, 1e-5] > quotients[name, -1e-5]
        norm = float(model(0).get_parameter(name).detach().norm())
        assert omega == pytest.approx(1.0 + (-STEP if up else STEP) / norm, rel=1e-9)


@pytest.mark.parametrize(("optimizer", "gamma"), GRADINIT)
def test_gradinit_is_that_of_both_batches_as_one(found: list[dict[str, Any]], optimizer: Any, gamma: float) -> None:
    given = found[0]["gradinit", optimizer, gamma]
    assert given == found[1]["gradinit", optimizer, gamma]
    # rows in the order in which one process splits them: the first parts of both ranks, then the second parts
    each = [sub_batches(Batch.of(pictures(8, seed=rank)), 2, 0.5) for rank in (0, 1)]
    halves = [[torch.cat([part[half][i] for part in each]) for i in (0, 1)] for half in (0, 1)]
    whole = tuple(torch.cat([half[i] for half in halves]) for i in (0, 1))
    one = gradinit(
        model(0), cross_entropy, [whole], optimizer=optimizer, gamma=gamma, iterations=3, eta=ETA, overlap=0.0
    )
    assert given.figures["history"]["loss"] == pytest.approx(one.figures["history"]["loss"], rel=1e-9)
    assert given.figures["omega"] == pytest.approx(one.figures["omega"], rel=1e-7)


def test_lsuv_takes_the_variance_over_both_batches(found: list[dict[str, Any]]) -> None:
    assert found[0]["lsuv"] == found[1]["lsuv"]
    batches = [pictures(8, seed=rank) for rank in (0, 1)]
    whole = tuple(torch.cat([batch[i] for batch in batches]) for i in (0, 1))
    one = lsuv(model(0), cross_entropy, [whole], orthogonal=False, tolerance=1e-9, training=False)
    assert found[0]["lsuv"].figures["omega"] == pytest.approx(one.figures["omega"], rel=1e-9)
    for when in ("before", "after"):
        assert found[0]["lsuv"].figures["moments"][when] == pytest.approx(one.figures["moments"][when], rel=1e-9)


def test_lsuv_draws_other_inputs_on_each_rank(found: list[dict[str, Any]]) -> None:
    assert found[0]["drawn"] == found[1]["drawn"]
    plan = wp.plan(model(0), pictures(8)[0])
    one = lsuv(model(0), example=(pictures(8)[0],), plan=plan, tolerance=1e-9)
    both, alone = found[0]["drawn"].figures["omega"], one.figures["omega"]
    assert both.keys() == alone.keys()
    assert all(both[name] != alone[name] for name in both)


def test_models_stay_and_what_fails_on_one_rank_fails_on_all(found: list[dict[str, Any]]) -> None:
    for rank in (0, 1):
        assert found[rank]["same"]
        assert found[rank]["infinite"][0] is GradientError
        assert "is not finite" in found[rank]["infinite"][1]
    assert found[0]["failed"][0] is RankError
    assert "rank 1 failed: GradientError: the loss of a batch is nan" in found[0]["failed"][1]
    assert found[1]["failed"][0] is GradientError


def test_ranks_that_run_other_operators_are_named(found: list[dict[str, Any]]) -> None:
    for rank in (0, 1):
        assert "the batch of rank 1 runs other operators than that of rank 0, from " in found[rank]["other operators"]
        assert "with 'second.weight' on" in found[rank]["other operators"]


@pytest.mark.parametrize("case", [0, 1, 2])
def test_no_rank_goes_on_when_another_has_left(found: list[dict[str, Any]], case: int) -> None:
    assert found[1]["broken", case][0] in (IndexError, RunError)
    assert found[0]["broken", case][0] is RankError
    assert re.search("rank 1 failed: (IndexError|RunError)", found[0]["broken", case][1])


def test_plans_made_on_ranks_survive_their_json(found: list[dict[str, Any]]) -> None:
    assert wp.Plan.model_validate_json(found[0]["nio"].to_json()) == found[0]["nio"]
