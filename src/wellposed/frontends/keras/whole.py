"""Layers that Keras writes out, as the one operator of torch that they are; only while a model is traced.

A bias that is added afterwards, or a norm in parts, is the same numbers but not the same graph: what a parameter is
(bias, gain, shift) is read off the operator that takes it. Each replacement is a specification: a test holds it against
Keras' own, number by number. What is read off the parts as well (activations, attention, layer norm, recurrent layers)
is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import reduce, wraps
from typing import Any
from unittest.mock import patch

import keras
import torch
from keras.src.layers.convolutional.base_conv import BaseConv
from keras.src.layers.convolutional.base_conv_transpose import BaseConvTranspose
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes

from wellposed.errors import InputError

Function = Callable[..., Any]
_CONVOLUTIONS = tuple(f"conv{kind}{rank}d" for kind in ("", "_transpose") for rank in (1, 2, 3))


@contextmanager
def whole_operators() -> Iterator[None]:
    """Put the whole operators in the place of Keras' own inside the block."""
    from keras.src.backend.torch import random as backend_random  # it takes a second that other backends do not need

    noise = ((backend_random, "dropout", _dropout), (backend_random, "torch_seed_generator", _generator))
    with ExitStack() as stack:
        for owner, name, make in (*_REPLACED, *noise):
            stack.enter_context(patch.object(owner, name, make(getattr(owner, name))))
        yield


def _alike(*values: Any, least: torch.dtype | None = None) -> list[Any]:
    """Return tensors, and variables as their layers cast them, in the one dtype that holds them all; None stays None.

    Args:
        values: what meets in an operator.
        least: a dtype that is to be held as well: norms work in float32 at least.
    """
    given = [None if value is None else keras.ops.convert_to_tensor(value) for value in values]
    dtypes = [value.dtype for value in given if value is not None] + [least] * (least is not None)
    if len(set(dtypes)) == 1:  # promotion is an operator, which takes time to trace
        return given
    dtype = reduce(torch.promote_types, dtypes)
    return [None if value is None else value.to(dtype) for value in given]


def _activated(layer: Any, x: Tensor) -> Any:
    return x if layer.activation is None else layer.activation(x)


# ---- products and their biases --------------------------------------------------------------------------------------


def _dense(original: Function) -> Function:
    """``linear`` takes the bias along."""

    @wraps(original)
    def call(layer: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if layer.bias is None:
            return original(layer, inputs, *args, **kwargs)
        x, kernel, bias = _alike(inputs, layer.kernel, layer.bias)
        return _activated(layer, functional.linear(x, kernel.T, bias))

    return call


def _einsum(original: Function) -> Function:
    """``linear`` on the axes that are summed and made, where these come last: projections of attention."""

    @wraps(original)
    def call(layer: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the layer as one linear operator, where its equation sums the last axes of its input."""
        made = _made_axes(layer.equation)
        if layer.bias is None or not made or layer.bias.shape != layer.kernel.shape[-made:]:
            return original(layer, inputs, *args, **kwargs)
        x, kernel, bias = _alike(inputs, layer.kernel, layer.bias)
        x, matrix = x.flatten(made - kernel.ndim), kernel.reshape(-1, bias.numel()).T
        if made == 1:
            return _activated(layer, functional.linear(x, matrix, bias))
        return _activated(layer, functional.linear(x, matrix, bias.flatten()).unflatten(-1, bias.shape))

    return call


def _made_axes(equation: str) -> int:
    """Return how many axes an equation ``...xy,xyz->...z`` makes of a kernel; 0 for one of another form."""
    given, _, made = equation.replace(" ", "").partition("->")
    data, _, kernel = given.partition(",")
    for summed in range(1, len(kernel)):
        head, tail = kernel[:summed], kernel[summed:]
        if data.endswith(head) and made == data.removesuffix(head) + tail:
            return len(tail)
    return 0


def _convolution(original: Function, taken: int = 1) -> Function:
    """A convolution takes the bias along; of several in one layer, the one of number ``taken``."""

    @wraps(original)
    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the layer with its bias given to the convolution itself."""
        if not layer.use_bias or _is_padded_afterwards(layer):
            return original(layer, *args, **kwargs)
        calls = 0

        def with_bias(convolve: Function) -> Function:
            def convolution(*operands: Any, **options: Any) -> Tensor:
                nonlocal calls
                calls += 1
                bias = keras.ops.convert_to_tensor(layer.bias) if calls == taken else None
                result: Tensor = convolve(*operands, **options, bias=bias)
                return result

            return convolution

        with ExitStack() as stack:
            for name in _CONVOLUTIONS:
                stack.enter_context(patch.object(functional, name, with_bias(getattr(functional, name))))
            stack.enter_context(patch.object(layer, "use_bias", False))
            return original(layer, *args, **kwargs)

    return call


def _separable(original: Function) -> Function:
    return _convolution(original, taken=2)


def _is_padded_afterwards(layer: Any) -> bool:
    """Whether the result of a transposed convolution is padded, so that the border holds the bias alone."""
    if not isinstance(layer, BaseConvTranspose):
        return False
    short = any(kernel < stride for kernel, stride in zip(layer.kernel_size, layer.strides, strict=True))
    return short or layer.output_padding is not None


# ---- norms ----------------------------------------------------------------------------------------------------------


def _batch_norm(original: Function) -> Function:
    """Norm by the statistics of the batch; the moving averages, which this pass does not read, stay as they are."""

    @wraps(original)
    def call(layer: Any, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Call the layer as torch's batch norm, where it uses statistics of the batch."""
        if not (training and layer.trainable) or mask is not None or layer.renorm:
            return original(layer, inputs, training=training, mask=mask)
        x, gain, shift = _norm_operands(layer, inputs)
        x = functional.batch_norm(x, None, None, gain, shift, training=True, eps=layer.epsilon)
        return _norm_result(layer, x)

    return call


def _group_norm(original: Function) -> Function:
    """Return a call of the layer as torch's group norm."""

    @wraps(original)
    def call(layer: Any, inputs: Any) -> Any:
        x, gain, shift = _norm_operands(layer, inputs)
        return _norm_result(layer, functional.group_norm(x, layer.groups, gain, shift, layer.epsilon))

    return call


def _norm_operands(layer: Any, inputs: Tensor) -> list[Any]:
    """Return the input, its channels second, and gain and shift where the layer has them."""
    x = inputs if layer.axis % inputs.ndim == 1 else inputs.movedim(layer.axis, 1)
    return _alike(x, layer.gamma if layer.scale else None, layer.beta if layer.center else None, least=torch.float32)


def _norm_result(layer: Any, x: Tensor) -> Any:
    return keras.ops.cast(x if layer.axis % x.ndim == 1 else x.movedim(1, layer.axis), layer.compute_dtype)


def _spectral_norm(original: Function) -> Function:
    """The kernel by its largest singular value, without the branch that spares a kernel of zeros: it reads values."""

    @wraps(original)
    def call(layer: Any, inputs: Any, training: bool = False) -> Any:
        """Call the wrapped layer; a kernel of zeros is not divided by its norm."""
        if training and not _is_zero(layer.kernel):
            vector, kernel = layer.normalized_weights()
            layer.vector_u.assign(vector)
            layer.kernel.assign(kernel)
        return keras.ops.cast(layer.layer(inputs), inputs.dtype)

    return call


def _is_zero(variable: Any) -> bool:
    """Whether all of a variable's own numbers are 0; where it has none, they count as others."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():  # the trace sees none of this
        return not variable._value.is_meta and not bool(variable._value.any())


# ---- noise ----------------------------------------------------------------------------------------------------------


def _dropout(_original: Function) -> Function:
    """Dropout, or a product with the dropout of ones, where elements are dropped together (``noise_shape``)."""

    def dropout(inputs: Tensor, rate: float, noise_shape: Any = None, seed: Any = None) -> Tensor:
        if noise_shape is None:
            return functional.dropout(inputs, rate)
        shape = [size if given is None else given for size, given in zip(inputs.shape, noise_shape, strict=True)]
        return inputs * functional.dropout(inputs.new_ones(shape), rate)

    return dropout


# ---- what a trace needs ---------------------------------------------------------------------------------------------


def _build(original: Function) -> Function:
    """A layer that has no variables yet is refused: building it would change the model."""

    @wraps(original)
    def build(layer: Any, call_spec: Any) -> Any:
        """Build a layer, and refuse one that would make weights only now."""
        if not layer.built and type(layer).build is not keras.Layer.build:
            raise InputError(
                f"layer {layer.name!r} ({type(layer).__name__}) is not built and has no weights yet: call the model "
                "once on a batch, model(batch)"
            )
        return original(layer, call_spec)

    return build


def _generator(_original: Function) -> Function:
    """Random numbers come from torch's own generator, by which every run of the graph is seeded."""

    def generator(_seed: Any) -> torch.Generator | None:
        return None

    return generator


_REPLACED: tuple[tuple[Any, str, Callable[[Function], Function]], ...] = (
    (keras.layers.Dense, "call", _dense),
    (keras.layers.EinsumDense, "call", _einsum),
    (BaseConv, "call", _convolution),
    (keras.layers.Conv1D, "call", _convolution),
    (BaseConvTranspose, "call", _convolution),
    *((getattr(keras.layers, f"DepthwiseConv{rank}D"), "call", _convolution) for rank in (1, 2)),
    *((getattr(keras.layers, f"SeparableConv{rank}D"), "call", _separable) for rank in (1, 2)),
    (keras.layers.BatchNormalization, "call", _batch_norm),
    (keras.layers.GroupNormalization, "call", _group_norm),
    (keras.layers.SpectralNormalization, "call", _spectral_norm),
    (keras.Layer, "_maybe_build", _build),
)
