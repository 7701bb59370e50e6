"""Plans for people: a table of prescriptions, and how two plans differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wellposed.plans.prescription import Prescription
from wellposed.showing import by_size, cell, in_line

if TYPE_CHECKING:
    from wellposed.tables import Table


@dataclass(frozen=True, slots=True)
class Change:
    """One field that two plans state differently; ``parameter`` is None for the plan's own fields."""

    parameter: str | None
    field: str
    left: Any
    right: Any

    def __str__(self) -> str:
        return in_line(f"{self.parameter or 'plan'}: {self.field}: {self.left} -> {self.right}")


@dataclass(frozen=True, slots=True)
class Differences:
    """How two plans differ: parameters that only one of them holds, and fields that changed. False when equal."""

    only_left: tuple[str, ...]
    only_right: tuple[str, ...]
    changes: tuple[Change, ...]

    def __bool__(self) -> bool:
        return bool(self.only_left or self.only_right or self.changes)

    def __str__(self) -> str:
        if not self:
            return "the plans are equal"
        lines = [in_line(f"- {name}") for name in self.only_left] + [in_line(f"+ {name}") for name in self.only_right]
        return "\n".join(lines + [str(change) for change in self.changes])


def differences(
    left: Mapping[str, Prescription],
    right: Mapping[str, Prescription],
    own_left: Mapping[str, Any],
    own_right: Mapping[str, Any],
) -> Differences:
    """Compare the prescriptions of two plans, and the plans' own fields; in the order of ``left``, then ``right``."""
    changes = list(_changes(None, own_left, own_right))
    for name, before in left.items():
        if name in right and before != right[name]:
            changes += _changes(name, before.model_dump(), right[name].model_dump())
    return Differences(
        only_left=tuple(name for name in left if name not in right),
        only_right=tuple(name for name in right if name not in left),
        changes=tuple(changes),
    )


def _changes(parameter: str | None, left: Mapping[str, Any], right: Mapping[str, Any]) -> Iterator[Change]:
    return (Change(parameter, field, left[field], right[field]) for field in left if left[field] != right[field])


def table(title: str, prescriptions: Mapping[str, Prescription], *, reasons: bool) -> Table:
    """Return a rich table of prescriptions; long names and reasons fold, so that it fits any width."""
    from wellposed.tables import Table

    shown = Table(title=cell(title), expand=False)
    shown.add_column("parameter", overflow="fold", style="bold")
    for column in ("shape", "distribution", "fans"):
        shown.add_column(column, overflow="fold")
    if reasons:
        shown.add_column("reason", overflow="fold", style="dim")
    for name, prescription in prescriptions.items():
        cells = [name, by_size(prescription.shape), prescription.how, fans(prescription)]
        shown.add_row(*map(cell, cells + [prescription.reason] * reasons))
    return shown


def actions(prescriptions: Iterable[Prescription]) -> str:
    """Return what is done to parameters in one line: ``"54 truncated_normal, 107 constant, 2 kept"``."""
    words = {"keep": "kept", "tied": "tied"}
    counts = Counter(words.get(item.action, item.distribution) for item in prescriptions)
    return ", ".join(f"{count} {word}" for word, count in counts.most_common()) or "no parameters"


def fans(prescription: Prescription) -> str:
    """Return the fans of a weight in words; ``""`` where there are none."""
    return "" if prescription.fan_in is None else f"{prescription.fan_in} in, {prescription.fan_out} out"
