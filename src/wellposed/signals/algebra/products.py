"""Matrix products of two signals."""

from __future__ import annotations

import math

import numpy as np
import torch

from wellposed.operators.product import Product
from wellposed.signals.algebra.affine import linear
from wellposed.signals.algebra.attention_products import (
    finite_width_correlation_after_attention,
    of_seen_keys,
    scores_as_weights,
    tilt_kernel,
    with_scales,
)
from wellposed.signals.algebra.gram import gram_terms, with_gram_terms
from wellposed.signals.algebra.pointwise import apply_pointwise
from wellposed.signals.algebra.product_indices import ProductIndices, average_correlation, with_single_atoms
from wellposed.signals.algebra.reduction import averaged
from wellposed.signals.algebra.softmax import Places, law_of
from wellposed.signals.algebra.tokens import tokens_of
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.attention import Law, Softmax
from wellposed.signals.distributions.functions import Pointwise
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.marginals import of_uneven
from wellposed.signals.distributions.spread import NONE
from wellposed.signals.distributions.state import Marginal, State, weakest
from wellposed.signals.distributions.views import permute, unpaired
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array
from wellposed.structure.patches import positions


def product_of_signals(call: Call, left: State, right: State, product: Product) -> State:
    """Return sum_k x_k y_k for independent x and y, with what their dependence adds by pair of positions.

    Cov = sum over pairs (k, k') of [Kx Ky + m m Ky + m m Kx]: correlation along the summed axis adds up. Source:
    AutoInit, Appendix A (matrix multiplication), with correlations (signals.md 5.4).
    """
    if left.serial == right.serial and left.axes == right.axes and product.left_axes == product.right_axes:
        return _sum_of_squares(call, left, product)
    left, right, product = _weights_first(left, right, product)
    weights = left.known_as(Softmax)
    paired, left, right = right, unpaired(left), unpaired(right)
    gram = gram_terms(call, left, right, product)
    given, left, right = left, with_single_atoms(left), with_single_atoms(right)
    indices = ProductIndices.of(left, right, product)
    count = indices.terms
    products, common = _products_of_elements(call, left, right, indices)
    kernel = indices.over_pairs(products) * count * count
    finite_width, lifted, pulled = NONE, 0.0, 0.0
    drawn = weights or scores_as_weights(call, given, product)
    if drawn is not None:
        tilted, pulled = tilt_kernel(call, given, drawn, right, indices)
        kernel, lifted = kernels.total(kernel, tilted), float(tilted.ravel()[0]) * product.scale**2
        share = float(tilted.ravel()[0]) / max(float(kernel.ravel()[0]), 1e-300)
        finite_width = finite_width_correlation_after_attention(call, right, share)
    mean = float(left.pooled_mean * right.pooled_mean * count) * product.scale
    uneven, logits = _law_of_logits(call, left, right, product, int(count))
    kernel = (kernel * (uneven * product.scale**2)) - mean * mean
    kernel = indices.of_result(call, kernel)
    level = max(float(kernel.ravel()[0]), 0.0)
    made = make_state(
        call.shape(),
        mean,
        level,
        finite_width_correlation=finite_width,
        tag=weakest(left.tag, right.tag, "approximate"),
        gauss=True,
        roots=left.roots | right.roots | call.root(),
        scale_parameter=_only_scale_parameter(left, right),
        spread=left.spread + right.spread,
    )
    if call.independent or level == 0:
        return made
    made = made.with_moments(corr=np.clip(kernel / level, -1.0, 1.0), attention=logits)
    if weights is None:
        made = made.amended(marginal=_marginal(left, right, indices))
    else:
        made = with_scales(call, made, weights, right, product, pulled * lifted / level)
    by_position = _moments_by_position(left, right, indices)
    if by_position is not None:
        var = (by_position[1] + common) * uneven + lifted
        if weights is None:
            kernel = _kernel_about_means(call, left, right, indices, products)
        kernel = kernel * (kernels.average(var) / max(float(kernel.ravel()[0]), 1e-300))
        shape, corr = made.marginal, kernels.correlation(kernel, var)
        made = made.changed(mean=by_position[0], var=var, corr=corr, marginal=shape)
        if weights is not None and weights.flat is not None:
            made = of_seen_keys(made, given, weights, weights.flat, paired, product)
    return made if gram is None else with_gram_terms(made, product, gram)


def _weights_first(left: State, right: State, product: Product) -> tuple[State, State, Product]:
    """Return a product with the weights of a softmax on the left, where one factor is such."""
    if left.known_as(Softmax) is None and right.known_as(Softmax) is not None:  # values times weights, transposed
        return right, left, product.swapped()
    return left, right, product


def _products_of_elements(call: Call, left: State, right: State, indices: ProductIndices) -> tuple[Array, float]:
    """Return the raw kernel E[(x_k y_k) (x_k' y_k')] over the labels, and the part of the result's second moment that
    comes from the common finite-width correlation of both factors.
    """
    product = indices.product
    of_left, of_right = kernels.common(
        indices.raw_kernel(left, product.left_axes), indices.raw_kernel(right, product.right_axes)
    )
    both = of_left * of_right
    shared = None if call.independent else _finite_width_term(call, left, right, indices)
    if shared is None:
        return both, 0.0
    common = float(indices.over_pairs(shared).ravel()[0]) * (indices.terms * product.scale) ** 2
    return kernels.total(both, shared), common


def _finite_width_term(call: Call, left: State, right: State, indices: ProductIndices) -> Array | None:
    """Return what two factors computed from the same tokens add to the raw kernel over the labels, where positions are
    summed: finite-width correlations ρ of two positions covary, E ρ ρ' = r r' + Cov(ρ, ρ'). None for other factors.
    """
    product = indices.product
    axes = product.left_axes, product.right_axes
    summed = [label for label in product.left_axes if label in product.right_axes and label not in product.out_axes]
    told = positions(call.graph)
    flags = [
        dict(zip(own, told[value], strict=True)) for own, value in zip(axes, (product.left, product.right), strict=True)
    ]
    if not summed or not all(flag[label] for label in summed for flag in flags):
        return None
    share = left.finite_width_correlation.covariance(right.finite_width_correlation)
    if share <= 0.0:
        return None
    pattern = np.ones([2 if all(flag.get(label) for flag in flags) else 1 for label in indices.labels])
    pattern[(0,) * pattern.ndim] = 0.0
    apart = (1.0 - average_correlation(x, own, summed) for x, own in zip((left, right), axes, strict=True))
    return pattern * (share * math.prod(apart) * kernels.average(left.var) * kernels.average(right.var))


def _law_of_logits(call: Call, left: State, right: State, product: Product, width: int) -> tuple[float, Law]:
    """Return the variance of a product over ``width`` features, relative to that for tokens of equal norms, and its law
    as logits (`Logits` beside the variance); (1, ()) for products that are no logits.
    """
    own, other = product.left_axes, product.right_axes
    rows = [label for label in own if label in product.out_axes and label not in other]
    columns = [label for label in other if label in product.out_axes and label not in own]
    if call.independent or isinstance(left.attention, Softmax) or not (rows and columns):
        return 1.0, ()
    at = Places(own.index(rows[-1]), other.index(columns[-1]), own, other)
    keys = tokens_of(call, right, at.key, width, product.right) if right.axes[at.key] else None
    law = law_of(1.0, left, right, at, width, keys)
    return law.variance, law[1:]


def _marginal(left: State, right: State, indices: ProductIndices) -> Marginal:
    """Return the marginal of a sum of products of two Gaussians: given x it is Gaussian of variance x' S x, S the
    covariance of y, whose relative variance is 2 tr((S_x S_y)²) / tr(S_x S_y)².
    """
    if not (left.gauss and right.gauss) or kernels.nonzero(left.mean) or kernels.nonzero(right.mean):
        return Marginal(True)
    count = indices.terms
    summed = [indices.labels[i] for i in indices.summed]
    axes = indices.product.left_axes, indices.product.right_axes
    r, s = (average_correlation(x, own, summed) for x, own in zip((left, right), axes, strict=True))
    common, others = (1.0 + (count - 1) * r) * (1.0 + (count - 1) * s), (1.0 - r) * (1.0 - s)
    trace = common + (count - 1) * others
    shape = of_uneven(2.0 * (common**2 + (count - 1) * others**2) / trace**2) if trace > 0.0 else None
    return Marginal(shape is None, transport=shape)


def _only_scale_parameter(left: State, right: State) -> str | None:
    """Return the scale parameter of the product: that of the one factor that has one; None where both or none do."""
    names = [name for name in (left.scale_parameter, right.scale_parameter) if name is not None]
    return names[0] if len(names) == 1 else None


def _kernel_about_means(call: Call, left: State, right: State, indices: ProductIndices, raw: Array) -> Array:
    """Return the covariance kernel of the result, up to a factor: the raw kernel less the products of the means."""
    operands = ((left, indices.product.left_axes), (right, indices.product.right_axes))
    of_means = kernels.common(
        *(indices.raw_kernel(state.with_moments(var=np.zeros_like(state.var)), axes) for state, axes in operands)
    )
    of_means = [kernels.promote(part, raw.shape) for part in of_means]
    return indices.of_result(call, indices.over_pairs(raw - of_means[0] * of_means[1]))


LARGEST_BY_POSITION = 1 << 20
"""Most elements of a product that is worked out by position. Chosen for cost."""


def _moments_by_position(left: State, right: State, indices: ProductIndices) -> tuple[Array, Array] | None:
    """Return mean and variance by position, a dimension for each atom of the result, where an operand's moments vary
    along an index of the result, or both operands' along a summed index; else None.

    Pairs of different summed elements count with the average correlation that each operand has for them:
    sum_k (v v' + m² v' + m'² v) + rho' {(sum m s')² - sum m² v'} + ... + rho rho' {(sum s s')² - sum v v'}.
    """
    product, labels, summed = indices.product, indices.labels, indices.summed
    m, v = (indices.placed(left, array, product.left_axes) for array in (left.mean, left.var))
    n, w = (indices.placed(right, array, product.right_axes) for array in (right.mean, right.var))
    varies = _varies_by_position(indices, np.broadcast_shapes(m.shape, v.shape), np.broadcast_shapes(n.shape, w.shape))
    if not varies or math.prod(np.broadcast_shapes(m.shape, v.shape, n.shape, w.shape)) > LARGEST_BY_POSITION:
        return None
    rho, other = (
        average_correlation(state, axes, [labels[i] for i in summed])
        for state, axes in ((left, product.left_axes), (right, product.right_axes))
    )

    def total(array: Array) -> Array:
        missing = math.prod(indices.sizes[labels[i]] for i in summed if array.shape[i] == 1)
        return np.asarray(array.sum(axis=tuple(summed), keepdims=True) * missing)

    parts = (m * m * w, n * n * v, v * w)
    roots = (m * np.sqrt(w), n * np.sqrt(v), np.sqrt(v * w))
    var = sum(
        total(part) + share * (total(root) ** 2 - total(part))
        for part, root, share in zip(parts, roots, (other, rho, rho * other), strict=True)
    )
    mean = total(m * n) * product.scale
    order = [labels.index(label) for label in product.out_axes if indices.sizes[label] > 1]
    gone = [i for i in range(len(labels)) if i not in order]
    mean, var = (
        np.asarray(array).transpose([*order, *gone]).reshape([array.shape[i] for i in order])
        for array in (mean, np.maximum(var, 0.0) * product.scale**2)
    )
    return mean, var


def _varies_by_position(indices: ProductIndices, left: tuple[int, ...], right: tuple[int, ...]) -> bool:
    """Whether moments of these shapes over the labels make the moments of the result differ by position."""
    return any(
        (n > 1 or m > 1) if label in indices.product.out_axes else (n > 1 and m > 1)
        for label, n, m in zip(indices.sizes, left, right, strict=True)
    )


def _sum_of_squares(call: Call, x: State, product: Product) -> State:
    """Return sum_k x_k² for a product of a tensor with itself, element by element, in the order of the result."""
    summed = [axis for axis, label in enumerate(product.left_axes) if label not in product.out_axes]
    count = math.prod(x.shape[axis] for axis in summed)
    square = apply_pointwise(call, x, Pointwise(("square",), torch.square))
    mean = averaged(call, square, summed, keepdim=False) if summed else square
    kept = [label for label in product.left_axes if label in product.out_axes]
    total = linear(call, mean, count * product.scale)
    return permute(total, [kept.index(label) for label in product.out_axes])
