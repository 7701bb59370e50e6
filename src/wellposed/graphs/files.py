"""Which files' code a model may run, and what in them can hold a tensor: globals, classes, memoised functions."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import _lru_cache_wrapper
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, TypeAlias
from weakref import ref

from torch import Tensor, nn

from wellposed.graphs.restore import NOT_OF_MODELS

Memo: TypeAlias = "_lru_cache_wrapper[Any]"

_CALLED = frozenset({FunctionType, MethodType, _lru_cache_wrapper, type})
_STATE = frozenset({type(None), bool, int, float, dict, list, set, Tensor})
"""Types of class attributes that a pass is likely to set anew."""


class File(NamedTuple):
    """A file with code.

    Attributes:
        size: how many names it has.
        files: those that its names come from.
        holders: names of what can hold a tensor: dicts, lists, classes, functions and objects with attributes.
        memos: the memoised functions among its names and in its classes.
    """

    size: int
    files: frozenset[str]
    holders: tuple[str, ...]
    memos: tuple[ref[Memo], ...]


LOOKED_AT: dict[str, File] = {}
"""Files by name; they are looked at again where they have more names."""


def files_of(model: nn.Module) -> Iterator[tuple[dict[str, Any], File]]:
    """Yield the names of the files that a model's classes and functions come from, and of all that these use."""
    called = [value for module in model.modules() for value in vars(module).values() if type(value) in _CALLED]
    waiting = {home for each in (*kinds_of(model), *called) if is_of_models(home := str(each.__module__))}
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        if isinstance(module := sys.modules.get(name), ModuleType):
            names = vars(module)
            file = LOOKED_AT.get(name)
            if file is None or file.size != len(names):
                file = LOOKED_AT[name] = _look_at(name, names)
            waiting |= file.files - seen
            yield names, file


def kinds_of(model: nn.Module) -> set[type]:
    """Return the classes of a model's modules, and those that they derive from; none of torch."""
    kinds = {base for kind in {type(module) for module in model.modules()} for base in kind.__mro__}
    return {kind for kind in kinds if is_of_models(kind.__module__)}


def is_of_models(file: str) -> bool:
    """Whether a file may be of a model's library, by its name."""
    first = file.partition(".")[0]
    return first not in NOT_OF_MODELS and first != "wellposed"


def _look_at(name: str, names: dict[str, Any]) -> File:
    """Return what the names of a file lead to."""
    files: set[str] = set()
    holders: list[str] = []
    found: dict[int, ref[Memo]] = {}
    for key, value in list(names.items()):
        home, holds = _home(value)
        if home == name and isinstance(value, type):
            found |= {id(memo): ref(memo) for memo in memos(vars(value).values())}
        found |= {id(memo): ref(memo) for memo in memos([value])}
        if holds and (home == name or not isinstance(value, type | FunctionType)) and not key.startswith("__"):
            holders.append(key)
        if home in sys.modules and is_of_models(home):
            files.add(home)
    return File(len(names), frozenset(files), tuple(holders), tuple(found.values()))


def _home(value: Any) -> tuple[str, bool]:
    """Return the file that a value, or its class, comes from, and whether it can hold a tensor."""
    kind = type(value)
    if issubclass(kind, ModuleType):
        return str(vars(value).get("__name__")), False
    if issubclass(kind, type):
        return str(value.__module__), any(
            type(each) in _STATE for name, each in vars(value).items() if not name.startswith("__")
        )
    if issubclass(kind, FunctionType | _lru_cache_wrapper):
        return str(value.__module__), issubclass(kind, FunctionType) and bool(vars(value))
    return str(kind.__module__), kind in (dict, list) or is_of_models(str(kind.__module__))


def memos(values: Iterable[Any]) -> Iterator[Memo]:
    """Yield the memoised functions among values, and those that they hold as decorated functions."""
    for value in values:
        function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        if isinstance(function, _lru_cache_wrapper):
            yield function
        elif isinstance(function, FunctionType):
            for cell in function.__closure__ or ():
                with suppress(ValueError):  # a name that its function has not bound yet
                    if isinstance(cell.cell_contents, _lru_cache_wrapper):
                        yield cell.cell_contents
