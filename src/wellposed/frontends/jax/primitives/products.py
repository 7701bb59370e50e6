"""Products with axes summed, convolutions, Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from wellposed.errors import UnsupportedError
from wellposed.frontends.jax.dtypes import torch_dtype
from wellposed.frontends.jax.primitives.registry import Rule, rule

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@rule("dot_general")
def _dot_general(
    x: Tensor, y: Tensor, *, dimension_numbers: Any, preferred_element_type: Any = None, **_params: Any
) -> Tensor:
    """Return a product as an einsum: batch axes first, then those of x, then those of y that are not summed."""
    (summed, batch) = dimension_numbers
    letters = iter(_LETTERS)
    left, right = [""] * x.ndim, [""] * y.ndim
    for of_left, of_right in (*zip(*batch, strict=True), *zip(*summed, strict=True)):
        left[of_left] = right[of_right] = next(letters)
    left = [letter or next(letters) for letter in left]
    right = [letter or next(letters) for letter in right]
    made = [left[axis] for axis in batch[0]]
    made += [letter for letter in left if letter not in right]
    made += [letter for letter in right if letter not in left]
    if preferred_element_type is not None:
        wanted = torch_dtype(preferred_element_type)
        x, y = x.to(wanted), y.to(wanted)
    return torch.einsum(f"{''.join(left)},{''.join(right)}->{''.join(made)}", x, y)


def linear(
    x: Tensor, weight: Tensor, bias: Tensor, *, summed: tuple[Any, Any], batch: tuple[Any, Any], weight_first: bool
) -> Tensor:
    """Return a product with a weight whose outputs take a bias: ``dot_general`` and what is added to it.

    Args:
        x: the data.
        weight: the weight.
        bias: one number for each output of the weight, and of every weight where there are several.
        summed: the axes that are summed over, of data and weight.
        batch: the axes that number several weights, of data and weight.
        weight_first: whether the outputs of the weight are before those of the data in the result.
    """
    (of_x, of_weight), (shared_x, shared_weight) = (
        tuple([*map(int, axes)] for axes in pair) for pair in (summed, batch)
    )
    free_x = [axis for axis in range(x.ndim) if axis not in of_x + shared_x]
    free_weight = [axis for axis in range(weight.ndim) if axis not in of_weight + shared_weight]
    shared = [x.shape[axis] for axis in shared_x]
    rows, outputs = [x.shape[axis] for axis in free_x], [weight.shape[axis] for axis in free_weight]
    data = _ordered(x, shared_x + free_x + of_x)
    if shared:
        matrices = _ordered(weight, shared_weight + of_weight + free_weight)
        count, inner = math.prod(shared), math.prod(x.shape[axis] for axis in of_x)
        bias = bias.reshape(count, 1, -1)
        made = torch.baddbmm(bias, data.reshape(count, -1, inner), matrices.reshape(count, inner, -1))
        made = made.reshape([*shared, *rows, *outputs])
    else:
        made = _one_matrix(data, _ordered(weight, free_weight + of_weight), bias, len(of_x), outputs)
    if not weight_first or not free_x:
        return made
    start, middle = len(shared), len(shared) + len(free_x)
    return made.permute([*range(start), *range(middle, made.ndim), *range(start, middle)])


def _one_matrix(data: Tensor, weight: Tensor, bias: Tensor, summed: int, outputs: list[int]) -> Tensor:
    """Return data times a weight whose last ``summed`` axes are summed, those of outputs and bias taken as one."""
    if summed > 1:
        data, weight = data.flatten(-summed), weight.flatten(-summed)
    if len(outputs) > 1:
        weight = weight.flatten(0, len(outputs) - 1)
    made = functional.linear(data, weight, bias.flatten() if bias.ndim > 1 else bias)
    return made.unflatten(-1, outputs) if len(outputs) > 1 else made


def _ordered(x: Tensor, order: list[int]) -> Tensor:
    return x if order == list(range(x.ndim)) else x.permute(order)


@rule("conv_general_dilated")
def convolution(
    x: Tensor,
    kernel: Tensor,
    bias: Tensor | None = None,
    *,
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    dimension_numbers: Any,
    feature_group_count: int,
    batch_group_count: int,
    **_params: Any,
) -> Tensor:
    """Return a convolution of JAX, transposed where the data are dilated; with a bias for each channel."""
    rank = len(window_strides)
    if batch_group_count != 1:
        raise UnsupportedError("a convolution in groups of samples has no rule; give one (wj.rule)")
    if not 1 <= rank <= 3:
        raise UnsupportedError(f"a convolution over {rank} axes has no rule; give one (wj.rule)")
    x = _ordered(x, list(dimension_numbers.lhs_spec))
    kernel = _ordered(kernel, list(dimension_numbers.rhs_spec))
    if any(step != 1 for step in lhs_dilation):
        made = _transposed(x, kernel, bias, window_strides, padding, lhs_dilation, rhs_dilation, feature_group_count)
    else:
        both = all(low == high >= 0 for low, high in padding)
        if not both:
            x = functional.pad(x, [edge for edges in reversed(padding) for edge in edges])
        run: Rule = (functional.conv1d, functional.conv2d, functional.conv3d)[rank - 1]
        made = run(
            x, kernel, bias, list(window_strides), [low for low, _ in padding] if both else 0, list(rhs_dilation),
            feature_group_count,
        )  # fmt: skip
    spec = list(dimension_numbers.out_spec)
    return _ordered(made, [spec.index(axis) for axis in range(made.ndim)])


def _transposed(
    x: Tensor, kernel: Tensor, bias: Tensor | None, strides: Sequence[int], padding: Sequence[tuple[int, int]],
    steps: Sequence[int], dilation: Sequence[int], groups: int,
) -> Tensor:  # fmt: skip
    """Return the convolution of data with zeros between them: a transposed one, whose kernel is the other way round."""
    if any(step != 1 for step in strides):
        raise UnsupportedError("a convolution with strides over dilated data has no rule; give one (wj.rule)")
    reach = [size_step * (size - 1) for size, size_step in zip(kernel.shape[2:], dilation, strict=True)]
    cut = [(far - low, far - high) for far, (low, high) in zip(reach, padding, strict=True)]
    kernel = kernel.flip(tuple(range(2, kernel.ndim)))
    kernel = kernel.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1) if groups > 1 else kernel.transpose(0, 1)
    run: Rule = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)[len(reach) - 1]
    own = _own_padding(cut, steps, dilation)
    trimmed, extra = ([0] * len(reach), [0] * len(reach)) if own is None else own
    grows = own is None and any(min(edges) < 0 for edges in cut)
    made: Tensor = run(x, kernel, None if grows else bias, list(steps), trimmed, extra, groups, list(dilation))
    if own is None:
        made = functional.pad(made, [edge for low, high in reversed(cut) for edge in (-low, -high)])
    if grows and bias is not None:  # the border that is added holds the bias alone
        made = made + bias.reshape(-1, *[1] * len(reach))
    return made


def _own_padding(
    cut: Sequence[tuple[int, int]], steps: Sequence[int], dilation: Sequence[int]
) -> tuple[list[int], list[int]] | None:
    """Return the padding and the output padding of torch that cut as much off both ends; None where there are none."""
    trimmed, extra = [low for low, _ in cut], [low - high for low, high in cut]
    fits = min(trimmed) >= 0 and all(
        0 <= more < max(step, size_step) for more, step, size_step in zip(extra, steps, dilation, strict=True)
    )
    return (trimmed, extra) if fits else None


@rule("ragged_dot_general")
def _ragged_dot(
    x: Tensor, weights: Tensor, sizes: Tensor, *, ragged_dot_dimension_numbers: Any, group_offset: Any, **_params: Any
) -> Tensor:
    """Rows of x by one matrix for each group of them, one group after the other."""
    numbers = ragged_dot_dimension_numbers
    plain = (((1,), (1,)), ((), ())), (0,), (0,)
    stated = numbers.dot_dimension_numbers, numbers.lhs_ragged_dimensions, numbers.rhs_group_dimensions
    if _as_tuples(stated) != plain or group_offset is not None:
        raise UnsupportedError(
            "ragged_dot_general has a rule for rows, sorted by group, and one matrix for each group "
            "(jax.lax.ragged_dot); give another (wj.rule)"
        )
    return functional.grouped_mm(x, weights, offs=sizes.cumsum(0, dtype=torch.int32))


def _as_tuples(tree: Any) -> Any:
    return tuple(map(_as_tuples, tree)) if isinstance(tree, (tuple, list)) else tree


@rule("fft")
def _fft(x: Tensor, *, fft_type: Any, fft_lengths: Sequence[int], **_params: Any) -> Tensor:
    """Return the Fourier transform over the last axes, of the kind that ``fft_type`` names."""
    kind = str(getattr(fft_type, "name", fft_type)).lower()
    run: Rule = {"fft": torch.fft.fftn, "ifft": torch.fft.ifftn, "rfft": torch.fft.rfftn, "irfft": torch.fft.irfftn}[
        kind
    ]
    axes = tuple(range(-len(fft_lengths), 0))
    made: Tensor = run(x, tuple(fft_lengths), axes)
    return made
