"""Intervals for log-normal means and for standard deviations, against repeated experiments."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from wellposed.measuring.comparison import compare_one
from wellposed.measuring.intervals import ERROR_RATE, log_normal_mean, std_range, student
from wellposed.signals.signal import Signal


@pytest.mark.parametrize("draws", [4, 8, 32])
@pytest.mark.parametrize("spread", [0.05, 0.5, 2.0, 5.0])
def test_the_mean_of_a_log_normal_variable_is_covered(spread: float, draws: int) -> None:
    """The interval holds the true mean in 99 % of 4000 experiments, to each side, however skewed the variable is."""
    rng = np.random.default_rng(1)
    logs = rng.normal(0.0, spread, size=(4000, draws))
    true = 0.5 * math.log(2.0) * spread**2
    found = [log_normal_mean(x.mean(), x.std(ddof=1), draws, draws - 1) for x in logs]
    below, above = (np.mean([end > true for end, _ in found]), np.mean([end < true for _, end in found]))
    # Three standard errors of the experiments' own; MOVER is close, and not exact, to each side.
    chance = 3 * math.sqrt(ERROR_RATE / 4000)
    assert below <= ERROR_RATE + chance
    assert above <= ERROR_RATE + chance
    assert below + above <= ERROR_RATE + chance


@pytest.mark.slow
def test_two_standard_errors_of_a_skewed_mean_are_too_few() -> None:
    """What the interval replaces: mean and jackknife error of the arithmetic mean miss four times as often as told."""
    rng = np.random.default_rng(2)
    values = np.exp2(rng.normal(0.0, 2.0, size=(4000, 8)))
    true = 2 * math.log(2.0)
    means = np.log2(values.mean(axis=1))
    errors = np.array([np.std([np.log2(np.delete(x, i).mean()) for i in range(8)]) * math.sqrt(7) for x in values])
    assert np.mean(np.abs(means - true) > 2 * errors) > 0.2


def test_quantiles_are_those_of_scipy() -> None:
    assert student(7) == pytest.approx(stats.t(7).ppf(0.995))
    assert student(0) == 0.0
    least, most = std_range(7)
    assert least == pytest.approx(math.sqrt(7 / stats.chi2(7).ppf(0.995)))
    assert most == pytest.approx(math.sqrt(7 / stats.chi2(7).ppf(0.005)))


def test_a_signal_of_one_draw_alone_is_never_off() -> None:
    """A signal that is 0 in all draws but one (samples dropped as a whole) says nothing of how far its mean is off."""
    zeros = -math.inf
    signal = Signal("x", "", "dropout", (2,), 0.0, 1.0, "exact")
    alone = Signal("x", "", "dropout", (2,), 0.0, 0.125, "measured", math.nan, math.nan, zeros)
    some = Signal("x", "", "dropout", (2,), 0.0, 0.125, "measured", math.nan, 0.5, zeros)
    none = Signal("x", "", "dropout", (2,), 0.0, 0.0, "measured", 0.0, 0.0, zeros)
    off = [compare_one(signal, seen, "forward", 8, None, seen).off for seen in (alone, some, none)]
    assert off == [False, True, True]
