"""What signals have in common because features at two positions are alike by chance."""

from __future__ import annotations

import numpy as np

from wellposed.signals.context.call import Call
from wellposed.signals.distributions.state import Layout, State
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array
from wellposed.signals.structure.widths import channels


def alike_by_chance(call: Call, x: State, y: State, of_x: Array, of_y: Array, layout: Layout) -> Array | None:
    """Return what x y has in common at two positions because what both were made of is alike there by chance; None
    where they share no such chance: a mean over positions has one of its own.

    For x = V h and y = W h, E[x_p y_p x_q y_q] = Var(V) Var(W) E (h_p h_q)²: beyond the product of the covariances
    ``of_x`` and ``of_y`` it has the variance of h_p h_q over draws, at one channel and all pairs of positions.
    """
    chance = x.alike.covariance(y.alike) if x.alike.amounts.size and y.alike.amounts.size else 0.0
    axes = channels(call.graph).get(call.node.outputs[0], ())
    if call.independent or not chance > 0.0 or len(axes) != len(layout.axes) or x.sizes != y.sizes:
        return None
    apart = {i for axis, made in zip(layout.axes, axes, strict=True) if not made for i in axis}
    lengths = [2 if i in apart and size > 1 else 1 for i, size in enumerate(layout.sizes)]
    first, second = (
        kernels.promote(kernel, [max(n, m) for n, m in zip(kernel.shape, lengths, strict=True)])
        for kernel in (of_x, of_y)
    )
    level, other = float(first.ravel()[0]), float(second.ravel()[0])
    if not (level > 0.0 and other > 0.0):
        return None
    extra = chance * (level - first) * (other - second)
    for i in range(extra.ndim):  # channels have weights of their own
        if i not in apart:
            extra = extra * (np.arange(extra.shape[i]) == 0).reshape([-1 if j == i else 1 for j in range(extra.ndim)])
    return np.asarray(extra)
