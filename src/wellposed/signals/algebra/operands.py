"""The operands of a sum or a product: as states, part by part, and what two have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from wellposed.operators.steps import Cut
from wellposed.signals.algebra.cuts import cut
from wellposed.signals.algebra.pointwise import apply_pointwise
from wellposed.signals.context.arguments import known_state
from wellposed.signals.context.call import Call, PartCall, Unknown
from wellposed.signals.distributions.alignment import Aligned
from wellposed.signals.distributions.blocks import MOST_PARTS, concatenate, depend
from wellposed.signals.distributions.functions import IDENTITY, Pointwise
from wellposed.signals.distributions.grids import GRIDS
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.parts import select
from wellposed.signals.distributions.state import Link, Scaled, State
from wellposed.signals.distributions.views import expand, pooled
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array

Combine = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""A function of two tensors, element by element."""
Operation = Callable[[Call, State, State], "State | None"]
"""A sum, product or quotient of two states; None where it does not know the result."""


class Recogniser(NamedTuple):
    """One way to work out the sum or the product of two tensors, tried in the order of a table.

    Attributes:
        name: what it recognises.
        recognise: given the call, the operands and, of a sum, their factors; returns None of other operands.
        why: what the entries after it would get wrong.
    """

    name: str
    recognise: Callable[..., State | None]
    why: str


def either_way(recognise: Callable[..., State | None]) -> Callable[..., State | None]:
    """Return a recogniser that tries both orders of its two operands, the factors of a sum along with them."""

    def in_either_order(call: Call, x: State, y: State, *factors: float) -> State | None:
        return recognise(call, x, y, *factors) or recognise(call, y, x, *factors[::-1])

    return in_either_order


def first_recognised(table: tuple[Recogniser, ...], call: Call, x: State, y: State, *factors: float) -> State | None:
    """Return the result of the first entry of a table that recognises the operands; None where none does."""
    results = (entry.recognise(call, x, y, *factors) for entry in table)
    return next((result for result in results if result is not None), None)


def operand(call: Call, value: Any) -> State | float:
    """Return an operand as a number or a state. Known tensors become states of their values, and complex numbers count
    by their magnitude, as complex signals do.
    """
    if isinstance(value, State):
        # a constant is a number only where it broadcasts against the other operand
        return value
    if isinstance(value, torch.Tensor):
        value = value.abs() if value.is_complex() else value
        if value.ndim == 0:
            return float(value)
        return known_state(value.to(torch.float64), call.root())
    if isinstance(value, Unknown) and value.state is not None:
        return value.state
    if isinstance(value, Unknown):
        if value.dtype == torch.bool:  # a mask that the inputs decide: taken as letting everything through
            return make_state(value.shape, 1.0, 0.0, tag="assumed")
        return make_state(value.shape, 0.0, 1.0, tag="assumed", roots=call.root())
    if isinstance(value, complex):
        return abs(value) if value.imag else float(value.real)
    return float(value)


def filled(call: Call, value: Any) -> State:
    """Return an operand as a state, a number as that of a tensor of the call's shape that holds it everywhere."""
    given = operand(call, value)
    return given if isinstance(given, State) else make_state(call.shape(), given, 0.0)


def as_state(call: Call, value: Any) -> State:
    """Return an operand as a state, a number as that of a tensor without axes."""
    given = operand(call, value)
    return given if isinstance(given, State) else make_state((), given, 0.0)


def broadcast(call: Call, value: State | float, shape: tuple[int, ...]) -> State:
    """Return an operand broadcast to a shape: as one tensor, however often it is."""
    if not isinstance(value, State):
        return make_state(shape, value if np.isfinite(value) else 0.0, 0.0)
    if value.shape == shape:
        return value
    key = ("broadcast", value.serial, value.axes, value.scale_parameter, value.tag, shape)
    made: State | None = call.run.alive.get(key)
    if made is None:
        made = expand(value, shape)
        if made.function is not None and value.function is not None:  # two functions of one tensor stay so
            base = broadcast(call, value.function.base.amended(axes=value.axes), shape)
            made = made.amended(function=made.function._replace(base=base))
        call.run.alive[key] = made
    return made


def fused(call: Call, x: State, y: State, key: tuple[object, ...], function: Combine) -> State | None:
    """Return function(x, y) of two functions of one Gaussian tensor, integrated as one function of it; None elsewhere.

    ``key`` tells equal functions of two numbers.
    """
    if x.serial == y.serial and x.gauss and x.layout == y.layout:  # a concatenation of equal parts times itself
        x, y = pooled(x), pooled(y)
    (base, first), (other, second) = x.gaussian_source(), y.gaussian_source()
    if base.serial != other.serial or x.layout != y.layout:
        return None
    if x.blocks or y.blocks or not x.varies:
        return None
    f, g = first or IDENTITY, second or IDENTITY
    joint = Pointwise((key, f.key, g.key), lambda t: function(f.call(t), g.call(t)))
    return apply_pointwise(call, base.amended(axes=x.axes), joint)


def part_by_part(call: Call, x: State, y: State, operate: Operation) -> State | None:
    """Return the sum, product or quotient of two concatenations along one axis, each part with its counterpart (two
    functions of one concatenation; tokens, some of which are zero, and their norms), or of one with a tensor that it
    shares sources with; None where parts do not match.
    """
    if not (x.blocks or y.blocks) or call.independent or len(x.axes) != len(y.axes):
        return None
    axis = x.blocks.axis if x.blocks else y.blocks.axis
    firsts, seconds = _parts(call, x, y, axis), _parts(call, y, x, axis)
    shape, widths = call.shape(), [part.shape[axis] for part in firsts]
    if [part.shape[axis] for part in seconds] != widths or len(shape) != len(x.axes):
        return None
    parts = [
        operate(PartCall(call.run, call.node, (*shape[:axis], width, *shape[axis + 1 :])), one, other)
        for one, other, width in zip(firsts, seconds, widths, strict=True)
    ]
    return None if any(part is None for part in parts) else concatenate([p for p in parts if p is not None], axis)


def _parts(call: Call, x: State, other: State, axis: int) -> Sequence[State]:
    """Return the blocks of a concatenation x along an axis. For x whose slices depend on the blocks of ``other`` (x +
    [x₁, f(x₂)]), return slices at the same places; else none.
    """
    if x.blocks:
        return x.blocks if x.blocks.axis == axis and x.shape[axis] > 1 else ()
    if x.shape != other.shape or len(other.blocks) > MOST_PARTS or not x.roots & other.roots or _is_made_of(x, other):
        return ()
    ends = np.cumsum([block.shape[axis] for block in other.blocks]).tolist()
    return [cut(call, x, Cut(axis, start, stop)) for start, stop in zip([0, *ends[:-1]], ends, strict=True)]


def slice_by_slice(call: Call, x: State, y: State, operate: Operation) -> State | None:
    """Return the sum or product with a stack, slice by slice, where slices share sources with one another or with the
    other operand (branches and their weights, streams and what is added to each); None elsewhere.

    The slices of the result keep the covariances that they have with one another. A stack holds slices of width 1.
    """
    shape = call.shape()
    stacks = [one for one, other in ((x, y), (y, x)) if len(one.axes) == len(shape) and _goes_by_slices(one, other)]
    if call.independent or not stacks:
        return None
    axis, count = stacks[0].blocks.axis, len(stacks[0].blocks)
    if shape[axis] != count or any(block.shape[axis] != 1 for block in stacks[0].blocks):
        return None
    part = PartCall(call.run, call.node, (*shape[:axis], 1, *shape[axis + 1 :]))
    pairs = zip(_slices(x, axis - len(shape), count), _slices(y, axis - len(shape), count), strict=True)
    parts = [operate(part, p, q) for p, q in pairs]
    return None if any(p is None for p in parts) else concatenate([p for p in parts if p is not None], axis)


def _goes_by_slices(stack: State, other: State) -> bool:
    """Whether slices of a stack depend on one another or on ``other``, which is not made of the whole stack."""
    share = 1 < len(stack.blocks) <= MOST_PARTS and any(block.roots & other.roots for block in stack.blocks)
    return (depend(stack.blocks) or share) and not _is_made_of(other, stack)


def _is_made_of(other: State, stack: State) -> bool:
    """Whether links or functions lead from ``other``, of the stack's shape, back to the stack as a whole."""
    pending, seen = [other] if other.shape == stack.shape and not other.blocks else [], 0
    while pending and (seen := seen + 1) <= GRIDS:
        state = pending.pop()
        parents = [link.parent for link in state.links]
        if state.function is not None:
            parents.append(state.function.base)
        if any(parent.serial == stack.serial for parent in parents):
            return True
        pending += [parent for parent in parents if parent.serial > stack.serial]
    return False


def _slices(x: State, axis: int, count: int) -> list[State]:
    """Return ``count`` slices of width 1 along an axis counted from the end; x itself where it is broadcast."""
    if -axis > len(x.axes) or x.shape[axis] == 1:
        return [x] * count
    return [select(x, axis, i, i + 1, 1, drop=False) for i in range(count)]


UNCORRELATED = 1e-12
"""Correlation up to which two signals count as uncorrelated. Chosen: above the rounding of double precision."""


def cross_covariance(call: Call, x: State, y: State, p: Aligned, q: Aligned) -> Array | None:
    """Return the kernel Cov(x_i, y_{i+d}) in the common atoms of the aligned p and q; None of uncorrelated signals."""
    if p.dims is None or q.dims is None or not kernels.nonzero(x.var) or not kernels.nonzero(y.var):
        return None
    cross = call.covariance(x, y, p.dims, q.dims)
    scale = math.sqrt(kernels.average(x.var) * kernels.average(y.var))
    return None if cross is None or float(np.abs(cross).max()) <= UNCORRELATED * scale else cross


def covariance_at_positions(cross: Array, product: Array) -> Array:
    """Return Cov(x_i, y_i) by position from the kernel ``cross`` of `cross_covariance`, given the product of the
    standard deviations by position, by which it is bounded.
    """
    if any(map(kernels.positions, cross.shape)):
        return np.asarray(np.clip(kernels.diagonal(cross), -product, product))
    scale = kernels.average(product)
    return np.asarray((np.clip(float(cross.ravel()[0]) / scale, -1.0, 1.0) if scale > 0 else 0.0) * product)


def links_of(parts: list[tuple[State, Aligned, float]]) -> tuple[Link, ...]:
    """Return the links of sum_i c_i x_i to each x_i, given as (x_i, its alignment, c_i)."""
    return tuple(Link(s, Scaled(c), a.dims) for s, a, c in parts if s.roots and c and a.dims is not None)
