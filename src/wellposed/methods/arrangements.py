"""Weights whose numbers could each be a draw, but whose arrangement no independent draws have.

Rows or columns that are equal in pairs, up to sign; matrices that equal their transpose; few singular values; a
diagonal far larger than the rest. Each is tested on a row or a corner first, where most draws fail.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wellposed.arrays import array_of, median

Floats = npt.NDArray[np.float64]

_LEAST, _LEAST_COARSE = 4, 16
"""Numbers of a row from which on two rows of draws are not equal by chance: 4 of 24 bits, or 16 of 8. Chosen."""
_FACTOR = 0x9E3779B97F4A7C15
"""Odd number whose powers mix the bits of a row's numbers, so that other rows have other sums."""
_TWINS = 4
"""One row in this many has a twin where a weight counts as one of pairs: a copied row alone is not what a table is."""
_SIDE = 8
"""Rows and columns from which on a rank and a diagonal say something. Chosen."""
_CORNER = 24
"""Rows and columns whose singular values are looked at, and that are held against a diagonal. Chosen for cost."""
_LARGER = 4.0
"""Size of half of a diagonal over that of the rest from which on it is set: of 8 draws, 4 reach it once in 10¹⁵."""
_SAME, _SAME_COARSE = 1e-4, 1e-2
"""Relative differences that rounding makes of equal numbers, and of no singular value, by type."""


def arrangement_of(values: Tensor, coarse: bool) -> str | None:
    """Return in words how a weight is arranged; None for independent draws.

    Args:
        values: the weight; with fewer than two axes none is seen.
        coarse: whether its numbers have the few digits of bfloat16 or float16.
    """
    if values.ndim < 2 or not values.numel():
        return None
    matrix, center = values.detach().flatten(1), _center(values.detach())
    if _has_twins(matrix, coarse) or _has_twins(matrix.T, coarse):
        return "rows or columns equal in pairs, up to sign"
    tolerance = _SAME_COARSE if coarse else _SAME
    if _is_symmetric(center, tolerance):
        return "symmetric"
    if _has_diagonal(center):
        return "a diagonal far larger than the rest"
    return "of low rank" if _is_of_low_rank(matrix, tolerance) else None


def has_one_sign(values: Tensor) -> bool:
    """Whether no two numbers of a weight have opposite signs."""
    low, high = torch.aminmax(values.detach())
    return bool(low >= 0.0) or bool(high <= 0.0)


def _center(values: Tensor) -> Tensor:
    """Return a matrix; of a kernel, the matrix at its central tap."""
    return values.flatten(2)[:, :, math.prod(values.shape[2:]) // 2] if values.ndim > 2 else values


def _has_twins(matrix: Tensor, coarse: bool) -> bool:
    """Whether a quarter of the rows equal another one, up to sign: by their first numbers, then as a whole."""
    rows, columns = matrix.shape
    if rows < 2 or columns < (_LEAST_COARSE if coarse else _LEAST):
        return False
    ordered = np.sort(np.abs(array_of(matrix[:, 0])))  # few numbers of draws are equal: most end here
    if _TWINS * int((ordered[1:] == ordered[:-1]).sum()) < rows:
        return False
    bits = matrix[:, :_LEAST_COARSE].abs().double().contiguous().view(torch.int64)
    factors = [pow(_FACTOR, place + 1, 1 << 62) | 1 for place in range(bits.shape[1])]
    key = (bits * torch.tensor(factors, device=bits.device)).sum(1)
    order = key.argsort(stable=True)
    alike = (key[order[1:]] == key[order[:-1]]) & (key[order[1:]] != 0)  # 0: rows of zeros
    if _TWINS * int(alike.sum()) < rows:
        return False
    one, other = matrix[order[1:][alike]], matrix[order[:-1][alike]]
    same = (one == other).all(1) | (one == -other).all(1)
    return _TWINS * int(same.sum()) >= rows


def _is_symmetric(matrix: Tensor, tolerance: float) -> bool:
    """Whether a square matrix equals its transpose, up to sign and to rounding: by its first row, then as a whole."""
    if len(matrix) != matrix.shape[1] or len(matrix) < _SIDE:
        return False
    size = float(matrix[0].abs().max())

    def differ(one: Tensor, other: Tensor) -> float:
        return min(float((one - other).abs().max()), float((one + other).abs().max()))

    if size == 0.0 or differ(matrix[0, 1:], matrix[1:, 0]) > tolerance * size:
        return False
    off = matrix - torch.diag(matrix.diagonal())
    return differ(off, off.T) <= tolerance * float(off.abs().max())


def _corner(matrix: Tensor) -> Tensor:
    """Return some rows and columns of a large matrix, from all over it."""
    steps = [max(1, size // _CORNER) for size in matrix.shape]
    return matrix[:: steps[0], :: steps[1]][:_CORNER, :_CORNER]


def _has_diagonal(matrix: Tensor) -> bool:
    """Whether half of the diagonal elements are far larger than the elements beside them."""
    sizes = np.abs(array_of(matrix[: 2 * _CORNER, : 2 * _CORNER]))
    side = min(sizes.shape)
    if side < _SIDE:
        return False
    diagonal = np.sort(sizes.diagonal())
    rest = float((sizes**2).sum() - (diagonal**2).sum()) / (sizes.size - side)
    return bool(diagonal[(side - 1) // 2] > _LARGER * rest**0.5 > 0.0)


def _is_of_low_rank(matrix: Tensor, tolerance: float) -> bool:
    """Whether half of the singular values of a corner are 0, as it is and with rows and columns of equal norms."""
    corner = array_of(_corner(matrix))
    if min(corner.shape) < _SIDE:
        return False
    if not _ends_early(corner, tolerance):
        return False
    corner = corner - median(corner)
    for axis in (1, 0) * 4:
        sizes = np.sqrt((corner**2).mean(axis, keepdims=True))
        if not sizes.all():  # rows of zeros: nothing of draws, and counted elsewhere
            return False
        corner = corner / sizes
    return _ends_early(corner, tolerance)


def _ends_early(corner: Floats, tolerance: float) -> bool:
    """Whether half of the singular values of a matrix are 0 relative to the largest."""
    singular = np.linalg.svd(corner, compute_uv=False)
    return bool(singular[len(singular) // 2] < tolerance * singular[0])
