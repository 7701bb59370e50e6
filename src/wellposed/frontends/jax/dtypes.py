"""Arrays of JAX and their dtypes in torch."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import torch
from torch import Tensor

from wellposed.errors import UnsupportedError

_WIDER = {"uint16": torch.int64, "uint32": torch.int64, "uint64": torch.int64}
"""Integers that torch has no arithmetic for."""


def torch_dtype(dtype: Any) -> torch.dtype:
    """Return torch's dtype for one of JAX; int64 for keys, and for integers without arithmetic in torch.

    Raises:
        UnsupportedError: torch has none.
    """
    if jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        return torch.int64
    name = np.dtype(dtype).name
    found = _WIDER.get(name) or getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise UnsupportedError(f"torch has no dtype for {name}; compute in one that it has, such as float32")
    return found


def constant(array: Any) -> Tensor:
    """Return an array as a tensor with memory of its own; zeros for keys of random generators."""
    dtype = torch_dtype(array.dtype)
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.extended):
        return torch.zeros(array.shape, dtype=dtype)
    whole = np.asarray(array)
    if whole.dtype == jax.dtypes.bfloat16:
        return torch.tensor(whole.astype(np.float32)).to(dtype)
    return torch.tensor(whole.astype(np.int64) if dtype == torch.int64 else whole)
