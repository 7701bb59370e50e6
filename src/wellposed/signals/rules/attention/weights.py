"""The weights of a softmax.

Source: signals.md 5.8: A2 = E sum_j a_j² of the softmax of T Gaussian logits.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from wellposed.operators.scores import logits_before_shift
from wellposed.signals.algebra.causal_queries import flat_weights
from wellposed.signals.algebra.softmax import interpolated, interpolated_participations, law_told, off_diagonal, summed
from wellposed.signals.algebra.softmax_overlap import overlap
from wellposed.signals.algebra.tokens import tokens_of
from wellposed.signals.context.arguments import state_of
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.attention import Logits, Softmax
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.moments import Moments
from wellposed.signals.distributions.spread import NONE, Sources
from wellposed.signals.distributions.state import Ancestry, State
from wellposed.signals.distributions.views import merge_atoms, permute, reshape
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array
from wellposed.signals.registry import overloads, rule
from wellposed.signals.rules.attention.shares import (
    covariance_of_weights,
    is_one_number,
    keys_seen,
    keys_shown,
    known_shares,
    variance_of_means,
    variance_of_weights,
    with_all_for_none,
)
from wellposed.structure.widths import channels


@rule(overloads("softmax.int", "_softmax.default", "_safe_softmax.default"), tag="approximate", source="signals: 5.8")
def softmax(call: Call, x: State, dim: int, half_to_float: Any = False, *, dtype: Any = None) -> State:
    """exp(x_j) / sum exp(x): mean 1 / T, second moment A2 / T; the part of x common to the axis cancels."""
    if not x.axes:
        return make_state(x.shape, 1.0, 0.0)
    logits = logits_before_shift(call.graph).get(call.node.index)
    x = (None if logits is None else state_of(call.run, logits)) or x
    axis = dim % len(x.axes)
    features = channels(call.graph)[call.node.inputs[0]][axis]
    if x.masked is not None and axis < len(x.axes) - 1:  # which keys a query sees is told along the last axis
        order = [*(at for at in range(len(x.axes)) if at != axis), axis]
        return permute(weights_along(call, permute(x, order), len(order) - 1, features), np.argsort(order).tolist())
    return weights_along(call, x, axis, features)


def weights_along(call: Call, x: State, axis: int, features: bool) -> State:
    """The softmax of logits along an axis, of ``features`` or of positions."""
    even = is_one_number(call, x)
    through, x = _let_through(x, axis)
    total = x.shape[axis]
    if not x.axes[axis]:
        return make_state(x.shape, 1.0, 0.0)
    if call.independent:
        second = float(interpolated_participations(np.array([float(total)]), x.pooled_var)[0]) / total
        return make_state(x.shape, 1.0 / total, second - 1.0 / total**2, roots=call.root())
    variance = max(kernels.average(x.var) * (1.0 - off_diagonal(x, axis)), 0.0)
    keys = keys_seen(x, axis, keys_shown(through, x, axis), variance if even else 0.0)
    mask = with_all_for_none(through)
    shown = keys_shown(mask, x, axis)
    bias = variance_of_means(x, axis, shown, keys)
    told = law_told(x)
    law = Logits(variance + bias, *(summed([(variance, told), (bias, ())]) if bias else told))
    shares, pull, picked = interpolated(keys, law)
    second, typical = kernels.average(shares), float(np.exp(np.mean(np.log(keys))))
    rho = np.take(x.corr, [0], axis=x.axes[axis][0])
    var = variance_of_weights(x, axis, shares)
    known = known_shares(x, axis, shown, variance)
    chance = _chance_of_logits(x) if features else ((0.0, 1.0),)
    alike = (
        weight * covariance_of_weights(x, axis, rho + node * (1.0 - rho), variance, shares, known)
        for node, weight in chance
    )
    corr = kernels.correlation(kernels.total(*alike), var) if var.any() else np.ones((1,) * len(x.lengths))
    flat = flat_weights(mask, False, x.shape[axis - 1], total) if axis == len(x.shape) - 1 and axis else None
    made = Softmax(
        law.variance,
        second,
        kernels.average(pull),
        kernels.average(picked),
        rho,
        typical,
        law[1:],
        tokens_of(call, x, axis, 1, call.node.inputs[0]) if x.finite_width_correlation.amounts.size else None,
        flat,
        through,
        x.axes[axis][0],
    )
    return State(
        x.layout,
        Moments(
            np.full((1,) * len(x.lengths), 1.0 / total),
            var,
            corr,
            _alike_by_chance(x, max(node for node, _ in chance), rho, made),
        ),
        tag="approximate",
        ancestry=Ancestry((), x.roots | call.root()),
        attention=made,
    )


def _let_through(x: State, axis: int) -> tuple[torch.Tensor | None, State]:
    """Return the mask of logits and the scores that it lets through, with one atom each for queries and keys."""
    mask = None if x.masked is None else x.masked.mask
    if x.masked is not None and x.masked.scores is not None:
        x = reshape(x.masked.scores, x.shape)
    x = merge_atoms(x, axis)
    return mask, merge_atoms(x, axis - 1) if axis else x


def _chance_of_logits(x: State) -> tuple[tuple[float, float], ...]:
    """Return Gauss-Hermite nodes and weights for the finite-width correlation of two positions' logits over features
    (slots, codes, experts), relative to their uncorrelated part.
    """
    chance = x.finite_width_correlation.variance
    if not chance > 0.0:
        return ((0.0, 1.0),)
    step = min(math.sqrt(3.0 * chance), 1.0)
    return ((0.0, 2.0 / 3.0), (step, 1.0 / 6.0), (-step, 1.0 / 6.0))


def _alike_by_chance(x: State, step: float, rho: Array, made: Softmax) -> Sources:
    """Return the finite-width correlation of the weights of two positions: that of their logits, times the slope of the
    weights' covariance in it, from differences of ``step`` about the correlation ``rho``.
    """
    if not step > 0.0:
        return NONE
    r = float(np.clip(rho.ravel()[-1], 0.0, 1.0)) if rho.size > 1 else 0.0
    low, mean, high = overlap(r + (1.0 - r) * np.array([-step, 0.0, step]), made.variance, made.keys, made.second)
    left = made.keys * made.second - mean
    return x.finite_width_correlation.times((high - low) / (2.0 * step * left)) if left > 0.0 else NONE
