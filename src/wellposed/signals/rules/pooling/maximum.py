"""Maximum pooling: the Gaussian field in a window, on fixed quasi-random points."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from wellposed.signals.algebra.box_filters import (
    adaptive_step,
    box,
    pool_steps,
    prepared,
    shrunk,
    tap_classes,
    window_links,
    window_mean,
)
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.expansion import is_homogeneous
from wellposed.signals.distributions.functions import IDENTITY, Pointwise
from wellposed.signals.distributions.moments import Moments
from wellposed.signals.distributions.state import Ancestry, State
from wellposed.signals.integration import gaussian, kernels
from wellposed.signals.integration.gaussian import NODES
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.special import ndtri
from wellposed.signals.integration.windows import Axis
from wellposed.signals.registry import overloads, rule

MAXIMUM_SAMPLES = 2048
"""Quasi-random points for the maximum over a window. Chosen for cost."""


@lru_cache(maxsize=16)
def _points(dimensions: int) -> Array:
    """Quasi-random standard normal points (MAXIMUM_SAMPLES, dimensions), the same at every call."""
    engine = torch.quasirandom.SobolEngine(dimensions, scramble=True, seed=1)
    uniform = engine.draw(MAXIMUM_SAMPLES, dtype=torch.float64).numpy()
    points: Array = ndtri(np.clip(uniform, 1e-9, 1 - 1e-9))
    points = points - points.mean(axis=0)
    return np.asarray(points / points.std(axis=0))


@rule(
    overloads("max_pool1d.default", "max_pool2d.default", "max_pool3d.default", "max_pool2d_with_indices.default"),
    tag="approximate",
    family="pooling",
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
    """Maximum over windows of the Gaussian field that the input is a function of, on fixed quasi-random points; a
    maximum of maxima over windows that lie close is one over larger windows.
    """
    rank = {"max_pool1d": 1, "max_pool3d": 3}.get(call.node.op._schema.name.removeprefix("aten::"), 2)
    space, steps = pool_steps(call, x, kernel_size, stride, padding, dilation, rank)
    before = call.run.memo.get(("maximum", x.serial))
    if before is not None and (larger := _composed(before[1], steps)) is not None and before[0].layout == x.layout:
        x, steps = before[0], larger
    inside = _padding_of(call, x)
    if inside is None or call.independent or not _is_ignored(inside, space, steps):
        found = maximum(call, x, space, steps)
        if not call.independent:
            call.run.memo["maximum", found.serial] = (x, steps)
        return found
    within = [
        replace(step, size=inside.of.shape[axis], before=step.before + inside.around[axis][0], end=None)
        for axis, step in zip(space, steps, strict=True)
    ]
    return maximum(call, inside.of, space, within, around=inside.value)


class Padded(NamedTuple):
    """A padded tensor.

    Attributes:
        of: the tensor before padding.
        around: for each axis the number of elements added before and after.
        value: the constant that surrounds it; None for replicated borders.
    """

    of: State
    around: tuple[tuple[int, int], ...]
    value: float | None


def _padding_of(call: Call, x: State) -> Padded | None:
    """Return the padding that made x; None of other tensors."""
    found: Padded | None = call.run.memo.get(("padded", x.serial, x.layout))
    return found


LARGEST_WINDOW = 400
"""Places of the largest window that is drawn as a field; those of larger ones count as one number. Chosen for cost."""


def _composed(first: list[Axis], second: list[Axis]) -> list[Axis] | None:
    """Return the windows over which a maximum equals that over the ``second`` windows of maxima over the ``first``
    ones. None unless the first have stride 1 and cover the axis, for dilated windows, and for too large ones.
    """
    if len(first) != len(second):
        return None
    made = []
    for a, b in zip(first, second, strict=True):
        reaches = a.out - a.before + a.kernel > a.size
        if a.stride != 1 or a.dilation != 1 or b.dilation != 1 or a.size != a.out or not reaches:
            return None
        kernel, before = a.kernel + b.kernel - 1, a.before + b.before
        made.append(replace(b, kernel=kernel, before=before, end=a.size + before))
    return made if np.prod([axis.kernel for axis in made]) <= LARGEST_WINDOW else None


def _is_ignored(padded: Padded, space: list[int], steps: list[Axis]) -> bool:
    """Whether the maximum over windows of the inner tensor equals that of the padded one: for a constant, or where each
    window that holds replicated elements holds the border element too.
    """
    pairs = [(padded.around[axis], step) for axis, step in zip(space, steps, strict=True)]
    return padded.value is not None or all(
        max(around) == 0 or (step.dilation == 1 and step.before == 0 and max(around) < step.kernel)
        for around, step in pairs
    )


@rule(
    overloads("adaptive_max_pool1d.default", "adaptive_max_pool2d.default", "adaptive_max_pool3d.default"),
    tag="approximate",
    family="pooling",
    source="signals: 5.5",
)
def adaptive_max_pool(call: Call, x: State, output_size: Any) -> State | None:
    """Maximum over windows that cover the input (of equal size)."""
    rank = len(output_size)
    space = list(range(len(x.shape) - rank, len(x.shape)))
    out = call.shape()
    steps = [adaptive_step(x.shape[a], out[a]) for a in space]
    if any(step is None for step in steps):
        return None
    return maximum(call, x, space, [s for s in steps if s is not None])


def maximum(call: Call, x: State, space: list[int], steps: list[Axis], *, around: float | None = None) -> State:
    """Return the maximum over each window; taps outside the tensor count as ``around``, or not at all."""
    x = prepared(x, space)
    layout, gone = shrunk(x, space, steps)
    if not x.var.any():
        flat = x.mean.mean(axis=tuple(x.axes[a][0] for a in space if x.axes[a]), keepdims=True)
        mean, var = kernels.without(flat, gone), kernels.without(np.zeros_like(flat), gone)
        return x.with_moments(layout=layout, mean=mean, var=var, corr=kernels.without(x.corr, gone))
    base, fn = (x, None) if call.independent else x.gaussian_source()
    pairs = [(x.axes[a][0], step) for a, step in zip(space, steps, strict=True) if x.axes[a]]
    used = [step for _, step in pairs]
    window = _Window(call, base, fn or IDENTITY, [i for i, _ in pairs], used, around)
    mean, second = window.maps()
    corr = window.correlations(kernels.lag_cap(len(space)))
    var = np.maximum(second - mean**2, 0.0)
    mean, var, corr = (kernels.without(array, gone) for array in (mean, var, corr))
    links = () if call.independent else window_links(base, pairs, gone, window.slope, include_padding=False)
    return State(
        layout,
        Moments(mean, var, corr, x.finite_width_correlation),
        tag="approximate",
        ancestry=Ancestry(links, x.roots | call.root()),
        spread=x.spread,
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

    def __init__(
        self, call: Call, base: State, fn: Pointwise, dims: list[int], steps: list[Axis], around: float | None
    ) -> None:
        self.around = around
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
        """Return samples (positions of a patch, MAXIMUM_SAMPLES) of a Gaussian field with the correlations of x."""
        if self.count > LARGEST_WINDOW:  # its maximum hardly depends on how it is filled in between
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
        return np.asarray(points.reshape(*self.patch, MAXIMUM_SAMPLES))

    def _max(self, values: Array, offset: list[int], valid: list[tuple[bool, ...]]) -> Array:
        """Return the maximum (MAXIMUM_SAMPLES,) over the valid taps of a window at an offset in the patch."""
        for axis, (step, start, taps) in enumerate(zip(self.steps, offset, valid, strict=True)):
            where = [start * step.stride + t * step.dilation for t in range(step.kernel) if taps[t]]
            values = np.take(values, where, axis=axis)
        largest = np.asarray(values.reshape(-1, MAXIMUM_SAMPLES).max(axis=0))
        return self.fn(largest) if self.monotone else largest

    def _mean_of_taps(self) -> Array:
        """Return the mean (MAXIMUM_SAMPLES,) over the taps of the first window."""
        values = self.noise.reshape(*self.patch, MAXIMUM_SAMPLES)
        for axis, step in enumerate(self.steps):
            where = [t * step.dilation for t in range(step.kernel)]
            values = np.take(values, where, axis=axis)
        return np.asarray(values.reshape(-1, MAXIMUM_SAMPLES).mean(axis=0))

    @property
    def slope(self) -> float:
        """Coefficient of the window's mean in the linear prediction of the maximum."""
        power = float(np.mean(self.average**2)) * self.std_level
        return float(np.mean(self.centre * self.average)) / power if power > 0 else 0.0

    def maps(self) -> tuple[Array, Array]:
        """Return E max and E max² by output position."""
        classes = [tap_classes(s, False) for s in self.steps]
        std_map = self._pooled_std()
        levels = np.array([self.std_level])
        homogeneous = not self.mean_level and not self.around and is_homogeneous(self.fn)
        if std_map.size > 1 and not homogeneous and np.ptp(std_map) > 0.02 * std_map.max():
            levels = np.array([std_map.min(), 0.5 * (std_map.min() + std_map.max()), std_map.max()])
        tables = [self._table(level, [valid for _, _, valid in classes]) for level in levels]
        result = []
        for k in range(2):
            stack = np.stack([t[k] for t in tables])
            for axis, c in enumerate(classes):
                if stack.shape[1 + axis] > 1:
                    stack = np.take(stack, c[0], axis=1 + axis)
            result.append(self._placed(stack, std_map, levels, homogeneous, k + 1))
        return result[0], result[1]

    def _table(self, level: float, valid: list[npt.NDArray[np.bool_]]) -> tuple[Array, Array]:
        """Return E max and E max² at one standard deviation, for every class of windows by their valid taps."""
        values = self.values if level == self.std_level else self._evaluate(float(level))
        shape = [taps.shape[0] for taps in valid]
        first, second = np.zeros(shape), np.zeros(shape)
        for key in np.ndindex(*shape):
            here = [tuple(bool(v) for v in taps[k]) for taps, k in zip(valid, key, strict=True)]
            if all(any(taps) for taps in here):
                y = self._max(values, [0] * len(self.steps), here)
                if self.around is not None and not all(all(taps) for taps in here):
                    y = np.maximum(y, self.around)
                first[key], second[key] = y.mean(), (y * y).mean()
            elif self.around is not None:
                first[key], second[key] = self.around, self.around**2
        return first, second

    def _placed(self, stack: Array, std_map: Array, levels: Array, homogeneous: bool, power: int) -> Array:
        """Return a moment by position from its values (levels, *window positions) at some standard deviations."""
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
            std = window_mean(std, dim, step, np.ones(step.out))
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
        corr = gaussian.polynomial(powers, shared) / var
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
