"""Arrays that are computed when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self, TypeVar

from wellposed.signals.distributions.spread import NONE, Sources
from wellposed.signals.integration.kernels import Array


class Lazy:
    """An array, or None, that ``make`` computes at the first `get`; few rules read it."""

    __slots__ = ("_make", "_value")

    def __init__(self, make: Callable[[], Array | None]) -> None:
        self._make: Callable[[], Array | None] | None = make
        self._value: Array | None = None

    @classmethod
    def of(cls, value: Array) -> Self:
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

    def then(self, function: Callable[[Array], Array]) -> Self:
        """Return the lazy result of ``function`` on the array."""

        def make() -> Array | None:
            value = self.get()
            return None if value is None else function(value)

        return self._like(make)

    def _like(self, make: Callable[[], Array | None]) -> Self:
        """Return another lazy array with the same attributes."""
        return type(self)(make)


class LocalScales(Lazy):
    """The kernel Cov(tau_p, tau_{p+d}) of local scales, each relative to its mean, and what these vary with.

    Attributes:
        sources: what ln tau varies with, as far as it is known.
    """

    __slots__ = ("sources",)

    def __init__(self, make: Callable[[], Array | None], sources: Sources = NONE) -> None:
        super().__init__(make)
        self.sources: Sources = sources

    @classmethod
    def of(cls, value: Array, sources: Sources = NONE) -> Self:
        """Return local scales whose kernel is there already."""
        made = super().of(value)
        made.sources = sources
        return made

    def _like(self, make: Callable[[], Array | None]) -> Self:
        """Return local scales with another kernel that vary with the same sources."""
        return type(self)(make, self.sources)


_Kind = TypeVar("_Kind", bound=Lazy)


def evaluated(lazy: Lazy | None) -> Array | None:
    """Return the array of an optional lazy field, None where there is none."""
    return None if lazy is None else lazy.get()


def applied(lazy: _Kind | None, function: Callable[[Array], Array]) -> _Kind | None:
    """Return the lazy result of a function on an optional lazy field, None where there is none."""
    return None if lazy is None else lazy.then(function)
