"""Norms: over trailing axes, over all axes but one, in groups, by statistics that the model holds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from wellposed.frontends.jax.dtypes import torch_dtype
from wellposed.frontends.jax.program import Step, Value
from wellposed.frontends.jax.whole.elements import (
    IN_ORDER,
    Cursor,
    in_both_orders,
    positions,
    ravel,
    same,
    source_of,
    unravel,
)


@dataclass(frozen=True, eq=False)
class _Mean:
    """A mean over ``axes`` of ``of``, at the positions ``reduced`` of the result that is being explained."""

    reduced: Cursor
    of: Value
    axes: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class _Scale:
    """A factor ``1 / √(variance + ε)``; ``centred``: the mean is subtracted in the variance (None: not known)."""

    variance: _Mean | Cursor
    eps: float
    centred: bool | None


def norm(step: Step) -> list[Step] | None:
    """``(x - mean) / √(variance + ε)``, with gain and shift where they follow."""
    if step.name not in ("add", "mul", "div"):
        return None
    (result,) = step.outputs
    here = positions(result)
    whole = _shifted(step, here) if step.name == "add" else _normed(step, here, None)
    if whole is None:
        return None
    kind, params, operands = whole
    params = {**params, "dtype": torch_dtype(result.dtype), "given": tuple(one is not None for one in operands)}
    inputs = [one for one in operands if one is not None]
    return [Step(kind, params, inputs, step.outputs, step.scopes, step.source)]


_Whole = tuple[str, dict[str, Any], list["Value | None"]]


def _shifted(step: Step, here: Cursor) -> _Whole | None:
    """Return the norm that one term of a sum is, with the other, a variable, as its shift."""
    for term, added in in_both_orders(step):
        shift, source = here.operand(added).back(), term.step
        if source is None or source.name not in ("mul", "div"):
            continue
        if shift.value.held and term.shape == step.outputs[0].shape and term.number is None:
            whole = _normed(source, here.operand(term), shift)
            if whole is not None:
                return whole
    return None


def _normed(step: Step, here: Cursor, shift: Cursor | None) -> _Whole | None:
    """Return the norm that a product is: x, one scale, and at most one gain, in any order."""
    x: Cursor | None = None
    gain: Cursor | None = None
    product = Cursor(step.outputs[0], here.at)
    scales = [one for factor, inverse in _factors(product) if (one := _scale(factor, inverse)) is not None]
    if len(scales) != 1:
        return None
    (scale,) = scales
    of = source_of(scale.variance.of) if isinstance(scale.variance, _Mean) else None
    for factor, inverse in _factors(product, of):
        held = factor.back()
        if _scale(factor, inverse) is not None:
            continue
        if inverse:
            return None
        if held.value.held and gain is None:
            gain = held
        elif x is None and factor.value.size == here.value.size and same(factor.flat, here.flat):
            x = factor
        else:
            return None
    return None if x is None else _fitted(here, x, scale, gain, shift)


def _factors(
    cursor: Cursor, whole: Value | None = None, inverse: bool = False, depth: int = 0
) -> Iterator[tuple[Cursor, bool]]:
    """Yield the factors of a product, and whether they divide; ``whole`` is left as it is."""
    inner = cursor.back()
    step = inner.value.step
    if depth < 4 and step is not None and step.name in ("mul", "div") and source_of(inner.value) is not whole:
        if all(value.number is None for value in step.inputs):
            yield from _factors(inner.operand(step.inputs[0]), whole, inverse, depth + 1)
            yield from _factors(inner.operand(step.inputs[1]), whole, inverse != (step.name == "div"), depth + 1)
            return
    yield cursor, inverse


def _scale(factor: Cursor, inverse: bool) -> _Scale | None:
    """Return variance and ε of a factor ``1 / √(variance + ε)``; None for any other factor."""
    cursor = factor.back()
    step = cursor.value.step
    if step is None or cursor.value.number is not None:
        return None
    if inverse != (step.name == "sqrt") or step.name not in ("rsqrt", "sqrt"):
        return None
    summed = cursor.operand(step.inputs[0]).back()
    adding = summed.made_by("add")
    if adding is None:
        return None
    for variance, eps in in_both_orders(adding):
        if eps.number is not None and variance.number is None:
            return _variance(summed.operand(variance), float(eps.number.real))
    return None


def _variance(cursor: Cursor, eps: float) -> _Scale | None:
    """Return the scale whose variance a value is: held by the model, E x² − (E x)², or a mean of squares."""
    cursor = _rectified(cursor.back())
    if cursor.value.step is None:
        return _Scale(cursor, eps, None)
    difference = cursor.made_by("sub")
    if difference is not None:
        raw, squared = (cursor.operand(value).back() for value in difference.inputs)
        return _difference(raw, squared, eps)
    power, of = _mean_square(cursor)
    if power is None or of is None:
        return None
    return _Scale(_Mean(power.reduced, of, power.axes), eps, False)


def _rectified(cursor: Cursor) -> Cursor:
    """Return what a maximum with a number is taken of, which keeps a variance from being negative."""
    rectified = cursor.made_by("max")
    inner = [] if rectified is None else [value for value in rectified.inputs if value.number is None]
    return cursor.operand(inner[0]).back() if len(inner) == 1 else cursor


def _mean_square(cursor: Cursor) -> tuple[_Mean | None, Value | None]:
    """Return the mean that a value is, and what it is the mean square of."""
    power = _mean(cursor)
    return power, None if power is None else _squared(Cursor(power.of, ()))


def _difference(raw: Cursor, squared: Cursor, eps: float) -> _Scale | None:
    """Return the scale of E x² − (E x)², where both means are of one x and over the same axes."""
    (power, of), base = _mean_square(raw), _squared(squared)
    mean = None if base is None else _mean(Cursor(base, squared.at).back())
    if power is None or mean is None or of is None or source_of(of) is not source_of(mean.of):
        return None
    fits = power.axes == mean.axes and same(power.reduced.flat, mean.reduced.flat)
    return _Scale(_Mean(mean.reduced, of, mean.axes), eps, True) if fits else None


def _squared(cursor: Cursor) -> Value | None:
    """Return the value whose square another one is; None where it is no square."""
    step = source_of(cursor.value).step
    if step is None:
        return None
    if step.name == "square" or (step.name == "integer_pow" and step.params["y"] == 2):
        return step.inputs[0]
    return step.inputs[0] if step.name == "mul" and step.inputs[0] is step.inputs[1] else None


def _mean(cursor: Cursor) -> _Mean | None:
    """Return the mean that a value is: a sum over axes, divided by their number."""
    step = cursor.value.step
    if step is None or step.name not in ("div", "mul"):
        return None
    total, count = step.inputs
    if step.name == "mul" and total.number is not None:
        total, count = count, total
    if count.number is None or total.number is not None or not count.number.real > 0:
        return None
    reduced = cursor.operand(total).back()
    summed = reduced.made_by("reduce_sum")
    if summed is None:
        return None
    axes = tuple(map(int, summed.params["axes"]))
    number = math.prod(summed.inputs[0].shape[axis] for axis in axes)
    divisor = count.number.real if step.name == "div" else 1.0 / count.number.real
    return _Mean(reduced, summed.inputs[0], axes) if abs(divisor / number - 1.0) < 1e-6 else None


def _fitted(here: Cursor, x: Cursor, scale: _Scale, gain: Cursor | None, shift: Cursor | None) -> _Whole | None:
    """Return the norm of torch that has these statistics, gain and shift.

    Args:
        here: the result.
        x: the factor that is no scale and no gain: data, or their difference from a centre.
        scale: the other factor.
        gain: what it is multiplied by, a variable.
        shift: what is added, a variable.
    """
    difference = x.made_by("sub")
    centre = None if difference is None else x.operand(difference.inputs[1]).back()
    inner = x if difference is None else x.operand(difference.inputs[0])
    if inner.value.shape != x.value.shape:
        return None
    variance = scale.variance
    if isinstance(variance, Cursor):
        return _by_statistics(_shaped_like(here, inner), centre, variance, scale.eps, gain, shift)
    mean = None if centre is None else _mean(centre)
    if mean is not None and _belongs(inner, mean, mean.of):
        if not same(mean.reduced.flat, variance.reduced.flat):
            return None
        data, of, centred = inner, variance.of if scale.centred else _centred(variance), True
    else:
        data, of, centred = x, None if scale.centred else variance.of, False
    if of is None or not _belongs(data, variance, of):
        return None
    whole = _shaped_like(here, data)
    return None if whole is None else _by_batch(whole, scale.eps, centred, gain, shift, variance)


def _shaped_like(here: Cursor, data: Cursor) -> Cursor | None:
    """Return data in the shape of a result, of which views before a norm have made another."""
    value = data.value
    while value.shape != here.value.shape:
        if value.step is None or value.step.name not in IN_ORDER:
            return None
        value = value.step.inputs[0]
    return Cursor(value, here.at)


def _centred(power: _Mean) -> Value | None:
    """Return x where a mean is one of (x − mean x)² over the same axes; else None."""
    step = source_of(power.of).step
    if step is None or step.name != "sub":
        return None
    at = positions(step.outputs[0])
    mean = _mean(at.operand(step.inputs[1]).back())
    inner = at.operand(step.inputs[0])
    if mean is None or (mean.axes, mean.of.shape) != (power.axes, power.of.shape):
        return None
    return inner.value if _belongs(inner, mean, mean.of) else None


def _belongs(data: Cursor, mean: _Mean, of: Value) -> bool:
    """Whether each element meets the mean that it is part of: of ``of``, or of a function of it."""
    if source_of(of) is not source_of(data.value):
        return False
    whole = unravel(data.flat, mean.of.shape)
    at = tuple(c for axis, c in enumerate(whole) if axis not in mean.axes)
    reduced = mean.reduced.at
    return len(at) == len(reduced) and all(same(a, b) for a, b in zip(at, reduced, strict=True))


def _by_statistics(
    x: Cursor | None,
    centre: Cursor | None,
    variance: Cursor,
    eps: float,
    gain: Cursor | None,
    shift: Cursor | None,
) -> _Whole | None:
    """Return a norm by statistics that the model holds, and does not train."""
    if x is None or centre is None:
        return None
    if centre.value.held or variance.value.held:
        return None
    for axis in range(len(x.value.shape)):
        given = [one for one in (centre, variance, gain, shift) if one is not None]
        if all(one.value.step is None and _runs_along(one, x, (axis,)) for one in given if one.value.number is None):
            operands = [x.value, centre.value, variance.value, *_values(gain, shift)]
            return "statistics_norm", {"axis": axis, "eps": eps}, operands
    return None


def _by_batch(
    x: Cursor, eps: float, centred: bool, gain: Cursor | None, shift: Cursor | None, statistic: _Mean
) -> _Whole | None:
    """Return a norm by statistics of what it is given: over trailing axes, over all but one, or in groups."""
    shape, rank = x.value.shape, len(x.value.shape)
    groups = statistic.reduced.flat

    def fits(partition: npt.NDArray[np.int64], axes: tuple[int, ...]) -> bool:
        along = all(_runs_along(one, x, axes) for one in (gain, shift) if one is not None)
        return along and same(groups, partition)

    operands = [x.value, *_values(gain, shift)]
    for trailing in range(1, rank):
        axes = tuple(range(rank - trailing, rank))
        if fits(ravel(x.at[:-trailing], shape[:-trailing]), axes):
            kind = "layer_norm" if centred else "rms_norm"
            return kind, {"trailing": trailing, "eps": eps}, operands
    if not centred:
        return None
    for axis in range(1, rank):
        if fits(x.at[axis], (axis,)):
            return "batch_norm", {"axis": axis, "eps": eps}, operands
    for axis in range(1, rank):
        count = math.prod(size for place, size in enumerate(statistic.of.shape) if place not in statistic.axes)
        per_sample = count // shape[0]
        if per_sample and shape[axis] % per_sample == 0:
            wanted = x.at[0] * per_sample + x.at[axis] // (shape[axis] // per_sample)
            if fits(wanted, (axis,)):
                return "group_norm", {"axis": axis, "eps": eps, "groups": per_sample}, operands
    return None


def _values(*cursors: Cursor | None) -> list[Value | None]:
    return [None if cursor is None else cursor.value for cursor in cursors]


def _runs_along(one: Cursor, x: Cursor, axes: tuple[int, ...]) -> bool:
    """Whether a value has one element for each place along some axes of x."""
    sizes = tuple(x.value.shape[axis] for axis in axes)
    return one.value.size == math.prod(sizes) and same(one.flat, ravel(tuple(x.at[axis] for axis in axes), sizes))
