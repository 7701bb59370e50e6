"""Arrays of JAX as tensors, and back."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import numpy as np
import torch
from torch import Tensor

from wellposed.frontends.jax.dtypes import constant, torch_dtype


def is_float(leaf: Any) -> bool:
    """Whether an array holds real or complex numbers of floating point."""
    return bool(jax.dtypes.issubdtype(leaf.dtype, np.inexact))


def memory_of(leaf: Any) -> Tensor:
    """Return an array as a tensor, which shares its memory where that is the CPU's; on meta for a shape alone."""
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended):
        return torch.zeros(leaf.shape, dtype=torch.int64)
    dtype = torch_dtype(leaf.dtype)
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return torch.empty(leaf.shape, dtype=dtype, device="meta")
    if isinstance(leaf, jax.Array) and dtype.is_floating_point and _on_one_cpu(leaf):
        return torch.utils.dlpack.from_dlpack(leaf)
    return constant(leaf)


def _on_one_cpu(array: Any) -> bool:
    devices = list(array.devices())
    return len(devices) == 1 and devices[0].platform == "cpu"


def tensor_of(value: Any) -> Any:
    """Return an array as a tensor, in the dtype that JAX computes in; numbers, strings and keys as they are."""
    if isinstance(value, Tensor):
        return value.to(torch_dtype(_dtype(value)))
    if not isinstance(value, (jax.Array, np.ndarray, np.generic)):
        return value
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):
        return value
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # float64 becomes float32, as in any call of the model
        return constant(jax.numpy.asarray(value))


def _dtype(tensor: Tensor) -> Any:
    name = str(tensor.dtype).removeprefix("torch.")
    return jax.dtypes.canonicalize_dtype(name)


def aval_of(tensor: Tensor) -> Any:
    """Return shape and dtype of a tensor as JAX has them."""
    return jax.ShapeDtypeStruct(tuple(tensor.shape), _dtype(tensor))


def array_like(tensor: Tensor, leaf: Any) -> Any:
    """Return a tensor as an array in the place of another: of its dtype, on its devices."""
    array = array_of(tensor, leaf.dtype)
    return jax.device_put(array, leaf.sharding) if isinstance(leaf, jax.Array) else array


def array_of(tensor: Tensor, dtype: Any = None) -> Any:
    """Return a tensor as an array of NumPy, with memory of its own.

    Args:
        tensor: on the CPU.
        dtype: one of JAX; None takes float32.
    """
    array = tensor.to(torch.complex64 if tensor.is_complex() else torch.float32).numpy()
    return np.array(array, dtype=dtype)
