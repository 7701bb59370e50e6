"""Searches that stand for a longer training: its schedule and clipping, a budget of gradients, the answer's range."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.rates.small import GRID, data, loss_fn, model_fn
from torch import Tensor, nn

import wellposed as wp
from wellposed.errors import OptionError, RateError
from wellposed.rates.ensemble import Member
from wellposed.rates.find import find_max_lr
from wellposed.rates.grid import default_grid
from wellposed.rates.rate import Rate
from wellposed.rates.running import Pace
from wellposed.rates.schedule import schedule_factor


def search(loss: Any = loss_fn, **options: Any) -> Rate:
    return find_max_lr(model_fn, loss, data(), **{"seeds": 1, "progress": False, **options})


def curve(rate: Rate) -> list[float | None]:
    return [point.losses[0] for point in rate.curve]


def gradients(rate: Rate) -> int:
    return int(rate.reason.partition(" gradients in all")[0].rpartition(" ")[2])


# ---- clipping and schedules -----------------------------------------------------------------------------------------


def clipped(rate: float, norm: float) -> float:
    """Train one run in the plainest way, with torch's clipping; return the mean loss over all batches at the end."""
    torch.manual_seed(0)
    model = model_fn()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for index in torch.randperm(8, generator=torch.Generator().manual_seed(0)):
        optimizer.zero_grad()
        loss_fn(model, data()[index]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), norm)
        optimizer.step()
    with torch.no_grad():
        return sum(loss_fn(model, batch).item() for batch in data()) / 8


@pytest.mark.parametrize("vectorize", [True, False])
def test_gradients_are_clipped_as_torch_clips_them(vectorize: bool) -> None:
    rate = search(grid=GRID, clip=0.3, vectorize=vectorize, schedule="constant", widen=0)
    assert curve(rate) == pytest.approx([clipped(lr, 0.3) for lr in GRID], rel=1e-9)
    assert curve(rate) != pytest.approx(curve(search(grid=GRID, schedule="constant", widen=0)), rel=1e-3)
    assert rate.conditions.clip == 0.3
    with pytest.raises(OptionError, match="clip must be a finite number above 0, received 0"):
        search(clip=0)


def test_a_constant_that_a_parameter_carries_counts_in_the_norm() -> None:
    def build(model: nn.Module, lr: float) -> torch.optim.Optimizer:
        first, *others = model.parameters()
        return torch.optim.SGD([{"params": [first], "carried": 5.0}, {"params": others, "carried": 1.0}], lr=lr)

    found = [search(grid=GRID, clip=0.3, optimizer=build, vectorize=one, widen=0) for one in (True, False)]
    assert curve(found[0]) == pytest.approx(curve(found[1]), rel=1e-9)
    assert curve(found[0]) != pytest.approx(curve(search(grid=GRID, clip=0.3, widen=0)), rel=1e-3)


@pytest.mark.parametrize("name", ["warmup_linear", "warmup_cosine"])
def test_schedules_warm_up_and_fall_to_zero(name: str) -> None:
    _, factor = schedule_factor(name)
    assert [factor(0.0), factor(0.05), factor(0.1), factor(1.0)] == pytest.approx([0, 0.5, 1, 0], abs=1e-9)
    falling = [factor(0.1 + 0.05 * k) for k in range(19)]
    assert falling == sorted(falling, reverse=True)
    assert search().conditions.schedule == "warmup_linear"


def test_a_schedule_that_never_leaves_zero_is_refused_and_one_step_has_the_whole_rate() -> None:
    with pytest.raises(OptionError, match="'closed' keeps the rate at 0 in all of 3 steps: give more steps"):
        search(steps=3, schedule=closed)
    assert search(steps=1, widen=0).value > 0.0


def closed(share: float) -> float:
    return 0.0


# ---- a budget of gradients ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("vectorize", [True, False])
@pytest.mark.parametrize("budget", [200, 400])
def test_a_search_keeps_to_its_budget(budget: int, vectorize: bool) -> None:
    steps = 0

    def counting(model: nn.Module, batch: Any) -> Tensor:
        nonlocal steps
        steps += torch.is_grad_enabled()
        return loss_fn(model, batch)

    rate = find_max_lr(
        model_fn, counting, data(), training_steps=1000, budget=budget, vectorize=vectorize, progress=False
    )
    assert gradients(rate) <= budget
    assert rate.conditions.steps == budget * 60 // 400
    if not vectorize:  # and what is evaluated at the end, and tried before, beside it
        assert steps >= gradients(rate)


@pytest.mark.slow
def test_a_search_within_a_budget_finds_what_a_whole_one_finds() -> None:
    whole, short = search(steps=40), search(steps=40, budget=400)
    assert gradients(short) <= 400 < gradients(whole)
    assert abs(math.log2(short.value / whole.value)) < 0.75  # a step of the grid
    assert "lagged and were stopped" in short.reason


@pytest.mark.slow
def test_a_search_that_was_killed_goes_on_within_its_budget(tmp_path: Path) -> None:
    journal = tmp_path / "runs.jsonl"
    first = search(steps=40, budget=400, journal=journal)
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join(lines[:5]) + "\n")
    again = search(steps=40, budget=400, journal=journal)
    assert gradients(again) <= 400
    assert again.value == pytest.approx(first.value, rel=0.5)
    with pytest.raises(RateError, match="runs that lag was 'stopped' and is None"):
        search(steps=40, journal=journal)


def test_what_lags_is_stopped_and_the_best_never() -> None:
    pace = Pace(40)
    slow, fast, other = Member(0.1, 0), Member(1.0, 0), Member(0.1, 1)
    assert pace.kept(10, {slow: 0.19, fast: 1.0, other: 0.19}) == {fast, other}
    assert pace.kept(11, {slow: 0.19, fast: 1.0}) == {slow, fast}
    assert pace.kept(20, {slow: 0.5, fast: 1.0}) == {slow, fast}
    assert pace.kept(20, {slow: 0.49}) == set()  # held against the runs of before
    assert Pace(40).kept(10, {slow: -1.0, fast: -0.1}) == {slow, fast}


# ---- for a longer training ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_answer_for_a_longer_training_is_lower_and_says_how_far_it_may_be_off() -> None:
    grid = default_grid("sgd")
    short, long = search(steps=40, budget=400, grid=grid), search(training_steps=4000, grid=grid)
    assert long.value == pytest.approx(short.value * 0.01**0.2)
    assert long.interval == pytest.approx((long.value / 4, long.value * 4))
    assert (long.conditions.steps, long.conditions.training_steps) == (40, 4000)
    assert "above is the riskier side" in long.reason
    assert "the best lies between" in repr(long)
    assert long.curve == short.curve
    assert search(training_steps=12).conditions.steps == 12


def known(rate: Rate) -> float:
    """Return the rate that a search was told of, from its reason."""
    return float(rate.reason.partition(" that is known without")[0].rpartition("to the ")[2])


@pytest.mark.slow
def test_a_search_begins_around_the_rate_that_is_known_without_and_is_drawn_to_it() -> None:
    found = search(training_steps=1000)
    assert found.conditions.steps == 60
    scale = known(found) * (1000 / 60) ** 0.2
    tried = [point.rate for point in found.curve]
    first = [min(tried, key=lambda rate: abs(math.log(rate / scale / factor))) for factor in (1 / 8, 1 / 2, 2, 8)]
    assert [rate / scale for rate in first] == pytest.approx([1 / 8, 1 / 2, 2, 8], rel=0.01)  # three digits are told
    alone = search(steps=60, training_steps=1000, grid=first)
    share = 0.4 * (1 - 60 / 1000)
    assert found.value == pytest.approx(alone.value ** (1 - share) * known(found) ** share, rel=0.01)
    assert "drawn by 38%, in log rate" in found.reason


@pytest.mark.slow
def test_a_rate_that_is_known_without_counts_within_a_factor_of_8_and_for_what_the_search_leaves_out() -> None:
    found = search(steps=60, budget=400)
    plain = found.in_training(6000).value
    assert found.in_training(6000, plain * 7).value == pytest.approx(plain * 7 ** (0.4 * 0.99))
    assert found.in_training(6000, plain * 9).value == plain
    assert found.in_training(60, found.value * 7).value == found.value
    assert "known without" not in search(training_steps=60).reason


@pytest.mark.slow
def test_a_scaled_loss_has_its_rates_scaled() -> None:
    def scaled(model: nn.Module, batch: Any) -> Tensor:
        return 1e4 * loss_fn(model, batch)

    found, other = search(training_steps=1000), search(training_steps=1000, loss=scaled)
    assert other.value == pytest.approx(found.value / 1e4, rel=0.01)
    assert other.conditions.steps == 60


@pytest.mark.slow
def test_where_no_rate_is_known_without_the_whole_grid_is_searched() -> None:
    assert search(training_steps=1000, optimizer="adagrad").conditions.steps == 40


def test_numbers_out_of_range_are_refused() -> None:
    for options in ({"training_steps": 0}, {"budget": 0}, {"training_steps": 1.5}):
        with pytest.raises(OptionError, match="must be an integer of at least 1"):
            search(**options)


@pytest.mark.slow
def test_a_rate_for_a_training_is_carried_by_transfer() -> None:
    rate = search(training_steps=1000)
    model = model_fn()
    assert wp.rates.transfer(rate, data()[0][0], base=model, target=model).value == pytest.approx(rate.value)
