"""How far chance alone takes a measurement: intervals for log-normal means and for standard deviations."""

from __future__ import annotations

import math
from functools import cache

from wellposed.signals.integration.special import chi_squared_quantile, student_quantile

ERROR_RATE = 0.01
"""Probability with which chance alone puts a mean, or a standard deviation, beyond its interval."""


def log_normal_mean(
    level: float, std: float, count: int, freedom: int, rate: float = ERROR_RATE
) -> tuple[float, float]:
    """Return the confidence interval for log2 of the mean of a log-normal variable.

    The mean of 2^x, x ~ N(m, s²), is 2^(m + s² ln 2 / 2): the interval joins Student's for m with the chi-squared one
    for s², each of which keeps its own, skewed shape (MOVER; Zou, Taleban & Huo 2009, eq. 4).

    Args:
        level: mean of the logarithms (base 2) over the draws.
        std: their standard deviation.
        count: how many draws ``level`` is a mean of.
        freedom: degrees of freedom of ``std``.
        rate: probability with which the mean lies outside.
    """
    chance = student(freedom, rate) * std / math.sqrt(count)
    shift = 0.5 * math.log(2.0) * std * std
    least, most = std_range(freedom, rate)
    middle = level + shift
    return middle - math.hypot(chance, shift * (1 - least**2)), middle + math.hypot(chance, shift * (most**2 - 1))


@cache
def std_range(freedom: int, rate: float = ERROR_RATE) -> tuple[float, float]:
    """Return the confidence interval of a standard deviation, as multiples of the one seen (chi-squared)."""
    least, most = (chi_squared_quantile(freedom, share) for share in (rate / 2, 1 - rate / 2))
    return math.sqrt(freedom / least), math.sqrt(freedom / most)


@cache
def student(freedom: int, rate: float = ERROR_RATE) -> float:
    """Return how many standard errors, seen with so many degrees of freedom, chance is given (Student's t)."""
    return student_quantile(freedom, rate) if freedom else 0.0
