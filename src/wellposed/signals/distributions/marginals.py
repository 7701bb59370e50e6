"""The distribution of one element, as a function of a standard Gaussian."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from wellposed.signals.distributions.lazy import evaluated
from wellposed.signals.distributions.mixtures import UNEVEN, gamma_nodes
from wellposed.signals.distributions.state import Marginal, State
from wellposed.signals.integration.gaussian import NODES
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.special import ndtr, ndtri
from wellposed.signals.integration.transport import Transport, of_values, standardised

NOT_GAUSSIAN = 0.1
"""A third of the excess kurtosis from which on a sum of few terms is no Gaussian. Chosen: its squares are 0.14 octaves
larger then."""


def marginal(x: State) -> Array:
    """Return x at its average position as a function of a standard Gaussian, at `NODES`: array (POINTS,)."""
    base, fn = x.gaussian_source()
    uneven = evaluated(base.local_scales) if base.transport is None and x.local_scales is None else None
    z = NODES if base.transport is None else base.transport.values
    if uneven is not None and (kappa := float(uneven.ravel()[0])) > UNEVEN:
        z = _of_mixture(_rounded(kappa))
    values = float(np.mean(base.mean)) + float(np.sqrt(np.mean(base.var))) * z
    return values if fn is None else fn(values)


def has_shape(x: State) -> bool:
    """Whether the shape of an element's distribution is known, and not its moments alone."""
    return x.gauss or x.function is not None or x.transport is not None


def _rounded(kappa: float) -> float:
    """Return a local scale's relative variance to three digits, and up to the largest that is followed."""
    return float(f"{min(kappa, 8.0):.3g}")


def of_uneven(kappa: float) -> Transport | None:
    """Return the transport of sqrt(tau) Z with tau Gamma-distributed, of mean 1 and variance ``kappa``, as in sums of
    few products of Gaussians; None where it is all but Gaussian.
    """
    return _of_uneven(_rounded(kappa)) if kappa > NOT_GAUSSIAN else None


@lru_cache(maxsize=256)
def _of_uneven(kappa: float) -> Transport:
    return standardised(_of_mixture(kappa))


@lru_cache(maxsize=256)
def _of_mixture(kappa: float) -> Array:
    """Return sqrt(tau) Z, tau a Gamma variable of variance kappa, as a function of a Gaussian at `NODES`."""
    scales, weights = gamma_nodes(kappa)
    values = NODES * math.sqrt(float(scales.max()))
    # from the tail below 0, where probabilities are resolved
    below = ndtri(ndtr(-np.abs(values)[:, None] / np.sqrt(scales)) @ weights)
    return np.asarray(np.interp(NODES, np.where(values < 0.0, below, -below), values))


def shape_of(x: State) -> Transport | None:
    """Return the transport of an element of x, averaged over its local scale; None if all but Gaussian or unknown."""
    if x.gauss or x.function is None:
        return x.transport
    return of_values(marginal(x if x.local_scales is None else x.amended(local_scales=None)))


def one_signed(x: State) -> Marginal:
    """Return the marginal of a part or a repetition of x: with the transport of x where x never crosses 0.

    Step sizes and rates of decay, so bounded, stay bounded in sums and functions.
    """
    if x.gauss or not sign_of(x):
        return Marginal(x.gauss)
    return Marginal(transport=shape_of(x))


def sign_of(x: State) -> int:
    """Return 1 if x is never negative, -1 if it is never positive, as far as its marginal tells, else 0."""
    if x.gauss or not has_shape(x):
        return 0
    if x.function is not None:
        values = marginal(x)
    else:
        assert x.transport is not None
        ends = x.transport.values[[0, -1]]
        values = np.stack([x.mean + x.std() * end for end in ends])
    low, high = float(values.min()), float(values.max())
    if min(-low, high) > 1e-6 * max(-low, high):
        return 0
    return 1 if high > -low else -1
