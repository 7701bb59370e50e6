"""Results that a model's functions remember (``functools.lru_cache``) must not outlive a tracing.

They would be meta or inference tensors, which a later real pass cannot use.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import _lru_cache_wrapper
from types import FunctionType, ModuleType
from typing import Any, TypeAlias

from torch import nn

Memo: TypeAlias = "_lru_cache_wrapper[Any]"


@contextmanager
def forgotten_results(model: nn.Module) -> Iterator[None]:
    """Empty every memoised function of the model's code that remembers something new when the block ends."""
    memos = [(memo, memo.cache_info().misses) for memo in _memos(model)]
    try:
        yield
    finally:
        for memo, misses in memos:
            if memo.cache_info().misses != misses:
                memo.cache_clear()


def _memos(model: nn.Module) -> list[Memo]:
    """Return the memoised functions in the classes of the model's modules and in the packages that define these."""
    classes = {base for module in model.modules() for base in type(module).__mro__}
    classes = {kind for kind in classes if kind.__module__.partition(".")[0] not in ("torch", "builtins")}
    packages = {kind.__module__.partition(".")[0] for kind in classes}
    files = [file for name, file in list(sys.modules.items()) if name.partition(".")[0] in packages]
    memos: dict[int, Memo] = {}
    for namespace in [vars(kind) for kind in classes] + [vars(file) for file in files if isinstance(file, ModuleType)]:
        for value in list(namespace.values()):
            for memo in _inside(value):
                memos[id(memo)] = memo
    return list(memos.values())


def _inside(value: Any) -> Iterator[Memo]:
    """Yield the memoised functions that ``value`` is, or that it holds as a decorated function."""
    if isinstance(value, _lru_cache_wrapper):
        yield value
    elif isinstance(value, (staticmethod, classmethod)):
        yield from _inside(value.__func__)
    elif isinstance(value, FunctionType):
        for cell in value.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:  # a name that its function has not bound yet
                continue
            if isinstance(content, _lru_cache_wrapper):
                yield content
