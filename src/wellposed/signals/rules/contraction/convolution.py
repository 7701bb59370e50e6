"""Convolutions and transposed convolutions with a weight."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from wellposed.arrays import array_of
from wellposed.graphs.run import dense
from wellposed.operators.product import Product, Window
from wellposed.signals.algebra.box_filters import box, filtered
from wellposed.signals.algebra.linear_maps import MOST_PAIRS, mapped
from wellposed.signals.algebra.weighted import (
    FiniteWidth,
    Pairs,
    finite_width_of_sum,
    scaled_weight,
    second_moments,
    with_drawn_weight,
)
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.layout import Layout
from wellposed.signals.distributions.spread import source
from wellposed.signals.distributions.state import State, weakest
from wellposed.signals.distributions.views import unpaired
from wellposed.signals.integration import kernels, windows
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.windows import Axis, Indices
from wellposed.signals.rules.contraction.filters import Sliding, sliding_window, with_later_facts
from wellposed.signals.sampling.constant_folding import numbers


def convolve(
    call: Call, data: State, weight: State, product: Product, window: Window, *, centred: bool, pairs: Pairs | None
) -> State:
    """Return the state after a convolution (or transposed convolution)."""
    sliding = sliding_window(call, data, product, window)
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
        energy = _energy_of_known_filters(call, sliding, weight, product, every)
        less = 1.0
        if pairs is not None:
            level, common = kernels.average(total), _mean_of_windows(sliding, every)
            inside = level / (pairs.terms * before) if before > 0.0 else 1.0  # the share of taps within the picture
            less, kernel = pairs.met(corr * (level / pairs.terms), common * inside**2)
            corr = kernel / max(float(kernel.ravel()[0]), 1e-300)
        total = total * (less if energy is None else energy)
    weight = scaled_weight(call, weight, kernels.average(total), before)
    unit = weight.second_moment
    layout, order = _outputs(data, product, call.shape())
    var, corr = kernels.rearranged(total, order) * unit, kernels.rearranged(corr, order)
    finite_width = FiniteWidth() if call.independent else _finite_width(call, sliding, product, window, pairs)
    outputs = call.shape()[product.out_axes.index("o")]
    result = with_drawn_weight(call, layout, var, corr, data, weight, outputs=outputs, finite_width=finite_width)
    result = _with_norms_of_windows(result, product, window)
    if fixed and not weight.is_constant:  # taken for random numbers of the same moments
        result = result.amended(tag=weakest("approximate", result.tag))
    if call.independent or product.transposed:
        return result

    def centre(kernel: Array) -> Array:
        if pairs is None or common is None:
            return kernel
        return pairs.energies(kernel, common / before, 1.0 - kernels.average(data.var) / before)

    return with_later_facts(result, sliding, product, total, unit, order, finite_width, centre)


MOST_KNOWN = 1 << 14
"""Most numbers of known filters whose products by displacement are worked out. Chosen for cost: more of them are like
independent numbers."""


def _energy_of_known_filters(call: Call, sliding: Sliding, weight: State, product: Product, raw: Array) -> float | None:
    """Return sum over pairs of taps of w w' E[x x'] for filters of known numbers, relative to independent weights of
    their size; ``raw`` is the data's raw kernel. None for filters that are drawn or trained, transposed, or too many.
    """
    trained = weight.scale_parameter is not None or call.graph.values[product.right].kind == "parameter"
    uneven = product.transposed or len(sliding.moving) != len(sliding.steps)
    if trained or uneven or math.prod(weight.shape) > MOST_KNOWN:
        return None
    known = numbers(call.run, product.right)
    if known is None or known.is_complex():
        return None
    return _energy_of_taps(array_of(dense(known)), sliding, raw)


def _energy_of_taps(taps: Array, sliding: Sliding, raw: Array) -> float | None:
    """Return `_energy_of_known_filters` for numbers ``taps`` (out, in, *window)."""
    moving, members = sliding.moving, sliding.members
    rest = [dim for dim in range(raw.ndim) if dim not in (*members, *(dim for dim, _ in moving))]
    near, other = kernels.at_zero(raw, (*rest, *members)), np.zeros((1,) * raw.ndim)
    for dim in members:
        other = kernels.at_zero(np.take(raw, [1], axis=dim), rest) if raw.shape[dim] > 1 else other
    found = 0.0
    for lag in itertools.product(*(range(1 - n, n) for n in taps.shape[2:])):
        here = tuple(slice(max(-d, 0), n - max(d, 0)) for d, n in zip(lag, taps.shape[2:], strict=True))
        there = tuple(slice(max(d, 0), n - max(-d, 0)) for d, n in zip(lag, taps.shape[2:], strict=True))
        a, b = taps[(slice(None), slice(None), *here)], taps[(slice(None), slice(None), *there)]
        own, whole = float((a * b).sum()), float((a.sum(axis=1) * b.sum(axis=1)).sum())
        far = {dim: abs(d) * step.dilation for d, (dim, step) in zip(lag, moving, strict=True)}
        found += own * _at_displacement(near, far) + (whole - own) * _at_displacement(other, far)
    power = float((taps * taps).sum()) * _at_displacement(near, {})
    return max(found / power, 0.0) if power > 0.0 else None


def _at_displacement(kernel: Array, far: Mapping[int, int]) -> float:
    """Return the entry of a kernel for two positions at displacement ``far``, given by atom."""
    if any(d > 0 and kernel.shape[dim] == 1 for dim, d in far.items()):
        return 0.0
    return float(kernel[tuple(min(far.get(dim, 0), n - 1) for dim, n in enumerate(kernel.shape))])


def _with_norms_of_windows(result: State, product: Product, window: Window) -> State:
    """Return a convolution's result with `equal_norm_inverse_dim` divided by the taps: windows of tokens of equal norm
    have one norm. It is 0 for grouped channels, which do not.
    """
    if not result.equal_norm_inverse_dim > 0.0 or window.taps == 1:
        return result
    left = result.equal_norm_inverse_dim / window.taps if product.groups == 1 else 0.0
    return result.amended(equal_norm_inverse_dim=left)


def _finite_width(call: Call, sliding: Sliding, product: Product, window: Window, pairs: Pairs | None) -> FiniteWidth:
    """Return the finite-width correlation of two positions after windows slid over the data."""
    data = sliding.data
    features = {i: data.lengths[i] // product.groups for i in sliding.members}
    taps = {
        i: min(size, data.lengths[i])
        for axis, size in zip(sliding.space, window.kernel, strict=True)
        for i in data.axes[axis]
    }
    finite_width = finite_width_of_sum(data, features | taps, taps, pairs)
    finite_width = finite_width._replace(groups=product.groups, value=product.left)
    if all(step.stride == 1 for _, step in sliding.moving):
        return finite_width
    # positions that were not neighbours before share no windows
    key = ("apart", data.serial)
    if key not in call.run.memo:
        call.run.memo[key] = call.source()
    return finite_width._replace(inherited=source(call.run.memo[key], finite_width.inherited.variance))


def _is_known_filter(call: Call, weight: State, product: Product) -> bool:
    """Whether a weight is a constant, and no parameter in disguise."""
    assumed = weight.tag == "assumed" and weight.roots.bit_count() == 1
    known = assumed or not kernels.nonzero(weight.var)
    return known and not weight.scale_parameter and product.right not in call.run.weights.scale_parameters


def _meeting(sliding: Sliding, q: Array, raw: Array) -> tuple[Array, Array]:
    """Return the sum of second moments that meet in each output, by position, and the correlation kernel of outputs.

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


def _mean_of_windows(sliding: Sliding, raw: Array) -> Array:
    """Return the raw kernel of the mean over the channels and taps of one window."""
    data, members = sliding.data, sliding.members
    sizes = [sliding.channels if i in members else size for i, size in enumerate(data.lengths)]
    mean = kernels.pair_mean(raw, sizes, members) if sliding.channels > 1 else kernels.at_zero(raw, members)
    moving = sliding.moving
    return box(mean, [i for i, _ in moving], [step for _, step in moving], sliding.cap)


def _outputs(data: State, product: Product, shape: tuple[int, ...]) -> tuple[Layout, list[int | None]]:
    """Return the layout of the outputs, and for each of its atoms the data's (None: a new one)."""
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


def _through_window(corr: Array, dim: int, axis: Axis, marginal: Array, cap: int) -> Array:
    """Return a raw correlation profile by output displacement, for a window whose taps have independent weights."""
    length = corr.shape[dim]
    if axis.out == 1:
        return kernels.at_zero(corr, (dim,))
    if length == 1:
        return corr
    if length == 2 and not axis.padded and (marginal.size == 1 or not np.ptp(marginal)):
        return corr
    lags = min(axis.out, cap)
    if marginal.size == 1:
        marginal = np.ones(1)
    shape = [1] * corr.ndim
    shape[dim] = lags
    factor = windows.shared_taps(axis, marginal, lags)
    return windows.strided(corr, dim, axis, lags) * factor.reshape(shape)


def _fixed_filter(call: Call, sliding: Sliding, weight: State, product: Product, window: Window) -> State | None:
    """Return a depthwise convolution with known numbers, approximated by a box filter of the same sum (1 for numbers on
    meta). None for transposed convolutions, and for sums near 0.
    """
    if product.transposed:
        return None
    total = kernels.average(weight.mean) * window.taps
    if weight.tag == "assumed":  # a buffer on meta: filters that are not trained mostly sum to 1
        total = 1.0
    if abs(total) < 1e-3:
        return None
    result = filtered(call, sliding.data, sliding.space, sliding.steps, total, include_padding=True)
    return result if weight.is_constant else result.amended(tag=weakest("approximate", result.tag))


def through_known_filter(call: Call, data: State, weight: State, product: Product) -> State | None:
    """Return a convolution of each channel with one known filter, the same for all, that is a product of one factor for
    each axis (a blur, an upsampling, a slope), as the map along each axis that it is; None of others.
    """
    window = product.window
    channels = data.shape[product.left_axes.index("c")] if window is not None else 0
    if call.independent or window is None or weight.scale_parameter is not None or product.groups != channels:
        return None
    known = numbers(call.run, product.right)
    if known is None or known.is_complex():
        return None
    factors = _factors(array_of(dense(known)), channels, len(window.kernel))
    if factors is None:
        return None
    sliding = sliding_window(call, unpaired(data, kernels.lag_cap(len(window.kernel))), product, window)
    return _through_factors(sliding, factors)


MOST_POSITIONS = 512
"""Positions of an axis, before or after, up to which a filter is written out as a matrix. Chosen for cost."""
BORDER = 128
"""Positions at either end of a long axis that may have moments of their own. Chosen."""
LONGEST_PERIOD = 64
"""Positions after which moments along a long axis repeat themselves, at most. Chosen: strides are no longer."""
LEAST_LEFT = 2
"""Lengths of a window, and of a border, of which what is left of a long axis has as many. Chosen."""
EVEN = 1e-6
"""Difference of moments, relative to the largest, up to which they are the same. Chosen, above rounding."""
NOT_SEPARABLE = 1e-5
"""Second singular value of a filter, relative to the first, above which it is no product of factors. Chosen."""


def _factors(filters: Array, channels: int, rank: int) -> list[Array] | None:
    """Return the taps along each axis of separable filters that all channels share; None of others."""
    values = filters.reshape(-1, *filters.shape[-rank:])
    if rank > 2 or len(values) != channels or (values != values[0]).any():
        return None
    if rank == 1:
        return [values[0]]
    left, sizes, right = np.linalg.svd(values[0])
    return [left[:, 0] * sizes[0], right[0]] if sizes[1:].sum() <= NOT_SEPARABLE * sizes[0] else None


def _through_factors(sliding: Sliding, factors: list[Array]) -> State | None:
    """Return data convolved along each axis with a known factor of the filter; None where an axis is too long, or of
    length 1. Of a long axis with periodic moments the middle is left out, and filled in periodically.
    """
    data = sliding.data
    for axis, step, taps in zip(sliding.space, sliding.steps, factors, strict=True):
        if step.size == 1 or not data.axes[axis]:  # an axis of one position has no atom to map along
            return None
        at = data.axes[axis][0]
        short, period = _shortened(step, data, at)
        others = data.corr.size // data.corr.shape[at]
        if short is None or others * max(short.size, short.out) ** 2 > MOST_PAIRS:
            return None
        index = windows.table(short)
        matrix = np.zeros((short.out, short.size))
        out, tap = np.nonzero(index >= 0)
        np.add.at(matrix, (out, index[out, tap]), taps[tap])
        whole = short is step
        data = data if whole else _at_positions(data, axis, _without_middle(step.size, short.size))
        data = mapped(data, axis, matrix)
        if not whole:
            data = _at_positions(data, axis, _with_middle(short.out, step.out, period)).amended(links=())
    return data


def _shortened(step: Axis, data: State, at: int) -> tuple[Axis | None, int]:
    """Return the window along an axis without the middle positions of a long axis, and the period of its output; None
    where moments are not periodic, or too few positions are left for the window.
    """
    each = (1, step.stride) if step.transposed else (step.stride, 1)  # positions of either side that go together
    less = max(*(-(-(n - MOST_POSITIONS) // k) for n, k in zip((step.size, step.out), each, strict=True)), 0)
    if not less:
        return step, 1
    before = next((n for n in range(1, LONGEST_PERIOD + 1) if _is_periodic(data, at, n)), None)
    if before is None:
        return None, 1
    unit = math.lcm(before, each[0]) // each[0]
    less = -(-less // unit) * unit
    short = replace(step, size=step.size - less * each[0], out=step.out - less * each[1])
    reach = (step.kernel - 1) * step.dilation + 1
    fits = min(short.size * each[1], short.out * each[0]) >= LEAST_LEFT * (reach + BORDER)
    return short if fits else None, unit * each[1]


def _is_periodic(x: State, at: int, period: int) -> bool:
    """Whether mean and variance along an atom repeat themselves from each ``period`` to the next, borders aside."""
    for array in (x.mean, x.var):
        if array.shape[at] > 1:
            inner = np.moveaxis(array, at, 0)[BORDER:-BORDER]
            if np.abs(inner[period:] - inner[:-period]).max(initial=0.0) > EVEN * np.abs(inner).max():
                return False
    return True


def _without_middle(size: int, left: int) -> Indices:
    """Return the indices of ``left`` of ``size`` positions: the first and the last ones."""
    return np.concatenate([np.arange(left // 2), np.arange(size - (left - left // 2), size)])


def _with_middle(size: int, whole: int, period: int) -> Indices:
    """Return for each of ``whole`` positions an index below ``size``, the middle ones being periodic."""
    before = size // 2 // period * period
    middle = before - period + np.arange(whole - size) % period
    return np.concatenate([np.arange(before), middle, np.arange(before, size)])


def _at_positions(x: State, axis: int, source: Indices) -> State:
    """Return x at the positions ``source`` along an axis, with its kernel by displacement unchanged."""
    at = x.axes[axis][0]
    mean, var = (np.take(array, source, axis=at) if array.shape[at] > 1 else array for array in (x.mean, x.var))
    corr = kernels.by_lag(x.corr, at, kernels.lag_cap(1))
    return x.with_moments(layout=x.layout.resized(at, len(source)), mean=mean, var=var, corr=corr)
