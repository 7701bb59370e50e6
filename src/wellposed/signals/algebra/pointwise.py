"""Functions of one number, applied to every element of a state."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from wellposed.operators.facts import ANY
from wellposed.signals.context.call import OVERFLOW, Call
from wellposed.signals.distributions.expansion import Expansion, is_power
from wellposed.signals.distributions.expansion import expand as expand_function
from wellposed.signals.distributions.fluctuations import carried_spread, fluctuation, gaussian_fluctuation
from wellposed.signals.distributions.functions import Pointwise
from wellposed.signals.distributions.later import LaterAncestry, LaterMoments, LaterSpread
from wellposed.signals.distributions.layout import Layout
from wellposed.signals.distributions.lazy import LocalScales, evaluated
from wellposed.signals.distributions.mixtures import UNEVEN, Mixture, expand_mixture, given_scales
from wellposed.signals.distributions.moments import Moments
from wellposed.signals.distributions.spread import NONE, Sources, Spread
from wellposed.signals.distributions.state import (
    Ancestry,
    FunctionOf,
    Link,
    Marginal,
    Scaled,
    State,
    Statistic,
    weakest,
)
from wellposed.signals.distributions.tails import clip_unseen_tails, is_bounded, without_poles
from wellposed.signals.distributions.views import pooled
from wellposed.signals.integration import gaussian, kernels
from wellposed.signals.integration.gaussian import NODES, WEIGHTS
from wellposed.signals.integration.kernels import Array
from wellposed.signals.signal import Tag
from wellposed.structure.bounds import bounds

aten: torch._ops._OpNamespace = torch.ops.aten

RARE = 4.0
"""Relative variance of x² from which on the second moment rests on rare elements, unless f is a power. Chosen."""


def _functional(op: torch._ops.OpOverload) -> Any:
    """Return the overload that makes a new tensor where ``op`` changes its own."""
    name = op._schema.name.removeprefix("aten::")
    if not name.endswith("_"):
        return op
    packet = getattr(aten, name.removesuffix("_"))
    overload = "Tensor_Scalar" if name == "pow_" else op._overloadname
    return getattr(packet, overload)


def elementary(op: torch._ops.OpOverload, *rest: Any, **kwargs: Any) -> Pointwise:
    """Return an operator with numbers as further arguments as a function of one number."""
    functional = _functional(op)

    def run(t: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = functional(t, *rest, **kwargs)
        return result

    return Pointwise((str(functional), rest, tuple(sorted(kwargs.items()))), run)


def scalar_pointwise(call: Call, x: State, op: torch._ops.OpOverload, *rest: Any, **kwargs: Any) -> State:
    """Apply an operator with numbers as further arguments to every element of x."""
    return apply_pointwise(call, x, elementary(op, *rest, **kwargs))


def apply_pointwise(call: Call, x: State, function: Pointwise) -> State:
    """Return f(x), integrated as one function of the Gaussian tensor that x is a function of.

    Mean and variance by adaptive quadrature; correlations through Hermite coefficients:
    Cov(f(x), f(y)) = sum_n a_n² R^n; a sum that is no Gaussian is a function of one (its transport). Source:
    signals.md 5.3, 5.7; Cho & Saul 2009; Daniely et al. 2016.
    """
    x = pooled(x)
    if not x.varies:
        values = function(x.mean.ravel()).reshape(x.mean.shape)
        return x.with_moments(mean=values, roots=0, scale_parameter=None, gauss=False)
    base, inner = x.gaussian_source()
    composed = _never_positive(call, base, function) if inner is None else inner.then(function)
    if call.independent:  # of elements; operators on one signal are one function of it
        mean, var = _finite_moments(expand_function(composed, base.mean, base.std()))
        one = np.ones((1,) * x.corr.ndim)
        made = x.with_moments(mean=mean, var=var, corr=one, roots=call.root(), gauss=False)
        return made.amended(function=FunctionOf(base, composed))
    transport = base.transport
    whole = without_poles(composed, base.mean, base.std(), transport)
    clipped = clip_unseen_tails(whole, base.mean, base.std(), transport)
    uneven = evaluated(base.local_scales)
    mixed = None if transport is not None or uneven is None else _mixture(composed, base, float(uneven.ravel()[0]))
    tag = _tag(x, base, function, clipped is composed, whole is not composed or (mixed is not None and mixed.heavy))
    statistic = x.known_as(Statistic)
    origin = None if statistic is None else statistic.then(function.call)
    layout, roots = Layout(base.lengths, x.axes), base.roots | call.root()
    if mixed is not None and uneven is not None:
        corr, scales = _local_scales_of_mixture(mixed, base, uneven)
        integrated = _integrated(mixed.average, base, clipped, corr)
        marginal = Marginal(function=FunctionOf(base, clipped), local_scales=scales)
        ancestry = Ancestry(integrated.links, roots, origin=origin)
        return State(layout, integrated.moments, tag, marginal, ancestry=ancestry, spread=integrated.spread)
    # operators on the way to a function that something reads are one function with it: theirs is not asked for
    later = cache(lambda: _integrated(expand_function(clipped, base.mean, base.std(), transport), base, clipped))
    return State(
        layout,
        LaterMoments(lambda: later().moments, varies=True),
        tag,
        Marginal(function=FunctionOf(base, clipped)),
        ancestry=LaterAncestry(lambda: later().links, roots, origin=origin),
        spread=LaterSpread(lambda: later().spread),
    )


def _never_positive(call: Call, x: State, function: Pointwise) -> Pointwise:
    """Return ``function``, clipped to arguments of at most 0 where the graph's bounds say that x is never positive but
    its marginal, shared by all positions, exceeds 0 at some.
    """
    crosses = (
        not call.independent
        and x.transport is not None
        and float((x.mean + x.std() * x.transport.values[-1]).max()) > 0.0
    )
    if not crosses or not call.node.inputs:
        return function
    first = call.run.state(call.node.inputs[0])  # rules ask for functions of other tensors too
    mine = first is not None and first.serial == x.serial
    negative = mine and bounds(call.graph).get(call.node.inputs[0], ANY).sign == -1
    return function.clipped(-math.inf, 0.0) if negative else function


class _Integrated(NamedTuple):
    """What the integrals of a function of a Gaussian give: moments, links, and the spread over draws."""

    moments: Moments
    links: tuple[Link, ...]
    spread: Spread


@np.errstate(all="ignore")  # it may be asked for where the pass has ended
def _integrated(expansion: Expansion, base: State, function: Pointwise, corr: Array | None = None) -> _Integrated:
    """Return moments, links and spread of f(x) from the Hermite ``expansion`` of f; ``corr`` is the kernel if known."""
    mean, var = _finite_moments(expansion)
    latent = base.corr if base.transport is None else base.transport.latent(base.corr)
    corr = _correlation_of_gaussian(expansion, base, function, latent) if corr is None else corr
    return _Integrated(
        Moments(mean, var, corr, _finite_width_correlation(base, expansion)),
        (Link(base, Scaled(expansion.slope)),) if base.roots and expansion.slope else (),
        _spread(base, function, expansion, latent, kernels.average(var) > 0),
    )


def _mixture(function: Pointwise, base: State, uneven: float) -> Mixture | None:
    """Return the expansion of f(x), where the local scale of x has the variance ``uneven``; None if that is small."""
    return expand_mixture(function, base.mean, base.std(), uneven) if uneven > UNEVEN else None


def _correlation_of_gaussian(expansion: Expansion, base: State, function: Pointwise, latent: Array) -> Array:
    """Return the correlation kernel of f(x) for the Hermite ``expansion`` of f and the ``latent`` correlation of x."""
    powers = _without_mean(expansion)
    raw = gaussian.polynomial(powers, latent)
    raw = kernels.total(raw, *_by_scales_of_parts(base, function), *_by_inverse_dims(base, powers, latent))
    return _correlation(raw, float(powers.sum()), base)


def _local_scales_of_mixture(mixed: Mixture, base: State, uneven: Array) -> tuple[Array, LocalScales | None]:
    """Return the correlation kernel of f(x), and its local scales, where tau of x has the covariance kernel ``uneven``;
    no local scales where x has a mean.
    """
    corr, shared = _correlation_of_mixture(mixed, base, uneven)
    if kernels.nonzero(base.mean):  # about a shift, the bounds of f count for more than its local scale
        return corr, None
    ratio = math.log1p(mixed.kappa) / math.log1p(float(uneven.ravel()[0]))
    sources = base.local_scale_sources.times(math.copysign(math.sqrt(ratio), mixed.average.sensitivity))
    return corr, LocalScales.of(mixed.kappa * kernels.by_displacement(shared), sources)


def _tag(x: State, base: State, function: Pointwise, as_it_is: bool, heavy: bool) -> Tag:
    """Return the tag of f(x), which is a function of ``base``: heavy tails end where f is bounded."""
    if heavy:
        return "heavy"
    if x.tag != "heavy":
        return x.tag if as_it_is else weakest(x.tag, "approximate")
    if base.tag != "heavy":
        return weakest(base.tag, "approximate")
    return "assumed" if is_bounded(function) else "heavy"


def _spread(base: State, function: Pointwise, expansion: Expansion, latent: Array, varies: bool) -> Spread:
    """Return the spread of a function of ``base``: inherited scales by their effect, its own by that on squares."""
    slope = expansion.sensitivity
    before = base.spread.inherited.variance
    after = carried_spread(
        function,
        kernels.average(base.mean),
        math.sqrt(kernels.average(base.var)),
        before,
        slope,
        base.transport,
    )
    kept = math.copysign(math.sqrt(after / before), slope) if before > 0.0 else 0.0
    return Spread(base.spread.inherited.times(kept), _own_spread(base, function, expansion, latent) if varies else NONE)


def _own_spread(base: State, function: Pointwise, expansion: Expansion, latent: Array) -> Sources:
    """Return the own part of the spread after a function of ``base``. The fluctuation that follows from correlations is
    expanded in Hermite powers like the function. The rest, from the sizes of filters, is scaled by the sensitivity.

    Relative to its mean, a second moment that rests on rare elements varies by far more than its logarithm, as that of
    a log-normal variable does; a power varies like the multiple of its logarithm, however large that is.
    """
    own = base.spread.own
    if not own.amounts.size:
        return own
    whole = own.variance
    before = gaussian_fluctuation(base)
    after = fluctuation(expansion.square_powers, latent, expansion.second, base.lengths)
    if after > RARE and (kernels.nonzero(base.mean) or not is_power(function)):
        after = max(math.log1p(after), RARE)
    part = min(before, whole)
    factor = (after / before if before > 0 else 1.0) * part + expansion.sensitivity**2 * (whole - part)
    return own.times(math.copysign(math.sqrt(factor / whole), expansion.sensitivity))


def _finite_moments(expansion: Expansion) -> tuple[Array, Array]:
    """Return mean and variance, clamped to finite numbers where there is no expectation (exp of a wide signal)."""
    mean, var = expansion.mean, expansion.var
    if np.isfinite(mean).all() and np.isfinite(var).all():
        return mean, var
    root = OVERFLOW**0.5
    return (np.nan_to_num(mean, nan=0.0, posinf=root, neginf=-root), np.nan_to_num(var, nan=OVERFLOW, posinf=OVERFLOW))


def _without_mean(expansion: Expansion) -> Array:
    powers = expansion.powers.copy()
    powers[0] = 0.0
    return powers


def _finite_width_correlation(base: State, expansion: Expansion) -> Sources:
    """Return the finite-width correlation of f(x): that of x, by the share of f that is linear in x."""
    if not base.finite_width_correlation.amounts.size:
        return base.finite_width_correlation
    powers = _without_mean(expansion)
    total = float(powers.sum())
    return base.finite_width_correlation.times(float(powers[1]) / total) if total > 0.0 else NONE


def _by_inverse_dims(base: State, powers: Array, latent: Array) -> list[Array]:
    """Return, in a list, the covariance kernel that f adds for products with one filter: the correlation r of two
    patches varies by rho over filters, E (r + rho)² = r² + (1 - r²)² Var(rho). Empty for other tensors.
    """
    inverse_dims = evaluated(base.filters.inverse_dims)
    if inverse_dims is None or not powers[2] > 0.0:
        return []
    inverse_dims, latent = kernels.common(inverse_dims, latent)
    return [powers[2] * inverse_dims * (1.0 - latent * latent) ** 2]


CURVATURE_STEP = 0.1
"""Shift of the mean, in standard deviations, by which a function's curvature is measured. Chosen."""


def _by_scales_of_parts(base: State, function: Pointwise) -> list[Array]:
    """Return, in a list, the variance kernels of E[f | tau] to first order, for each summand of ``base`` that has local
    scales tau (channels gated by one number of their sample). No correlation of ``base`` tells these.

    For a Gaussian summand of variance v, d E f(x) / d ln tau = v E f'' / 2.
    """
    same = tuple(range(len(base.lengths)))
    found = []
    for link in base.links if len(base.links) > 1 else ():  # a norm has one, and takes its scale out
        parent, scales = link.parent, evaluated(link.parent.local_scales)
        if scales is not None and parent.lengths == base.lengths and link.dims in (None, same):
            factor = float(link.operate(np.ones((1,) * len(same)), same).ravel()[0])
            factor *= math.prod(combined.total() for _, combined in link.taps)
            found.append((factor * factor * kernels.average(parent.var), scales))
    if not found:
        return []
    z = NODES if base.transport is None else base.transport.values
    mean, std = kernels.average(base.mean), kernels.average(base.var) ** 0.5
    with np.errstate(all="ignore"):
        before, at, after = (
            float(WEIGHTS @ function(mean + std * (z + shift))) for shift in (-CURVATURE_STEP, 0.0, CURVATURE_STEP)
        )
    curvature = (before - 2.0 * at + after) / (CURVATURE_STEP * std) ** 2
    return [(0.5 * var * curvature) ** 2 * scales for var, scales in found] if np.isfinite(curvature) else []


def _correlation(raw: Array, total: float, base: State) -> Array:
    """Return a correlation kernel, given the covariance kernel and the variance that belongs to it."""
    corr = np.array(np.clip(raw / total if total > 0 else base.corr, -1.0, 1.0))
    return kernels.with_diagonal(corr)


def _correlation_of_mixture(mixed: Mixture, base: State, uneven: Array) -> tuple[Array, Array]:
    """Return the correlation kernel of f(x), and that of tau, whose covariance kernel is ``uneven``."""
    powers = _without_mean(mixed.average)
    lengths = [max(a, b) for a, b in zip(base.corr.shape, uneven.shape, strict=True)]
    shared = kernels.promote(uneven / float(uneven.ravel()[0]), lengths)
    latent = given_scales(kernels.promote(base.corr, lengths), shared, float(uneven.ravel()[0]))
    raw = gaussian.polynomial(powers, latent) + shared * gaussian.polynomial(mixed.own, latent)
    # channels that share nothing but their scale stay uncorrelated: what they share is in `scales`
    for i, length in enumerate(base.corr.shape):
        raw = np.take(raw, [0], axis=i) if length == 1 else raw
    raw = kernels.total(raw, *_by_inverse_dims(base, powers, base.corr))
    return _correlation(raw, float(powers.sum()) + float(mixed.own.sum()), base), shared
