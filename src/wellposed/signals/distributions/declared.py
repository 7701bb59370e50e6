"""How the fields of a state are declared: each once, where it stands, with what it holds and what it survives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, fields
from operator import attrgetter
from typing import Any, Literal, NamedTuple

Change = Literal["moments", "function", "axes"]
"""What a copy of a state may change: its moments, the function that made its elements, or the axes of its atoms."""

POSITIONS = "by position: one dimension per atom, of length 1 where it does not vary"
KERNEL = "kernel: one dimension per atom (`kernels.py`)"
NUMBER = "number"
SOURCES = "one amount per weight draw"
STATES = "other states"

EVERYTHING: tuple[Change, ...] = ("moments", "function", "axes")
NO_MOMENTS: tuple[Change, ...] = ("function", "axes")
AXES_ALONE: tuple[Change, ...] = ("axes",)
NO_AXES: tuple[Change, ...] = ("moments", "function")


class Declared(NamedTuple):
    """The declaration of one field of a state.

    Attributes:
        holds: what the field holds.
        shape: how it is indexed.
        valid: when it may be read; "" for always.
        survives: the changes after which it still holds. Fields that survive no change of axes are rewritten by views.
    """

    holds: str
    shape: str
    survives: tuple[Change, ...]
    valid: str


def holds(what: str, shape: str, survives: tuple[Change, ...], valid: str = "") -> Mapping[str, Declared]:
    """Return the metadata of a field of a state."""
    return {"declared": Declared(what, shape, survives, valid)}


def told(what: str, shape: str, survives: tuple[Change, ...], valid: str = "", *, default: Any) -> Any:
    """Return a field of a state that has a default value: what it holds where nothing is known."""
    return field(default=default, metadata=holds(what, shape, survives, valid))


def declarations(part: Any) -> dict[str, Declared]:
    """Return what is said of each field of a part of a state, or of one that is in no part."""
    return {item.name: item.metadata["declared"] for item in fields(part) if "declared" in item.metadata}


class Lost(NamedTuple):
    """The fields of a part of a state that do not survive a change.

    Attributes:
        read: returns their values, given the part.
        nothing: their values where nothing is known.
        places: their places in the part.
    """

    read: Callable[[Any], tuple[Any, ...]]
    nothing: tuple[Any, ...]
    places: tuple[int, ...]


def lost_by(change: Change, part: type) -> Lost | None:
    """Return the fields of a part of a state that a change takes; None where it takes none."""
    said, default = declarations(part), {item.name: item.default for item in fields(part)}
    gone = {name: at for at, name in enumerate(said) if change not in said[name].survives}
    return Lost(attrgetter(*gone), tuple([default[name] for name in gone]), tuple(gone.values())) if gone else None
