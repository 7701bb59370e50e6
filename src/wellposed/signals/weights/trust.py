"""Which signals may choose the scale of a weight: those whose size is told, and plausible."""

from __future__ import annotations

import math
from typing import NamedTuple

from wellposed.signals.context.call import OVERFLOW

LEAST, MOST = 1e-8, 1e12
"""Second moments of signals between which they choose scales. Chosen: rounding noise of float32, and its squares, are
beyond; attention over 10,000 tokens is not."""


FOLLOWED = 0.5 * OVERFLOW
"""Second moments from which a signal may be any: what is larger than `OVERFLOW` is followed as that. Chosen."""


class Doubt(NamedTuple):
    """Why the signal that a weight meets at a node did not choose its scale."""

    node: int
    words: str


def why_not(second: float, incoming: float, heavy: bool) -> str:
    """Return why no scale may rest on a signal; ``""`` where one may, and of zeros, which choose nothing anyway.

    Args:
        second: the second moment of one element.
        incoming: the sum of these over all that meets in one output.
        heavy: whether its tails are such that no expectation means anything.
    """
    if not (second < FOLLOWED and math.isfinite(incoming)):
        return "is NaN or infinite"
    if heavy:
        return "has no second moment that means anything"
    if second > 0.0 and not LEAST <= second <= MOST:
        return f"has the second moment {second:.2g}"
    return ""
