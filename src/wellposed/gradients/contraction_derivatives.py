"""Contractions whose gradients are differentiated again by the kernels of the first derivatives.

Autograd differentiates the gradient of a convolution by convolutions with the batch as channels. Here a contraction
takes a *factor* on request, a scalar s of value one on the weight W: with y = C(x, sW),

    ∂J/∂s = ⟨G, Cᵀ(ḡ, W)⟩ + ⟨x, Cᵀ(c, W)⟩,

for the cotangents G of ∂J/∂x and c of y, whose products are formed anyway. A second derivative with respect to the
scale of a weight so takes four products, where one with respect to the weight itself takes six.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import Function

aten: torch._ops._OpNamespace = torch.ops.aten
Factors: TypeAlias = Mapping[int, tuple[torch.Tensor, torch.Tensor]]
"""By the identity of a weight: a twin of it, which collects the gradient of its products, and its factor."""


class _Products(Protocol):
    """The three products of a contraction C(x, W)."""

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return C(x, W) + b."""

    def backward(
        self, cotangent: Tensor, x: Tensor, weight: Tensor, by_input: bool, by_weight: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the gradients with respect to x and W, where they are wanted."""

    def bias(self, cotangent: Tensor) -> Tensor:
        """Return the gradient with respect to b."""


class _Convolution:
    def __init__(self, *options: Any) -> None:
        self._options = options  # stride, padding, dilation, transposed, output padding, groups

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        result: Tensor = aten.convolution.default(x, weight, bias, *self._options)
        return result

    def backward(
        self, cotangent: Tensor, x: Tensor, weight: Tensor, by_input: bool, by_weight: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the gradients with respect to data and weight, each where it is asked for."""
        mask = [by_input, by_weight, False]
        result = aten.convolution_backward.default(cotangent, x, weight, None, *self._options, mask)
        return result[0], result[1]

    def bias(self, cotangent: Tensor) -> Tensor:
        return cotangent.sum([0, *range(2, cotangent.ndim)])


class _Linear:
    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        result: Tensor = aten.linear.default(x, weight, bias)
        return result

    def backward(
        self, cotangent: Tensor, x: Tensor, weight: Tensor, by_input: bool, by_weight: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the gradients with respect to data, (..., in), and weight, (out, in), each where it is asked for."""
        return (
            torch.matmul(cotangent, weight) if by_input else None,
            torch.matmul(_rows(cotangent).T, _rows(x)) if by_weight else None,
        )

    def bias(self, cotangent: Tensor) -> Tensor:
        return _rows(cotangent).sum(0)


def _rows(tensor: Tensor) -> Tensor:
    """Return a tensor as rows of its last axis, also where these have no elements."""
    return tensor.reshape(math.prod(tensor.shape[:-1]), tensor.shape[-1])


class _Contraction(Function):
    """y = C(x, sW) + b, where s is one."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, factor: Tensor | None, products: _Products
    ) -> Tensor:
        """Return the contraction, and keep what its gradient takes."""
        ctx.save_for_backward(x, weight, factor)
        ctx.products = products
        ctx.has_bias = bias is not None
        return products.forward(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Any, ...]:
        """Return the gradients, differentiable themselves if asked; with a factor, its own in the place of the
        weight's.
        """
        x, weight, factor = ctx.saved_tensors
        by_input, by_weight = ctx.needs_input_grad[:2]
        bias = ctx.products.bias(cotangent) if ctx.has_bias and ctx.needs_input_grad[2] else None
        if torch.is_grad_enabled():
            given = (cotangent, x, weight if factor is None else weight.detach(), factor, ctx.products)
            of_input, of_weight = _contraction_backward(*given, by_input, by_weight)
            return of_input, of_weight, bias, None, None
        if factor is None:
            return (*ctx.products.backward(cotangent, x, weight, by_input, by_weight), bias, None, None)
        of_input, _ = ctx.products.backward(cotangent, x, weight, True, False)
        return of_input, None, bias, _inner(x, of_input), None


class _ContractionBackward(Function):
    """The gradients of a contraction with respect to x and W; the factor multiplies those for x alone."""

    @staticmethod
    def forward(
        ctx: Any,
        cotangent: Tensor,
        x: Tensor,
        weight: Tensor,
        factor: Tensor | None,
        products: _Products,
        by_input: bool,
        by_weight: bool,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the gradients with respect to data and weight, and keep what their own derivatives take."""
        ctx.save_for_backward(x, cotangent, weight, factor)  # x first: the rectifier has just recomputed it
        ctx.products = products
        ctx.set_materialize_grads(False)
        return products.backward(cotangent, x, weight, by_input, by_weight)

    @staticmethod
    def backward(ctx: Any, to_input: Tensor | None, to_weight: Tensor | None) -> tuple[Any, ...]:
        """Return the derivatives of both gradients, which the same first-order kernels give."""
        x, cotangent, weight, factor = ctx.saved_tensors
        by_cotangent = by_x = by_weight = by_factor = None
        if to_input is not None:
            by_cotangent = ctx.products.forward(to_input, weight, None)
            if factor is not None:
                by_factor = _inner(by_cotangent, cotangent)
            elif ctx.needs_input_grad[2]:
                by_weight = ctx.products.backward(cotangent, to_input, weight, False, True)[1]
        if to_weight is not None:
            other = ctx.products.forward(x, to_weight, None)
            if by_cotangent is None:
                by_cotangent = other
            else:
                by_cotangent = by_cotangent + other if torch.is_grad_enabled() else by_cotangent.add_(other)
            if ctx.needs_input_grad[1]:
                by_x = ctx.products.backward(cotangent, x, to_weight, True, False)[0]
        return by_cotangent, by_x, by_weight, by_factor, None, None, None


# Autograd's functions have no annotations.
_contracted: Callable[..., Tensor] = _Contraction.apply
_contraction_backward: Callable[..., tuple[Tensor | None, Tensor | None]] = _ContractionBackward.apply


def _inner(a: Tensor, b: Tensor) -> Tensor:
    """Return the inner product, in float32 at least."""
    if a.dtype in (torch.float32, torch.float64):
        return torch.dot(a.reshape(-1), b.reshape(-1))
    return (a.float() * b.float()).sum()


def _contraction(
    factored: Factors, x: Tensor, weight: Tensor, bias: Tensor | None, products: _Products
) -> Tensor | None:
    twin, factor = factored.get(id(weight), (weight, None))
    return _contracted(x, twin, bias, factor, products)


def convolution(
    factored: Factors,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor | None:
    """Return what `torch.nn.functional.conv2d` and its like do, or None where that is left to them."""
    dims = weight.ndim - 2
    if isinstance(padding, str) or input.ndim != weight.ndim:
        return None
    options = [list(_each(value, dims)) for value in (stride, padding, dilation)]
    return _contraction(factored, input, weight, bias, _Convolution(*options, False, [0] * dims, groups))


def _each(value: Any, dims: int) -> tuple[int, ...]:
    many = (value,) if isinstance(value, int) else tuple(value)
    return many * dims if len(many) == 1 else many


def linear(factored: Factors, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    """Return what `torch.nn.functional.linear` does, or None where that is left to it."""
    if weight.ndim != 2 or input.is_nested or input.layout != torch.strided:
        return None
    return _contraction(factored, input, weight, bias, _Linear())
