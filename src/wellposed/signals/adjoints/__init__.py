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

__all__ = [
    "attention",
    "contraction",
    "merge",
    "normalisation",
    "pointwise",
    "pooling",
    "reduction",
    "shape",
]
