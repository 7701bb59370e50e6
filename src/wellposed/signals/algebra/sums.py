"""Sums of two tensors."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

from wellposed.signals.algebra.affine import linear
from wellposed.signals.algebra.linear_maps import differences_of_running_sum, sum_of_maps
from wellposed.signals.algebra.local_scales import EVEN_SCALES, marginal_with, scales_of_sum
from wellposed.signals.algebra.masked_scores import masked
from wellposed.signals.algebra.operands import (
    Recogniser,
    broadcast,
    covariance_at_positions,
    cross_covariance,
    either_way,
    first_recognised,
    fused,
    links_of,
    part_by_part,
    slice_by_slice,
)
from wellposed.signals.algebra.softmax import law_told, summed
from wellposed.signals.algebra.statistics import jointly, plus_statistic
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.alignment import Aligned, align, covariances, without_repeats
from wellposed.signals.distributions.blocks import finite_width_correlation_of_parts, laid_out
from wellposed.signals.distributions.functions import IDENTITY
from wellposed.signals.distributions.marginals import has_shape, marginal
from wellposed.signals.distributions.moments import Moments
from wellposed.signals.distributions.spread import STEADY, Spread, source
from wellposed.signals.distributions.state import Ancestry, Marginal, State, weakest
from wellposed.signals.distributions.views import expand
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.transport import Postponed, Transport, has_values, of_sum, of_sum_of_functions


def combine(call: Call, x: State, y: State, a: float, b: float) -> State:
    """Return a x + b y, with the covariance of the two (signals that share an ancestor are not independent)."""
    result = first_recognised(SUMS, call, x, y, a, b) or _general_sum(call, x, y, a, b)
    if a == -b and x.shape == y.shape:
        call.run.memo["difference", result.serial] = (x, y, a)
    return result


def _general_sum(call: Call, x: State, y: State, a: float, b: float) -> State:
    """Return a x + b y of tensors of which nothing else is known, and remember it where one is known numbers."""
    result = _sum_of_moments(call, *without_repeats(laid_out(x), laid_out(y)), a, b)
    laws = law_told(x), law_told(y)
    if any(laws):
        shares = [w * w * kernels.average(s.var) for w, s in ((a, x), (b, y))]
        result = result.amended(attention=summed(list(zip(shares, laws, strict=True))))
    if not (x.roots and y.roots):
        call.run.memo[_key_of_sum(call, x, y, a, b)] = result
    both = jointly(x, y, lambda p, q: a * p + b * q)
    return result if both is None else result.amended(origin=both)


def _with_mask(call: Call, x: State, mask: State, a: float, b: float) -> State | None:
    """Return x plus the numbers of a mask, as scores that it shuts out; None elsewhere."""
    shape = call.shape()
    whole = x.masked is None or (x.masked.scores is not None and x.shape == shape)
    if mask.masked is None or mask.masked.scores is not None or not whole or not a == b == 1.0:
        return None
    return masked(expand(x, shape), mask.masked.mask, mask.pooled_mean, mask.pooled_var)


def _of_masked_scores(call: Call, x: State, y: State, a: float, b: float) -> State | None:
    """Return a x + b y of scores x that a mask shuts out in part: the sum inside the mask, under the same mask; None
    elsewhere.
    """
    if x.masked is None or x.masked.scores is None or (y.is_constant and x.shape == call.shape()):
        return None
    if not a > 0.0 or (y.masked is not None and y.masked.scores is None):
        return None
    scores = x.masked.scores
    mean = a * (x.pooled_mean - scores.pooled_mean)
    var = a * a * max(x.pooled_var - scores.pooled_var, 0.0)
    return masked(combine(call, scores, y, a, b), x.masked.mask, mean, var)


def _with_constant(call: Call, x: State, constant: State, a: float, b: float) -> State | None:
    """Return a x plus b times one number that ``constant`` holds everywhere; None elsewhere."""
    if not constant.is_constant:
        return None
    return linear(call, broadcast(call, x, call.shape()), a, b * constant.pooled_mean)


def _difference_from_extreme(call: Call, x: State, y: State, a: float, b: float) -> State | None:
    """Return a (x - y) where x is max(y, z), or min(y, z), of this pass: the remembered gap; else None."""
    gap: State | None = call.run.memo.get(("beyond", x.serial, y.serial)) if a == -b else None
    return None if gap is None or gap.shape != call.shape() else linear(call, gap, a)


def _minuend_restored(call: Call, x: State, y: State, a: float, b: float) -> State | None:
    """Return a z where y = c (z - x) in this pass and b c = a, so that x cancels; else None."""
    minuend, subtrahend, factor = call.run.memo.get(("difference", y.serial), (x, y, 0.0))
    if subtrahend.serial != x.serial or b * factor != a or not x.shape == y.shape == minuend.shape == call.shape():
        return None
    return linear(call, minuend, a)


def _key_of_sum(call: Call, x: State, y: State, a: float, b: float) -> tuple[object, ...]:
    """Return the key under which the pass remembers a x + b y."""
    return ("sum", x.serial, y.serial, x.axes, y.axes, a, b, call.shape())


def _remembered(call: Call, x: State, y: State, a: float, b: float) -> State | None:
    """Return a x + b y from the memo, if one is known numbers and the pass has computed the sum before; else None."""
    found: State | None = call.run.memo.get(_key_of_sum(call, x, y, a, b))
    return found


def _of_one_tensor(call: Call, x: State, y: State, a: float, b: float) -> State | None:
    """Return a f(z) + b g(z) of a Gaussian z as one function of it; None elsewhere."""
    return fused(call, x, y, ("sum", a, b), lambda p, q: a * p + b * q)


def _of_parts(call: Call, x: State, y: State, a: float, b: float) -> State | None:
    """Return the sum of two concatenations that share sources (or of one and another tensor), block by block; else
    None.
    """
    if not x.roots & y.roots:
        return None
    return part_by_part(call, x, y, lambda part, p, q: combine(part, p, q, a, b))


SUMS: tuple[Recogniser, ...] = (
    Recogniser(
        "scores and a mask",
        either_way(_with_mask),
        "The numbers of a mask (0 or -inf) have no moments: they say which keys the softmax sees.",
    ),
    Recogniser(
        "masked scores",
        either_way(_of_masked_scores),
        "The moments of masked scores are those of the mask's numbers: what is added to the scores would be lost.",
    ),
    Recogniser(
        "a number",
        either_way(_with_constant),
        "A shifted tensor stays a function of the tensor; the sum of moments forgets the function.",
    ),
    Recogniser(
        "a difference and what was taken away",
        either_way(_minuend_restored),
        "x + (z - x), as straight-through estimators write it, is z; moments that cancel leave the scatter of x.",
    ),
    Recogniser(
        "a maximum less an operand",
        either_way(_difference_from_extreme),
        "max(x, y) - y is relu(x - y), never negative; a difference of moments is near to Gaussian.",
    ),
    Recogniser(
        "a sum written before",
        _remembered,
        "The same sum with known numbers is one tensor: two functions of it are functions of one, as of the next.",
    ),
    Recogniser(
        "functions of one tensor",
        _of_one_tensor,
        "The sum is integrated exactly; covariances alone give its variance, not its shape.",
    ),
    Recogniser(
        "concatenations",
        _of_parts,
        "Each part may be recognised with its counterpart; the sum of moments takes the parts for one tensor.",
    ),
    Recogniser(
        "a stack",
        lambda call, x, y, a, b: slice_by_slice(call, x, y, lambda part, p, q: combine(part, p, q, a, b)),
        "Slices of a stack keep their covariances with one another; the sum of moments takes the stack for one tensor.",
    ),
    Recogniser(
        "a tensor less its mean",
        either_way(plus_statistic),
        "What is centred has the mean 0 in each draw, and is standardised if its own size then divides it.",
    ),
    Recogniser(
        "maps of one tensor",
        lambda call, x, y, a, b: sum_of_maps(x, y, a, b),
        "Two linear maps of one tensor sum to a third; the sum of moments keeps no pairs of positions.",
    ),
    Recogniser(
        "differences of one running sum",
        lambda call, x, y, a, b: differences_of_running_sum(x, y, a) if a == -b else None,
        "Position i less position j sums what lies between, and its variance grows with |i - j|.",
    ),
)
"""What a sum may be, in the order in which `combine` tries it; a sum of none of these has the sum of the moments.
A mask comes first, as its state is that of a number; the others hardly meet, and what is cheap to tell comes early."""
SMALL_SHARE = 1e-3
"""Share of a sum's variance up to which a part does not change the shape of its distribution. Chosen."""
NOTHING_LEFT = 1e-12
"""Second moment of a difference, relative to those of its parts, up to which it is rounding. Chosen."""


def _sum_of_moments(call: Call, x: State, y: State, a: float, b: float) -> State:
    """Return a x + b y from means, variances and covariance kernels, in the common atoms of both: covariances between
    the two add 2 a b Cov(x, y), and a sum of Gaussians is Gaussian.
    """
    p, q, layout = align(x, y)
    mean = a * p.mean + b * q.mean
    var = a * a * p.var + b * b * q.var
    of_x, of_y = covariances([p, q])
    kernel = a * a * of_x + b * b * of_y
    cross = cross_covariance(call, x, y, p, q)
    if cross is not None:
        var = np.maximum(var + 2 * a * b * covariance_at_positions(cross, np.sqrt(p.var) * np.sqrt(q.var)), 0.0)
        kernel = kernels.total(kernel, 2 * a * b * cross)
    first, second = a * a * kernels.average(p.var), b * b * kernels.average(q.var)
    level = kernels.average(var)
    little, shares = SMALL_SHARE * level, (a * a * p.var, b * b * q.var)
    if cross is not None and level > 0.0:
        share, _ = _share_of_power(first, second, level)
        shares = (share * var, (1.0 - share) * var)
    finite_width = finite_width_correlation_of_parts(zip((x, y), shares, strict=True), var)
    gauss, transport = (x.gauss or first <= little) and (y.gauss or second <= little), None
    if not gauss and call.wants_marginal and mean.size:
        gauss, transport = _shape_of_sum(call, x, y, a, b, cross is None)
    scales = EVEN_SCALES
    if not call.independent and kernels.average(mean * mean) <= little:
        scales = scales_of_sum(call, x, y, p, q, first, second)
    result = State(
        layout,
        Moments(mean, var, kernels.correlation(kernel, var), finite_width),
        tag=weakest(x.tag, y.tag),
        marginal=replace(_marginal_beside_known(x, y, p, q) or marginal_with(scales, gauss), transport=transport),
        ancestry=Ancestry(links_of([(x, p, a), (y, q, b)]), x.roots | y.roots),
    )
    spread = _spread_of_sum(call, ((x, p, a, of_x), (y, q, b, of_y)), result)
    return expand(result if spread is STEADY else result.amended(spread=spread), call.shape())


def _shape_of_sum(
    call: Call, x: State, y: State, a: float, b: float, independent: bool
) -> tuple[bool, Transport | None]:
    """Return whether a x + b y is known to be all but Gaussian, and else its transport, if any."""
    if not independent:
        return False, _shape_of_dependent(call, x, y, a, b)
    first, second = a * marginal(x), b * marginal(y)
    shape = of_sum(first, second)
    known = has_shape(x) and has_shape(y) and has_values(first) and has_values(second)
    return known and shape is None, shape


def _shape_of_dependent(call: Call, x: State, y: State, a: float, b: float) -> Transport | None:
    """Return the shape of a f(u) + b g(v) for two Gaussian tensors u and v that are correlated (features of one encoder
    for two inputs); None of other sums.
    """
    (u, f), (v, g) = x.gaussian_source(), y.gaussian_source()
    if u.serial == v.serial or u.transport is not None or v.transport is not None:
        return None
    if not x.lengths == y.lengths == u.lengths == v.lengths:
        return None
    same = tuple(range(len(u.lengths)))
    cross, scale = call.covariance(u, v, same, same), math.sqrt(kernels.average(u.var) * kernels.average(v.var))
    if cross is None or not scale > 0.0:
        return None
    rho = min(max(float(cross.ravel()[0]) / scale, -1.0), 1.0)
    functions = [(f or IDENTITY).call, (g or IDENTITY).call]
    moments = [(s.pooled_mean, math.sqrt(kernels.average(s.var))) for s in (u, v)]
    return Postponed(partial(of_sum_of_functions, functions, moments, (a, b), rho))


def _marginal_beside_known(x: State, y: State, p: Aligned, q: Aligned) -> Marginal | None:
    """Return the marginal of a signal plus known numbers (a bias by channel), with the signal's local scales; else
    None.
    """
    for one, own, known in ((x, p, q), (y, q, p)):
        scaled_signal = own.local_scales is not None and one.function is None and kernels.nonzero(own.var)
        if scaled_signal and not kernels.nonzero(known.var):
            return Marginal(one.gauss, local_scales=own.local_scales)
    return None


def _spread_of_sum(
    call: Call, parts: tuple[tuple[State, Aligned, float, Array], tuple[State, Aligned, float, Array]], result: State
) -> Spread:
    """Return the spread of a x + b y over draws: each part counts with its share of the second moment, and the cross
    term 2 a b x y has a variance of its own. Each part is (state, its alignment, factor, covariance kernel).
    """
    (x, p, a, of_x), (y, q, b, of_y) = parts
    if call.independent or not call.wants_spread or (x.spread is STEADY and y.spread is STEADY):
        return STEADY
    level = result.second_moment
    first, second = a * a * kernels.average(p.var + p.mean**2), b * b * kernels.average(q.var + q.mean**2)
    if level <= NOTHING_LEFT * (first + second):
        return STEADY
    of_x, of_y = of_x * (a * a / level), of_y * (b * b / level)
    mean_x, mean_y = (
        kernels.autocorrelation(c * part.mean, of_x.shape) / level if kernels.nonzero(part.mean) else np.zeros(())
        for c, part in ((a, p), (b, q))
    )
    between = of_x * of_y + mean_x * of_y + mean_y * of_x
    share, slope = _share_of_power(first, second, level)
    if slope:  # the cross term of the smaller one and of what the larger one has beside it
        small, whole, large = (of_y, of_y + mean_y, of_x) if first > second else (of_x, of_x + mean_x, of_y)
        between = (1.0 + slope) ** 2 * whole * np.maximum(large - slope**2 * small, 0.0)
    mixed = float(kernels.pair_mean(4.0 * between, result.lengths).ravel()[0])
    mixed = min(mixed, 2.0)  # no Gaussian's square varies by more
    spread = x.spread.beside(y.spread, 1.0 - share)
    return Spread(spread.inherited, spread.own + source(call.source(), mixed))


def _share_of_power(first: float, second: float, level: float) -> tuple[float, float]:
    """Return the share of the first of two summands in the second moment ``level`` of their sum, from their own second
    moments, and the slope of the larger on the smaller where the larger is regressed on it, else 0.

    Each summand takes half of the cross term. Where one share would be negative (a small difference of two nearly equal
    signals), the larger is taken as slope times the smaller plus an independent rest.
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
