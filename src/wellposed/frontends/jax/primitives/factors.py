"""Factors of matrices, and equations solved with them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from wellposed.frontends.jax.primitives.registry import rule


@rule("cholesky")
def _cholesky(x: Tensor, **_params: Any) -> Tensor:
    factor: Tensor = torch.linalg.cholesky(x)
    return factor


@rule("qr")
def _qr(x: Tensor, *, full_matrices: bool, **_params: Any) -> tuple[Tensor, Tensor]:
    q, r = torch.linalg.qr(x, "complete" if full_matrices else "reduced")
    return q, r


@rule("lu")
def _lu(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    factors, pivots = torch.linalg.lu_factor(x)
    rows, _, _ = torch.lu_unpack(factors, pivots)  # the matrix that brings them into another order
    return factors, pivots - 1, rows.argmax(-2).to(torch.int32)


@rule("eigh")
def _eigh(x: Tensor, *, lower: bool, **_params: Any) -> tuple[Tensor, Tensor]:
    values, vectors = torch.linalg.eigh(x, "L" if lower else "U")
    return vectors, values


@rule("svd")
def _svd(x: Tensor, *, full_matrices: bool, compute_uv: bool, **_params: Any) -> list[Tensor]:
    if not compute_uv:
        return [torch.linalg.svdvals(x)]
    u, values, v = torch.linalg.svd(x, full_matrices)
    return [values, u, v]


@rule("triangular_solve")
def _triangular_solve(
    a: Tensor, b: Tensor, *, left_side: bool, lower: bool, transpose_a: bool, conjugate_a: bool, unit_diagonal: bool
) -> Tensor:
    """Return the solution of triangular equations, (..., n, k) or (..., k, n) as those of ``b``."""
    a = a.conj() if conjugate_a else a
    a = a.mT if transpose_a else a
    solved: Tensor = torch.linalg.solve_triangular(
        a, b, upper=lower == transpose_a, left=left_side, unitriangular=unit_diagonal
    )
    return solved
