"""Functions whose moments rest on elements that occur in no batch: far tails and poles."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from wellposed.signals.distributions.functions import Pointwise
from wellposed.signals.distributions.groups import average_of, rounded
from wellposed.signals.integration.gaussian import NODES, WEIGHTS
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.transport import Transport

USUAL = 4.5
"""Standard deviations within which the elements of a batch lie: one of 150,000 is beyond. Chosen."""
STEEPEST = 12.0
"""Power of x up to which the growth of a function far out is followed, whatever it carries. Chosen: above all powers
that models take, below exp of a signal with standard deviation 2."""
_ENDS = np.array([-8.5, -8.0, 8.0, 8.5])
"""Standard deviations between which the growth of a function far out is taken: the ends of `NODES`."""


@lru_cache(maxsize=8192)
def outgrows_powers(function: Pointwise, mean: float, std: float, transport: Transport | None = None) -> bool:
    """Whether |g| grows faster than x to the power `STEEPEST` eight standard deviations out, or overflows there."""
    z = _ENDS if transport is None else np.interp(_ENDS, NODES, transport.values)
    with np.errstate(all="ignore"):
        left, inner_left, inner_right, right = np.abs(function(mean + std * z))
        powers = np.log([left / inner_left, right / inner_right]) / math.log(_ENDS[3] / _ENDS[2])
    # 0 / 0 is no growth, and neither is a value where the function is not defined
    return bool((powers > STEEPEST).any() or math.isinf(left) or math.isinf(right))


@lru_cache(maxsize=8192)
def _is_carried_by_tails(function: Pointwise, mean: float, std: float, transport: Transport | None = None) -> bool:
    """Whether most of E g² comes from where no element of a batch lies (exp of a wide signal), or it does not exist."""
    if not outgrows_powers(function, mean, std, transport):
        return False
    x = mean + std * (NODES if transport is None else transport.values)
    with np.errstate(all="ignore"):
        squares = WEIGHTS * np.nan_to_num(function(x) ** 2, nan=0.0, posinf=np.inf)
    return is_mostly(squares, np.abs(NODES) > USUAL)


def is_mostly(parts: Array, chosen: npt.NDArray[np.bool_]) -> bool:
    """Whether the chosen parts are more than half of the sum, or the sum is not finite."""
    whole = float(parts.sum())
    return not math.isfinite(whole) or float(parts[chosen].sum()) > 0.5 * whole


def clip_unseen_tails(function: Pointwise, mean: Array, std: Array, transport: Transport | None = None) -> Pointwise:
    """Return the function with its tails cut off, beyond where the elements of a batch lie, if they carry its moments.

    No batch reaches the expectation of such a function, finite or not, and a weight scaled by it would silence every
    batch. A batch has the second moment of the elements that occur in it (signals.md 5.3).
    """
    if not _is_carried_by_tails(function, *average_of(mean, std), transport):
        return function
    ends = (-USUAL, USUAL) if transport is None else np.interp((-USUAL, USUAL), NODES, transport.values)
    return function.clipped(*rounded(float((mean + std * ends[0]).min()), float((mean + std * ends[1]).max())))


@lru_cache(maxsize=8192)
def _pole_level(function: Pointwise, mean: float, std: float, transport: Transport | None) -> float:
    """Return the level that 1 in 1000 elements of |g| are beyond, where g has a pole among them; else infinity."""
    x = mean + std * (NODES if transport is None else transport.values)
    with np.errstate(all="ignore"):
        values = np.abs(function(x))
        squares = WEIGHTS * values * values
        top = int(np.argmax(np.nan_to_num(squares, nan=0.0, posinf=np.inf)))
        if abs(NODES[top]) > USUAL or not squares[top] >= 0.1 * float(np.nansum(squares)) > 0.0:
            return math.inf
        around = np.linspace(x[max(top - 1, 0)], x[min(top + 1, x.size - 1)], 2001)
        among = np.abs(function(around))
        if math.isfinite(values[top]) and not float(np.nanmax(among)) > 5.0 * values[top]:  # a narrow bump
            return math.inf
    order = np.argsort(values)[: int(np.isfinite(values).sum())]
    shares = np.cumsum(WEIGHTS[order])
    return float(values[order][np.searchsorted(shares, 0.999 * shares[-1])])


def without_poles(function: Pointwise, mean: Array, std: Array, transport: Transport | None = None) -> Pointwise:
    """Return the function, cut off where it comes near to a pole that elements lie around (1 / x of a signal near 0).

    Its second moment is infinite, but a batch has the second moment of its own elements.
    """
    level = _pole_level(function, *average_of(mean, std), transport)
    if not math.isfinite(level):
        return function
    call = function.call
    return Pointwise(("cut off", level, function.key), lambda x: call(x).clamp(-level, level))


def is_bounded(function: Pointwise) -> bool:
    """Whether a function stays within its values at moderate numbers however large its argument is."""
    with np.errstate(all="ignore"):
        near, far = np.abs(function(np.array([-3.0, 3.0]))), np.abs(function(np.array([-1e9, 1e9])))
    return bool(np.isfinite(far).all() and far.max() <= 4.0 * near.max())
