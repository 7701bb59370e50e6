"""The axes of an einsum; those that sum nothing are taken apart into products of elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Axes = tuple[str, ...]
SUMMING = frozenset({torch.ops.aten.einsum.default, torch.ops.aten.outer.default})
"""Operators that multiply elements, and may sum products."""


def axes_of(equation: str, ranks: Sequence[int]) -> tuple[list[Axes], Axes] | None:
    """Return a label for each axis of the operands and of the result; None where one takes a diagonal.

    Args:
        equation: as `torch.einsum` takes it.
        ranks: how many axes the operands have.
    """
    inputs, arrow, out = equation.replace(" ", "").partition("->")
    terms: list[Axes] = []
    shared: Axes = ()
    for term, rank in zip(inputs.split(","), ranks, strict=True):
        before, dots, after = term.partition("...")
        hidden = tuple(f"b{i}" for i in range(rank - len(before) - len(after))) if dots else ()
        shared = hidden if len(hidden) > len(shared) else shared
        terms.append((*before, *hidden, *after))
    if not arrow:
        letters = [letter for term in terms for letter in term]
        made: Axes = (*shared, *sorted({one for one in letters if letters.count(one) == 1 and len(one) == 1}))
    else:
        before, dots, after = out.partition("...")
        made = (*before, *(shared if dots else ()), *after)
    return None if any(len(set(axes)) < len(axes) for axes in (*terms, made)) else (terms, made)


def factors_of_elements(func: Any, args: Sequence[Any]) -> tuple[Tensor, Tensor] | None:
    """Return the two tensors whose product, element by element, an operator makes; None where it sums, or is another.

    Both are views that broadcast against each other.
    """
    if func is torch.ops.aten.outer.default:
        return args[0].unsqueeze(1), args[1].unsqueeze(0)
    if func is not torch.ops.aten.einsum.default or len(args[1]) != 2:
        return None
    found = axes_of(args[0], [operand.ndim for operand in args[1]])
    if found is None:
        return None
    terms, out = found
    if not all(set(axes) <= set(out) and all(len(label) == 1 for label in axes) for axes in terms):
        return None
    first, second = (_laid_out(operand, axes, out) for operand, axes in zip(args[1], terms, strict=True))
    return first, second


def _laid_out(operand: Tensor, axes: Axes, out: Axes) -> Tensor:
    """Return a tensor with its axes in the order of ``out``, and axes of one element for the others."""
    order = [axes.index(label) for label in out if label in axes]
    made = operand if order == list(range(len(order))) else operand.permute(order)
    for place, label in enumerate(out):
        made = made if label in axes else made.unsqueeze(place)
    return made
