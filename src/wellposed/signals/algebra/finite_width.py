"""What signals have in common because features at two positions are alike by chance, and what known numbers leave."""

from __future__ import annotations

import math

import numpy as np

from wellposed.signals.context.call import Call
from wellposed.signals.distributions.alignment import Aligned
from wellposed.signals.distributions.layout import Layout
from wellposed.signals.distributions.spread import NONE, Sources, source
from wellposed.signals.distributions.state import State
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array
from wellposed.structure.patches import positions
from wellposed.structure.widths import channels


def alike_by_chance(call: Call, x: State, y: State, of_x: Array, of_y: Array, layout: Layout) -> Array | None:
    """Return what x y has in common at two positions because what both were made of is alike there by chance; None
    where they share no such chance: a mean over positions has one of its own.

    For x = V h and y = W h, E[x_p y_p x_q y_q] = Var(V) Var(W) E (h_p h_q)²: beyond the product of the covariances
    ``of_x`` and ``of_y`` it has the variance of h_p h_q over draws, at one channel and all pairs of positions.
    """
    chance = (
        x.finite_width_correlation.covariance(y.finite_width_correlation)
        if x.finite_width_correlation.amounts.size and y.finite_width_correlation.amounts.size
        else 0.0
    )
    axes = channels(call.graph).get(call.node.outputs[0], ())
    if call.independent or not chance > 0.0 or len(axes) != len(layout.axes) or x.lengths != y.lengths:
        return None
    apart = {i for axis, made in zip(layout.axes, axes, strict=True) if not made for i in axis}
    lengths = [2 if i in apart and size > 1 else 1 for i, size in enumerate(layout.lengths)]
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


def alike_of_product(
    call: Call, states: tuple[State, State], aligned: tuple[Aligned, Aligned], layout: Layout, var: float
) -> Sources:
    """Return how alike by chance two positions of a product x y of this variance are, by each factor's share of it.

    Numbers whose signs differ by position, as those of rotary positions, turn features against one another: of what two
    positions p and q are alike, C(p, q) = sum_f y_pf y_qf / sum_f y_f² is left. Its mean is shared with what was made
    of the same features otherwise, and the rest of its mean square is not.
    """
    result = NONE
    for x, own, other, y in zip(states, aligned, aligned[::-1], states[::-1], strict=True):
        if not x.finite_width_correlation.amounts.size or not var > 0.0:
            continue
        made = (
            call.independent or y.finite_width_correlation.amounts.size > 0
        )  # y is no mere number: a weight has made it
        mean, square = (None if made else _turned(call, other, layout)) or (None, 1.0)
        if mean is None:
            result = result + x.finite_width_correlation.times(kernels.average(other.mean**2 * own.var) / var)
            continue
        share = kernels.average((other.mean**2 + other.var) * own.var) / var
        rest, result = square - mean * mean, result + x.finite_width_correlation.times(share * mean)
        if rest > LITTLE:
            result = result + source(call.source(), x.finite_width_correlation.variance * rest * share * share)
    return result


LITTLE = 1e-3
"""Mean square below which what numbers leave at single pairs of positions is not followed."""


def _turned(call: Call, known: Aligned, layout: Layout) -> tuple[float, float] | None:
    """Return mean and mean square of C(p, q) over all pairs of positions; None where no sign differs by position."""
    axes = positions(call.graph).get(call.node.outputs[0], ())
    if len(axes) != len(layout.axes):
        return None
    over = [i for axis, alone in zip(layout.axes, axes, strict=True) if alone for i in axis]
    if kernels.nonzero(known.var):  # drawn, or a table too large to be followed by position
        sizes = enumerate(layout.lengths)
        lengths = [max(known.corr.shape[i], min(2, size)) if i in over else known.corr.shape[i] for i, size in sizes]
        raw = kernels.promote(known.corr, lengths) * kernels.autocorrelation(np.sqrt(known.var), lengths)
        raw = raw + kernels.autocorrelation(known.mean, lengths)
        raw = kernels.at_zero(raw, [i for i in range(raw.ndim) if i not in over])
        raw = raw / max(float(kernels.at_zero(raw, over).ravel()[0]), 1e-300)
        mean, square = (float(kernels.pair_mean(k, layout.lengths, over).ravel()[0]) for k in (raw, raw * raw))
        return mean, square
    table = known.mean
    over = [i for i in over if table.shape[i] > 1]
    lowest, highest = kernels.extent(table)
    if not over or not lowest < 0.0 < highest or not np.ptp(np.sign(table), axis=tuple(over)).any():
        return None
    rows = np.moveaxis(table, over, range(len(over))).reshape(math.prod(table.shape[i] for i in over), -1)
    level = float((rows * rows).sum()) / len(rows)
    products = rows.T @ rows if rows.shape[1] < len(rows) else rows @ rows.T  # both have the same sum of squares
    square = float((products * products).sum()) / (level * len(rows)) ** 2
    return float((rows.mean(axis=0) ** 2).sum()) / level, square
