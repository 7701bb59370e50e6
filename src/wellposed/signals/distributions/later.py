"""Parts of states that are worked out when they are first asked for: no rule reads the moments of every concatenation,
or of every function on the way to the one that a weight meets.

A field that is not there yet is asked of ``__getattr__``, which Python calls for what is missing alone: parts that are
there cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from wellposed.signals.distributions.moments import Moments
from wellposed.signals.distributions.spread import Spread
from wellposed.signals.distributions.state import Ancestry, Link, Marginal, Statistic


class LaterMoments(Moments):
    """Moments that ``make`` computes at the first access; with ``varies`` the variance counts as > 0 until then."""

    __slots__ = ("_make", "varies")

    def __init__(self, make: Callable[[], Moments], *, varies: bool = False) -> None:
        object.__setattr__(self, "_make", make)
        object.__setattr__(self, "varies", varies)

    def __getattr__(self, name: str) -> Any:
        """Return a field that is not there yet."""
        found = _filled(self, name)
        object.__setattr__(self, "varies", False)
        return found

    def work_out(self) -> None:
        """Make all fields, if they are not there yet."""
        if self._make is not None:
            self.__getattr__("mean")

    def then(self, change: Callable[[Moments], Moments]) -> None:
        """Append ``change`` to what will be computed; in place, before the first access."""
        make = self._make
        object.__setattr__(self, "_make", lambda: change(make()))


class _Later:
    """A part of a state that ``make`` computes at the first access to a field."""

    __slots__ = ()

    def __init__(self, make: Callable[[], Any]) -> None:
        object.__setattr__(self, "_make", make)

    def __getattr__(self, name: str) -> Any:
        """Return a field that is not there yet."""
        return _filled(self, name)


class LaterMarginal(Marginal):
    """A marginal of which nothing is known but whether it is Gaussian, which ``make`` works out."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[], Marginal]) -> None:
        object.__setattr__(self, "_make", make)
        for name in ("function", "transport", "local_scales"):
            object.__setattr__(self, name, None)

    def __getattr__(self, name: str) -> Any:
        """Return whether it is Gaussian, which is not there yet."""
        return _filled(self, name)


class LaterSpread(_Later, Spread):
    """A spread that ``make`` works out."""

    __slots__ = ("_make",)


class LaterAncestry(Ancestry):
    """An ancestry whose links ``make`` works out."""

    __slots__ = ("_make",)

    def __init__(
        self,
        make: Callable[[], tuple[Link, ...]],
        roots: int,
        scale_parameter: str | None = None,
        origin: Statistic | None = None,
    ) -> None:
        known: dict[str, Any] = {**_NOTHING, "roots": roots, "scale_parameter": scale_parameter, "origin": origin}
        object.__setattr__(self, "_make", lambda: Ancestry(make(), **known))
        for name, value in known.items():
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        """Return the links, which are not there yet."""
        return _filled(self, name)


_NOTHING = {item.name: item.default for item in fields(Ancestry) if item.name != "links"}
_NAMES = {
    later: tuple([item.name for item in fields(kind)])
    for later, kind in (
        (LaterMoments, Moments),
        (LaterMarginal, Marginal),
        (LaterSpread, Spread),
        (LaterAncestry, Ancestry),
    )
}


def _filled(part: Any, name: str) -> Any:
    """Compute all fields of a part, store them in it, and return the one of this name."""
    names = _NAMES[type(part)]
    if name not in names:
        raise AttributeError(name)
    made = part._make()
    for field in names:
        object.__setattr__(part, field, getattr(made, field))
    object.__setattr__(part, "_make", None)
    return getattr(part, name)


def is_made(moments: Moments) -> bool:
    """Whether moments are there: few rules ask for those of a concatenation."""
    return not isinstance(moments, LaterMoments) or moments._make is None


def made(moments: Moments) -> Moments:
    """Return moments, worked out if they are not there yet."""
    if isinstance(moments, LaterMoments):
        moments.work_out()
    return moments
