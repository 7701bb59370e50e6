"""One thread at a time where a model, or the process, is for a while not what it was.

While a model is traced it holds stand-ins in the places of its parameters; while it is scored, other values; random
generators are seeded, modes are set. Another thread of this library that wants to do the same, or to read or write a
model's parameters, waits until all is as it was. The caller's own code does not wait: see `wellposed.trace`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.RLock()


@contextmanager
def alone() -> Iterator[None]:
    """Run a block, or a function that this decorates, in one thread of the process at a time; it may be nested."""
    with _lock:
        yield


def _renew() -> None:
    """Free the lock in a forked process, in which the thread that held it does not run."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
