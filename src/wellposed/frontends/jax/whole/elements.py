"""Where the elements of a value come from, through views and broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wellposed.frontends.jax.program import Step, Value

Coordinates = tuple[npt.NDArray[np.int64], ...]

_POSITIONS = 2048
"""Positions that are followed: all of a small value, a sample of a larger one."""

SAME = ("convert_element_type", "copy", "stop_gradient", "reduce_precision")
IN_ORDER = (*SAME, "reshape", "squeeze")
"""Views that leave the elements in their order."""


@dataclass(frozen=True, eq=False)
class Cursor:
    """Elements of a value: one for each position of the result that is being explained."""

    value: Value
    at: Coordinates

    @property
    def flat(self) -> npt.NDArray[np.int64]:
        """Their number in the order of memory."""
        return ravel(self.at, self.value.shape)

    def operand(self, value: Value) -> Cursor:
        """Return the elements of an operand that an elementwise operator takes here; axes of length 1 are broadcast."""
        if not value.shape:
            return Cursor(value, ())
        pairs = zip(self.at, value.shape, strict=True)
        return Cursor(value, tuple(np.zeros_like(c) if size == 1 else c for c, size in pairs))

    def back(self, names: tuple[str, ...] | None = None) -> Cursor:
        """Return the elements that a chain of views reads, followed to its beginning."""
        cursor = self
        while cursor.value.step is not None and cursor.value.number is None:
            step = cursor.value.step
            if names is not None and step.name not in names:
                break
            view = VIEWS.get(step.name)
            if view is None:
                break
            source = step.inputs[0]
            cursor = Cursor(source, view(step, cursor.at, source.shape, cursor.value.shape))
        return cursor

    def made_by(self, name: str) -> Step | None:
        """Return the step that makes the value, if it is of this name."""
        step = self.value.step
        return step if step is not None and step.name == name and self.value.number is None else None


def ravel(at: Coordinates, shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Return the numbers of elements in the order of memory."""
    if not shape:
        return np.zeros(1, np.int64)
    return np.asarray(np.ravel_multi_index(at, shape), np.int64)


def unravel(flat: npt.NDArray[np.int64], shape: tuple[int, ...]) -> Coordinates:
    """Return the coordinates of elements by their numbers in the order of memory."""
    return tuple(np.unravel_index(flat, shape)) if shape else ()


def positions(value: Value) -> Cursor:
    """Return a cursor on the elements of a value: all, or a sample that has its ends."""
    if value.size <= _POSITIONS:
        flat = np.arange(value.size)
    else:
        flat = np.random.default_rng(0).integers(0, value.size, _POSITIONS)
        flat[:2] = 0, value.size - 1
    return Cursor(value, unravel(flat, value.shape))


View = Callable[[Step, Coordinates, "tuple[int, ...]", "tuple[int, ...]"], Coordinates]


def _in_order(_step: Step, at: Coordinates, source: tuple[int, ...], shape: tuple[int, ...]) -> Coordinates:
    return at if source == shape else unravel(ravel(at, shape), source)


def _broadcast(step: Step, at: Coordinates, source: tuple[int, ...], _shape: tuple[int, ...]) -> Coordinates:
    places = step.params["broadcast_dimensions"]
    return tuple(
        np.zeros_like(at[place]) if size == 1 else at[place] for place, size in zip(places, source, strict=True)
    )


def _permuted(step: Step, at: Coordinates, _source: tuple[int, ...], _shape: tuple[int, ...]) -> Coordinates:
    permutation = list(step.params["permutation"])
    return tuple(at[permutation.index(axis)] for axis in range(len(at)))


VIEWS: dict[str, View] = {
    **dict.fromkeys(IN_ORDER, _in_order),
    "broadcast_in_dim": _broadcast,
    "transpose": _permuted,
}


def same(a: npt.NDArray[np.int64], b: npt.NDArray[np.int64]) -> bool:
    """Whether all elements are the same."""
    return bool((a == b).all())


def source_of(value: Value) -> Value:
    """Return the value that views of unchanged element order lead back to."""
    while value.step is not None and value.step.name in IN_ORDER and value.number is None:
        value = value.step.inputs[0]
    return value


def in_both_orders(step: Step) -> Iterator[tuple[Value, Value]]:
    """Yield the operands of an operator of two, in both orders."""
    one, other = step.inputs
    yield one, other
    yield other, one
