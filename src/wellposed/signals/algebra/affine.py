"""Affine maps of one tensor, and its reciprocal."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch

from wellposed.signals.algebra.pointwise import apply_pointwise
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.blocks import concatenate
from wellposed.signals.distributions.fluctuations import gaussian_fluctuation
from wellposed.signals.distributions.functions import Pointwise
from wellposed.signals.distributions.later import LaterMoments, is_made, made
from wellposed.signals.distributions.moments import Moments
from wellposed.signals.distributions.spread import STEADY, Spread
from wellposed.signals.distributions.state import (
    Ancestry,
    FunctionOf,
    LinearMap,
    Link,
    Marginal,
    Masked,
    Scaled,
    Standardised,
    State,
    Statistic,
)
from wellposed.signals.distributions.views import pooled
from wellposed.signals.integration import kernels

LARGEST_RELATIVE_VARIANCE = 0.25
"""Largest Var / E² of a divisor whose reciprocal is expanded. Chosen: its mean is 2 standard deviations away from 0."""


def linear(call: Call, x: State, scale: float, shift: float = 0.0) -> State:
    """Return the state of scale * x + shift, of the layout of x. What x is known as (a function of a Gaussian tensor, a
    statistic, masked scores), the result is known as too; a linear map or a standardised tensor stays one for shift 0.
    """
    if scale == 1.0 and shift == 0.0:
        return x
    if x.blocks:
        return concatenate([linear(call, b, scale, shift) for b in x.blocks], x.blocks.axis)
    key = ("linear", x.serial, x.axes, x.scale_parameter, x.tag, scale, shift)
    if shift and key in call.run.memo:  # worked out twice, it is one tensor
        again: State = call.run.memo[key]
        return again
    affine = Pointwise(("affine", scale, shift), lambda t: scale * t + shift)
    result = x.changed(
        moments=_linear_moments(x.moments, scale, shift),
        marginal=_linear_marginal(x, affine, scale, shift),
        filters=x.filters.scaled(scale * scale),
        ancestry=Ancestry((Link(x, Scaled(scale)),) if x.roots else (), x.roots, x.scale_parameter),
    )
    result = _as_x_was_made(call, x, result, affine, scale, shift)
    if shift == 0.0 or call.independent:
        return result
    call.run.memo[key] = result = result.amended(spread=_shifted_spread(call, x, result, scale))
    return result


def _linear_moments(of: Moments, scale: float, shift: float) -> Moments:
    """Return the moments of scale * x + shift, worked out when those of x are."""
    if not is_made(of):
        return LaterMoments(lambda: _linear_moments(made(of), scale, shift), varies=of.varies and scale != 0.0)
    var = scale * scale * of.var
    return Moments(scale * of.mean + shift, var, of.corr, of.finite_width_correlation, of.equal_norm_inverse_dim)


def _linear_marginal(x: State, affine: Pointwise, scale: float, shift: float) -> Marginal:
    """Return the marginal of scale * x + shift: its shape, and the Gaussian tensor that it is a function of."""
    function = None
    if x.function is not None:
        function = FunctionOf(x.function.base, x.function.fn.then(affine))
    elif x.roots and x.scale_parameter is None:  # a function of x: x * sigmoid(1.7 * x) is integrated as one
        function = FunctionOf(x, affine)
    transport = x.transport if x.transport is None or scale > 0.0 else x.transport.negated()
    kept = None if x.local_scales is None or kernels.nonzero(x.mean) or shift else x.local_scales
    return Marginal(x.gauss, function, transport, kept)


def _as_x_was_made(call: Call, x: State, result: State, affine: Pointwise, scale: float, shift: float) -> State:
    """Return ``result``, the state of scale * x + shift, with the origin or the mask of x, scaled and shifted alike."""
    if isinstance(x.origin, Statistic):
        result = result.amended(origin=x.origin.then(affine.call))
    if isinstance(x.origin, Standardised) and shift == 0.0:
        result = result.amended(origin=replace(x.origin, factor=x.origin.factor.then(affine.call)))
    if isinstance(x.origin, LinearMap) and shift == 0.0:
        result = result.amended(origin=replace(x.origin, weights=scale * x.origin.weights))
    if x.masked is not None and x.masked.scores is not None:  # what is let through is changed alike; the rest stays out
        scores = linear(call, x.masked.scores, scale, shift)
        result = result.amended(attention=Masked(x.masked.mask, scores) if scale > 0.0 else scores.attention)
    return result


def _shifted_spread(call: Call, x: State, result: State, scale: float) -> Spread:
    """Return the spread of scale * x + shift over draws: the share of the second moment that the shift has does not
    vary. Functions of one tensor have their own: sigmoid(x) - 1/2 is small where x is.
    """
    base, fn = result.gaussian_source()
    if x.function is not None and fn is not None and base.lengths == result.lengths:
        return apply_pointwise(call, base.amended(axes=result.axes), fn).spread
    level = result.second_moment
    if level <= 0.0 or x.spread is STEADY:
        return x.spread
    shift = result.pooled_mean - scale * x.pooled_mean
    share = scale * (scale * x.second_moment + shift * x.pooled_mean) / level
    own = x.spread.own
    if own.amounts.size and (before := gaussian_fluctuation(x)) > 0.0:
        own = own.times(math.copysign(math.sqrt(gaussian_fluctuation(result) / before), share))
    return Spread(x.spread.inherited.times(share), own)


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
    if not np.isfinite(relative).all() or float(relative.max(initial=0.0)) > LARGEST_RELATIVE_VARIANCE:
        return None
    statistic = y.known_as(Statistic)
    return pooled(y).with_moments(
        mean=(1 + relative) / y.mean,
        var=relative / np.square(y.mean),
        gauss=False,
        scale_parameter=None,
        spread=y.spread.times(-1.0),
        origin=None if statistic is None else statistic.then(torch.reciprocal),
    )
