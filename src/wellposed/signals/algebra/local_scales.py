"""Local scales, by which a signal differs in size from one position to another of one draw: of sums, products and
results of weights (signals.md 5.7).
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from wellposed.signals.context.call import Call
from wellposed.signals.distributions.alignment import Aligned
from wellposed.signals.distributions.lazy import LocalScales, evaluated
from wellposed.signals.distributions.marginals import marginal
from wellposed.signals.distributions.mixtures import LARGEST_VARIANCE, SHARED_BY, UNEVEN, scales_of_squares
from wellposed.signals.distributions.spread import NONE, Sources, source
from wellposed.signals.distributions.state import Marginal, State
from wellposed.signals.integration import kernels
from wellposed.signals.integration.gaussian import WEIGHTS
from wellposed.signals.integration.kernels import Array


def marginal_with(scales: LocalScales, gauss: bool) -> Marginal:
    """Return a marginal with these local scales, or without any where they hardly vary."""
    kernel = scales.get()
    even = kernel is None or not kernel.size or float(kernel.max()) <= UNEVEN
    return Marginal(gauss, local_scales=None if even else scales)


def weighted_scales(call: Call, data: State, kernel: Array) -> LocalScales:
    """Return the local scales, of kernel ``kernel``, of a product of ``data`` with a weight.

    Their sources are those of ``data`` and one for the size of ``data`` itself: cached, as all weights that meet
    ``data`` share it.
    """
    key = ("size", data.serial)
    if key not in call.run.memo:
        new = math.log1p(float(kernel.ravel()[0])) - data.local_scale_sources.variance
        call.run.memo[key] = source(call.source(), max(new, 0.0))
    return LocalScales.of(kernel, data.local_scale_sources + call.run.memo[key])


def in_common(x: State, y: State, p: Aligned, q: Aligned) -> tuple[Array, Array, Array] | None:
    """Return three kernels, Var(ln tau) of x and of y and their covariance; None where neither local scale varies."""
    of_x, of_y = scales_of_squares(x, p.local_scales), scales_of_squares(y, q.local_scales)
    if of_x is None and of_y is None:
        return None
    none = np.zeros((1,) * p.corr.ndim)
    given = kernels.common(*(none if kernel is None else kernel for kernel in (of_x, of_y)))
    first, second = (np.log1p(np.clip(kernel, 0.0, LARGEST_VARIANCE)) for kernel in given)
    if of_x is None or of_y is None:
        return first, second, np.zeros_like(first)
    own = math.sqrt(float(first.ravel()[0]) * float(second.ravel()[0]))
    share = x.local_scale_sources.covariance(y.local_scale_sources) / own if own > 0.0 else 0.0
    return first, second, np.sqrt(first * second) * min(max(share, -1.0), 1.0)


def _covariance_with_product(call: Call, x: State, y: State) -> float:
    """Return the covariance of the size of x with the local scale of y, a product of x with a weight."""
    size: Sources = call.run.memo.get(("size", x.serial), NONE)
    return (
        math.expm1(size.covariance(y.local_scale_sources))
        if size.amounts.size and y.local_scale_sources.amounts.size
        else 0.0
    )


def scales_of_sum(
    call: Call, x: State, y: State, p: Aligned, q: Aligned, x_share: float, y_share: float
) -> LocalScales:
    """Return the local scales of x + y: tau is the mean of both, weighted by their shares of the variance."""
    parts = in_common(x, y, p, q)
    if parts is None or not x_share + y_share > 0.0:
        return EVEN_SCALES
    w = x_share / (x_share + y_share)
    first, second, both = map(np.expm1, parts)
    if not (x.local_scale_sources.amounts.size and y.local_scale_sources.amounts.size):
        # not known: a branch inherits those of its trunk
        both = np.minimum(first, second)
    kernel = np.asarray(w * w * first + (1.0 - w) ** 2 * second + 2.0 * w * (1.0 - w) * both)
    for scale, one, other in ((second, x, y), (first, y, x)):
        if (shared := _covariance_with_product(call, one, other)) and scale.ravel()[0] > 0.0:
            kernel = kernel + 2.0 * w * (1.0 - w) * shared * scale / float(scale.ravel()[0])
    return LocalScales.of(
        kernel, _rescaled_to(x.local_scale_sources.times(w) + y.local_scale_sources.times(1.0 - w), kernel)
    )


def scales_of_product(x: State, y: State, p: Aligned, q: Aligned) -> tuple[LocalScales, Array]:
    """Return the local scales of x y (ln tau adds up), and the covariance kernel of the local scales of x and y."""
    parts = in_common(x, y, p, q)
    if parts is None:
        return EVEN_SCALES, np.zeros((1,) * p.corr.ndim)
    first, second, both = parts
    kernel = np.expm1(np.minimum(first + second + 2.0 * both, math.log1p(LARGEST_VARIANCE)))
    return LocalScales.of(kernel, _rescaled_to(x.local_scale_sources + y.local_scale_sources, kernel)), np.expm1(both)


def scales_by_factor(call: Call, x: State, y: State, p: Aligned, q: Aligned) -> LocalScales | None:
    """Return the local scales of a Gaussian x times y, where one element of y multiplies many of x (a router's weight,
    all features of a token): those of x, multiplied by y². None for other factors, and where y² hardly varies.
    """
    rank = max(len(x.axes), len(y.axes))
    own, others = ((1,) * (rank - len(state.axes)) + state.shape for state in (x, y))
    shared = math.prod(n for n, other in zip(own, others, strict=True) if other == 1)
    if shared < SHARED_BY or any(n == 1 < other for n, other in zip(own[1:], others[1:], strict=True)):
        return None
    shaped = x.function is not None or x.transport is not None
    if shaped or (kernels.nonzero(x.mean) and kernels.nonzero(y.mean)):
        return None
    uneven = _variance_of_square(y)
    if not uneven > UNEVEN:
        return None
    key = ("scale", y.serial)
    if key not in call.run.memo:
        call.run.memo[key] = source(call.source(), math.log1p(uneven))
    kernel, before = uneven * np.clip(kernels.by_displacement(q.corr), 0.0, 1.0), evaluated(p.local_scales)
    if before is not None:
        kernel, before = kernels.common(kernel, before)
        kernel = np.minimum((1.0 + kernel) * (1.0 + before) - 1.0, LARGEST_VARIANCE)
    return LocalScales.of(kernel, x.local_scale_sources + call.run.memo[key])


def _variance_of_square(y: State) -> float:
    """Return Var(y²) / (E y²)²."""
    squares = marginal(y) ** 2
    level = float(WEIGHTS @ squares)
    if not (level > 0.0 and kernels.nonzero(y.var)):
        return 0.0
    return min(float(WEIGHTS @ squares**2) / level**2 - 1.0, LARGEST_VARIANCE)


def average_of_scales(x: State) -> float:
    """Return the variance of ln(mean of tau over positions) that few positions do not average out.

    What all positions of a draw share is not counted: the spread of x holds it.
    """
    scales = scales_of_squares(x, x.local_scales) if x.local_scale_sources.amounts.size else None
    if scales is None:
        return 0.0
    apart = any(length == 1 < size for length, size in zip(scales.shape, x.lengths, strict=True))
    kernel = scales if apart else scales - scales.min()
    return math.log1p(max(float(kernels.pair_mean(kernel, x.lengths).ravel()[0]), 0.0))


def scales_after_attention(
    call: Call, values: State, axis: int, made: State, at: int, features: int, lifted: float, own: tuple[float, float]
) -> LocalScales:
    """Return the local scales of the results of attention along ``at``, from its values along ``axis``: tau of a query
    is the mean over its sample, t, and the part ``lifted`` along the query grows with t² and the query's own tau.

    All ``features`` of one query and head share their weights. ``own`` is the variance of ln tau that weights add from
    one query to another, and the part of it that all heads of a query share.
    """
    if not made.axes[at]:
        return EVEN_SCALES
    rank, query = len(made.lengths), made.axes[at][0]
    apart = query, *(made.axes[0][:1] if at else ())  # queries, and samples
    of_head = np.full([2 if i in made.axes[features] else 1 for i in range(rank)], own[0] - own[1])
    parts = [of_head, np.full([1 if i in apart else 2 for i in range(rank)], own[1])]
    before, sources = values.local_scale_sources, source(call.source(), own[0])
    scales = evaluated(values.local_scales)
    if scales is not None and values.axes[axis]:
        full, of_query = _log_scales_of_mean(scales, values, axis, lifted)
        full = kernels.without(full, [i for i, atoms in enumerate(made.axes) if not atoms])
        if full.ndim != rank:
            return EVEN_SCALES
        parts += [np.concatenate([full, full], axis=query)]
        parts += [np.full([1 if i == query else n for i, n in enumerate(full.shape)], of_query)]
        if before.variance > 0.0:
            sources += before.times(math.sqrt((float(full.ravel()[0]) + of_query) / before.variance))
    return LocalScales.of(np.minimum(np.expm1(kernels.total(*parts)), LARGEST_VARIANCE), sources)


def _log_scales_of_mean(scales: Array, values: State, axis: int, lifted: float) -> tuple[Array, float]:
    """Return the kernel of Cov(ln tau) of means of the values over an axis (one dimension for each axis), and the
    variance that the query's own tau adds, on which the part ``lifted`` of the result depends.
    """
    kernel = np.log1p(np.clip(scales, 0.0, LARGEST_VARIANCE))
    mean = kernels.pair_mean(kernel, values.lengths, values.axes[axis])
    full = kernels.rearranged((1.0 + 2.0 * lifted) ** 2 * mean, [i[0] if i else None for i in values.axes])
    return full, max(float(kernel.ravel()[0] - mean.ravel()[0]), 0.0) * lifted * lifted


def scales_of_filters(
    x: State, dims: Collection[int], channels: Collection[int], inverse_dims: float, left: float
) -> LocalScales:
    """Return the local scales of a convolution's channels, each divided by its root mean square over the atoms
    ``dims``.

    The scale that all averaged elements share is divided out. Of Gaussian patches of D = 1 / ``inverse_dims``
    dimensions one filter makes Gaussian numbers. The 2 / D by which products with random filters vary in size belong to
    the filters in one channel, and its norm takes them out; at one position channels share the part ``left`` of them,
    as all see the same patch.
    """
    scales = evaluated(x.local_scales)
    if scales is None or not float(scales.ravel()[0]) > UNEVEN:
        return EVEN_SCALES
    kernel = np.log1p(np.clip(scales, 0.0, LARGEST_VARIANCE))
    of_filters = min(math.log1p(2.0 * inverse_dims) / float(kernel.ravel()[0]), 1.0)
    kernel = kernel - kernels.pair_mean(kernel, x.lengths, list(dims))
    within = tuple(slice(0, 1) if i in channels else slice(None) for i in range(kernel.ndim))
    own = kernel[within] * (1.0 - of_filters)
    kernel = kernel * (1.0 - of_filters * (1.0 - left))
    kernel[within] = own
    made = np.expm1(kernel)
    return LocalScales.of(made, _rescaled_to(x.local_scale_sources, made))


def scales_of_picks(x: State, atom: int, gone: Collection[int], *, apart: bool) -> Marginal:
    """Return the marginal of elements picked along ``atom``: the local scales of x, multiplied for random picks
    (``apart``) by the variances of positions. The atoms ``gone`` are dropped.
    """
    kernel = None if x.function is not None else evaluated(x.local_scales)
    if kernel is not None:
        other = kernels.off_diagonal_mean(kernel, x.lengths, atom)
        kernel = np.concatenate([np.take(kernel, [0], axis=atom), other], axis=atom)
    near = x.gauss or kernel is not None
    if apart and near and x.var.shape[atom] > 1 and not kernels.nonzero(x.mean):
        by_position = x.var.mean(axis=tuple(a for a in range(x.var.ndim) if a != atom))
        level = float(by_position.mean())
        uneven = min(float((by_position**2).mean()) / level**2 - 1.0, LARGEST_VARIANCE) if level > 0.0 else 0.0
        # one number for all that lies at a position
        here = np.full([1 if a == atom else min(n, 2) for a, n in enumerate(x.lengths)], uneven)
        first, second = kernels.common(here, np.zeros((1,) * here.ndim) if kernel is None else kernel)
        kernel = np.asarray((1.0 + first) * (1.0 + second) - 1.0)
    if kernel is None:
        return Marginal(x.gauss)
    return marginal_with(LocalScales.of(kernels.without(kernel, gone), x.local_scale_sources), x.gauss)


def _rescaled_to(sources: Sources, kernel: Array) -> Sources:
    """Return ``sources`` rescaled so that their variance is that of ln tau, ln(1 + kernel at displacement 0)."""
    before, after = sources.variance, math.log1p(max(float(kernel.ravel()[0]), 0.0))
    return sources.times(math.sqrt(after / before)) if before > 0.0 else NONE


EVEN_SCALES = LocalScales.of(np.zeros(0))
"""Local scales that do not vary."""
