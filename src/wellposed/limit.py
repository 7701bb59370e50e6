"""Processor time that long loops may take, and how far they are: each asks before every step whether it may go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
_GLANCE = 0.005
"""Seconds between two looks at the processor time, which some systems take long to tell."""


class OutOfTime(Exception):
    """The processor time that was given is over."""


@dataclass
class _Limit:
    """The processor time at which loops end, and the time from which on it is looked at again."""

    end: float
    over: bool = False
    next: float = 0.0

    def is_over(self) -> bool:
        """Whether the processor time was over when it was looked at last."""
        now = time.monotonic()
        if not self.over and now >= self.next:
            self.over, self.next = time.process_time() > self.end, now + _GLANCE
        return self.over


@dataclass
class _Watch:
    """Who is told how far a loop is, and whether one is told of already: of loops in loops the outermost counts."""

    told: Callable[[int, int], None]
    busy: bool = False


_LIMIT: ContextVar[_Limit | None] = ContextVar("limit", default=None)
_WATCH: ContextVar[_Watch | None] = ContextVar("watch", default=None)


@contextmanager
def until(end: float | None) -> Iterator[None]:
    """Let work in the block go on until the process has taken ``end`` seconds of processor time (`time.process_time`).

    None sets no limit.
    """
    token = _LIMIT.set(None if end is None else _Limit(end))
    try:
        yield
    finally:
        _LIMIT.reset(token)


@contextmanager
def watched(told: Callable[[int, int], None]) -> Iterator[None]:
    """Tell how far the loops of the block are: ``told(done, total)`` before each step, and once at the end."""
    token = _WATCH.set(_Watch(told))
    try:
        yield
    finally:
        _WATCH.reset(token)


def walked(items: Sequence[T]) -> Iterator[T]:
    """Yield the items of a loop that may take long, while there is time.

    Raises:
        OutOfTime: there is none left.
    """
    limit, watch = _LIMIT.get(), _WATCH.get()
    mine = watch is not None and not watch.busy
    if watch is not None and mine:
        watch.busy = True
    try:
        for done, item in enumerate(items):
            if limit is not None and limit.is_over():
                raise OutOfTime
            if watch is not None and mine:
                watch.told(done, len(items))
            yield item
        if watch is not None and mine:
            watch.told(len(items), len(items))
    finally:
        if watch is not None and mine:
            watch.busy = False
