"""Pooling backwards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from wellposed.signals.algebra.box_filters import adaptive_step, pool_steps, prepared, window_links
from wellposed.signals.algebra.gradient_terms import (
    Adjoint,
    Sent,
    Term,
    broadcast,
    scaled_state,
    settled,
    source_of,
    times,
)
from wellposed.signals.algebra.linear_maps import mapped
from wellposed.signals.distributions.functions import Pointwise
from wellposed.signals.distributions.state import State, weakest
from wellposed.signals.distributions.views import pooled
from wellposed.signals.integration import kernels
from wellposed.signals.integration.gaussian import NODES, WEIGHTS
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.windows import Axis, averaging, covering, table
from wellposed.signals.registry import adjoint_of_one, overloads
from wellposed.signals.rules.shape.backward import source


def _spread(state: State, axis: int, weights: Array) -> State:
    """Return the gradient with respect to the input of an average over windows of ``weights`` (output, input)."""
    if weights.shape[0] > 1:
        return mapped(state, axis, weights.T)
    shape = list(state.shape)
    shape[axis] = weights.shape[1]
    level = float(np.mean(weights**2)) ** 0.5
    return broadcast(scaled_state(state, level), tuple(shape), [axis])


def _matrix(step: Axis, include_padding: bool) -> Array:
    """Return the weight of every (output, input) position of an average over windows."""
    index, weights = table(step), averaging(step, include_padding)
    matrix = np.zeros((step.out, step.size))
    rows = np.broadcast_to(np.arange(step.out)[:, None], index.shape)
    inside = index >= 0
    np.add.at(matrix, (rows[inside], index[inside]), weights[inside])
    return matrix


def _windows(call: Adjoint, x: State, kernel: Any, stride: Any, padding: Any, dilation: Any) -> list[tuple[int, Axis]]:
    """Return the axes that a pooling slides over, each with its window."""
    rank = next(rank for rank in (1, 2, 3) if f"pool{rank}d" in call.node.op_name)
    return list(zip(*pool_steps(call, x, kernel, stride, padding, dilation, rank), strict=True))


def _averaged(state: State, steps: Sequence[tuple[int, Array]], factor: float = 1.0) -> State:
    """Return ``factor`` times the gradient of averages over windows along some axes with respect to their input."""
    for axis, matrix in steps:
        state = _spread(state, axis, matrix)
    return scaled_state(state, factor).changed(links=(), function=None)


def _linked(
    back: State, state: State, steps: Sequence[tuple[int, Axis]], include_padding: bool, factor: float
) -> State:
    """Return a gradient that follows ``state``, that with respect to the averages, where both lie on one grid.

    Displacements of both signs being pooled, windows carry a covariance kernel backwards as they do forwards.
    """
    if not state.roots or any(step.stride != 1 or step.out != step.size or not state.axes[a] for a, step in steps):
        return back
    pairs = [(state.axes[a][0], step) for a, step in steps]
    return back.changed(links=window_links(state, pairs, (), factor, include_padding=include_padding))


@adjoint_of_one(overloads("avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default"), source="signals: 9")
def avg_pool(
    call: Adjoint, term: Term, x: State, kernel_size: Any, stride: Any = None, padding: Any = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> Sent | None:  # fmt: skip
    """Average over windows: every tap receives its share."""
    steps = _windows(call, x, kernel_size, stride, padding, 1)
    include = count_include_pad or bool(divisor_override)
    factor = math.prod(step.kernel for _, step in steps) / divisor_override if divisor_override else 1.0
    gradient = prepared(settled(call, term), [a for a, _ in steps])
    back = _averaged(gradient, [(a, _matrix(s, include)) for a, s in steps], factor)
    return [(source(call), Term(_linked(back, gradient, steps, include, factor)))]


@adjoint_of_one(
    overloads("adaptive_avg_pool1d.default", "adaptive_avg_pool2d.default", "adaptive_avg_pool3d.default"),
    source="signals: 9",
)
def adaptive_avg_pool(call: Adjoint, term: Term, x: State, output_size: Any) -> Sent | None:
    """Average over windows that cover the input."""
    out = term.core.shape
    steps = []
    for axis in range(len(x.shape) - len(output_size), len(x.shape)):
        size, count = x.shape[axis], out[axis]
        if size == count:
            continue
        steps.append((axis, covering(size, count)))
    return [(source(call), Term(_averaged(settled(call, term), steps)))]


@adjoint_of_one(
    overloads(
        "upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec", "upsample_nearest2d.default",
        "_upsample_nearest_exact2d.vec", "upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec",
        "upsample_bicubic2d.vec", "_upsample_bilinear2d_aa.vec", "_upsample_bicubic2d_aa.vec",
    ),
    source="definition: a linear map along each axis",
)  # fmt: skip
def resampled(call: Adjoint, term: Term, x: State, output_size: Any, *rest: Any, **kwargs: Any) -> Sent | None:
    """Every element receives its weight in each output times that output's gradient."""
    flags = [r if isinstance(r, bool) else None for r in rest]
    steps, space = [], range(2, len(x.shape))
    for axis in space:
        have, size = x.shape[axis], term.core.shape[axis]
        if have != size:
            # the operator itself, on unit vectors, gives the matrix of the map
            units = torch.eye(have, dtype=torch.float64).reshape(have, 1, *(have if a == axis else 1 for a in space))
            units = units.expand(have, 1, *(have if a == axis else 2 for a in space))
            mapped = call.node.op(units, [size if a == axis else 2 for a in space], *flags)
            steps.append((axis, mapped.movedim(axis, 1).reshape(have, size, -1)[..., 0].T.numpy()))
    return [(source(call), Term(_averaged(settled(call, term), steps)))]


# ---- maximum --------------------------------------------------------------------------------------------------------

_Z, _W = np.polynomial.hermite_e.hermegauss(16)
_W = _W / _W.sum()


@adjoint_of_one(
    overloads(
        "max_pool1d.default", "max_pool2d.default", "max_pool3d.default", "max_pool2d_with_indices.default"
    ),
    whole=True,
    tag="approximate", source="signals: 9"
)  # fmt: skip
def max_pool(
    call: Adjoint, term: Term, x: State, kernel_size: Any, stride: Any = None, padding: Any = 0,
    dilation: Any = 1, ceil_mode: bool = False,
) -> Sent | None:  # fmt: skip
    """Maximum over windows: all of a window's gradient goes to its largest element."""
    return _largest(call, term, x, _windows(call, x, kernel_size, stride, padding, dilation))


@adjoint_of_one(
    overloads("adaptive_max_pool1d.default", "adaptive_max_pool2d.default", "adaptive_max_pool3d.default"),
    whole=True,
    tag="approximate",
    source="signals: 9",
)
def adaptive_max_pool(call: Adjoint, term: Term, x: State, output_size: Any) -> Sent | None:
    """Maximum over windows that cover the input, where all are of one size."""
    steps = []
    for axis in range(len(x.shape) - len(output_size), len(x.shape)):
        steps.append((axis, adaptive_step(x.shape[axis], call.shape()[axis])))
    if any(step is None for _, step in steps):
        return None
    return _largest(call, term, x, [(axis, step) for axis, step in steps if step is not None])


def _largest(call: Adjoint, term: Term, x: State, steps: Sequence[tuple[int, Axis]]) -> Sent:
    """Return the gradient of a maximum over windows with respect to its input.

    An element of value t is the largest of n with probability π(t), which depends on the value as the derivative of a
    function before the pool does: after a ReLU the largest is hardly ever 0. The gradient is its mean over which is
    largest, π(t) times the sum over windows, plus what varies around it, which sums to 0 over a window.
    """
    gradient = settled(call, term)
    taps = math.prod(step.kernel for _, step in steps)
    base, _ = source_of(pooled(x))
    chance = _probability_of_largest(base, steps, taps)
    # which of a window's elements is the largest does not depend on what they have in common with other windows
    base = base.amended(corr=np.ones((1,) * base.corr.ndim))
    matrices = [_matrix(step, False) for _, step in steps]
    core = gradient
    for (axis, _), matrix in zip(steps, matrices, strict=True):
        core = _spread(core, axis, matrix)
    core = core.changed(links=(), function=None, tag=weakest(core.tag, "approximate"))
    sums = scaled_state(core, float(taps)).changed(links=())
    around = Pointwise((*chance.key, "deviation"), lambda t: ((p := chance.call(t)) - p * p).clamp(min=0.0).sqrt())
    varying = _varying(core, gradient, steps, matrices, base, around, chance).changed(roots=call.root())
    return [
        (source(call), times(call, Term(sums), base, chance)),
        (source(call), times(call, Term(varying), base, around)),
    ]


def _probability_of_largest(base: State, steps: Sequence[tuple[int, Axis]], taps: int) -> Pointwise:
    """Return π: the probability that an element is the largest of its window, given its value.

    The window's elements share one average correlation r: π(t) = E Φ(sqrt(1 - r) z + sqrt(r) v)^(n - 1), z the
    standardised value and v standard normal.
    """
    dims = [base.axes[axis][0] if base.axes[axis] else None for axis, _ in steps]
    kernel = base.corr
    inside = {d: step.kernel for d, (_, step) in zip(dims, steps, strict=True) if d is not None}
    window = kernel[tuple(slice(0, inside[i]) if i in inside else slice(0, 1) for i in range(kernel.ndim))]
    sizes = [inside.get(i, 1) for i in range(kernel.ndim)]
    mean = float(kernels.pair_mean(window, sizes).ravel()[0])
    r = min(max((mean * taps - 1.0) / max(taps - 1, 1), 0.0), 1.0)
    centre, deviation = float(np.mean(base.mean)), max(float(np.mean(base.var)) ** 0.5, 1e-300)
    nodes, weights = torch.from_numpy(_Z), torch.from_numpy(_W)

    def call(t: torch.Tensor) -> torch.Tensor:
        z = (t - centre) / deviation
        below = torch.special.ndtr((1 - r) ** 0.5 * z[..., None] + r**0.5 * nodes)
        chance: torch.Tensor = below ** (taps - 1) @ weights
        return chance

    return Pointwise(("largest", taps, r, centre, deviation), call)


def _varying(
    core: State,
    gradient: State,
    steps: Sequence[tuple[int, Axis]],
    matrices: Sequence[Array],
    base: State,
    around: Pointwise,
    chance: Pointwise,
) -> State:
    """Return the core of the part of the gradient that depends on which element is largest; its factor is ``around``.

    An element is the largest of two windows with probability one over the size of their union. In any case the sum
    over all positions is that over all windows: this sets the covariance of elements that share a window.
    """
    taps = math.prod(step.kernel for _, step in steps)
    union = 2 * taps - max(taps // step.kernel * (step.kernel - step.stride) for _, step in steps)
    points = float(np.mean(base.mean)) + float(np.mean(base.var)) ** 0.5 * NODES
    first = float(WEIGHTS @ around(points)) ** 2
    square = float(WEIGHTS @ chance(points) ** 2) * taps * taps
    second = max(1.0 / taps - square / taps**2, 1e-300)
    rank, power = len(core.lengths), float(np.mean(gradient.var))
    ones, squares, shape = np.ones((1,) * rank), np.ones((1,) * rank), np.ones((1,) * rank)
    for (axis, step), matrix in zip(steps, matrices, strict=True):
        if core.axes[axis]:
            place = [1] * rank
            place[core.axes[axis][0]] = -1
            ones = ones * matrix.sum(axis=0).reshape(place)
            squares = squares * (matrix**2).sum(axis=0).reshape(place)
            shape = shape * _sharing(matrix, step).reshape(place)
    one_window, two_windows = ones * power, np.maximum(core.var - squares * power, 0.0)
    var = np.maximum(one_window + two_windows * taps * taps / union - square * core.var, 0.0) / second
    level, count = float(np.mean(var)), math.prod(core.lengths)
    others = float(kernels.pair_mean(shape, core.lengths).ravel()[0]) * count - 1.0
    excess = level * second + float(np.mean(core.var)) * (square - 1.0)
    corr = np.array(np.clip(-shape * excess / max(level * first * others, 1e-300), -1.0, 1.0))
    corr[(0,) * rank] = 1.0
    return core.changed(var=var, corr=corr, links=(), function=None)


def _sharing(matrix: Array, step: Axis) -> Array:
    """Return, by displacement, the share of pairs of positions that lie in one window, relative to displacement 0."""
    inside, size = (matrix > 0).astype(np.float64), step.size
    lags = range(min((step.kernel - 1) * step.dilation + 2, size))
    pairs = np.array([float((inside[:, : size - d] * inside[:, d:]).sum()) / (size - d) for d in lags])
    return np.asarray(pairs / pairs[0])
