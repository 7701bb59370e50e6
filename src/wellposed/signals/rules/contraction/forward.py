"""Products with a weight: dense layers, convolutions, matrix products, einsum.

All follow from `operators.product.describe`. With fresh, independent, zero-mean weights the output is
Gaussian with mean 0 and variance Var(W) times the sum of the second moments that meet in it (AutoInit, Appendix A,
eq. 3 to 6); zero padding takes taps away near the borders (signals.md 5.2).
"""

from __future__ import annotations

import math
import string
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from wellposed.arrays import array_of
from wellposed.graphs import Ref
from wellposed.operators.product import GROUPED, Product, describe
from wellposed.signals.algebra.affine import linear
from wellposed.signals.algebra.box_filters import filtered
from wellposed.signals.algebra.linear_maps import mapped
from wellposed.signals.algebra.local_scales import weighted_sizes
from wellposed.signals.algebra.products import product_of_signals
from wellposed.signals.algebra.reduction import averaged
from wellposed.signals.algebra.sums import combine
from wellposed.signals.algebra.weighted import Likeness, Pairs, chance_likeness, fresh, scaled_weight, second_moments
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.blocks import laid_out
from wellposed.signals.distributions.expansion import UNEVEN
from wellposed.signals.distributions.state import Layout, State, evaluated, make_state, weakest
from wellposed.signals.distributions.views import pooled, unpaired
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array
from wellposed.signals.registry import overloads, rule
from wellposed.signals.rules.contraction.convolution import WIDE, convolve, energy_kernel, steps_of
from wellposed.signals.sampling.constant_folding import numbers

PRODUCTS = [*GROUPED, *overloads(
    "linear.default", "conv1d.default", "conv2d.default", "conv3d.default", "conv1d.padding", "conv2d.padding",
    "conv3d.padding", "conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input",
    "addmm.default", "baddbmm.default", "matmul.default", "mm.default", "bmm.default", "mv.default",
    "dot.default", "outer.default", "einsum.default", "tensordot.default",
)]  # fmt: skip
"""Products of two tensors with axes summed, forwards and backwards."""


def is_weight(call: Call, value: int) -> bool:
    """Whether an operand is made from parameters and constants alone."""
    return value in call.run.weights.fixed


@rule(
    PRODUCTS,
    source="AutoInit (arXiv 2109.08958), Appendix A, eq. 3-6; signals: 5.2",
    pairs=True,
)
def contract(call: Call, *args: Any, **kwargs: Any) -> State | None:
    """A product of two tensors with axes summed; a parameter-derived operand is the weight."""
    product = describe(call.graph, call.node)
    states = _operand_states(call, args, kwargs)
    if product is None:
        return _of_factors(call, states)
    if product.left not in states or product.right not in states:
        return None
    bias = states.get(product.bias) if product.bias is not None else None
    weighted = _with_weight(call, product)
    if weighted is None:
        left, right = states[product.left], states[product.right]
        return _with_bias(call, product_of_signals(call, left, right, product), bias, product)
    product, data, weight = weighted, states[weighted.left], states[weighted.right]
    by_position = _known_map(call, data, weight, product)
    if by_position is not None:
        return _with_bias(call, by_position, bias, product)
    centred = _centred_bias(call, product, data)
    level = _mean_level(weight) if product.groups == 1 and not centred and not call.independent else 0.0
    if level and product.window is None and not _keeps_axes(product):  # sums over an axis that goes, as by ones
        if weight.scale_parameter is None:
            return _with_bias(call, product_of_signals(call, data, weight, product), bias, product)
        level = 0.0
    if level:
        weight = weight.changed(mean=weight.mean - level)
    pairs = _pairs(call, weight, product)
    if product.window is not None:
        data = unpaired(data, kernels.lag_cap(len(product.window.kernel)))
        result = convolve(call, data, weight, product, product.window, centred=centred, pairs=pairs)
    else:
        result = _multiply_weight(call, data, weight, product, centred=centred, pairs=pairs)
    if level:
        result = _with_common_part(call, result, data, product, level)
    return _with_bias(call, result, bias, product)


def _known_map(call: Call, data: State, weight: State, product: Product) -> State | None:
    """Return the product with a matrix of known numbers (a filter bank, a graph's Laplacian) as the map along one axis
    that it is: what its rows have in common, and with what else is made of the data, is then known. None of others.
    """
    labels = [label for label in product.left_axes if label not in product.out_axes]
    made = [label for label in product.right_axes if label not in labels]
    if call.independent or product.window is not None or len(labels) != 1 or len(made) != 1:
        return None
    axis, at = product.left_axes.index(labels[0]), product.out_axes.index(made[0])
    if made[0] in product.left_axes or not _keeps_axes(product) or axis != at or not data.axes[axis]:
        return None
    trained = weight.scale_parameter is not None or call.graph.values[product.right].kind == "parameter"
    if trained or len(product.right_axes) != 2 or max(weight.shape) > kernels.MOST:
        return None
    matrix = numbers(call.run, product.right)
    if matrix is None or matrix.is_complex() or not bool(torch.isfinite(matrix).all()):
        return None
    matrix = matrix if product.right_axes[1] == labels[0] else matrix.T
    return mapped(data, axis, product.scale * array_of(matrix), pairs=True)


def _of_factors(call: Call, states: Mapping[int, State]) -> State | None:
    """Return the product of three factors of a weight or more, each drawn for itself: sums of products of n numbers.

    With k terms and second moments q and means m of the factors, E y² = k Π q + k (k - 1) Π m².
    """
    left, _, out = str(call.node.args[0]).replace(" ", "").partition("->")
    terms, factors = left.split(","), [states.get(value) for value in call.node.inputs]
    if len(terms) != len(factors) or "..." in left or not out or any(len(set(term)) < len(term) for term in terms):
        return None
    mean = second = 1.0
    roots, sizes = 0, dict[str, int]()
    for term, value, factor in zip(terms, call.node.inputs, factors, strict=True):
        if factor is None or factor.corr.size > 1 or factor.roots & roots or not is_weight(call, value):
            return None
        mean, second, roots = mean * factor.pooled_mean, second * factor.second_moment, roots | factor.roots
        sizes |= dict(zip(term, factor.shape, strict=True))
    count = math.prod(size for label, size in sizes.items() if label not in out)
    tag = weakest("approximate", *(factor.tag for factor in factors if factor is not None))
    return make_state(call.shape(), count * mean, max(count * (second - mean**2), 0.0), roots=roots, tag=tag)


def _with_weight(call: Call, product: Product) -> Product | None:
    """Return the description with the weight on the right, or None where neither operand is one."""
    right_fixed, left_fixed = is_weight(call, product.right), is_weight(call, product.left)
    named = call.run.weights.weight_at.get(call.node.index) == product.right
    if product.window is not None or (right_fixed and (named or not left_fixed)):
        return product
    return swapped(product) if left_fixed and not right_fixed else None


def _pairs(call: Call, weight: State, product: Product) -> Pairs | None:
    """Return how the elements of a weight go together that one output sums; None of those that are independent."""
    labels = product.right_axes
    summed = [i for i, label in enumerate(labels) if label not in product.out_axes and weight.shape[i] > 1]
    count = math.prod(weight.shape[i] for i in summed)
    if call.independent or count <= 1 or product.transposed:
        return None
    if weight.corr.size > 1:
        atoms = [atom for i in summed for atom in weight.axes[i]]
        share, sized = count * float(kernels.pair_mean(weight.corr, weight.lengths, atoms).ravel()[0]), True
    elif weight.scale_parameter is None and call.graph.values[product.right].kind != "parameter":
        values = numbers(call.run, product.right)
        if values is None:
            return None
        values = values.double()
        sizes = values.square().sum(dim=summed)
        power = float(sizes.mean())
        sized = sizes.numel() > 1 and float(sizes.var()) < power**2 / count
        share = float(values.sum(dim=summed).square().mean()) / power if power > 0.0 else 1.0
    else:
        return None
    return Pairs(share, count, sized) if share < LITTLE else None


LITTLE = 0.5
"""Second moment of a filter's sum, relative to that of independent elements, below which these count as centred."""


def swapped(product: Product) -> Product:
    """Return the description with the other operand on the right."""
    return replace(
        product,
        left=product.right,
        right=product.left,
        left_axes=product.right_axes,
        right_axes=product.left_axes,
    )


def _mean_level(weight: State) -> float:
    """Return a weight's mean where it is more than the chance of a draw (three standard errors), else 0."""
    mean = weight.pooled_mean
    count = math.prod(weight.shape)
    return mean if mean * mean * count > 9.0 * kernels.average(weight.var) else 0.0


def _keeps_axes(product: Product) -> bool:
    """Whether the outputs have the data's axes, those of the weight in the place of what is summed."""
    axes, outputs = product.left_axes, product.out_axes
    return len(axes) == len(outputs) and all(a == b for a, b in zip(axes, outputs, strict=True) if a in outputs)


def _with_common_part(call: Call, result: State, data: State, product: Product, level: float) -> State:
    """Add what a weight's mean makes: ``level`` times the sum of what meets, the same for all outputs."""
    axes, outputs = product.left_axes, product.out_axes
    summed = [i for i, label in enumerate(axes) if label not in outputs]
    count = math.prod(data.shape[i] for i in summed)
    window = product.window
    if window is None:
        common = averaged(call, data, summed, keepdim=True)
        return combine(call, result, linear(call, common, level * count), 1.0, product.scale)
    if product.transposed:
        return result
    mean = averaged(call, data, summed, keepdim=True)
    space = [i for i, label in enumerate(axes) if label.startswith("s")]
    steps = steps_of(data, space, [call.shape()[i] for i in space], window)
    common = filtered(call, mean, space, steps, level * count * window.taps, include_padding=True)
    return combine(call, result, common, 1.0, 1.0)


def _operand_states(call: Call, args: Any, kwargs: Any) -> dict[int, State]:
    states: dict[int, State] = {}
    _collect(call.node.args, args, states)
    for key, value in call.node.kwargs.items():
        _collect(value, kwargs[key], states)
    return states


def _collect(raw: Any, resolved: Any, into: dict[int, State]) -> None:
    if isinstance(raw, Ref):
        if isinstance(resolved, State):
            into[raw.value] = resolved
    elif isinstance(raw, (list, tuple)):
        for a, b in zip(raw, resolved, strict=True):
            _collect(a, b, into)


def _centred_bias(call: Call, product: Product, data: State) -> bool:
    """Whether the bias is chosen to cancel the mean that the weight's row sums make (AutoInit++)."""
    if product.bias is None:
        return False
    name = call.graph.values[product.bias].name
    return call.run.weights.centres(name, data.pooled_mean)


def _with_bias(call: Call, result: State, bias: State | None, product: Product) -> State:
    if bias is None or product.bias_scale == 0.0:
        return result
    if bias.is_constant:
        return linear(call, result, 1.0, product.bias_scale * bias.pooled_mean)
    if "o" in product.out_axes and len(bias.axes) == 1:
        where = product.out_axes.index("o")
        axes = tuple(bias.axes[0] if i == where else () for i in range(len(product.out_axes)))
        bias = bias.amended(axes=axes)
    return combine(call, result, bias, 1.0, product.bias_scale)


def _multiply_weight(
    call: Call, data: State, weight: State, product: Product, *, centred: bool, pairs: Pairs | None
) -> State:
    given, uneven = product.left_axes, not call.independent and _is_uneven(weight, product)
    by_part = data.blocks and (uneven or given[data.block_axis] in product.out_axes)
    data = laid_out(data) if by_part else pooled(data)
    sizes = dict(zip(given, data.shape, strict=True))
    sizes_w = dict(zip(product.right_axes, weight.shape, strict=True))
    labels = [label for label in given if label not in product.out_axes]
    summed = [i for label in labels for i in data.axes[given.index(label)]]
    count = math.prod(sizes[label] for label in labels)
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
    weight = scaled_weight(call, weight, kernels.average(var) * count, kernels.average(q))
    unit = weight.second_moment * product.scale**2
    for label in new:
        corr = corr[..., None]
        if label in given and sizes_w.get(label, 1) == 1:
            corr = np.concatenate([corr, corr], axis=-1)
    corr = _with_weights_of_their_own(call, corr, layout, product, sizes_w)
    likeness = Likeness()
    if not call.independent:
        likeness = chance_likeness(data, {i: data.lengths[i] for i in summed}, pairs=pairs)._replace(value=product.left)
    outputs = math.prod(layout.lengths[len(free) :])
    result = fresh(call, layout, var * (unit * count), corr, data, weight, outputs=outputs, likeness=likeness)
    one_size = (
        data.equal_norm_inverse_dim > 0.0 and data.spread.variance < ROUNDING
    )  # a norm is all that has been made of it
    if call.independent or not kernels.nonzero(weight.var) or one_size:
        return result
    product_of_two = data.transport is not None and data.fn is None
    if count > WIDE and not product_of_two and evaluated(data.local_scales) is None:
        return result
    energies = _energy(data, summed)
    if energies is not None and pairs is not None and common is not None:
        level = kernels.average(q)
        energies = pairs.energies(energies, common / level, 1.0 - kernels.average(data.var) / level)
    if energies is None:
        return result
    energies = kernels.rearranged(energies, free)
    for _ in new:  # all outputs see the same energy
        energies = np.concatenate([energies[..., None]] * 2, axis=-1)
    return result.amended(marginal=weighted_sizes(call, data, energies).marginal(True))


ROUNDING = 1e-9
"""Variance of ln(second moment) that only rounding makes."""


def _is_uneven(weight: State, product: Product) -> bool:
    """Whether a weight's elements differ from position to position, as those of a masked one do."""
    of_either = {*product.left_axes, *product.out_axes}.issuperset(product.right_axes)
    uneven = weight.var.size > 1 and kernels.average(weight.mean**2) + kernels.average(weight.var) > 0.0
    return uneven and of_either and all(len(axis) < 2 for axis in weight.axes)


def _met(q: Array, data: State, weight: State, product: Product, new: Sequence[str]) -> Array:
    """Return the mean of the second moments ``q`` that meet in each output of an uneven weight: where it is masked, of
    what its row lets through. It has the data's atoms that are not summed, and one for each of the ``new`` indices.
    """
    energies, places = weight.mean**2 + weight.var, dict(zip(product.left_axes, data.axes, strict=True))
    first = len(data.lengths)
    places |= {label: (first + i,) for i, label in enumerate(new)}
    order, shape = list[int](), list[int]()
    for label, axis in zip(product.right_axes, weight.axes, strict=True):
        for atom in places[label] if axis else ():
            size = data.lengths[atom] if atom < first else energies.shape[axis[0]]
            order.append(atom)
            shape.append(size if energies.shape[axis[0]] > 1 else 1)
    energies = energies.transpose([axis[0] for axis in weight.axes if axis]).reshape(shape)
    summed = [i for label in product.left_axes if label not in product.out_axes for i in places[label]]
    kept = [i for i in range(first + len(new)) if i not in summed]
    lengths = dict(zip(order, shape, strict=True))
    count = math.prod(max(q.shape[i], lengths.get(i, 1)) for i in summed)
    terms = ["".join(string.ascii_letters[atom] for atom in of) for of in (range(first), order, kept)]
    met = np.einsum(f"{terms[0]},{terms[1]}->{terms[2]}", q, energies, optimize=True)
    return np.asarray(met / (count * kernels.average(energies)))


def _energy(data: State, summed: list[int]) -> Array | None:
    """Return how the energy that meets in one output varies, alike for all that see the same elements (signals.md 5.7):
    the kernel of its variance, relative to the square of its mean.
    """
    kernel = energy_kernel(data)
    if kernel is None:
        return None
    for i in summed:
        other = np.take(kernel, [1], axis=i) if kernel.shape[i] > 1 else 0.0
        kernel = np.take(kernel, [0], axis=i) / data.lengths[i] + (1 - 1 / data.lengths[i]) * other
    return kernel if float(kernel.ravel()[0]) > UNEVEN else None


def _outputs(
    data: Layout, product: Product, sizes: Mapping[str, int], shape: tuple[int, ...]
) -> tuple[Layout, list[str]]:
    """Return the layout of the outputs (the data's atoms, then those of other indices), and the other indices.

    These are of the weight alone, or batch indices that the data lack.
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


def _with_weights_of_their_own(
    call: Call, corr: Array, layout: Layout, product: Product, sizes: Mapping[str, int]
) -> Array:
    """Return the correlation where elements of one index meet weights of their own."""
    given, filters = product.left_axes, product.right_axes
    # every element of a shared batch index does
    shared = [label for label in product.out_axes if label in given and sizes.get(label, 1) > 1]
    corr = kernels.at_zero(corr, [i for label in shared for i in layout.axes[product.out_axes.index(label)]])
    if filters[0] == "e" and "e" not in (*given, *product.out_axes):
        return _dealt_out(corr, layout.axes[0], layout.lengths, _loads(call, sizes["e"]))
    return corr


def _loads(call: Call, experts: int) -> Array | int:
    """Return how many rows each expert gets, where that is known, else how many experts there are."""
    ends = call.graph.known.get(call.value_of(2) or -1)
    return experts if ends is None else np.diff(array_of(ends), prepend=0.0)


def _dealt_out(corr: Array, rows: tuple[int, ...], sizes: tuple[int, ...], loads: Array | int) -> Array:
    """Rows meet the weight of their expert: which rows one has is known, or two of n rows have one of E experts with
    probability (n / E - 1) / (n - 1), being dealt out evenly.
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
