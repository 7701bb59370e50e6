"""Backward rules: how gradients pass each operator. Importing this registers them all."""

from wellposed.signals.adjoints import (
    attention,
    contraction,
    merge,
    normalisation,
    pointwise,
    pooling,
    reduction,
    shape,
)
from wellposed.signals.adjoints.registry import adjoint, find_adjoint

__all__ = [
    "adjoint",
    "attention",
    "contraction",
    "find_adjoint",
    "merge",
    "normalisation",
    "pointwise",
    "pooling",
    "reduction",
    "shape",
]
