"""Processor time that work may take: what walks over a graph asks at every node whether it may go on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_END: ContextVar[float | None] = ContextVar("end", default=None)


class OutOfTime(Exception):
    """The processor time that was given is over."""


@contextmanager
def until(end: float | None) -> Iterator[None]:
    """Let work in the block go on until the process has taken ``end`` seconds of processor time (`time.process_time`).

    None sets no limit.
    """
    token = _END.set(end)
    try:
        yield
    finally:
        _END.reset(token)


def go_on() -> None:
    """Go on, if there is time.

    Raises:
        OutOfTime: there is none left.
    """
    end = _END.get()
    if end is not None and time.process_time() > end:
        raise OutOfTime
