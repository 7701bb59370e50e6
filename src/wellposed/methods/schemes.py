"""Which of the common schemes a model has drawn a weight by, from its numbers."""

from __future__ import annotations

import math

import torch

from wellposed.graphs import Parameter
from wellposed.methods.independence import first_rows

_SMALL = (0.02, 0.01)
"""Standard deviations that libraries of transformers and of detectors draw by, whatever the fans."""
_LEAST = 0.02
"""Relative difference of a weight's size from that of a scheme up to which it counts as of the scheme. Chosen."""
_SURE = 4.0
SEEN = 1 << 16
"""Most elements that are looked at. Chosen for cost."""
_SHORT = 12.0
"""Distance of the largest of n uniform numbers from their bound, in nths of it, that is not exceeded by chance."""


def scheme_of(parameter: Parameter) -> tuple[float, str] | None:
    """Return the standard deviation of the scheme that a weight was drawn by, and its name; None where none fits.

    Fans are PyTorch's: of the shape, kernels included. Uniform numbers come as close to the bound of their scheme as so
    many must. The size of others counts as that of the first scheme within four standard errors. So the answer hardly
    follows the numbers that one model was constructed with.
    """
    values = parameter.values
    shape = parameter.shape
    if values is None or len(shape) < 2 or values.is_complex() or not values.numel():
        return None
    kernel = math.prod(shape[2:])
    fan_in, fan_out = shape[1] * kernel, shape[0] * kernel
    own = math.sqrt(1.0 / (3.0 * fan_in)), "PyTorch's"
    schemes = [
        (math.sqrt(2.0 / fan_out), "Kaiming, fan-out"),
        (math.sqrt(2.0 / fan_in), "Kaiming, fan-in"),
        (math.sqrt(2.0 / (fan_in + fan_out)), "Xavier"),
        (math.sqrt(1.0 / fan_in), "LeCun"),
        *((std, f"{std:g}") for std in _SMALL),
        own,  # as a plan draws it
    ]
    seen = first_rows(values)[:SEEN]
    size = float(torch.linalg.vector_norm(seen, dtype=torch.float64)) / math.sqrt(len(seen))
    largest = max(abs(float(end)) for end in torch.aminmax(seen))
    short = 1.0 - _SHORT / len(seen)
    for std, name in (own, *schemes):
        if short <= largest / (math.sqrt(3.0) * std) <= 1.0 + 1e-6:
            return std, name
    within = max(_LEAST, _SURE / math.sqrt(2.0 * len(seen)))
    return next(((std, name) for std, name in schemes if abs(size / std - 1.0) <= within), None)
