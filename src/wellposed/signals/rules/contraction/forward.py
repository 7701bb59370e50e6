"""Products with a weight: dense layers, convolutions, matrix products, einsum.

All follow from `operators.product.describe`. With fresh, independent, zero-mean weights the output is
Gaussian with mean 0 and variance Var(W) times the sum of the second moments that meet in it (AutoInit, Appendix A,
eq. 3 to 6); zero padding takes taps away near the borders (signals.md 5.2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from wellposed.arrays import array_of
from wellposed.graphs import Ref
from wellposed.graphs.run import dense
from wellposed.operators.product import GROUPED, Product, Window, describe
from wellposed.operators.scores import score_products
from wellposed.signals.algebra.affine import linear
from wellposed.signals.algebra.box_filters import filtered
from wellposed.signals.algebra.linear_maps import mapped
from wellposed.signals.algebra.products import product_of_signals
from wellposed.signals.algebra.reduction import averaged
from wellposed.signals.algebra.statistics import is_centred
from wellposed.signals.algebra.sums import combine
from wellposed.signals.algebra.weighted import Pairs
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.attention import Softmax
from wellposed.signals.distributions.lazy import evaluated
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.state import State, weakest
from wellposed.signals.distributions.views import unpaired
from wellposed.signals.integration import kernels
from wellposed.signals.integration.gaussian import gaussian_moments
from wellposed.signals.registry import overloads, rule
from wellposed.signals.rules.contraction.convolution import convolve, through_known_filter
from wellposed.signals.rules.contraction.dense import multiply_weight
from wellposed.signals.rules.contraction.filters import steps_of
from wellposed.signals.rules.contraction.readout import with_own_row
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


@rule(PRODUCTS, source="AutoInit (arXiv 2109.08958), Appendix A, eq. 3-6; signals: 5.2", pairs=True)
def contract(call: Call, *args: Any, **kwargs: Any) -> State | None:
    """A product of two tensors with axes summed; a parameter-derived operand is the weight."""
    product = describe(call.graph, call.node)
    states = operand_states(call, args, kwargs)
    if product is None:
        return _of_factors(call, states)
    if product.left not in states or product.right not in states:
        return None
    bias = states.get(product.bias) if product.bias is not None else None
    weighted = _with_weight(call, product)
    if weighted is None or _is_of_learned_tokens(call, states[weighted.left], states[weighted.right], weighted):
        made = product_of_signals(call, states[product.left], states[product.right], product)
        return _with_bias(call, made, bias, product)
    return _with_bias(call, _of_weight(call, states[weighted.left], states[weighted.right], weighted), bias, weighted)


def _of_weight(call: Call, data: State, weight: State, product: Product) -> State:
    """Return the product of a signal with a weight, without the bias."""
    by_position = (
        _times_identity(call, data, product)
        or _known_map(call, data, weight, product)
        or through_known_filter(call, data, weight, product)
    )
    if by_position is not None:
        return by_position
    centred = _centred_bias(call, product, data)
    level = 0.0 if centred or call.independent else _mean_level(weight, product)
    if level and product.window is None and not _keeps_axes(product):  # sums over an axis that goes, as by ones
        if weight.scale_parameter is None:
            return product_of_signals(call, data, weight, product)
        level = 0.0
    weight = weight.changed(mean=weight.mean - level) if level else weight
    if not call.independent:
        call.run.weights.note_function(call.node, data, centred)
        if centred and call.run.weights.passes_no_mean(product.right):
            data = _without_common_mean(data)
    result = with_own_row(call, _of_centred_weight(call, data, weight, product, centred), data, product)
    return _with_common_part(call, result, data, product, level) if level else result


def _without_common_mean(data: State) -> State:
    """Return a signal without the variance of its mean over local scales, which all features share: a weight whose sums
    are 0 passes it on to no output. The mean of tau stands for all, exactly for functions with f(c x) = c f(x).
    """
    base, fn = data.gaussian_source()
    if fn is None or evaluated(base.local_scales) is None or not data.pooled_var > 0.0:
        return data
    mean, second = gaussian_moments(fn, base.pooled_mean, math.sqrt(base.pooled_var))
    share = (second - mean * mean) / data.pooled_var
    return data.with_moments(var=data.var * share) if 0.0 < share < 1.0 else data


def _of_centred_weight(call: Call, data: State, weight: State, product: Product, centred: bool) -> State:
    """Return the product of a signal with a weight of mean 0, a convolution or not."""
    pairs = _pairs(call, weight, product)
    if product.window is None:
        return multiply_weight(call, data, weight, product, centred=centred, pairs=pairs)
    data = unpaired(data, kernels.lag_cap(len(product.window.kernel)))
    return convolve(call, data, weight, product, product.window, centred=centred, pairs=pairs)


def _times_identity(call: Call, data: State, product: Product) -> State | None:
    """Return the multiple of a signal that a known identity makes of it, or a filter that takes each channel as it is;
    None for other weights.
    """
    if call.independent or call.shape() != data.shape or product.groups != 1:
        return None
    known = numbers(call.run, product.right)
    if known is None or known.is_complex() or known.shape[:2] != known.shape[:1] * 2:
        return None
    whole = dense(known)
    matrix = whole if product.window is None else _middle_tap(whole, product.window)
    if matrix is None or matrix.ndim != 2 or not (factor := float(matrix[0, 0])):
        return None
    alone = int(whole.count_nonzero()) == len(matrix)
    return linear(call, data, factor * product.scale, 0.0) if alone and bool((matrix.diag() == factor).all()) else None


def _middle_tap(weight: torch.Tensor, window: Window) -> torch.Tensor | None:
    """Return the middle tap of a filter that gives as many positions as it takes, (outputs, inputs); None of others."""
    same = all(stride == 1 for stride in window.stride)
    sides = zip(window.kernel, window.padding, window.dilation, strict=True)
    same &= all(around == (k // 2 * d,) * 2 for k, around, d in sides)
    return weight.flatten(2)[..., window.taps // 2] if same else None


def _known_map(call: Call, data: State, weight: State, product: Product) -> State | None:
    """Return the product with a matrix of known numbers (a filter bank, a graph's Laplacian) as a linear map along one
    axis, whose correlations and dependence are known; None for other weights.
    """
    labels = [label for label in product.left_axes if label not in product.out_axes]
    made = [label for label in product.right_axes if label not in product.left_axes]
    if call.independent or product.window is not None or len(labels) != 1 or len(made) != 1:
        return None
    axis, at = product.left_axes.index(labels[0]), product.out_axes.index(made[0])
    if not _keeps_axes(product) or axis != at or not data.axes[axis]:
        return None
    matrix = _known_matrix(call, weight, product, made[0], labels[0])
    return None if matrix is None else _mapped(call, data, axis, matrix, product.scale)


def _mapped(call: Call, data: State, axis: int, matrix: torch.Tensor, scale: float) -> State:
    """Return a known map along one axis; of a complex matrix with mean 0, and E|y|² as the variance."""
    if not matrix.is_complex():
        return mapped(data, axis, scale * array_of(matrix), pairs=True)
    real, imaginary = (
        mapped(data, axis, scale * array_of(part), pairs=True).as_new(call.root())
        for part in (matrix.real, matrix.imag)
    )
    both = combine(call, real, imaginary, 1.0, 1.0)
    return both.with_moments(mean=np.zeros((1,) * both.mean.ndim), var=real.mean**2 + imaginary.mean**2 + both.var)


def _known_matrix(call: Call, weight: State, product: Product, made: str, summed: str) -> torch.Tensor | None:
    """Return the numbers of an untrained weight as a small matrix (made, summed), common to all batch indices; else
    None.
    """
    trained = weight.scale_parameter is not None or call.graph.values[product.right].kind == "parameter"
    if trained or max(weight.shape) > kernels.MOST:
        return None
    known = numbers(call.run, product.right)
    if known is None:
        return None
    labels, values = list(product.right_axes), dense(known)
    for label in [label for label in labels if label not in (made, summed)]:
        first = values.narrow(labels.index(label), 0, 1)
        if not bool((values == first).all()):
            return None
        values = values.select(labels.index(label), 0)
        labels.remove(label)
    matrix = values if labels == [made, summed] else values.T
    return matrix if bool(torch.isfinite(matrix).all()) else None


def _of_factors(call: Call, states: Mapping[int, State]) -> State | None:
    """Return an einsum of three or more independently drawn factors of a weight: sums of products.

    With k terms and second moments q and means m of the factors, E y² = k Π q + k (k - 1) Π m².
    """
    left, _, out = str(call.node.args[0]).replace(" ", "").partition("->")
    terms, factors = left.split(","), [states.get(value) for value in call.node.inputs]
    if len(terms) != len(factors) or "." in left or not out or _has_diagonals(terms):
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


def _has_diagonals(terms: list[str]) -> bool:
    """Whether a term of an einsum has a label twice."""
    return any(len(set(term)) < len(term) for term in terms)


def _with_weight(call: Call, product: Product) -> Product | None:
    """Return the description with the weight on the right, or None where neither operand is one."""
    right_fixed, left_fixed = is_weight(call, product.right), is_weight(call, product.left)
    named = call.run.weights.weight_at.get(call.node.index) == product.right
    if product.window is not None or (right_fixed and (named or not left_fixed)):
        return product
    return product.swapped() if left_fixed and not right_fixed else None


def _is_of_learned_tokens(call: Call, data: State, weight: State, product: Product) -> bool:
    """Whether a weight is keys or values that other weights made of learned tokens (memory slots, latents): its
    features are correlated as those of a signal's keys and values are.
    """
    made = weight.scale_parameter is None and bool(weight.finite_width_correlation.amounts.size)
    return made and (data.known_as(Softmax) is not None or call.node.index in score_products(call.graph))


def _pairs(call: Call, weight: State, product: Product) -> Pairs | None:
    """Return `Pairs` of the weight elements that one output sums; None where these count as independent, and for
    transposed convolutions.
    """
    labels = product.right_axes
    summed = [i for i, label in enumerate(labels) if label not in product.out_axes and weight.shape[i] > 1]
    count = math.prod(weight.shape[i] for i in summed)
    if call.independent or count <= 1 or product.transposed:
        return None
    found = _share_of_sums(call, weight, product, summed, count)
    return Pairs(found[0], count, found[1]) if found is not None and found[0] < CENTRED_SHARE else None


def _share_of_sums(
    call: Call, weight: State, product: Product, summed: list[int], count: int
) -> tuple[float, bool] | None:
    """Return E (sum w)² / E sum w² over ``count`` elements along the axes ``summed``, and whether norms of filters vary
    less than those of independent numbers; None where no dependence of the elements is known.
    """
    atoms = [atom for i in summed for atom in weight.axes[i]]
    if is_centred(call, weight, atoms):
        return 0.0, True
    if weight.corr.size > 1:
        return count * float(kernels.pair_mean(weight.corr, weight.lengths, atoms).ravel()[0]), True
    if weight.scale_parameter is None and call.graph.values[product.right].kind != "parameter":
        values = numbers(call.run, product.right)
        return None if values is None else _of_known_filters(values, summed)
    return None


def _of_known_filters(values: torch.Tensor, summed: list[int]) -> tuple[float, bool]:
    """Return E (sum w)² / E sum w² of known filters over the axes ``summed``, and whether their norms vary less than
    those of independent numbers.
    """
    values = values.to(torch.complex128 if values.is_complex() else torch.float64)
    count = math.prod(values.shape[i] for i in summed)
    sizes = values.abs().square().sum(dim=summed)
    power = float(sizes.mean())
    sized = sizes.numel() > 1 and float(sizes.var()) < power**2 / count
    return float(values.sum(dim=summed).abs().square().mean()) / power if power > 0.0 else 1.0, sized


CENTRED_SHARE = 0.5
"""E (sum w)² / E sum w² of filters below which they count as centred. Chosen: independent elements have 1."""
MEAN_ERRORS = 3.0
"""Standard errors of a weight's mean from which on it is no chance of the draw. Chosen: one in 370 is."""


def _mean_level(weight: State, product: Product) -> float:
    """Return a weight's mean where it is significant and all outputs see the same data; else 0."""
    mean = weight.pooled_mean
    count = math.prod(weight.shape)
    return mean if product.groups == 1 and mean * mean * count > MEAN_ERRORS**2 * kernels.average(weight.var) else 0.0


def _keeps_axes(product: Product) -> bool:
    """Whether outputs have the data's axes in order, with the weight's axes in place of the summed ones."""
    axes, outputs = product.left_axes, product.out_axes
    return len(axes) == len(outputs) and all(a == b for a, b in zip(axes, outputs, strict=True) if a in outputs)


def _with_common_part(call: Call, result: State, data: State, product: Product, level: float) -> State:
    """Return ``result`` plus the product with the weight's mean: ``level`` times the sum that an output reads.
    Unchanged for transposed convolutions.
    """
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


def operand_states(call: Call, args: Any, kwargs: Any) -> dict[int, State]:
    """Return the states among an operator's arguments and lists in them, by value id."""
    states: dict[int, State] = {}

    def collect(raw: Any, resolved: Any) -> None:
        if isinstance(raw, Ref) and isinstance(resolved, State):
            states[raw.value] = resolved
        elif isinstance(raw, (list, tuple)):
            for a, b in zip(raw, resolved, strict=True):
                collect(a, b)

    collect(call.node.args, args)
    for key, value in kwargs.items():
        collect(call.node.kwargs[key], value)
    return states


def _centred_bias(call: Call, product: Product, data: State) -> bool:
    """Whether the bias is chosen to cancel the mean that the weight's row sums make (AutoInit++)."""
    if product.bias is None:
        return False
    name = call.graph.values[product.bias].name
    return call.run.weights.centres(name, data.pooled_mean)


def _with_bias(call: Call, result: State, bias: State | None, product: Product) -> State:
    """Return a product with its bias, of one axis or of the result's shape, if there is one."""
    if bias is None or product.bias_scale == 0.0:
        return result
    if bias.is_constant and bias.masked is None:
        return linear(call, result, 1.0, product.bias_scale * bias.pooled_mean)
    if "o" not in product.out_axes or len(bias.axes) != 1:
        return combine(call, result, bias, 1.0, product.bias_scale)
    where = product.out_axes.index("o")
    bias = bias.amended(axes=tuple(bias.axes[0] if i == where else () for i in range(len(product.out_axes))))
    made = combine(call, result, bias, 1.0, product.bias_scale)
    # tokens on a sphere lie on it still, about another centre
    return made.amended(equal_norm_inverse_dim=result.equal_norm_inverse_dim)
