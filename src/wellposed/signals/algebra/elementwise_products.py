"""Products and quotients of two tensors, element by element."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch

from wellposed.signals.algebra.affine import reciprocal_of, scaled
from wellposed.signals.algebra.finite_width import finite_width_correlation_of_product, finite_width_covariance
from wellposed.signals.algebra.local_scales import EVEN_SCALES, marginal_with, scales_by_factor, scales_of_product
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
from wellposed.signals.algebra.pointwise import apply_pointwise
from wellposed.signals.algebra.statistics import jointly, times_statistic
from wellposed.signals.algebra.weighted_means import weighted_mean
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.alignment import Aligned, align, covariances, without_repeats
from wellposed.signals.distributions.blocks import laid_out
from wellposed.signals.distributions.functions import Pointwise
from wellposed.signals.distributions.marginals import marginal, shape_of, sign_of
from wellposed.signals.distributions.moments import Moments
from wellposed.signals.distributions.repeats import REPEATED, Factors
from wellposed.signals.distributions.spread import STEADY, Spread, source
from wellposed.signals.distributions.state import Ancestry, Link, Marginal, Scaled, State, weakest
from wellposed.signals.distributions.views import expand
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.taps import times
from wellposed.signals.integration.transport import Postponed, of_mixture, of_product
from wellposed.signals.sampling.joint_sources import can_run
from wellposed.signals.signal import Tag

VARYING_DIVISOR = 1e-3
"""Var / E[y²] of a divisor y from which on its dependence on the dividend counts. Chosen."""


def multiply(call: Call, x: State, y: State) -> State:
    """Return x y for two tensors (Gaussian, and correlated where they share an ancestor)."""
    recognised = first_recognised(PRODUCTS, call, x, y)
    if recognised is not None:
        return recognised
    result = _product_of_moments(call, *without_repeats(laid_out(x), laid_out(y)))
    both = jointly(x, y, torch.mul)
    return result if both is None else result.amended(origin=both)


def _with_constant(call: Call, x: State, constant: State) -> State | None:
    """Return x times one number that ``constant`` holds everywhere; None elsewhere."""
    return scaled(call, broadcast(call, x, call.shape()), constant.pooled_mean) if constant.is_constant else None


def divide(call: Call, x: State, y: State) -> State | None:
    """Return x / y: as one function of one tensor, standardised by its own statistic, or else x times 1 / y; None where
    y comes too near to 0, and where the two depend on one another, y varies, and they can be drawn together.
    """
    one = (
        part_by_part(call, x, y, divide)
        or fused(call, x, y, ("div",), torch.div)
        or times_statistic(call, x, y, inverse=True)
        or weighted_mean(call, x, y)
    )
    if one is not None:
        return one
    together = x.roots & y.roots and can_run(call.run, call.node)
    if together and kernels.average(y.var) > VARYING_DIVISOR * y.second_moment:
        return None
    reciprocal = reciprocal_of(call, y)
    if reciprocal is None and sign_of(y) and not together:
        reciprocal = apply_pointwise(call, y, Pointwise(("reciprocal",), torch.reciprocal))
    if reciprocal is None:
        return None
    result = multiply(call, x, reciprocal)
    both = jointly(x, y, torch.div)
    return result if both is None else result.amended(origin=both)


PRODUCTS: tuple[Recogniser, ...] = (
    Recogniser(
        "a number",
        either_way(_with_constant),
        "A multiple of a tensor stays a function of the tensor, and its scale may still be open.",
    ),
    Recogniser(
        "concatenations",
        lambda call, x, y: part_by_part(call, x, y, multiply),
        "Each part may be recognised with its counterpart; the product of moments takes the parts for one tensor.",
    ),
    Recogniser(
        "functions of one tensor",
        lambda call, x, y: fused(call, x, y, ("product",), lambda p, q: p * q),
        "The product is integrated exactly (x sigmoid(x)); covariances alone hold for Gaussian factors.",
    ),
    Recogniser(
        "a tensor and its statistic",
        either_way(times_statistic),
        "A tensor divided by its own size in each draw has a known size; moments take the size for independent.",
    ),
    Recogniser(
        "a stack",
        lambda call, x, y: slice_by_slice(call, x, y, multiply),
        "Slices of a stack keep their covariances with one another; moments take the stack for one tensor.",
    ),
)
"""What a product may be, in the order in which `multiply` tries it; one of none of these has the product of moments.
The entries hardly meet, and what is cheap to tell comes early."""


def _product_of_moments(call: Call, x: State, y: State) -> State:
    """Return x y from means, variances and covariance kernels, in the common atoms of both: exact for two Gaussians of
    covariance C, with E[x y] = m_x m_y + C and Var = v_x v_y + m_x² v_y + m_y² v_x + C² + 2 m_x m_y C (Isserlis 1918).
    """
    p, q, layout = align(x, y)
    mean = p.mean * q.mean
    var = p.var * q.var + p.mean**2 * q.var + q.mean**2 * p.var
    of_x, of_y = covariances([p, q])
    scales, together = (EVEN_SCALES, np.zeros(())) if call.independent else scales_of_product(x, y, p, q)
    kernel = of_x * of_y + _times_known(q, of_y, p.mean) + _times_known(p, of_x, q.mean)
    at_finite_width = finite_width_covariance(call, x, y, of_x, of_y, layout)
    kernel = kernel if at_finite_width is None else kernels.total(kernel, at_finite_width)
    cross, rho = cross_covariance(call, x, y, p, q), 0.0
    if cross is not None:
        c = covariance_at_positions(cross, np.sqrt(p.var) * np.sqrt(q.var))
        rho = kernels.average(c) / max(math.sqrt(kernels.average(p.var) * kernels.average(q.var)), 1e-300)
        kernel = kernels.total(kernel, cross**2, 2 * kernels.average(mean) * cross)
        mean, var = mean + c, var + c * c + 2 * p.mean * q.mean * c
    kernel, var = _with_common_squares((p, q), kernel, np.asarray(var), together)
    finite_width = finite_width_correlation_of_product(call, (x, y), (p, q), layout, kernels.average(var))
    marginal_of, shape_is = _marginal_of_product(call, x, y, rho)
    by_factor = None
    if cross is None and not call.independent:
        by_factor = scales_by_factor(call, x, y, p, q) or scales_by_factor(call, y, x, q, p)
    if by_factor is None:
        marginal_of = replace(marginal_of, local_scales=marginal_with(scales, False).local_scales)
    else:
        marginal_of = marginal_with(by_factor, True)
    result = State(
        layout,
        Moments(mean, var, kernels.correlation(kernel, var), finite_width, _equal_norm_of_product(x, y, p, q)),
        tag=weakest(x.tag, y.tag, shape_is),
        marginal=marginal_of,
        ancestry=Ancestry(_links_of_product(x, y, p, q), x.roots | y.roots, _scale_parameter_of_product(x, y)),
        spread=_spread_of_product(call, x, y, of_x, of_y, layout.lengths) if call.wants_spread else STEADY,
    )
    unlinked = not result.links and bool(x.roots and y.roots)
    if (unlinked or result.roots & REPEATED) and p.dims is not None and q.dims is not None:
        call.run.dependence.factors[result.serial] = Factors((x, y), (p.dims, q.dims))
    return expand(result, call.shape())


def _times_known(part: Aligned, covariance: Array, known: Array) -> Array:
    """Return a signal's covariance kernel, ``covariance`` before, once it is multiplied by ``known`` numbers: by the
    product at each position where both vary along one atom (1 / n and the sum of the first n).
    """
    if not any(n > 1 and m > 1 for n, m in zip(part.var.shape, known.shape, strict=True)):
        return covariance * kernels.autocorrelation(known, covariance.shape)
    corr = kernels.promote(part.corr, covariance.shape)
    return corr * kernels.autocorrelation(np.sqrt(part.var) * known, covariance.shape)


def _with_common_squares(
    aligned: tuple[Aligned, Aligned], kernel: Array, var: Array, together: Array
) -> tuple[Array, Array]:
    """Return covariance kernel and variance of a product, corrected for the covariance of the squares of its factors:
    that of their local scales (kernel ``together``).
    """
    if together.any():
        p, q = aligned
        kernel, others = kernels.common(kernel, together)
        kernel = kernel * (1.0 + others)
        var = var + float(together.ravel()[0]) * (p.var + p.mean**2) * (q.var + q.mean**2)
    return kernel, np.maximum(var, 0.0)


def _equal_norm_of_product(x: State, y: State, p: Aligned, q: Aligned) -> float:
    """Return ``equal_norm_inverse_dim`` of x y: kept where known numbers multiply tokens of equal norm, else 0."""
    of_x, of_y = ((0.0 if kernels.nonzero(other.var) else s.equal_norm_inverse_dim) for s, other in ((x, q), (y, p)))
    return of_x or of_y


def _links_of_product(x: State, y: State, p: Aligned, q: Aligned) -> tuple[Link, ...]:
    """Return the links of a product to its factors. Known numbers along one atom of correlated positions (1 / n for a
    mean of the first n) are slopes by position; known numbers by channel give their mean as one slope.
    """
    for one, own, known in ((x, p, q), (y, q, p)):
        varying = [i for i, n in enumerate(known.mean.shape) if n > 1]
        if kernels.nonzero(known.var) or len(varying) != 1 or own.dims is None or not one.roots:
            continue
        if own.corr.shape[varying[0]] == 1:
            continue
        atom = own.dims[varying[0]]
        if atom is not None:
            return (Link(one, Scaled(1.0), own.dims, taps=((atom, times(known.mean.ravel())),)),)
    return links_of([(x, p, _slope(q.mean, p.var)), (y, q, _slope(p.mean, q.var))])


def _slope(means: Array, var: Array) -> float:
    """Return the mean of one factor, averaged over positions with the other factor's variance as weight."""
    if means.size == 1 or var.size == 1 or not (total := kernels.average(var)):
        return kernels.average(means)
    return kernels.average(means * var) / total


def _spread_of_product(call: Call, x: State, y: State, of_x: Array, of_y: Array, lengths: tuple[int, ...]) -> Spread:
    """Return the spread of x y: the spreads of both factors add up, and the mean of x² y² over elements adds its own
    fluctuation. ``of_x`` and ``of_y`` are covariance kernels over atoms of ``lengths``.
    """
    spread = x.spread + y.spread
    one, other = x.spread.own, y.spread.own
    if not (one.amounts.size and other.amounts.size) or one.start == other.start:
        return spread
    level = math.prod(float(kernels.at_zero(kernel, range(kernel.ndim)).ravel()[0]) for kernel in (of_x, of_y))
    if level <= 0.0:
        return spread
    mixed = 4.0 * float(kernels.pair_mean((of_x * of_y / level) ** 2, lengths).ravel()[0])
    return Spread(spread.inherited, spread.own + source(call.source(), mixed))


def _marginal_of_product(call: Call, x: State, y: State, rho: float) -> tuple[Marginal, Tag]:
    """Return the marginal of x y, and its tag. Times known numbers it is the shape of the signal, reflected where they
    are negative, and a mixture of both where signs differ by position. Two signals are taken as functions of two
    Gaussians that correlate by ``rho``.
    """
    for factor, other in ((y, x), (x, y)):
        if kernels.nonzero(factor.var):
            continue
        if other.gauss or call.independent or not kernels.nonzero(factor.mean):
            return Marginal(other.gauss), "exact"
        shape, negative = shape_of(other), float(np.mean(factor.mean < 0.0))
        if shape is None or negative == 0.0:
            return Marginal(transport=shape), "exact"
        if negative == 1.0:
            return Marginal(transport=shape.negated()), "exact"
        mixed = of_mixture([-shape.values[::-1], shape.values], [negative, 1.0 - negative])
        return Marginal(transport=mixed), "approximate"
    if call.independent:
        return Marginal(), "exact"
    made = Postponed(lambda: of_product(marginal(x), marginal(y), rho))
    return Marginal(transport=made), "exact" if not rho or (x.gauss and y.gauss) else "approximate"


def _scale_parameter_of_product(x: State, y: State) -> str | None:
    """Return the scale parameter of a factor where the other one is known."""
    if x.scale_parameter is not None and not y.roots:
        return x.scale_parameter
    return None if x.roots else y.scale_parameter
