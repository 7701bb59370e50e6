"""Tensors as arrays of NumPy."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch


def array_of(tensor: torch.Tensor, dtype: torch.dtype = torch.float64) -> npt.NDArray[Any]:
    """Return what a tensor holds as an array of its own, of ``dtype``.

    A storage that ``numpy()`` has shown to NumPy can never be resized again, which FSDP does to parameters and others
    to batches: what is the caller's is always copied.
    """
    copy = tensor.detach().to("cpu", dtype, copy=True)
    array: npt.NDArray[Any] = copy.numpy()
    return array
