"""How the second moment of a signal varies from one weight draw to another, by the draws that it varies with."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from wellposed.signals.integration.kernels import Array


class Sources(NamedTuple):
    """A sum of independent random numbers of variance 1: ``amounts[i]`` times the one with number ``start + i``.

    Two signals that vary with the same draw hold the same number, so that what they have in common cancels in a
    quotient and adds up in a product.
    """

    start: int
    amounts: Array

    @property
    def variance(self) -> float:
        """Variance of the sum."""
        return float(self.amounts @ self.amounts)

    def covariance(self, other: Sources) -> float:
        """Return the covariance of two sums."""
        return 0.5 * ((self + other).variance - self.variance - other.variance)

    def times(self, factor: float) -> Sources:
        """Return a multiple of the sum."""
        if factor == 1.0 or not self.amounts.size:
            return self
        return Sources(self.start, self.amounts * factor) if factor else NONE

    def __add__(self, other: Sources) -> Sources:  # type: ignore[override]
        """Return the sum of two sums."""
        if not other.amounts.size or not self.amounts.size:
            return self if self.amounts.size else other
        start = min(self.start, other.start)
        end = max(self.start + self.amounts.size, other.start + other.amounts.size)
        amounts = np.zeros(end - start)
        for part in (self, other):
            at = part.start - start
            amounts[at : at + part.amounts.size] += part.amounts
        return Sources(start, amounts)


NONE = Sources(0, np.zeros(0))
"""What varies with no draw."""


def source(number: int, variance: float) -> Sources:
    """Return a multiple, of this variance, of the random number ``number``."""
    return Sources(number, np.array([variance**0.5])) if variance > 0.0 else NONE


@dataclass(frozen=True, slots=True)
class Spread:
    """How ln(second moment) of a signal varies over weight draws.

    Attributes:
        inherited: what comes from draws before the last contraction; a scale that all elements share.
        own: what comes from the last contraction's draw, by which elements vary one by one.
        drift: mean of ln(second moment) over weight draws, less the logarithm of the prediction; without that of
            ``own``, which is half its variance below.
    """

    inherited: Sources = NONE
    own: Sources = NONE
    drift: float = 0.0

    @property
    def sources(self) -> Sources:
        """All that ln(second moment) varies with."""
        return self.inherited + self.own

    @property
    def variance(self) -> float:
        """Variance of ln(second moment) over weight draws."""
        return self.sources.variance if self is not STEADY else 0.0

    def times(self, power: float) -> Spread:
        """Return the spread of a power of the signal, of its inverse for -1."""
        if self is STEADY or power == 1.0:
            return self
        return Spread(self.inherited.times(power), self.own.times(power), self.drift * power)

    @property
    def middle(self) -> float:
        """Mean of ln(second moment) over weight draws, less the logarithm of the prediction."""
        return min(self.drift - 0.5 * self.own.variance, -0.5 * self.variance)  # no mean above the prediction

    def beside(self, other: Spread, share: float) -> Spread:
        """Return the spread of a sum of two signals, of whose second moment ``other`` has this share.

        Where both are narrow, logarithms add up by their shares. Wide ones are followed at nine ratios of the two: of a
        mean that rests on rare draws of one, nothing is seen in all others, and what goes along with both stays whole.
        """
        apart = other + self.times(-1.0)
        variance = apart.variance
        if max(self.variance, other.variance) < WIDE or not (0.0 < share < 1.0 and variance > 0.0):
            return self.times(1.0 - share) + other.times(share)
        at = math.sqrt(variance) * _Z
        # ln(1 - s + s exp(D)) of D, the logarithm of their ratio, which is Gaussian
        middle = other.middle - self.middle
        weights = 1.0 / (1.0 + (1.0 - share) / share * np.exp(np.clip(-(middle + at), -60.0, 60.0)))
        logs = np.log1p(share * np.expm1(np.clip(middle + at, -60.0, 60.0)))
        centre, slope = float(_W @ logs), float(_W @ weights)
        inherited = self.inherited.times(1.0 - slope) + other.inherited.times(slope)
        own = self.own.times(1.0 - slope) + other.own.times(slope)
        # of the logarithm of self, what goes along with D
        along = self.sources.covariance(apart.sources) / variance
        whole = max(self.variance - along * along * variance, 0.0) + float(_W @ (along * at + logs - centre) ** 2)
        linear = (inherited + own).variance
        factor = math.sqrt(whole / linear) if linear > 0.0 else 0.0
        own = own.times(factor)
        return Spread(inherited.times(factor), own, self.middle + centre + 0.5 * own.variance)

    def __add__(self, other: Spread) -> Spread:
        """Return the spread of a product: logarithms add up."""
        if self is STEADY or other is STEADY:
            return other if self is STEADY else self
        return Spread(self.inherited + other.inherited, self.own + other.own, self.drift + other.drift)


WIDE = 1.0
"""Variance of ln(second moment) from which on a share of it is not proportional."""
_Z, _W = np.polynomial.hermite_e.hermegauss(9)
_W = _W / _W.sum()

STEADY = Spread()
"""No spread: every weight draw has the second moment that is predicted."""


def mean_spread(parts: Iterable[tuple[float, Spread]]) -> Spread:
    """Return the spread of a sum whose parts have these shares of its second moment (their sum is 1)."""
    result, total = STEADY, 0.0
    for share, spread in parts:
        total += share
        if total > 0.0:
            result = result.beside(spread, share / total)
    return result
