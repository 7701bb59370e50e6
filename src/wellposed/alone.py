"""One thread at a time while a model, or the process, is in a temporary state.

While a model is traced it holds stand-ins in the places of its parameters; while it is scored, other values; random
generators are seeded, modes are set. Another thread of this library that wants to do the same, or to read or write a
model's parameters, waits until all is as it was. The caller's own code does not wait: see `wellposed.trace`.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import ContextDecorator
from types import TracebackType

from wellposed.interruption import Watch, watched

_lock = threading.RLock()
_PAUSE = 0.1
"""Seconds between two looks at whether Ctrl-C was pressed, while another thread is waited for."""


class alone(ContextDecorator):
    """Run a block, or a function that this decorates, in one thread of the process at a time; it may be nested.

    Ctrl-C does not interrupt it where something is set or put back (`wellposed.interruption`).
    """

    def __init__(self) -> None:
        self._watch: Watch | None = None
        self._held = _lock

    def _recreate_cm(self) -> alone:
        return alone()

    def __enter__(self) -> None:
        """Wait for the other threads' turn to end; Ctrl-C while waiting raises at once."""
        self._held = _lock
        watch = watched(sys._getframe(1))
        try:
            while not self._held.acquire(timeout=_PAUSE):
                if watch is not None and watch.pressed:
                    raise KeyboardInterrupt
        except BaseException:
            if watch is not None:
                watch.close()
            raise
        if watch is not None:
            watch.taken_over = False
        self._watch = watch

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let the next thread in, and raise a Ctrl-C that was put off."""
        self._held.release()
        pressed = self._watch is not None and self._watch.close()
        if pressed and not isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt


def _renew() -> None:
    """Free the lock in a forked process, in which the thread that held it does not run."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
