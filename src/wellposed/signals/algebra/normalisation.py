"""A state less its mean over axes, divided by its root mean square over them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from wellposed.signals.algebra.effective_dims import finite_width_after_norm
from wellposed.signals.algebra.local_scales import marginal_with, scales_of_filters
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.blocks import laid_out
from wellposed.signals.distributions.functions import Pointwise
from wellposed.signals.distributions.layout import Dims
from wellposed.signals.distributions.lazy import evaluated
from wellposed.signals.distributions.marginals import shape_of
from wellposed.signals.distributions.moments import Moments
from wellposed.signals.distributions.spread import STEADY
from wellposed.signals.distributions.state import Ancestry, FunctionOf, Link, Marginal, State
from wellposed.signals.distributions.views import merge_atoms, pooled, reshape
from wellposed.signals.integration import kernels, maps
from wellposed.signals.integration.gaussian import NODES, WEIGHTS
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.special import ndtr
from wellposed.signals.integration.transport import Transport, of_few

NOTHING_CENTRED = 1e-12
"""Share of a variance below which what is left of it without the variance of the mean is rounding. Chosen."""

FEW_NORMALISED = 12
"""Elements up to which one of them divided by their root mean square is no Gaussian, and up to which what they have in
common without their mean is followed. Chosen."""
KEPT_SIZE = 0.5
"""Power of its own size that a tensor keeps, below which its elements count as divided by it. Chosen: half way."""
LEAST_SHARE = 1e-3
"""Share of channels that vary, at least. Chosen: a norm of none would have no size."""
SAME_FUNCTION, SAME_SHAPE = 0.05, 0.5
"""Share of the variance that elements averaged together have in common, up to which what is left without it is still
the function that the tensor was, and up to which its distribution is nearer to the tensor's shape than to a Gaussian's.
Chosen."""


def normalise(
    call: Call, x: State, over: list[int], eps: float, *, centre: bool = True, per_channel: bool = False
) -> State:
    """Return (x - mean) / std, the statistics taken over the axes ``over`` (RMS without ``centre``).

    The statistics are those of one draw: what elements that are averaged together have in common is taken out, so
    S² = mean(v) - K + mean(m²) - mean(m)², K the mean covariance over all pairs (signals.md 5.5).
    """
    # each part has statistics of its own: tokens that are all zero stay so beside others
    x = laid_out(x) if x.blocks and x.blocks.axis not in over and not call.independent else pooled(x)
    if call.independent:
        unit, one = float(x.second_moment > 0), (1,) * len(x.lengths)
        return x.with_moments(mean=np.zeros(one), var=np.full(one, unit), roots=call.root(), spread=STEADY)
    dims = [i for axis in over for i in x.axes[axis]]
    parts = _centred(x, dims, evaluated(x.filters.margin) if per_channel else None) if centre else _as_it_is(x, dims)
    scale = np.sqrt(np.maximum(parts.square, 0.0) + eps)
    scale = np.where(scale > 0, scale, 1.0) * (_share_that_varies(x, dims) ** -0.5 if per_channel else 1.0)
    result = _divided(
        call, x, dims, parts, scale, centre, evaluated(x.filters.channel_norm_correction) if per_channel else None
    )
    if not per_channel:
        return result
    made = evaluated(x.filters.residual_dims)
    inverse_dims, left = (x.finite_width_correlation.variance, 1.0) if made is None else made.tolist()
    if x.gauss and result.gauss:
        scales = scales_of_filters(x, dims, x.axes[1], inverse_dims, left)
        result = result.amended(marginal=marginal_with(scales, True))
    return result.amended(finite_width_correlation=x.finite_width_correlation.times(math.sqrt(left)))


def _share_that_varies(x: State, dims: list[int]) -> float:
    """Return the expected share of channels whose elements do not all lie where the function that made x is flat (not
    all 0 behind a ReLU): a norm makes zeros of the others (signals.md 5.5).
    """
    base, fn = x.gaussian_source()
    count = math.prod(x.lengths[i] for i in dims)
    if fn is None or not base.gauss or count < 2 or base.lengths != x.lengths or base.mean.size + base.var.size > 2:
        return 1.0
    common = float(kernels.pair_mean(base.corr, base.lengths, dims).mean())
    common = min(max((common * count - 1.0) / (count - 1.0), 0.0), 1.0 - 1e-6)
    values = fn(base.mean.item() + math.sqrt(base.var.item()) * NODES)
    ends = [int(np.argmin(ordered == ordered[0])) for ordered in (values, values[::-1])]
    # each element beyond a point that most lie beyond together: a common part, and one of its own
    own = [(NODES[end] - math.sqrt(common) * NODES) / math.sqrt(1.0 - common) for end in ends if end > 1]
    return max(1.0 - sum(float(WEIGHTS @ ndtr(z) ** count) for z in own), LEAST_SHARE)


def _divided(
    call: Call, x: State, dims: list[int], parts: _Parts, scale: Array, centre: bool, correction: Array | None,
    *, of_one_size: bool = True,
) -> State:  # fmt: skip
    """Return the norm of x over the atoms ``dims``: ``parts`` divided by ``scale``, the root mean square if
    ``of_one_size``.
    """
    var = parts.var / scale**2
    pairs = any(map(kernels.positions, parts.kernel.shape))
    square = kernels.autocorrelation(scale, parts.kernel.shape) if pairs else kernels.average(scale**2)
    corr = kernels.correlation(parts.kernel / square, var)
    if correction is not None:
        corr = _with_correction(corr, correction)
    finite_width, even = x.finite_width_correlation, 0.0
    if _of_features(x, dims):  # 1 / D of tokens that all have one size
        finite_width = finite_width_after_norm(call, x)
        even = min(finite_width.variance + 1.0 / math.prod(x.lengths[i] for i in dims), 1.0)
    share = parts.shared / max(kernels.average(x.var), 1e-300)
    function = _function(x, parts, scale) if share < SAME_FUNCTION and not x.gauss else None
    few = _of_few(x, dims, centre) if of_one_size else None
    kept = None if function is not None or share >= SAME_SHAPE else shape_of(x)
    link = _link(x, {i: x.lengths[i] for i in dims}, 1.0 / kernels.average(scale), centre)
    result = x.with_moments(
        moments=Moments(parts.mean / scale, var, corr, finite_width, even),
        marginal=Marginal(x.gauss and few is None, function, transport=few or kept),
        ancestry=Ancestry(
            (link,) if x.roots else (),
            x.roots,
        ),
        spread=STEADY,
    )
    if centre:
        call.run.memo["centred", result.serial] = frozenset(dims)
    return result


def _of_few(x: State, dims: list[int], centre: bool) -> Transport | None:
    """Return the transport of one of a few Gaussians divided by their root mean square: independent ones, or with
    ``centre`` equally correlated ones. Else None.
    """
    count = math.prod(x.lengths[i] for i in dims)
    longest = max((x.corr.shape[i] for i in dims), default=1)
    if (
        not 1 < count <= FEW_NORMALISED
        or not x.gauss
        or longest > (2 if centre else 1)
        or x.mean.size > 1
        or x.var.size > 1
    ):
        return None
    return of_few(count - 1 if centre else count)


def _of_features(x: State, dims: list[int]) -> bool:
    """Whether the atoms ``dims`` are the features of a position: each position is divided by its own norm."""
    features = [axis for axis in x.axes if set(axis) & set(dims)]
    return len(features) == 1 and len(dims) < len(x.lengths) and all(x.corr.shape[i] == 1 for i in dims)


def _function(x: State, parts: _Parts, scale: Array) -> FunctionOf | None:
    """Return the Gaussian tensor that x is a function of, with that function, centred and divided by ``scale``; None
    where means or scales differ by position.
    """
    if x.function is None or scale.size > 1 or parts.centre.size > 1:
        return None
    factor = float(scale.ravel()[0])
    a, b = 1.0 / factor, -float(parts.centre.ravel()[0]) / factor
    return FunctionOf(x.function.base, x.function.fn.then(Pointwise(("affine", a, b), lambda t: a * t + b)))


class _Parts(NamedTuple):
    """What a norm divides: mean, variance and covariance kernel of x less the subtracted mean; and its statistics.

    ``square`` is the mean square whose root divides, ``centre`` the mean that was subtracted, ``shared`` the variance
    that all elements of one group have in common.
    """

    mean: Array
    var: Array
    kernel: Array
    square: Array
    centre: Array
    shared: float


def _as_it_is(x: State, dims: list[int]) -> _Parts:
    square = kernels.mean_over(x.var + x.mean**2, dims)
    return _Parts(x.mean, x.var, x.covariance(), square, np.zeros_like(x.mean), 0.0)


def _centred(x: State, dims: list[int], margin: Array | None) -> _Parts:
    """Return x less its mean over some atoms."""

    def average(array: Array) -> Array:
        return kernels.mean_over(array, dims)

    covariance = x.covariance()
    # few elements have the mean that they lose in common, as much as tells
    few = [
        2 if n == 1 and i in dims and 1 < x.lengths[i] <= FEW_NORMALISED else n for i, n in enumerate(covariance.shape)
    ]
    covariance = kernels.promote(covariance, few)
    centre = average(x.mean)
    with_mean = maps.covariance_with_mean(x.std(), x.corr, x.lengths, dims)
    if margin is not None:
        with_mean = with_mean + margin
    of_mean = average(with_mean)
    level = kernels.average(of_mean)
    # far pairs lie near the borders, where positions depend less on the mean
    at_pairs = maps.mean_at_pairs(with_mean, covariance.shape)
    left = x.var - 2 * with_mean + of_mean
    left = np.where(left > NOTHING_CENTRED * kernels.average(x.var), left, 0.0)  # a single element is its own mean
    relative = at_pairs / level if level > 0 else np.ones((1,) * with_mean.ndim)
    return _Parts(
        x.mean - centre,
        left,
        covariance - kernels.pair_mean(covariance, x.lengths, dims) * (2 * relative - 1),
        average(left) + average(x.mean**2) - centre**2,
        centre,
        level,
    )


def _with_correction(corr: Array, correction: Array) -> Array:
    """Return ``corr`` plus `Filters.channel_norm_correction`, which is 0 at displacements that it lacks."""
    lengths = [max(a, b) for a, b in zip(corr.shape, correction.shape, strict=True)]
    padded = np.zeros(lengths)
    padded[tuple(slice(0, n) for n in correction.shape)] = correction
    return np.asarray(np.clip(kernels.promote(corr, lengths) + padded, -1.0, 1.0))


def _are_positions(x: State, over: frozenset[int]) -> bool:
    """Whether the atoms ``over`` are positions of channels, so that `Filters` apply to a norm over them."""
    return all(x.corr.shape[i] > 1 for i in over) and all(
        n == 1 or i in over
        for later in (x.filters.channel_norm_correction, x.filters.margin)
        if (kept := evaluated(later)) is not None
        for i, n in enumerate(kept.shape)
    )


def standardised(
    call: Call, x: State, over: frozenset[int], centre: bool, factor: Callable[[Array, Array], Array]
) -> State:
    """Return (x - mean(x) if ``centre``) times a function of the mean and the mean square of x over the atoms ``over``.

    As in `normalise`, the statistics are those of one draw; ``factor`` is asked at the root of the expected square of
    the mean, and at the expected mean square, by position.
    """
    dims = sorted(over)
    within = _are_positions(x, over)
    parts = _centred(x, dims, evaluated(x.filters.margin) if within else None)
    total = kernels.mean_over(x.var + x.mean**2, dims)
    first = np.copysign(np.sqrt(np.maximum(total - parts.square, 0.0)), parts.centre)
    first, total = np.broadcast_arrays(first, total)
    scale = 1.0 / factor(first, total)
    kept = parts if centre else _as_it_is(x, dims)
    step = 1e-4
    grown = np.abs(factor((1 + step) * first, (1 + step) ** 2 * total) * scale)
    left = 1.0 + math.log(kernels.average(grown)) / math.log1p(step)  # the power of its own size that x keeps
    correction = evaluated(x.filters.channel_norm_correction) if within and centre else None
    result = _divided(call, x, dims, kept, scale, centre, correction, of_one_size=left < KEPT_SIZE)
    return result.amended(spread=x.spread.times(left))


def _link(x: State, averaged: Mapping[int, int], inverse: float, centre: bool, dims: Dims | None = None) -> Link:
    """Return the link to x of x divided by its deviation (times ``inverse``), less its mean over the atoms ``averaged``
    (with their lengths) if ``centre``; ``dims`` are those of `Link`.
    """

    def operate(k: Array, where: Dims) -> Array:
        if centre:
            inside = {at: count for i, count in averaged.items() if (at := where[i]) is not None}
            near = k[tuple(slice(None if kernels.positions(n) else inside.get(d)) for d, n in enumerate(k.shape))]
            k = k - kernels.pair_mean(near, [inside.get(d, 1) for d in range(k.ndim)], list(inside))
        return k * inverse

    return Link(x, operate, dims)


def normalise_groups(call: Call, x: State, groups: int, eps: float) -> State:
    """Return (x - mean) / std, the statistics taken over each group of channels (axis 1) and all positions."""
    shape, each = x.shape, x.shape[1] // groups
    split = reshape(pooled(x), (shape[0], groups, each, *shape[2:]))
    over = list(range(2, len(split.axes)))
    normal = normalise(call, split, over, eps)
    made = merge_atoms(reshape(normal, shape), 1)
    share = kernels.pair_mean(split.covariance(), split.lengths, [i for axis in over for i in split.axes[axis]])
    left = kernels.average(split.var) - float(share.ravel()[0])
    pairs = list(zip(made.axes, x.axes, strict=True))
    if not x.roots or left <= 0.0 or any(len(mine) != len(its) or len(its) > 1 for mine, its in pairs):
        return made
    # groups are no atom of x, so that its dependence on x is said here
    place = {mine: its for atoms in pairs for mine, its in zip(*atoms, strict=True)}
    averaged = {i: x.lengths[i] for axis in x.axes[2:] for i in axis} | dict.fromkeys(x.axes[1], each)
    inverse = math.sqrt(kernels.average(normal.var) / left)
    dims = tuple([place[i] for i in range(len(made.lengths))])
    return made.amended(links=(_link(x, averaged, inverse, True, dims),))
