"""Special functions on arrays by PyTorch, which is loaded already: SciPy's take longer to import than most plans."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[np.float64]

MOST_STEPS, EXACT = 60, 1e-12
"""Steps of Newton at most, and the relative size of one after which the next is below rounding. Chosen."""
NEAR_ZERO = -40.0
"""Logarithm of x below which exp(-x) is 1 to rounding. Chosen."""


def ndtr(x: npt.ArrayLike) -> Array:
    """Return the probability with which a standard normal number is at most x, an array of any shape."""
    return 0.5 * _applied(torch.erfc, np.asarray(x) * -(0.5**0.5))  # PyTorch's own cancels below -4


def ndtri(p: npt.ArrayLike) -> Array:
    """Return the number that a standard normal one is at most with probability p, an array of any shape."""
    return _applied(torch.special.ndtri, p)


def gamma_below(shape: float, x: float) -> float:
    """Return the probability with which a Gamma-distributed number of scale 1 is at most x."""
    return float(_applied(torch.special.gammainc, shape, x))


def gamma_above(shape: float, x: float) -> float:
    """Return the probability with which a Gamma-distributed number of scale 1 is more than x."""
    return float(_applied(torch.special.gammaincc, shape, x))


def chi_squared_quantile(freedom: int, above: float) -> float:
    """Return the number that a chi-squared variable exceeds with probability ``above``."""
    most = freedom - 4.0 * math.log(above) + 4.0 * math.sqrt(-freedom * math.log(above))  # Laurent & Massart 2000
    return _root(lambda x: above - gamma_above(0.5 * freedom, 0.5 * x), 0.0, most)


def student_quantile(freedom: int, outside: float) -> float:
    """Return the number that Student's t exceeds on either side with probability ``outside``, at least 1e-12.

    Source: Abramowitz & Stegun 1964, 26.7.3 and 26.7.4, a finite sum of powers of cos θ, for t = √freedom tan θ.
    """
    odd = freedom % 2

    def inside(angle: float) -> float:
        """Return the probability with which |t| is less."""
        square = math.cos(angle) ** 2
        term = total = (math.cos(angle) if odd else 1.0) * float(freedom > 1)
        for n in range(2 + odd, freedom - 1, 2):
            term *= square * (n - 1) / n
            total += term
        total *= math.sin(angle)
        return 2.0 * (angle + total) / math.pi if odd else total

    return math.sqrt(freedom) * math.tan(_root(lambda angle: inside(angle) - 1.0 + outside, 0.0, 0.5 * math.pi))


def gamma_quantile(shape: float, p: npt.ArrayLike, *, above: bool = False) -> Array:
    """Return the number that a Gamma-distributed one of scale 1 is at most with probability p, or at least with
    ``above``, an array of any shape; p is at least 1e-280.

    The logarithms of both probabilities are concave in that of the number, so that Newton's steps come to it from one
    side. They begin at the cube of a normal number (Wilson & Hilferty 1931), between two bounds: where x^a / Γ(a + 1)
    is p, which is the quantile of numbers near 0, and that of Laurent & Massart (2000, lemma 1).
    """
    goal, other = np.log(p), np.log1p(-np.asarray(p))
    (sign, tail, below, beyond) = (
        (-1.0, torch.special.gammaincc, other, goal) if above else (1.0, torch.special.gammainc, goal, other)
    )
    cube = np.maximum(1.0 - 1.0 / (9.0 * shape) + sign * ndtri(p) / (3.0 * math.sqrt(shape)), 1e-100) ** 3
    least = (below + math.lgamma(shape + 1.0)) / shape
    log = np.clip(np.log(shape * cube), least, np.log(shape + np.sqrt(-2.0 * shape * beyond) - beyond))
    for _ in range(MOST_STEPS):
        x = np.exp(np.maximum(log, NEAR_ZERO))
        found = np.log(_applied(tail, np.full_like(x, shape), x))
        step = np.where(
            least < NEAR_ZERO, 0.0, sign * (goal - found) * np.exp(found + x + math.lgamma(shape) - shape * log)
        )
        log = log + step
        if np.abs(step).max() < EXACT:
            break
    return np.exp(np.where(least < NEAR_ZERO, least, log))


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    """Return where a function that rises from below 0 to above it is 0, by halving the interval."""
    for _ in range(100):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if rising(middle) < 0.0 else (low, middle)
    return 0.5 * (low + high)


def _applied(function: Callable[..., torch.Tensor], *arguments: npt.ArrayLike) -> Array:
    result: Array = function(*[torch.from_numpy(np.array(one, dtype=np.float64)) for one in arguments]).numpy()
    return result
