"""How the second moment of a signal varies from one weight draw to another, by the draws that it varies with."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from wellposed.signals.integration.kernels import Array

BLOCK = 4096
"""Numbers that are summed in one go. Chosen, for speed."""


class _Row:
    """Amounts of `Sources` in a buffer with room to grow, shared by sums that extend one another: a layer that adds one
    source does not copy the amounts of all layers before it.

    ``used`` is the number of amounts, ``squares`` the cumulative sums of squares of whole blocks.
    """

    __slots__ = ("amounts", "squares", "used")

    def __init__(self, amounts: Array, length: int) -> None:
        self.amounts: Array = np.zeros(length)
        self.amounts[: amounts.size] = amounts
        self.used: int = amounts.size
        self.squares: list[float] = [0.0]


class Sources:
    """A sum of independent random numbers of variance 1: ``amounts[i]`` times the number with index ``start + i``.

    Signals that vary with the same draw hold the same index, so that the common part cancels in a quotient and adds up
    in a product. Immutable, but buffers may be shared.
    """

    __slots__ = ("_row", "_variance", "amounts", "start")

    def __init__(self, start: int, amounts: Array, row: _Row | None = None) -> None:
        self.start: int = start
        self.amounts: Array = amounts
        self._row: _Row | None = row  # where the amounts are the first ones
        self._variance: float | None = None

    @property
    def variance(self) -> float:
        """Variance of the sum."""
        if self._variance is None:
            amounts, squares = self.amounts, [0.0] if self._row is None else self._row.squares
            whole = amounts.size // BLOCK
            for begin in range((len(squares) - 1) * BLOCK, whole * BLOCK, BLOCK):
                block = amounts[begin : begin + BLOCK]
                squares.append(squares[-1] + float(block @ block))
            rest = amounts[whole * BLOCK :]
            self._variance = squares[whole] + float(rest @ rest)
        return self._variance

    def covariance(self, other: Sources) -> float:
        """Return the covariance of two sums."""
        return 0.5 * ((self + other).variance - self.variance - other.variance)

    def times(self, factor: float) -> Sources:
        """Return a multiple of the sum."""
        if factor == 1.0 or not self.amounts.size:
            return self
        return _shortened(self.start, self.amounts * factor) if factor else NONE

    def __add__(self, other: Sources) -> Sources:
        """Return the sum of two sums."""
        if not other.amounts.size or not self.amounts.size:
            return self if self.amounts.size else other
        first, second = (self, other) if self.start <= other.start else (other, self)
        ahead = second.start - first.start
        if ahead >= first.amounts.size:
            return first._before(second, ahead)
        amounts = np.zeros(max(first.amounts.size, ahead + second.amounts.size))
        amounts[: first.amounts.size] += first.amounts
        amounts[ahead : ahead + second.amounts.size] += second.amounts
        return Sources(first.start, amounts)

    def _before(self, later: Sources, ahead: int) -> Sources:
        """Return the sum with ``later``, whose numbers begin ``ahead`` places after this one's."""
        row, length = self._row, ahead + later.amounts.size
        if row is None or row.used != self.amounts.size or row.amounts.size < length:
            row = _Row(self.amounts, length + length // 2)
        row.amounts[ahead:length] = later.amounts
        row.used = length
        return Sources(self.start, row.amounts[:length], row)


def _shortened(start: int, amounts: Array) -> Sources:
    """Return the sum without leading blocks of amounts that are 0."""
    if amounts.size > BLOCK and not amounts[:BLOCK].any():
        gone = int(np.argmax(amounts != 0.0)) // BLOCK * BLOCK
        return Sources(start + gone, amounts[gone:])
    return Sources(start, amounts)


NONE = Sources(0, np.zeros(0))
"""What varies with no draw."""


def source(number: int, variance: float) -> Sources:
    """Return √``variance`` times the random number with index ``number``."""
    return Sources(number, np.array([variance**0.5])) if variance > 0.0 else NONE


@dataclass(frozen=True, slots=True)
class Spread:
    """How ln(second moment) of a signal varies over weight draws.

    Attributes:
        inherited: variation with the draws before the last contraction, common to all elements.
        own: variation with the draw of the last contraction, from element to element.
    """

    inherited: Sources = NONE
    own: Sources = NONE
    _sources: Sources | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def sources(self) -> Sources:
        """All that ln(second moment) varies with."""
        if self._sources is None:
            object.__setattr__(self, "_sources", self.inherited + self.own)
        return self._sources or NONE

    @property
    def variance(self) -> float:
        """Variance of ln(second moment) over weight draws."""
        return self.sources.variance if self is not STEADY else 0.0

    def times(self, power: float) -> Spread:
        """Return the spread of a power of the signal (of its inverse for ``power`` -1)."""
        if self is STEADY or power == 1.0:
            return self
        return Spread(self.inherited.times(power), self.own.times(power))

    def beside(self, other: Spread, share: float) -> Spread:
        """Return the spread of a sum of two signals; ``other`` has this share of its second moment.

        Narrow spreads add up by their shares. Wide ones are integrated at nine ratios of the two: a mean that rests on
        rare draws of one does not show in most draws. Sources that both share stay whole.
        """
        apart = other + self.times(-1.0)
        variance = apart.variance
        if max(self.variance, other.variance) < WIDE or not (0.0 < share < 1.0 and variance > 0.0):
            return self.times(1.0 - share) + other.times(share)
        at = math.sqrt(variance) * _Z
        # ln(1 - s + s exp(D)) of D, the logarithm of their ratio, which is Gaussian
        middle = 0.5 * (self.variance - other.variance)  # of log-normal variables, whose means are the predictions
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
        return Spread(inherited.times(factor), own.times(factor))

    def __add__(self, other: Spread) -> Spread:
        """Return the spread of a product: logarithms add up."""
        if self is STEADY or other is STEADY:
            return other if self is STEADY else self
        return Spread(self.inherited + other.inherited, self.own + other.own)


WIDE = 1.0
"""Variance of ln(second moment) from which on a sum is integrated over the ratio of its parts. Chosen."""
_Z, _W = np.polynomial.hermite_e.hermegauss(9)
_W = _W / _W.sum()
"""Nine nodes: ln(0.7 + 0.3 e^D) is integrated to 7e-5 for D of standard deviation 2, to 4e-4 for 3."""

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
