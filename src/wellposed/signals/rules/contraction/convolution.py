"""Products with a weight over sliding windows."""

from __future__ import annotations

import math

import numpy as np

from wellposed.signals.algebra.boxes import box, filtered
from wellposed.signals.algebra.weighted import fresh, scaled_weight, second_moments
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.expansion import UNEVEN, square_kernel
from wellposed.signals.distributions.state import Later, State, read
from wellposed.signals.distributions.views import merge_atoms, pooled
from wellposed.signals.integration import kernels, windows
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.margins import margin
from wellposed.signals.integration.quadratic import Inverse, excess, inverse_variance
from wellposed.signals.integration.windows import Axis
from wellposed.signals.operators.product import Product, Window


def convolve(call: Call, data: State, weight: State, product: Product, window: Window, centred: bool) -> State:
    """Return the state behind a convolution (or transposed convolution)."""
    data = pooled(data)
    rank = len(window.kernel)
    channel_axis = product.left_axes.index("c")
    space = [product.left_axes.index(f"s{i}") for i in range(rank)]
    for axis in space:
        data = merge_atoms(data, axis) if len(data.axes[axis]) > 1 else data
    if len(data.axes[channel_axis]) > 1:
        data = merge_atoms(data, channel_axis)
    channels = data.shape[channel_axis] // product.groups
    out_shape = call.shape()
    out_space = [out_shape[product.out_axes.index(f"s{i}")] for i in range(rank)]
    known = not kernels.nonzero(weight.var) or (weight.tag == "assumed" and weight.roots.bit_count() == 1)
    if (
        known
        and not weight.lever
        and product.groups == data.shape[channel_axis]
        and product.right not in call.run.weights.scaled
    ):
        result = _fixed_filter(call, data, weight, product, window, out_space)
        if result is not None:
            return result
    q, raw = second_moments(data, centred)
    q = kernels.mean_over(q, data.axes[channel_axis])
    raw = kernels.at_zero(raw, data.axes[channel_axis])
    before = kernels.average(q)
    if call.independent:
        strides = math.prod(window.stride) if product.transposed else 1
        total = np.full((1,) * q.ndim, before * channels * window.taps / strides)
        corr = np.ones((1,) * q.ndim)
        plan: list[Axis | None] = [None] * rank
    else:
        scale = kernels.autocorrelation(np.sqrt(q), raw.shape)
        total, corr = q * channels, kernels.quotient(raw, scale)
        plan = []
        for i, axis in enumerate(space):
            size = data.shape[axis]
            step = Axis(
                size,
                out_space[i],
                window.kernel[i],
                window.stride[i],
                window.padding[i][0],
                window.dilation[i],
                product.transposed,
            )
            plan.append(step)
            if not data.axes[axis]:
                # one input position: only the taps that hit it count
                total = total * kernels.average(windows.reads(step))
                continue
            dim = data.axes[axis][0]
            marginal = np.sqrt(kernels.mean_over(q, [d for d in range(q.ndim) if d != dim])).ravel()
            total = windows.summed(total, dim, step)
            corr = _through_window(corr, dim, step, marginal, kernels.lag_cap(rank))
    incoming = kernels.average(total)
    weight = scaled_weight(call, weight, incoming, before)
    unit = weight.second_moment
    sizes: list[int] = []
    axes: list[tuple[int, ...]] = []
    order: list[int | None] = []
    drop = set(data.axes[channel_axis])
    for label, size in zip(product.out_axes, out_shape, strict=True):
        if label == "o":
            if size == 1:
                axes.append(())
                continue
            axes.append((len(sizes),))
            sizes.append(size)
            order.append(None)
            continue
        own = data.axes[product.left_axes.index(label)]
        if not own:
            if size == 1:
                axes.append(())
            else:  # a single input position spread over several output positions
                axes.append((len(sizes),))
                sizes.append(size)
                order.append(None)
            continue
        if label == "n":
            axes.append(tuple(range(len(sizes), len(sizes) + len(own))))
            sizes.extend(data.sizes[i] for i in own)
            order.extend(own)
            continue
        if size == 1:
            axes.append(())
            drop.add(own[0])
            continue
        axes.append((len(sizes),))
        sizes.append(size)
        order.append(own[0])

    def arrange(array: Array) -> Array:
        index = tuple(0 if i in drop else slice(None) for i in range(array.ndim))
        kept = [i for i in range(array.ndim) if i not in drop]
        reduced = array[index]
        moved = reduced.transpose([kept.index(i) for i in order if i is not None])
        for at, i in enumerate(order):
            if i is None:
                moved = np.expand_dims(moved, at)
        return np.asarray(moved)

    result = fresh(call, tuple(sizes), tuple(axes), arrange(total) * unit, arrange(corr), data, weight)
    if call.independent or product.transposed:
        return result
    read(data.scales)  # convolutions behind each other: each from the one before, not all at once from the last
    outputs = out_shape[product.out_axes.index("o")]
    channel = axes[product.out_axes.index("o")]

    def filters() -> Array | None:
        made = _uneven_filters(data, channel_axis, space, plan, channels)
        return None if made is None else arrange(made)

    def energies() -> Array | None:
        found = _local_scales(data, channel_axis, space, plan, channels, outputs)
        if found is None:
            return None
        single, between = (arrange(kernel) for kernel in found)
        return np.concatenate([single, between], axis=channel[0]) if channel and between.any() else single

    def edges() -> Array | None:
        steps = [(data.axes[a][0], s) for a, s in zip(space, plan, strict=True) if data.axes[a] and s is not None]
        edge = margin(data.mean, total, [i for i, _ in steps], [s for _, s in steps], channels)
        return None if edge is None else arrange(edge) * unit

    return result.amended(excess=Later(filters), scales=Later(energies), margin=Later(edges))


WIDE = 64
"""Channels that one filter spans above which the sum counts as Gaussian."""


def _local_scales(
    data: State, channel_axis: int, space: list[int], plan: list[Axis | None], channels: int, outputs: int
) -> tuple[Array, Array] | None:
    """Return how the energy that meets in one output varies: its kernel, relative to its mean, and that of two outputs.

    kappa = mean over pairs of taps of Cov(x², x²) / (E x²)², over the channels that a filter spans (signals.md 5.7).
    Outputs that see the same channels see the same energy.
    """
    members = data.axes[channel_axis]
    before = read(data.scales)
    related = members and max(a.shape[members[0]] for a in (data.corr, before) if a is not None) > 1
    if channels > WIDE and not related:
        return None
    base, fn = (data.base, data.fn) if data.base is not None and data.fn is not None else (data, None)
    if base.sizes != data.sizes or not kernels.nonzero(base.var):
        return None
    kernel = square_kernel(
        fn, kernels.average(base.mean), math.sqrt(kernels.average(base.var)), base.corr, base.transport
    )
    if before is not None:
        lengths = [max(a, b) for a, b in zip(kernel.shape, before.shape, strict=True)]
        kernel, before = kernels.promote(kernel, lengths), kernels.promote(before, lengths)
        kernel = kernel + before * (1.0 + kernel)
    other = np.zeros_like(kernel)
    for i in members:
        other = np.take(kernel, [1], axis=i) if kernel.shape[i] > 1 else np.zeros_like(kernel)
        kernel = np.take(kernel, [0], axis=i) / channels + (1 - 1 / channels) * other
    pairs = [(data.axes[a][0], s) for a, s in zip(space, plan, strict=True) if data.axes[a] and s is not None]
    cap = kernels.lag_cap(len(space))
    kernel = box(kernel, [i for i, _ in pairs], [s for _, s in pairs], cap)
    if float(kernel.ravel()[0]) <= UNEVEN:
        return None
    groups = data.shape[channel_axis] // channels
    if groups == 1:
        return kernel, kernel
    # two outputs of one group see the same channels, two of different groups see others
    together = (outputs / groups - 1.0) / max(outputs - 1, 1)
    other = box(other, [i for i, _ in pairs], [s for _, s in pairs], cap)
    return kernel, together * kernel + (1.0 - together) * other


def _uneven_filters(
    data: State, channel_axis: int, space: list[int], plan: list[Axis | None], channels: int
) -> Array | None:
    """Return what a norm per channel will add to the correlation: filters differ in how smooth they are."""
    pairs = [
        (data.axes[a][0], s) for a, s in zip(space, plan, strict=True) if data.axes[a] and s is not None and s.out > 1
    ]
    if not pairs or math.prod(s.kernel for _, s in pairs) == 1:
        return None
    dims = [i for i, _ in pairs]
    kernel, rho = _patch(data, channel_axis, dims)
    cap = kernels.lag_cap(len(space))
    return excess(
        kernel,
        dims,
        [s.kernel for _, s in pairs],
        [s.stride for _, s in pairs],
        [s.dilation for _, s in pairs],
        [min(s.out, cap) for _, s in pairs],
        channels,
        rho,
    )


def _patch(data: State, channel_axis: int, dims: list[int]) -> tuple[Array, float]:
    """Return the covariance kernel of what one filter sees, less what all positions share, and that of two channels."""
    covariance = data.covariance()
    members = data.axes[channel_axis]
    rho = 0.0
    if members and covariance.shape[members[0]] > 1 and covariance.ravel()[0] > 0:
        index = tuple(1 if i == members[0] else 0 for i in range(covariance.ndim))
        rho = min(max(float(covariance[index] / covariance.ravel()[0]), 0.0), 1.0)
    for i in members:
        covariance = kernels.at_zero(covariance, (i,))
    others = [i for i in range(covariance.ndim) if i not in members]
    kernel = covariance - kernels.pair_mean(covariance, data.sizes, others)
    return kernels.at_zero(kernel, [i for i in range(kernel.ndim) if i not in dims]), rho


def inverse_of_filters(data: State, product: Product) -> Inverse:
    """Return what it does to gradients to divide each output channel by its own variance: filters differ in theirs."""
    data = pooled(data)
    window = product.window
    summed = [i for i, label in enumerate(product.left_axes) if label not in product.out_axes]
    if window is None:
        return inverse_variance(np.ones(()), [], [1], [1], math.prod(data.shape[i] for i in summed), 0.0)
    channel_axis = product.left_axes.index("c")
    space = [product.left_axes.index(f"s{i}") for i in range(len(window.kernel))]
    for axis in (*space, channel_axis):
        data = merge_atoms(data, axis) if len(data.axes[axis]) > 1 else data
    along = [i for i, axis in enumerate(space) if data.axes[axis]]
    kernel, rho = _patch(data, channel_axis, [data.axes[space[i]][0] for i in along])
    return inverse_variance(
        kernel,
        [data.axes[space[i]][0] for i in along],
        [window.kernel[i] for i in along],
        [window.dilation[i] for i in along],
        data.shape[channel_axis] // product.groups,
        rho,
    )


def _through_window(corr: Array, dim: int, axis: Axis, marginal: Array, cap: int) -> Array:
    """Carry a raw correlation profile through a window with weights of its own for every tap."""
    length = corr.shape[dim]
    if axis.out == 1:
        return kernels.at_zero(corr, (dim,))
    if length == 1:
        return corr
    uniform = marginal.size == 1 or not np.ptp(marginal)
    if length == 2 and not axis.padded and uniform:
        return corr
    lags = min(axis.out, cap)
    if marginal.size == 1:
        marginal = np.ones(1)
    shape = [1] * corr.ndim
    shape[dim] = lags
    factor = windows.shared_taps(axis, marginal, lags)
    return windows.strided(corr, dim, axis, lags) * factor.reshape(shape)


def steps_of(data: State, space: list[int], out_space: list[int], window: Window) -> list[Axis]:
    """Return the window along each spatial axis."""
    return [
        Axis(data.shape[axis], out, k, s, p[0], d)
        for axis, out, k, s, p, d in zip(
            space, out_space, window.kernel, window.stride, window.padding, window.dilation, strict=True
        )
    ]


def _fixed_filter(
    call: Call, data: State, weight: State, product: Product, window: Window, out_space: list[int]
) -> State | None:
    """A depthwise convolution with known numbers (a blur): taken as a box with the same sum."""
    if product.transposed:
        return None
    total = kernels.average(weight.mean) * window.taps
    if weight.tag == "assumed":  # a buffer on meta: filters that are not trained mostly sum to 1
        total = 1.0
    if abs(total) < 1e-3:
        return None
    space = [product.left_axes.index(f"s{i}") for i in range(len(window.kernel))]
    steps = steps_of(data, space, out_space, window)
    return filtered(call, data, space, steps, total, include_padding=True)
