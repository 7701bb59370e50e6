"""How a learning rate changes over the steps of a search."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from wellposed.errors import OptionError, near_matches

Schedule: TypeAlias = str | Callable[[float], float]
"""A name, or a function that maps the fraction of steps done to the learning rate's factor."""

WARMUP = 0.1
"""Share of the steps in which the rate rises, from 0, before it falls to 0 again."""


def _fall(done: float) -> float:
    """Return half a cosine, from 1 to 0."""
    return (1.0 + math.cos(math.pi * done)) / 2.0


_SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1.0 - done,
    "cosine": _fall,
    "warmup_linear": lambda done: min(done / WARMUP, (1.0 - done) / (1.0 - WARMUP)),
    "warmup_cosine": lambda done: done / WARMUP if done < WARMUP else _fall((done - WARMUP) / (1.0 - WARMUP)),
}


def schedule_factor(schedule: Schedule) -> tuple[str, Callable[[float], float]]:
    """Return a schedule's name and the factor by which it multiplies the learning rate at each fraction of the steps.

    Raises:
        OptionError: an unknown name, or something that cannot be called.
    """
    if callable(schedule):
        return getattr(schedule, "__name__", type(schedule).__name__), schedule
    if schedule not in _SCHEDULES:
        raise OptionError(f"no schedule {schedule!r}{near_matches(str(schedule), _SCHEDULES)}")
    return schedule, _SCHEDULES[schedule]
