"""Watching over two ranks: both are initialised alike, one logs, and the shards of both count in updates."""

import pytest
import torch
from tests.integrations.nets import Record, Stubborn, X, Y, loss_of, mlp, same, state_of
from tests.ranks import on_two_ranks
from tests.versions import needs_newer_torch
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import wellposed as wp
from wellposed.errors import PlanError, RankError, TraceError
from wellposed.integrations import watch


def step(model, optimizer, rows):
    optimizer.zero_grad()
    loss_of(model, X[rows], Y[rows]).backward()
    optimizer.step()


def _work(rank):
    torch.manual_seed(rank)
    found = {}
    rows = torch.arange(8) + 8 * rank
    # data parallel
    model, record = DistributedDataParallel(mlp()), Record()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watcher = watch(model, optimizer, record, initialize="autoinit", every=2)
    for _ in range(3):
        step(model, optimizer, rows)
    found["ddp"] = (state_of(model.module), watcher.plan, record.figures)
    # sharded: the plan is made before
    plan = wp.plan(mlp(), X)
    sharded, record = mlp(), Record()
    fully_shard(sharded)
    optimizer = torch.optim.SGD(sharded.parameters(), lr=0.1)
    try:
        watch(sharded, optimizer, initialize="autoinit")
    except PlanError as error:
        found["refused"] = str(error)
    watch(sharded, optimizer, record, initialize=plan)
    step(sharded, optimizer, rows)
    found["fsdp"] = record.figures
    # what fails on one rank fails on both
    model = Stubborn() if rank == 0 else mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch(model, optimizer, initialize="autoinit")
    try:
        model(X)
    except (RankError, TraceError) as error:
        found["failed"] = (type(error), str(error))
    return found


# All read what the two ranks of one fixture say, which takes seconds.
pytestmark = [pytest.mark.slow, needs_newer_torch("FSDP2 does not run on CPU")]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return on_two_ranks(_work, tmp_path_factory.mktemp("ranks"))


def test_data_parallel_ranks_are_initialised_alike_and_one_logs(found):
    (one, plan, figures), (other, same_plan, none) = found[0]["ddp"], found[1]["ddp"]
    assert plan == same_plan
    assert same(one, other)
    assert list(figures) == [0, 2]
    assert none == {}
    reference = mlp()
    plan.apply_(reference)
    expected = reference[0](X[:8]).detach().square().mean()  # rank 0's own batch
    assert figures[0]["signals/0"] == pytest.approx(float(expected), rel=1e-6)


def test_sharded_updates_are_those_of_the_whole(found):
    reference = mlp()
    wp.initialize_(reference, X)
    before = state_of(reference)
    loss_of(reference, X[:16], Y[:16]).backward()  # both ranks' rows
    (figures,) = found[0]["fsdp"].values()
    assert found[1]["fsdp"] == {}
    for name, parameter in reference.named_parameters():
        rms = 0.1 * parameter.grad.double().square().mean().sqrt()
        assert figures[f"update_rms/{name}"] == pytest.approx(float(rms), rel=1e-3)
        if before[name].any():
            ratio = 0.1 * parameter.grad.double().norm() / before[name].double().norm()
            assert figures[f"updates/{name}"] == pytest.approx(float(ratio), rel=1e-3)
    assert not any(name.startswith("signals/") for name in figures)


def test_sharded_models_are_planned_before_they_are_wrapped(found):
    for rank in (0, 1):
        assert "before wrapping" in found[rank]["refused"]


def test_what_fails_on_one_rank_fails_on_both(found):
    assert found[0]["failed"][0] is TraceError
    assert found[1]["failed"][0] is RankError
    assert "rank 0 failed: TraceError" in found[1]["failed"][1]
