"""No process is forked while a thread of this library runs a model or imports something.

What is locked then stays locked in the forked process, in which the thread that would free it does not run: Python's
lock of a module that is being imported, those of PyTorch's libraries within an operator.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from types import FrameType

from wellposed import alone

importing = threading.RLock()
"""One thread at a time imports public parts, as modules that import one another would be met half made."""
_PATIENCE = 10.0
"""Seconds for which a fork waits at most: a thread may itself wait for the one that forks. Chosen."""
_held: list[threading.RLock] = []
"""What the thread that forks has taken."""


def _imports(frame: FrameType | None) -> bool:
    """Whether a thread is within an import that this library has called for."""
    below = False
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            below = True
        elif below and str(frame.f_globals.get("__name__")).partition(".")[0] == "wellposed":
            return True
        frame = frame.f_back
    return False


def _wait() -> None:
    """Wait until no other thread runs a model or imports, and let none begin to."""
    me, end = threading.get_ident(), time.monotonic() + _PATIENCE
    for lock in (alone.lock(), importing):  # in the order in which threads take them
        if lock.acquire(timeout=max(0.0, end - time.monotonic())):
            _held.append(lock)
    while any(_imports(frame) for thread, frame in sys._current_frames().items() if thread != me):
        if time.monotonic() > end:
            return
        time.sleep(0.001)


def _go_on() -> None:
    """Let other threads go on, in either process."""
    while _held:
        _held.pop().release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait, after_in_parent=_go_on, after_in_child=_go_on)
