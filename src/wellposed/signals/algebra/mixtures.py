"""Mixtures: tensors that are one signal at some positions and another one, or a number, at others."""

from __future__ import annotations

import math

import numpy as np
import torch

from wellposed.arrays import array_of
from wellposed.signals.algebra.affine import linear
from wellposed.signals.algebra.elementwise_products import multiply
from wellposed.signals.algebra.masked_scores import shut_out
from wellposed.signals.algebra.operands import links_of
from wellposed.signals.algebra.pointwise import apply_pointwise
from wellposed.signals.algebra.sums import combine
from wellposed.signals.context.arguments import MASKED
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.alignment import align, covariances
from wellposed.signals.distributions.blocks import spread_of_parts
from wellposed.signals.distributions.expansion import sign_of
from wellposed.signals.distributions.state import Ancestry, Moments, Pointwise, State, make_state, weakest
from wellposed.signals.distributions.views import expand, pooled
from wellposed.signals.integration import kernels
from wellposed.signals.sampling.samples import outside

SMALL = 1 << 12


PAIRS = 1 << 16
"""Most elements of a mask that is followed position by position, and of one over pairs of times that decay."""


def extreme(call: Call, x: State, y: State, sign: float) -> State:
    """Return the larger of two tensors (the smaller with ``sign`` -1): x plus what y has beyond it, relu(y - x)."""
    if sign * x.pooled_mean < sign * y.pooled_mean:  # from the nearer one: a running maximum starts at -1e38
        x, y = y, x
    relu = Pointwise(("beyond", sign), lambda t: sign * torch.relu(sign * t))
    over_x = apply_pointwise(call, expand(combine(call, y, x, 1.0, -1.0), call.shape()), relu)
    over_y = apply_pointwise(call, expand(combine(call, x, y, 1.0, -1.0), call.shape()), relu)
    result = combine(call, x, over_x, 1.0, 1.0)
    return result.amended(beyond=((x.serial, over_x), (y.serial, over_y)))


def chosen(call: Call, condition: State, x: State, y: State) -> State:
    """Return c x + (1 - c) y for a condition c on signals (0 or 1), with what the three have in common."""
    refused = linear(call, condition, -1.0, 1.0)
    return combine(call, multiply(call, condition, x), multiply(call, refused, y), 1.0, 1.0)


def mixture(call: Call, x: State, y: State, share: float) -> State:
    """Return the state of a tensor that is x at a share of its positions and y at the others."""
    if share in (0.0, 1.0):
        return x if share == 1.0 else y
    p, q, layout = align(pooled(x), pooled(y))
    mean = share * p.mean + (1 - share) * q.mean
    second = share * (p.mean**2 + p.var) + (1 - share) * (q.mean**2 + q.var)
    var = np.maximum(second - mean**2, 0.0)
    of_x, of_y = covariances([p, q])
    kernel = np.array(share**2 * of_x + (1 - share) ** 2 * of_y)
    kernel = kernels.with_diagonal(kernel, kernels.average(var))
    links = links_of([(x, p, share), (y, q, 1 - share)])
    return State(
        layout,
        Moments(mean, var, kernels.correlation(kernel, var)),
        tag=weakest(x.tag, y.tag),
        ancestry=Ancestry(links, x.roots | y.roots),
        spread=spread_of_parts([(share * x.second_moment, x), ((1 - share) * y.second_moment, y)]),
    )


def within(call: Call, x: State, kept: torch.Tensor, number: float, most: int = SMALL) -> State | None:
    """Return x where ``kept`` holds and a number elsewhere, position by position; None of large masks."""
    if kept.numel() > most or call.independent:
        return None
    inside = multiply(call, x, _by_position(kept))
    return inside if not number else combine(call, inside, linear(call, _by_position(~kept), number), 1.0, 1.0)


def _by_position(mask: torch.Tensor) -> State:
    """Return a known mask as 1 where it holds and 0 elsewhere."""
    array = array_of(mask).reshape([n for n in mask.shape if n > 1])
    whole = make_state(tuple(mask.shape), 0.0, 0.0)
    return whole.with_moments(mean=array, var=np.zeros((1,) * array.ndim), roots=0)


def function_within(call: Call, x: State, function: Pointwise) -> State | None:
    """Return f of scores that a mask shuts out: what f makes of those inside, with 0 elsewhere for f that is 0 far
    below (exp), or as masked scores again for f that stays far below (a clamp); None for others.
    """
    if x.mask is None or x.scores is None or x.scores.shape != x.shape:
        return None
    far = function(np.array([-30.0, -300.0, outside(x)]))
    if np.isfinite(far[:2]).all() and np.abs(far[:2]).max() < 1e-9:
        scores = x.scores  # by position, what is shut out may be of another size: rates that grow in place of decays
        inside = within(call, scores, x.mask, 0.0, PAIRS) if scores.mean.size > 1 else None
        if inside is not None and sign_of(inside) < 0:  # positions that are integrated together may differ a little
            function = function.clipped(-math.inf, 0.0)
        return within(
            call, apply_pointwise(call, inside or scores, function), x.mask, 0.0, SMALL if inside is None else PAIRS
        )
    if far[2] <= MASKED:
        return shut_out(apply_pointwise(call, x.scores, function), x.mask, float(far[2]))
    return None
