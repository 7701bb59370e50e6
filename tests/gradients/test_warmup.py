"""Warm-up: the rates that a torch scheduler makes of it."""

from __future__ import annotations

import pytest
import torch

from wellposed.errors import OptionError
from wellposed.gradients import warmup


def test_rates_rise_linearly_over_the_first_epoch() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.4)
    schedule = warmup(4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    rates = []
    for _ in range(6):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])
    assert schedule.reason == "linear warm-up over 1 epoch: step t of 4 runs at t/4 of the learning rate"
    assert warmup(4, epochs=2)(0) == 1 / 8


def test_bad_input_is_refused() -> None:
    with pytest.raises(OptionError, match="steps_per_epoch must be an integer of at least 1, received 0"):
        warmup(0)
    with pytest.raises(OptionError, match="epochs must be"):
        warmup(10, epochs=0.5)  # type: ignore[arg-type]
