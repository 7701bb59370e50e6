"""A state less its mean over axes, divided by its root mean square over them."""

from __future__ import annotations

import numpy as np

from wellposed.signals.algebra.arithmetic import normalised
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.state import STEADY, Dims, Link, Pointwise, State, read
from wellposed.signals.distributions.views import pooled
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array


def normalise(
    call: Call, x: State, over: list[int], eps: float, *, centre: bool = True, per_channel: bool = False
) -> State:
    """Return (x - mean) / std, the statistics taken over the axes ``over`` (RMS without ``centre``).

    The statistics are those of one draw: what elements that are averaged together have in common is taken out, so
    S² = mean(v) - K + mean(m²) - mean(m)², K the mean covariance over all pairs (signals.md 5.5).
    """
    x = pooled(x)
    if call.independent:
        unit = 1.0 if x.second_moment > 0 else 0.0
        one = (1,) * len(x.sizes)
        return x.with_moments(mean=np.zeros(one), var=np.full(one, unit), roots=call.root(), spread=STEADY)
    dims = [i for axis in over for i in x.axes[axis]]
    covariance = x.covariance()

    def average(array: Array) -> Array:
        return kernels.mean_over(array, dims)

    if centre:
        common = kernels.pair_mean(covariance, x.sizes, dims)
        centre_of = average(x.mean)
        shared = kernels.covariance_with_mean(x.std(), x.corr, x.sizes, dims)
        edge = read(x.margin) if per_channel else None
        if edge is not None:
            shared = shared + edge
        here_of = average(shared)
        square = average(x.var) - here_of + average(x.mean**2) - centre_of**2
        var = np.maximum(x.var - 2 * shared + here_of, 0.0)
        # far pairs lie near the borders, where positions depend less on the mean
        level = kernels.average(here_of)
        relative = kernels.mean_at_pairs(shared, covariance.shape) / level if level > 0 else np.ones((1,) * shared.ndim)
        kernel = covariance - common * (2 * relative - 1)
        mean = x.mean - centre_of
    else:
        square = average(x.var + x.mean**2)
        var, kernel, mean, level = x.var, covariance, x.mean, 0.0
        centre_of = np.zeros_like(mean)
    scale = np.sqrt(np.maximum(square, 0.0) + eps)
    scale = np.where(scale > 0, scale, 1.0)
    var, mean = var / scale**2, mean / scale
    kernel = kernel / kernels.average(scale**2)
    # what stays non-negligible of the shared part decides whether the marginal is still a function of the base
    shared_part = level / max(kernels.average(x.var), 1e-300)
    fn = base = None
    is_number = scale.size == 1 and centre_of.size == 1
    if x.base is not None and x.fn is not None and not x.gauss and shared_part < 0.05 and is_number:
        a, b = 1.0 / float(scale.ravel()[0]), -float(centre_of.ravel()[0]) / float(scale.ravel()[0])
        base, fn = x.base, x.fn.then(Pointwise(("affine", a, b), lambda t: a * t + b))
    inverse = 1.0 / kernels.average(scale)
    transport = x.transport if shared_part < 0.05 else None  # taking out little leaves the marginal's shape
    corr = normalised(kernel, var)
    excess = read(x.excess) if per_channel else None
    if excess is not None:
        lengths = [max(a, b) for a, b in zip(corr.shape, excess.shape, strict=True)]
        padded = np.zeros(lengths)
        padded[tuple(slice(0, n) for n in excess.shape)] = excess
        corr = np.clip(kernels.promote(corr, lengths) + padded, -1.0, 1.0)
    sizes = x.sizes

    def operate(k: Array, where: Dims) -> Array:
        if centre:
            inside = {at: sizes[i] for i in dims if (at := where[i]) is not None}
            k = k - kernels.pair_mean(k, [inside.get(d, 1) for d in range(k.ndim)], list(inside))
        return k * inverse

    return x.changed(
        mean=mean,
        var=var,
        corr=corr,
        base=base,
        fn=fn,
        transport=transport,
        links=(Link(x, operate),) if x.roots else (),
        spread=STEADY,
        lever=None,
    )
