"""Average and maximum pooling, and the box filters that they share."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import ndtri

from wellposed.signals import kernels, windows
from wellposed.signals.contraction import pair_of
from wellposed.signals.expansion import is_homogeneous
from wellposed.signals.forward import Call
from wellposed.signals.gaussian import NODES
from wellposed.signals.kernels import Array
from wellposed.signals.registry import overloads, rule
from wellposed.signals.rules.maps import mapped
from wellposed.signals.rules.merge import normalised
from wellposed.signals.rules.reduction import averaged
from wellposed.signals.rules.resize import resized
from wellposed.signals.state import Atom, Dims, Link, Pointwise, State
from wellposed.signals.views import merge_atoms, pooled
from wellposed.signals.windows import Axis, Indices

SAMPLES = 2048
"""Quasi-random points for the maximum over a window."""


def _prepared(x: State, space: list[int]) -> State:
    x = pooled(x)
    for axis in space:
        if len(x.axes[axis]) > 1:
            x = merge_atoms(x, axis)
    return x


def _relabelled(
    x: State, space: list[int], steps: list[Axis]
) -> tuple[tuple[Atom, ...], tuple[tuple[int, ...], ...], list[int]]:
    """Return the atoms and axes after a window (an axis that shrinks to 1 loses its atom), and the atoms that go."""
    atoms = list(x.atoms)
    gone = []
    for axis, step in zip(space, steps, strict=True):
        if not x.axes[axis]:
            continue
        i = x.axes[axis][0]
        if step.out == 1:
            gone.append(i)
        elif not (step.stride == 1 and step.out == step.size):
            atoms[i] = Atom(hash((atoms[i].label, step.stride, step.out)), step.out)
    keep = [i for i in range(len(atoms)) if i not in gone]
    where = {old: new for new, old in enumerate(keep)}
    axes = tuple(tuple(where[i] for i in axis if i not in gone) for axis in x.axes)
    return tuple(atoms[i] for i in keep), axes, gone


def _without(array: Array, gone: list[int]) -> Array:
    return np.asarray(array[tuple(0 if i in gone else slice(None) for i in range(array.ndim))])


def _lags_needed(kernel: Array, dim: int, step: Axis, cap: int) -> Array:
    """Write a kernel with enough displacements for a window's pairs of taps."""
    if kernel.shape[dim] == 2 or (step.kernel == 1 and kernel.shape[dim] == 1):
        return kernel if step.kernel == 1 else _promoted(kernel, dim, min(step.size, cap))
    return _promoted(kernel, dim, min(step.size, max((step.kernel - 1) * step.dilation + 2, kernel.shape[dim])))


def _promoted(kernel: Array, dim: int, length: int) -> Array:
    lengths = list(kernel.shape)
    lengths[dim] = max(length, lengths[dim])
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
    """`box` of the windows as they are: those that the border cuts have fewer taps (averaged over positions)."""
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
def _classes(step: Axis, include_padding: bool) -> tuple[Indices, Array, npt.NDArray[np.bool_]]:
    """Return the class of every output position, each class's tap weights (class, tap), and whether taps are valid."""
    weights, index = np.unique(windows.averaging(step, include_padding), axis=0, return_inverse=True)
    return index.ravel(), weights, weights > 0.0


def filtered(
    call: Call, x: State, space: list[int], steps: list[Axis], total: float, *, include_padding: bool
) -> State:
    """Return ``total`` times the average over each window (padding counted as zeros, or left out of the average).

    v' = sum over pairs of taps of w w s s R; R' by the same sums at a displacement (signals.md 5.5).
    """
    x = _prepared(x, space)
    atoms, axes, gone = _relabelled(x, space, steps)
    pairs = [(x.axes[a][0], step) for a, step in zip(space, steps, strict=True) if x.axes[a]]
    dims, used = [i for i, _ in pairs], [step for _, step in pairs]
    # an axis of one position: the window's other taps are padding
    for axis, step in zip(space, steps, strict=True):
        if not x.axes[axis] and include_padding:
            total *= float(windows.averaging(step, True).sum(axis=1).mean())
    cap = kernels.lag_cap(len(space))
    mean, std = x.mean, x.std()
    for i, step in pairs:
        index, weights, _ = _classes(step, include_padding)
        share = weights.sum(axis=1)[index]
        mean = _averaged(mean, i, step, share)
        std = _averaged(std, i, step, np.ones(step.out))
    if call.independent:
        count = np.prod([step.kernel for step in used]) if used else 1
        var = np.full((1,) * mean.ndim, float(np.mean(x.var)) / count * total * total)
        mean = np.full((1,) * mean.ndim, x.pooled_mean * total)
        return x.changed(
            atoms=atoms, axes=axes, mean=_without(mean, gone), var=_without(var, gone),
            corr=np.ones((1,) * len(atoms)), base=None, fn=None, links=(), roots=call.root(), gauss=True,
        )  # fmt: skip
    corr = x.corr
    for i, step in pairs:
        corr = _lags_needed(corr, i, step, cap)
    factor = _class_factors(corr, dims, used, include_padding)
    var = std * std * factor
    new_corr = normalised(_cut_box(x.covariance(), dims, used, cap, include_padding), np.maximum(var, 0.0))
    same_grid = not gone and all(step.stride == 1 and step.out == step.size for step in used)

    def operate(kernel: Array, where: Dims) -> Array:
        return _through(kernel, where, pairs, include_padding) * total

    return x.changed(
        atoms=atoms,
        axes=axes,
        mean=_without(mean * total, gone),
        var=_without(np.maximum(var, 0.0) * total * total, gone),
        corr=_without(new_corr, gone),
        base=None,
        fn=None,
        links=(Link(x, operate),) if same_grid and x.roots else (),
        lever=None,
        gauss=x.gauss or float(np.prod([s.kernel for s in used] or [1])) >= 16,
    )


def _through(kernel: Array, where: Dims, pairs: list[tuple[int, Axis]], include_padding: bool) -> Array:
    for i, step in pairs:
        dim = where[i]
        if dim is not None:
            kernel = _one_sided(kernel, dim, step, include_padding)
    return kernel


def _one_sided(kernel: Array, dim: int, step: Axis, include_padding: bool) -> Array:
    """Average over the taps of one of the two elements: Cov(z, mean of window)(d), averaged over positions."""
    if step.kernel == 1:
        return kernel
    if kernel.shape[dim] != 2:
        kernel = _promoted(kernel, dim, min(step.size, max((step.kernel - 1) * step.dilation + 2, kernel.shape[dim])))
    return windows.along(_one_sided_table(step, include_padding, kernel.shape[dim]), kernel, dim)


@lru_cache(maxsize=256)
def _one_sided_table(step: Axis, include_padding: bool, length: int) -> Array:
    """Return M[d, l]: weight of the taps at distance l from a position d away from the window's own, on one grid."""
    index, weights = windows.table(step), windows.averaging(step, include_padding)
    matrix, pairs = np.zeros((length, length)), np.zeros(length)
    place = np.arange(step.out)
    for shift in range(-step.out + 1, step.out):
        rows = place[max(0, -shift) : step.out - max(0, shift)]
        lag = min(abs(shift), length - 1)
        distance = np.minimum(np.abs(index[rows] - (rows + shift)[:, None]), length - 1)
        np.add.at(matrix[lag], distance.ravel(), weights[rows].ravel())
        pairs[lag] += rows.size
    return np.asarray(matrix / np.maximum(pairs, 1)[:, None])


def _averaged(array: Array, dim: int, step: Axis, share: Array) -> Array:
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
    """Return sum over pairs of taps of w w R for every output position: borders have windows of their own."""
    index = tuple(slice(None) if i in dims else 0 for i in range(corr.ndim))
    result = corr[index]
    order = sorted(dims)
    expanded = []
    for dim in order:
        step = steps[dims.index(dim)]
        classes, weights, _ = _classes(step, include_padding)
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


def _steps(
    call: Call, x: State, kernel: Any, stride: Any, padding: Any, dilation: Any, rank: int
) -> tuple[list[int], list[Axis]]:
    size = pair_of(kernel, rank)
    step = pair_of(stride, rank) if stride not in (None, [], ()) else size
    before, dilate = pair_of(padding, rank), pair_of(dilation, rank)
    shape, out = x.shape, call.shape()
    space = list(range(len(shape) - rank, len(shape)))
    return space, [
        Axis(shape[a], out[a], size[i], step[i], before[i], dilate[i], end=shape[a] + before[i])
        for i, a in enumerate(space)
    ]


@rule(
    overloads("avg_pool2d.default", "avg_pool3d.default"),
    source="signals: 5.5; AutoInit, Appendix A (average pooling)",
    blockwise=True,
)
def avg_pool(
    call: Call, x: State, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> State:  # fmt: skip
    """Average over windows."""
    rank = 2 if call.node.op is torch.ops.aten.avg_pool2d.default else 3
    space, steps = _steps(call, x, kernel_size, stride, padding, 1, rank)
    total = 1.0
    if divisor_override:
        total = float(np.prod([s.kernel for s in steps])) / divisor_override
    return filtered(call, x, space, steps, total, include_padding=count_include_pad)


@rule(overloads("avg_pool1d.default"), source="signals: 5.5", blockwise=True)
def avg_pool1d(
    call: Call, x: State, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> State:  # fmt: skip
    """Average over windows of one axis."""
    space, steps = _steps(call, x, kernel_size, stride, padding, 1, 1)
    return filtered(call, x, space, steps, 1.0, include_padding=count_include_pad)


@rule(
    overloads("adaptive_avg_pool1d.default", "adaptive_avg_pool2d.default", "adaptive_avg_pool3d.default"),
    source="signals: 5.5; AutoInit, Appendix A (global pooling)",
    blockwise=True,
)
def adaptive_avg_pool(call: Call, x: State, output_size: Any) -> State:
    """Average over windows that cover the input."""
    rank = len(output_size)
    space = list(range(len(x.shape) - rank, len(x.shape)))
    shape, out = x.shape, call.shape()
    whole = [a for a in space if out[a] == 1]
    if whole and len(whole) == rank:
        return averaged(call, x, whole, keepdim=True)
    steps = [_adaptive(shape[a], out[a]) for a in space]
    if any(step is None for step in steps):
        return _unequal(call, x, space)
    return filtered(call, x, space, [s for s in steps if s is not None], 1.0, include_padding=False)


def _adaptive(size: int, out: int) -> Axis | None:
    if size % out == 0:
        return Axis(size, out, size // out, size // out)
    return None


def _unequal(call: Call, x: State, space: list[int]) -> State:
    """Windows of unequal size, or an enlargement: output i averages inputs floor(i n / m) to ceil((i + 1) n / m)."""
    out = call.shape()
    for a in space:
        size, count = x.shape[a], out[a]
        if not x.axes[a]:
            x = resized(x, [a], [count])
        elif size != count:
            place = np.arange(count)
            first, last = place * size // count, -(-(place + 1) * size // count)
            inside = (np.arange(size) >= first[:, None]) & (np.arange(size) < last[:, None])
            x = mapped(x, a, inside / inside.sum(axis=1, keepdims=True))
    return x


# ---- maximum --------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def _points(dimensions: int) -> Array:
    """Quasi-random standard normal points (SAMPLES, dimensions), the same at every call."""
    engine = torch.quasirandom.SobolEngine(dimensions, scramble=True, seed=1)
    uniform = engine.draw(SAMPLES, dtype=torch.float64).numpy()
    points: Array = ndtri(np.clip(uniform, 1e-9, 1 - 1e-9))
    points = points - points.mean(axis=0)
    return np.asarray(points / points.std(axis=0))


@rule(
    overloads("max_pool1d.default", "max_pool2d.default", "max_pool3d.default", "max_pool2d_with_indices.default"),
    tag="approximate",
    source="signals: 5.5; AutoInit, Appendix A (max pooling, by sampling)",
    blockwise=True,
)
def max_pool(
    call: Call,
    x: State,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> State:
    """Maximum over windows of the Gaussian field that the input is a function of, on fixed quasi-random points."""
    rank = {"max_pool1d": 1, "max_pool3d": 3}.get(call.node.op._schema.name.removeprefix("aten::"), 2)
    space, steps = _steps(call, x, kernel_size, stride, padding, dilation, rank)
    return maximum(call, x, space, steps)


@rule(
    overloads("adaptive_max_pool1d.default", "adaptive_max_pool2d.default", "adaptive_max_pool3d.default"),
    tag="approximate",
    source="signals: 5.5",
)
def adaptive_max_pool(call: Call, x: State, output_size: Any) -> State | None:
    """Maximum over windows that cover the input (of equal size)."""
    rank = len(output_size)
    space = list(range(len(x.shape) - rank, len(x.shape)))
    out = call.shape()
    steps = [_adaptive(x.shape[a], out[a]) for a in space]
    if any(step is None for step in steps):
        return None
    return maximum(call, x, space, [s for s in steps if s is not None])


def maximum(call: Call, x: State, space: list[int], steps: list[Axis]) -> State:
    """Return the maximum over each window."""
    x = _prepared(x, space)
    if not x.var.any():
        atoms, axes, gone = _relabelled(x, space, steps)
        flat = x.mean.mean(axis=tuple(x.axes[a][0] for a in space if x.axes[a]), keepdims=True)
        return x.changed(atoms=atoms, axes=axes, mean=_without(flat, gone), var=_without(np.zeros_like(flat), gone),
                         corr=_without(x.corr, gone), base=None, fn=None, links=())  # fmt: skip
    base, fn = x, Pointwise(("identity",), lambda t: t)
    if x.base is not None and x.fn is not None and not call.independent:
        base, fn = x.base, x.fn
    atoms, axes, gone = _relabelled(x, space, steps)
    pairs = [(x.axes[a][0], step) for a, step in zip(space, steps, strict=True) if x.axes[a]]
    dims, used = [i for i, _ in pairs], [step for _, step in pairs]
    window = _Window(call, base, fn, dims, used)
    mean, second = window.maps()
    cap = kernels.lag_cap(len(space))
    corr = window.correlations(cap)
    var = np.maximum(second - mean**2, 0.0)
    same_grid = not gone and all(step.stride == 1 and step.out == step.size for step in used)
    slope = window.slope

    def operate(kernel: Array, where: Dims) -> Array:
        return _through(kernel, where, pairs, False) * slope

    return State(
        atoms,
        axes,
        _without(mean, gone),
        _without(var, gone),
        _without(corr, gone),
        tag="approximate",
        links=(Link(base, operate),) if same_grid and base.roots and not call.independent else (),
        roots=x.roots | call.root(),
        inherited=x.inherited,
        own=x.own,
    )


def _lagrange(nodes: Array, points: Array) -> Array:
    """Values of the Lagrange polynomials of ``nodes`` at ``points``: array (points, nodes)."""
    result = np.ones((points.size, nodes.size))
    for i, node in enumerate(nodes):
        for j, other in enumerate(nodes):
            if i != j:
                result[:, i] *= (points - other) / (node - other)
    return result


class _Window:
    """The Gaussian field around a window, sampled once."""

    def __init__(self, call: Call, base: State, fn: Pointwise, dims: list[int], steps: list[Axis]) -> None:
        self.base, self.fn, self.dims, self.steps = base, fn, dims, steps
        self.independent = call.independent
        # windows that overlap are sampled together: the patch reaches over the displacements that share taps
        self.reach = [
            0 if call.independent or s.out == 1 else min(s.out - 1, ((s.kernel - 1) * s.dilation) // s.stride, 2)
            for s in steps
        ]
        self.patch = [(s.kernel - 1) * s.dilation + 1 + r * s.stride for s, r in zip(steps, self.reach, strict=True)]
        while int(np.prod(self.patch)) > 100 and any(self.reach):
            self.reach = [max(r - 1, 0) for r in self.reach]
            self.patch = [
                (s.kernel - 1) * s.dilation + 1 + r * s.stride for s, r in zip(steps, self.reach, strict=True)
            ]
        self.count = int(np.prod(self.patch)) if self.patch else 1
        self.transport = None if call.independent else base.transport
        self.corr = base.corr if self.transport is None else self.transport.latent(base.corr)
        self.noise = self._field()
        std = base.std()
        self.mean_level, self.std_level = float(np.mean(base.mean)), float(np.sqrt(np.mean(std * std)))
        # a function that never falls is applied to the maxima alone
        with np.errstate(all="ignore"):
            self.monotone = bool((np.diff(fn(self.mean_level + self.std_level * NODES)) >= 0).all())
        self.values = self._evaluate(self.std_level)
        self.centre = self._max(self.values, [0] * len(steps), [tuple([True] * s.kernel) for s in steps])
        self.average = self._mean_of_taps()

    def _field(self) -> Array:
        if self.count > 400:  # a very large window: its maximum hardly depends on how it is filled in between
            return np.ones((self.count, 1)) * _points(1)[:, 0]
        grids = np.meshgrid(*(np.arange(n) for n in self.patch), indexing="ij")
        places = np.stack([g.ravel() for g in grids], axis=1) if grids else np.zeros((1, 0), dtype=int)
        order = np.argsort(self.dims)
        index = tuple(slice(None) if i in self.dims else 0 for i in range(self.base.corr.ndim))
        profile = self.corr[index].transpose(np.argsort(order)) if self.dims else np.ones(())
        lag = np.abs(places[:, None, :] - places[None, :, :])
        matrix = np.ones((self.count, self.count))
        if self.dims:
            zero = np.zeros((self.count, self.count), dtype=bool)
            picks = []
            for axis, length in enumerate(profile.shape):
                picks.append(np.minimum(lag[..., axis], length - 1))
                if length == 1:
                    zero |= lag[..., axis] > 0
            matrix = np.where(zero, 0.0, profile[tuple(picks)])
        if self.independent:
            matrix = np.eye(self.count)
        values, vectors = np.linalg.eigh(matrix)
        # the symmetric root: eigenvectors of equal eigenvalues are arbitrary, and rounding would choose the sample
        root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
        norm = np.sqrt(np.maximum((root * root).sum(axis=1, keepdims=True), 1e-300))
        root = root / norm
        return np.asarray(root @ _points(self.count).T)

    def _evaluate(self, std: float) -> Array:
        points = self.mean_level + std * (self.noise if self.transport is None else self.transport(self.noise))
        if not self.monotone:
            points = self.fn(points.ravel())
        return np.asarray(points.reshape(*self.patch, SAMPLES))

    def _max(self, values: Array, offset: list[int], valid: list[tuple[bool, ...]]) -> Array:
        for axis, (step, start, taps) in enumerate(zip(self.steps, offset, valid, strict=True)):
            where = [start * step.stride + t * step.dilation for t in range(step.kernel) if taps[t]]
            values = np.take(values, where, axis=axis)
        largest = np.asarray(values.reshape(-1, SAMPLES).max(axis=0))
        return self.fn(largest) if self.monotone else largest

    def _mean_of_taps(self) -> Array:
        values = self.noise.reshape(*self.patch, SAMPLES)
        for axis, step in enumerate(self.steps):
            where = [t * step.dilation for t in range(step.kernel)]
            values = np.take(values, where, axis=axis)
        return np.asarray(values.reshape(-1, SAMPLES).mean(axis=0))

    @property
    def slope(self) -> float:
        """Coefficient of the window's mean in the linear prediction of the maximum."""
        power = float(np.mean(self.average**2)) * self.std_level
        return float(np.mean(self.centre * self.average)) / power if power > 0 else 0.0

    def maps(self) -> tuple[Array, Array]:
        """Return E max and E max² by output position."""
        classes = [_classes(s, False) for s in self.steps]
        std_map = self._pooled_std()
        levels = np.array([self.std_level])
        homogeneous = not self.mean_level and is_homogeneous(self.fn)
        if std_map.size > 1 and not homogeneous and np.ptp(std_map) > 0.02 * std_map.max():
            levels = np.array([std_map.min(), 0.5 * (std_map.min() + std_map.max()), std_map.max()])
        tables = []
        for level in levels:
            values = self.values if level == self.std_level else self._evaluate(float(level))
            shape = [c[2].shape[0] for c in classes]
            first, second = np.empty(shape), np.empty(shape)
            for key in np.ndindex(*shape):
                valid = [tuple(bool(v) for v in c[2][k]) for c, k in zip(classes, key, strict=True)]
                if not all(any(v) for v in valid):
                    first[key], second[key] = 0.0, 0.0
                    continue
                y = self._max(values, [0] * len(self.steps), valid)
                first[key], second[key] = y.mean(), (y * y).mean()
            tables.append((first, second))
        result = []
        for k in range(2):
            stack = np.stack([t[k] for t in tables])
            for axis, c in enumerate(classes):
                if stack.shape[1 + axis] > 1:
                    stack = np.take(stack, c[0], axis=1 + axis)
            result.append(self._placed(stack, std_map, levels, homogeneous, k + 1))
        return result[0], result[1]

    def _placed(self, stack: Array, std_map: Array, levels: Array, homogeneous: bool, power: int) -> Array:
        rank = self.base.mean.ndim
        order = list(np.argsort(self.dims))
        stack = stack.transpose([0, *(1 + i for i in order)])
        for dim in range(rank):
            if dim not in self.dims:
                stack = np.expand_dims(stack, 1 + dim)
        if homogeneous and std_map.size > 1:
            return np.asarray(stack[0] * (std_map / self.std_level) ** power)
        if levels.size == 1:
            return np.asarray(stack[0])
        basis = _lagrange(levels, std_map.ravel()).reshape(*std_map.shape, levels.size)
        return np.asarray((np.moveaxis(stack, 0, -1) * basis).sum(axis=-1))

    def _pooled_std(self) -> Array:
        std = self.base.std()
        for dim, step in zip(self.dims, self.steps, strict=True):
            std = _averaged(std, dim, step, np.ones(step.out))
        return std

    def correlations(self, cap: int) -> Array:
        """Return the correlation kernel of the maxima.

        Far windows depend on each other through their means (one-factor); windows that overlap are sampled together.
        """
        y = self.centre
        mean, var = float(y.mean()), float(y.var())
        power = float(np.mean(self.average**2))
        u = self.average / power**0.5
        coefficients = [0.0]
        previous, current = np.ones_like(u), u
        for n in range(1, 8):
            coefficients.append(float(np.mean((y - mean) * current)) ** 2)
            previous, current = current, (u * current - n**0.5 * previous) / (n + 1) ** 0.5
        powers = np.array(coefficients)
        powers[-1] += max(var - powers.sum(), 0.0)
        if self.independent or var == 0.0:
            return np.ones((1,) * self.base.corr.ndim)
        shared = np.clip(box(self.corr, self.dims, self.steps, cap) / power, -1.0, 1.0)
        corr = kernels.polynomial(powers, shared) / var
        if any(self.reach):
            for offset in np.ndindex(*(r + 1 for r in self.reach)):
                index = [0] * corr.ndim
                for dim, lag in zip(self.dims, offset, strict=True):
                    index[dim] = lag
                if any(i >= n for i, n in zip(index, corr.shape, strict=True)):
                    continue
                other = self._max(self.values, list(offset), [tuple([True] * s.kernel) for s in self.steps])
                corr[tuple(index)] = float(np.mean((y - mean) * (other - mean))) / var
        corr[(0,) * corr.ndim] = 1.0
        return np.asarray(np.clip(corr, -1.0, 1.0))
