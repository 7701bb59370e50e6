"""Arrays that are computed when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable

from wellposed.signals.integration.kernels import Array


class Lazy:
    """An array, or None, that is computed when it is first asked for, since only some rules read it."""

    __slots__ = ("_make", "_value")

    def __init__(self, make: Callable[[], Array | None]) -> None:
        self._make: Callable[[], Array | None] | None = make
        self._value: Array | None = None

    @classmethod
    def of(cls, value: Array) -> Lazy:
        """Return a lazy array whose value is there already."""
        made = cls(lambda: value)
        made.get()
        return made

    @property
    def known(self) -> Array | None:
        """The array if it has been computed and is one, else None."""
        return self._value

    def get(self) -> Array | None:
        """Return the array, which is computed once."""
        if self._make is not None:
            self._value, self._make = self._make(), None
        return self._value

    def then(self, function: Callable[[Array], Array]) -> Lazy:
        """Return the lazy result of ``function`` on the array."""

        def make() -> Array | None:
            value = self.get()
            return None if value is None else function(value)

        return Lazy(make)


def evaluated(lazy: Lazy | None) -> Array | None:
    """Return the array of an optional lazy field, None where there is none."""
    return None if lazy is None else lazy.get()


def applied(lazy: Lazy | None, function: Callable[[Array], Array]) -> Lazy | None:
    """Return the lazy result of a function on an optional lazy field, None where there is none."""
    return None if lazy is None else lazy.then(function)
