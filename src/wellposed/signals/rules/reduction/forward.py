"""Means, sums and other reductions over axes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from wellposed.signals.algebra.affine import linear
from wellposed.signals.algebra.pointwise import scalar_pointwise
from wellposed.signals.algebra.reduction import averaged, axes_of, axis_after
from wellposed.signals.algebra.statistics import as_mean_of_parts, jointly
from wellposed.signals.algebra.sums import combine
from wellposed.signals.context.call import Call, PartCall
from wellposed.signals.distributions.blocks import concatenate, depend
from wellposed.signals.distributions.marginals import marginal, sign_of
from wellposed.signals.distributions.state import State, Statistic
from wellposed.signals.distributions.views import pooled
from wellposed.signals.integration.gaussian import WEIGHTS
from wellposed.signals.integration.transport import standardised
from wellposed.signals.registry import overloads, rule


@rule(
    overloads("mean.dim", "mean.default"), source="signals: 5.5; AutoInit, Appendix A (mean)", pairs=True, additive=True
)
def mean(call: Call, x: State, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> State:
    """Mean over axes."""
    return _mean(call, x, axes_of(x, dim), keepdim=keepdim)


def _mean(call: Call, x: State, axes: list[int], *, keepdim: bool) -> State:
    """Return the mean over axes; of a concatenation of dependent blocks along one of them as the weighted sum of their
    means.
    """
    blocks = x.blocks if x.blocks.axis in axes and not call.independent else ()
    if not depend(blocks):
        result = averaged(call, x, axes, keepdim=keepdim)
        return as_mean_of_parts(call, x, axes, result, keepdim=keepdim) if blocks else result
    shares = [block.shape[x.blocks.axis] / x.shape[x.blocks.axis] for block in blocks]
    first, *others = [averaged(call, block, axes, keepdim=keepdim) for block in blocks]
    result = linear(call, first, shares[0])
    for share, other in zip(shares[1:], others, strict=True):
        result = combine(call, result, other, 1.0, share)
    return as_mean_of_parts(call, x, axes, result, keepdim=keepdim)


@rule(
    overloads("sum.dim_IntList", "sum.default"),
    source="signals: 5.5; AutoInit, Appendix A (sum)",
    pairs=True,
    additive=True,
)
def total(call: Call, x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> State | None:
    """Sum over axes."""
    if not isinstance(x, State):
        return None
    axes = axes_of(x, dim)
    count = math.prod(x.shape[a] for a in axes)
    result = _mean(call, x, axes, keepdim=keepdim)
    return linear(call, result, float(count)).amended(function=None)


def _square(call: Call, x: State) -> State:
    return scalar_pointwise(call, x, torch.ops.aten.square.default)


@rule(overloads("var.dim", "var.correction", "var.default"), source="definition: E x² - (E x)², over the axes")
def variance(
    call: Call, x: State, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: Any = None
) -> State:
    """Variance over axes."""
    return _variance(call, x, dim, unbiased, keepdim, correction)


def _variance(call: Call, x: State, dim: Any, unbiased: bool, keepdim: bool, correction: Any) -> State:
    """Return the variance over axes; the estimate fluctuates as the mean squared distance to the mean does."""
    axes = axes_of(x, dim)
    count = math.prod(x.shape[a] for a in axes)
    lost = float(correction) if correction is not None else float(unbiased)
    if count == 1 and not lost:
        return linear(call, averaged(call, x, axes, keepdim=keepdim), 0.0)
    if x.blocks and x.blocks.axis not in axes and not call.independent:  # tokens that are all alike beside others
        each = [_variance(call, block, dim, unbiased, keepdim, correction) for block in x.blocks]
        return concatenate(each, axis_after(x, axes, keepdim=keepdim))

    of = pooled(x)
    square, mean = (averaged(call, one, axes, keepdim=keepdim) for one in (_square(call, of), of))
    shifted = linear(call, of, 1.0, -x.pooled_mean)
    whole = PartCall(call.run, call.node, x.shape)
    apart = combine(whole, shifted, averaged(call, shifted, axes, keepdim=True), 1.0, -1.0)
    factor = count / (count - lost) if count > lost else 1.0
    result = linear(call, averaged(call, _square(call, apart), axes, keepdim=keepdim), factor)
    return result.amended(origin=jointly(square, mean, lambda square, mean: factor * (square - mean * mean)))


@rule(overloads("var_mean.correction", "var_mean.dim", "var_mean.default"), source="definition, as var and mean")
def variance_and_mean(
    call: Call, x: State, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: Any = None
) -> tuple[State, State]:
    """Variance and mean over axes."""
    var = _variance(call, x, dim, unbiased, keepdim, correction)
    return var, averaged(call, x, axes_of(x, dim), keepdim=keepdim)


@rule(
    overloads("std_mean.correction", "std_mean.dim", "std_mean.default"),
    tag="approximate",
    source="definition, as std and mean",
)
def deviation_and_mean(
    call: Call, x: State, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: Any = None
) -> tuple[State, State]:
    """Standard deviation and mean over axes."""
    var, mean = variance_and_mean(call, x, dim, unbiased, keepdim, correction=correction)
    return _root(call, var), mean


@rule(overloads("std.dim", "std.correction", "std.default"), tag="approximate", source="square root of the variance")
def deviation(
    call: Call, x: State, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: Any = None
) -> State:
    """Standard deviation over axes."""
    return _root(call, _variance(call, x, dim, unbiased, keepdim, correction))


NEAREST_TO_ZERO = 1e-4
"""Share of its mean below which no mean of squares is taken to lie. Chosen."""


def _root(call: Call, x: State) -> State:
    """Return the square root of x, the mean of which is well above 0: its second moment is that mean."""
    if x.blocks:
        return concatenate([_root(call, block) for block in x.blocks], x.blocks.axis)
    level = max(x.pooled_mean, 0.0)
    relative = min(x.pooled_var / (4 * level), level) if level > 0 else 0.0
    one = (1,) * len(x.lengths)
    transport = None
    if level > 0 and sign_of(x) > 0:  # the root of what is never negative is not either
        roots = np.sort(np.sqrt(np.maximum(marginal(x), NEAREST_TO_ZERO * level)))
        relative = level * max(1.0 - float(WEIGHTS @ roots) ** 2 / float(WEIGHTS @ roots**2), 0.0)
        transport = standardised(roots) if relative > 0.0 else None
    statistic = x.known_as(Statistic)
    return x.with_moments(
        transport=transport,
        mean=np.full(one, math.sqrt(level - relative)),
        var=np.full(one, relative),
        spread=x.spread.times(0.5),
        origin=None if statistic is None else statistic.then(torch.sqrt),
    )


@rule(overloads("linalg_vector_norm.default"), tag="approximate", source="square root of the sum of squares")
def vector_norm(
    call: Call, x: State, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> State | None:
    """Euclidean norm over axes."""
    if ord != 2:
        return None
    axes = axes_of(x, dim)
    count = math.prod(x.shape[a] for a in axes)

    def squares(x: State) -> State:
        return averaged(call, _square(call, x), axes, keepdim=keepdim)

    apart = bool(x.blocks) and x.blocks.axis not in axes and not call.independent
    each = [squares(block) for block in x.blocks] if apart else []
    total = concatenate(each, axis_after(x, axes, keepdim=keepdim)) if apart else squares(pooled(x))
    return _root(call, linear(call, total, float(count)))
