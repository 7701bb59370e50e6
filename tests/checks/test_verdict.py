"""Comparison of predicted and measured signals: which nodes are off, and how that is told."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from wellposed.checks import TOLERANCE, Verdict, compare, log2_ratio
from wellposed.errors import InputError, OptionError
from wellposed.signals.signal import Signal, Signals, Tag


def signal(name: str, second: float, tag: Tag = "exact", std: float = 0.0, error: float = 0.0) -> Signal:
    return Signal(name, name, "linear.default", (2, 3), 0.0, second, tag, std, error)


def verdict(
    predicted: list[Signal], measured: list[Signal], tolerance: float | None = None, weight_draws: int = 4
) -> Verdict:
    return compare(
        Signals(tuple(predicted)),
        Signals(tuple(measured)),
        model="Net",
        draws=4,
        weight_draws=weight_draws,
        tolerance=tolerance,
    )


@pytest.mark.parametrize(
    ("predicted", "measured", "expected"),
    [
        (1.0, 1.0, 0.0),
        (8.0, 1.0, 3.0),
        (1.0, 4.0, -2.0),
        (0.0, 0.0, 0.0),
        (0.0, 1.0, -math.inf),
        (1.0, 0.0, math.inf),
        (math.inf, math.inf, 0.0),
        (1.0, math.inf, -math.inf),
        (math.inf, 1.0, math.inf),
        (0.0, math.inf, -math.inf),
        (1e-320, 1e300, pytest.approx(math.log2(1e-320) - math.log2(1e300))),
    ],
)
def test_the_ratio_is_the_logarithm_to_base_2(predicted: float, measured: float, expected: float) -> None:
    assert log2_ratio(predicted, measured) == expected


@pytest.mark.parametrize("pair", [(math.nan, 1.0), (1.0, math.nan), (math.nan, math.nan), (0.0, math.nan)])
def test_ratio_with_nan_is_nan(pair: tuple[float, float]) -> None:
    assert math.isnan(log2_ratio(*pair))


@pytest.mark.parametrize("tag", [tag for tag in TOLERANCE if tag != "heavy"])
@pytest.mark.parametrize("beyond", [False, True])
def test_tolerance_follows_the_tag(tag: Tag, beyond: bool) -> None:
    second = 2.0 ** (TOLERANCE[tag] + (1e-6 if beyond else -1e-6))
    assert verdict([signal("a", second, tag)], [signal("a", 1.0)]).ok is not beyond


@pytest.mark.parametrize("beyond", [False, True])
def test_the_seen_error_is_allowed(beyond: bool) -> None:
    """Without logarithms to go by: as many standard errors, seen in four draws, as Student's t puts 99 % within."""
    step = 1e-6 if beyond else -1e-6
    second = 2.0 ** (0.1 + stats.t(df=3).ppf(0.995) * 0.3 + step)
    assert verdict([signal("a", second)], [signal("a", 1.0, error=0.3)], tolerance=0.1).ok is not beyond


def drawn(name: str, logs: Sequence[float], std: float | None = None) -> Signal:
    """Return a measurement by the base-2 logarithms of the second moments of its draws."""
    seen = np.array(logs)
    deviation = float(seen.std(ddof=1)) if std is None else std
    made = signal(name, float(np.mean(2.0**seen)), "measured", deviation)
    return replace(made, log2_mean=float(seen.mean()))


@pytest.mark.parametrize("predicted", [0.0, 0.1, 1.0, 30.0])
def test_a_predicted_spread_allows_nothing(predicted: float) -> None:
    """Whatever spread is predicted, the allowance is what the draws show."""
    logs = [0.1, -0.1, 0.05, -0.05]
    allowed = [
        verdict([signal("a", 8.0, std=std)], [drawn("a", logs)]).comparisons[0].allowed for std in (predicted, 0.1)
    ]
    assert allowed[0] == allowed[1] < 0.8


@pytest.mark.parametrize(("predicted", "ok"), [(0.3, True), (1.0, True), (4.0, False), (30.0, False)])
def test_a_wrong_spread_is_off_itself(predicted: float, ok: bool) -> None:
    logs = [0.4, -0.4, 0.3, -0.3, 0.2, -0.2, 0.1, -0.1]
    result = compare(Signals((signal("a", 1.0, std=predicted),)), Signals((drawn("a", logs),)), draws=8, weight_draws=8)
    assert result.first is None
    assert result.ok is ok
    assert bool(result.spread_off) is not ok
    assert ("spread between weight draws off: 1, the first a" in result.summary()) is not ok


def test_a_spread_that_was_not_predicted_is_off_too() -> None:
    logs = 4.0 * np.array([1.2, -1.0, 0.8, -0.9, 1.1, -1.2, 0.2, -0.2])
    predicted = Signals((signal("a", float(np.mean(2.0**logs)), std=0.01),))
    result = compare(predicted, Signals((drawn("a", list(logs)),)), draws=8, weight_draws=8)
    assert result.first is None
    assert result.spread_off


def test_one_set_of_weights_shows_no_spread() -> None:
    result = verdict([signal("a", 4.0, std=5.0)], [drawn("a", [0.1, -0.1, 0.05, -0.05])], weight_draws=1)
    assert not result.spread_off
    assert result.comparisons[0].off
    assert "is predicted to vary by up to 5.0 octaves" in result.summary()


def test_what_other_weights_show_is_allowed_to_one_set() -> None:
    """Passes with other weights of the same moments scatter by two octaves: one set of weights may be as far away."""
    predicted, measured = Signals((signal("a", 4.0, std=2.0),)), Signals((drawn("a", [0.1, -0.1, 0.05, -0.05]),))
    others = Signals((drawn("a", [2.0, -2.0, 1.0, -1.0]),))
    assert compare(predicted, measured, draws=4, weight_draws=1, scatter=others).ok
    assert not compare(predicted, measured, draws=4, weight_draws=1).ok


def test_nothing_compared_is_not_as_predicted() -> None:
    result = verdict([], [])
    assert not result.ok
    assert "nothing was compared" in result.summary()
    assert "all as predicted" not in result.summary()


def test_first_and_worst_are_named_with_their_error() -> None:
    predicted = [signal("a", 1.0), signal("b", 4.0), signal("c", 64.0), signal("d", 1.0)]
    result = verdict(predicted, [signal(name, 1.0) for name in "abcd"])
    assert not result.ok
    assert result.first is not None
    assert (result.first.name, result.first.error) == ("b", 2.0)
    assert result.worst is not None
    assert (result.worst.name, result.worst.error) == ("c", 6.0)
    assert "first off: b (linear.default): predicted E[x²] = 4, measured 1, off by +2.00 octaves" in result.summary()
    assert result.percentile(100) == 6.0
    assert result.percentile(50) == 2.0


def test_zeros_that_were_predicted_are_legitimate() -> None:
    result = verdict([signal("gate", 0.0), signal("b", 1.0)], [signal("gate", 0.0), signal("b", 1.0)])
    assert result.ok
    assert "zero, as predicted (zero-initialised gates or readouts): 1" in result.summary()
    dead = verdict([signal("gate", 1.0)], [signal("gate", 0.0)])
    assert not dead.ok
    assert dead.first is not None
    assert dead.first.error == math.inf


def test_nan_is_off_and_is_the_worst() -> None:
    result = verdict([signal("a", 9.0), signal("b", 1.0)], [signal("a", 1.0), signal("b", math.nan)])
    assert result.worst is not None
    assert result.worst.name == "b"
    assert result.worst.off
    assert result.percentile(100) == math.inf


def test_signals_of_one_side_only_are_listed() -> None:
    result = verdict([signal("a", 1.0), signal("p", 1.0)], [signal("a", 1.0), signal("m", 1.0)])
    assert result.unmatched == ("p", "m")
    assert "without a counterpart: 2, the first p" in result.summary()
    with pytest.raises(InputError, match="no signal is both predicted and measured"):
        verdict([signal("a", 1.0)], [signal("b", 1.0)])


@pytest.mark.parametrize("tolerance", [-0.1, math.nan])
def test_a_bad_tolerance_is_refused(tolerance: float) -> None:
    with pytest.raises(OptionError, match="tolerance must be a number of octaves >= 0, got"):
        verdict([signal("a", 1.0)], [signal("a", 1.0)], tolerance=tolerance)


def test_json_is_strict_and_complete() -> None:
    result = verdict([signal("a", 1.0), signal("b", 2.0)], [signal("a", 0.0), signal("b", 2.0)])

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    document = json.loads(result.to_json(), parse_constant=refuse)
    assert document["ok"] is False
    assert document["first"] == "a"
    assert [node["name"] for node in document["nodes"]] == ["a", "b"]
    assert document["nodes"][0]["error"] == "inf"
    assert document["nodes"][1]["off"] is False
    assert document["nodes"][1]["shape"] == [2, 3]


@pytest.mark.parametrize("width", [40, 60, 200])
def test_table_fits_the_terminal_and_shows_the_worst(width: int) -> None:
    name = "encoder.layers.encoder_layer_11.self_attention:scaled_dot_product_attention"
    predicted = [signal(name, 1e-12)] + [signal(f"n{i}", 1.0) for i in range(30)]
    measured = [signal(name, 1e9)] + [signal(f"n{i}", 1.0) for i in range(30)]
    console = Console(width=width, record=True, file=None, quiet=False, force_terminal=False)
    with console.capture() as capture:
        console.print(verdict(predicted, measured).table(limit=3))
    lines = capture.get().splitlines()
    assert all(len(line) <= width for line in lines)
    text = "".join(line.strip() for line in lines)
    assert "-69.76" in text
    assert "1 off" in " ".join(line.strip() for line in lines)
    assert "".join(text.split()).count("n2") <= 2
