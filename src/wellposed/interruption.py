"""Ctrl-C, put off to a point where nothing is half done.

Python raises KeyboardInterrupt between any two instructions, and so also where a model, or the process, is about to
become again what it was. While `watched` is open, it waits there: as long as a ``with`` is being entered or left.
"""

from __future__ import annotations

import _thread
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import cast

_BETWEEN = ("__enter__", "__exit__", "enter_context")
"""Functions that set or restore state."""
_WAITING = "concurrent.futures"
"""The library whose threads an ``__exit__`` waits for: it restores nothing meanwhile."""
_OWN = ("contextlib", "wellposed")
_PAUSE = 0.01
"""Seconds after which it is asked again whether a postponed Ctrl-C may be obeyed."""
_PATIENCE = 0.3
"""Seconds after which it is obeyed where a ``with`` takes long to be entered: what it has set by then is put back."""


class Watch:
    """A handler of Ctrl-C that obeys it where nothing is half done.

    Attributes:
        pressed: a Ctrl-C has not been obeyed yet.
        taken_over: the block asks for it itself; a second Ctrl-C is obeyed at once.
    """

    def __init__(self, caller: FrameType | None) -> None:
        self.pressed: bool = False
        self.taken_over: bool = True
        self._caller = caller
        self._seen: dict[FrameType, float] = {}
        self._asked = False  # the next signal is our own
        self._closed = False
        self._lock = threading.Lock()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Obey Ctrl-C, or note it; a thread asks again later."""
        asked, self._asked = self._asked, False
        if asked and not self.pressed:
            return
        again, self.pressed = self.pressed, True
        if self._closed:
            return
        if (again and not asked) if self.taken_over else not self._is_between(frame):
            self.obeyed()
            signal.default_int_handler(number, frame)
        if not again:
            _thread.start_new_thread(self._ask_again, ())

    def obeyed(self) -> None:
        """Forget what was pressed."""
        self.pressed = False
        self._seen.clear()

    def _is_between(self, frame: FrameType | None) -> bool:
        """Whether one of the frames inside the caller's sets or restores state."""
        while frame is not None and frame is not self._caller:
            module, name = str(frame.f_globals.get("__name__")), frame.f_code.co_name
            if module.startswith(_WAITING):
                return False
            if name in _BETWEEN:
                now = time.monotonic()
                return name == "__exit__" or now - self._seen.setdefault(frame, now) < _PATIENCE
            frame = frame.f_back
        return False

    def _ask_again(self) -> None:
        """Interrupt the main thread again and again, as long as an earlier Ctrl-C has not been raised."""
        while True:
            time.sleep(_PAUSE)
            with self._lock:
                if not self.pressed:
                    return
                if self._asked and hasattr(signal, "pthread_kill"):  # not heard yet: the thread may wait for something
                    signal.pthread_kill(cast(int, threading.main_thread().ident), signal.SIGINT)
                self._asked = True
                _thread.interrupt_main()

    def close(self) -> bool:
        """Put the default handler back; say whether a Ctrl-C has not been obeyed."""
        with self._lock:
            pressed, self.pressed, self._closed = self.pressed, False, True
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a pending signal reaches it first
        pressed = pressed or self.pressed
        self.obeyed()
        self._caller = None
        return pressed


def watched(caller: FrameType | None) -> Watch | None:
    """Watch Ctrl-C until the watch is closed, at first for a block that asks for it itself; None where nobody need.

    Handlers of the caller's own stay, and so does what other threads do: only the main thread is ever interrupted.

    Args:
        caller: the frame that asks. What it calls is watched, and what calls it within the library.
    """
    if threading.current_thread() is not threading.main_thread():
        return None
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return None
    watch = Watch(_outside(caller))
    signal.signal(signal.SIGINT, watch)
    return watch


def _outside(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame that is not the library's."""
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _OWN:
        frame = frame.f_back
    return frame


@contextmanager
def postponed_interruption() -> Iterator[Callable[[], bool]]:
    """Run a block of what is `watched` without interruption by Ctrl-C, given a function that tells whether it was
    pressed.

    The block raises KeyboardInterrupt itself when it can; where it ends without, that is raised then. A second Ctrl-C
    is obeyed at once.
    """
    own = threading.current_thread() is threading.main_thread()
    watch = signal.getsignal(signal.SIGINT) if own else None
    if not isinstance(watch, Watch):
        yield lambda: False
        return
    watch.taken_over = True
    try:
        yield lambda: watch.pressed
        if watch.pressed:
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        watch.obeyed()
        raise
    finally:
        watch.taken_over = False


def _renew() -> None:
    """Give a forked process the handler back: it does not come to where the watch is closed."""
    if isinstance(signal.getsignal(signal.SIGINT), Watch):
        signal.signal(signal.SIGINT, signal.default_int_handler)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
