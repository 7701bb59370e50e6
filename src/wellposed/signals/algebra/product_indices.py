"""The labelled indices of a product of two signals: kernels, moments and correlations written in these."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from wellposed.operators.product import Product
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.state import State
from wellposed.signals.distributions.views import merge_atoms, pooled
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array


class ProductIndices(NamedTuple):
    """A product of two signals and the size of each of its labels, those of the left operand first."""

    product: Product
    sizes: dict[str, int]

    @classmethod
    def of(cls, left: State, right: State, product: Product) -> ProductIndices:
        """Return the indices of a product: each label is as long as in that operand which does not broadcast it."""
        sizes: dict[str, int] = {}
        for own, state in ((product.left_axes, left), (product.right_axes, right)):
            for label, size in zip(own, state.shape, strict=True):
                sizes[label] = max(sizes.get(label, 1), size)
        return cls(product, sizes)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels, one for each dimension of the kernels."""
        return tuple(self.sizes)

    @property
    def summed(self) -> list[int]:
        """Dimensions that are summed over."""
        return [i for i, label in enumerate(self.sizes) if label not in self.product.out_axes]

    @property
    def terms(self) -> int:
        """Number of terms that one element of the result sums."""
        return math.prod(self.sizes[label] for label in self.product.summed)

    def over_pairs(self, kernel: Array) -> Array:
        """Return a kernel averaged over all pairs of summed elements (their dimensions are left with length 1)."""
        return kernels.pair_mean(kernel, list(self.sizes.values()), self.summed)

    def of_result(self, call: Call, kernel: Array) -> Array:
        """Return a kernel over the labels as one over the atoms of the result."""
        labels = self.labels
        kernel = kernels.rearranged(kernel, [labels.index(label) for label in self.product.out_axes])
        return kernels.without(kernel, [i for i, size in enumerate(call.shape()) if size == 1])

    def raw_kernel(self, state: State, axes: tuple[str, ...]) -> Array:
        """Return the raw kernel E[x_i x_{i+d}] of an operand whose axes have these labels, a dimension for each label.

        An index that the operand lacks (or broadcasts over) does not move it: length 2 with equal entries.
        """
        raw = state.covariance()
        if kernels.nonzero(state.mean):
            lengths = [max(length, min(2, size)) for length, size in zip(raw.shape, state.lengths, strict=True)]
            raw = kernels.promote(raw, lengths) + kernels.autocorrelation(state.mean, lengths)
        order, missing = [], []
        for at, label in enumerate(self.sizes):
            own = state.axes[axes.index(label)] if label in axes else ()
            if own:
                order.append(own[0])
            else:
                missing.append((at, self.sizes[label]))
        moved = raw.transpose(order)
        for at, size in missing:
            moved = np.expand_dims(moved, at)
            if size > 1:
                moved = np.concatenate([moved, moved], axis=at)
        return moved

    def placed(self, state: State, array: Array, axes: tuple[str, ...]) -> Array:
        """Return an operand's array by position, a dimension for each atom, with a dimension for each label."""
        places = [state.axes[axes.index(label)] if label in axes else () for label in self.sizes]
        moved = array.transpose([own[0] for own in places if own])
        return np.expand_dims(moved, tuple(i for i, own in enumerate(places) if not own))


def with_single_atoms(state: State) -> State:
    """Return a state of one block with at most one atom for each axis."""
    state = pooled(state)
    for axis in range(len(state.axes)):
        state = merge_atoms(state, axis)
    return state


def average_correlation(state: State, axes: tuple[str, ...], labels: Sequence[str]) -> float:
    """Return the average correlation of two elements that differ in these labels alone (1 where one is lacking)."""
    if any(label not in axes for label in labels):
        return 1.0
    dims = [i for label in labels for i in state.axes[axes.index(label)]]
    count = math.prod(state.lengths[i] for i in dims)
    if count <= 1:
        return 0.0
    mean = float(kernels.pair_mean(state.corr, state.lengths, dims).ravel()[0])
    return (mean * count - 1.0) / (count - 1.0)


def average_along(array: Array, dim: int) -> Array:
    """Return the average of an array over all dimensions but ``dim``: (length of ``dim``,)."""
    return np.asarray(array.mean(axis=tuple(i for i in range(array.ndim) if i != dim)))
