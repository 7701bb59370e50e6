"""Kernels that would not fit into memory tell less."""

from __future__ import annotations

from collections.abc import Sequence

from wellposed.signals.integration.kernels import Array, by_displacement, lag_cap, shorten

MOST_ENTRIES = 1 << 22
"""Most entries of a kernel, 32 MB. Chosen for memory: operations on several atoms multiply what each of them tells."""


def bounded(kernel: Array, sizes: Sequence[int]) -> Array:
    """Return a kernel by displacement, with profiles no longer than `lag_cap` allows."""
    kernel = by_displacement(kernel)
    cap = lag_cap(sum(length > 2 for length in kernel.shape))
    return shorten(kernel, sizes, [cap] * kernel.ndim)
