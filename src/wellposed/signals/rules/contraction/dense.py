"""Products with a weight that has no window: dense layers, matrix products, experts."""

from __future__ import annotations

import math
import string
from collections.abc import Mapping, Sequence

import numpy as np

from wellposed.arrays import array_of
from wellposed.operators.product import Product
from wellposed.signals.algebra.local_scales import marginal_with, weighted_scales
from wellposed.signals.algebra.weighted import (
    FiniteWidth,
    Pairs,
    finite_width_of_sum,
    scaled_weight,
    second_moments,
    with_drawn_weight,
)
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.blocks import laid_out
from wellposed.signals.distributions.layout import Layout
from wellposed.signals.distributions.lazy import evaluated
from wellposed.signals.distributions.mixtures import UNEVEN
from wellposed.signals.distributions.state import State
from wellposed.signals.distributions.views import pooled
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array
from wellposed.signals.rules.contraction.filters import WIDE, energy_kernel


def multiply_weight(
    call: Call, data: State, weight: State, product: Product, *, centred: bool, pairs: Pairs | None
) -> State:
    """Return the product of a signal with a weight: the second moments that meet in an output add up.

    With ``centred`` a bias cancels the mean of the output. ``pairs`` says how weight elements of one output are
    correlated.
    """
    given, uneven = product.left_axes, not call.independent and _is_uneven(weight, product)
    data = _as_it_meets(data, product, uneven)
    sizes = dict(zip(given, data.shape, strict=True))
    summed = [i for label in given if label not in product.out_axes for i in data.axes[given.index(label)]]
    count = math.prod(data.lengths[i] for i in summed)
    q, raw = second_moments(data, centred)
    means, own = kernels.mean_over(q, summed), kernels.at_zero(raw, summed)
    less, common = 1.0, None
    if pairs is not None:
        common = kernels.pair_mean(raw, data.lengths, summed)
        less, own = pairs.met(own, common)
        means = means * less
    free = [i for i in range(len(data.lengths)) if i not in summed]
    var, kernel = kernels.rearranged(means, free), kernels.rearranged(own, free)
    corr = kernels.quotient(kernel, kernels.autocorrelation(np.sqrt(var), kernel.shape))
    layout, new = _outputs(data.layout.without(summed), product, sizes, call.shape())
    var = _met(q, data, weight, product, new) * less if uneven else var.reshape(var.shape + (1,) * len(new))
    drawn = scaled_weight(call, weight, kernels.average(var) * count, kernels.average(q))
    corr = _correlation_of_outputs(call, corr, layout, product, weight, new)
    finite_width = FiniteWidth() if call.independent else _finite_width(data, summed, product, pairs)
    var = var * (drawn.second_moment * product.scale**2 * count)
    outputs = math.prod(layout.lengths[len(free) :])
    result = with_drawn_weight(call, layout, var, corr, data, drawn, outputs=outputs, finite_width=finite_width)
    if call.independent or not _has_local_scales(data, drawn, count):
        return result
    energies = _energy_that_meets(data, summed, kernels.average(q), pairs, common)
    if energies is None:
        return result
    energies = kernels.rearranged(energies, free)
    for _ in new:  # all outputs see the same energy
        energies = np.concatenate([energies[..., None]] * 2, axis=-1)
    return result.amended(marginal=marginal_with(weighted_scales(call, data, energies), True))


def _as_it_meets(data: State, product: Product, uneven: bool) -> State:
    """Return a concatenation with moments by position where parts meet different weights (``uneven``) or lie along an
    axis of the result; else pooled.
    """
    by_part = data.blocks and (uneven or product.left_axes[data.blocks.axis] in product.out_axes)
    return laid_out(data) if by_part else pooled(data)


def _finite_width(data: State, summed: list[int], product: Product, pairs: Pairs | None) -> FiniteWidth:
    """Return the finite-width correlation of two positions after a sum over some atoms."""
    return finite_width_of_sum(data, {i: data.lengths[i] for i in summed}, pairs=pairs)._replace(value=product.left)


EQUAL_NORMS = 1e-9
"""Variance of ln(second moment) up to which tokens have equal norms. Chosen: above rounding."""


def _has_local_scales(data: State, weight: State, count: int) -> bool:
    """Whether products with a drawn weight, sums over ``count`` elements, get local scales: not for tokens of equal
    norm, nor for sums over many independent elements.
    """
    if not kernels.nonzero(weight.var):
        return False
    if data.equal_norm_inverse_dim > 0.0 and data.spread.variance < EQUAL_NORMS:
        return False
    product_of_two = data.transport is not None and data.function is None
    return count <= WIDE or product_of_two or evaluated(data.local_scales) is not None


def _is_uneven(weight: State, product: Product) -> bool:
    """Whether a weight's variance differs by position, as that of a masked weight."""
    of_either = {*product.left_axes, *product.out_axes}.issuperset(product.right_axes)
    uneven = weight.var.size > 1 and kernels.average(weight.mean**2) + kernels.average(weight.var) > 0.0
    return uneven and of_either and all(len(axis) < 2 for axis in weight.axes)


def _met(q: Array, data: State, weight: State, product: Product, new: Sequence[str]) -> Array:
    """Return the mean of the second moments ``q`` that meet in each output of an uneven weight, weighted by the squares
    of its elements: by the data's atoms that are not summed, and one for each of the ``new`` labels.
    """
    places, first = dict(zip(product.left_axes, data.axes, strict=True)), len(data.lengths)
    places |= {label: (first + i,) for i, label in enumerate(new)}
    energies, order = _squares_by_atom(weight, product, data.lengths, places)
    summed = [i for label in product.left_axes if label not in product.out_axes for i in places[label]]
    kept = [i for i in range(first + len(new)) if i not in summed]
    lengths = dict(zip(order, energies.shape, strict=True))
    count = math.prod(max(q.shape[i], lengths.get(i, 1)) for i in summed)
    terms = ["".join(string.ascii_letters[atom] for atom in of) for of in (range(first), order, kept)]
    met = np.einsum(f"{terms[0]},{terms[1]}->{terms[2]}", q, energies, optimize=True)
    return np.asarray(met / (count * kernels.average(energies)))


def _squares_by_atom(
    weight: State, product: Product, lengths: tuple[int, ...], places: Mapping[str, tuple[int, ...]]
) -> tuple[Array, list[int]]:
    """Return E w² of a weight's elements, and for each dimension its atom, numbered as in the data (of ``lengths``) and
    then new ones; ``places`` gives the atoms of each label.
    """
    energies = weight.mean**2 + weight.var
    order, shape = list[int](), list[int]()
    for label, axis in zip(product.right_axes, weight.axes, strict=True):
        for atom in places[label] if axis else ():
            size = lengths[atom] if atom < len(lengths) else energies.shape[axis[0]]
            order.append(atom)
            shape.append(size if energies.shape[axis[0]] > 1 else 1)
    return energies.transpose([axis[0] for axis in weight.axes if axis]).reshape(shape), order


def _energy_that_meets(
    data: State, summed: list[int], level: float, pairs: Pairs | None, common: Array | None
) -> Array | None:
    """Return the relative variance kernel of sum x² over the summed atoms, for outputs that see the same elements
    (signals.md 5.7); None where it hardly varies.

    ``level`` is the second moment of the data, and ``common`` the kernel of the mean over what is summed.
    """
    kernel = energy_kernel(data)
    if kernel is None:
        return None
    for i in summed:
        other = np.take(kernel, [1], axis=i) if kernel.shape[i] > 1 else 0.0
        kernel = np.take(kernel, [0], axis=i) / data.lengths[i] + (1 - 1 / data.lengths[i]) * other
    if float(kernel.ravel()[0]) <= UNEVEN:
        return None
    if pairs is None or common is None:
        return kernel
    return pairs.energies(kernel, common / level, 1.0 - kernels.average(data.var) / level)


def _outputs(
    data: Layout, product: Product, sizes: Mapping[str, int], shape: tuple[int, ...]
) -> tuple[Layout, list[str]]:
    """Return the layout of the outputs (the data's atoms, then those of new labels), and the new labels.

    New labels are those of the weight alone, and batch labels along which the data are broadcast.
    """
    atoms, new = list(data.lengths), []
    axes: list[tuple[int, ...]] = []
    for label, size in zip(product.out_axes, shape, strict=True):
        if sizes.get(label) == size:
            axes.append(data.axes[product.left_axes.index(label)])
        elif size == 1:
            axes.append(())
        else:
            axes.append((len(atoms),))
            atoms.append(size)
            new.append(label)
    return Layout(tuple(atoms), tuple(axes)), new


def _correlation_of_outputs(
    call: Call, corr: Array, layout: Layout, product: Product, weight: State, new: Sequence[str]
) -> Array:
    """Return the outputs' correlation kernel from that of the data: 0 for two indices of a label, a ``new`` or a batch
    one, that have weights of their own.
    """
    given, filters = product.left_axes, product.right_axes
    sizes = dict(zip(filters, weight.shape, strict=True))
    for label in new:
        corr = corr[..., None]
        if label in given and sizes.get(label, 1) == 1:
            corr = np.concatenate([corr, corr], axis=-1)
    # every element of a shared batch index does
    shared = [label for label in product.out_axes if label in given and sizes.get(label, 1) > 1]
    corr = kernels.at_zero(corr, [i for label in shared for i in layout.axes[product.out_axes.index(label)]])
    if filters[0] == "e" and "e" not in (*given, *product.out_axes):
        return _between_experts(corr, layout.axes[0], layout.lengths, _loads(call, sizes["e"]))
    return corr


def _loads(call: Call, experts: int) -> Array | int:
    """Return the number of rows of each expert where it is known, else the number of experts."""
    offsets = call.value_of(2)
    ends = None if offsets is None else call.graph.known.get(offsets)
    return experts if ends is None else np.diff(array_of(ends), prepend=0.0)


def _between_experts(corr: Array, rows: tuple[int, ...], sizes: tuple[int, ...], loads: Array | int) -> Array:
    """Return a correlation kernel of ``rows`` after each has met its expert's weight: 0 for rows of two experts.
    Unknown rows share one of E experts with probability (n / E - 1) / (n - 1), being dealt out evenly.
    """
    total = math.prod(sizes[i] for i in rows)
    if isinstance(loads, int):
        share = max(total / loads - 1.0, 0.0) / max(total - 1, 1)
    elif len(rows) == 1 and kernels.positions(corr.shape[rows[0]]):
        expert = np.searchsorted(np.cumsum(loads), np.arange(total), side="right")
        same = (expert[:, None] == expert).ravel().astype(np.float64)
        return np.asarray(corr * same.reshape([same.size if i in rows else 1 for i in range(corr.ndim)]))
    else:
        share = float((loads * (loads - 1.0)).sum()) / max(total * (total - 1), 1)
    factor = np.full([corr.shape[i] if i in rows else 1 for i in range(corr.ndim)], share)
    return np.asarray(corr * kernels.with_diagonal(factor))
