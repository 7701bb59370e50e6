"""Products with a weight: dense layers, convolutions, matrix products, einsum.

All follow from `operators.product.describe`. With fresh, independent, zero-mean weights the output is
Gaussian with mean 0 and variance Var(W) times the sum of the second moments that meet in it (AutoInit, Appendix A,
eq. 3 to 6); zero padding takes taps away near the borders (signals.md 5.2).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from wellposed.graphs import Ref
from wellposed.signals.algebra.arithmetic import combine, linear
from wellposed.signals.algebra.boxes import filtered
from wellposed.signals.algebra.products import product_of_signals
from wellposed.signals.algebra.reduction import averaged
from wellposed.signals.algebra.weighted import fresh, scaled_weight, second_moments
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.state import State
from wellposed.signals.distributions.views import pooled
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array
from wellposed.signals.operators.product import Product, describe
from wellposed.signals.registry import overloads, rule
from wellposed.signals.rules.contraction.convolution import convolve, steps_of

PRODUCTS = overloads(
    "linear.default", "conv1d.default", "conv2d.default", "conv3d.default", "conv1d.padding", "conv2d.padding",
    "conv3d.padding", "conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input",
    "addmm.default", "baddbmm.default", "matmul.default", "mm.default", "bmm.default", "mv.default",
    "dot.default", "outer.default", "einsum.default", "_grouped_mm.default",
)  # fmt: skip
"""Products of two tensors with axes summed, forwards and backwards."""


def is_weight(call: Call, value: int) -> bool:
    """Whether an operand is made from parameters and constants alone."""
    return value in call.run.weights.fixed


@rule(
    PRODUCTS,
    source="AutoInit (arXiv 2109.08958), Appendix A, eq. 3-6; signals: 5.2",
)
def contract(call: Call, *args: Any, **kwargs: Any) -> State | None:
    """A product of two tensors with axes summed; a parameter-derived operand is the weight."""
    product = describe(call.graph, call.node)
    if product is None:
        return None
    states = _operand_states(call, args, kwargs)
    if product.left not in states or product.right not in states:
        return None
    left, right = states[product.left], states[product.right]
    right_fixed, left_fixed = is_weight(call, product.right), is_weight(call, product.left)
    if (right_fixed and not left_fixed) or (right_fixed and right.lever is not None):
        data, weight, data_axes, weight_axes = left, right, product.left_axes, product.right_axes
    elif left_fixed and product.window is None and not right_fixed:
        data, weight, data_axes, weight_axes = right, left, product.right_axes, product.left_axes
    elif product.window is None:
        result = product_of_signals(call, left, right, product)
        return _with_bias(call, result, states.get(product.bias) if product.bias is not None else None, product)
    else:
        data, weight, data_axes, weight_axes = left, right, product.left_axes, product.right_axes
    centred = _centred_bias(call, product, data)
    level = _mean_level(weight) if product.groups == 1 and not centred and not call.independent else 0.0
    if level:
        weight = weight.changed(mean=weight.mean - level)
    if product.window is not None:
        result = convolve(call, data, weight, product, product.window, centred)
    else:
        result = _multiply_weight(call, data, weight, data_axes, weight_axes, product, centred)
    if level:
        result = _with_common_part(call, result, data, data_axes, product, level)
    bias = states.get(product.bias) if product.bias is not None else None
    return _with_bias(call, result, bias, product)


def _mean_level(weight: State) -> float:
    """Return a weight's mean where it is more than the chance of a draw (three standard errors), else 0."""
    mean = weight.pooled_mean
    count = math.prod(weight.shape)
    return mean if mean * mean * count > 9.0 * kernels.average(weight.var) else 0.0


def _with_common_part(
    call: Call, result: State, data: State, data_axes: tuple[str, ...], product: Product, level: float
) -> State:
    """Add what a weight's mean makes: ``level`` times the sum of what meets, the same for all outputs."""
    if len(data_axes) != len(product.out_axes):
        return result
    summed = [i for i, label in enumerate(data_axes) if label not in product.out_axes]
    if [a for i, a in enumerate(data_axes) if i not in summed] != [
        a for i, a in enumerate(product.out_axes) if i not in summed
    ]:
        return result
    window = product.window
    if window is None:
        count = math.prod(data.shape[i] for i in summed)
        common = averaged(call, data, summed, keepdim=True)
        return combine(call, result, linear(call, common, level * count), 1.0, product.scale)
    if product.transposed or product.groups > 1:
        return result
    channels = data.shape[summed[0]]
    mean = averaged(call, data, summed, keepdim=True)
    space = [i for i, label in enumerate(data_axes) if label.startswith("s")]
    sizes = [call.shape()[i] for i in space]
    common = filtered(
        call, mean, space, steps_of(data, space, sizes, window), level * channels * window.taps, include_padding=True
    )
    return combine(call, result, common, 1.0, 1.0)


def _operand_states(call: Call, args: Any, kwargs: Any) -> dict[int, State]:
    found: dict[int, State] = {}
    _collect(call.node.args, args, found)
    for key, value in call.node.kwargs.items():
        _collect(value, kwargs[key], found)
    return found


def _collect(raw: Any, resolved: Any, into: dict[int, State]) -> None:
    if isinstance(raw, Ref):
        if isinstance(resolved, State):
            into[raw.value] = resolved
    elif isinstance(raw, (list, tuple)):
        for a, b in zip(raw, resolved, strict=True):
            _collect(a, b, into)


def _centred_bias(call: Call, product: Product, data: State) -> bool:
    """Whether the bias is chosen to cancel the mean that the weight's row sums make (AutoInit++)."""
    if product.bias is None:
        return False
    name = call.graph.values[product.bias].name
    return call.run.weights.centres(name, data.pooled_mean)


def _with_bias(call: Call, result: State, bias: State | None, product: Product) -> State:
    if bias is None or product.bias_scale == 0.0:
        return result
    if bias.is_constant:
        return linear(call, result, 1.0, product.bias_scale * float(bias.mean.ravel()[0]))
    if "o" in product.out_axes and len(bias.axes) == 1:
        where = product.out_axes.index("o")
        axes = tuple(bias.axes[0] if i == where else () for i in range(len(product.out_axes)))
        bias = bias.amended(axes=axes)
    return combine(call, result, bias, 1.0, product.bias_scale)


def _pick_zero(kernel: Array, dims: list[int]) -> Array:
    index = tuple(0 if i in dims else slice(None) for i in range(kernel.ndim))
    return np.asarray(kernel[index])


def _multiply_weight(
    call: Call,
    data: State,
    weight: State,
    data_axes: tuple[str, ...],
    weight_axes: tuple[str, ...],
    product: Product,
    centred: bool,
) -> State:
    data = pooled(data)
    sizes = dict(zip(data_axes, data.shape, strict=True))
    summed_labels = [a for a in data_axes if a not in product.out_axes]
    summed = [i for label in summed_labels for i in data.axes[data_axes.index(label)]]
    count = math.prod(sizes[label] for label in summed_labels)
    q, raw = second_moments(data, centred)
    means = kernels.mean_over(q, summed)
    incoming = kernels.average(means) * count
    weight = scaled_weight(call, weight, incoming, kernels.average(q))
    unit = weight.second_moment * product.scale**2
    free = [i for i in range(len(data.sizes)) if i not in summed]
    q_free = means.reshape([means.shape[i] for i in free]) if free else means.reshape(())
    kernel = _pick_zero(raw, summed)
    scale = kernels.autocorrelation(np.sqrt(q_free), kernel.shape)
    corr = kernels.quotient(kernel, scale)
    atoms = [data.sizes[i] for i in free]
    shift = {old: new for new, old in enumerate(free)}
    sizes_w = dict(zip(weight_axes, weight.shape, strict=True))
    axes: list[tuple[int, ...]] = []
    out_shape = call.shape()
    for label, size in zip(product.out_axes, out_shape, strict=True):
        if label in data_axes and sizes[label] == size:
            axes.append(tuple(shift[i] for i in data.axes[data_axes.index(label)]))
        elif size == 1:
            axes.append(())
        else:
            # an index of the weight alone, or a batch index that the data lack
            axes.append((len(atoms),))
            atoms.append(size)
            q_free, corr = q_free[..., None], corr[..., None]
            if label in data_axes and sizes_w.get(label, 1) == 1:
                corr = np.concatenate([corr, corr], axis=-1)
    if any(label in weight_axes and label in data_axes for label in product.out_axes):
        # every element of a shared batch index meets a weight of its own
        for label in product.out_axes:
            if label in weight_axes and label in data_axes and sizes_w[label] > 1:
                for i in axes[product.out_axes.index(label)]:
                    corr = np.take(corr, [0], axis=i)
    if weight_axes[0] == "e" and "e" not in (*data_axes, *product.out_axes):
        corr = _dealt_out(corr, axes[0], atoms, sizes_w["e"])
    return fresh(call, tuple(atoms), tuple(axes), q_free * (unit * count), corr, data, weight)


def _dealt_out(corr: Array, rows: tuple[int, ...], sizes: list[int], experts: int) -> Array:
    """Rows dealt out evenly among experts: two of them meet one weight with probability (n / E - 1) / (n - 1)."""
    total = math.prod(sizes[i] for i in rows)
    share = max(total / experts - 1.0, 0.0) / max(total - 1, 1)
    factor = np.full([corr.shape[i] if i in rows else 1 for i in range(corr.ndim)], share)
    factor[(0,) * corr.ndim] = 1.0
    return np.asarray(corr * factor)
