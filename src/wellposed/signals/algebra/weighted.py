"""What dense layers and convolutions share: the signal that meets a weight, the weight's scale, the result."""

from __future__ import annotations

import numpy as np

from wellposed.signals.context.arguments import rescaled
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.spread import Spread, source
from wellposed.signals.distributions.state import Ancestry, Layout, Marginal, Moments, State, weakest
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array


def scaled_weight(call: Call, weight: State, incoming: float, before: float) -> State:
    """Return the weight at its scale, choosing that where it is still open."""
    if weight.lever is None:
        return weight
    scale = call.run.weights.choose(weight.lever, call.node, incoming, before, weight.second_moment)
    return rescaled(weight, scale)


def second_moments(data: State, centred: bool) -> tuple[Array, Array]:
    """Second moment by position and raw kernel E[x_p x_{p+d}], averaged over positions (centred on request)."""
    covariance = data.covariance()
    if centred or not kernels.nonzero(data.mean):
        return data.var, covariance
    lengths = [
        max(length, _needed(data.mean.shape[dim], size))
        for dim, (length, size) in enumerate(zip(covariance.shape, data.sizes, strict=True))
    ]
    cap = kernels.lag_cap(sum(n > 2 for n in lengths))
    lengths = [min(n, max(cap, 2)) if n > 2 else n for n in lengths]
    covariance = kernels.promote(covariance, lengths)
    return data.mean**2 + data.var, covariance + kernels.autocorrelation(data.mean, covariance.shape)


def _needed(mean_length: int, size: int) -> int:
    """Profile length that a mean asks for: one shared value for a constant mean, displacements for a varying one."""
    if size == 1:
        return 1
    return 2 if mean_length == 1 else size


def chance_likeness(data: State, summed: dict[int, int]) -> float:
    """Return the mean square of what two positions of one draw are alike beyond their correlation: 1 / n for n
    independent features, ``summed`` being the atoms that a product sums and over how many positions.
    """
    if not data.corr.size or not (q := data.second_moment) > 0.0:
        return 0.0
    kernel = data.corr[tuple([slice(summed.get(i, 1)) for i in range(data.corr.ndim)])]
    share = kernels.average(data.var) / q
    sizes = [summed.get(i, 1) for i in range(kernel.ndim)]
    return share * share * float(kernels.pair_mean(kernel * kernel, sizes).ravel()[0])


def fresh(
    call: Call, layout: Layout, var: Array, corr: Array, data: State, weight: State, *, outputs: int, chance: float
) -> State:
    """Return the state of a product with a weight drawn for it: Gaussian, of mean 0.

    ``outputs`` of its elements have weights of their own; ``chance`` is the `chance_likeness` of what is summed.
    """
    one = (1,) * len(layout.sizes)
    corr = np.ones(one) if call.independent else np.asarray(np.clip(corr, -1.0, 1.0))
    if corr.size:
        corr = kernels.with_diagonal(corr)
    spread = data.spread + Spread(weight.inherited)
    if kernels.nonzero(weight.var):  # a draw of its own: what the signal had before is a scale that all elements share
        alike = min(outputs * float(kernels.pair_mean(corr * corr, layout.sizes).ravel()[0]), 1.0)
        own = source(call.source(), 2.0 * (alike + chance * (1.0 - alike) ** 2) / outputs)
        spread = Spread(spread.inherited + spread.own, own, spread.drift - 0.5 * data.own.variance)
    return State(
        layout,
        Moments(np.zeros(one), var, corr),
        tag=weakest(data.tag, weight.tag),
        marginal=Marginal(gauss=True),
        ancestry=Ancestry((), call.root()),
        spread=spread,
    )
