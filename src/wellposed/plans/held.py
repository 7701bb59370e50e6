"""What a parameter holds in three figures, by which a plan knows those again that it leaves alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor

MOST = 1 << 12
"""Elements that the figures rest on, spread evenly over larger parameters. Chosen for cost."""

KEPT = "kept"
"""Under which of its figures a plan has those of the parameters that it leaves alone, by name."""
Figures = tuple[float, float, float]
"""Mean, root mean square, and the mean of elements times cosines of their indices, which tells their order."""


def figures_of(values: Tensor) -> Figures | None:
    """Return the figures of a parameter; None of one that is empty, complex, or not finite."""
    if not values.numel() or values.is_complex():
        return None
    flat = values.detach().reshape(-1)
    some = flat[:: max(1, len(flat) // MOST)][:MOST].to("cpu", torch.float64)
    mean, rms = float(some.mean()), float(some.square().mean().sqrt())
    order = float((some * torch.arange(len(some), dtype=torch.float64, device="cpu").cos()).mean())
    return (mean, rms, order) if math.isfinite(rms) else None
