"""A plan for people: its table, and how it differs from another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from wellposed.plans.prescription import Prescription

if TYPE_CHECKING:
    from wellposed.plans.plan import Plan


@dataclass(frozen=True, slots=True)
class Change:
    """One field that two plans state differently; ``parameter`` is None for the plan's own fields."""

    parameter: str | None
    field: str
    left: Any
    right: Any

    def __str__(self) -> str:
        return f"{self.parameter or 'plan'}: {self.field}: {self.left} -> {self.right}"


@dataclass(frozen=True, slots=True)
class Differences:
    """What two plans say differently: parameters that only one holds, and fields that changed. False when equal."""

    only_left: tuple[str, ...]
    only_right: tuple[str, ...]
    changes: tuple[Change, ...]

    def __bool__(self) -> bool:
        return bool(self.only_left or self.only_right or self.changes)

    def __str__(self) -> str:
        if not self:
            return "the plans are equal"
        lines = [f"- {name}" for name in self.only_left] + [f"+ {name}" for name in self.only_right]
        return "\n".join(lines + [str(change) for change in self.changes])


def differences(left: Plan, right: Plan) -> Differences:
    """Compare two plans field by field; parameters in the order of ``left``, then of ``right``."""
    changes = [
        Change(None, field, getattr(left, field), getattr(right, field))
        for field in type(left).model_fields
        if field != "prescriptions" and getattr(left, field) != getattr(right, field)
    ]
    a, b = left.prescriptions, right.prescriptions
    for name in a:
        if name in b and a[name] != b[name]:
            changes += [
                Change(name, field, getattr(a[name], field), getattr(b[name], field))
                for field in Prescription.model_fields
                if getattr(a[name], field) != getattr(b[name], field)
            ]
    return Differences(
        tuple(name for name in a if name not in b), tuple(name for name in b if name not in a), tuple(changes)
    )


def table(plan: Plan, *, reasons: bool) -> Table:
    """Return a rich table of ``plan``; long names and reasons fold, so that it fits any width."""
    shown = Table(title=f"{plan.model}: {plan.method}, seed {plan.seed}", expand=False)
    shown.add_column("parameter", overflow="fold", style="bold")
    shown.add_column("shape", overflow="fold")
    shown.add_column("drawn as", overflow="fold")
    shown.add_column("fans", overflow="fold")
    if reasons:
        shown.add_column("why", overflow="fold", style="dim")
    for said in plan.prescriptions.values():
        shape = "×".join(str(size) for size in said.shape) or "scalar"
        fans = "" if said.fan_in is None else f"{said.fan_in} in, {said.fan_out} out"
        shown.add_row(said.name, shape, said.how, fans, *([Text(said.reason)] if reasons else []))
    return shown
