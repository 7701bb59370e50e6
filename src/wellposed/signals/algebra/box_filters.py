"""Box filters: averages over the windows that poolings, blurs and the sums of taps share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from wellposed.operators.product import pair_of
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.blocks import laid_out
from wellposed.signals.distributions.layout import Layout
from wellposed.signals.distributions.means import to_mean_of
from wellposed.signals.distributions.state import NO_FILTERS, Filters, Link, Scaled, State
from wellposed.signals.distributions.views import merge_atoms, pooled
from wellposed.signals.integration import kernels, windows
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.taps import of_windows
from wellposed.signals.integration.windows import Axis, Indices


def prepared(x: State, space: list[int]) -> State:
    """Return the state with one atom in each axis of the window."""
    x = laid_out(x) if x.blocks and x.blocks.axis in space else pooled(x)
    for axis in space:
        x = merge_atoms(x, axis)
    return x


def shrunk(x: State, space: list[int], steps: list[Axis]) -> tuple[Layout, list[int]]:
    """Return the layout of a sliding window's outputs, and the atoms that it loses: those left with one position."""
    layout, gone = x.layout, []
    for axis, step in zip(space, steps, strict=True):
        for i in x.axes[axis]:
            layout = layout.resized(i, step.out)
            if step.out == 1:
                gone.append(i)
    return layout.without(gone), gone


def _lags_needed(kernel: Array, dim: int, step: Axis, cap: int) -> Array:
    """Return a kernel that is long enough along ``dim`` for the displacements between two taps of one window."""
    if kernel.shape[dim] == 2 or (step.kernel == 1 and kernel.shape[dim] == 1):
        return kernel if step.kernel == 1 else _promoted(kernel, dim, min(step.size, cap))
    return _promoted(kernel, dim, min(step.size, max((step.kernel - 1) * step.dilation + 2, kernel.shape[dim])))


def _promoted(kernel: Array, dim: int, length: int) -> Array:
    lengths = list(kernel.shape)
    lengths[dim] = max(length + bool(kernels.positions(length)), lengths[dim])  # a square is the length of one by pair
    return kernels.promote(kernel, lengths)


def box(kernel: Array, dims: list[int], steps: list[Axis], cap: int) -> Array:
    """Average a covariance kernel over the pairs of taps of two full windows, by output displacement."""
    for dim, step in zip(dims, steps, strict=True):
        kernel = _lags_needed(kernel, dim, step, cap)
        length = kernel.shape[dim]
        if length == 1:
            continue
        lags = min(step.out, max(cap, 2)) if step.out > 1 else 1
        taps = (1.0 / step.kernel,) * step.kernel
        kernel = windows.along(windows.pair_table(taps, step.stride, step.dilation, length, lags), kernel, dim)
    return kernel


def _cut_box(kernel: Array, dims: list[int], steps: list[Axis], cap: int, include_padding: bool) -> Array:
    """Return `box` for windows that the border may cut, which then average fewer taps; averaged over positions."""
    for dim, step in zip(dims, steps, strict=True):
        if not step.padded:
            kernel = box(kernel, [dim], [step], cap)
            continue
        kernel = _lags_needed(kernel, dim, step, cap)
        if kernel.shape[dim] > 1:
            lags = min(step.out, max(cap, 2)) if step.out > 1 else 1
            kernel = windows.along(_cut_pair_table(step, include_padding, kernel.shape[dim], lags), kernel, dim)
    return kernel


@lru_cache(maxsize=256)
def _cut_pair_table(step: Axis, include_padding: bool, lags_in: int, lags_out: int) -> Array:
    """Return M[d, l] = average over p of the sum over taps a of p and b of p + d, at distance l, of w_a w_b."""
    index, weights = windows.table(step), windows.averaging(step, include_padding)
    matrix, pairs = np.zeros((lags_out, lags_in)), np.zeros(lags_out)
    for d in range(step.out):
        near, far = slice(0, step.out - d), slice(d, step.out)
        distance = np.minimum(np.abs(index[near, :, None] - index[far, None, :]), lags_in - 1)
        products = weights[near, :, None] * weights[far, None, :]
        np.add.at(matrix[min(d, lags_out - 1)], distance.ravel(), products.ravel())
        pairs[min(d, lags_out - 1)] += step.out - d
    return np.asarray(matrix / pairs[:, None])


@lru_cache(maxsize=1024)
def tap_classes(step: Axis, include_padding: bool) -> tuple[Indices, Array, npt.NDArray[np.bool_]]:
    """Return the class of equal tap weights of each output position (out,), the weights (class, tap), and which taps
    are valid.
    """
    weights, index = np.unique(windows.averaging(step, include_padding), axis=0, return_inverse=True)
    return index.ravel(), weights, weights > 0.0


def filtered(
    call: Call, x: State, space: list[int], steps: list[Axis], total: float, *, include_padding: bool
) -> State:
    """Return ``total`` times the average of x over each window; padding counts as zeros or is left out.

    v' = sum over pairs of taps of w w s s R; R' by the same sums at a displacement (signals.md 5.5).
    """
    x = prepared(x, space)
    layout, gone = shrunk(x, space, steps)
    pairs = [(x.axes[a][0], step) for a, step in zip(space, steps, strict=True) if x.axes[a]]
    dims, used = [i for i, _ in pairs], [step for _, step in pairs]
    # an axis of one position: the window's other taps are padding
    for axis, step in zip(space, steps, strict=True):
        if not x.axes[axis] and include_padding:
            total *= float(windows.averaging(step, True).sum(axis=1).mean())
    taps = math.prod(step.kernel for step in used)
    if call.independent:
        one = (1,) * len(layout.lengths)
        mean, var = np.full(one, x.pooled_mean * total), np.full(one, float(np.mean(x.var)) / taps * total * total)
        return x.with_moments(layout=layout, mean=mean, var=var, corr=np.ones(one), roots=call.root(), gauss=True)
    mean, var, corr = _window_moments(x, dims, used, kernels.lag_cap(len(space)), include_padding)

    links = window_links(x, pairs, gone, total, include_padding=include_padding)
    if gone == dims and all(step.kernel == step.size and not step.padded for step in used):
        links = to_mean_of(x, dims, total)
    result = x.with_moments(
        layout=layout,
        mean=kernels.without(mean * total, gone),
        var=kernels.without(var * total * total, gone),
        corr=kernels.without(corr, gone),
        links=links,
        scale_parameter=None,
        gauss=x.gauss or taps >= 16,
    )
    return result.amended(filters=_margin_of(x, dims, used, gone, total))


def _margin_of(x: State, dims: list[int], steps: list[Axis], gone: list[int], total: float) -> Filters:
    """Return the `Filters` whose margin is that of ``total`` times averages over windows; without a margin where a
    window is cut by padding or atoms are ``gone``.
    """
    if x.filters.margin is None or gone or any(step.padded for step in steps):
        return NO_FILTERS

    def averaged(margin: Array) -> Array:
        for dim, step in zip(dims, steps, strict=True):
            margin = window_mean(margin, dim, step, np.ones(step.out))
        return total * total * margin

    return Filters(margin=x.filters.margin.then(averaged))


def window_links(
    x: State, pairs: Sequence[tuple[int, Axis]], gone: Sequence[int], factor: float, *, include_padding: bool
) -> tuple[Link, ...]:
    """Return the links of ``factor`` times averages of x over windows along some atoms, of which those ``gone`` go."""
    kept = tuple([i for i in range(len(x.lengths)) if i not in gone])
    combined = tuple([(i, of_windows(step, include_padding)) for i, step in pairs])
    return (Link(x, Scaled(factor), kept, taps=combined),) if x.roots else ()


def _window_moments(
    x: State, dims: list[int], steps: list[Axis], cap: int, include_padding: bool
) -> tuple[Array, Array, Array]:
    """Return mean, variance and correlation of averages over windows."""
    mean, std, corr = x.mean, x.std(), x.corr
    for i, step in zip(dims, steps, strict=True):
        index, weights, _ = tap_classes(step, include_padding)
        mean = window_mean(mean, i, step, weights.sum(axis=1)[index])
        std = window_mean(std, i, step, np.ones(step.out))
        corr = _lags_needed(corr, i, step, cap)
    var = np.maximum(std * std * _class_factors(corr, dims, steps, include_padding), 0.0)
    # windows that lie apart do not meet all pairs of positions: a deviation of their own is that of these alone
    covariance = _cut_box(x.corr, dims, steps, cap, include_padding)
    covariance = covariance * kernels.autocorrelation(std, covariance.shape)
    return mean, var, kernels.correlation(covariance, var)


def window_mean(array: Array, dim: int, step: Axis, share: Array) -> Array:
    """Average a map over the valid taps of each window, times ``share``."""
    if array.shape[dim] == 1:
        if not np.ptp(share):
            return array * float(share[0])
        shape = [1] * array.ndim
        shape[dim] = step.out
        return array * share.reshape(shape)
    shape = [1] * array.ndim
    shape[dim] = step.out
    scale = share / np.maximum(windows.reads(step), 1.0)
    return np.asarray(windows.summed(array, dim, step) * scale.reshape(shape))


def _class_factors(corr: Array, dims: list[int], steps: list[Axis], include_padding: bool) -> Array:
    """Return sum over pairs of taps of w_a w_b R(a - b) by output position: windows at the border have fewer."""
    index = tuple(slice(None) if i in dims else 0 for i in range(corr.ndim))
    result = corr[index]
    order = sorted(dims)
    expanded = []
    for dim in order:
        step = steps[dims.index(dim)]
        classes, weights, _ = tap_classes(step, include_padding)
        at = order.index(dim)
        length = result.shape[at]
        lag = np.abs(np.arange(step.kernel)[:, None] - np.arange(step.kernel)[None, :]) * step.dilation
        table = np.zeros((weights.shape[0], length))
        for k in range(weights.shape[0]):
            products = np.outer(weights[k], weights[k])
            if length == 1:
                table[k, 0] = np.trace(products)
            else:
                np.add.at(table[k], np.minimum(lag, length - 1).ravel(), products.ravel())
        result = windows.along(table, result, at)
        expanded.append(classes)
    for at, classes in enumerate(expanded):
        result = np.take(result, classes, axis=at) if result.shape[at] > 1 else result
    for dim in range(corr.ndim):
        if dim not in dims:
            result = np.expand_dims(result, dim)
    return np.asarray(result)


def pool_steps(
    call: Call, x: State, kernel: Any, stride: Any, padding: Any, dilation: Any, rank: int
) -> tuple[list[int], list[Axis]]:
    """Return the axes that a pooling slides over, and its window along each."""
    size = pair_of(kernel, rank)
    step = pair_of(stride, rank) if stride not in (None, [], ()) else size
    before, dilate = pair_of(padding, rank), pair_of(dilation, rank)
    shape, out = x.shape, call.shape()
    space = list(range(len(shape) - rank, len(shape)))
    return space, [
        Axis(shape[a], out[a], size[i], step[i], before[i], dilate[i], end=shape[a] + before[i])
        for i, a in enumerate(space)
    ]


def adaptive_step(size: int, out: int) -> Axis | None:
    """Return the window of an adaptive pooling with windows of one size, or None."""
    if size % out == 0:
        return Axis(size, out, size // out, size // out)
    return None
