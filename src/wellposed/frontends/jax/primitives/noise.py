"""Random numbers, from torch's own generator; keys are zeros of their shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from wellposed.frontends.jax.primitives.registry import rule


@rule("random_bits")
def _bits(_key: Tensor, *, shape: Sequence[int], bit_width: int) -> Tensor:
    return torch.randint(0, 2 ** min(bit_width, 62), tuple(shape))


@rule("random_seed")
@rule("random_clone")
def _seed(seeds: Tensor, **_params: Any) -> Tensor:
    return torch.zeros(seeds.shape, dtype=torch.int64)


@rule("random_fold_in")
def _fold_in(keys: Tensor, _data: Tensor) -> Tensor:
    return keys


@rule("random_split")
def _random_split(keys: Tensor, *, shape: Sequence[int]) -> Tensor:
    return torch.zeros((*keys.shape, *shape), dtype=torch.int64)


@rule("random_wrap")
def _wrap(keys: Tensor, **_params: Any) -> Tensor:
    return torch.zeros(keys.shape[:-1], dtype=torch.int64)


@rule("random_unwrap")
def _unwrap(keys: Tensor) -> Tensor:
    return torch.zeros((*keys.shape, 2), dtype=torch.int64)


@rule("_uniform", numbers=True)
def _uniform(_key: Any, low: Any, high: Any, *, shape: Sequence[int], dtype: torch.dtype) -> Any:
    numbers = torch.rand(tuple(shape), dtype=dtype)
    return numbers if (low, high) == (0.0, 1.0) else low + numbers * (high - low)


@rule("_bernoulli", numbers=True)
def _bernoulli(_key: Any, chance: Any, *, shape: Sequence[int], dtype: torch.dtype) -> Any:
    assert dtype == torch.bool
    return torch.rand(tuple(shape)) < chance


@rule("_normal")
@rule("_normal_real")
def _normal(_key: Tensor, *, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.randn(tuple(shape), dtype=dtype)


@rule("_truncated_normal")
def _truncated_normal(_key: Tensor, low: Tensor, high: Tensor, *, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    below, above = (torch.erf(edge.to(dtype) / math.sqrt(2.0)) for edge in (low, high))
    return math.sqrt(2.0) * torch.erfinv(below + torch.rand(tuple(shape), dtype=dtype) * (above - below))


@rule("_gumbel")
def _gumbel(_key: Tensor, *, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return -torch.log(-torch.log(torch.rand(tuple(shape), dtype=dtype)))


@rule("_exponential")
def _exponential(_key: Tensor, *, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return -torch.log1p(-torch.rand(tuple(shape), dtype=dtype))


@rule("_randint")
def _randint(_key: Tensor, low: Tensor, high: Tensor, *, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return low + (torch.rand(tuple(shape)) * (high - low)).to(dtype)


@rule("_shuffle")
def _shuffle(_key: Tensor, x: Tensor, *, axis: int = 0, **_params: Any) -> Tensor:
    return x.index_select(axis, torch.randperm(x.shape[axis]))


@rule("random_gamma")
def _gamma(_key: Tensor, shape: Tensor, *, log_space: bool) -> Tensor:
    numbers = torch._standard_gamma(shape)
    return numbers.log() if log_space else numbers
