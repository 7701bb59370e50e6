"""Finite-width correlation: finitely many drawn features correlate at two positions; products keep a part of that."""

from __future__ import annotations

import math
from collections.abc import Collection

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


def finite_width_covariance(call: Call, x: State, y: State, of_x: Array, of_y: Array, layout: Layout) -> Array | None:
    """Return what the finite-width correlations of x and y add to the covariance kernel of x y, over the atoms of the
    ``layout``; None where they share no source.

    For x = V h and y = W h, E[x_p y_p x_q y_q] = Var(V) Var(W) E (h_p h_q)²: beyond the product of the covariances
    ``of_x`` and ``of_y`` it has the variance of h_p h_q over draws, at one channel and all pairs of positions.
    """
    shared = x.finite_width_correlation.amounts.size and y.finite_width_correlation.amounts.size
    covariance = x.finite_width_correlation.covariance(y.finite_width_correlation) if shared else 0.0
    axes = channels(call.graph).get(call.node.outputs[0], ())
    if call.independent or not covariance > 0.0 or len(axes) != len(layout.axes) or x.lengths != y.lengths:
        return None
    places = {i for axis, made in zip(layout.axes, axes, strict=True) if not made for i in axis}
    first, second = (_with_pairs_apart(kernel, layout, places) for kernel in (of_x, of_y))
    level, other = float(first.ravel()[0]), float(second.ravel()[0])
    if not (level > 0.0 and other > 0.0):
        return None
    return _within_channels(covariance * (level - first) * (other - second), places)


def _within_channels(kernel: Array, places: Collection[int]) -> Array:
    """Return a kernel that is 0 for elements of different channels, that is, along all atoms but the ``places``."""
    for i in range(kernel.ndim):
        if i not in places:
            same = (np.arange(kernel.shape[i]) == 0).reshape([-1 if j == i else 1 for j in range(kernel.ndim)])
            kernel = kernel * same
    return np.asarray(kernel)


def _with_pairs_apart(kernel: Array, layout: Layout, places: Collection[int]) -> Array:
    """Return a kernel with an entry for different positions (length 2 or more) along the atoms ``places``."""
    lengths = [2 if i in places and size > 1 else 1 for i, size in enumerate(layout.lengths)]
    return kernels.promote(kernel, [max(n, m) for n, m in zip(kernel.shape, lengths, strict=True)])


def finite_width_correlation_of_product(
    call: Call, states: tuple[State, State], aligned: tuple[Aligned, Aligned], layout: Layout, var: float
) -> Sources:
    """Return the finite-width correlation of a product x y of variance ``var``: the sum of that of each factor, in
    proportion to the variance that the factor brings.

    Known numbers whose signs differ by position (rotary embeddings) rotate the features of each position differently:
    of the correlation of positions p and q the part C(p, q) = sum_f y_pf y_qf / sum_f y_f² is left. The mean of C keeps
    the sources of x, the rest of its mean square gets a source of its own.
    """
    result = NONE
    for x, own, other, y in zip(states, aligned, aligned[::-1], states[::-1], strict=True):
        before = x.finite_width_correlation
        if not before.amounts.size or not var > 0.0:
            continue
        known = not call.independent and not y.finite_width_correlation.amounts.size
        mean, square = (_turned(call, other, layout) if known else None) or (None, 1.0)
        if mean is None:
            result = result + before.times(kernels.average(other.mean**2 * own.var) / var)
            continue
        share = kernels.average((other.mean**2 + other.var) * own.var) / var
        rest, result = square - mean * mean, result + before.times(share * mean)
        if rest > SMALL_REST:
            result = result + source(call.source(), before.variance * rest * share * share)
    return result


SMALL_REST = 1e-3
"""Variance of C(p, q) over pairs of positions up to which it is left out. Chosen."""


def _turned(call: Call, known: Aligned, layout: Layout) -> tuple[float, float] | None:
    """Return mean and mean square of C(p, q) (`finite_width_correlation_of_product`) over all pairs of positions, for
    the factor ``known`` in the atoms of ``layout``; None where no sign differs by position.
    """
    axes = positions(call.graph).get(call.node.outputs[0], ())
    if len(axes) != len(layout.axes):
        return None
    over = [i for axis, alone in zip(layout.axes, axes, strict=True) if alone for i in axis]
    if kernels.nonzero(known.var):  # drawn, or a table too large to be followed by position
        return _turned_by_kernel(known, layout, over)
    return _turned_by_table(known.mean, [i for i in over if known.mean.shape[i] > 1])


def _turned_by_kernel(known: Aligned, layout: Layout, over: list[int]) -> tuple[float, float]:
    """Return mean and mean square of C(p, q) over pairs of positions (atoms ``over``) from a raw kernel of factors."""
    sizes = enumerate(layout.lengths)
    lengths = [max(known.corr.shape[i], min(2, size)) if i in over else known.corr.shape[i] for i, size in sizes]
    raw = kernels.promote(known.corr, lengths) * kernels.autocorrelation(np.sqrt(known.var), lengths)
    raw = raw + kernels.autocorrelation(known.mean, lengths)
    raw = kernels.at_zero(raw, [i for i in range(raw.ndim) if i not in over])
    raw = raw / max(float(kernels.at_zero(raw, over).ravel()[0]), 1e-300)
    mean, square = (float(kernels.pair_mean(k, layout.lengths, over).ravel()[0]) for k in (raw, raw * raw))
    return mean, square


def _turned_by_table(table: Array, over: list[int]) -> tuple[float, float] | None:
    """Return mean and mean square of C(p, q) over pairs of positions (dimensions ``over``) of a table of known factors;
    None where no sign differs by position.
    """
    lowest, highest = kernels.extent(table)
    if not over or not lowest < 0.0 < highest or not np.ptp(np.sign(table), axis=tuple(over)).any():
        return None
    rows = np.moveaxis(table, over, range(len(over))).reshape(math.prod(table.shape[i] for i in over), -1)
    level = float((rows * rows).sum()) / len(rows)
    products = rows.T @ rows if rows.shape[1] < len(rows) else rows @ rows.T  # both have the same sum of squares
    square = float((products * products).sum()) / (level * len(rows)) ** 2
    return float((rows.mean(axis=0) ** 2).sum()) / level, square
