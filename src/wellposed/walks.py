"""Walks: everything that can be reached, step by step, from where one starts."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

_T = TypeVar("_T", bound=Hashable)


def reached(start: Iterable[_T], further: Callable[[_T], Iterable[_T]]) -> Iterator[_T]:
    """Yield ``start`` and all that ``further`` leads to from there, each once, the last that was found first.

    ``further`` is asked after its argument was yielded, so that a caller that has seen enough may stop before.
    """
    pending, seen = list(start), set[_T]()
    while pending:
        one = pending.pop()
        if one not in seen:
            seen.add(one)
            yield one
            pending += further(one)
