"""Batch norm and rectifiers whose gradients are differentiated again in closed form.

Autograd differentiates the gradient of batch norm by some thirty operators on whole tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import Function

from wellposed.gradients.recomputed import Later, Recipe, Recomputed

aten: torch._ops._OpNamespace = torch.ops.aten
_FAR = 8.0
"""From which square of the mean on, in variances, a variance is not taken from the mean square."""
Running: TypeAlias = tuple[torch.Tensor | None, torch.Tensor | None]
"""Running mean and variance."""


@dataclass(frozen=True, slots=True)
class _Norm:
    """What the functions of one batch norm share: its ε, and zero and one by channel, which kernels ask for."""

    eps: float
    zero: Tensor
    one: Tensor
    recomputed: Recomputed

    def affine(self, constant: Tensor, *terms: tuple[Tensor, Tensor]) -> Tensor:
        """Return the sum of tensors with channels along axis 1, times a number by channel each, and of a constant."""
        (factor, first), *others = terms
        result: Tensor  # Of all kernels for a number by channel this is the fastest one.
        result = aten.native_batch_norm.default(first, factor, constant, self.zero, self.one, False, 0.0, 0.0)[0]
        for factor, tensor in others:
            result.addcmul_(factor.view(-1, *(1 for _ in first.shape[2:])), tensor)
        return result

    def sums(self, G: Tensor, x: Tensor, mean: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
        """Return Σ G (x − mean) · inverse and Σ G by channel."""
        given = (G, x, self.one, None, None, mean, inverse, True, self.eps, [False, True, True])
        gradients = aten.native_batch_norm_backward.default(*given)
        return gradients[1], gradients[2]

    def inner(self, G: Tensor, x: Tensor) -> Tensor:
        """Return Σ G x by channel, without a tensor of products."""
        return self.sums(G, x, self.zero, self.one)[0]

    def normalised(
        self, x: Tensor, weight: Tensor | None, bias: Tensor | None, running: Running, momentum: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return y, μ and r, and move the running statistics."""
        if not _sums_fast(x):
            given = (x, weight, bias, *running, True, momentum, self.eps)
            outputs: tuple[Tensor, Tensor, Tensor] = aten.native_batch_norm.default(*given)
            return outputs
        count = x.numel() // x.shape[1]
        squares, total = self.sums(x, x, self.zero, self.one)
        mean = total / count
        variance = torch.addcmul(squares / count, mean, mean, value=-1)
        if not bool((mean.square() < _FAR * variance).all()):  # what is left of the squares would lack digits
            centred = self.affine(-mean, (self.one, x))
            variance = self.inner(centred, centred) / count
        for statistic, value in zip(running, (mean, variance * (count / (count - 1))), strict=True):
            if statistic is not None:
                statistic.lerp_(value.to(statistic.dtype), momentum)
        inverse = (variance + self.eps).rsqrt()
        scale, shift = _scale_and_shift(weight, bias, mean, inverse)
        return self.affine(shift, (scale, x)), mean, inverse

    def gradients(
        self, cotangent: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, inverse: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return γ r (g − a − x̂ b), Σ g x̂ and Σ g."""
        given = (cotangent, x, weight, None, None, mean, inverse, True, self.eps, [True, True, True])
        gradients: tuple[Tensor, Tensor, Tensor] = aten.native_batch_norm_backward.default(*given)
        return gradients


def _sums_fast(x: Tensor) -> bool:
    """Whether sums by the kernel of the gradient are faster than the statistics that batch norm's own takes.

    On processors that kernel adds whole vectors within each plane, where the other one goes number by number.
    """
    return x.device.type == "cpu" and x.dtype == torch.float32 and x.is_contiguous() and x.stride(1) >= 16


def _scale_and_shift(
    weight: Tensor | None, bias: Tensor | None, mean: Tensor, inverse: Tensor
) -> tuple[Tensor, Tensor]:
    """Return γ r and β − μ γ r, with which y = γ r x + β − μ γ r."""
    scale = inverse if weight is None else weight.detach() * inverse
    shift = -mean * scale if bias is None else torch.addcmul(bias.detach(), mean, scale, value=-1)
    return scale, shift


class _BatchNorm(Function):
    """Batch norm by the statistics of the batch; y can be recomputed (`Recomputed`)."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running: Running,
        momentum: float,
        norm: _Norm,
    ) -> Tensor:
        """Return the normalised data, (samples, channels, ...), whose memory may be freed and worked out again."""
        y, mean, inverse = norm.normalised(x, weight, bias, running, momentum)
        ctx.save_for_backward(x, weight, mean, inverse)
        ctx.norm = norm
        scale, shift = _scale_and_shift(weight, bias, mean, inverse)
        norm.recomputed.note(y, partial(norm.affine, shift, (scale, x.detach())))
        return y

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Any, ...]:
        """Return the gradients with respect to data, gain and bias, differentiable themselves if asked."""
        x, weight, mean, inverse = ctx.saved_tensors
        if torch.is_grad_enabled():
            gradients = _normed_backward(cotangent, x, weight, mean, inverse, ctx.norm)
        else:
            gradients = ctx.norm.gradients(cotangent, x, weight, mean, inverse)
        by_weight, by_bias = gradients[1:] if weight is not None else (None, None)
        return gradients[0], by_weight, by_bias if ctx.needs_input_grad[2] else None, None, None, None


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
        ctx: Any, cotangent: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, inverse: Tensor, norm: _Norm
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return those gradients; that of the data may be freed and worked out again from the saved sums."""
        of_input, of_weight, of_bias = norm.gradients(cotangent, x, weight, mean, inverse)
        count = x.numel() // x.shape[1]
        scale = inverse if weight is None else weight.detach() * inverse
        slope = scale * inverse * of_weight / -count  # −γ r² b
        shift = torch.addcmul(scale * of_bias / -count, slope, mean, value=-1)
        norm.recomputed.note(of_input, partial(norm.affine, shift, (scale, cotangent.detach()), (slope, x.detach())))
        ctx.save_for_backward(cotangent, x, weight, mean, inverse, of_weight, of_bias, scale, slope)
        ctx.norm = norm
        ctx.set_materialize_grads(False)
        return of_input, of_weight, of_bias

    @staticmethod
    def backward(ctx: Any, G: Tensor | None, p: Tensor | None, q: Tensor | None) -> tuple[Any, ...]:
        """Return the derivatives of the gradients along G (data), p (gain) and q (bias), in closed form."""
        cotangent, x, weight, mean, inverse, of_weight, of_bias, scale, slope = ctx.saved_tensors
        norm: _Norm = ctx.norm
        if torch.is_grad_enabled():
            return (*_stock_second_derivative(cotangent, x, weight, norm.eps, (G, p, q)), None, None, None)
        count = x.numel() // x.shape[1]
        p, q = norm.zero if p is None else p, norm.zero if q is None else q
        of_G: tuple[tuple[Tensor, Tensor], ...] = ()
        to_x: tuple[tuple[Tensor, Tensor], ...] = ()
        c = level = product = norm.zero
        if G is not None:
            c, level = (total / count for total in norm.sums(G, x, mean, inverse))
            product = norm.inner(G, cotangent)
            of_G, to_x = ((scale, G),), ((slope, G),)
        whole = product - level * of_bias - c * of_weight  # R / γ
        across = inverse * torch.addcmul(p, scale, c, value=-1)  # r (p − γ r c)
        # the coefficient of x in the derivative with respect to x
        along = -inverse * (slope * c + (across * of_weight + scale * inverse * whole) / count)
        by_cotangent = norm.affine(q - scale * level - across * mean, *of_G, (across, x))
        by_x = norm.affine(
            -slope * level - across * of_bias / count - along * mean, *to_x, (across, cotangent), (along, x)
        )
        return by_cotangent, by_x, None if weight is None else inverse * whole, None, None, None


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
    zero = input.new_zeros(input.shape[1])
    norm = _Norm(eps, zero, zero + 1.0, recomputed)
    return _normed(input, weight, bias, (running_mean, running_var), momentum, norm)


# ---- rectifiers -----------------------------------------------------------------------------------------------------


class _Relu(Function):
    """max(0, x), whose output can be recomputed where its input can."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, recipe: Recipe | None, recomputed: Recomputed) -> Tensor:
        """Return max(x, 0), whose memory may be freed and worked out again where there is a recipe."""
        y = torch.relu(x)
        if recipe is not None:
            recomputed.note(y, Later(lambda: recipe().relu_()))
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
    recipe = recomputed.recipe(input)
    return _rectified(input, None if isinstance(recipe, Later) else recipe, recomputed)
