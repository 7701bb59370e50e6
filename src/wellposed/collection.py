"""Python's cyclic garbage collector, paused or held back while many objects are made that are no garbage."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

SELDOM = (50_000, 20, 20)
"""Objects, and runs over younger ones, after which a command collects garbage. Chosen: a command imports libraries of
a million objects that live to its end, and Python's own 700 would go through all of them several times."""


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Collect garbage seldom within a block."""
    usual = gc.get_threshold()
    gc.set_threshold(*SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*usual)


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


@contextmanager
def kept_for_good() -> Iterator[None]:
    """Pause garbage collection while what lives to the end of the process is made, and count it as old afterwards.

    Frozen and thawed, all objects are of the oldest generation without being looked at: the next collection of young
    ones would go through all that was made, and a whole collection would follow it. Where a caller has frozen objects
    himself, they stay frozen, and the others young.
    """
    with paused_collection():
        yield
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()


_paused: list[bool] = []
"""Blocks without garbage collection."""


def _renew() -> None:
    """Let a forked process collect again: threads that were in a block do not run in it."""
    if _paused:
        gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
