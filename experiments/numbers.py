"""Numbers as results hold them, and what the experiments say of several."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import Any

from scipy.special import stdtrit


def log2(value: float) -> float:
    """Return the base-2 logarithm with two digits, as results keep it; -inf for 0."""
    return round(math.log2(value), 2) if value > 0 else (-math.inf if value == 0 else math.nan)


def largest(values: Iterable[float | str]) -> float:
    """Return the largest of numbers as JSON holds them; infinite where one is NaN."""
    floats = [float(value) for value in values]
    return max(math.inf if math.isnan(value) else value for value in floats)


def mean(values: Iterable[float | str]) -> float:
    """Return the mean of numbers as JSON holds them."""
    return fmean(float(value) for value in values)


def standard_error(values: Iterable[float | str]) -> float:
    """Return the standard error of the mean; NaN for fewer than two values."""
    floats = [float(value) for value in values]
    return stdev(floats) / math.sqrt(len(floats)) if len(floats) > 1 else math.nan


@dataclass(frozen=True, slots=True)
class Gap:
    """A mean difference of independent pairs.

    Attributes:
        mean: of the differences.
        error: its standard error; NaN for a single pair.
        count: number of pairs.
    """

    mean: float
    error: float
    count: int

    def sign(self, comparisons: int = 1) -> int:
        """Return 1 or -1 where chance alone would give such a mean in less than 5 % of cases (Student's t), else 0.

        Where one of several comparisons decides, each has its share of the 5 % (Bonferroni).
        """
        if math.isnan(self.error):
            return 0
        return 0 if abs(self.mean) <= self._room(comparisons) else (1 if self.mean > 0 else -1)

    def within(self, bound: float) -> bool:
        """Return whether the 95 % interval (Student's t) lies between -bound and bound."""
        return not math.isnan(self.error) and abs(self.mean) + self._room() < bound

    def above(self, bound: float) -> bool:
        """Return whether the 95 % interval (Student's t) lies above a bound."""
        return not math.isnan(self.error) and self.mean - self._room() > bound

    def _room(self, comparisons: int = 1) -> float:
        return float(stdtrit(self.count - 1, 1 - 0.025 / comparisons)) * self.error


def paired(one: Iterable[float | str], other: Iterable[float | str]) -> Gap:
    """Return the mean of the differences of pairs, which are to be independent of each other."""
    gaps = [float(a) - float(b) for a, b in zip(one, other, strict=True)]
    return Gap(mean(gaps), standard_error(gaps), len(gaps))


def accuracies(rows: Iterable[Mapping[str, Any]], *keys: str) -> dict[Any, dict[str, float]]:
    """Return the mean accuracy of each initialisation (``method``), by the value of one key or those of several."""
    grouped: dict[Any, dict[str, list[float]]] = {}
    for row in rows:
        at = row[keys[0]] if len(keys) == 1 else tuple(row[key] for key in keys)
        grouped.setdefault(at, {}).setdefault(row["method"], []).append(row["accuracy"])
    return {at: {method: mean(values) for method, values in by.items()} for at, by in grouped.items()}


def best_so_far(trials: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return, after each trial of a search, the ``test`` of the one whose ``valid`` is the largest so far."""
    best, found = trials[0], []
    for each in trials:
        best = each if float(each["valid"]) > float(best["valid"]) else best
        found.append(float(best["test"]))
    return found


def predicted_well(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return how far the predictions of rows (``predicted`` beside ``measured``, logarithms) are off, in words."""
    pairs = [(float(p), float(m)) for row in rows for p, m in zip(row["predicted"], row["measured"], strict=True)]
    off = sorted(abs(p - m) for p, m in pairs if math.isfinite(p) and math.isfinite(m))
    if not off:
        return "no prediction and measurement are both finite"
    far = off[math.ceil(0.95 * len(off)) - 1]
    return (
        f"wp.propagate, given the images, is off by {median(off):.2f} octaves in the median layer, {far:.2f} at the "
        "95th percentile"
    )


def percent(value: float) -> str:
    """Return a share in words."""
    return f"{100 * value:.1f} %"


def points(gap: float | Gap) -> str:
    """Return a difference of shares in words, with its standard error where there is one."""
    if isinstance(gap, Gap) and not math.isnan(gap.error):
        return f"{100 * gap.mean:+.1f} ± {100 * gap.error:.1f} points"
    return f"{100 * (gap.mean if isinstance(gap, Gap) else gap):+.1f} points"
