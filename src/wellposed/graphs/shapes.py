"""Results on meta for the operators that take most of a tracing's time, without PyTorch's own kernels for them.

PyTorch derives the meta results of many operators by decomposing them in Python, at a millisecond a call. Each function
here gives the same tensor (shape, strides, dtype) for the plain cases, and None for all others, among them every wrong
use: those go to PyTorch, whose errors the user sees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from wellposed.graphs.layouts import META, agree, broadcasts, is_dense, of_elements

_aten = torch.ops.aten
_NUMBER = torch.empty((), device=META)
"""A number beside a tensor, which has no axes."""


def quick_result(func: Any, args: list[Any], kwargs: dict[str, Any]) -> Tensor | None:
    """Return the meta result of ``func`` if it is one of the plain cases."""
    rule = _RULES.get(func)
    return None if rule is None else rule(*args, **kwargs)


def _pointwise(x: Tensor, *rest: Any, **options: Any) -> Tensor | None:
    """An operator of one tensor that keeps shape and dtype."""
    plain = options.get("dtype") is None and not any(isinstance(other, (complex, Tensor)) for other in rest)
    return of_elements(x) if plain and x.is_floating_point() else None


def _in_place(x: Tensor, *rest: Any, **_: Any) -> Tensor | None:
    """An operator that changes its argument and gives it back."""
    return x if is_dense(x) and all(_joins(x, other) for other in rest) else None


def _joins(x: Tensor, other: Any) -> bool:
    """Whether a number, or a tensor of its dtype, joins the elements of a tensor in place."""
    if isinstance(other, Tensor):
        return other.dtype == x.dtype and broadcasts(other, x.shape)
    return not isinstance(other, complex)


def _dropout(x: Tensor, p: float, train: bool) -> Tensor | None:
    """A dropout that acts: the others return their argument itself."""
    return _pointwise(x) if train and 0.0 < p < 1.0 and x.numel() else None


def _prelu(x: Tensor, slopes: Tensor) -> Tensor | None:
    """A rectifier with one slope, or one for each channel, in the data's dtype."""
    many = slopes.numel() == 1 or (x.dim() > 1 and slopes.shape == x.shape[1:2])
    return of_elements(x) if many and x.is_floating_point() and slopes.dtype == x.dtype else None


def _addmm(bias: Tensor, x: Tensor, y: Tensor, **_: Any) -> Tensor | None:
    """A product of matrices and a row or a matrix to add, in one dtype."""
    if x.dim() != 2 or y.dim() != 2 or x.shape[1] != y.shape[0] or not x.dtype == y.dtype == bias.dtype:
        return None
    shape = (x.shape[0], y.shape[1])
    plain = x.is_floating_point() and bias.is_contiguous() and tuple(bias.shape) in (shape, shape[1:])
    return torch.empty(shape, dtype=x.dtype, device=META) if plain else None


def _adaptive_mean(x: Tensor, size: Sequence[int]) -> Tensor | None:
    """A mean over parts of a picture, (samples, channels, ...), that is contiguous."""
    if x.dim() != len(size) + 2 or not x.is_contiguous() or not x.is_floating_point() or not x.numel() or min(size) < 1:
        return None
    return torch.empty((*x.shape[:2], *size), dtype=x.dtype, device=META)


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
    return torch.empty(sizes, dtype=x.dtype, device=META)


def _cat(tensors: list[Tensor], dim: int = 0) -> Tensor | None:
    """Tensors of one rank and dtype, none of which lies channels last; empty ones of one axis do not count."""
    dtypes = {x.dtype for x in tensors}
    tensors = [x for x in tensors if tuple(x.shape) != (0,)]
    if len(dtypes) > 1 or not tensors:
        return None
    first = tensors[0]
    rank = first.dim()
    if not -rank <= dim < rank:
        return None
    axis = dim % rank
    if not all(x.dim() == rank and _is_plain(x) and _is_alike_beside(axis, x, first) for x in tensors):
        return None
    sizes = list(first.shape)
    sizes[axis] = sum(x.shape[axis] for x in tensors)
    return torch.empty(sizes, dtype=first.dtype, device=META)


def _is_plain(x: Tensor) -> bool:
    """Whether a tensor does not lie channels last."""
    return x.is_contiguous() or x.dim() < 4 or x.stride(-1) < x.stride(1)


def _is_alike_beside(axis: int, x: Tensor, y: Tensor) -> bool:
    """Whether two tensors of one rank have the same shape but for one axis."""
    return all(a == b for i, (a, b) in enumerate(zip(x.shape, y.shape, strict=True)) if i != axis)


def _softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor | None:
    plain = x.is_contiguous() and x.is_floating_point() and dtype is None
    return of_elements(x) if plain and -x.dim() <= dim < x.dim() else None


def _binary(x: Tensor, y: Any, *_: Any, **options: Any) -> Tensor | None:
    """An operator of two tensors of one dtype that broadcast, or of a tensor and a number."""
    if not x.is_floating_point():
        return None
    if isinstance(y, (int, float)):
        return _beside_number(x)
    return of_elements(x, y) if isinstance(y, Tensor) and x.dtype == y.dtype and agree(x, y) else None


def _compared(x: Tensor, y: Any) -> Tensor | None:
    """A comparison with a number."""
    return _beside_number(x, torch.bool) if x.is_floating_point() and isinstance(y, (int, float)) else None


def _beside_number(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The result of an operator on the elements of a tensor and a number."""
    return of_elements(x, *([] if x.is_contiguous() else [_NUMBER]), dtype=dtype or x.dtype)


def _where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor | None:
    """A choice between two tensors of one dtype."""
    plain = condition.dtype == torch.bool and x.is_floating_point() and x.dtype == y.dtype
    broadcast = agree(x, y) and agree(condition, x) and agree(condition, y)
    return of_elements(condition, x, y) if plain and broadcast else None


def _clamp(x: Tensor, low: Any = None, high: Any = None) -> Tensor | None:
    """A cut at one number or two."""
    return _pointwise(x, low, high) if low is not None or high is not None else None


def _masked_fill(x: Tensor, mask: Tensor, value: Any) -> Tensor | None:
    """Elements of a contiguous tensor that a mask replaces by a number."""
    plain = x.is_contiguous() and x.is_floating_point() and mask.dtype == torch.bool and mask.dim() > 0
    joins = plain and broadcasts(mask, x.shape) and not isinstance(value, complex)
    return torch.empty(x.shape, dtype=x.dtype, device=META) if joins else None


def _stack(tensors: list[Tensor], dim: int = 0) -> Tensor | None:
    """Tensors of one shape and dtype."""
    first, rank = tensors[0], tensors[0].dim() + 1
    if not -rank <= dim < rank or any(x.shape != first.shape or x.dtype != first.dtype for x in tensors):
        return None
    sizes = list(first.shape)
    sizes.insert(dim % rank, len(tensors))
    return torch.empty(sizes, dtype=first.dtype, device=META)


def _group_norm(
    x: Tensor, groups: int, weight: Tensor | None = None, bias: Tensor | None = None, *_: Any
) -> Tensor | None:
    """A norm over groups of channels of contiguous data, (samples, channels, ...)."""
    vectors = x.dim() > 1 and groups > 0 and x.numel() > 0 and x.shape[1] % groups == 0
    return _batch_norm(x, weight, bias, None, None) if vectors else None


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    """Rows of two or more axes times the transpose of a matrix of their dtype."""
    if x.dim() < 2 or weight.dim() != 2 or x.shape[-1] != weight.shape[1] or x.dtype != weight.dtype:
        return None
    if bias is not None and (bias.shape != weight.shape[:1] or bias.dtype != x.dtype):
        return None
    return torch.empty((*x.shape[:-1], weight.shape[0]), dtype=x.dtype, device=META)


def _matmul(x: Tensor, y: Tensor) -> Tensor | None:
    """Stacks of matrices with the same leading axes and dtype."""
    if x.dim() < 2 or x.dim() != y.dim() or x.shape[:-2] != y.shape[:-2] or x.shape[-1] != y.shape[-2]:
        return None
    if x.dtype != y.dtype or not x.is_floating_point():
        return None
    return torch.empty((*x.shape[:-1], y.shape[-1]), dtype=x.dtype, device=META)


def _layer_norm(
    x: Tensor, shape: list[int], weight: Tensor | None = None, bias: Tensor | None = None, *_: Any
) -> Tensor | None:
    """A norm over the last axes, whose gain and bias have these axes and the data's dtype."""
    wanted = tuple(shape)
    if not x.is_floating_point() or not wanted or tuple(x.shape[-len(wanted) :]) != wanted:
        return None
    if any(t is not None and (tuple(t.shape) != wanted or t.dtype != x.dtype) for t in (weight, bias)):
        return None
    return torch.empty(x.shape, dtype=x.dtype, device=META)


def _batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None, *_: Any
) -> Tensor | None:
    """A norm of contiguous data, (samples, channels, ...), with vectors of one number a channel in the data's dtype."""
    if x.dim() < 2 or not x.is_floating_point() or not x.is_contiguous():
        return None
    wanted = (x.shape[1],)
    if any(t is not None and (tuple(t.shape) != wanted or t.dtype != x.dtype) for t in (weight, bias, mean, var)):
        return None
    return of_elements(x)


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
    return torch.empty((x.shape[0], weight.shape[0], *sizes), dtype=x.dtype, device=META) if plain else None


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
    """The result lies in memory as the query does, as the fused kernels leave it, or dense where these do not run: with
    dropout, and where features do not lie side by side.
    """
    if not _are_heads(query, key, value) or not 0.0 <= dropout < 1.0:
        return None
    batch, heads, length, width = query.shape
    keys, made = key.shape[2], value.shape[-1]
    groups = key.shape[1] if enable_gqa else heads
    known = groups == heads or _GROUPED_AS_QUERY
    if not known or heads % groups or (key.shape, value.shape[:-1]) != ((batch, groups, keys, width), key.shape[:-1]):
        return None
    if mask is not None and not _masks(mask, is_causal, (batch, heads, length, keys), query.dtype):
        return None
    if dropout or made != width or any(tensor.stride(-1) != 1 for tensor in (query, key, value)):
        return torch.empty((batch, heads, length, made), dtype=query.dtype, device=META)
    return of_elements(query) if is_dense(query) else None


def _are_heads(*tensors: Tensor) -> bool:
    """Whether tensors are (samples, heads, tokens, features) of one real dtype."""
    dtype = tensors[0].dtype
    return dtype.is_floating_point and all(tensor.dim() == 4 and tensor.dtype == dtype for tensor in tensors)


def _masks(mask: Tensor, is_causal: bool, shape: tuple[int, ...], dtype: torch.dtype) -> bool:
    """Whether a mask of booleans, or of numbers to add, is the only one and broadcasts to scores of this shape."""
    return not is_causal and mask.dtype in (torch.bool, dtype) and broadcasts(mask, shape)


_FUNCTIONS = (
    "abs", "acos", "asin", "atan", "ceil", "celu", "clamp_max", "clamp_min", "cos", "cosh", "elu", "erf", "exp",
    "exp2", "expm1", "floor", "gelu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "log",
    "log10", "log1p", "log2", "log_sigmoid", "mish", "neg", "reciprocal", "relu", "relu6", "round", "rsqrt",
    "selu", "sigmoid", "sign", "silu", "sin", "sinh", "softplus", "softshrink", "sqrt", "square", "tan", "tanh",
    "threshold", "trunc",
)  # fmt: skip
"""Functions of the elements of one tensor. On meta most are worked out in Python, the first of them for the compiler's
import, which takes seconds."""


def _overloads(names: Sequence[str], of: str = "default") -> list[Any]:
    """Return the overloads of operators that there are in this PyTorch."""
    packets = [getattr(_aten, name) for name in names if hasattr(_aten, name)]
    return [getattr(packet, of) for packet in packets if of in packet.overloads()]


_RULES: dict[Any, Callable[..., Tensor | None]] = {
    **dict.fromkeys((*_overloads(_FUNCTIONS), _aten.roll.default, _aten.pow.Tensor_Scalar), _pointwise),
    **dict.fromkeys(_overloads([f"{name}_" for name in _FUNCTIONS]), _in_place),
    **dict.fromkeys(_overloads(("add_", "sub_", "mul_", "div_"), "Tensor"), _in_place),
    _aten.dropout.default: _dropout,
    _aten.prelu.default: _prelu,
    _aten.addmm.default: _addmm,
    **dict.fromkeys(_overloads([f"adaptive_avg_pool{rank}d" for rank in (1, 2, 3)]), _adaptive_mean),
    _aten.mean.dim: _mean,
    _aten.cat.default: _cat,
    **dict.fromkeys((_aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor, _aten.div.Tensor), _binary),
    **dict.fromkeys((_aten.maximum.default, _aten.minimum.default, _aten.rsub.Scalar), _binary),
    **dict.fromkeys(_overloads(("eq", "ge", "gt", "le", "lt", "ne"), "Scalar"), _compared),
    _aten.where.self: _where,
    _aten.clamp.default: _clamp,
    _aten.masked_fill.Scalar: _masked_fill,
    _aten.stack.default: _stack,
    _aten.group_norm.default: _group_norm,
    **dict.fromkeys((_aten.softmax.int, _aten.log_softmax.int), _softmax),
    _aten.linear.default: _linear,
    **dict.fromkeys((_aten.conv1d.default, _aten.conv2d.default, _aten.conv3d.default), _conv),
    _aten.matmul.default: _matmul,
    _aten.bmm.default: _matmul,
    _aten.layer_norm.default: _layer_norm,
    _aten.batch_norm.default: _batch_norm,
    _aten.scaled_dot_product_attention.default: _attention,
}
