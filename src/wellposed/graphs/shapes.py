"""Results on meta for the operators that take most of a tracing's time, without PyTorch's own kernels for them.

PyTorch derives the meta results of many operators by decomposing them in Python, at a millisecond a call. Each function
here gives the same tensor (shape, strides, dtype) for the plain cases, and None for all others, among them every wrong
use: those go to PyTorch, whose errors the user sees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten
_META = torch.device("meta")


def quick_result(func: Any, args: list[Any], kwargs: dict[str, Any]) -> Tensor | None:
    """Return the meta result of ``func`` if it is one of the plain cases."""
    rule = _RULES.get(func)
    return None if rule is None else rule(*args, **kwargs)


def _dense(x: Any) -> bool:
    """Whether ``x`` is floating point and fills its memory without gaps, in any order of axes."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return False
    if x.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def _like(x: Tensor) -> Tensor:
    """Return what ``torch.empty_like`` does, which on meta is worked out in Python."""
    return torch.empty(x.shape, dtype=x.dtype, device=_META) if x.is_contiguous() else torch.empty_like(x)


def _pointwise(x: Tensor, *rest: Any, **options: Any) -> Tensor | None:
    """An operator of one tensor that keeps shape and dtype."""
    plain = _dense(x) and options.get("dtype") is None and not any(isinstance(other, complex) for other in rest)
    return _like(x) if plain else None


def _in_place(x: Tensor, *_: Any) -> Tensor | None:
    """An operator that changes its argument and gives it back."""
    return x if _dense(x) else None


def _mean(
    x: Tensor, dim: list[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor | None:
    """A mean over axes that are all different, of a contiguous tensor."""
    rank = x.dim()
    if not dim or dtype is not None or not x.is_floating_point() or not x.is_contiguous():
        return None
    axes = {axis % rank for axis in dim if -rank <= axis < rank}
    if len(axes) != len(dim):
        return None
    sizes = [1 if axis in axes else size for axis, size in enumerate(x.shape) if keepdim or axis not in axes]
    return torch.empty(sizes, dtype=x.dtype, device=_META)


def _cat(tensors: list[Tensor], dim: int = 0) -> Tensor | None:
    """Tensors of one rank and dtype, none of which lies channels last."""
    first = tensors[0]
    rank = first.dim()
    if not -rank <= dim < rank:
        return None
    axis = dim % rank
    for x in tensors:
        if x.dtype != first.dtype or x.dim() != rank:
            return None
        if not (x.is_contiguous() or rank < 4 or x.stride(-1) < x.stride(1)):
            return None
        if any(a != b for i, (a, b) in enumerate(zip(x.shape, first.shape, strict=True)) if i != axis):
            return None
    sizes = list(first.shape)
    sizes[axis] = sum(x.shape[axis] for x in tensors)
    return torch.empty(sizes, dtype=first.dtype, device=_META)


def _softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor | None:
    plain = x.is_contiguous() and x.is_floating_point() and dtype is None
    return _like(x) if plain and -x.dim() <= dim < x.dim() else None


def _binary(x: Tensor, y: Any, **options: Any) -> Tensor | None:
    """An operator of two tensors of one dtype, of which one broadcasts to the other, or of a tensor and a number."""
    if isinstance(y, (int, float)):
        return _like(x) if _dense(x) else None
    if not isinstance(y, Tensor) or not x.is_floating_point() or x.dtype != y.dtype or not x.dim() or not y.dim():
        return None
    if x.shape == y.shape and x.stride() == y.stride() and _dense(x):
        return _like(x)
    if not _in_order(x) or not _in_order(y):
        return None
    small, large = (x, y) if x.numel() < y.numel() else (y, x)
    return torch.empty(large.shape, dtype=x.dtype, device=_META) if _broadcasts(small, large) else None


def _in_order(x: Tensor) -> bool:
    """Whether the axes lie in memory in their own order, gaps allowed: results of such tensors have no gaps."""
    strides = x.stride()
    return strides[-1] > 0 and all(a >= b for a, b in pairwise(strides))


def _broadcasts(small: Tensor, large: Tensor) -> bool:
    """Whether ``small`` broadcasts to the shape of ``large``."""
    sizes = zip(reversed(large.shape), reversed(small.shape), strict=False)
    return small.dim() <= large.dim() and all(b in (1, a) for a, b in sizes)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    """Rows of two or more axes times the transpose of a matrix of their dtype."""
    if x.dim() < 2 or weight.dim() != 2 or x.shape[-1] != weight.shape[1] or x.dtype != weight.dtype:
        return None
    if bias is not None and (bias.shape != weight.shape[:1] or bias.dtype != x.dtype):
        return None
    return torch.empty((*x.shape[:-1], weight.shape[0]), dtype=x.dtype, device=_META)


def _matmul(x: Tensor, y: Tensor) -> Tensor | None:
    """Stacks of matrices with the same leading axes and dtype."""
    if x.dim() < 2 or x.dim() != y.dim() or x.shape[:-2] != y.shape[:-2] or x.shape[-1] != y.shape[-2]:
        return None
    if x.dtype != y.dtype or not x.is_floating_point():
        return None
    return torch.empty((*x.shape[:-1], y.shape[-1]), dtype=x.dtype, device=_META)


def _layer_norm(
    x: Tensor, shape: list[int], weight: Tensor | None = None, bias: Tensor | None = None, *_: Any
) -> Tensor | None:
    """A norm over the last axes, whose gain and bias have these axes and the data's dtype."""
    wanted = tuple(shape)
    if not x.is_floating_point() or not wanted or tuple(x.shape[-len(wanted) :]) != wanted:
        return None
    if any(t is not None and (tuple(t.shape) != wanted or t.dtype != x.dtype) for t in (weight, bias)):
        return None
    return torch.empty(x.shape, dtype=x.dtype, device=_META)


def _batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None, *_: Any
) -> Tensor | None:
    """A norm of contiguous data, (samples, channels, ...), with vectors of one number a channel in the data's dtype."""
    if x.dim() < 2 or not x.is_floating_point() or not x.is_contiguous():
        return None
    wanted = (x.shape[1],)
    if any(t is not None and (tuple(t.shape) != wanted or t.dtype != x.dtype) for t in (weight, bias, mean, var)):
        return None
    return _like(x)


def _fits_kernel(x: Tensor, weight: Tensor, groups: int) -> bool:
    """Whether data and the kernel of a convolution are contiguous, of one dtype, and of channels in so many groups."""
    if x.dim() != weight.dim() or not x.is_contiguous() or not weight.is_contiguous():
        return False
    if x.dtype != weight.dtype or not x.is_floating_point() or groups < 1:
        return False
    return x.shape[1] == weight.shape[1] * groups and weight.shape[0] % groups == 0


def _conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    groups: int = 1,
) -> Tensor | None:
    """A convolution of contiguous samples, (samples, channels, ...), with a contiguous kernel of their dtype."""
    rank, kernel = weight.dim() - 2, weight.shape[2:]
    if not _fits_kernel(x, weight, groups):
        return None
    if bias is not None and (bias.shape != weight.shape[:1] or bias.dtype != x.dtype):
        return None
    steps = [tuple(of) * rank if len(of) == 1 else tuple(of) for of in (stride, padding, dilation)]
    if any(len(of) != rank for of in steps) or min(steps[0]) < 1 or min(steps[1]) < 0 or min(steps[2]) < 1:
        return None
    sizes = [
        (size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in zip(x.shape[2:], kernel, *steps, strict=True)
    ]
    plain = min(*x.shape, *weight.shape, *sizes) > 0
    return torch.empty((x.shape[0], weight.shape[0], *sizes), dtype=x.dtype, device=_META) if plain else None


_GROUPED_AS_QUERY = torch.__version__ >= "2.13"
"""Whether grouped heads are known to lie as the query does: in torch 2.6 they lie dense, in 2.13 they do not."""


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor | None:
    """The result lies in memory as the query does, as the fused kernels leave it, or dense where these do not run."""
    if dropout or not query.dim() == key.dim() == value.dim() == 4 or not _dense(query):
        return None
    batch, heads, length, width = query.shape
    keys, made = key.shape[2], value.shape[-1]
    groups = key.shape[1] if enable_gqa else heads
    if groups != heads and not _GROUPED_AS_QUERY:
        return None
    if heads % groups or key.shape != (batch, groups, keys, width) or value.shape[:-1] != key.shape[:-1]:
        return None
    if not query.dtype == key.dtype == value.dtype:
        return None
    if mask is not None and (is_causal or not _masks(mask, (batch, heads, length, keys), query.dtype)):
        return None
    return _like(query) if made == width else torch.empty((batch, heads, length, made), dtype=query.dtype, device=_META)


def _masks(mask: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> bool:
    """Whether a mask of booleans, or of numbers to add, broadcasts to scores of a shape and dtype."""
    if mask.dim() > len(shape) or mask.dtype not in (torch.bool, dtype):
        return False
    return all(size in (1, full) for size, full in zip(reversed(mask.shape), reversed(shape), strict=False))


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
            _aten.hardsigmoid.default,
            _aten.pow.Tensor_Scalar,
        ),
        _pointwise,
    ),
    **dict.fromkeys((_aten.relu_.default, _aten.silu_.default, _aten.hardswish_.default), _in_place),
    _aten.mean.dim: _mean,
    _aten.cat.default: _cat,
    **dict.fromkeys((_aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor, _aten.div.Tensor), _binary),
    _aten.softmax.int: _softmax,
    _aten.linear.default: _linear,
    **dict.fromkeys((_aten.conv1d.default, _aten.conv2d.default, _aten.conv3d.default), _conv),
    _aten.matmul.default: _matmul,
    _aten.bmm.default: _matmul,
    _aten.layer_norm.default: _layer_norm,
    _aten.batch_norm.default: _batch_norm,
    _aten.scaled_dot_product_attention.default: _attention,
}
