"""Norms backwards: what the statistics absorb is taken out of the gradient.

For y = (x - mean) / s over M elements, dL/dx = (g - mean(g) - y mean(g y)) / s (Ioffe & Szegedy 2015, section 3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from wellposed.graphs import Node
from wellposed.operators.arithmetic import terms_of
from wellposed.operators.norms import NORMS
from wellposed.operators.product import describe
from wellposed.signals.algebra.elementwise_products import multiply
from wellposed.signals.algebra.gradient_terms import Adjoint, Sent, Term, reduced, settled, times_output, white
from wellposed.signals.algebra.normalisation import normalise
from wellposed.signals.algebra.reduction import averaged
from wellposed.signals.distributions.alignment import Aligned, align_many
from wellposed.signals.distributions.blocks import concatenate
from wellposed.signals.distributions.layout import Dims
from wellposed.signals.distributions.parts import select
from wellposed.signals.distributions.state import WHOLE, Link, State
from wellposed.signals.distributions.views import pooled, reshape
from wellposed.signals.integration import kernels, maps
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.quadratic import Inverse
from wellposed.signals.registry import adjoint_of_one, overloads
from wellposed.signals.rules.contraction.backward import FILTERS
from wellposed.signals.rules.contraction.filters import inverse_of_filters
from wellposed.signals.rules.contraction.forward import is_weight
from wellposed.signals.rules.shape.backward import source

_PAPER = "Ioffe & Szegedy 2015, section 3; signals: 9"


@adjoint_of_one(overloads("batch_norm.default"), tag="approximate", source=_PAPER)
def batch_norm(
    call: Adjoint, term: Term, x: State, weight: Any = None, bias: Any = None, running_mean: Any = None,
    running_var: Any = None, training: bool = True, momentum: float = 0.1, eps: float = 1e-5, cudnn: bool = False,
) -> Sent | None:  # fmt: skip
    """Statistics over batch and space (training), or running statistics (evaluation)."""
    if not training and running_var is not None:
        return _fixed(call, term, x, weight, running_mean, running_var, eps)
    if x.blocks and x.blocks.axis == 1:
        return _by_blocks(call, term, x, eps, weight)
    over = [i for i in range(len(x.axes)) if i != 1]
    return _norm(call, term, x, over, eps, gain=weight, places=[1], per_channel=True)


def _by_blocks(call: Adjoint, term: Term, x: State, eps: float, gain: Any) -> Sent:
    """Return the gradient for a concatenation of channels: each block has statistics of its own."""
    y = call.run.states[call.node.outputs[0]]
    follows = y is not None and term.base is not None and term.base.serial == y.serial
    bases = y.blocks if y is not None and follows and len(y.blocks) == len(x.blocks) else (None,) * len(x.blocks)
    if bases[0] is None:
        term = Term(settled(call, term))
    over, at, results = [i for i in range(len(x.axes)) if i != 1], 0, []
    powers: dict[int, float] = {}
    for block, base in zip(x.blocks, bases, strict=True):
        width = block.shape[1]
        part = Term(select(term.core, 1, at, at + width, 1, drop=False), term.scale, base, term.fn)
        *shared, (_, mine) = _norm(call, part, block, over, eps, gain=gain, places=[1], per_channel=True, after=base)
        results.append(settled(call, mine))
        for value, summed in shared:
            powers[value] = powers.get(value, 0.0) + width * settled(call, summed).second_moment
        at += width
    sent = [(value, Term(white((at,), power / at, call.root()))) for value, power in powers.items()]
    return [*sent, (source(call), Term(concatenate(results, 1)))]


@adjoint_of_one(overloads("instance_norm.default"), tag="approximate", source=_PAPER)
def instance_norm(
    call: Adjoint, term: Term, x: State, weight: Any = None, bias: Any = None, running_mean: Any = None,
    running_var: Any = None, use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
    cudnn: bool = False,
) -> Sent | None:  # fmt: skip
    """Statistics over space, for each sample and channel."""
    if not use_input_stats and running_var is not None:
        return _fixed(call, term, x, weight, running_mean, running_var, eps)
    return _norm(call, term, x, list(range(2, len(x.axes))), eps, gain=weight, places=[1], per_channel=True)


@adjoint_of_one(overloads("layer_norm.default"), tag="approximate", source=_PAPER)
def layer_norm(
    call: Adjoint, term: Term, x: State, shape: Any, weight: Any = None, bias: Any = None,
    eps: float = 1e-5, cudnn: bool = False,
) -> Sent | None:  # fmt: skip
    """Statistics over the last axes, for each sample and position."""
    over = list(range(len(x.axes) - len(shape), len(x.axes)))
    return _norm(call, term, x, over, eps, gain=weight, places=over)


@adjoint_of_one(overloads("rms_norm.default"), tag="approximate", source=_PAPER)
def rms_norm(
    call: Adjoint, term: Term, x: State, shape: Any, weight: Any = None, eps: float | None = None
) -> Sent | None:
    """Division by the root mean square over the last axes."""
    over = list(range(len(x.axes) - len(shape), len(x.axes)))
    return _norm(call, term, x, over, eps or 1e-7, gain=weight, places=over, centre=False)


@adjoint_of_one(overloads("group_norm.default"), tag="approximate", source=_PAPER)
def group_norm(
    call: Adjoint, term: Term, x: State, groups: int, weight: Any = None, bias: Any = None,
    eps: float = 1e-5, cudnn: bool = False,
) -> Sent | None:  # fmt: skip
    """Statistics over a group of channels and space, for each sample."""
    shape = x.shape
    split = (shape[0], groups, shape[1] // groups, *shape[2:])
    return _norm(call, term, x, list(range(2, len(split))), eps, gain=weight, places=[1], split=split)


def _norm(
    call: Adjoint,
    term: Term,
    x: State,
    over: list[int],
    eps: float,
    *,
    gain: Any,
    places: list[int],
    centre: bool = True,
    per_channel: bool = False,
    split: tuple[int, ...] | None = None,
    after: State | None = None,
) -> Sent:
    """Return the gradients with respect to x and to the norm's gain and shift, which lie along the axes ``places``.

    The statistics are over the axes ``over`` of x, viewed under the shape ``split`` where that is given. ``after`` is
    the norm's result, where it is not the operator's.
    """
    shape = x.shape
    view = shape if split is None else split
    x = reshape(pooled(x), view)
    key = ("norm backwards", call.node.index, x.serial)
    if key not in call.run.memo:  # the same for all terms of the gradient
        made = normalise(call.into(view), x, over, eps, centre=centre, per_channel=per_channel)
        uneven = _spread(made, over, centre) * (_filters(call, over) if per_channel else 1.0)
        call.run.memo[key] = made, uneven, _deviation(x, over, eps, centre)
    normal, uneven, deviation = call.run.memo[key]
    unit = reshape(normal, shape)
    sent: list[tuple[int, Term]] = []
    weighted = times_output(call, term, unit, call.run.states[call.node.outputs[0]] if after is None else after)
    sent += _by_affine(call, term, weighted, places)
    strength = gain.second_moment**0.5 if isinstance(gain, State) else 1.0
    strength *= uneven**0.5
    gradient = reshape(settled(call, term), view)
    common = [averaged(call, reshape(part, view), over, keepdim=True) for part in weighted]
    rest = _without_common(gradient, reshape(unit, view), over, common, centre)
    result = multiply(call.into(view), deviation, rest)
    result = reshape(result.changed(function=None, links=result.links), shape)
    return [*sent, (source(call), Term(result, strength))]


def _spread(unit: State, over: list[int], centre: bool) -> float:
    """Return E[1 / s²] E[s²], the variance s² fluctuating from one channel, filter or sample to the next.

    For Gaussian elements it does so like a chi-squared variable with ν = 1 / mean(R²) degrees of freedom, R the
    correlation of two elements over which the statistics are taken; then the factor is ν / (ν - 2).
    """
    dims = [i for axis in over for i in unit.axes[axis]]
    share = float(kernels.pair_mean(unit.corr * unit.corr, unit.lengths, dims).ravel()[0])
    # what is known of the correlation need not show that the elements sum to 0, which takes one degree away
    left = float(kernels.pair_mean(unit.corr, unit.lengths, dims).ravel()[0]) * math.prod(unit.lengths[i] for i in dims)
    freedom = max(1.0 / max(share, 1e-9) - (min(max(left, 0.0), 1.0) if centre else 0.0), LEAST_FREEDOM)
    return freedom / (freedom - 2.0)


def _filters(call: Adjoint, over: list[int]) -> float:
    """Return E[1 / s²] E[s²] over the random filters that make the channels. Records in the memo, for the rule of the
    contraction before the norm, the factor of what goes back through its own filters (`FILTERS`).
    """
    value = source(call)
    inverse = _inverse(call, value)
    if inverse is not None:
        call.run.memo[FILTERS, value] = inverse.through / inverse.alone
        return inverse.alone
    return 1.0 / (1.0 - _relative_variances(call, over).get(value, 0.0))


def _inverse(call: Adjoint, value: int) -> Inverse | None:
    """Return `Inverse` for the filters of the contraction that makes a value, None for other values; cached."""
    key = "inverse", value
    if key not in call.run.memo:
        node = call.graph.values[value].node
        product = None if node is None else describe(call.graph, call.graph.nodes[node])
        data = None if product is None else call.run.states.get(product.left)
        told = product is not None and not product.transposed and is_weight(call, product.right)
        found = inverse_of_filters(data, product) if product is not None and data is not None and told else None
        call.run.memo[key] = found
    kept: Inverse | None = call.run.memo[key]
    return kept


def _relative_variances(call: Adjoint, over: list[int]) -> dict[int, float]:
    """Return 1 - 1 / (E[1 / s²] E[s²]), where not 0, by value id, for results of filters and sums of these; cached.

    It is 2 / n for a chi-squared variable with n degrees of freedom, half its relative variance. In a sum of
    independent parts it adds up with the squares of their shares of the variance.
    """
    key = "unevenness", tuple(over)
    if key in call.run.memo:
        found: dict[int, float] = call.run.memo[key]
        return found
    found = call.run.memo[key] = {}
    for node in call.graph.nodes:
        inverse = _inverse(call, node.outputs[0]) if node.outputs else None
        if inverse is not None:
            found[node.outputs[0]] = 1.0 - 1.0 / inverse.alone
        elif len(terms_of(node)) > 1 and not found.keys().isdisjoint(node.inputs):
            shares = _shares_of_sum(call, node, over)
            if shares is not None:
                uneven = sum(found.get(v, 0.0) * share**2 for v, share in zip(node.inputs, shares, strict=True))
                found[node.outputs[0]] = min(uneven, 1.0 - 2.0 / LEAST_FREEDOM)
    return found


def _shares_of_sum(call: Adjoint, node: Node, over: list[int]) -> list[float] | None:
    """Return the share of a sum's variance over some axes that each summand has; None where states have other axes."""
    states = [call.run.states.get(value) for value in (*node.inputs, node.outputs[0])]
    if not all(state is not None and len(state.axes) == len(over) + 1 for state in states):
        return None
    *parts, whole = (kernels.average(_square(pooled(x), over, True)) for x in states if x is not None)
    squares = [factor**2 for _, factor in terms_of(node)]
    return [c * part / whole if whole > 0.0 else 0.0 for c, part in zip(squares, parts, strict=False)]


LEAST_FREEDOM = 3.0
"""Fewest degrees of freedom that a statistic is taken to have. Chosen: with 2, E 1 / s² is infinite."""


def _without_common(gradient: State, unit: State, over: list[int], common: Sequence[State], centre: bool) -> State:
    """Return g - mean(g) - y mean(g y); ``common`` are independent parts whose sum is mean(g y)."""
    (p, q, *parts), layout = align_many((gradient, unit, *common))
    sizes, axes = layout.lengths, layout.axes
    dims = [i for axis in over for i in axes[axis]]
    std = np.sqrt(p.var)
    kernel = p.corr * kernels.autocorrelation(std, p.corr.shape)
    var = p.var
    if centre and dims:
        shared = maps.covariance_with_mean(std, p.corr, sizes, dims)
        here = shared.mean(axis=tuple(dims), keepdims=True)
        var = np.maximum(var - 2 * shared + here, 0.0)
        kernel = kernel - kernels.pair_mean(kernel, sizes, dims)
    level = float(np.mean(var))
    raw, *projected = (_products(part, sizes) for part in (q, *parts))
    lengths = [max(several) for several in zip(kernel.shape, *(k.shape for k in (raw, *projected)), strict=True)]
    removed = sum(kernels.promote(k, lengths) for k in projected)
    kernel = kernels.promote(kernel, lengths) - removed * kernels.promote(raw, lengths)
    power = sum(part.second_moment for part in common)
    var = var * max(1.0 - power / level, 0.0) if level > 0 else var
    if centre and dims:
        kernel = _summing_to_zero(kernel, float(np.mean(var)), sizes, dims)

    def operate(k: Array, where: Dims) -> Array:
        if centre:
            inside = {at: sizes[i] for i in dims if (at := where[i]) is not None}
            k = k - kernels.pair_mean(k, [inside.get(d, 1) for d in range(k.ndim)], list(inside))
        return k

    return gradient.changed(
        lengths=sizes, axes=axes, mean=np.zeros((1,) * len(sizes)), var=var, corr=kernels.correlation(kernel, var),
        function=None, links=(Link(gradient, operate, p.dims),) if p.dims is not None else (),
        blocks=WHOLE,
    )  # fmt: skip


def _products(x: Aligned, sizes: tuple[int, ...]) -> Array:
    """Return E[x x'] by displacement."""
    least = 2 if x.mean.any() else 1
    lengths = [max(n, min(least, size)) for n, size in zip(x.corr.shape, sizes, strict=True)]
    square = kernels.promote(x.corr, lengths) * kernels.autocorrelation(np.sqrt(x.var), lengths)
    return square + kernels.autocorrelation(x.mean, lengths)


def _summing_to_zero(kernel: Array, var: float, sizes: tuple[int, ...], dims: list[int]) -> Array:
    """Return a covariance kernel shifted at all pairs of different positions, so that the sum over ``dims`` is 0."""
    count = math.prod(sizes[i] for i in dims)
    lengths = [max(n, min(2, sizes[i])) if i in dims else n for i, n in enumerate(kernel.shape)]
    kernel = np.array(kernels.promote(kernel, lengths))
    kernel[(0,) * kernel.ndim] = var
    if count == 1:
        return kernel
    kernel = kernel - kernels.pair_mean(kernel, sizes, dims) * (count / (count - 1))
    kernel[(0,) * kernel.ndim] = var
    return kernel


def _square(x: State, over: list[int], centre: bool) -> Array:
    """Return E s² by position."""
    dims = [i for axis in over for i in x.axes[axis]]
    square = kernels.mean_over(x.var + x.mean**2, dims)
    if centre:
        shared = maps.covariance_with_mean(x.std(), x.corr, x.lengths, dims)
        square = square - kernels.mean_over(shared, dims) - kernels.mean_over(x.mean, dims) ** 2
    return np.maximum(square, 0.0)


def _deviation(x: State, over: list[int], eps: float, centre: bool) -> State:
    """Return 1 / s by position, as numbers."""
    inverse = 1.0 / np.sqrt(_square(x, over, centre) + max(eps, 1e-300))
    flat = x.as_new()
    return flat.changed(mean=inverse, var=np.zeros((1,) * inverse.ndim), corr=np.ones((1,) * inverse.ndim), gauss=False)


def _by_affine(call: Adjoint, term: Term, weighted: Sequence[State], places: list[int]) -> list[tuple[int, Term]]:
    """Return the gradients with respect to gain and shift: sums of g y and of g over all axes but theirs."""
    sent: list[tuple[int, Term]] = []
    norm = NORMS[call.node.op]
    gain, shift = norm.gain_of(call.node), norm.shift_of(call.node)
    if gain is not None and gain in call.wanted:
        parts = [_summed(call, Term(part), places) for part in weighted]
        sent += [(gain, part) for part in parts]
    if shift is not None and shift in call.wanted:
        sent.append((shift, _summed(call, term, places)))
    return sent


def _summed(call: Adjoint, term: Term, places: list[int]) -> Term:
    """Return a gradient summed over all axes but ``places``, which become all of its axes."""
    narrow = tuple(n if i in places else 1 for i, n in enumerate(term.core.shape))
    state = settled(call, reduced(call, term, narrow))
    return Term(state.amended(axes=tuple(state.axes[i] for i in places)))


def _fixed(call: Adjoint, term: Term, x: State, gain: Any, mean: State, var: State, eps: float) -> Sent:
    """Statistics that are numbers: a scale for each channel."""
    scale = (var.pooled_mean + eps) ** -0.5
    strength = gain.second_moment**0.5 if isinstance(gain, State) else 1.0
    shifted = x.changed(mean=(x.mean - mean.pooled_mean) * scale, var=x.var * scale * scale, links=(), function=None)
    weighted = times_output(call, term, pooled(shifted), call.run.states[call.node.outputs[0]])
    return [*_by_affine(call, term, weighted, [1]), (source(call), term.scaled(scale * strength))]
