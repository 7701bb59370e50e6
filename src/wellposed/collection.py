"""Python's cyclic garbage collector, paused while many objects are made that are no garbage."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collection() -> Iterator[None]:
    """Keep Python's cyclic garbage collector from running: a pass makes many small objects and hardly a cycle."""
    enabled = gc.isenabled()
    gc.disable()
    if enabled:
        _paused.append(True)
    try:
        yield
    finally:
        if enabled:
            gc.enable()
            del _paused[-1:]


_paused: list[bool] = []
"""Blocks without garbage collection."""


def _renew() -> None:
    """Let a forked process collect again: threads that were in a block do not run in it."""
    if _paused:
        gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
