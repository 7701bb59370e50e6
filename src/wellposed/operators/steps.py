"""Steps: what a view does to axes, and what a reader knows of each axis, carried through them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Shape = tuple[int, ...]
Known = TypeVar("Known")


@dataclass(frozen=True, slots=True)
class Regroup:
    """Elements keep their order; the axes get the lengths ``shape``."""

    shape: Shape


@dataclass(frozen=True, slots=True)
class Permute:
    """Axis i of the result is axis ``order[i]`` of the argument."""

    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Expand:
    """Repeated along new axes on the left and along axes of length 1."""

    shape: Shape


@dataclass(frozen=True, slots=True)
class Cut:
    """Indices ``start, start + step, ...`` below ``stop`` of one axis; ``drop`` takes an axis of length 1 away."""

    axis: int
    start: int
    stop: int
    step: int = 1
    drop: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Reorder:
    """Index i of an axis is index ``source[i]`` of the argument's."""

    axis: int
    source: NDArray[np.intp]


Step = Regroup | Permute | Expand | Cut | Reorder
Steps = tuple[Step, ...]


def shape_after(step: Step, before: Shape) -> Shape:
    """Return the shape that a step makes of a tensor of shape ``before``."""
    if isinstance(step, (Regroup, Expand)):
        return step.shape
    if isinstance(step, Permute):
        return tuple(before[i] for i in step.order)
    if isinstance(step, Cut):
        length = len(range(step.start, step.stop, step.step))
        return (*before[: step.axis], *(() if step.drop else (length,)), *before[step.axis + 1 :])
    return before


def shapes_along(steps: Steps, before: Shape) -> list[Shape]:
    """Return the shape before each step."""
    shapes = []
    for step in steps:
        shapes.append(before)
        before = shape_after(step, before)
    return shapes


class Carrier(Protocol, Generic[Known]):
    """What a reader of views knows of one axis, and how that follows from what it knew before."""

    def fresh(self, size: int) -> Known:
        """Return what is known of a new axis."""

    def regrouped(self, known: Sequence[Known], before: Shape, after: Shape) -> list[Known]:
        """Return what is known of the axes of a reshape."""

    def cut(self, known: Known, before: int, after: int) -> Known:
        """Return what is known of a part of an axis."""


def carried(steps: Steps, known: Sequence[Known], before: Shape, carrier: Carrier[Known]) -> list[Known]:
    """Return what is known of the axes after some steps."""
    axes = list(known)
    for step in steps:
        after = shape_after(step, before)
        if isinstance(step, Regroup):
            axes = carrier.regrouped(axes, before, after)
        elif isinstance(step, Permute):
            axes = [axes[i] for i in step.order]
        elif isinstance(step, Expand):
            lead = len(after) - len(before)
            axes = [
                axes[i - lead] if i >= lead and before[i - lead] == size else carrier.fresh(size)
                for i, size in enumerate(after)
            ]
        elif isinstance(step, Cut) and step.drop:
            del axes[step.axis]
        elif isinstance(step, Cut) and before[step.axis] != after[step.axis]:
            axes[step.axis] = carrier.cut(axes[step.axis], before[step.axis], after[step.axis])
        before = after
    return axes
