"""Overlapping windows laid out as columns: every element stands at each place of a window that reads it."""

from __future__ import annotations

import numpy as np

from wellposed.signals.distributions.layout import Layout
from wellposed.signals.distributions.lazy import applied
from wellposed.signals.distributions.state import WHOLE, Marginal, State
from wellposed.signals.distributions.views import merge_atoms
from wellposed.signals.integration import kernels, windows
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.windows import Axis


def unfolded(x: State, axis: int, step: Axis) -> State | None:
    """Return the taps and the positions of windows along one axis as two axes in its place; None of an axis along which
    all elements are one.

    Padding holds zeros. Tap t of window p and tap u of window q are stride (q - p) + dilation (u - t) apart: the same
    element where that is 0.
    """
    x = merge_atoms(x, axis)
    if not x.axes[axis]:
        return None
    i = x.axes[axis][0]
    sizes = (*x.lengths[:i], step.kernel, step.out, *x.lengths[i + 1 :])
    profiles = sum(length > 2 for k, length in enumerate(x.corr.shape) if k != i) + 2
    cap = kernels.lag_cap(profiles)

    def by_window(kernel: Array) -> Array:
        return _by_window(kernel, i, step, sizes, cap)

    mean, var = (_read(values, i, step) for values in (x.mean, x.var))
    moved = [[k + (k > i) for k in own] for own in x.axes]
    axes = (*moved[:axis], [i], [i + 1], *moved[axis + 1 :])
    return x.with_moments(
        layout=Layout(sizes, tuple(tuple(own) for own in axes)),
        mean=mean,
        var=var,
        corr=by_window(x.corr),
        marginal=Marginal(x.gauss, local_scales=applied(x.local_scales, by_window)),
        blocks=WHOLE,
    )


def _read(values: Array, dim: int, step: Axis) -> Array:
    """Return what each tap of each window reads of a map, 0 in the padding."""
    index = windows.table(step).T
    if values.shape[dim] == 1 and not step.padded:
        return np.expand_dims(values, dim)
    inside = (index >= 0).reshape(*(1,) * dim, *index.shape, *(1,) * (values.ndim - dim - 1))
    read = np.take(values, np.where(index < 0, 0, index) if values.shape[dim] > 1 else np.zeros_like(index), axis=dim)
    return read * inside


def _by_window(kernel: Array, dim: int, step: Axis, sizes: tuple[int, ...], cap: int) -> Array:
    """Return a kernel by displacement of taps and of windows, averaged over both signs of one relative to the other."""
    kernel = kernels.by_displacement(kernel, (dim,))
    far = max(step.dilation * (step.kernel - 1), step.stride * (step.out - 1)) + 1
    enough = max(kernel.shape[dim], min(far + 1, step.size))
    kernel = kernels.promote(kernel, [enough if k == dim else n for k, n in enumerate(kernel.shape)])
    apart, on = step.dilation * np.arange(step.kernel)[:, None], step.stride * np.arange(step.out)
    last = kernel.shape[dim] - 1
    both = [np.take(kernel, np.minimum(np.abs(lag), last), axis=dim) for lag in (on + apart, on - apart)]
    result = 0.5 * (both[0] + both[1])
    lengths = [min(n, cap) if k in (dim, dim + 1) else n for k, n in enumerate(result.shape)]
    return kernels.shorten(result, sizes, lengths)
