"""Softmax and its logarithm."""

from __future__ import annotations

import torch
from torch import Tensor

from wellposed.frontends.jax.dtypes import torch_dtype
from wellposed.frontends.jax.primitives import rule
from wellposed.frontends.jax.program import Step, Value
from wellposed.frontends.jax.whole.elements import SAME, Cursor, positions, same, source_of


def softmax(step: Step) -> list[Step] | None:
    """``exp(z - max z) / Σ exp(z - max z)``."""
    if step.name != "div":
        return None
    (result,) = step.outputs
    here = positions(result)
    top, below = (here.operand(value).back(SAME) for value in step.inputs)
    exp = top.made_by("exp")
    if exp is None or top.value.shape != result.shape:
        return None
    found = _shifted(Cursor(exp.inputs[0], top.at), below, exp.outputs[0])
    return None if found is None else _softmaxed("softmax", step, *found)


def log_softmax(step: Step) -> list[Step] | None:
    """``(z - max z) - log Σ exp(z - max z)``."""
    if step.name != "sub":
        return None
    (result,) = step.outputs
    here = positions(result)
    shifted, total = here.operand(step.inputs[0]), here.operand(step.inputs[1]).back()
    log = total.made_by("log")
    if log is None or shifted.value.shape != result.shape:
        return None
    total = Cursor(log.inputs[0], total.at).back()
    summed = total.made_by("reduce_sum")
    exp = None if summed is None else Cursor(summed.inputs[0], ()).made_by("exp")
    if exp is None or exp.inputs[0] is not shifted.value:
        return None
    found = _shifted(shifted, total, exp.outputs[0])
    return None if found is None else _softmaxed("log_softmax", step, *found)


def _shifted(shifted: Cursor, total: Cursor, exponential: Value) -> tuple[Value, int] | None:
    """Return z and the axis of the softmax, where the sum is over it and the shift its maximum."""
    total = total.back()
    summed = total.made_by("reduce_sum")
    if summed is None or source_of(summed.inputs[0]) is not exponential or len(summed.params["axes"]) != 1:
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


def _without(reduced: Cursor, whole: Cursor, axis: int) -> bool:
    """Whether elements of a reduction are those that elements of its operand were reduced to."""
    at = whole.at[:axis] + whole.at[axis + 1 :]
    return len(reduced.at) == len(at) and all(same(a, b) for a, b in zip(reduced.at, at, strict=True))


def _softmaxed(name: str, step: Step, z: Value, axis: int) -> list[Step]:
    params = {"axis": axis, "dtype": torch_dtype(step.outputs[0].dtype)}
    return [Step(name, params, [z], step.outputs, step.scopes, step.source)]


@rule("softmax")
def _run_softmax(z: Tensor, *, axis: int, dtype: torch.dtype) -> Tensor:
    return torch.softmax(z, axis).to(dtype)


@rule("log_softmax")
def _run_log_softmax(z: Tensor, *, axis: int, dtype: torch.dtype) -> Tensor:
    return torch.log_softmax(z, axis).to(dtype)
