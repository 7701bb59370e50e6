"""The result of attention as a product of softmax weights and values (signals.md 5.8)."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from wellposed.operators.product import Product
from wellposed.signals.algebra.causal_queries import common_of_seen, grouped, levels_of_seen, with_pairs
from wellposed.signals.algebra.local_scales import marginal_with, scales_after_attention
from wellposed.signals.algebra.product_indices import ProductIndices, average_along, with_single_atoms
from wellposed.signals.algebra.softmax import is_uneven, off_diagonal, varied
from wellposed.signals.algebra.softmax_overlap import overlap
from wellposed.signals.algebra.tokens import relatedness, shared_size, token_correlation, tokens_of
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.attention import Logits, Seen, Softmax, Tokens
from wellposed.signals.distributions.marginals import marginal
from wellposed.signals.distributions.spread import Sources, source
from wellposed.signals.distributions.state import State
from wellposed.signals.distributions.views import merge_atoms, permute, pooled, reshape
from wellposed.signals.integration import kernels
from wellposed.signals.integration.gaussian import WEIGHTS
from wellposed.signals.integration.kernels import Array
from wellposed.structure.widths import channels


def tilt_kernel(
    call: Call, weights: State, softmax: Softmax, values: State, indices: ProductIndices
) -> tuple[Array, float]:
    """Return the second moment that attention adds because keys and values come from the same tokens, as a kernel over
    the labels, and the share of it that lies along the query.

    Weights favour values along the query (signals.md 5.8), and large values; two queries alike as far as logits
    correlate.
    """
    product, labels = indices.product, indices.labels
    summed = [label for label in product.right_axes if label not in product.out_axes]
    tokens = _softened(weights, softmax, product, summed)
    if len(tokens) != 1:
        return np.zeros((1,) * len(labels)), 0.0
    axis = product.right_axes.index(tokens[0])
    if _is_over_channels(call, product, tokens[0]):
        return np.zeros((1,) * len(labels)), 0.0
    own = 1.0 - token_correlation(values, axis) if values.axes[axis] else 0.0
    law = Logits(softmax.variance, *softmax.law)
    width = math.prod(indices.sizes[label] for label in product.right_axes if label not in product.left_axes)
    along = tilt(call, law.tokens or softmax.tokens, values, axis, width, product.right) * law.variance * law.part
    pulled = min(along * softmax.pull, own * (1.0 - softmax.second))  # no mean of tokens is larger than they are
    lifted = pulled + (own * softmax.picked if is_uneven(values, axis) else 0.0)
    one = np.ones((1,) * len(weights.lengths))
    correlation = softmax.queries if softmax.queries.ndim == one.ndim else one
    queries = with_single_atoms(weights.with_moments(mean=0.0 * one, var=one, corr=correlation))
    of_queries, of_values = kernels.common(
        indices.raw_kernel(queries, product.left_axes),
        indices.raw_kernel(values.with_moments(mean=np.zeros_like(values.mean)), product.right_axes),
    )
    kernel = kernels.at_zero(of_queries * of_values, [labels.index(tokens[0])])
    kernel = kernel * (lifted * kernels.average(values.var) / max(float(kernel.ravel()[0]), 1e-300))
    kernel = _over_heads(kernel, indices, [labels.index(label) for label in summed if label != tokens[0]])
    return kernel, pulled / lifted if lifted > 0.0 else 0.0


def scores_as_weights(call: Call, scores: State, product: Product) -> Softmax | None:
    """Return a `Softmax` that describes attention weights without a softmax: functions of products of queries and keys
    (sigmoids, rectified scores, the scores themselves). None where ``scores`` are nothing of the kind.

    T weights f(l) draw a sum of values along the query as far as they grow with the logits: (T E f'(l))² is the pull,
    with E f'(l) = Cov(f, l) / Var l (Stein 1981, "Estimation of the mean of a multivariate normal distribution").
    """
    base, _ = scores.gaussian_source()
    law, axis = base.attention, len(scores.axes) - 1
    summed = [label for label in product.left_axes if label not in product.out_axes]
    if call.independent or not isinstance(law, tuple) or not law or len(scores.axes[axis]) != 1:
        return None
    if summed != [product.left_axes[-1]] or channels(call.graph)[product.left][axis]:  # products over features
        return None
    logits, count = marginal(base), scores.shape[axis]
    centred = logits - float(WEIGHTS @ logits)
    slope = float(WEIGHTS @ (marginal(scores) * centred)) / max(float(WEIGHTS @ centred**2), 1e-300)
    variance = kernels.average(base.var) * (1.0 - off_diagonal(scores, axis))
    queries = np.take(scores.corr, [0], axis=scores.axes[axis][0])
    whole = count**2 * scores.second_moment  # no sum is larger than that of its terms' sizes
    return Softmax(
        variance, 1.0 - whole, (count * slope) ** 2, 0.0, queries, count, law, None, atom=scores.axes[axis][0]
    )


def _is_over_channels(call: Call, product: Product, token: str) -> bool:
    """Whether the summed ``token`` is a channel, so that keys and values share no tokens. Learned tokens, of which
    features are channels too, do not count.
    """
    made = dict(zip(product.right_axes, channels(call.graph)[product.right], strict=True))
    return made[token] and not any(made[label] for label in product.right_axes if label not in product.left_axes)


def _over_heads(kernel: Array, indices: ProductIndices, heads: list[int]) -> Array:
    """Return a kernel over the labels after a sum over the labels ``heads``, as an output projection sums heads."""
    if not heads:
        return kernel
    counts = list(indices.sizes.values())
    return kernels.pair_mean(kernel, counts, heads) * math.prod(counts[i] for i in heads) ** 2


def _take_other_samples(kernel: Array, others: Array, at: int, groups: int, within: list[int]) -> None:
    """Raise, in place, the entries of ``kernel`` for one query in two samples to those of ``others``: the weights of
    that query are correlated between samples. Along the atom ``at`` the kernel is by pair of ``groups`` of tokens; the
    atoms ``within`` index the tokens of a group.
    """
    lengths = [1 if i == at else n for i, n in enumerate(kernel.shape) if i not in within]
    others = kernels.promote(others, lengths)
    for where in itertools.product(*map(range, lengths)):
        if any(where):
            same: list[int | slice] = list(where)
            same[at : at + 1] = [slice(None, None, groups + 1), *(0 for _ in within)]
            kernel[tuple(same)] = np.maximum(kernel[tuple(same)], others[where])


def _softened(weights: State, softmax: Softmax, product: Product, summed: list[str]) -> list[str]:
    """Return the summed labels over which the softmax normalised; all of them where that is not known."""
    if len(summed) == 1 or softmax.atom is None or softmax.queries.ndim != len(weights.lengths):
        return summed
    axes = dict(zip(product.left_axes, weights.axes, strict=True))
    return [label for label in summed if axes.get(label) == (softmax.atom,)]


def finite_width_correlation_after_attention(call: Call, values: State, lifted: float) -> Sources:
    """Return the finite-width correlation of two queries' results: that of the values, and a source of its own for the
    share ``lifted`` of the second moment that lies along the query.

    The part along a query q is C C q for the covariance C of the tokens: tr C⁴ / (tr C²)² - 1 / n = 4 / D for n
    features of D dimensions in effect.
    """
    return values.finite_width_correlation + source(
        call.source(), 4.0 * values.finite_width_correlation.variance * lifted * lifted
    )


def tilt(call: Call, keys: Tokens | None, values: State, axis: int, width: int, value: int) -> float:
    """Return the relative second moment that attention adds because weights and values depend on the same tokens, for
    equal weights and logits of variance 1: (1 - r) / D. In full it is that times their variance and the softmax's pull.

    ``values`` have their tokens along ``axis`` and ``width`` features in one head; ``value`` is their tensor in the
    graph. Keys of which nothing is known (None) are taken to have the correlations of the values.
    """
    if not values.axes[axis]:
        return 0.0
    tokens = tokens_of(call, values, axis, width, value)
    keys = keys or (
        tokens._replace(finite_width_correlation=values.finite_width_correlation)
        if values.finite_width_correlation.amounts.size
        else tokens
    )
    return (1.0 - tokens.correlation) * relatedness(keys, tokens, shared_size(values, axis))


def _values_as_results(made: State, values: State, product: Product) -> tuple[State, int, int] | None:
    """Return the values of attention with the result's order of axes (keys stand where queries do), the axis of the
    queries, and that of the features; None for a product of other axes.
    """
    tokens = [label for label in product.right_axes if label not in product.out_axes]
    rows = [label for label in product.out_axes if label not in product.right_axes]
    if len(tokens) != 1 or len(rows) != 1 or len(product.out_axes) != len(product.right_axes):
        return None
    values = permute(values, [product.right_axes.index(tokens[0] if at == rows[0] else at) for at in product.out_axes])
    token = product.out_axes.index(rows[0])
    features = [label for label in product.right_axes if label not in product.left_axes]
    if len(features) != 1 or not values.axes[token]:
        return None
    return values, token, product.out_axes.index(features[0])


def with_scales(call: Call, made: State, softmax: Softmax, values: State, product: Product, lifted: float) -> State:
    """Return ``made``, the result of attention, with local scales from its values and its weights. The share ``lifted``
    of its second moment lies along the query.
    """
    found = _values_as_results(made, values, product)
    if found is None:
        return made
    values, token, features = found
    law = Logits(softmax.variance, *softmax.law).coarse()
    own = varied(softmax.keys, law, token_correlation(values, token), lifted)
    scales = scales_after_attention(call, values, token, made, token, features, lifted, own)
    return made.amended(marginal=marginal_with(scales, True))


def of_seen_keys(made: State, weights: State, softmax: Softmax, seen: Seen, values: State, product: Product) -> State:
    """Return ``made``, the result of attention under a mask, with the moments of queries that see different keys
    (`_of_seen_keys`). Axes that hold several indices (samples and heads in ``bmm``) are split for it and merged again.
    """
    shape, batch = made.shape, _indices_in_one_axis(weights, values, product)
    if not batch:
        return _of_seen_keys(made, weights, softmax, seen, values, product)
    operands = (made, product.out_axes), (weights, product.left_axes), (values, product.right_axes)
    made, weights, values = (reshape(state, _lengths_apart(state.shape, axes, batch)) for state, axes in operands)
    left, right, out = (
        _labels_apart(axes, batch) for axes in (product.left_axes, product.right_axes, product.out_axes)
    )
    product = dataclasses.replace(product, left_axes=left, right_axes=right, out_axes=out)
    return reshape(_of_seen_keys(made, weights, softmax, seen, values, product), shape)


def _indices_in_one_axis(weights: State, values: State, product: Product) -> dict[str, tuple[int, ...]]:
    """Return, by label, the lengths of the atoms of each axis of the result that holds several in both factors."""
    found = {}
    for label in product.out_axes:
        if label in product.left_axes and label in product.right_axes:
            operands = (weights, product.left_axes), (values, product.right_axes)
            first, second = (tuple(s.lengths[i] for i in s.axes[axes.index(label)]) for s, axes in operands)
            if first == second and len(first) > 1:
                found[label] = first
    return found


def _labels_apart(axes: tuple[str, ...], batch: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
    """Return the labels ``axes`` with one label for each atom in place of each label in ``batch``."""
    return tuple(name for a in axes for name in ([f"{a}.{i}" for i in range(len(batch[a]))] if a in batch else [a]))


def _lengths_apart(
    shape: Sequence[int], axes: tuple[str, ...], batch: Mapping[str, tuple[int, ...]]
) -> tuple[int, ...]:
    """Return ``shape`` with one axis for each atom in place of each axis whose label is in ``batch``."""
    return tuple(n for size, a in zip(shape, axes, strict=True) for n in batch.get(a, (size,)))


def _of_seen_keys(made: State, weights: State, softmax: Softmax, seen: Seen, values: State, product: Product) -> State:
    """Return the result of attention of queries that see different keys (as under a causal mask): the variance of each
    depends on the mean correlation of the values that it sees, and the covariance of two on what both see.
    """
    whole = pooled(values)
    for axis, label in enumerate(product.right_axes):
        whole = whole if label not in product.out_axes else merge_atoms(whole, axis)
    found, parts = (_values_as_results(made, x, product) for x in (with_single_atoms(values), whole))
    if found is None or parts is None or not made.axes[found[1]]:
        return made
    values, token, features = found
    rows = weights.axes[product.left_axes.index(product.out_axes[token])]
    groups = len(seen.queries), seen.groups.shape[1] * seen.size
    if groups != (made.shape[token], values.shape[token]) or len(rows) != 1:
        return made
    whole = grouped(parts[0], token, seen)
    r, level = token_correlation(values, token), kernels.average(values.var) * product.scale**2
    second = average_along(weights.mean**2 + weights.var, rows[0])
    second = np.minimum(second * (softmax.second / kernels.average(second)), 1.0)  # dropout aside
    at = made.axes[token][0]
    shape = [len(seen.queries) if i == at else 1 for i in range(len(made.lengths))]
    more = (common_of_seen(whole, token, seen) - r) * (1.0 - second) * level
    var = np.maximum(made.var + more.reshape(shape), 0.0)
    ratio = np.broadcast_to(average_along(var, at), len(seen.queries)) / (level * levels_of_seen(values, token, seen))
    queries = softmax.queries
    known = queries.ndim == len(weights.lengths)
    correlation = kernels.off_diagonal_mean(queries, weights.lengths, rows[0]).ravel()[0] if known else 0.0
    met = float(overlap(correlation, softmax.variance, softmax.keys, softmax.second))
    others = made.corr
    made = made.with_moments(var=var, local_scales=made.local_scales)
    made, kernel = with_pairs(made, whole, token, seen, ratio, (met - 1.0) * (1.0 - r), features)
    within = [at + 1] if seen.size > 1 else []  # one atom of tokens has become two
    _take_other_samples(kernel, others, at, len(seen.groups), within)
    return made.amended(corr=np.clip(kernel, -1.0, 1.0))
