"""Softmax and scaled dot-product attention.

Source: signals.md 5.8: random-field average over keys; A2 = E sum_j a_j² of the softmax of T Gaussian logits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from wellposed.operators.product import Product
from wellposed.signals.algebra.attention_products import finite_width_correlation_after_attention, tilt
from wellposed.signals.algebra.causal_queries import (
    as_seen,
    common_of_seen,
    flat_weights,
    grouped,
    kernel_of_queries,
    levels_of_seen,
    with_pairs,
)
from wellposed.signals.algebra.gram import gram_terms
from wellposed.signals.algebra.local_scales import marginal_with, scales_after_attention
from wellposed.signals.algebra.masked_scores import shut_out
from wellposed.signals.algebra.mixtures import chosen, mixture, within, zero_where_shut_out
from wellposed.signals.algebra.operands import operand
from wellposed.signals.algebra.products import product_of_signals
from wellposed.signals.algebra.softmax import (
    Places,
    interpolated,
    is_uneven,
    law_of,
    off_diagonal,
    summed,
    varied,
)
from wellposed.signals.algebra.softmax_overlap import overlap
from wellposed.signals.algebra.tokens import tokens_of
from wellposed.signals.context.arguments import MASKED
from wellposed.signals.context.call import Call, PartCall, Unknown
from wellposed.signals.distributions.attention import Logits
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.spread import Sources
from wellposed.signals.distributions.state import State, weakest
from wellposed.signals.distributions.views import merge_atoms, reshape
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array
from wellposed.signals.registry import overloads, rule
from wellposed.signals.rules.attention.masks import keys_of_queries, mask_of, queries_that_see_none
from wellposed.signals.rules.attention.shares import with_all_for_none
from wellposed.signals.rules.attention.weights import weights_along
from wellposed.structure.widths import channels


@rule(overloads("masked_fill.Scalar", "masked_fill_.Scalar"), tag="approximate", source="mixture of two signals")
def masked_fill(call: Call, x: Any, mask: Any, value: Any) -> State | None:
    """Overwrite where a mask holds: large negative scores are shut out of the softmax that follows."""
    x = operand(call, x)
    if not isinstance(x, State):
        return None
    number = float(value)
    if number <= MASKED:
        kept = ~mask if isinstance(mask, torch.Tensor) and mask.dtype == torch.bool else None
        if kept is None or x.shape != call.shape():
            return x if x.shape == call.shape() else None
        return shut_out(x, kept, number)
    return _filled(call, x, mask, number)


def _filled(call: Call, x: State, mask: Any, number: float) -> State:
    """Return x with a number where a mask holds, by position where that is known."""
    if isinstance(mask, Unknown) and mask.state is not None and x.shape == call.shape():
        return chosen(call, mask.state, make_state(x.shape, number, 0.0), x)
    if isinstance(mask, torch.Tensor) and x.shape == call.shape():
        again = zero_where_shut_out(call, x, ~mask) if not number else None
        if again is not None:
            return again
        by_position = within(call, x, ~mask, number)
        if by_position is not None:
            return by_position
    share = float(mask.double().mean()) if isinstance(mask, torch.Tensor) and mask.numel() else 0.0
    return mixture(call, make_state(x.shape, number, 0.0), x, share) if share else x


@rule(
    overloads("scaled_dot_product_attention.default"),
    tag="approximate",
    source="signals: 5.8",
    additive=("value",),
    pairs=True,
)
def attention(
    call: Call, q: State, k: State, v: State, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, *,
    scale: float | None = None, enable_gqa: bool = False,
) -> State:  # fmt: skip
    """softmax(q kᵀ s) v for queries, keys and values that are projections of tokens.

    sigma² = s² h q_Q q_K (1 - r_K); q_out / q_V = r_V + (1 - r_V) [A2 + sigma² P / D], P the pull;
    r_out = {r_V + (1 - r_V) E sum_j a_j a'_j} / (q_out / q_V), the overlap of two queries (`overlap`).
    """
    none, even = queries_that_see_none(call, attn_mask, mask_of(call, attn_mask)[0])
    made = None if enable_gqa else _of_own_keys(call, q, k, v, attn_mask, dropout_p, is_causal, scale)
    made = made or _of_tokens(call, q, k, v, attn_mask, dropout_p, is_causal, scale)
    return made if none is None or even or call.independent else _filled(call, made, none, 0.0)


def _of_tokens(
    call: Call, q: State, k: State, v: State, given: Any, dropout: float, is_causal: bool, scale: float | None
) -> State:
    """Return `attention` where queries and keys have weights of their own, and each query sees some key."""
    token, shape = len(q.axes) - 2, call.shape()
    q, k, parts = _with_merged_axes(q, k, v, shape)
    parts = as_seen(parts, token, mask_of(call, given)[0])
    v = merge_atoms(parts, token)
    if call.independent:
        return make_state(call.shape(), v.pooled_mean, v.pooled_var, roots=call.root())
    r_q, r_v = off_diagonal(q, token), off_diagonal(v, token)
    product, bias, seen, mask = logits(call, q, k, token, given, is_causal, scale)
    outer = [str(axis) for axis in range(token)]
    keys = tokens_of(call, k, token, k.shape[-1], call.node.args[1].value) if k.axes[token] else None
    at = Places(token, token, [*outer, "query", "d"], [*outer, "key", "d"])
    alone = law_of(product, q, k, at, q.shape[-1], keys)
    law = Logits(alone.variance + bias, *summed([(alone.variance, alone[1:]), (bias, ())]))
    a2, pull, picked = interpolated(seen, law)
    made_by_weights = channels(call.graph)[call.node.args[2].value]
    of_one_token = float(made_by_weights[-1] or not made_by_weights[token])  # channels of positions have their own
    flat = flat_weights(mask, is_causal, q.shape[token], k.shape[token]) if v.axes[token] else None
    before = _axes_of_heads(v, token)
    if before is not None:
        parts, v = (reshape(x, (*before, *x.shape[token:])) for x in (parts, v))
        shape, token = (*before, *shape[token:]), len(before)
    parts = grouped(parts, token, flat)
    common = r_v if flat is None else common_of_seen(parts, token, flat)
    along = of_one_token * alone.variance * tilt(call, keys, v, token, v.shape[-1], call.node.args[2].value)
    lifted = np.minimum(along * pull, (1.0 - common) * (1.0 - a2))
    ratio = common + (1.0 - common) * (a2 + of_one_token * picked * is_uneven(v, token)) + lifted
    dropped = 1.0 / (1.0 - dropout) if dropout and call.training else 1.0
    ratio = ratio + (dropped - 1.0) * a2
    typical = float(np.exp(np.mean(np.log(seen))))
    level = kernels.average(ratio)
    share = kernels.average(lifted) / level if level > 0 else 0.0
    met = float(overlap(r_q, alone.variance, typical, kernels.average(a2)))
    finite_width = finite_width_correlation_after_attention(call, v, share)
    made = _output(call, shape, q, v, token, ratio * levels_of_seen(v, token, flat), finite_width)
    own = varied(typical, law.coarse(), r_v, share)
    scales = scales_after_attention(call, v, token, made, token, len(made.axes) - 1, share, own)
    made = made.amended(marginal=marginal_with(scales, False))
    if level > 0.0:
        if flat is not None and made.axes[token]:
            made, kernel = with_pairs(made, parts, token, flat, ratio, (met - 1.0) * (1.0 - r_v))
        else:
            kernel = _correlation_of_results(made, v, token, level, typical, r_v + (1.0 - r_v) * met / typical)
        made = made.amended(corr=np.clip(kernel, -1.0, 1.0))
    return reshape(made, call.shape())


def _of_own_keys(
    call: Call, q: State, k: State, v: State, given: Any, dropout: float, is_causal: bool, scale: float | None
) -> State | None:
    """Return attention whose queries and keys depend on one another at the same token (no projections, or one weight
    for both), by the two products and the softmax it consists of: a query's own key differs from others. Else None.
    """
    outer = [str(axis) for axis in range(len(q.axes) - 2)]
    query, key, value = (argument.value for argument in call.node.args[:3])
    factor = scale if scale is not None else q.shape[-1] ** -0.5
    product = Product(query, key, (*outer, "m", "d"), (*outer, "n", "d"), (*outer, "m", "n"), scale=factor)
    if gram_terms(call, q, k, product) is None or (dropout and call.training) or q.shape[:-2] != v.shape[:-2]:
        return None
    shape = (*q.shape[:-1], k.shape[-2])
    mask = torch.ones(shape[-2:], dtype=torch.bool).tril() if is_causal else mask_of(call, given)[0]
    part = PartCall(call.run, call.node, shape)
    scores = product_of_signals(part, q, k, product)
    if mask is not None:
        if mask.dtype != torch.bool or mask_of(call, given)[1]:
            return None
        scores = shut_out(scores, mask.expand(*mask.shape[:-2], *shape[-2:]) if mask.ndim > 1 else mask, -math.inf)
    made = weights_along(part, scores, len(shape) - 1, False)
    weighted = Product(query, value, (*outer, "m", "n"), (*outer, "n", "e"), (*outer, "m", "e"))
    return product_of_signals(call, made, v, weighted)


def _with_merged_axes(q: State, k: State, v: State, shape: Sequence[int]) -> tuple[State, State, State]:
    """Return queries, keys and values (*batch, heads, tokens, features) with one atom for each axis but the features;
    atoms of heads that share values, and of the tokens of values, stay.
    """
    token = len(q.axes) - 2
    for axis in range(token + 1):
        q, k = (merge_atoms(x, axis) for x in (q, k))
        apart = axis < token and v.shape[:token] == shape[:token] and _is_repeated(v, axis)
        v = v if apart or axis == token else merge_atoms(v, axis)
    return q, k, v


def _axes_of_heads(v: State, token: int) -> tuple[int, ...] | None:
    """Return the lengths of the atoms before the axis of tokens, an axis each, where heads that share values lie in one
    axis with others; None where each axis has at most one atom.
    """
    if all(len(axis) <= 1 for axis in v.axes[:token]):
        return None
    return tuple(itertools.chain.from_iterable([v.lengths[i] for i in axis] or [1] for axis in v.axes[:token]))


def logits(
    call: Call, q: State, k: State, token: int, attn_mask: Any, is_causal: bool, scale: float | None
) -> tuple[float, float, Array, torch.Tensor | None]:
    """Return the variance over keys of a query's logits, the variance of an added bias, the number of keys that each
    query sees (queries,) or (1,), and the mask, if any.
    """
    width, keys_total, queries = q.shape[-1], k.shape[token], q.shape[token]
    factor = scale if scale is not None else width**-0.5
    mask, extra = mask_of(call, attn_mask)
    k = as_seen(k, token, mask)
    sigma2 = factor**2 * width * q.second_moment * kernels.average(k.var) * (1.0 - off_diagonal(k, token))
    if is_causal:
        seen = np.minimum(np.arange(1, queries + 1, dtype=np.float64), keys_total)
    elif mask is not None and mask.shape[-1] == keys_total:
        even = queries_that_see_none(call, attn_mask, mask)[1]
        seen = keys_of_queries(mask, queries, sigma2, even)
        mask = with_all_for_none(mask) if even else mask
    else:
        seen = np.array([float(keys_total)])
    return max(sigma2, 0.0), extra, seen, mask


def _is_repeated(v: State, axis: int) -> bool:
    """Whether an axis of values has some atoms that they are broadcast along, and others."""
    return len(v.axes[axis]) > 1 and len({v.corr.shape[i] for i in v.axes[axis]}) > 1


def _output(
    call: Call, shape: Sequence[int], q: State, v: State, token: int, ratio: Array, finite_width: Sources
) -> State:
    """Return the result of attention, of ``ratio`` (by query) times the variance of the values."""
    made = make_state(
        shape,
        v.pooled_mean,
        kernels.average(v.var),
        finite_width_correlation=finite_width,
        tag=weakest(q.tag, v.tag, "approximate"),
        roots=q.roots | v.roots | call.root(),
        spread=v.spread,
    )
    if ratio.size == 1 or not made.axes[token]:
        return made.with_moments(var=made.var * kernels.average(ratio))
    at = made.axes[token][0]
    return made.with_moments(var=made.var * ratio.reshape([ratio.size if i == at else 1 for i in range(made.var.ndim)]))


def _correlation_of_results(made: State, v: State, token: int, level: float, typical: float, shared: float) -> Array:
    """Return the correlation kernel of results of queries that see equally many keys. Two results of one sample have
    the covariance ``shared``, relative to ``level``; ``typical`` is the number of keys seen.
    """

    def between(moved: Array) -> Array:
        at = v.axes[token]
        same, other = moved.ravel()[0], kernels.off_diagonal_mean(moved, v.lengths, at[0]).ravel()[0] if at else 0.0
        other = other if at else same
        return np.full(2, (other + (same - other) / typical) / level)

    return kernel_of_queries(made, v, token, np.array([1.0, min(shared / level, 1.0)]), between)
