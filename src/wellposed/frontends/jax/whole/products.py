"""A product and the bias that is added to it, as one operator; variables that torch broadcasts by itself."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from wellposed.frontends.jax.primitives import convolution, linear, rule
from wellposed.frontends.jax.program import Program, Step, Value
from wellposed.frontends.jax.whole.elements import VIEWS, Cursor, in_both_orders, positions, ravel, same


def product_with_bias(step: Step) -> list[Step] | None:
    """``x W + b``, whatever views are between."""
    if step.name != "add":
        return None
    (result,) = step.outputs
    here = positions(result)
    for term, added in in_both_orders(step):
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
        if value.step.name not in VIEWS or value.step.name == "broadcast_in_dim":
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


def _linear_with_bias(product: Step, bias: Cursor, at: Cursor) -> _Fused | None:
    """Return ``linear`` for a product with one variable whose outputs each have an element of the bias."""
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
    if not same(bias.flat, ravel(own, (*shared, *free))):
        return None
    both = {"summed": (summed[1 - place], summed[place]), "batch": (batch[1 - place], batch[place])}
    return "linear", {**both, "weight_first": place == 0}, [product.inputs[1 - place], weight, bias.value]


def _convolution_with_bias(product: Step, bias: Cursor, at: Cursor) -> _Fused | None:
    channel = product.params["dimension_numbers"].out_spec[1]
    if bias.value.size != at.value.shape[channel] or not same(bias.flat, at.at[channel]):
        return None
    return "convolution", product.params, [*product.inputs, bias.value]


def _is_held(value: Value) -> bool:
    return value.held or positions(value).back().value.held


@rule("linear")
def _linear(x: Tensor, weight: Tensor, bias: Tensor, **axes: Any) -> Tensor:
    return linear(x, weight.to(x.dtype), bias.to(x.dtype), **axes)


@rule("convolution")
def _convolution(x: Tensor, kernel: Tensor, bias: Tensor, **params: Any) -> Tensor:
    made: Tensor = convolution(x, kernel, bias.flatten().to(x.dtype), **params)
    return made


# ---- variables that torch broadcasts --------------------------------------------------------------------------------

_BROADCASTING = ("add", "sub", "mul", "div", "max", "min", "pow")


def without_leading_axes(program: Program) -> None:
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
        if not _adds_leading_axes(step, value.shape, source.shape):
            return None
        value = source
        if value.step is None or value.step.name not in ("reshape", "broadcast_in_dim"):
            return value if value.held else None
    return None


def _adds_leading_axes(step: Step, shape: tuple[int, ...], before: tuple[int, ...]) -> bool:
    """Whether a reshape or broadcast leaves the axes of what it views as the last ones, repeated at most."""
    kept = tuple(range(len(shape) - len(before), len(shape)))
    trailing = shape[len(shape) - len(before) :]
    if step.name == "reshape" and math.prod(shape) != math.prod(trailing):
        return False
    if step.name == "broadcast_in_dim" and tuple(step.params["broadcast_dimensions"]) != kept:
        return False
    return all(size in (1, wanted) for size, wanted in zip(before, trailing, strict=True))
