"""One thread at a time while a model, or the process, is in a temporary state.

While a model is traced it holds stand-ins in the places of its parameters; while it is scored, other values; random
generators are seeded, modes are set. Another thread of this library that wants to do the same, or to read or write a
model's parameters, waits until all is as it was. The caller's own code does not wait: see `wellposed.trace`.

A model's forward may wait for a thread that waits here. Neither would ever go on: the thread is told so.

In a forked process operators run on one thread: PyTorch waits there for those of its parent, which do not run.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import AbstractContextManager, ContextDecorator
from types import FrameType, TracebackType

from wellposed.errors import TraceError
from wellposed.interruption import Watch, watched
from wellposed.threads import is_forked, one_thread

_lock = threading.RLock()
_holder = 0
"""The thread whose turn it is, or was last."""
_PAUSE = 0.1
"""Seconds between two looks at whether Ctrl-C was pressed, while another thread is waited for."""
_PATIENCE = 5.0
"""Seconds for which a forward may wait for something while a thread waits for it; chosen."""


def lock() -> threading.RLock:
    """Return the lock of this process that the thread whose turn it is holds."""
    return _lock


class alone(ContextDecorator):
    """Run a block, or a function that this decorates, in one thread of the process at a time; it may be nested.

    Ctrl-C does not interrupt it where something is set or put back (`wellposed.interruption`).
    """

    def __init__(self) -> None:
        self._watch: Watch | None = None
        self._held = _lock
        self._limit: AbstractContextManager[None] | None = None

    def _recreate_cm(self) -> alone:
        return alone()

    def __enter__(self) -> None:
        """Wait for the other threads' turn to end; Ctrl-C while waiting raises at once.

        Raises:
            TraceError: it does not end, as a forward waits for something meanwhile.
        """
        global _holder
        self._held = _lock
        watch = watched(sys._getframe(1))
        patience = _Patience()
        try:
            while not self._held.acquire(timeout=_PAUSE):
                if watch is not None and watch.pressed:
                    raise KeyboardInterrupt
                patience.look()
        except BaseException:
            if watch is not None:
                watch.close()
            raise
        _holder = threading.get_ident()
        if is_forked():
            self._limit = one_thread()
            self._limit.__enter__()
        if watch is not None:
            watch.taken_over = False
        self._watch = watch

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let the next thread in, and raise a Ctrl-C that was put off."""
        if self._limit is not None:
            self._limit.__exit__(None, None, None)
        self._held.release()
        pressed = self._watch is not None and self._watch.close()
        if pressed and not isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt


class _Patience:
    """Ends where the thread that is waited for waits itself, in a module's forward, at one place."""

    def __init__(self) -> None:
        self._place: tuple[int, int] | None = None
        self._since = 0.0

    def look(self) -> None:
        """Look where the thread that is waited for is.

        Raises:
            TraceError: it has waited for too long.
        """
        frame = sys._current_frames().get(_holder)
        user = None if frame is None else _forward_that_waits(frame)
        place = None if frame is None or user is None else (id(frame), frame.f_lasti)
        if place is None or place != self._place:
            self._place, self._since = place, time.monotonic()
        elif user is not None and time.monotonic() - self._since > _PATIENCE:
            raise TraceError(
                f"the forward of a model waits at {user.f_code.co_filename}:{user.f_lineno}, and this thread, which it "
                "may wait for, waits for the call of wellposed that runs the forward: call wellposed before the forward"
            )


def _forward_that_waits(frame: FrameType) -> FrameType | None:
    """Return the frame of the code that waits by the standard library, where a module's forward has called it."""
    waiting: FrameType | None = frame
    if frame.f_globals.get("__name__") not in _WAITING:
        return None
    while waiting is not None and _package(waiting) in sys.stdlib_module_names:
        waiting = waiting.f_back
    caller = waiting
    while caller is not None and _package(caller) != "wellposed":
        if caller.f_code.co_name == "_call_impl":
            return waiting
        caller = caller.f_back
    return None


_WAITING = ("threading", "queue", "selectors", "concurrent.futures._base", "concurrent.futures.thread")
"""Modules in which Python waits for other threads."""


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def _renew() -> None:
    """Free the lock in a forked process, in which the thread that held it does not run."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
