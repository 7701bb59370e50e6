"""Rules: how each operator maps signals, one file per operator family. Importing this registers them all."""

from wellposed.signals.rules import (
    attention,
    conditions,
    contraction,
    embedding,
    merge,
    noise,
    normalisation,
    pointwise,
    pooling,
    products,
    reduction,
    resize,
    shape,
)

__all__ = [
    "attention",
    "conditions",
    "contraction",
    "embedding",
    "merge",
    "noise",
    "normalisation",
    "pointwise",
    "pooling",
    "products",
    "reduction",
    "resize",
    "shape",
]
