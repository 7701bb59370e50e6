"""Parts of what a plan draws for one parameter, without the rest where its elements are drawn one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from wellposed.errors import PlanError, near_matches
from wellposed.plans.draws import draw
from wellposed.plans.filling import blank, finish, start_, workers
from wellposed.plans.plan import Plan
from wellposed.plans.prescription import Constant, Drawn, Prescription

Index = tuple[Any, ...]


class _Cut(NamedTuple):
    """What an index asks of one axis: the range that has all of it, and the same index counted from its start."""

    first: int
    end: int
    rest: Any


def parts(plan: Plan, name: str, *, seed: int | None = None) -> Callable[[Index], torch.Tensor]:
    """Return a function that draws a part of one parameter: of an index of slices and integers, ``draw(plan)[name]`` at
    that index, the same bits.

    Only the part is held, and only the blocks of the random stream that it meets are drawn: in time that grows with the
    part where that is cut along the first axes or the last one. A parameter whose elements depend on one another is
    drawn whole, once: an orthogonal one, one whose channels are brought to a scale each, and a bias that is centred on
    a weight.

    Args:
        plan: the plan.
        name: of a parameter that it draws.
        seed: another seed than the plan's.

    Raises:
        PlanError: the plan does not write this parameter; the message has the near matches.
    """
    prescription = plan.prescriptions.get(name)
    if prescription is None or prescription.action != "write":
        written = [one.name for one in plan.prescriptions.values() if one.action == "write"]
        why = f"keeps it ({prescription.reason})" if prescription is not None else "does not have it"
        near = "" if prescription is not None else near_matches(name, written)
        raise PlanError(f"no array can be drawn for {name!r}: the plan {why}{near}")
    drawn_by = plan.seed if seed is None else seed
    if isinstance(prescription, Drawn | Constant) and _is_by_element(prescription):
        one = prescription

        def part(index: Index) -> torch.Tensor:
            return _part(one, drawn_by, index)

        return part
    whole: list[torch.Tensor] = []

    def cut(index: Index) -> torch.Tensor:
        if not whole:
            whole.append(draw(without_others(plan, {name}), seed=drawn_by)[name])
        return whole[0][index]

    return cut


def without_others(plan: Plan, names: set[str]) -> Plan:
    """Return the plan of some parameters alone, with the weights that biases among them are centred on."""
    needed = names | {one.weight for name in names if (one := plan.prescriptions[name]).weight}
    return plan.model_copy(update={"prescriptions": {n: p for n, p in plan.prescriptions.items() if n in needed}})


def _is_by_element(prescription: Prescription) -> bool:
    """Whether elements are drawn independently of one another."""
    whole = prescription.channel_std is not None or prescription.centred
    return not whole and prescription.distribution != "orthogonal"


def _part(prescription: Drawn | Constant, seed: int, index: Index) -> torch.Tensor:
    """Draw the box that an index meets, and return what the index selects of it."""
    cuts = [_cut(one, size) for one, size in zip(_padded(index, prescription.shape), prescription.shape, strict=True)]
    box = [(cut.first, cut.end) for cut in cuts]
    shape = tuple(cut.end - cut.first for cut in cuts)
    out = blank(shape, complex_=prescription.distribution == "complex_normal")
    with torch.no_grad(), workers() as crew:
        finish(start_(out, prescription, seed, crew, box))
    return out[tuple(cut.rest for cut in cuts)]


def _padded(index: Index, shape: tuple[int, ...]) -> Index:
    """Return an index with an entry for each axis."""
    return (*index, *(slice(None) for _ in shape[len(index) :]))


def _cut(one: slice | int, size: int) -> _Cut:
    """Return what a slice of positive step, or an integer, asks of an axis."""
    if isinstance(one, slice):
        first, end, step = one.indices(size)
        return _Cut(first, max(first, end), slice(None, None, step))
    at = range(size)[one]
    return _Cut(at, at + 1, 0)
