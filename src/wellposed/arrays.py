"""What tensors hold: as arrays of NumPy, and whether it is one number."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

_LOOKED_AT = 61
"""Elements that are looked at before all are. Chosen: a prime, so that steps seldom keep to one column."""


def array_of(tensor: torch.Tensor, dtype: torch.dtype = torch.float64) -> npt.NDArray[Any]:
    """Return what a tensor holds as an array of its own, of ``dtype``.

    A storage that ``numpy()`` has shown to NumPy can never be resized again, which FSDP does to parameters and others
    to batches: what is the caller's is always copied.
    """
    copy = tensor.detach().to("cpu", dtype, copy=True)
    array: npt.NDArray[Any] = copy.numpy()
    return array


def distinct(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the different numbers of an array, in order. NumPy's own `unique` and `median` load masked arrays."""
    ordered = np.sort(array, axis=None)
    first = np.ones(ordered.shape, dtype=bool)
    first[1:] = ordered[1:] != ordered[:-1]
    numbers: npt.NDArray[Any] = ordered[first]
    return numbers


def median(array: npt.ArrayLike) -> float:
    """Return the median of all elements."""
    ordered = np.sort(array, axis=None)
    middle = len(ordered) // 2
    return float((ordered[middle] + ordered[~middle]) / 2.0)


def only_number(values: torch.Tensor) -> float | complex | None:
    """Return the number that all elements of a tensor are; None where they differ, or there are none.

    Elements from all over a tensor that lies in one piece are compared first. They tell nearly all that vary, those too
    that begin with zeros, as a table does whose first row is for padding.
    """
    values = values.detach()
    if not values.numel():
        return None
    first = values[(0,) * values.ndim]
    if values.is_contiguous() and not bool((values.view(-1)[:: max(1, values.numel() // _LOOKED_AT)] == first).all()):
        return None
    return first.item() if bool((values == first).all()) else None


def is_zero(values: torch.Tensor) -> bool:
    """Whether all elements of a tensor are 0, or there are none."""
    return not values.numel() or only_number(values) == 0
