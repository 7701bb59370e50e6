"""Rules: how each operator maps signals, one file per operator family. Importing this registers them all."""

from wellposed.signals.rules import (
    attention,
    conditions,
    contraction,
    embedding,
    maximum,
    merge,
    noise,
    normalisation,
    pointwise,
    pooling,
    products,
    recurrent,
    reduction,
    resize,
    shape,
    statistics,
)

__all__ = [
    "attention",
    "conditions",
    "contraction",
    "embedding",
    "maximum",
    "merge",
    "noise",
    "normalisation",
    "pointwise",
    "pooling",
    "products",
    "recurrent",
    "reduction",
    "resize",
    "shape",
    "statistics",
]
