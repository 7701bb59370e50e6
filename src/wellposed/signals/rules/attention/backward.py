"""Attention backwards.

For o_i = sum_j a_ij v_j with a_i = softmax of s q_i k_j, and g_i = dL/do_i, with w_ij = v_j - o_i,

    dL/dv_j = sum_i a_ij g_i,    dL/dq_i = s sum_j a_ij (g_i w_ij) k_j,    dL/dk_j = s sum_i a_ij (g_i w_ij) q_i.

Second moments follow from those of the softmax of T Gaussian logits (signals.md 5.8): what all keys, or all values,
have in common cancels in w, and tokens that are projected to both keys and values have squared correlations of mean
1 / D even where they are uncorrelated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from wellposed.arrays import array_of
from wellposed.signals.algebra.gradient_terms import Adjoint, Gradients, Sent, Term, reduced, settled
from wellposed.signals.algebra.softmax import interpolated_choices, interpolated_participations, off_diagonal
from wellposed.signals.algebra.softmax_overlap import overlap
from wellposed.signals.algebra.tokens import relatedness, tokens_of
from wellposed.signals.distributions.attention import Softmax
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.state import WHOLE, State
from wellposed.signals.distributions.views import merge_atoms, pooled
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array
from wellposed.signals.registry import adjoint, adjoint_of_one, overloads
from wellposed.signals.rules.attention.forward import logits

MOST_FOLLOWED_TOKENS = 1024
"""Most queries or keys that are followed one by one; of more, groups of neighbours are. Chosen for cost."""


@dataclass(frozen=True, slots=True)
class _Choice:
    """Moments of the attention weights a_ij of queries i and keys j (or groups of them).

    Attributes:
        share: (queries, keys), E a_ij.
        second: (queries,), E sum_j a_ij².
        spread: (queries,), E sum_{jl} (a_ij d_jl - a_ij a_il)²: the squared size of the softmax's derivative.
        mixed: (queries,), the same with keys and values projected from the same tokens.
        common: E a_ij a_i'j for two queries, relative to independent weights.
    """

    share: Array
    second: Array
    spread: Array
    mixed: Array
    common: float


@adjoint_of_one(overloads("scaled_dot_product_attention.default"), whole=True, tag="approximate", source="signals: 9")
def attention(
    call: Adjoint, term: Term, q: State, k: State, v: State, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Sent | None:  # fmt: skip
    """Queries, keys and values that are projections of the same tokens."""
    token = len(q.axes) - 2
    q, k, v, g = (
        merge_atoms(x, token) if len(x.axes[token]) > 1 else pooled(x) for x in (q, k, v, settled(call, term))
    )
    factor = scale if scale is not None else q.shape[-1] ** -0.5
    chosen = _choice(call, q, k, v, token, attn_mask, is_causal, scale)
    kept = 1.0 / (1.0 - dropout_p) if dropout_p and call.training else 1.0
    own, pairs = _gradient(g, token, chosen.share.shape[0])
    size = q.shape[token] / own.size  # queries in a group
    values = v.shape[-1] * kernels.average(v.var) * (1.0 - off_diagonal(v, token))
    repeats = int(np.prod(q.shape[:token])) / max(int(np.prod(k.shape[:token])), 1)
    # with respect to the values
    share = chosen.share
    crossed = size**2 * (share * (pairs @ share)).sum(axis=0)  # over pairs of queries, by key
    by_value = kept * size * share.T @ (chosen.second * own) + chosen.common * crossed
    total = float(size * own.sum() + size**2 * pairs.sum())  # the weights of a query sum to 1
    between = [float(x) for x in _covariance_across(g, token)]
    # with respect to queries and keys; what all values share cancels, but for the weights that dropout leaves out
    shared = (kept - 1.0) * max(v.shape[-1] * v.second_moment - values, 0.0)
    strength = factor**2 * kernels.average(k.var) * (1.0 - off_diagonal(k, token))
    by_query = strength * (kept * values * chosen.mixed + shared * chosen.spread) * own
    moment = q.second_moment
    r_q = off_diagonal(q, token) * kernels.average(q.var) / moment + q.pooled_mean**2 / moment if moment else 0.0
    alike = min(chosen.common * float(share.max(initial=0.0)), 1.0)
    by_key = (
        factor**2
        * moment
        * repeats
        * (
            (kept * values + shared) * size * share.T @ (chosen.spread * own)
            + values * r_q * chosen.common * (1.0 - alike) * crossed
        )
    )
    sent: list[tuple[int, Term]] = []
    for position, like, var, summed, crossing in (
        (0, q, by_query, float(size * by_query.sum()) * _coherence(chosen, own, pairs, size), ()),
        (1, k, by_key, 0.0, ()),  # a softmax does not see what is added to all its logits
        (2, v, repeats * by_value, repeats * total, between),
    ):
        value = call.value_of(position)
        if value is not None:
            sent.append((value, Term(_made(call, like.shape, token, var, summed, crossing))))
    bias = call.value_of(3) if len(call.node.args) > 3 else None
    if bias is not None and call.graph.values[bias].is_signal:
        shape = (*call.shape()[:-1], k.shape[token])
        power = values * float(np.mean(chosen.spread * own)) / k.shape[token]
        logit = Term(make_state(shape, 0.0, power, roots=call.root()))
        sent.append((bias, reduced(call, logit, call.graph.values[bias].shape)))
    return sent


def _choice(
    call: Adjoint, q: State, k: State, v: State, token: int, attn_mask: Any, is_causal: bool, scale: float | None
) -> _Choice:
    """Return how queries choose among keys (*batch, heads, tokens, features), tokens lying along the axis ``token``."""
    product, extra, seen, mask = logits(call, q, k, token, attn_mask, is_causal, scale)
    sigma2 = product + extra
    queries, keys = q.shape[token], k.shape[token]
    rows, columns = min(queries, MOST_FOLLOWED_TOKENS), min(keys, MOST_FOLLOWED_TOKENS)
    visible = np.ones((rows, columns))
    if is_causal:
        at, to = (np.arange(n) * (m / n) for n, m in ((rows, queries), (columns, keys)))
        visible = (to[None, :] <= at[:, None]).astype(np.float64)
    elif mask is not None and mask.shape[-1] == keys and mask.shape[-2:-1] in ((1,), (queries,)):
        shown = array_of(mask.to(torch.float64).reshape(-1, *mask.shape[-2:]).mean(dim=0).expand(queries, keys))
        visible = shown[np.ix_(np.arange(rows) * queries // rows, np.arange(columns) * keys // columns)]
    count = np.interp(np.arange(rows), np.linspace(0, rows - 1, seen.size), seen) if seen.size > 1 else seen
    second, (third, spread) = interpolated_participations(count, sigma2), interpolated_choices(count, sigma2)
    tokens = [
        tokens_of(call, x, token, x.shape[-1], call.node.args[position].value)
        for position, x in ((1, k), (2, v))
        if x.axes[token]
    ]
    related = relatedness(tokens[0], tokens[1]) if len(tokens) == 2 else 1.0
    mixed = spread + related * np.maximum((1.0 - second) - 2.0 * (second - third), 0.0)
    share = visible / np.maximum(visible.sum(axis=1, keepdims=True) * (keys / columns), 1e-300)
    typical = float(np.exp(np.mean(np.log(seen))))
    common = float(overlap(off_diagonal(q, token), sigma2, typical, kernels.average(second)))
    ones = np.ones(rows)
    return _Choice(share, second * ones, spread * ones, mixed * ones, max(float(common), 1.0))


def _gradient(g: State, token: int, rows: int) -> tuple[Array, Array]:
    """Return the variance of the gradient by query, and its covariances between different queries of one sample."""
    members = g.axes[token]
    if not members:
        return np.full(1, kernels.average(g.var)), np.zeros((1, 1))
    i = members[0]
    var = kernels.mean_over(g.var, [d for d in range(g.var.ndim) if d != i]).ravel()
    var = var[np.arange(rows) * var.size // rows] if var.size > 1 else np.full(rows, var[0])
    profile = g.corr[tuple(slice(None) if d == i else 0 for d in range(g.corr.ndim))]
    profile = kernels.promote(profile, [min(2, g.lengths[i])])
    steps = np.abs(np.arange(rows)[:, None] - np.arange(rows)) * (g.lengths[i] / rows)
    corr = profile[np.minimum(steps.astype(np.intp), profile.size - 1)]
    np.fill_diagonal(corr, 0.0)
    std = np.sqrt(var)
    return var, corr * std[:, None] * std


def _coherence(chosen: _Choice, own: Array, pairs: Array, size: float) -> float:
    """Return Var(sum over queries of their gradients), relative to the sum of the variances.

    Two queries of equal weights have the correlation of the gradients that reach them.
    """
    power = float(own.sum())
    alike = chosen.common * float(np.mean(chosen.share.max(axis=1)))
    ratio = min(alike * (1.0 - alike) / max(float(np.mean(chosen.spread)), 1e-300), 1.0)
    return (size * power + ratio * size**2 * float(pairs.sum())) / max(size * power, 1e-300) if power else 0.0


def _covariance_across(g: State, token: int) -> list[float]:
    """Return, for each axis before the tokens, the mean covariance of gradients at two indices of that axis."""
    covariances = []
    for axis in range(token):
        members = g.axes[axis]
        if len(members) != 1 or g.corr.shape[members[0]] == 1:
            covariances.append(0.0)
            continue
        far = kernels.off_diagonal_mean(g.corr, g.lengths, members[0])
        rest = [d for d in range(g.corr.ndim) if d != members[0] and d in g.axes[token]]
        covariances.append(float(kernels.pair_mean(far, g.lengths, rest).ravel()[0]) * kernels.average(g.var))
    return covariances


def _made(
    call: Adjoint, shape: tuple[int, ...], token: int, var: Array, summed: float, between: Sequence[float]
) -> State:
    """Return a gradient with a variance by token, whose sum over tokens has the variance ``summed``.

    ``between`` holds covariances across the axes before the tokens.
    """
    made = make_state(shape, 0.0, 1.0, roots=call.root())
    tokens = shape[token]
    if not made.axes[token]:
        return made.changed(var=made.var * float(var.mean()))
    i = made.axes[token][0]
    by_token = var[np.arange(tokens) * var.size // tokens]
    if np.ptp(by_token) == 0.0:
        by_token = by_token[:1]
    level = float(by_token.mean())
    std = float(np.sqrt(by_token).mean() * tokens) ** 2
    alone = level * tokens
    apart = (summed - alone) / (std - alone) if std > alone else 0.0
    lengths = [1] * len(made.lengths)
    lengths[i] = 2
    for axis, covariance in enumerate(between):
        if covariance and made.axes[axis]:
            lengths[made.axes[axis][0]] = 2
    corr = np.zeros(lengths)
    for axis, covariance in enumerate(between):
        if covariance and made.axes[axis] and level > 0:
            place: list[Any] = [0] * corr.ndim
            place[made.axes[axis][0]], place[i] = 1, slice(None)
            corr[tuple(place)] = covariance / level
    corr[tuple(1 if d == i else 0 for d in range(corr.ndim))] = apart
    corr[(0,) * corr.ndim] = 1.0
    extent = [1] * len(made.lengths)
    extent[i] = by_token.size
    return made.with_moments(var=by_token.reshape(extent), corr=np.clip(corr, -1.0, 1.0))


@adjoint(overloads("softmax.int", "_softmax.default", "_safe_softmax.default"), tag="approximate", source="signals: 9")
def softmax(call: Adjoint, gradients: Gradients, x: State, dim: int, *_: Any, **__: Any) -> Sent | None:
    """dL/dx_j = a_j (g_j - sum_l a_l g_l): what the gradients with respect to all keys have in common cancels.

    Its second moment by key is that of g times E sum_{jl} (a_j d_jl - a_j a_l)² / T; it sums to zero over the keys.
    """
    term, made = gradients[0], call.run.states.get(call.node.outputs[0])
    if not x.axes:
        return []
    axis = dim % len(x.axes)
    weights = None if made is None else made.known_as(Softmax)
    if term is None or weights is None:
        return None
    g = settled(call, term)
    g = merge_atoms(g, axis) if len(g.axes[axis]) > 1 else pooled(g)
    if not g.axes[axis]:
        return None
    keys, i = g.shape[axis], g.axes[axis][0]
    spread = float(interpolated_choices(np.full(1, float(keys)), weights.variance)[1][0])
    alone = kernels.average(g.var) * (1.0 - off_diagonal(g, axis))
    # of two queries: the part of their correlation that is not common to all keys
    same = np.take(g.corr, [0], axis=i)
    other = kernels.off_diagonal_mean(g.corr, g.lengths, i)
    apart = same - other
    level = float(apart.ravel()[0])
    corr = apart / level if level > 0 else np.ones((1,) * apart.ndim)
    corr = np.concatenate([corr, -corr / max(keys - 1, 1)], axis=i)
    count = len(g.lengths)
    back = g.changed(
        mean=np.zeros((1,) * count), var=np.full((1,) * count, spread / keys * alone), corr=np.clip(corr, -1.0, 1.0),
        function=None, links=(), blocks=WHOLE,
    )  # fmt: skip
    value = call.value_of(0)
    return [] if value is None else [(value, Term(back))]
