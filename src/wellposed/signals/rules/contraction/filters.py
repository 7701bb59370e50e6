"""What norms, maxima and functions ask of a convolution's result: how filters and the energy that they see vary."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from wellposed.operators.product import Product, Window
from wellposed.signals.algebra.box_filters import box
from wellposed.signals.algebra.weighted import FiniteWidth
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.blocks import laid_out
from wellposed.signals.distributions.fluctuations import square_kernel
from wellposed.signals.distributions.lazy import Lazy, LocalScales, evaluated
from wellposed.signals.distributions.mixtures import UNEVEN, scales_of_squares
from wellposed.signals.distributions.state import Filters, State
from wellposed.signals.distributions.views import merge_atoms, pooled
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.margins import margin
from wellposed.signals.integration.quadratic import Inverse, channel_norm_correction, inverse_variance, residual_share
from wellposed.signals.integration.windows import Axis


class Sliding(NamedTuple):
    """Windows that slide over a tensor with one atom in each axis that they sum over."""

    data: State
    channel_axis: int
    space: list[int]
    steps: list[Axis]
    channels: int  # that one filter sees

    @property
    def members(self) -> tuple[int, ...]:
        """The atom of the channels, if there is more than one."""
        return self.data.axes[self.channel_axis]

    @property
    def moving(self) -> list[tuple[int, Axis]]:
        """The atoms that the window moves along, with its steps."""
        axes = self.data.axes
        return [(axes[axis][0], step) for axis, step in zip(self.space, self.steps, strict=True) if axes[axis]]

    @property
    def cap(self) -> int:
        """The longest profile that is kept."""
        return kernels.lag_cap(len(self.space))


def sliding_window(call: Call, data: State, product: Product, window: Window) -> Sliding:
    """Return the window of a convolution, which slides over data (n, channels, *space)."""
    shape = call.shape()
    # samples that lie one after the other are told apart
    places = [f"s{i}" for i in range(len(window.kernel))]
    by_part = data.blocks and product.left_axes[data.blocks.axis] in (*product.out_axes, *places)
    data = laid_out(data) if by_part else pooled(data)
    space, channel_axis = [product.left_axes.index(label) for label in places], product.left_axes.index("c")
    for axis in (*space, channel_axis):
        data = merge_atoms(data, axis)
    out_space = [shape[product.out_axes.index(label)] for label in places]
    steps = steps_of(data, space, out_space, window, product.transposed)
    return Sliding(data, channel_axis, space, steps, data.shape[channel_axis] // product.groups)


def steps_of(
    data: State, space: list[int], out_space: list[int], window: Window, transposed: bool = False
) -> list[Axis]:
    """Return the window along each spatial axis."""
    return [
        Axis(data.shape[axis], out, k, s, p[0], d, transposed)
        for axis, out, k, s, p, d in zip(
            space, out_space, window.kernel, window.stride, window.padding, window.dilation, strict=True
        )
    ]


def with_later_facts(
    result: State,
    sliding: Sliding,
    product: Product,
    total: Array,
    unit: float,
    order: list[int | None],
    finite_width: FiniteWidth,
    centre: Callable[[Array], Array],
) -> State:
    """Return a convolution's result with local scales and `Filters`, which norms, pools and functions read; lazily.

    ``total`` are the sums of second moments by position, ``unit`` is the second moment of a weight, ``order`` gives the
    data's atoms in the order of the result's, and ``centre`` removes from a variance kernel what centred filters do not
    see.
    """
    # convolutions in a row: each scale is worked out from the one before, not all from the last
    evaluated(sliding.data.local_scales)
    channel = product.out_axes.index("o")
    outputs, members = result.shape[channel], result.axes[channel]

    def filters() -> Array | None:
        made = _uneven_filters(sliding)
        return None if made is None else kernels.rearranged(made, order)

    def energies() -> Array | None:
        pair = _local_scales(sliding, outputs, centre)
        if pair is None:
            return None
        single, between = (kernels.rearranged(kernel, order) for kernel in pair)
        return np.concatenate([single, between], axis=members[0]) if members and kernels.nonzero(between) else single

    def edges() -> Array | None:
        moving = sliding.moving
        steps = [step for _, step in moving]
        edge = margin(sliding.data.mean, total, [i for i, _ in moving], steps, sliding.channels)
        return None if edge is None else kernels.rearranged(edge, order) * unit

    def left() -> Array | None:
        return np.array(
            [finite_width.inherited.variance + finite_width.own, residual_share(*_filters(sliding.data, product))]
        )

    pairs_of = [1 if i in members or size == 1 else 2 for i, size in enumerate(result.lengths)]
    inverse_dims = Lazy.of(np.full(pairs_of, finite_width.of_filters))
    facts = Filters(Lazy(filters), Lazy(edges), inverse_dims, Lazy(left))
    return result.amended(local_scales=LocalScales(energies), filters=facts)


def _local_scales(sliding: Sliding, outputs: int, centre: Callable[[Array], Array]) -> tuple[Array, Array] | None:
    """Return the relative variance kernel of sum x² over one window, and that for two outputs; None where it hardly
    varies, and for more than `WIDE` unrelated channels.

    kappa = mean over pairs of taps of Cov(x², x²) / (E x²)², over the channels that a filter spans (signals.md 5.7),
    less what filters that are centred do not see (``centre``). Outputs that see the same channels see the same energy.
    """
    data, members, channels = sliding.data, sliding.members, sliding.channels
    before = _scales(data)
    related = members and max(a.shape[members[0]] for a in (data.corr, before) if a is not None) > 1
    kernel = energy_kernel(data) if channels <= WIDE or related else None
    if kernel is None:
        return None
    other = np.zeros_like(kernel)
    for i in members:
        other = np.take(kernel, [1], axis=i) if kernel.shape[i] > 1 else np.zeros_like(kernel)
        kernel = np.take(kernel, [0], axis=i) / channels + (1 - 1 / channels) * other
    dims, steps = [i for i, _ in sliding.moving], [step for _, step in sliding.moving]
    whole = box(kernel, dims, steps, sliding.cap)
    kernel = centre(whole)
    if float(kernel.ravel()[0]) <= UNEVEN:
        return None
    groups = data.shape[sliding.channel_axis] // channels
    if groups == 1:
        return kernel, kernel
    # two outputs of one group see the same channels, two of different groups see others
    together = (outputs / groups - 1.0) / max(outputs - 1, 1)
    kernel, whole, other = kernels.common(kernel, whole, box(other, dims, steps, sliding.cap))
    other = other * kernels.quotient(kernel, whole)
    return kernel, together * kernel + (1.0 - together) * other


WIDE = 64
"""Elements that one filter sums above which the sum counts as Gaussian. Chosen: the energy of
64 independent channels after a ReLU varies by 5 / 64 of its mean's square."""


def energy_kernel(data: State) -> Array | None:
    """Return Cov(x_p², x_{p+d}²) / (E x²)² by displacement, for a function of a Gaussian with or without local scales;
    None of others.
    """
    base, fn = data.gaussian_source()
    if base.lengths != data.lengths or not kernels.nonzero(base.var):
        return None
    kernel = kernels.by_displacement(
        square_kernel(fn, kernels.average(base.mean), math.sqrt(kernels.average(base.var)), base.corr, base.transport)
    )
    before = _scales(data)
    if before is None:
        return kernel
    kernel, before = kernels.common(kernel, before)
    return np.asarray(kernel + before * (1.0 + kernel))


def _scales(data: State) -> Array | None:
    """Return the kernel of the local scale of ``data``, or else of the Gaussian that it is a function of: channels may
    share a scale that one element does not show.
    """
    base, _ = data.gaussian_source()
    own = scales_of_squares(data, data.local_scales)
    return scales_of_squares(base, base.local_scales) if own is None and base.lengths == data.lengths else own


def _uneven_filters(sliding: Sliding) -> Array | None:
    """Return `quadratic.channel_norm_correction` of a convolution's output; None for windows of one tap, and where it
    is negligible.
    """
    moving = [(i, step) for i, step in sliding.moving if step.out > 1]
    if math.prod(step.kernel for _, step in moving) == 1:
        return None
    dims = [i for i, _ in moving]
    kernel, rho = _patch(sliding.data, sliding.channel_axis, tuple(dims))
    return channel_norm_correction(
        kernel,
        dims,
        [step.kernel for _, step in moving],
        [step.stride for _, step in moving],
        [step.dilation for _, step in moving],
        [min(step.out, sliding.cap) for _, step in moving],
        sliding.channels,
        rho,
    )


@lru_cache(maxsize=16)
def _patch(data: State, channel_axis: int, dims: tuple[int, ...]) -> tuple[Array, float]:
    """Return the covariance kernel of a filter's input, less its mean over positions, along ``dims``, and the
    correlation of two channels; cached.
    """
    covariance = data.covariance()
    members = data.axes[channel_axis]
    rho = 0.0
    if members and covariance.shape[members[0]] > 1 and covariance.ravel()[0] > 0:
        index = tuple(1 if i == members[0] else 0 for i in range(covariance.ndim))
        rho = min(max(float(covariance[index] / covariance.ravel()[0]), 0.0), 1.0)
    for i in members:
        covariance = kernels.at_zero(covariance, (i,))
    others = [i for i in range(covariance.ndim) if i not in members]
    kernel = covariance - kernels.pair_mean(covariance, data.lengths, others)
    return kernels.at_zero(kernel, [i for i in range(kernel.ndim) if i not in dims]), rho


def inverse_of_filters(data: State, product: Product) -> Inverse:
    """Return `quadratic.inverse_variance` of the filters of a product, whose variances norms per channel divide by."""
    data, window = pooled(data), product.window
    if window is None:
        summed = [i for i, label in enumerate(product.left_axes) if label not in product.out_axes]
        return inverse_variance(np.ones(()), [], [1], [1], math.prod(data.shape[i] for i in summed), 0.0)
    return inverse_variance(*_filters(data, product))


def _filters(data: State, product: Product) -> tuple[Array, list[int], list[int], list[int], int, float]:
    """Return the arguments of `quadratic.residual_share` and `inverse_variance` for the filters of a convolution."""
    window = product.window
    assert window is not None
    places = [product.left_axes.index(f"s{i}") for i in range(len(window.kernel))]
    channel_axis = product.left_axes.index("c")
    for axis in (*places, channel_axis):
        data = merge_atoms(data, axis)
    moving = [(data.axes[axis][0], i) for i, axis in enumerate(places) if data.axes[axis]]
    dims = [dim for dim, _ in moving]
    kernel, rho = _patch(data, channel_axis, tuple(dims))
    taps, dilation = [window.kernel[i] for _, i in moving], [window.dilation[i] for _, i in moving]
    return kernel, dims, taps, dilation, data.shape[channel_axis] // product.groups, rho
