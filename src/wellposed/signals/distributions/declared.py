"""How the fields of a state are declared: each once, where it stands, with what it holds and what it survives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
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
    """What is said of a field.

    Attributes:
        holds: what it holds.
        shape: how that is indexed.
        valid: when it may be read; always where nothing is said.
        survives: the changes after which it still holds. Where it survives no change of axes, the views rewrite it.
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


@dataclass(frozen=True, slots=True, eq=False)
class Lost:
    """What a part of a state loses by a change.

    Attributes:
        part: the part.
        empty: what it is where nothing is known.
        gone: the fields that do not survive the change, and what they are in ``empty``.
        kept: the fields that do.
    """

    part: str
    empty: Any
    gone: tuple[tuple[str, Any], ...]
    kept: tuple[str, ...]

    def rest(self, part: Any) -> Any:
        """Return what survives of a part."""
        for name, nothing in self.gone:
            if getattr(part, name) is not nothing:
                return type(part)(**{name: getattr(part, name) for name in self.kept}) if self.kept else self.empty
        return part


def lost_by(change: Change, parts: Mapping[str, type]) -> Sequence[Lost]:
    """Return what each part of a state loses by a change, those left out that lose nothing."""
    found = []
    for part, kind in parts.items():
        said = declarations(kind)
        kept = tuple([name for name in said if change in said[name].survives])
        if len(kept) < len(said):
            empty = kind()
            found.append(Lost(part, empty, tuple([(n, getattr(empty, n)) for n in said if n not in kept]), kept))
    return found
