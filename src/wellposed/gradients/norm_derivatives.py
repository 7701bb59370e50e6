"""Batch norm and rectifiers whose gradients are differentiated again in closed form.

Autograd differentiates the gradient of batch norm by some thirty operators on whole tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function

from wellposed.gradients.recomputed import Recipe, Recomputed

aten: torch._ops._OpNamespace = torch.ops.aten


class _BatchNorm(Function):
    """Batch norm by the statistics of the batch; y can be recomputed (`Recomputed`)."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running: tuple[Tensor | None, Tensor | None],
        momentum: float,
        eps: float,
        recomputed: Recomputed,
    ) -> Tensor:
        y: Tensor
        y, mean, inverse = aten.native_batch_norm.default(x, weight, bias, *running, True, momentum, eps)
        ctx.save_for_backward(x, weight, mean, inverse)
        ctx.eps, ctx.recomputed = eps, recomputed
        scale = inverse if weight is None else weight.detach() * inverse
        shift = -mean * scale if bias is None else bias.detach() - mean * scale
        recomputed.note(y, partial(_affine, shift, (scale, x.detach())))
        return y

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Any, ...]:
        x, weight, mean, inverse = ctx.saved_tensors
        if torch.is_grad_enabled():
            gradients = _normed_backward(cotangent, x, weight, mean, inverse, ctx.eps, ctx.recomputed)
        else:
            gradients = _norm_backward(cotangent, x, weight, mean, inverse, ctx.eps)
        by_weight, by_bias = gradients[1:] if weight is not None else (None, None)
        return gradients[0], by_weight, by_bias if ctx.needs_input_grad[2] else None, None, None, None, None


class _BatchNormBackward(Function):
    """The gradients of batch norm with respect to x, weight and bias.

    With x̂ = (x − μ) r, a = mean g, b = mean g x̂ per channel they are γ r (g − a − x̂ b), M b and M a. For their
    cotangents G, p and q, and c = mean G x̂, the derivative of what they make is

        for g:  γ r (G − mean G − x̂ c) + p x̂ + q,
        for x:  −γ r² b (G − mean G − x̂ c) + r (p − γ r c) (g − a − x̂ b) − R r² x̂ / M,
        for γ:  R / γ,     R = γ (Σ G g − M a mean G − M b c),

    where r stands for itself in R: for x it enters twice, through x̂ and as a factor.
    """

    @staticmethod
    def forward(
        ctx: Any,
        cotangent: Tensor,
        x: Tensor,
        weight: Tensor | None,
        mean: Tensor,
        inverse: Tensor,
        eps: float,
        recomputed: Recomputed,
    ) -> tuple[Tensor, Tensor, Tensor]:
        of_input, of_weight, of_bias = _norm_backward(cotangent, x, weight, mean, inverse, eps)
        count = x.numel() // x.shape[1]
        scale = inverse if weight is None else weight.detach() * inverse
        slope = -scale * inverse * of_weight / count
        shift = -scale * of_bias / count - slope * mean
        recomputed.note(of_input, partial(_affine, shift, (scale, cotangent.detach()), (slope, x.detach())))
        ctx.save_for_backward(cotangent, x, weight, mean, inverse, of_weight, of_bias)
        ctx.eps = eps
        ctx.set_materialize_grads(False)
        return of_input, of_weight, of_bias

    @staticmethod
    def backward(ctx: Any, G: Tensor | None, p: Tensor | None, q: Tensor | None) -> tuple[Any, ...]:
        cotangent, x, weight, mean, inverse, of_weight, of_bias = ctx.saved_tensors
        if torch.is_grad_enabled():
            return (*_stock_second_derivative(cotangent, x, weight, ctx.eps, (G, p, q)), None, None, None, None)
        count = x.numel() // x.shape[1]
        gain = torch.ones_like(inverse) if weight is None else weight.to(inverse.dtype)
        a, b = of_bias / count, of_weight / count
        zero = torch.zeros_like(inverse)
        level, c, product = zero, zero, zero
        if G is not None:
            sums = _norm_sums(G, x, mean, inverse, ctx.eps)
            c, level = sums[0] / count, sums[1] / count
            product = _norm_sums(G, cotangent, zero, torch.ones_like(inverse), ctx.eps)[0]  # Σ G g without a copy
        p, q = zero if p is None else p, zero if q is None else q
        whole = product - count * (a * level + b * c)  # R / γ
        across = p - gain * inverse * c
        outer = -gain * inverse.square() * b  # the coefficient of G in the derivative with respect to x
        along = -outer * c - inverse * across * b - gain * whole * inverse.square() / count  # that of x̂
        by_cotangent = _affine(
            q - gain * inverse * level - across * inverse * mean, (gain * inverse, G), (across * inverse, x)
        )
        by_x = _affine(
            -outer * level - inverse * across * a - along * inverse * mean,
            (outer, G),
            (inverse * across, cotangent),
            (along * inverse, x),
        )
        return (
            by_cotangent,
            by_x,
            None if weight is None else (inverse * whole).to(weight.dtype),
            None,
            None,
            None,
            None,
        )


def _affine(constant: Tensor, *terms: tuple[Tensor, Tensor | None]) -> Tensor:
    """Return the sum of tensors with axis 1 of channels, each times a number by channel, and a constant by channel."""
    present = [(factor, tensor) for factor, tensor in terms if tensor is not None]
    factor, first = present[0]
    shape = (-1, *(1 for _ in first.shape[2:]))
    zero, one = torch.zeros_like(constant), torch.ones_like(constant)
    result: Tensor  # Of all kernels for a number by channel this is the fastest one.
    result = aten.native_batch_norm.default(first, factor, constant, zero, one, False, 0.0, 0.0)[0]
    for factor, tensor in present[1:]:
        result.addcmul_(factor.view(shape), tensor)
    return result


def _norm_backward(
    cotangent: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, inverse: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return γ r (g − a − x̂ b), Σ g x̂ and Σ g."""
    given = (cotangent, x, weight, None, None, mean, inverse, True, eps, [True, True, True])
    gradients: tuple[Tensor, Tensor, Tensor] = aten.native_batch_norm_backward.default(*given)
    return gradients


def _norm_sums(G: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return Σ G (x − mean) · inverse and Σ G by channel."""
    given = (G, x, torch.ones_like(inverse), None, None, mean, inverse, True, eps, [False, True, True])
    gradients = aten.native_batch_norm_backward.default(*given)
    return gradients[1], gradients[2]


def _stock_second_derivative(
    cotangent: Tensor, x: Tensor, weight: Tensor | None, eps: float, cotangents: tuple[Tensor | None, ...]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the derivatives for ``cotangent``, ``x`` and ``weight`` as tensors that can be differentiated again."""
    gain = torch.ones(x.shape[1], dtype=x.dtype, device=x.device) if weight is None else weight
    bias = torch.zeros_like(gain)
    # Views, so that the derivatives are partial ones: the cotangent may itself come from x.
    inputs = [t.view_as(t) if t.requires_grad else t.detach().requires_grad_() for t in (cotangent, x, gain, bias)]
    y = torch.batch_norm(inputs[1], inputs[2], inputs[3], None, None, True, 0.0, eps, False)
    first = torch.autograd.grad(y, inputs[1:], inputs[0], create_graph=True)
    pairs = [(f, c) for f, c in zip(first, cotangents, strict=True) if c is not None and f.requires_grad]
    by = torch.autograd.grad(
        [f for f, _ in pairs], inputs[:3], [c for _, c in pairs], create_graph=True, allow_unused=True
    )
    return by[0], by[1], None if weight is None else by[2]


def batch_norm(
    recomputed: Recomputed,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor | None:
    """Return what `torch.nn.functional.batch_norm` does, or None where that is left to it."""
    if not training or input.numel() == input.shape[1] or input.dtype not in (torch.float32, torch.float64):
        return None
    if weight is None and bias is not None:
        return None
    running = (running_mean, running_var)
    return _normed(input, weight, bias, running, momentum, eps, recomputed)


# ---- rectifiers -----------------------------------------------------------------------------------------------------


class _Relu(Function):
    """max(0, x), whose output can be recomputed where its input can."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, recipe: Recipe | None, recomputed: Recomputed) -> Tensor:
        y = torch.relu(x)
        if recipe is not None:
            recomputed.note(y, lambda: recipe().relu_())
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Any, ...]:
        (y,) = ctx.saved_tensors
        return _masked(cotangent, y), None, None


class _Mask(Function):
    """g where y > 0; as a function of y it is constant, which autograd's own does not know."""

    @staticmethod
    def forward(ctx: Any, cotangent: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(y)
        result: Tensor = aten.threshold_backward.default(cotangent, y, 0)
        return result

    @staticmethod
    def backward(ctx: Any, to: Tensor) -> tuple[Any, ...]:
        (y,) = ctx.saved_tensors
        return _masked(to, y), None


# Autograd's functions have no annotations.
_normed: Callable[..., Tensor] = _BatchNorm.apply
_normed_backward: Callable[..., tuple[Tensor, Tensor, Tensor]] = _BatchNormBackward.apply
_rectified: Callable[..., Tensor] = _Relu.apply
_masked: Callable[..., Tensor] = _Mask.apply


def relu(recomputed: Recomputed, input: Tensor, inplace: bool = False) -> Tensor | None:
    """Return what `torch.nn.functional.relu` does, or None where that is left to it."""
    if inplace or not input.is_floating_point():
        return None
    return _rectified(input, recomputed.recipe(input), recomputed)
