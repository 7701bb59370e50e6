"""Sums, products, mixtures and affine maps of states."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from wellposed.arrays import array_of
from wellposed.signals.algebra.finite_width import alike_by_chance, alike_of_product
from wellposed.signals.algebra.linear_maps import difference, of_pairs, times_known
from wellposed.signals.algebra.local_scales import STEADY as STEADY_SIZES
from wellposed.signals.algebra.local_scales import sizes_by_factor, sizes_of_product, sizes_of_sum
from wellposed.signals.algebra.pointwise import apply_pointwise
from wellposed.signals.algebra.softmax import summed
from wellposed.signals.algebra.statistics import jointly, plus_statistic, times_statistic
from wellposed.signals.context.arguments import MASKED, known_state
from wellposed.signals.context.call import Call, PartCall, Unknown
from wellposed.signals.distributions.alignment import Aligned, align, covariances, without_repeats
from wellposed.signals.distributions.blocks import (
    MOST_PARTS,
    alike_of_parts,
    concatenate,
    depend,
    laid_out,
    spread_of_parts,
)
from wellposed.signals.distributions.fluctuations import gaussian_fluctuation
from wellposed.signals.distributions.functions import IDENTITY, Pointwise
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.marginals import marginal, sign_of
from wellposed.signals.distributions.moments import Moments
from wellposed.signals.distributions.parts import select
from wellposed.signals.distributions.repeats import REPEATED, Factors
from wellposed.signals.distributions.spread import STEADY, Spread, source
from wellposed.signals.distributions.state import (
    Ancestry,
    Filters,
    Link,
    Marginal,
    Scaled,
    Standardised,
    State,
    weakest,
)
from wellposed.signals.distributions.views import expand, pooled
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.taps import times
from wellposed.signals.integration.transport import Postponed, of_product, of_sum, of_values
from wellposed.signals.sampling.joint_sources import can_run
from wellposed.signals.sampling.samples import outside

SINGLE = float(np.finfo(np.float32).max)
"""Largest number in single precision."""
VARYING = 1e-3
"""Share of the variance in a divisor's second moment from which on what it has in common with the dividend counts."""
SMALL, PAIRS = 1 << 12, 1 << 16
"""Most elements of a mask that is followed position by position, and of one over pairs of times that decay."""


def operand(call: Call, value: Any) -> State | float:
    """Return an operand as a number or a state (masks and constants become states of their values; complex numbers
    count by their size, as complex signals do).
    """
    if isinstance(value, State):
        # a constant is a number only where it broadcasts against the other operand
        return value
    if isinstance(value, torch.Tensor):
        value = value.abs() if value.is_complex() else value
        if value.ndim == 0:
            return float(value)
        return known_state(value.to(torch.float64), call.root())
    if isinstance(value, Unknown) and value.state is not None:
        return value.state
    if isinstance(value, Unknown):
        if value.dtype == torch.bool:  # a mask that the inputs decide: taken as letting everything through
            return make_state(value.shape, 1.0, 0.0, tag="assumed")
        return make_state(value.shape, 0.0, 1.0, tag="assumed", roots=call.root())
    if isinstance(value, complex):
        return abs(value) if value.imag else float(value.real)
    return float(value)


def linear(call: Call, x: State, scale: float, shift: float = 0.0) -> State:
    """Return scale * x + shift."""
    if scale == 1.0 and shift == 0.0:
        return x
    if x.blocks:
        return concatenate([linear(call, b, scale, shift) for b in x.blocks], x.block_axis)
    key = ("linear", x.serial, x.axes, x.scale_parameter, x.tag, scale, shift)
    if shift and key in call.run.memo:  # worked out twice, it is one tensor
        again: State = call.run.memo[key]
        return again
    affine = Pointwise(("affine", scale, shift), lambda t: scale * t + shift)
    margin = None if x.margin is None else x.margin.then(lambda margin: scale * scale * margin)
    result = x.changed(
        moments=Moments(
            scale * x.mean + shift, scale * scale * x.var, x.corr, x.finite_width_correlation, x.equal_norm_inverse_dim
        ),
        marginal=_linear_marginal(x, affine, scale, shift),
        filters=Filters(x.channel_norm_correction, margin, inverse_dims=x.inverse_dims, residual_dims=x.residual_dims),
        ancestry=Ancestry((Link(x, Scaled(scale)),) if x.roots else (), x.roots, x.scale_parameter),
    )
    result = _norms_and_scores(call, x, result, affine, scale, shift)
    if x.linear_map is not None and shift == 0.0:
        result = result.amended(linear_map=replace(x.linear_map, weights=scale * x.linear_map.weights))
    if shift == 0.0 or call.independent:
        return result
    base, fn = result.gaussian_source()
    if x.fn is not None and fn is not None and base.lengths == result.lengths:  # sigmoid(x) - 1/2 is small where x is
        spread = apply_pointwise(call, base.amended(axes=result.axes), fn).spread
    else:
        spread = _shifted_spread(x, result, scale)
    call.run.memo[key] = result = result.amended(spread=spread)
    return result


def _linear_marginal(x: State, affine: Pointwise, scale: float, shift: float) -> Marginal:
    base, fn = x.base, None
    if x.fn is not None:
        fn = x.fn.then(affine)
    elif x.roots and x.scale_parameter is None:  # a function of x: x * sigmoid(1.7 * x) is integrated as one
        base, fn = x, affine
    transport = x.transport if x.transport is None or scale > 0.0 else x.transport.negated()
    if x.local_scales is None or kernels.nonzero(x.mean) or shift:
        return Marginal(x.gauss, base, fn, transport)
    return Marginal(x.gauss, base, fn, transport, x.local_scales, x.local_scale_sources)


def _norms_and_scores(call: Call, x: State, result: State, affine: Pointwise, scale: float, shift: float) -> State:
    """Return scale * x + shift as the statistic, the standardised tensor or the masked scores that x is."""
    if x.statistic is not None:
        result = result.amended(statistic=x.statistic.then(affine.call))
    if x.standardised is not None and shift == 0.0:
        made = x.standardised
        factor = made.factor.then(affine.call)
        result = result.amended(standardised=Standardised(made.of, made.centred, factor))
    if x.scores is not None:  # what is let through is changed alike; what is shut out stays so
        result = result.amended(scores=linear(call, x.scores, scale, shift), mask=x.mask if scale > 0.0 else None)
    return result


def _shifted_spread(x: State, result: State, scale: float) -> Spread:
    """Return the spread of scale * x + shift: the shift does not vary with x, which therefore counts for less."""
    level = result.second_moment
    if level <= 0.0 or x.spread is STEADY:
        return x.spread
    shift = result.pooled_mean - scale * x.pooled_mean
    share = scale * (scale * x.second_moment + shift * x.pooled_mean) / level
    own = x.own
    if own.amounts.size and (before := gaussian_fluctuation(x)) > 0.0:
        own = own.times(math.copysign(math.sqrt(gaussian_fluctuation(result) / before), share))
    return Spread(x.inherited.times(share), own, x.drift * share)


def combine(call: Call, x: State, y: State, a: float, b: float) -> State:
    """Return a x + b y, with what the two have in common (signals that share an ancestor do not add like strangers)."""
    shape = call.shape()
    simple = _simple_sum(call, x, y, a, b)
    if simple is not None:
        return simple
    key = ("sum", x.serial, y.serial, x.axes, y.axes, a, b, shape)
    if key in call.run.memo:
        again: State = call.run.memo[key]
        return again
    one = fused(call, x, y, ("sum", a, b), lambda p, q: a * p + b * q)
    if one is None and x.roots & y.roots:
        one = _each_part(call, x, y, lambda part, p, q: combine(part, p, q, a, b))
    one = one or _by_parts(call, x, y, lambda part, p, q: combine(part, p, q, a, b))
    one = one or plus_statistic(call, x, y, a, b) or plus_statistic(call, y, x, b, a) or difference(x, y, a, b)
    one = one or (of_pairs(x, y, a) if a == -b else None)
    if one is not None:
        return one
    result = _sum(call, *without_repeats(laid_out(x), laid_out(y)), a, b)
    if x.logits or y.logits:
        terms = [(w * w * kernels.average(s.var), s.logits) for w, s in ((a, x), (b, y))]
        result = result.amended(logits=summed(terms))
    if not (x.roots and y.roots):  # the same sum with known numbers, worked out twice, is one tensor
        call.run.memo[key] = result
    both = jointly(x, y, lambda p, q: a * p + b * q)
    return result if both is None else result.amended(statistic=both)


def _simple_sum(call: Call, x: State, y: State, a: float, b: float) -> State | None:
    """Return a x + b y of masked scores, with a number, or as a difference that is known already; None elsewhere."""
    shape = call.shape()
    for one, other in ((x, y), (y, x)):
        whole = one.mask is None or (one.scores is not None and one.shape == shape)
        if other.mask is not None and other.scores is None and whole and a == b == 1.0:
            return masked(expand(one, shape), other.mask, other.pooled_mean, other.pooled_var)
    for one, other, its, others in ((x, y, a, b), (y, x, b, a)):
        if one.mask is None or one.scores is None or (other.is_constant and one.shape == shape):
            continue
        if its > 0.0 and (other.mask is None or other.scores is not None):
            inner, apart = (
                combine(call, one.scores, other, its, others),
                its * (one.pooled_mean - one.scores.pooled_mean),
            )
            return masked(inner, one.mask, apart, its * its * max(one.pooled_var - one.scores.pooled_var, 0.0))
    if y.is_constant and x.shape == shape:
        return linear(call, x, a, b * y.pooled_mean)
    if x.is_constant and y.shape == shape:
        return linear(call, y, b, a * x.pooled_mean)
    return _known_difference(call, x, y, a) if a == -b else None


def _known_difference(call: Call, x: State, y: State, a: float) -> State | None:
    """Return a (x - y) where one of them was made as the other and what it has beyond it; None elsewhere."""
    for larger, other, sign in ((x, y, a), (y, x, -a)):
        gap = dict(larger.beyond).get(other.serial)
        if gap is not None and gap.shape == call.shape():
            return linear(call, gap, sign)
    return None


ROUNDING = 1e-12
"""Correlation below which two signals have none."""
LITTLE = 1e-3
"""Share of a sum's variance below which a part leaves its shape as it is."""


def _sum(call: Call, x: State, y: State, a: float, b: float) -> State:
    p, q, layout = align(x, y)
    mean = a * p.mean + b * q.mean
    var = a * a * p.var + b * b * q.var
    of_x, of_y = covariances([p, q])
    kernel = a * a * of_x + b * b * of_y
    cross = _cross(call, x, y, p, q)
    if cross is not None:
        var = np.maximum(var + 2 * a * b * _common(cross, np.sqrt(p.var) * np.sqrt(q.var)), 0.0)
        kernel = kernels.total(kernel, 2 * a * b * cross)
    first, second = a * a * kernels.average(p.var), b * b * kernels.average(q.var)
    level = kernels.average(var)
    little, shares = LITTLE * level, (a * a * p.var, b * b * q.var)
    if cross is not None and level > 0.0:
        share, _ = _shared(first, second, level)
        shares = (share * var, (1.0 - share) * var)
    alike = alike_of_parts(zip((x, y), shares, strict=True), var)
    gauss = (x.gauss or first <= little) and (y.gauss or second <= little)
    transport = None
    if cross is None and not gauss and call.wants_marginal and mean.size:
        transport = of_sum(a * marginal(x), b * marginal(y))
    sizes = STEADY_SIZES
    if not call.independent and kernels.average(mean * mean) <= little:
        sizes = sizes_of_sum(call, x, y, p, q, first, second)
    result = State(
        layout,
        Moments(mean, var, kernels.correlation(kernel, var), alike),
        tag=weakest(x.tag, y.tag),
        marginal=replace(_shifted(x, y, p, q) or sizes.marginal(gauss), transport=transport),
        ancestry=Ancestry(_links([(x, p, a), (y, q, b)]), x.roots | y.roots),
    )
    result = (
        result
        if call.independent
        else result.amended(spread=_spread_of_sum(call, ((x, p, a, of_x), (y, q, b, of_y)), result))
    )
    return expand(result, call.shape())


def _shifted(x: State, y: State, p: Aligned, q: Aligned) -> Marginal | None:
    """Return the shape of a signal's marginal after known numbers are added (a bias of its own for each channel): the
    local scale is that of what varies about them. None of other sums.
    """
    for one, own, other in ((x, p, q), (y, q, p)):
        if (
            own.local_scales is not None
            and one.fn is None
            and kernels.nonzero(own.var)
            and not kernels.nonzero(other.var)
        ):
            return Marginal(one.gauss, local_scales=own.local_scales, local_scale_sources=one.local_scale_sources)
    return None


def _spread_of_sum(
    call: Call, parts: tuple[tuple[State, Aligned, float, Array], tuple[State, Aligned, float, Array]], result: State
) -> Spread:
    """Return the spread of a x + b y: each counts with its share of the second moment, and what lies between them, 2 a
    b x y, varies from draw to draw of its own. Each part is a state, as aligned, its factor, and its covariance kernel.
    """
    (x, p, a, of_x), (y, q, b, of_y) = parts
    if x.spread is STEADY and y.spread is STEADY:
        return STEADY
    level = result.second_moment
    first, second = a * a * kernels.average(p.var + p.mean**2), b * b * kernels.average(q.var + q.mean**2)
    if level <= 1e-12 * (first + second):  # what remains of a difference is rounding
        return STEADY
    of_x, of_y = of_x * (a * a / level), of_y * (b * b / level)
    mean_x, mean_y = (
        kernels.autocorrelation(c * part.mean, of_x.shape) / level if kernels.nonzero(part.mean) else np.zeros(())
        for c, part in ((a, p), (b, q))
    )
    between = of_x * of_y + mean_x * of_y + mean_y * of_x
    share, slope = _shared(first, second, level)
    if slope:  # what the smaller one and the rest have between them
        small, whole, large = (of_y, of_y + mean_y, of_x) if first > second else (of_x, of_x + mean_x, of_y)
        between = (1.0 + slope) ** 2 * whole * np.maximum(large - slope**2 * small, 0.0)
    mixed = float(kernels.pair_mean(4.0 * between, result.lengths).ravel()[0])
    mixed = min(mixed, 2.0)  # no Gaussian's square varies by more
    spread = x.spread.beside(y.spread, 1.0 - share)
    return Spread(spread.inherited, spread.own + source(call.source(), mixed), spread.drift)


def _shared(first: float, second: float, level: float) -> tuple[float, float]:
    """Return the share that the first of two summands has of the power of their sum, ``level``, given the power of each
    by itself, and the slope of the larger one on the other where it is taken to be made of that, else 0.

    What the two have in common is shared equally. Where that would leave one of them less than nothing (a small
    difference of what is nearly alike), the larger one is a multiple of the other, which goes along with it, and a rest
    that is as the larger one is.
    """
    share = 0.5 + 0.5 * (first - second) / level
    if 0.0 <= share <= 1.0:
        return share, 0.0
    small, large = sorted((first, second))
    if small <= 0.0:
        return (1.0 if first > second else 0.0), 0.0
    slope = (level - first - second) / (2.0 * small)
    rest = min(max(large - slope**2 * small, 0.0) / level, 1.0)
    return (rest if first > second else 1.0 - rest), slope


def masked(x: State, mask: torch.Tensor, mean: float, var: float) -> State:
    """Return scores to which a mask's numbers (of this mean and variance) are added, keeping what is let through."""
    x = pooled(x)
    if x.mask is not None and x.scores is not None:  # what either mask shuts out
        before, mask = x.mask.broadcast_to(x.shape), mask.broadcast_to(x.shape)
        if torch.equal(before, mask):  # the numbers of both add up, in the same places
            var += 2.0 * math.sqrt(var * max(x.pooled_var - x.scores.pooled_var, 0.0))
        both = x.with_moments(mean=x.mean + mean, var=x.var + var, mask=before & mask, scores=x.scores, gauss=False)
        if torch.equal(before, mask) and outside(both) < -1.01 * SINGLE:  # infinite: what is let through remains
            return masked(x.scores, mask, 0.0, 0.0)
        return both
    return x.with_moments(mean=x.mean + mean, var=x.var + var, mask=mask, scores=x, gauss=False)


_SQUARABLE = 1e150


def shut_out(x: State, kept: torch.Tensor, number: float) -> State:
    """Return scores that are a large negative number outside the mask ``kept``, keeping what they are inside.

    Scores that a mask shuts out already stay so; theirs is the number of that mask where ``kept`` lets them through.
    """
    inner, shut = x, [(~kept, number)]
    if x.mask is not None and x.scores is not None:
        kept, before = torch.broadcast_tensors(kept, x.mask)
        inner, shut = x.scores, [(~kept, number), (kept & ~before, outside(x))]
        kept = kept & before
    # the lowest number of double precision has no square: it counts as infinite
    apart = [(float(at.double().mean()), n - inner.pooled_mean) for at, n in shut if abs(n) < _SQUARABLE]
    mean = sum(share * distance for share, distance in apart)
    square = sum(share * distance**2 for share, distance in apart)
    return masked(inner, kept, mean, square - mean**2)


def is_shut_out(x: State, kept: torch.Tensor) -> bool:
    """Whether x is the weights of a softmax whose logits were shut out wherever ``kept`` does not hold: 0 there, but
    for rows of which nothing is let through.
    """
    shown = None if x.softmax is None else x.softmax.shown
    if shown is None or not bool(shown.any(dim=-1).all()):
        return False
    try:
        shown, kept = torch.broadcast_tensors(shown, kept.bool())
    except RuntimeError:  # of another shape: a view of the weights
        return False
    return not bool((shown & ~kept).any())


def within(call: Call, x: State, kept: torch.Tensor, number: float, most: int = SMALL) -> State | None:
    """Return x where ``kept`` holds and a number elsewhere, position by position; None of large masks."""
    if kept.numel() > most or call.independent:
        return None
    inside = multiply(call, x, _by_position(kept))
    return inside if not number else combine(call, inside, linear(call, _by_position(~kept), number), 1.0, 1.0)


def _by_position(mask: torch.Tensor) -> State:
    """Return a known mask as 1 where it holds and 0 elsewhere."""
    array = array_of(mask).reshape([n for n in mask.shape if n > 1])
    whole = make_state(tuple(mask.shape), 0.0, 0.0)
    return whole.with_moments(mean=array, var=np.zeros((1,) * array.ndim), roots=0)


def function_within(call: Call, x: State, function: Pointwise) -> State | None:
    """Return f of scores that a mask shuts out: what f makes of those inside, with 0 elsewhere for f that is 0 far
    below (exp), or as masked scores again for f that stays far below (a clamp); None for others.
    """
    if x.mask is None or x.scores is None or x.scores.shape != x.shape:
        return None
    far = function(np.array([-30.0, -300.0, outside(x)]))
    if np.isfinite(far[:2]).all() and np.abs(far[:2]).max() < 1e-9:
        scores = x.scores  # by position, what is shut out may be of another size: rates that grow in place of decays
        inside = within(call, scores, x.mask, 0.0, PAIRS) if scores.mean.size > 1 else None
        if inside is not None and sign_of(inside) < 0:  # positions that are integrated together may differ a little
            function = function.clipped(-math.inf, 0.0)
        return within(
            call, apply_pointwise(call, inside or scores, function), x.mask, 0.0, SMALL if inside is None else PAIRS
        )
    if far[2] <= MASKED:
        return shut_out(apply_pointwise(call, x.scores, function), x.mask, float(far[2]))
    return None


def _cross(call: Call, x: State, y: State, p: Aligned, q: Aligned) -> Array | None:
    if p.dims is None or q.dims is None or not kernels.nonzero(x.var) or not kernels.nonzero(y.var):
        return None
    cross = call.covariance(x, y, p.dims, q.dims)
    scale = math.sqrt(kernels.average(x.var) * kernels.average(y.var))
    return None if cross is None or float(np.abs(cross).max()) <= ROUNDING * scale else cross


def _links(parts: list[tuple[State, Aligned, float]]) -> tuple[Link, ...]:
    return tuple(Link(s, Scaled(c), a.dims) for s, a, c in parts if s.roots and c and a.dims is not None)


def _common(cross: Array, product: Array) -> Array:
    """Return the covariance of two signals at one position, given the product of their standard deviations."""
    if any(map(kernels.positions, cross.shape)):
        return np.asarray(np.clip(kernels.diagonal(cross), -product, product))
    scale = kernels.average(product)
    return np.asarray((np.clip(float(cross.ravel()[0]) / scale, -1.0, 1.0) if scale > 0 else 0.0) * product)


def fused(call: Call, x: State, y: State, key: tuple[object, ...], function: Any) -> State | None:
    """Where both operands are functions of one Gaussian tensor, integrate the result as one function of it."""
    if x.serial == y.serial and x.gauss and x.layout == y.layout:  # a concatenation of equal parts times itself
        x, y = pooled(x), pooled(y)
    (base, first), (other, second) = x.gaussian_source(), y.gaussian_source()
    if call.independent or base.serial != other.serial or x.layout != y.layout:
        return None
    if x.blocks or y.blocks or not kernels.nonzero(x.var):
        return None
    f, g = first or IDENTITY, second or IDENTITY
    joint = Pointwise((key, f.key, g.key), lambda t: function(f.call(t), g.call(t)))
    return apply_pointwise(call, base.amended(axes=x.axes), joint)


def multiply(call: Call, x: State, y: State) -> State:
    """Return x y for two tensors (Gaussian, and correlated where they share an ancestor)."""
    shape = call.shape()
    for constant, other in ((y, x), (x, y)):
        if constant.is_constant and other.shape == shape:
            return scaled(call, other, constant.pooled_mean)
    one = _each_part(call, x, y, multiply) or fused(call, x, y, ("product",), lambda p, q: p * q)
    one = one or times_statistic(call, x, y) or times_statistic(call, y, x)
    one = one or _factor_times_statistic(call, x, y) or _factor_times_statistic(call, y, x)
    one = one or times_known(x, y) or times_known(y, x)
    one = one or _by_parts(call, x, y, multiply)
    if one is not None:
        return one
    result = _product(call, *without_repeats(pooled(x), pooled(y)))
    both = jointly(x, y, torch.mul)
    return result if both is None else result.amended(statistic=both)


def _each_part(call: Call, x: State, y: State, operate: Callable[[Call, State, State], State | None]) -> State | None:
    """Return the sum, product or quotient of two concatenations of as many parts along one axis, part by part (tokens
    of which some are all zero, and their sizes; two functions of one concatenation); None elsewhere.
    """
    axis = x.block_axis
    if not x.blocks or call.independent or y.block_axis != axis or len(x.axes) != len(y.axes) or x.shape[axis] == 1:
        return None
    shape, widths = call.shape(), [block.shape[axis] for block in x.blocks]
    if [block.shape[axis] for block in y.blocks] != widths or len(shape) != len(x.axes):
        return None
    parts = [
        operate(PartCall(call.run, call.node, (*shape[:axis], width, *shape[axis + 1 :])), one, other)
        for one, other, width in zip(x.blocks, y.blocks, widths, strict=True)
    ]
    return None if any(part is None for part in parts) else concatenate([p for p in parts if p is not None], axis)


def _by_parts(call: Call, x: State, y: State, operate: Callable[[Call, State, State], State | None]) -> State | None:
    """Return the sum or product with a stack of tensors that depend on one another part by part (branches and their
    weights, streams and what is added to each), so that what comes of each knows what it has in common with the others;
    None elsewhere.
    """
    shape = call.shape()
    stacks = [
        one
        for one, other in ((x, y), (y, x))
        if len(one.axes) == len(shape)
        and (
            depend(one.blocks) or (1 < len(one.blocks) <= MOST_PARTS and any(b.roots & other.roots for b in one.blocks))
        )
    ]
    if call.independent or not stacks:
        return None
    axis, count = stacks[0].block_axis, len(stacks[0].blocks)
    if shape[axis] != count or any(block.shape[axis] != 1 for block in stacks[0].blocks):
        return None
    part = PartCall(call.run, call.node, (*shape[:axis], 1, *shape[axis + 1 :]))
    pairs = zip(_slices(x, axis - len(shape), count), _slices(y, axis - len(shape), count), strict=True)
    parts = [operate(part, p, q) for p, q in pairs]
    return None if any(p is None for p in parts) else concatenate([p for p in parts if p is not None], axis)


def _slices(x: State, axis: int, count: int) -> list[State]:
    """Return the slices of width 1 along an axis (counted from behind), which a smaller tensor has the same of."""
    if -axis > len(x.axes) or x.shape[axis] == 1:
        return [x] * count
    return [select(x, axis, i, i + 1, 1, drop=False) for i in range(count)]


def divide(call: Call, x: State, y: State) -> State | None:
    """Return x / y: of two functions of one tensor as one function, by a statistic of x for that of one draw, else
    through the moments of the reciprocal; None where y comes too near to 0 for that, and where the two depend on one
    another, y varies, and they can be drawn together.
    """
    one = (
        _each_part(call, x, y, divide)
        or fused(call, x, y, ("div",), torch.div)
        or times_statistic(call, x, y, inverse=True)
        or _factor_times_statistic(call, x, y, inverse=True)
    )
    if one is not None:
        return one
    together = x.roots & y.roots and can_run(call.run, call.node)
    if together and kernels.average(y.var) > VARYING * y.second_moment:
        return None
    reciprocal = reciprocal_of(call, y)
    if reciprocal is None and sign_of(y) and not together:
        reciprocal = apply_pointwise(call, y, Pointwise(("reciprocal",), torch.reciprocal))
    if reciprocal is None:
        return None
    result = multiply(call, x, reciprocal)
    both = jointly(x, y, torch.div)
    return result if both is None else result.amended(statistic=both)


def _factor_times_statistic(call: Call, x: State, y: State, *, inverse: bool = False) -> State | None:
    """Return x y (x / y with ``inverse``) for a product x of which y is a statistic of one factor (x = a b, a / |a|
    being known: a signal that is given another one's size); None elsewhere.
    """
    if y.statistic is None or x.factors is None or x.factors[2] != x.layout:
        return None
    a, b, _ = x.factors
    for one, other in ((a, b), (b, a)):
        quotient = times_statistic(call, one, y, inverse=inverse) if one.shape == x.shape else None
        if quotient is not None:
            return multiply(call, quotient, other)
    return None


def _product(call: Call, x: State, y: State) -> State:
    p, q, layout = align(x, y)
    mean = p.mean * q.mean
    var = p.var * q.var + p.mean**2 * q.var + q.mean**2 * p.var
    of_x, of_y = covariances([p, q])
    sizes, together = (STEADY_SIZES, np.zeros(())) if call.independent else sizes_of_product(x, y, p, q)
    squared_x, squared_y = (kernels.autocorrelation(part.mean, of_x.shape) for part in (p, q))
    kernel = of_x * of_y + squared_x * of_y + squared_y * of_x
    by_chance = alike_by_chance(call, x, y, of_x, of_y, layout)
    kernel = kernel if by_chance is None else kernels.total(kernel, by_chance)
    cross = _cross(call, x, y, p, q)
    if cross is not None:
        c = _common(cross, np.sqrt(p.var) * np.sqrt(q.var))
        kernel = kernels.total(kernel, cross**2, 2 * kernels.average(mean) * cross)
        mean, var = mean + c, var + c * c + 2 * p.mean * q.mean * c
    if together.any():  # where one is large, so is the other
        kernel, others = kernels.common(kernel, together)
        kernel = kernel * (1.0 + others)
        var = var + float(together.ravel()[0]) * (p.var + p.mean**2) * (q.var + q.mean**2)
    var = np.maximum(var, 0.0)
    alike = alike_of_product(call, (x, y), (p, q), layout, kernels.average(var))
    shape, made = sizes.marginal(False), _marginal_of_product(call, x, y, cross is None)
    if cross is None and not call.independent:
        by_factor = sizes_by_factor(call, x, y, p, q) or sizes_by_factor(call, y, x, q, p)
        shape, made = (shape, made) if by_factor is None else (by_factor.marginal(True), Marginal(True))
    even = (0.0 if kernels.nonzero(q.var) else x.equal_norm_inverse_dim) or (
        0.0 if kernels.nonzero(p.var) else y.equal_norm_inverse_dim
    )
    result = State(
        layout,
        Moments(mean, var, kernels.correlation(kernel, var), alike, even),
        tag=weakest(x.tag, y.tag),
        marginal=replace(made, local_scales=shape.local_scales, local_scale_sources=shape.local_scale_sources),
        ancestry=Ancestry(
            _links_of_product(x, y, p, q),
            x.roots | y.roots,
            _scale_parameter_of_product(x, y),
        ),
        spread=_spread_of_product(call, x, y, of_x, of_y, layout.lengths),
    )
    if result.roots & REPEATED and p.dims is not None and q.dims is not None:
        call.run.dependence.factors[result.serial] = Factors((x, y), (p.dims, q.dims))
    result = expand(result, call.shape())
    by_group = x.roots and y.roots and len(x.lengths) != len(y.lengths)
    return result.amended(factors=(x, y, result.layout)) if by_group else result


def _links_of_product(x: State, y: State, p: Aligned, q: Aligned) -> tuple[Link, ...]:
    """Return the links of a product to its factors; known numbers along one atom (1 / n for a mean of the first n)
    weigh each position by its own.
    """
    for one, own, known in ((x, p, q), (y, q, p)):
        varying = [i for i, n in enumerate(known.mean.shape) if n > 1]
        if kernels.nonzero(known.var) or len(varying) != 1 or own.dims is None or not one.roots:
            continue
        atom = own.dims[varying[0]]
        if atom is not None:
            return (Link(one, Scaled(1.0), own.dims, taps=((atom, times(known.mean.ravel())),)),)
    return _links([(x, p, _slope(q.mean, p.var)), (y, q, _slope(p.mean, q.var))])


def _slope(means: Array, var: Array) -> float:
    """Return the mean of one factor, averaged over positions by how much the other varies there."""
    if means.size == 1 or var.size == 1 or not (total := kernels.average(var)):
        return kernels.average(means)
    return kernels.average(means * var) / total


def _spread_of_product(call: Call, x: State, y: State, of_x: Array, of_y: Array, sizes: tuple[int, ...]) -> Spread:
    """Return the spread of x y: logarithms add up; where large squares meet large ones is another draw's matter."""
    spread = x.spread + y.spread
    if not (x.own.amounts.size and y.own.amounts.size) or x.own.start == y.own.start:
        return spread
    level = math.prod(float(kernels.at_zero(kernel, range(kernel.ndim)).ravel()[0]) for kernel in (of_x, of_y))
    if level <= 0.0:
        return spread
    mixed = 4.0 * float(kernels.pair_mean((of_x * of_y / level) ** 2, sizes).ravel()[0])
    return Spread(spread.inherited, spread.own + source(call.source(), mixed), spread.drift)


def _marginal_of_product(call: Call, x: State, y: State, independent: bool) -> Marginal:
    """Return the shape of a product's marginal: with known numbers of one sign it is that of the other factor."""
    for factor, other in ((y, x), (x, y)):
        if kernels.nonzero(factor.var):
            continue
        least, most = kernels.extent(factor.mean)
        if (
            other.gauss
            or call.independent
            or other.local_scales is not None
            or least * most < 0.0
            or least == most == 0.0
        ):
            return Marginal(other.gauss)
        transport = of_values(marginal(other))
        return Marginal(transport=transport if transport is None or least >= 0.0 else transport.negated())
    if not independent or call.independent:
        return Marginal()
    return Marginal(transport=Postponed(lambda: of_product(marginal(x), marginal(y))))


def _scale_parameter_of_product(x: State, y: State) -> str | None:
    """Return the scale parameter of a factor where the other one is known."""
    if x.scale_parameter is not None and not y.roots:
        return x.scale_parameter
    return None if x.roots else y.scale_parameter


def extreme(call: Call, x: State, y: State, sign: float) -> State:
    """Return the larger of two tensors (the smaller with ``sign`` -1): x plus what y has beyond it, relu(y - x)."""
    if sign * x.pooled_mean < sign * y.pooled_mean:  # from the nearer one: a running maximum starts at -1e38
        x, y = y, x
    relu = Pointwise(("beyond", sign), lambda t: sign * torch.relu(sign * t))
    over_x = apply_pointwise(call, expand(combine(call, y, x, 1.0, -1.0), call.shape()), relu)
    over_y = apply_pointwise(call, expand(combine(call, x, y, 1.0, -1.0), call.shape()), relu)
    result = combine(call, x, over_x, 1.0, 1.0)
    return result.amended(beyond=((x.serial, over_x), (y.serial, over_y)))


def filled(call: Call, value: State | float) -> State:
    """Return an operand as a state, a number as that of a tensor that holds it everywhere."""
    return value if isinstance(value, State) else make_state(call.shape(), value, 0.0)


def scaled(call: Call, x: State, factor: float) -> State:
    """Return x times a number; a scale that is still to be chosen stays so."""
    result = linear(call, x, factor)
    return result if x.scale_parameter == result.scale_parameter else result.changed(scale_parameter=x.scale_parameter)


def reciprocal_of(call: Call, y: State) -> State | None:
    """Return 1 / y where y stays away from 0 (its mean is well above its standard deviation); None elsewhere.

    To second order in std/mean: E 1/y = (1 + r)/m, Var = r/m² with r = (std/mean)².
    """
    with np.errstate(all="ignore"):
        relative = y.var / np.square(y.mean)
    if not np.isfinite(relative).all() or float(relative.max(initial=0.0)) > 0.25:
        return None
    return pooled(y).with_moments(
        mean=(1 + relative) / y.mean,
        var=relative / np.square(y.mean),
        gauss=False,
        scale_parameter=None,
        spread=y.spread.times(-1.0),
        statistic=None if y.statistic is None else y.statistic.then(torch.reciprocal),
    )


def chosen(call: Call, condition: State, x: State, y: State) -> State:
    """Return c x + (1 - c) y for a condition c on signals (0 or 1), with what the three have in common."""
    refused = linear(call, condition, -1.0, 1.0)
    return combine(call, multiply(call, condition, x), multiply(call, refused, y), 1.0, 1.0)


def broadcast(call: Call, value: State | float, shape: tuple[int, ...]) -> State:
    """Return an operand broadcast to a shape."""
    if isinstance(value, State):
        return expand(value, shape)
    return make_state(shape, value if np.isfinite(value) else 0.0, 0.0)


def mixture(call: Call, x: State, y: State, share: float) -> State:
    """Return the state of a tensor that is x at a share of its positions and y at the others."""
    if share in (0.0, 1.0):
        return x if share == 1.0 else y
    p, q, layout = align(pooled(x), pooled(y))
    mean = share * p.mean + (1 - share) * q.mean
    second = share * (p.mean**2 + p.var) + (1 - share) * (q.mean**2 + q.var)
    var = np.maximum(second - mean**2, 0.0)
    of_x, of_y = covariances([p, q])
    kernel = np.array(share**2 * of_x + (1 - share) ** 2 * of_y)
    kernel = kernels.with_diagonal(kernel, kernels.average(var))
    links = _links([(x, p, share), (y, q, 1 - share)])
    return State(
        layout,
        Moments(mean, var, kernels.correlation(kernel, var)),
        tag=weakest(x.tag, y.tag),
        ancestry=Ancestry(links, x.roots | y.roots),
        spread=spread_of_parts([(share * x.second_moment, x), ((1 - share) * y.second_moment, y)]),
    )
