"""Ctrl-C, put off to a point where nothing is half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def postponed_interruption() -> Iterator[Callable[[], bool]]:
    """Run a block that Ctrl-C does not interrupt; it is given a function that says whether that was pressed.

    The block raises KeyboardInterrupt itself when it can; where it ends without, that is raised then. A second Ctrl-C
    is obeyed at once. Handlers of the caller's own for the signal stay, and so does what other threads do: only the
    main thread is ever interrupted.
    """
    own = threading.current_thread() is not threading.main_thread()
    if own or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield _never
        return
    pressed = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            signal.default_int_handler(number, frame)
        pressed = True

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
        if pressed:
            raise KeyboardInterrupt
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _never() -> bool:
    return False
