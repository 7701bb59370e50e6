"""One thread for work on many small arrays, over which the threads of PyTorch and of BLAS wait for one another."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController

_lock = threading.Lock()
_limits: list[Any] = []
"""The limit of BLAS, and once more for every block that is open: BLAS has one number of threads for the process."""


@cache
def _found(with_scipy: bool) -> dict[str, ThreadpoolController]:
    loaded = ThreadpoolController()
    return {kind: loaded.select(user_api=kind) for kind in ("openmp", "blas")}


def _pools(kind: str) -> ThreadpoolController:
    """Return the libraries of a kind that are loaded; SciPy brings a BLAS of its own once its algebra is."""
    return _found("scipy.linalg" in sys.modules)[kind]


@contextmanager
def one_thread() -> Iterator[None]:
    """Run a block in which PyTorch, in this thread, and BLAS work on one thread; it may be nested."""
    with _pools("openmp").limit(limits=1):
        with _lock:
            _limits.append(_limits[0] if _limits else _pools("blas").limit(limits=1))
        try:
            yield
        finally:
            with _lock:
                limit = _limits.pop()
                if not _limits:
                    limit.restore_original_limits()
