"""The norms that are recognised, run by torch's own operators."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from wellposed.frontends.jax.primitives import rule


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


def _over_last(
    operands: tuple[Tensor, ...], given: tuple[bool, ...], trailing: int
) -> tuple[Tensor, list[int], Tensor | None, Tensor | None]:
    """Return the data, the sizes of the last axes that are normalised, and gain and shift of these sizes."""
    x, gain, shift = _split(given, operands)
    assert x is not None
    sizes = list(x.shape[-trailing:])
    return x, sizes, _shaped(gain, sizes, x.dtype), _shaped(shift, sizes, x.dtype)


@rule("layer_norm")
def _layer_norm(*operands: Tensor, given: tuple[bool, ...], trailing: int, eps: float, dtype: torch.dtype) -> Tensor:
    x, sizes, gain, shift = _over_last(operands, given, trailing)
    return functional.layer_norm(x, sizes, gain, shift, eps).to(dtype)


@rule("rms_norm")
def _rms_norm(*operands: Tensor, given: tuple[bool, ...], trailing: int, eps: float, dtype: torch.dtype) -> Tensor:
    x, sizes, gain, shift = _over_last(operands, given, trailing)
    normed = functional.rms_norm(x, sizes, gain, eps)
    return (normed if shift is None else normed + shift).to(dtype)


def _channels_second(x: Tensor, axis: int) -> Tensor:
    return x if axis == 1 else x.movedim(axis, 1)


def _channels_back(x: Tensor, axis: int, dtype: torch.dtype) -> Tensor:
    return (x if axis == 1 else x.movedim(1, axis)).to(dtype)


@rule("batch_norm")
def _batch_norm(*operands: Tensor, given: tuple[bool, ...], axis: int, eps: float, dtype: torch.dtype) -> Tensor:
    """Run a norm by statistics of the batch over all axes but one."""
    x, gain, shift = _split(given, operands)
    assert x is not None
    x = _channels_second(x, axis)
    gain, shift = _vector(gain, x.dtype), _vector(shift, x.dtype)
    normed = functional.batch_norm(x, None, None, gain, shift, training=True, eps=eps)
    return _channels_back(normed, axis, dtype)


@rule("statistics_norm")
def _statistics_norm(*operands: Tensor, given: tuple[bool, ...], axis: int, eps: float, dtype: torch.dtype) -> Tensor:
    """Run a norm by statistics that the model holds, one for each place along an axis."""
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
    """Run a norm over groups of the places along an axis."""
    x, gain, shift = _split(given, operands)
    assert x is not None
    x = _channels_second(x, axis)
    gain, shift = _vector(gain, x.dtype), _vector(shift, x.dtype)
    return _channels_back(functional.group_norm(x, groups, gain, shift, eps), axis, dtype)
