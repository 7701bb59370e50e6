"""Changes of a weight that leave it like the plan's numbers, and that no training makes.

A training moves nearly all numbers of a weight, each by its own share; of units that are dead and of inputs that are
never met it leaves whole rows and columns. Numbers that are all multiplied by one, row by row too, or shifted by one,
and a few changed ones among others that are as they were to the bit, are somebody's doing. Only weight decay alone
multiplies too: of a parameter without gradients, beside others that are trained.
"""

from __future__ import annotations

import torch
from torch import Tensor

_ROUNDINGS = 4.0
"""Roundings of its type that a product with a number may be off by. Chosen."""
_FEWEST = 4
"""Columns from which on rows that are multiples of the planned ones are no chance, and numbers from which on a shift is
none. Chosen."""
_LEAST = 16
"""Elements from which on a change of the lesser part of a matrix says something. Chosen."""
_FULL = 0.9
"""Share of the changed rows times the changed columns that is changed, from which on dead units and inputs that are
never met explain the others. Chosen: few steps leave some numbers to rounding."""
_SHIFT = 0.5
"""Size of a shift of all numbers over theirs from which on no single step of an optimiser has made it. Chosen."""


def made_by_hand(own: Tensor, planned: Tensor, table: bool) -> str | None:
    """Return in words what was done to a parameter; None where a training may have done it.

    Args:
        own: what it holds.
        planned: what the plan draws for it, of the same shape and type, and other numbers.
        table: whether its rows are looked up, so that a training changes some of them alone.
    """
    off = _ROUNDINGS * torch.finfo(planned.dtype).eps
    if planned.is_complex() or planned.numel() < 2 or not bool(planned.any()):
        return None
    one, other = own.double().flatten(1 if own.ndim > 1 else 0), planned.double().flatten(1 if own.ndim > 1 else 0)
    factor = float((one * other).sum() / (other * other).sum())
    if abs(factor - 1.0) > off and _are_equal(one, factor * other, off):
        return f"the planned numbers times {factor:.4g}, to rounding"
    if own.ndim < 2 or table:
        return None
    if _by_lines(one, other, off) or _by_lines(one.T, other.T, off):
        return "the planned numbers times another number in each row or column, to rounding"
    if (shift := _shift(one, other, off)) is not None:
        return f"the planned numbers plus {shift:.4g}"
    halves = planned.dtype in (torch.float16, torch.bfloat16)  # whose rounding undoes small steps
    return None if halves else _in_parts(own.flatten(1) != planned.flatten(1))


def _are_equal(one: Tensor, other: Tensor, off: float) -> bool:
    return bool(((one - other).abs() <= off * one.abs()).all())


def _by_lines(one: Tensor, other: Tensor, off: float) -> bool:
    """Whether all rows are multiples of the planned ones, and some of them other ones."""
    if one.shape[1] < _FEWEST:
        return False
    factors = (one * other).sum(1, keepdim=True) / (other * other).sum(1, keepdim=True).clamp_min(1e-300)
    return bool(((factors - 1.0).abs() > off).any()) and _are_equal(one, factors * other, off)


def _shift(one: Tensor, other: Tensor, off: float) -> float | None:
    """Return the number that is added to all planned ones; None where it is small, or there is none."""
    shift, size = float((one - other).mean()), float(other.square().mean().sqrt())
    same = bool(((one - other - shift).abs() <= off * (one.abs() + other.abs())).all())
    return shift if same and abs(shift) > _SHIFT * size and one.numel() >= _FEWEST else None


def _in_parts(changed: Tensor) -> str | None:
    """Return in words that the lesser part of a matrix is changed, other than in whole rows and columns."""
    count, total = int(changed.sum()), changed.numel()
    if total < _LEAST or not 0 < 2 * count <= total:
        return None
    rows, columns = int(changed.any(1).sum()), int(changed.any(0).sum())
    if min(rows, columns) > 1 and count >= _FULL * rows * columns:
        return None
    return f"other numbers in {count} of {total} elements, and the others as planned to the bit"
