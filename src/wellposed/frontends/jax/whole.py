"""Operators that JAX writes out, found in a program and put in as the one operator of torch that they are.

What a parameter is (bias, gain, shift) is read off the operator that takes it, and norms and softmax are predicted as
such. They are recognised by what depends on what, not by the functions that wrote them: Flax, Equinox and formulas
written by hand are found alike. Where an element of one value comes from, through views and broadcasting, is followed
for all positions of a result, or for a sample of a large one (`_Cursor`); a match needs all of these to fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from wellposed.frontends.jax.dtypes import torch_dtype
from wellposed.frontends.jax.primitives import convolution, linear, rule
from wellposed.frontends.jax.program import Program, Step, Value

Coordinates = tuple[npt.NDArray[np.int64], ...]

_POSITIONS = 2048
"""Positions that are followed: all of a small value, a sample of a larger one."""

_SAME = ("convert_element_type", "copy", "stop_gradient", "reduce_precision")
_IN_ORDER = (*_SAME, "reshape", "squeeze")
"""Views that leave the elements in their order."""


def with_whole_operators(program: Program) -> None:
    """Put whole operators in the place of steps, in loops and branches too."""
    for step in program.steps:
        for body in step.bodies:
            with_whole_operators(body)
    for match in (_product_with_bias, _log_softmax, _softmax, _norm, _dropout):
        for place in reversed(range(len(program.steps))):
            found = match(program.steps[place])
            if found is not None:
                program.steps[place : place + 1] = found
        program.prune()
    _without_leading_axes(program)
    program.prune()


# ---- where an element comes from ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Cursor:
    """Elements of a value: one for each position of the result that is being explained."""

    value: Value
    at: Coordinates

    @property
    def flat(self) -> npt.NDArray[np.int64]:
        """Their number in the order of memory."""
        return _ravel(self.at, self.value.shape)

    def operand(self, value: Value) -> _Cursor:
        """Return the elements of an operand that an elementwise operator takes here; axes of length 1 are broadcast."""
        if not value.shape:
            return _Cursor(value, ())
        pairs = zip(self.at, value.shape, strict=True)
        return _Cursor(value, tuple(np.zeros_like(c) if size == 1 else c for c, size in pairs))

    def back(self, names: tuple[str, ...] | None = None) -> _Cursor:
        """Return what a chain of views reads, as far as it goes."""
        cursor = self
        while cursor.value.step is not None and cursor.value.number is None:
            step = cursor.value.step
            if names is not None and step.name not in names:
                break
            view = _VIEWS.get(step.name)
            if view is None:
                break
            source = step.inputs[0]
            cursor = _Cursor(source, view(step, cursor.at, source.shape, cursor.value.shape))
        return cursor

    def made_by(self, name: str) -> Step | None:
        """Return the step that makes the value, if it is of this name."""
        step = self.value.step
        return step if step is not None and step.name == name and self.value.number is None else None


def _ravel(at: Coordinates, shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
    if not shape:
        return np.zeros(1, np.int64)
    return np.asarray(np.ravel_multi_index(at, shape), np.int64)


def _unravel(flat: npt.NDArray[np.int64], shape: tuple[int, ...]) -> Coordinates:
    return tuple(np.unravel_index(flat, shape)) if shape else ()


def _positions(value: Value) -> _Cursor:
    """Return a cursor on the elements of a value: all, or a sample that has its ends."""
    if value.size <= _POSITIONS:
        flat = np.arange(value.size)
    else:
        flat = np.random.default_rng(0).integers(0, value.size, _POSITIONS)
        flat[:2] = 0, value.size - 1
    return _Cursor(value, _unravel(flat, value.shape))


View = Callable[[Step, Coordinates, "tuple[int, ...]", "tuple[int, ...]"], Coordinates]


def _in_order(_step: Step, at: Coordinates, source: tuple[int, ...], shape: tuple[int, ...]) -> Coordinates:
    return at if source == shape else _unravel(_ravel(at, shape), source)


def _broadcast(step: Step, at: Coordinates, source: tuple[int, ...], _shape: tuple[int, ...]) -> Coordinates:
    places = step.params["broadcast_dimensions"]
    return tuple(
        np.zeros_like(at[place]) if size == 1 else at[place] for place, size in zip(places, source, strict=True)
    )


def _permuted(step: Step, at: Coordinates, _source: tuple[int, ...], _shape: tuple[int, ...]) -> Coordinates:
    permutation = list(step.params["permutation"])
    return tuple(at[permutation.index(axis)] for axis in range(len(at)))


_VIEWS: dict[str, View] = {
    **dict.fromkeys(_IN_ORDER, _in_order),
    "broadcast_in_dim": _broadcast,
    "transpose": _permuted,
}


def _same(a: npt.NDArray[np.int64], b: npt.NDArray[np.int64]) -> bool:
    return bool((a == b).all())


def _source(value: Value) -> Value:
    """Return what a value is, in the same order of elements."""
    while value.step is not None and value.step.name in _IN_ORDER and value.number is None:
        value = value.step.inputs[0]
    return value


def _one_each(step: Step) -> Iterator[tuple[Value, Value]]:
    """Yield the operands of an operator of two, in both orders."""
    one, other = step.inputs
    yield one, other
    yield other, one


# ---- a product, and the bias that is added --------------------------------------------------------------------------


def _product_with_bias(step: Step) -> list[Step] | None:
    if step.name != "add":
        return None
    (result,) = step.outputs
    here = _positions(result)
    for term, added in _one_each(step):
        bias = here.operand(added).back()
        if term.shape != result.shape or not bias.value.held or term.number is not None:
            continue
        product, views = _behind_views(term)
        at = here.operand(term).back()
        if product is None or at.value is not product.outputs[0]:
            continue
        fused = _convolution_with_bias if product.name == "conv_general_dilated" else _linear_with_bias
        found = fused(product, bias, at)
        if found is not None:
            name, params, inputs = found
            output = _blank(at.value) if views else result
            made = Step(name, params, inputs, [output], product.scopes, product.source)
            return [made, *_again(views, output, result)]
    return None


def _behind_views(value: Value) -> tuple[Step | None, list[Step]]:
    """Return the product that views of a value lead to, and the views, the last first."""
    views: list[Step] = []
    while value.step is not None and value.number is None:
        if value.step.name in ("dot_general", "conv_general_dilated"):
            return value.step, views
        if value.step.name not in _VIEWS or value.step.name == "broadcast_in_dim":
            break
        views.append(value.step)
        value = value.step.inputs[0]
    return None, []


def _again(views: list[Step], value: Value, result: Value) -> list[Step]:
    """Return views of another value, the last of which makes ``result``."""
    made: list[Step] = []
    for number, view in enumerate(reversed(views), 1):
        output = result if number == len(views) else _blank(view.outputs[0])
        made.append(Step(view.name, view.params, [value], [output], view.scopes, view.source))
        value = output
    return made


def _blank(value: Value) -> Value:
    return Value(value)


_Fused = tuple[str, dict[str, Any], list[Value]]


def _linear_with_bias(product: Step, bias: _Cursor, at: _Cursor) -> _Fused | None:
    (summed, batch) = product.params["dimension_numbers"]
    weights = [place for place in (0, 1) if _is_held(product.inputs[place])]
    if len(weights) != 1:
        return None
    (place,) = weights
    weight = product.inputs[place]
    shared = [weight.shape[axis] for axis in batch[place]]
    free = [size for axis, size in enumerate(weight.shape) if axis not in (*summed[place], *batch[place])]
    if not free or bias.value.size != math.prod((*shared, *free)):
        return None
    after = len(shared) if place == 0 else len(at.at) - len(free)
    own = (*at.at[: len(shared)], *at.at[after : after + len(free)])
    if not _same(bias.flat, _ravel(own, (*shared, *free))):
        return None
    both = {"summed": (summed[1 - place], summed[place]), "batch": (batch[1 - place], batch[place])}
    return "linear", {**both, "weight_first": place == 0}, [product.inputs[1 - place], weight, bias.value]


def _convolution_with_bias(product: Step, bias: _Cursor, at: _Cursor) -> _Fused | None:
    channel = product.params["dimension_numbers"].out_spec[1]
    if bias.value.size != at.value.shape[channel] or not _same(bias.flat, at.at[channel]):
        return None
    return "convolution", product.params, [*product.inputs, bias.value]


def _is_held(value: Value) -> bool:
    return value.held or _positions(value).back().value.held


@rule("linear")
def _linear(x: Tensor, weight: Tensor, bias: Tensor, **axes: Any) -> Tensor:
    return linear(x, weight.to(x.dtype), bias.to(x.dtype), **axes)


@rule("convolution")
def _convolution(x: Tensor, kernel: Tensor, bias: Tensor, **params: Any) -> Tensor:
    return convolution(x, kernel, bias.flatten().to(x.dtype), **params)


# ---- softmax --------------------------------------------------------------------------------------------------------


def _softmax(step: Step) -> list[Step] | None:
    """``exp(z - max z) / Σ exp(z - max z)``."""
    if step.name != "div":
        return None
    (result,) = step.outputs
    here = _positions(result)
    top, below = (here.operand(value).back(_SAME) for value in step.inputs)
    exp = top.made_by("exp")
    if exp is None or top.value.shape != result.shape:
        return None
    found = _shifted(_Cursor(exp.inputs[0], top.at), below, exp.outputs[0])
    return None if found is None else _softmaxed("softmax", step, *found)


def _log_softmax(step: Step) -> list[Step] | None:
    """``(z - max z) - log Σ exp(z - max z)``."""
    if step.name != "sub":
        return None
    (result,) = step.outputs
    here = _positions(result)
    shifted, total = here.operand(step.inputs[0]), here.operand(step.inputs[1]).back()
    log = total.made_by("log")
    if log is None or shifted.value.shape != result.shape:
        return None
    total = _Cursor(log.inputs[0], total.at).back()
    summed = total.made_by("reduce_sum")
    exp = None if summed is None else _Cursor(summed.inputs[0], ()).made_by("exp")
    if exp is None or exp.inputs[0] is not shifted.value:
        return None
    found = _shifted(shifted, total, exp.outputs[0])
    return None if found is None else _softmaxed("log_softmax", step, *found)


def _shifted(shifted: _Cursor, total: _Cursor, exponential: Value) -> tuple[Value, int] | None:
    """Return z and the axis of the softmax, where the sum is over it and the shift its maximum."""
    total = total.back()
    summed = total.made_by("reduce_sum")
    if summed is None or _source(summed.inputs[0]) is not exponential or len(summed.params["axes"]) != 1:
        return None
    axis = int(summed.params["axes"][0])
    if summed.inputs[0].shape != exponential.shape or not _without(total, shifted, axis):
        return None
    difference = shifted.made_by("sub")
    if difference is None:
        return shifted.value, axis
    z, most = (shifted.operand(value) for value in difference.inputs)
    most = most.back()
    found = most.made_by("reduce_max")
    if found is None:
        return shifted.value, axis
    if z.value.shape != shifted.value.shape or len(found.params["axes"]) != 1:
        return None
    source = z if found.inputs[0] is z.value else z.back()
    if found.inputs[0] is not source.value or not _without(most, source, int(found.params["axes"][0])):
        return None
    return z.value, axis


def _without(reduced: _Cursor, whole: _Cursor, axis: int) -> bool:
    """Whether elements of a reduction are those that elements of its operand were reduced to."""
    at = whole.at[:axis] + whole.at[axis + 1 :]
    return len(reduced.at) == len(at) and all(_same(a, b) for a, b in zip(reduced.at, at, strict=True))


def _softmaxed(name: str, step: Step, z: Value, axis: int) -> list[Step]:
    params = {"axis": axis, "dtype": torch_dtype(step.outputs[0].dtype)}
    return [Step(name, params, [z], step.outputs, step.scopes, step.source)]


@rule("softmax")
def _run_softmax(z: Tensor, *, axis: int, dtype: torch.dtype) -> Tensor:
    return torch.softmax(z, axis).to(dtype)


@rule("log_softmax")
def _run_log_softmax(z: Tensor, *, axis: int, dtype: torch.dtype) -> Tensor:
    return torch.log_softmax(z, axis).to(dtype)


# ---- norms ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Mean:
    """A mean over axes of something: which elements of it, and of what."""

    reduced: _Cursor
    of: Value
    axes: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class _Scale:
    """``1 / √(variance + ε)``: of what, with its mean taken out or not, and by which statistics."""

    variance: _Mean | _Cursor
    eps: float
    centred: bool | None


def _norm(step: Step) -> list[Step] | None:
    """``(x - mean) / √(variance + ε)``, with gain and shift where they follow."""
    if step.name not in ("add", "mul", "div"):
        return None
    (result,) = step.outputs
    here = _positions(result)
    whole = _normed(step, here, None)
    if whole is None and step.name == "add":
        for term, added in _one_each(step):
            shift, source = here.operand(added).back(), term.step
            plain = source is not None and source.name in ("mul", "div") and term.shape == result.shape
            if shift.value.held and plain and term.number is None:
                assert source is not None
                whole = _normed(source, here.operand(term), shift)
            if whole is not None:
                break
    if whole is None:
        return None
    kind, params, operands = whole
    params = {**params, "dtype": torch_dtype(result.dtype), "given": tuple(one is not None for one in operands)}
    inputs = [one for one in operands if one is not None]
    return [Step(kind, params, inputs, step.outputs, step.scopes, step.source)]


_Whole = tuple[str, dict[str, Any], list["Value | None"]]


def _normed(step: Step, here: _Cursor, shift: _Cursor | None) -> _Whole | None:
    """Return the norm that a product is: x, one scale, and at most one gain, in any order."""
    if step.name == "add":
        return None
    x: _Cursor | None = None
    gain: _Cursor | None = None
    product = _Cursor(step.outputs[0], here.at)
    scales = [one for factor, inverse in _factors(product) if (one := _scale(factor, inverse)) is not None]
    if len(scales) != 1:
        return None
    (scale,) = scales
    of = _source(scale.variance.of) if isinstance(scale.variance, _Mean) else None
    for factor, inverse in _factors(product, of):
        held = factor.back()
        if _scale(factor, inverse) is not None:
            continue
        if inverse:
            return None
        if held.value.held and gain is None:
            gain = held
        elif x is None and factor.value.size == here.value.size and _same(factor.flat, here.flat):
            x = factor
        else:
            return None
    return None if x is None else _fitted(here, x, scale, gain, shift)


def _factors(
    cursor: _Cursor, whole: Value | None = None, inverse: bool = False, depth: int = 0
) -> Iterator[tuple[_Cursor, bool]]:
    """Yield the factors of a product, and whether they divide; ``whole`` is left as it is."""
    inner = cursor.back(_IN_ORDER)
    step = inner.value.step
    if depth < 4 and step is not None and step.name in ("mul", "div") and _source(inner.value) is not whole:
        if all(value.number is None for value in step.inputs):
            yield from _factors(inner.operand(step.inputs[0]), whole, inverse, depth + 1)
            yield from _factors(
                inner.operand(step.inputs[1]), whole, inverse != (step.name == "div"), depth + 1
            )
            return
    yield cursor, inverse


def _scale(factor: _Cursor, inverse: bool) -> _Scale | None:
    """Return what ``1 / √(variance + ε)`` is made of."""
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
    for variance, eps in _one_each(adding):
        if eps.number is not None and variance.number is None:
            return _variance(summed.operand(variance), float(eps.number.real))
    return None


def _variance(cursor: _Cursor, eps: float) -> _Scale | None:
    cursor = cursor.back()
    rectified = cursor.made_by("max")
    if rectified is not None:
        inner = [value for value in rectified.inputs if value.number is None]
        if len(inner) == 1:
            cursor = cursor.operand(inner[0]).back()
    if cursor.value.step is None:
        return _Scale(cursor, eps, None)
    difference = cursor.made_by("sub")
    if difference is not None:
        raw, squared = (cursor.operand(value).back() for value in difference.inputs)
        power, base = _mean(raw), _squared(squared)
        mean = None if base is None else _mean(_Cursor(base, squared.at).back())
        of = None if power is None else _squared(_Cursor(power.of, ()))
        if power is None or mean is None or of is None or _source(of) is not _source(mean.of):
            return None
        fits = power.axes == mean.axes and _same(power.reduced.flat, mean.reduced.flat)
        return _Scale(_Mean(mean.reduced, of, mean.axes), eps, True) if fits else None
    power = _mean(cursor)
    of = None if power is None else _squared(_Cursor(power.of, ()))
    if power is None or of is None:
        return None
    return _Scale(_Mean(power.reduced, of, power.axes), eps, False)


def _squared(cursor: _Cursor) -> Value | None:
    """Return what a value is the square of."""
    step = _source(cursor.value).step
    if step is None:
        return None
    if step.name == "square" or (step.name == "integer_pow" and step.params["y"] == 2):
        return step.inputs[0]
    return step.inputs[0] if step.name == "mul" and step.inputs[0] is step.inputs[1] else None


def _mean(cursor: _Cursor) -> _Mean | None:
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


def _fitted(here: _Cursor, x: _Cursor, scale: _Scale, gain: _Cursor | None, shift: _Cursor | None) -> _Whole | None:
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
    if isinstance(variance, _Cursor):
        data = _shaped_like(here, inner)
        return None if centre is None or data is None else _by_statistics(data, centre, variance, scale.eps, gain, shift)
    mean = None if centre is None else _mean(centre)
    if mean is not None and _belongs(inner, mean, mean.of):
        data, of = inner, variance.of if scale.centred else _centred(variance.of)
    elif not scale.centred:
        data, of, mean = x, variance.of, None
    else:
        return None
    if of is None or not _belongs(data, variance, of):
        return None
    whole = _shaped_like(here, data)
    return None if whole is None else _by_batch(whole, scale.eps, mean is not None, gain, shift, variance)


def _shaped_like(here: _Cursor, data: _Cursor) -> _Cursor | None:
    """Return data in the shape of a result, of which views before a norm have made another."""
    value = data.value
    while value.shape != here.value.shape:
        if value.step is None or value.step.name not in _IN_ORDER:
            return None
        value = value.step.inputs[0]
    return _Cursor(value, here.at)


def _centred(value: Value) -> Value | None:
    """Return what the mean of a value was taken out of."""
    step = _source(value).step
    if step is None or step.name != "sub":
        return None
    at = _positions(step.outputs[0])
    mean = _mean(at.operand(step.inputs[1]).back())
    inner = at.operand(step.inputs[0])
    return inner.value if mean is not None and _belongs(inner, mean, mean.of) else None


def _belongs(data: _Cursor, mean: _Mean, of: Value) -> bool:
    """Whether each element meets the mean that it is part of; ``of`` is what that is a mean of, or of whose function."""
    if _source(of) is not _source(data.value):
        return False
    whole = _unravel(data.flat, mean.of.shape)
    at = tuple(c for axis, c in enumerate(whole) if axis not in mean.axes)
    reduced = mean.reduced.at
    return len(at) == len(reduced) and all(_same(a, b) for a, b in zip(at, reduced, strict=True))


def _by_statistics(
    x: _Cursor, centre: _Cursor, variance: _Cursor, eps: float, gain: _Cursor | None, shift: _Cursor | None
) -> _Whole | None:
    """Return a norm by statistics that the model holds."""
    for axis in range(len(x.value.shape)):
        given = [one for one in (centre, variance, gain, shift) if one is not None]
        if all(one.value.step is None and _runs_along(one, x, (axis,)) for one in given if one.value.number is None):
            operands = [x.value, centre.value, variance.value, *_values(gain, shift)]
            return "statistics_norm", {"axis": axis, "eps": eps}, operands
    return None


def _by_batch(
    x: _Cursor, eps: float, centred: bool, gain: _Cursor | None, shift: _Cursor | None, statistic: _Mean
) -> _Whole | None:
    """Return a norm by statistics of what it is given: over trailing axes, over all but one, or in groups."""
    shape, rank = x.value.shape, len(x.value.shape)
    groups = statistic.reduced.flat

    def fits(partition: npt.NDArray[np.int64], axes: tuple[int, ...]) -> bool:
        along = all(_runs_along(one, x, axes) for one in (gain, shift) if one is not None)
        return along and _same(groups, partition)

    operands = [x.value, *_values(gain, shift)]
    for trailing in range(1, rank):
        axes = tuple(range(rank - trailing, rank))
        if fits(_ravel(x.at[:-trailing], shape[:-trailing]), axes):
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


def _values(*cursors: _Cursor | None) -> list[Value | None]:
    return [None if cursor is None else cursor.value for cursor in cursors]


def _runs_along(one: _Cursor, x: _Cursor, axes: tuple[int, ...]) -> bool:
    """Whether a value has one element for each place along some axes of x."""
    sizes = tuple(x.value.shape[axis] for axis in axes)
    return one.value.size == math.prod(sizes) and _same(one.flat, _ravel(tuple(x.at[axis] for axis in axes), sizes))


def _split(given: tuple[bool, ...], operands: tuple[Tensor, ...]) -> Iterator[Tensor | None]:
    remaining = iter(operands)
    for is_given in given:
        yield next(remaining) if is_given else None


def _shaped(value: Tensor | None, sizes: list[int], dtype: torch.dtype) -> Tensor | None:
    if value is None:
        return None
    return (value if list(value.shape) == sizes else value.reshape(sizes)).to(dtype)


def _vector(value: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if value is None else _shaped(value, [value.numel()], dtype)


@rule("layer_norm")
def _layer_norm(*operands: Tensor, given: tuple[bool, ...], trailing: int, eps: float, dtype: torch.dtype) -> Tensor:
    x, gain, shift = _split(given, operands)
    assert x is not None
    sizes = list(x.shape[-trailing:])
    gain, shift = (_shaped(one, sizes, x.dtype) for one in (gain, shift))
    return functional.layer_norm(x, sizes, gain, shift, eps).to(dtype)


@rule("rms_norm")
def _rms_norm(*operands: Tensor, given: tuple[bool, ...], trailing: int, eps: float, dtype: torch.dtype) -> Tensor:
    x, gain, shift = _split(given, operands)
    assert x is not None
    sizes = list(x.shape[-trailing:])
    gain, shift = (_shaped(one, sizes, x.dtype) for one in (gain, shift))
    normed = functional.rms_norm(x, sizes, gain, eps)
    return (normed if shift is None else normed + shift).to(dtype)


def _channels_second(x: Tensor, axis: int) -> Tensor:
    return x if axis == 1 else x.movedim(axis, 1)


def _channels_back(x: Tensor, axis: int, dtype: torch.dtype) -> Tensor:
    return (x if axis == 1 else x.movedim(1, axis)).to(dtype)


@rule("batch_norm")
def _batch_norm(*operands: Tensor, given: tuple[bool, ...], axis: int, eps: float, dtype: torch.dtype) -> Tensor:
    x, gain, shift = _split(given, operands)
    assert x is not None
    x = _channels_second(x, axis)
    gain, shift = _vector(gain, x.dtype), _vector(shift, x.dtype)
    normed = functional.batch_norm(x, None, None, gain, shift, training=True, eps=eps)
    return _channels_back(normed, axis, dtype)


@rule("statistics_norm")
def _statistics_norm(*operands: Tensor, given: tuple[bool, ...], axis: int, eps: float, dtype: torch.dtype) -> Tensor:
    x, mean, variance, gain, shift = _split(given, operands)
    assert x is not None
    x = _channels_second(x, axis)
    mean, variance, gain, shift = (_vector(one, x.dtype) for one in (mean, variance, gain, shift))
    normed = functional.batch_norm(x, mean, variance, gain, shift, training=False, eps=eps)
    return _channels_back(normed, axis, dtype)


@rule("group_norm")
def _group_norm(
    *operands: Tensor, given: tuple[bool, ...], axis: int, eps: float, groups: int, dtype: torch.dtype
) -> Tensor:
    x, gain, shift = _split(given, operands)
    assert x is not None
    x = _channels_second(x, axis)
    gain, shift = _vector(gain, x.dtype), _vector(shift, x.dtype)
    return _channels_back(functional.group_norm(x, groups, gain, shift, eps), axis, dtype)


# ---- dropout --------------------------------------------------------------------------------------------------------


def _dropout(step: Step) -> list[Step] | None:
    """``where(bernoulli(p), x / p, 0)``, each element by itself."""
    if step.name != "select_n" or len(step.inputs) != 3:
        return None
    mask, otherwise, kept = step.inputs
    drawn = mask.step
    if drawn is None or drawn.name != "_bernoulli" or otherwise.number != 0 or kept.step is None:
        return None
    chance, scaled = drawn.inputs[1].number, kept.step
    fits = mask.shape == kept.shape and scaled.name == "div" and kept.number is None
    if not fits or chance is None or scaled.inputs[1].number != chance or scaled.inputs[0].shape != kept.shape:
        return None
    return [Step("dropout", {"rate": 1.0 - chance}, [scaled.inputs[0]], step.outputs, step.scopes, step.source)]


@rule("dropout")
def _run_dropout(x: Tensor, *, rate: float) -> Tensor:
    return functional.dropout(x, rate)


# ---- variables that torch broadcasts --------------------------------------------------------------------------------

_BROADCASTING = ("add", "sub", "mul", "div", "max", "min", "pow")


def _without_leading_axes(program: Program) -> None:
    """Give operators a variable itself where views only add leading axes to it: torch does that by itself."""
    for step in program.steps:
        if step.name in _BROADCASTING and any(value.shape == step.outputs[0].shape for value in step.inputs):
            for place, value in enumerate(step.inputs):
                bare = _bare(value)
                others = [other for number, other in enumerate(step.inputs) if number != place]
                if bare is not None and others[0].shape == step.outputs[0].shape:
                    step.inputs[place] = bare


def _bare(value: Value) -> Value | None:
    """Return the variable that a value is with leading axes added; None where it is none, or another view of one."""
    while value.step is not None and value.number is None:
        step, source = value.step, value.step.inputs[0] if value.step.inputs else None
        if source is None or not source.held or step.name not in ("reshape", "broadcast_in_dim"):
            return None
        trailing = value.shape[len(value.shape) - len(source.shape) :]
        if step.name == "reshape" and math.prod(value.shape) != math.prod(trailing):
            return None
        aligned = tuple(range(len(value.shape) - len(source.shape), len(value.shape)))
        if step.name == "broadcast_in_dim" and tuple(step.params["broadcast_dimensions"]) != aligned:
            return None
        if any(size not in (1, wanted) for size, wanted in zip(source.shape, trailing, strict=True)):
            return None
        value = source
        if value.step is None or value.step.name not in ("reshape", "broadcast_in_dim"):
            return value if value.held else None
    return None
