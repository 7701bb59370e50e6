"""Which of the common schemes a model has drawn a weight by, from its numbers."""

from __future__ import annotations

import math

from wellposed.graphs import Parameter

_SMALL = (0.02, 0.01)
"""Standard deviations that libraries of transformers and of detectors draw by, whatever the fans."""
_LEAST = 0.02
"""Relative difference of a weight's size from that of a scheme up to which it counts as of the scheme. Chosen."""
_SURE = 4.0


def scheme_of(parameter: Parameter) -> tuple[float, str] | None:
    """Return the standard deviation of the scheme that a weight was drawn by, and its name; None where none fits.

    Fans are PyTorch's: of the shape, kernels included. A size counts as that of a scheme within four standard errors,
    so that the answer does not follow the numbers that one model was constructed with.
    """
    values = parameter.values
    if values is None or values.ndim < 2 or values.is_complex() or not values.numel():
        return None
    shape = parameter.shape
    kernel = math.prod(shape[2:])
    fan_in, fan_out = shape[1] * kernel, shape[0] * kernel
    schemes = [
        (math.sqrt(1.0 / (3.0 * fan_in)), "PyTorch's"),
        (math.sqrt(2.0 / fan_out), "Kaiming, fan-out"),
        (math.sqrt(2.0 / fan_in), "Kaiming, fan-in"),
        (math.sqrt(2.0 / (fan_in + fan_out)), "Xavier"),
        (math.sqrt(1.0 / fan_in), "LeCun"),
        *((std, f"{std:g}") for std in _SMALL),
    ]
    size = float(values.detach().double().square().mean().sqrt())
    within = max(_LEAST, _SURE / math.sqrt(2.0 * values.numel()))
    std, name = min(schemes, key=lambda scheme: abs(math.log(size / scheme[0])) if size else math.inf)
    return (std, name) if size and abs(size / std - 1.0) <= within else None
