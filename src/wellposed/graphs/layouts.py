"""How the results of operators on elements lie in memory, by PyTorch's rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

META = torch.device("meta")


def of_elements(*tensors: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return the result of an operator on the elements of tensors that broadcast, of the last one's dtype or another.

    It lies in memory without gaps, its axes in the order of the first tensor that tells, as PyTorch's `TensorIterator`
    lays them.
    """
    first, dtype = tensors[0], dtype or tensors[-1].dtype
    shape = first.shape if len(tensors) == 1 else torch.broadcast_shapes(*(tensor.shape for tensor in tensors))
    if all(tensor.shape == shape for tensor in tensors):
        for layout in (torch.contiguous_format, torch.channels_last):
            if all(tensor.is_contiguous(memory_format=layout) for tensor in tensors):
                return torch.empty(shape, dtype=dtype, device=META, memory_format=layout)
        if _has_no_gaps(first) and all(tensor.stride() == first.stride() for tensor in tensors):
            return torch.empty_strided(shape, first.stride(), dtype=dtype, device=META)
    strides = [_broadcast_strides(tensor, shape) for tensor in tensors]
    found, step = [0] * len(shape), 1
    for axis in _axes_in_order(shape, strides):
        found[axis] = step
        step *= max(shape[axis], 1)
    return torch.empty_strided(shape, found, dtype=dtype, device=META)


def _axes_in_order(shape: torch.Size, strides: Sequence[Sequence[int]]) -> list[int]:
    """Return the axes of a result, the innermost first: sorted by insertion, as the order is none of all pairs."""
    order = list(reversed(range(len(shape))))
    for end in range(1, len(order)):
        at = end
        for before in reversed(range(end)):
            apart = _comes_after(order[before], order[at], shape, strides)
            if apart < 0:
                break
            if apart > 0:
                order[before], order[at] = order[at], order[before]
                at = before
    return order


def _broadcast_strides(x: Tensor, shape: torch.Size) -> list[int]:
    """Return the strides of a tensor in a shape that it broadcasts to: 0 along axes that it is repeated along."""
    own = zip(x.shape, x.stride(), shape[len(shape) - x.dim() :], strict=True)
    return [0] * (len(shape) - x.dim()) + [stride if size == full else 0 for size, stride, full in own]


def _comes_after(inner: int, outer: int, shape: torch.Size, strides: Sequence[Sequence[int]]) -> int:
    """Whether an axis lies outside of another in memory (1) or inside (-1), by the first tensor that tells; else 0."""
    for each in strides:
        if each[inner] and each[outer]:
            if each[inner] != each[outer]:
                return -1 if each[inner] < each[outer] else 1
            if shape[inner] > shape[outer]:
                return 1
    return 0


def is_dense(x: Any) -> bool:
    """Whether ``x`` is floating point and fills its memory without gaps, in any order of axes."""
    return isinstance(x, Tensor) and x.is_floating_point() and _has_no_gaps(x)


def _has_no_gaps(x: Tensor) -> bool:
    """Whether a tensor fills its memory without gaps."""
    if x.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def agree(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors broadcast."""
    sizes = zip(reversed(x.shape), reversed(y.shape), strict=False)
    return all(a == b or a == 1 or b == 1 for a, b in sizes)


def broadcasts(x: Tensor, shape: Sequence[int]) -> bool:
    """Whether a tensor broadcasts to a shape."""
    sizes = zip(reversed(x.shape), reversed(shape), strict=False)
    return x.dim() <= len(shape) and all(size in (1, full) for size, full in sizes)
