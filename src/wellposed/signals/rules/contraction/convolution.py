"""Products with a weight over sliding windows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from wellposed.operators.product import Product, Window
from wellposed.signals.algebra.box_filters import box, filtered
from wellposed.signals.algebra.weighted import (
    FiniteWidth,
    Pairs,
    finite_width_of_sum,
    overlapping,
    scaled_weight,
    second_moments,
    with_drawn_weight,
)
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.expansion import UNEVEN, scales_of_squares, square_kernel
from wellposed.signals.distributions.spread import source
from wellposed.signals.distributions.state import Layout, Lazy, State, evaluated, weakest
from wellposed.signals.distributions.views import merge_atoms, pooled
from wellposed.signals.integration import kernels, windows
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.margins import margin
from wellposed.signals.integration.quadratic import Inverse, excess, inverse_variance, likeness_left
from wellposed.signals.integration.windows import Axis


class _Sliding(NamedTuple):
    """How windows slide over a tensor, which has one atom in each axis that they sum over."""

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


def _sliding(data: State, product: Product, window: Window, shape: tuple[int, ...]) -> _Sliding:
    """Return a window that slides over data (n, channels, *space) to outputs of this shape."""
    data = pooled(data)
    places = [f"s{i}" for i in range(len(window.kernel))]
    space, channel_axis = [product.left_axes.index(label) for label in places], product.left_axes.index("c")
    for axis in (*space, channel_axis):
        data = merge_atoms(data, axis)
    out_space = [shape[product.out_axes.index(label)] for label in places]
    steps = steps_of(data, space, out_space, window, product.transposed)
    return _Sliding(data, channel_axis, space, steps, data.shape[channel_axis] // product.groups)


def convolve(
    call: Call, data: State, weight: State, product: Product, window: Window, *, centred: bool, pairs: Pairs | None
) -> State:
    """Return the state after a convolution (or transposed convolution)."""
    sliding = _sliding(data, product, window, call.shape())
    data = sliding.data
    fixed = _is_known_filter(call, weight, product)
    if fixed and product.groups == data.shape[sliding.channel_axis]:
        result = _fixed_filter(call, sliding, weight, product, window)
        if result is not None:
            return result
    q, every = second_moments(data, centred)
    q, raw = kernels.mean_over(q, sliding.members), kernels.at_zero(every, sliding.members)
    before, common = kernels.average(q), None
    if call.independent:
        strides = math.prod(window.stride) if product.transposed else 1
        total = np.full((1,) * q.ndim, before * sliding.channels * window.taps / strides)
        corr = np.ones((1,) * q.ndim)
    else:
        total, corr = _meeting(sliding, q, raw)
        if pairs is not None:
            level, common = kernels.average(total), _mean_of_windows(sliding, every)
            inside = level / (pairs.terms * before) if before > 0.0 else 1.0  # the share of taps within the picture
            less, kernel = pairs.met(corr * (level / pairs.terms), common * inside**2)
            total, corr = total * less, kernel / max(float(kernel.ravel()[0]), 1e-300)
    weight = scaled_weight(call, weight, kernels.average(total), before)
    unit = weight.second_moment
    layout, order = _outputs(data, product, call.shape())
    var, corr = kernels.rearranged(total, order) * unit, kernels.rearranged(corr, order)
    alike = FiniteWidth() if call.independent else _likeness(call, sliding, product, window, pairs)
    outputs = call.shape()[product.out_axes.index("o")]
    result = with_drawn_weight(call, layout, var, corr, data, weight, outputs=outputs, likeness=alike)
    result = _with_norms_of_windows(result, product, window)
    if fixed and not weight.is_constant:  # taken for random numbers of the same moments
        result = result.amended(tag=weakest("approximate", result.tag))
    if call.independent or product.transposed:
        return result

    def centre(kernel: Array) -> Array:
        if pairs is None or common is None:
            return kernel
        return pairs.energies(kernel, common / before, 1.0 - kernels.average(data.var) / before)

    return _with_later_facts(result, sliding, product, total, unit, order, alike, centre)


def _with_norms_of_windows(result: State, product: Product, window: Window) -> State:
    """Return a convolution's result with what it knows of equal norms: a window of tokens of equal norm has one norm,
    but not each of its channels.
    """
    if not result.equal_norm_inverse_dim > 0.0 or window.taps == 1:
        return result
    left = result.equal_norm_inverse_dim / window.taps if product.groups == 1 else 0.0
    return result.amended(equal_norm_inverse_dim=left)


def _with_later_facts(
    result: State,
    sliding: _Sliding,
    product: Product,
    total: Array,
    unit: float,
    order: list[int | None],
    alike: FiniteWidth,
    centre: Callable[[Array], Array],
) -> State:
    """Return a convolution's result with what norms, pools and functions may ask of it, each worked out on demand.

    The sums ``total`` of second moments meet weights of second moment ``unit``; ``order`` gives the data's atoms in the
    order of the result's, and ``centre`` takes out of energies what centred filters do not see.
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
        return np.concatenate([single, between], axis=members[0]) if members and between.any() else single

    def edges() -> Array | None:
        moving = sliding.moving
        steps = [step for _, step in moving]
        edge = margin(sliding.data.mean, total, [i for i, _ in moving], steps, sliding.channels)
        return None if edge is None else kernels.rearranged(edge, order) * unit

    def left() -> Array | None:
        return np.array([alike.inherited.variance + alike.chance, likeness_left(*_filters(sliding.data, product))])

    pairs_of = [1 if i in members or size == 1 else 2 for i, size in enumerate(result.lengths)]
    return result.amended(
        channel_norm_correction=Lazy(filters),
        local_scales=Lazy(energies),
        margin=Lazy(edges),
        inverse_dims=Lazy.of(np.full(pairs_of, alike.of_filters)),
        residual_dims=Lazy(left),
    )


def _likeness(call: Call, sliding: _Sliding, product: Product, window: Window, pairs: Pairs | None) -> FiniteWidth:
    """Return the finite-width correlation of two positions after windows slid over the data."""
    data = sliding.data
    features = {i: data.lengths[i] // product.groups for i in sliding.members}
    taps = {
        i: min(size, data.lengths[i])
        for axis, size in zip(sliding.space, window.kernel, strict=True)
        for i in data.axes[axis]
    }
    likeness = finite_width_of_sum(data, features | taps, taps, overlapping(call), pairs)
    likeness = likeness._replace(
        groups=product.groups, window=any(step.kernel > step.stride for _, step in sliding.moving), value=product.left
    )
    if all(step.stride == 1 for _, step in sliding.moving):
        return likeness
    # positions that were not neighbours before share no windows
    key = ("apart", data.serial)
    if key not in call.run.memo:
        call.run.memo[key] = call.source()
    return likeness._replace(inherited=source(call.run.memo[key], likeness.inherited.variance))


def _is_known_filter(call: Call, weight: State, product: Product) -> bool:
    """Whether a weight is a constant, and no parameter in disguise."""
    assumed = weight.tag == "assumed" and weight.roots.bit_count() == 1
    known = assumed or not kernels.nonzero(weight.var)
    return known and not weight.scale_parameter and product.right not in call.run.weights.scale_parameters


def _meeting(sliding: _Sliding, q: Array, raw: Array) -> tuple[Array, Array]:
    """Return the sum of the second moments that meet in each output, and the correlation of two such sums of products.

    ``q`` and ``raw`` are the second moment by position and the raw kernel of one channel.
    """
    data = sliding.data
    total, corr = q * sliding.channels, kernels.quotient(raw, kernels.autocorrelation(np.sqrt(q), raw.shape))
    for axis, step in zip(sliding.space, sliding.steps, strict=True):
        if not data.axes[axis]:
            # one input position: only the taps that hit it count
            total = total * kernels.average(windows.reads(step))
            continue
        dim = data.axes[axis][0]
        marginal = np.sqrt(kernels.mean_over(q, [d for d in range(q.ndim) if d != dim])).ravel()
        total = windows.summed(total, dim, step)
        corr = _through_window(corr, dim, step, marginal, sliding.cap)
    return total, corr


def _mean_of_windows(sliding: _Sliding, raw: Array) -> Array:
    """Return the raw kernel of the mean over all that one window holds."""
    data, members = sliding.data, sliding.members
    sizes = [sliding.channels if i in members else size for i, size in enumerate(data.lengths)]
    mean = kernels.pair_mean(raw, sizes, members) if sliding.channels > 1 else kernels.at_zero(raw, members)
    moving = sliding.moving
    return box(mean, [i for i, _ in moving], [step for _, step in moving], sliding.cap)


def _outputs(data: State, product: Product, shape: tuple[int, ...]) -> tuple[Layout, list[int | None]]:
    """Return the layout of the outputs, and which of the data's atoms each of theirs is (None: a new one)."""
    sizes: list[int] = []
    axes: list[tuple[int, ...]] = []
    order: list[int | None] = []
    for label, size in zip(product.out_axes, shape, strict=True):
        own = () if label == "o" else data.axes[product.left_axes.index(label)]
        atoms: list[tuple[int, int | None]] = []
        if label == "n":
            atoms = [(data.lengths[i], i) for i in own]
        elif size > 1:  # a single position may be spread over several outputs
            atoms = [(size, own[0] if own else None)]
        axes.append(tuple(range(len(sizes), len(sizes) + len(atoms))))
        sizes.extend(extent for extent, _ in atoms)
        order.extend(i for _, i in atoms)
    return Layout(tuple(sizes), tuple(axes)), order


WIDE = 64
"""Elements that one filter sums above which the sum counts as Gaussian. Chosen: the energy of
64 independent channels after a ReLU varies by 5 / 64 of its mean's square."""


def _local_scales(sliding: _Sliding, outputs: int, centre: Callable[[Array], Array]) -> tuple[Array, Array] | None:
    """Return how the energy that meets in one output varies: its kernel, relative to its mean, and that of two outputs.

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


def energy_kernel(data: State) -> Array | None:
    """Return Cov(x_p², x_{p+d}²) / (E x²)² of a function of a Gaussian whose local scale may vary; None of others.

    It tells no pairs of positions apart.
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
    """Return the kernel of the local scale of a function of a Gaussian, that of the Gaussian where one element knows
    nothing of it but channels share it.
    """
    base, _ = data.gaussian_source()
    own = scales_of_squares(data, data.local_scales)
    return scales_of_squares(base, base.local_scales) if own is None and base.lengths == data.lengths else own


def _uneven_filters(sliding: _Sliding) -> Array | None:
    """Return what a norm per channel will add to the correlation: filters differ in how smooth they are."""
    moving = [(i, step) for i, step in sliding.moving if step.out > 1]
    if math.prod(step.kernel for _, step in moving) == 1:
        return None
    dims = [i for i, _ in moving]
    kernel, rho = _patch(sliding.data, sliding.channel_axis, dims)
    return excess(
        kernel,
        dims,
        [step.kernel for _, step in moving],
        [step.stride for _, step in moving],
        [step.dilation for _, step in moving],
        [min(step.out, sliding.cap) for _, step in moving],
        sliding.channels,
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
    kernel = covariance - kernels.pair_mean(covariance, data.lengths, others)
    return kernels.at_zero(kernel, [i for i in range(kernel.ndim) if i not in dims]), rho


def inverse_of_filters(data: State, product: Product) -> Inverse:
    """Return what it does to gradients to divide each output channel by its own variance: filters differ in theirs."""
    data, window = pooled(data), product.window
    if window is None:
        summed = [i for i, label in enumerate(product.left_axes) if label not in product.out_axes]
        return inverse_variance(np.ones(()), [], [1], [1], math.prod(data.shape[i] for i in summed), 0.0)
    return inverse_variance(*_filters(data, product))


def _filters(data: State, product: Product) -> tuple[Array, list[int], list[int], list[int], int, float]:
    """Return what one filter of a convolution sees: the first arguments of `quadratic.excess`, but for steps."""
    window = product.window
    assert window is not None
    places = [product.left_axes.index(f"s{i}") for i in range(len(window.kernel))]
    channel_axis = product.left_axes.index("c")
    for axis in (*places, channel_axis):
        data = merge_atoms(data, axis)
    moving = [(data.axes[axis][0], i) for i, axis in enumerate(places) if data.axes[axis]]
    dims = [dim for dim, _ in moving]
    kernel, rho = _patch(data, channel_axis, dims)
    taps, dilation = [window.kernel[i] for _, i in moving], [window.dilation[i] for _, i in moving]
    return kernel, dims, taps, dilation, data.shape[channel_axis] // product.groups, rho


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


def _fixed_filter(call: Call, sliding: _Sliding, weight: State, product: Product, window: Window) -> State | None:
    """A depthwise convolution with known numbers (a blur): taken as a box with the same sum, which it may not be."""
    if product.transposed:
        return None
    total = kernels.average(weight.mean) * window.taps
    if weight.tag == "assumed":  # a buffer on meta: filters that are not trained mostly sum to 1
        total = 1.0
    if abs(total) < 1e-3:
        return None
    result = filtered(call, sliding.data, sliding.space, sliding.steps, total, include_padding=True)
    return result if weight.is_constant else result.amended(tag=weakest("approximate", result.tag))
