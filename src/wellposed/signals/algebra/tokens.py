"""Correlations of two tokens, expected and at finite width, as keys and as values of attention (signals.md 5.8)."""

from __future__ import annotations

import math

import numpy as np

from wellposed.signals.algebra.weighted import features_of
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.attention import Tokens
from wellposed.signals.distributions.lazy import evaluated
from wellposed.signals.distributions.mixtures import LARGEST_VARIANCE
from wellposed.signals.distributions.spread import source
from wellposed.signals.distributions.state import State
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array


def tokens_of(call: Call, x: State, axis: int, width: int, value: int) -> Tokens:
    """Return the correlations of two positions along an axis of one atom, in the ``width`` features of one head;
    ``value`` is the tensor in the graph.

    Weights that read the tensor see the features of all heads.
    """
    kernel, size = _along(x, axis)
    every = max(math.prod(x.shape[1:]) // size, width) if len(x.shape) > 2 else width
    number = features_of(call, x, value)
    own = source(number, 1.0 / every)
    if every > width:
        key = ("heads", number)
        if key not in call.run.memo:
            call.run.memo[key] = call.source()
        own = own + source(call.run.memo[key], 1.0 / width - 1.0 / every)
    return Tokens(kernel, size, x.finite_width_correlation + own)


def token_correlation(x: State, axis: int) -> float:
    """Return the mean correlation of two positions along an axis of one atom."""
    kernel, size = _along(x, axis)
    return float(kernels.off_diagonal_mean(kernel, [size], 0)[0])


def _along(x: State, axis: int) -> tuple[Array, int]:
    i = x.axes[axis][0]
    return x.corr[tuple(slice(None) if k == i else 0 for k in range(x.corr.ndim))], x.lengths[i]


def relatedness(keys: Tokens, values: Tokens, sized: float = 1.0) -> float:
    """Return the covariance, over pairs of tokens, of the correlation of two keys and that of two values, relative to
    what not all tokens share; 1 / D where both are projections of the same tokens of D dimensions.

    ``sized`` is `shared_size`, the relative mean square of the sizes of samples.
    """
    at_finite_width = keys.finite_width_correlation.covariance(values.finite_width_correlation) / sized
    if keys.size != values.size:
        return min(max(at_finite_width, 0.0), 1.0)
    r, s = keys.correlation, values.correlation
    first, second = kernels.common(keys.kernel, values.kernel)
    both = float(kernels.off_diagonal_mean(first * second, [keys.size], 0)[0])
    expected = (both - r * s) / (max(1.0 - r, 1e-9) * max(1.0 - s, 1e-9))
    return min(max(at_finite_width + expected, 0.0), 1.0)


def varying(x: State, axis: int) -> tuple[float, float]:
    """Return Var(ln tau) of the local scale of x, and the variance of the mean of ln tau along an axis."""
    scales = evaluated(x.local_scales)
    if scales is None or not x.axes[axis]:
        return 0.0, 0.0
    kernel = np.log1p(np.clip(scales, 0.0, LARGEST_VARIANCE))
    mean = kernels.pair_mean(kernel, x.lengths, x.axes[axis])
    return float(kernel.ravel()[0]), float(mean.ravel()[0])


def shared_size(x: State, axis: int) -> float:
    """Return E t² / (E t)² over samples, t the mean local scale of the positions along an axis."""
    return math.exp(varying(x, axis)[1])
