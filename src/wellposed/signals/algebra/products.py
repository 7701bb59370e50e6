"""Matrix products of two signals, and of a weight with a weight."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch

from wellposed.operators.product import Product
from wellposed.signals.algebra.affine import linear
from wellposed.signals.algebra.causal_queries import Seen, common_of_seen, grouped, levels_of_seen, with_pairs
from wellposed.signals.algebra.local_scales import sizes_after_attention
from wellposed.signals.algebra.pointwise import apply_pointwise
from wellposed.signals.algebra.reduction import averaged
from wellposed.signals.algebra.softmax import Logits, Places, is_uneven, law_of, varied
from wellposed.signals.algebra.tokens import Tokens, likeness, relatedness, shared_size, tokens_of
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.spread import NONE, Sources, source
from wellposed.signals.distributions.state import Pointwise, Softmax, State, make_state, weakest
from wellposed.signals.distributions.views import merge_atoms, permute, pooled, unpaired
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array
from wellposed.structure.patches import positions
from wellposed.structure.widths import channels


def product_of_signals(call: Call, left: State, right: State, product: Product) -> State:
    """Return sum_k x_k y_k for independent x and y.

    Cov = sum over pairs (k, k') of [Kx Ky + m m Ky + m m Kx]: correlation along the summed axis adds up. Source:
    AutoInit, Appendix A (matrix multiplication), with correlations (signals.md 5.4).
    """
    if left.serial == right.serial and left.axes == right.axes and product.left_axes == product.right_axes:
        return _squares(call, left, product)
    if left.softmax is None and right.softmax is not None:  # values times weights, transposed
        left, right, product = right, left, product.swapped()
    paired, left, right = right, unpaired(left), unpaired(right)
    of_pairs = _together(call, left, right, product)
    given, left, right = left, _single(left), _single(right)
    labels = tuple(dict.fromkeys(product.left_axes + product.right_axes))
    sizes = _sizes(left, right, product)
    of_left, of_right = kernels.common(
        _raw_kernel(left, product.left_axes, labels, sizes), _raw_kernel(right, product.right_axes, labels, sizes)
    )
    count = math.prod(size for label, size in sizes.items() if label not in product.out_axes)
    both, together = of_left * of_right, 0.0
    if not call.independent and (shared := _alike_together(call, left, right, product, labels)) is not None:
        both = kernels.total(both, shared)
        together = float(_over_pairs(shared, labels, sizes, product).ravel()[0]) * (count * product.scale) ** 2
    kernel = _over_pairs(both, labels, sizes, product) * count * count
    alike, lifted, pulled = NONE, 0.0, 0.0
    if left.softmax is not None:
        tilted, pulled = _tilt(call, given, left.softmax, right, product, labels, sizes)
        kernel, lifted = kernels.total(kernel, tilted), float(tilted.ravel()[0]) * product.scale**2
        alike = alike_after_attention(call, right, float(tilted.ravel()[0]) / max(float(kernel.ravel()[0]), 1e-300))
    mean = float(left.pooled_mean * right.pooled_mean * count) * product.scale
    law = None if call.independent else _law(call, left, right, product, int(count))
    common = 1.0 if law is None else law.variance
    kernel = (kernel * (common * product.scale**2)) - mean * mean
    kernel = _of_result(call, kernel, labels, product)
    level = max(float(kernel.ravel()[0]), 0.0)
    made = make_state(
        call.shape(),
        mean,
        level,
        finite_width_correlation=alike,
        tag=weakest(left.tag, right.tag, "approximate"),
        gauss=True,
        roots=left.roots | right.roots | call.root(),
        scale_parameter=_only_scale_parameter(left, right),
        spread=left.spread + right.spread,
    )
    if call.independent or level == 0:
        return made
    made = made.with_moments(corr=np.clip(kernel / level, -1.0, 1.0), logits=() if law is None else law[1:])
    if left.softmax is not None:
        made = _with_sizes(call, made, left.softmax, right, product, pulled * lifted / level)
    each = _by_position(left, right, product, sizes)
    if each is None:
        return made if of_pairs is None else _with_pairs(made, product, *of_pairs)
    var = (each[1] + together) * common + lifted
    if left.softmax is None:
        kernel = _about_means(call, (left, right), product, labels, sizes, both)
    kernel = kernel * (kernels.average(var) / max(float(kernel.ravel()[0]), 1e-300))
    corr = kernels.correlation(kernel, var)
    made = made.changed(
        mean=each[0], var=var, corr=corr, local_scales=made.local_scales, local_scale_sources=made.local_scale_sources
    )
    if left.softmax is not None and left.softmax.flat is not None:
        made = _of_seen(made, given, left.softmax, left.softmax.flat, paired, product)
    return made if of_pairs is None else _with_pairs(made, product, *of_pairs)


def _alike_together(call: Call, left: State, right: State, product: Product, labels: tuple[str, ...]) -> Array | None:
    """Return what two factors made of the same tokens have in common, where positions are summed: two positions that
    are alike by chance are so in both, E ρ ρ' = r r' + Cov(ρ, ρ').
    """
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
    pattern = np.ones([2 if all(flag.get(label) for flag in flags) else 1 for label in labels])
    pattern[(0,) * pattern.ndim] = 0.0
    apart = (
        1.0 - _average_correlation(x, own, labels, [labels.index(label) for label in summed])
        for x, own in zip((left, right), axes, strict=True)
    )
    return pattern * (share * math.prod(apart) * kernels.average(left.var) * kernels.average(right.var))


def _law(call: Call, left: State, right: State, product: Product, width: int) -> Logits | None:
    """Return the law of a matrix of products of features, its variance relative to what it is for even sizes; None of
    other products.
    """
    own, other = product.left_axes, product.right_axes
    rows = [label for label in own if label in product.out_axes and label not in other]
    columns = [label for label in other if label in product.out_axes and label not in own]
    if left.softmax is not None or not (rows and columns):
        return None
    at = Places(own.index(rows[-1]), other.index(columns[-1]), own, other)
    keys = tokens_of(call, right, at.key, width, product.right) if right.axes[at.key] else None
    return law_of(1.0, left, right, at, width, keys)


def _values_as_results(made: State, values: State, product: Product) -> tuple[State, int, int] | None:
    """Return the values of attention with their axes in the order of the result's, keys in the place of queries, and
    the axes of these and of the features; None of other products.
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


def _with_sizes(call: Call, made: State, softmax: Softmax, values: State, product: Product, lifted: float) -> State:
    """Return the result of attention with the sizes that its values and its weights give it."""
    found = _values_as_results(made, values, product)
    if found is None:
        return made
    values, token, features = found
    law = Logits(softmax.variance, *softmax.law).coarse()
    own = varied(softmax.keys, law, likeness(values, token), lifted)
    sizes = sizes_after_attention(call, values, token, made, token, features, lifted, own)
    return made.amended(marginal=sizes.marginal(True))


def _of_seen(made: State, weights: State, softmax: Softmax, seen: Seen, values: State, product: Product) -> State:
    """Return the result of attention of queries that see keys of their own: each has the mean correlation of the values
    that it sees, and two of them what both see.
    """
    whole = pooled(values)
    for axis, label in enumerate(product.right_axes):
        whole = whole if label not in product.out_axes else merge_atoms(whole, axis)
    found, parts = (_values_as_results(made, x, product) for x in (_single(values), whole))
    if found is None or parts is None or not made.axes[found[1]]:
        return made
    values, token, features = found
    rows = weights.axes[product.left_axes.index(product.out_axes[token])]
    groups = len(seen.queries), seen.groups.shape[1] * seen.size
    if groups != (made.shape[token], values.shape[token]) or len(rows) != 1:
        return made
    whole = grouped(parts[0], token, seen)
    r, level = likeness(values, token), kernels.average(values.var) * product.scale**2
    second = _along(weights.mean**2 + weights.var, rows[0])
    second = np.minimum(second * (softmax.second / kernels.average(second)), 1.0)  # dropout aside
    at = made.axes[token][0]
    shape = [len(seen.queries) if i == at else 1 for i in range(len(made.lengths))]
    more = (common_of_seen(whole, token, seen) - r) * (1.0 - second) * level
    var = np.maximum(made.var + more.reshape(shape), 0.0)
    ratio = np.broadcast_to(_along(var, at), len(seen.queries)) / (level * levels_of_seen(values, token, seen))
    queries = softmax.queries
    known = queries.ndim == len(weights.lengths)
    alike = kernels.off_diagonal_mean(queries, weights.lengths, rows[0]).ravel()[0] if known else 0.0
    met = min(math.exp(min(alike * softmax.variance, 50.0)), softmax.keys * softmax.second)
    others = made.corr
    made = made.with_moments(
        var=var, local_scales=made.local_scales, local_scale_sources=made.local_scale_sources, gauss=made.gauss
    )
    made, kernel = with_pairs(made, whole, token, seen, ratio, (met - 1.0) * (1.0 - r), features)
    within = [at + 1] if seen.size > 1 else []  # one atom of tokens has become two
    lengths = [1 if i == at else n for i, n in enumerate(kernel.shape) if i not in within]
    others = kernels.promote(others, lengths)
    for where in itertools.product(*map(range, lengths)):
        if any(where):  # one query in different samples: its weights are alike
            same: list[int | slice] = list(where)
            same[at : at + 1] = [slice(None, None, len(seen.groups) + 1), *(0 for _ in within)]
            kernel[tuple(same)] = np.maximum(kernel[tuple(same)], others[where])
    return made.amended(corr=np.clip(kernel, -1.0, 1.0))


def _only_scale_parameter(left: State, right: State) -> str | None:
    """Return the one parameter that scales a product linearly."""
    scale_parameters = [name for name in (left.scale_parameter, right.scale_parameter) if name is not None]
    return scale_parameters[0] if len(scale_parameters) == 1 else None


def _over_pairs(kernel: Array, labels: tuple[str, ...], sizes: dict[str, int], product: Product) -> Array:
    """Return a kernel averaged over pairs of summed elements."""
    summed = [i for i, label in enumerate(labels) if label not in product.out_axes]
    return kernels.pair_mean(kernel, [sizes[label] for label in labels], summed)


def _of_result(call: Call, kernel: Array, labels: tuple[str, ...], product: Product) -> Array:
    """Return a kernel with one dimension for each atom of the result."""
    kernel = kernels.rearranged(kernel, [labels.index(label) for label in product.out_axes])
    return kernels.without(kernel, [i for i, size in enumerate(call.shape()) if size == 1])


def _about_means(
    call: Call,
    operands: tuple[State, State],
    product: Product,
    labels: tuple[str, ...],
    sizes: dict[str, int],
    raw: Array,
) -> Array:
    """Return the covariance kernel of what varies about means that differ by position, up to a factor."""
    # what means have in common goes with the means: the correlation is that of what varies about them
    of_means = kernels.common(
        *(
            _raw_kernel(state.with_moments(var=np.zeros_like(state.var)), axes, labels, sizes)
            for state, axes in zip(operands, (product.left_axes, product.right_axes), strict=True)
        )
    )
    of_means = [kernels.promote(part, raw.shape) for part in of_means]
    return _of_result(call, _over_pairs(raw - of_means[0] * of_means[1], labels, sizes, product), labels, product)


def _together(call: Call, left: State, right: State, product: Product) -> tuple[tuple[str, str], Array, Array] | None:
    """Return what two tensors that depend on each other add to mean and variance of their product by pair of positions,
    after the labels of the pair: of a tensor times its own transpose (a Gram matrix), or times one that is made of it.

    Positions i and j have the mean sum_k Cov(x_ik, y_jk) beside the product of the means; what two different ones are
    alike by chance adds to the variance.
    """
    if call.independent or not left.roots & right.roots:
        return None
    own, other = (
        dict(zip(axes, x.axes, strict=True)) for axes, x in ((product.left_axes, left), (product.right_axes, right))
    )
    rows, columns = ([label for label in axes if label not in theirs] for axes, theirs in ((own, other), (other, own)))
    if len(rows) != 1 or len(columns) != 1:
        return None
    if len(own[rows[0]]) != 1 or left.shape[product.left_axes.index(rows[0])] > LARGEST_GRAM:
        return None
    places: dict[int, int] = {}  # for each atom of the first, that of the second
    for label, atoms in own.items():
        theirs = other[columns[0] if label == rows[0] else label]
        if [left.lengths[i] for i in atoms] != [right.lengths[i] for i in theirs]:
            return None
        places |= dict(zip(atoms, theirs, strict=True))
    if len(places) != len(left.lengths) or len(places) != len(right.lengths):
        return None
    order = tuple(places[i] for i in range(len(places)))
    covariance = call.covariance(left, right, tuple(range(len(places))), order)
    if covariance is None or not kernels.nonzero(covariance):
        return None
    (atom,) = own[rows[0]]
    profile = kernels.by_displacement(covariance)[tuple(slice(None) if i == atom else 0 for i in range(len(places)))]
    count = math.prod(left.lengths[i] for label in own if label not in product.out_axes for i in own[label])
    sizes = [np.sqrt(_along(x.var, at)) for x, at in ((left, atom), (right, places[atom]))]
    mean = _by_pair(profile, left.lengths[atom], *sizes) * (count * product.scale)
    by_chance = (1.0 - np.eye(len(mean))) * np.multiply.outer(*sizes) ** 2
    level = kernels.average(left.var) * kernels.average(right.var)
    coupled = min(float(covariance.ravel()[0]) ** 2 / level, 1.0) if level > 0.0 else 0.0  # of one element with its own
    by_chance = by_chance * (
        coupled
        * left.finite_width_correlation.covariance(right.finite_width_correlation)
        * (count * product.scale) ** 2
    )
    return (rows[0], columns[0]), mean, np.maximum(by_chance, 0.0)


def _along(array: Array, dim: int) -> Array:
    """Return the average over all dimensions but one."""
    return np.asarray(array.mean(axis=tuple(i for i in range(array.ndim) if i != dim)))


def _by_pair(profile: Array, size: int, first: Array, second: Array) -> Array:
    """Return a covariance by pair of positions, given its average by displacement and how large both are where."""
    profile = np.append(profile, 0.0) if profile.size == 1 else profile
    lag = np.minimum(np.abs(np.subtract.outer(np.arange(size), np.arange(size))), profile.size - 1)
    share = np.broadcast_to(np.multiply.outer(first, second), lag.shape)
    level = np.bincount(lag.ravel(), share.ravel()) / np.bincount(lag.ravel())
    known = profile[: level.size] / np.where(level > 0.0, level, np.inf)
    return np.asarray(known[lag] * share)


LARGEST_GRAM = 512
"""Positions up to which the mean of a product of two that depend on each other is kept by pair."""


def _with_pairs(made: State, product: Product, pair: tuple[str, str], mean: Array, var: Array) -> State:
    """Return a product with what is added to its mean and variance by pair of positions."""
    i, j = (made.axes[product.out_axes.index(label)] for label in pair)
    if len(i) != 1 or len(j) != 1:
        return made
    mean, var = (
        (array if i < j else array.T).reshape([n if k in (i[0], j[0]) else 1 for k, n in enumerate(made.lengths)])
        for array in (mean, var)
    )
    return made.with_moments(mean=made.mean + mean, var=made.var + var, corr=made.corr)


def _by_position(left: State, right: State, product: Product, sizes: dict[str, int]) -> tuple[Array, Array] | None:
    """Return mean and variance by position where an operand varies along an index of the result, or both along one that
    is summed; None elsewhere.

    Pairs of different summed elements count with the average correlation that each operand has for them:
    sum_k (v v' + m² v' + m'² v) + rho' {(sum m s')² - sum m² v'} + ... + rho rho' {(sum s s')² - sum v v'}.
    """
    labels = tuple(dict.fromkeys(product.left_axes + product.right_axes))
    m, v = (_placed(left, array, product.left_axes, labels) for array in (left.mean, left.var))
    n, w = (_placed(right, array, product.right_axes, labels) for array in (right.mean, right.var))
    shape = np.broadcast_shapes(m.shape, v.shape, n.shape, w.shape)
    first, second = ([max(a, b) > 1 for a, b in zip(p.shape, q.shape, strict=True)] for p, q in ((m, v), (n, w)))
    shown = any(
        (one or other) if label in product.out_axes else (one and other)
        for label, one, other in zip(labels, first, second, strict=True)
    )
    if not shown or math.prod(shape) > LARGEST:
        return None
    summed = [i for i, label in enumerate(labels) if label not in product.out_axes]
    rho, other = (
        _average_correlation(state, axes, labels, summed)
        for state, axes in ((left, product.left_axes), (right, product.right_axes))
    )

    def total(array: Array) -> Array:
        missing = math.prod(sizes[labels[i]] for i in summed if array.shape[i] == 1)
        return np.asarray(array.sum(axis=tuple(summed), keepdims=True) * missing)

    parts = (m * m * w, n * n * v, v * w)
    roots = (m * np.sqrt(w), n * np.sqrt(v), np.sqrt(v * w))
    var = sum(
        total(part) + share * (total(root) ** 2 - total(part))
        for part, root, share in zip(parts, roots, (other, rho, rho * other), strict=True)
    )
    mean = total(m * n) * product.scale
    order = [labels.index(label) for label in product.out_axes if sizes[label] > 1]
    gone = [i for i in range(len(labels)) if i not in order]
    mean, var = (
        np.asarray(array).transpose([*order, *gone]).reshape([array.shape[i] for i in order])
        for array in (mean, np.maximum(var, 0.0) * product.scale**2)
    )
    return mean, var


LARGEST = 1 << 20
"""Most elements of a product that is worked out by position."""


def _placed(state: State, array: Array, axes: tuple[str, ...], labels: tuple[str, ...]) -> Array:
    """Return a map by position with one dimension per label."""
    places = [state.axes[axes.index(label)] if label in axes else () for label in labels]
    moved = array.transpose([own[0] for own in places if own])
    return np.expand_dims(moved, tuple(i for i, own in enumerate(places) if not own))


def _average_correlation(state: State, axes: tuple[str, ...], labels: tuple[str, ...], summed: list[int]) -> float:
    """Return the average correlation of two elements that differ in the summed indices alone."""
    members = [labels[i] for i in summed]
    if any(label not in axes for label in members):
        return 1.0
    dims = [i for label in members for i in state.axes[axes.index(label)]]
    count = math.prod(state.lengths[i] for i in dims)
    if count <= 1:
        return 0.0
    mean = float(kernels.pair_mean(state.corr, state.lengths, dims).ravel()[0])
    return (mean * count - 1.0) / (count - 1.0)


def _squares(call: Call, x: State, product: Product) -> State:
    """Return sum_k x_k² for a product of a tensor with itself, element by element."""
    summed = [axis for axis, label in enumerate(product.left_axes) if label not in product.out_axes]
    count = math.prod(x.shape[axis] for axis in summed)
    square = apply_pointwise(call, x, Pointwise(("square",), torch.square))
    mean = averaged(call, square, summed, keepdim=False) if summed else square
    kept = [label for label in product.left_axes if label in product.out_axes]
    total = linear(call, mean, count * product.scale)
    return permute(total, [kept.index(label) for label in product.out_axes])


def _sizes(left: State, right: State, product: Product) -> dict[str, int]:
    """Return how long each index is: as long as in that operand which does not broadcast it."""
    sizes: dict[str, int] = {}
    for own, state in ((product.left_axes, left), (product.right_axes, right)):
        for label, size in zip(own, state.shape, strict=True):
            sizes[label] = max(sizes.get(label, 1), size)
    return sizes


def _tilt(
    call: Call,
    weights: State,
    softmax: Softmax,
    values: State,
    product: Product,
    labels: tuple[str, ...],
    sizes: dict[str, int],
) -> tuple[Array, float]:
    """Keys and values come from the same tokens, so large weights favour values along the query (signals.md 5.8), and
    large ones; return the kernel of both, and the share of the former.

    Two queries are drawn alike as far as their logits are.
    """
    summed = [label for label in product.right_axes if label not in product.out_axes]
    tokens = _softened(weights, softmax, product, summed)
    if len(tokens) != 1:
        return np.zeros((1,) * len(labels)), 0.0
    axis = product.right_axes.index(tokens[0])
    if channels(call.graph)[product.right][axis]:  # attention over channels: keys and values have weights of their own
        return np.zeros((1,) * len(labels)), 0.0
    own = 1.0 - likeness(values, axis) if values.axes[axis] else 0.0
    law = Logits(softmax.variance, *softmax.law)
    width = math.prod(sizes[label] for label in product.right_axes if label not in product.left_axes)
    # no mean of tokens is larger than they are
    along = tilt(call, law.tokens or softmax.tokens, values, axis, width, product.right) * law.variance * law.part
    pulled = min(along * softmax.pull, own * (1.0 - softmax.second))
    lifted = pulled + (own * softmax.picked if is_uneven(values, axis) else 0.0)
    one = np.ones((1,) * len(weights.lengths))
    alike = softmax.queries if softmax.queries.ndim == one.ndim else one
    queries = _single(weights.with_moments(mean=0.0 * one, var=one, corr=alike))
    of_queries, of_values = kernels.common(
        _raw_kernel(queries, product.left_axes, labels, sizes),
        _raw_kernel(values.with_moments(mean=np.zeros_like(values.mean)), product.right_axes, labels, sizes),
    )
    kernel = kernels.at_zero(of_queries * of_values, [labels.index(tokens[0])])
    kernel = kernel * (lifted * kernels.average(values.var) / max(float(kernel.ravel()[0]), 1e-300))
    others = [labels.index(label) for label in summed if label != tokens[0]]  # heads that are added up
    if others:
        counts = [sizes[label] for label in labels]
        kernel = kernels.pair_mean(kernel, counts, others) * math.prod(counts[i] for i in others) ** 2
    return kernel, pulled / lifted if lifted > 0.0 else 0.0


def _softened(weights: State, softmax: Softmax, product: Product, summed: list[str]) -> list[str]:
    """Return those of the labels that are summed along which a softmax made the weights."""
    if len(summed) == 1 or softmax.atom is None or softmax.queries.ndim != len(weights.lengths):
        return summed
    axes = dict(zip(product.left_axes, weights.axes, strict=True))
    return [label for label in summed if axes.get(label) == (softmax.atom,)]


def alike_after_attention(call: Call, values: State, lifted: float) -> Sources:
    """Return how alike queries' results are by chance: as their tokens were, and more where weights favour values along
    the query (``lifted``, that part's share): it goes through the covariance of the tokens, C C, whose long axes count
    twice: tr C⁴ / (tr C²)² - 1 / n = 4 / D for n features, D of them in effect.
    """
    return values.finite_width_correlation + source(
        call.source(), 4.0 * values.finite_width_correlation.variance * lifted * lifted
    )


def tilt(call: Call, keys: Tokens | None, values: State, axis: int, width: int, value: int) -> float:
    """Return the relative second moment that attention adds because weights and values depend on the same tokens, for
    flat weights and logits of variance 1: (1 - r) / D; in full it is that times their variance and the softmax's pull.

    Of keys that nothing is known of, it is taken that they are made as the values are.
    """
    if not values.axes[axis]:
        return 0.0
    tokens = tokens_of(call, values, axis, width, value)
    keys = keys or (
        tokens._replace(alike=values.finite_width_correlation)
        if values.finite_width_correlation.amounts.size
        else tokens
    )
    return (1.0 - tokens.correlation) * relatedness(keys, tokens, shared_size(values, axis))


def _single(state: State) -> State:
    state = pooled(state)
    for axis in range(len(state.axes)):
        state = merge_atoms(state, axis)
    return state


def _raw_kernel(state: State, axes: tuple[str, ...], labels: tuple[str, ...], sizes: dict[str, int]) -> Array:
    """Return the raw kernel E[x x'] with one dimension per label.

    An index that the state lacks (or broadcasts over) does not move it: length 2 with equal entries.
    """
    raw = state.covariance()
    if kernels.nonzero(state.mean):
        lengths = [max(length, min(2, size)) for length, size in zip(raw.shape, state.lengths, strict=True)]
        raw = kernels.promote(raw, lengths) + kernels.autocorrelation(state.mean, lengths)
    order, missing = [], []
    for at, label in enumerate(labels):
        own = state.axes[axes.index(label)] if label in axes else ()
        if own:
            order.append(own[0])
        else:
            missing.append((at, sizes[label]))
    moved = raw.transpose(order)
    for at, size in missing:
        moved = np.expand_dims(moved, at)
        if size > 1:
            moved = np.concatenate([moved, moved], axis=at)
    return moved
