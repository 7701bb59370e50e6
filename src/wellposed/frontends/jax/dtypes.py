"""The dtypes of JAX in torch."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import torch

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
