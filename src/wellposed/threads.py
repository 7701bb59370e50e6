"""One thread for work on many small arrays, over which the threads of PyTorch and of BLAS wait for one another."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController

_lock = threading.Lock()
_numbers: list[int] = []
"""The number of threads of PyTorch before the first block that is open, once for each."""
_limits: list[Any] = []
"""The limit of BLAS, and once more for every block that is open: BLAS has one number of threads for the process."""
_forked = False


def is_forked() -> bool:
    """Whether this process was forked from one that had loaded this module."""
    return _forked


@cache
def _found(with_scipy: bool) -> dict[str, ThreadpoolController]:
    loaded = ThreadpoolController()
    return {kind: loaded.select(user_api=kind) for kind in ("openmp", "blas")}


def _pools(kind: str) -> ThreadpoolController:
    """Return the libraries of a kind that are loaded; SciPy brings a BLAS of its own once its algebra is."""
    return _found("scipy.linalg" in sys.modules)[kind]


def _let_any_thread_set(libraries: ThreadpoolController) -> None:
    """Let any thread set the numbers of BLAS: newer versions of threadpoolctl hear only the thread that was first."""
    for library in libraries.lib_controllers:
        if hasattr(library, "clear_controlling_thread"):
            library.clear_controlling_thread(force=True)


def _limit_blas() -> Any:
    """Limit BLAS to one thread and return the limit."""
    libraries = _pools("blas")
    _let_any_thread_set(libraries)
    return libraries.limit(limits=1)


def _restore_blas(limit: Any) -> None:
    """Give BLAS the numbers from before the limit, which another thread may have set."""
    libraries = _pools("blas")
    _let_any_thread_set(libraries)
    limit.restore_original_limits()
    _let_any_thread_set(libraries)


@contextmanager
def torch_on_one_thread() -> Iterator[None]:
    """Run a block in which PyTorch, and MKL within it, work on one thread; it may be nested, and run in several threads
    at once: nothing waits for another, and the number from before the first block comes back.
    """
    import torch

    before = _numbers[0] if _numbers else torch.get_num_threads()
    _numbers.append(before)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        _numbers.pop()
        torch.set_num_threads(before)


@contextmanager
def one_thread() -> Iterator[None]:
    """Run a block in which PyTorch, in this thread, and BLAS work on one thread; it may be nested."""
    # in a forked process MKL would wait for threads of its parent
    with _pools("openmp").limit(limits=1), torch_on_one_thread() if _forked else nullcontext():
        with _lock:
            _limits.append(_limits[0] if _limits else _limit_blas())
        try:
            yield
        finally:
            with _lock:
                limit = _limits.pop() if _limits else None  # none in a process that was forked meanwhile
                if limit is not None and not _limits:
                    _restore_blas(limit)


def _renew() -> None:
    """Free the lock and the limit in a forked process, in which threads that were in a block do not run."""
    global _lock, _forked
    _lock, _forked = threading.Lock(), True
    _numbers.clear()
    if _limits:
        limit = _limits[0]
        _limits.clear()
        _restore_blas(limit)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
