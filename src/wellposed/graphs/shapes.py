"""Results on meta for the operators that take most of a tracing's time, without PyTorch's own kernels for them.

PyTorch derives the meta results of many operators by decomposing them in Python, at a millisecond a call. Each function
here gives the same tensor (shape, strides, dtype) for the plain cases, and None for all others, among them every wrong
use: those go to PyTorch, whose errors the user sees.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten
_META = torch.device("meta")


def quick_result(func: Any, args: list[Any], kwargs: dict[str, Any]) -> Tensor | None:
    """Return the meta result of ``func`` if it is one of the plain cases."""
    rule = _RULES.get(func)
    return None if rule is None else rule(*args, **kwargs)


def _plain(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_contiguous() and x.is_floating_point()


def _pointwise(x: Tensor, *_: Any, **options: Any) -> Tensor | None:
    """An operator of one tensor that keeps shape and dtype."""
    return torch.empty_like(x) if _plain(x) and options.get("dtype") is None else None


def _softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor | None:
    return torch.empty_like(x) if _plain(x) and dtype is None and -x.dim() <= dim < x.dim() else None


def _binary(x: Any, y: Any, **options: Any) -> Tensor | None:
    """An operator of two tensors of one dtype that broadcast, or of a tensor and a number."""
    if not _plain(x):
        return None
    if isinstance(y, (int, float)):
        return torch.empty_like(x)
    if not _plain(y) or x.dtype != y.dtype:
        return None
    if x.shape == y.shape:
        return torch.empty_like(x)
    if y.dim() <= x.dim() and all(b in (1, a) for a, b in zip(reversed(x.shape), reversed(y.shape), strict=False)):
        return torch.empty_like(x) if y.dim() and x.dim() else None
    return None


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    if x.dim() < 2 or weight.dim() != 2 or x.shape[-1] != weight.shape[1] or x.dtype != weight.dtype:
        return None
    if bias is not None and (bias.shape != weight.shape[:1] or bias.dtype != x.dtype):
        return None
    return torch.empty((*x.shape[:-1], weight.shape[0]), dtype=x.dtype, device=_META)


def _matmul(x: Tensor, y: Tensor) -> Tensor | None:
    if x.dim() < 2 or x.dim() != y.dim() or x.shape[:-2] != y.shape[:-2] or x.shape[-1] != y.shape[-2]:
        return None
    if x.dtype != y.dtype or not x.is_floating_point():
        return None
    return torch.empty((*x.shape[:-1], y.shape[-1]), dtype=x.dtype, device=_META)


def _layer_norm(
    x: Tensor, shape: list[int], weight: Tensor | None = None, bias: Tensor | None = None, *_: Any
) -> Tensor | None:
    wanted = tuple(shape)
    if not _plain(x) or not wanted or tuple(x.shape[-len(wanted) :]) != wanted:
        return None
    if any(t is not None and (tuple(t.shape) != wanted or t.dtype != x.dtype) for t in (weight, bias)):
        return None
    return torch.empty_like(x)


def _batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None, *_: Any
) -> Tensor | None:
    if x.dim() < 2 or not _plain(x):
        return None
    if any(
        t is not None and (tuple(t.shape) != (x.shape[1],) or t.dtype != x.dtype) for t in (weight, bias, mean, var)
    ):
        return None
    return torch.empty_like(x)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    **_: Any,
) -> Tensor | None:
    """The result lies in memory as ``[batch, length, heads, width]``, as the fused kernels leave it."""
    if mask is not None or dropout or not query.dim() == key.dim() == value.dim() == 4:
        return None
    batch, heads, length, width = query.shape
    if key.shape != (batch, heads, key.shape[2], width) or value.shape[:3] != key.shape[:3]:
        return None
    if not query.dtype == key.dtype == value.dtype:
        return None
    return torch.empty((batch, length, heads, value.shape[3]), dtype=query.dtype, device=_META).transpose(1, 2)


_RULES: dict[Any, Callable[..., Tensor | None]] = {
    **dict.fromkeys(
        (
            _aten.gelu.default,
            _aten.silu.default,
            _aten.relu.default,
            _aten.sigmoid.default,
            _aten.tanh.default,
            _aten.hardswish.default,
            _aten.rsqrt.default,
            _aten.neg.default,
            _aten.cos.default,
            _aten.sin.default,
            _aten.roll.default,
        ),
        _pointwise,
    ),
    **dict.fromkeys((_aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor, _aten.div.Tensor), _binary),
    _aten.softmax.int: _softmax,
    _aten.linear.default: _linear,
    _aten.matmul.default: _matmul,
    _aten.bmm.default: _matmul,
    _aten.layer_norm.default: _layer_norm,
    _aten.batch_norm.default: _batch_norm,
    _aten.scaled_dot_product_attention.default: _attention,
}
