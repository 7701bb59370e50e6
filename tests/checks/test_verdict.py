"""Comparison of predicted and measured signals: which nodes are off, and how that is told."""

from __future__ import annotations

import json
import math

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
def test_ratio(predicted: float, measured: float, expected: float) -> None:
    assert log2_ratio(predicted, measured) == expected


@pytest.mark.parametrize("pair", [(math.nan, 1.0), (1.0, math.nan), (math.nan, math.nan), (0.0, math.nan)])
def test_ratio_with_nan_is_nan(pair: tuple[float, float]) -> None:
    assert math.isnan(log2_ratio(*pair))


@pytest.mark.parametrize("tag", list(TOLERANCE))
@pytest.mark.parametrize("beyond", [False, True])
def test_tolerance_follows_the_tag(tag: Tag, beyond: bool) -> None:
    second = 2.0 ** (TOLERANCE[tag] + (1e-6 if beyond else -1e-6))
    assert verdict([signal("a", second, tag)], [signal("a", 1.0)]).ok is not beyond


@pytest.mark.parametrize("beyond", [False, True])
def test_two_standard_errors_are_allowed(beyond: bool) -> None:
    """Two implied by a known spread; of those seen in four draws, as many as Student's t with 3 degrees needs."""
    step = 1e-6 if beyond else -1e-6
    known = verdict([signal("a", 2.0 ** (0.1 + 2 * 0.3 + step), std=0.6)], [signal("a", 1.0)], tolerance=0.1)
    assert known.ok is not beyond
    quantile = stats.t(df=3).ppf(stats.norm.cdf(2))
    seen = verdict([signal("a", 2.0 ** (0.1 + quantile * 0.3 + step))], [signal("a", 1.0, error=0.3)], tolerance=0.1)
    assert seen.ok is not beyond


@pytest.mark.parametrize(("weight_draws", "standard_error"), [(4, 1.0), (1, 2.0)])
def test_predicted_spread_widens_the_allowance(weight_draws: int, standard_error: float) -> None:
    result = verdict([signal("a", 4.0, std=2.0)], [signal("a", 1.0, error=0.01)], weight_draws=weight_draws)
    assert result.comparisons[0].standard_error == standard_error
    assert result.ok
    assert "ill-conditioned" in result.summary()


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
    assert "known to one side only: 2, the first p" in result.summary()
    with pytest.raises(InputError, match="no signal is both predicted and measured"):
        verdict([signal("a", 1.0)], [signal("b", 1.0)])


@pytest.mark.parametrize("tolerance", [-0.1, math.nan])
def test_bad_tolerance(tolerance: float) -> None:
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
