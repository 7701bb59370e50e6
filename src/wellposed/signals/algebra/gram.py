"""Products of two signals that depend on each other, by pair of positions (Gram matrices)."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from wellposed.operators.product import Product
from wellposed.signals.algebra.product_indices import average_along
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.state import State
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array

LARGEST_GRAM = 512
"""Most positions whose products are followed pair by pair. Chosen for cost: 512² numbers."""


class GramTerms(NamedTuple):
    """What the dependence of two factors adds to the ``mean`` and the ``var`` of their product: arrays (size of label
    ``row``, size of label ``column``). For Gaussian factors x and y of covariance c, Var x y grows by c²; the summed
    terms count as independent.
    """

    row: str
    column: str
    mean: Array
    var: Array


def gram_terms(call: Call, left: State, right: State, product: Product) -> GramTerms | None:
    """Return what the dependence of two tensors adds to their product, by pair of positions: a tensor times its own
    transpose (a Gram matrix), or times a tensor computed from it. None for independent factors, for factors whose
    atoms do not correspond, and for too many positions.

    Positions i and j have the mean sum_k Cov(x_ik, y_jk) beside the product of the means, and where i and j differ,
    their correlation at finite width adds to the variance.
    """
    if call.independent or not left.roots & right.roots:
        return None
    own = dict(zip(product.left_axes, left.axes, strict=True))
    rows, columns = own.keys() - {*product.right_axes}, {*product.right_axes} - own.keys()
    if len(rows) != 1 or len(columns) != 1:
        return None
    (row,), (column,) = rows, columns
    if len(own[row]) != 1 or left.shape[product.left_axes.index(row)] > LARGEST_GRAM:
        return None
    other = dict(zip(product.right_axes, right.axes, strict=True))
    order = _counterparts(left, right, own, {**other, row: other[column]})
    covariance = None if order is None else call.covariance(left, right, tuple(range(len(order))), order)
    if order is None or covariance is None or not kernels.nonzero(covariance):
        return None
    (atom,) = own[row]
    along = [0] * atom + [slice(None)] + [0] * (len(order) - atom - 1)
    profile = kernels.by_displacement(covariance)[tuple(along)]
    count = math.prod(left.shape[product.left_axes.index(label)] for label in own.keys() - {*product.out_axes})
    stds = [np.sqrt(average_along(x.var, at)) for x, at in ((left, atom), (right, order[atom]))]
    mean = _by_pair(profile, left.lengths[atom], *stds) * (count * product.scale)
    level = kernels.average(left.var) * kernels.average(right.var)
    coupled = min(float(covariance.ravel()[0]) ** 2 / level, 1.0) if level > 0.0 else 0.0  # at one element
    shared = coupled * left.finite_width_correlation.covariance(right.finite_width_correlation)
    apart = (1.0 - np.eye(len(mean))) * np.multiply.outer(*stds) ** 2
    at_finite_width = np.maximum(apart * (shared * (count * product.scale) ** 2), 0.0)
    return GramTerms(row, column, mean, at_finite_width + mean**2 / count)


def _counterparts(
    left: State, right: State, own: dict[str, tuple[int, ...]], theirs: dict[str, tuple[int, ...]]
) -> tuple[int, ...] | None:
    """Return for each atom of the left tensor the atom of the right one with the same label (``own`` and ``theirs``
    give atoms by label); None where their atoms differ in length.
    """
    places: dict[int, int] = {}
    for label, atoms in own.items():
        if [left.lengths[i] for i in atoms] != [right.lengths[i] for i in theirs[label]]:
            return None
        places |= dict(zip(atoms, theirs[label], strict=True))
    if len(places) != len(left.lengths) or len(places) != len(right.lengths):
        return None
    return tuple(places[i] for i in range(len(places)))


def _by_pair(profile: Array, size: int, first: Array, second: Array) -> Array:
    """Return the covariance of all pairs of positions (size, size), whose average at each displacement is ``profile``,
    in proportion to the standard deviations ``first`` and ``second`` (size,).
    """
    profile = np.append(profile, 0.0) if profile.size == 1 else profile
    lag = np.minimum(np.abs(np.subtract.outer(np.arange(size), np.arange(size))), profile.size - 1)
    share = np.broadcast_to(np.multiply.outer(first, second), lag.shape)
    level = np.bincount(lag.ravel(), share.ravel()) / np.bincount(lag.ravel())
    known = profile[: level.size] / np.where(level > 0.0, level, np.inf)
    return np.asarray(known[lag] * share)


def with_gram_terms(made: State, product: Product, terms: GramTerms) -> State:
    """Return the product ``made`` with `GramTerms` added to its mean and variance."""
    i, j = (made.axes[product.out_axes.index(label)] for label in (terms.row, terms.column))
    if len(i) != 1 or len(j) != 1:
        return made
    mean, var = (
        (array if i < j else array.T).reshape([n if k in (i[0], j[0]) else 1 for k, n in enumerate(made.lengths)])
        for array in (terms.mean, terms.var)
    )
    return made.with_moments(mean=made.mean + mean, var=made.var + var, corr=made.corr, marginal=made.marginal)
