"""Mixtures: tensors that are one signal at some positions and another one, or a number, at others."""

from __future__ import annotations

import math

import numpy as np
import torch

from wellposed.arrays import array_of
from wellposed.signals.algebra.affine import linear
from wellposed.signals.algebra.elementwise_products import multiply
from wellposed.signals.algebra.masked_scores import share_of_rows_shown, shut_out
from wellposed.signals.algebra.operands import links_of
from wellposed.signals.algebra.pointwise import apply_pointwise
from wellposed.signals.algebra.sums import combine
from wellposed.signals.context.arguments import MASKED
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.alignment import align, covariances
from wellposed.signals.distributions.attention import Softmax
from wellposed.signals.distributions.blocks import spread_of_parts
from wellposed.signals.distributions.functions import Pointwise
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.marginals import shape_of, sign_of
from wellposed.signals.distributions.moments import Moments
from wellposed.signals.distributions.state import Ancestry, Link, Scaled, State, weakest
from wellposed.signals.distributions.views import expand, pooled
from wellposed.signals.integration import kernels
from wellposed.signals.sampling.samples import outside

LARGEST_MASK = 1 << 12
"""Most elements of a mask that is followed position by position. Chosen for cost."""
LARGEST_MASK_OF_DECAYS = 1 << 16
"""Most elements of a mask over pairs of times, by which a decay is followed. Chosen for cost: 256 times."""
FAR_BELOW = (-30.0, -300.0)
"""Arguments at which a function is tried for whether it vanishes far below 0. Chosen: exp(-30) is 1e-13."""
VANISHED = 1e-9
"""Magnitude below which a function has vanished there. Chosen: far above exp(-30), far below any signal."""


def extreme(call: Call, x: State, y: State, sign: float) -> State:
    """Return max(x, y) = x + relu(y - x) (with ``sign`` -1, min(x, y)), by position, of the call's shape."""
    if sign * x.pooled_mean < sign * y.pooled_mean:  # from the nearer one: a running maximum starts at -1e38
        x, y = y, x
    relu = Pointwise(("beyond", sign), lambda t: sign * torch.relu(sign * t))
    over_x = apply_pointwise(call, expand(combine(call, y, x, 1.0, -1.0), call.shape()), relu)
    over_y = apply_pointwise(call, expand(combine(call, x, y, 1.0, -1.0), call.shape()), relu)
    result = combine(call, x, over_x, 1.0, 1.0)
    for operand, gap in ((x, over_x), (y, over_y)):
        call.run.memo["beyond", result.serial, operand.serial] = gap
    return result


def chosen(call: Call, condition: State, x: State, y: State) -> State:
    """Return c x + (1 - c) y for a condition c on signals (0 or 1), with what the three have in common."""
    source, *others = (state.gaussian_source()[0].serial for state in (condition, x, y))
    shared = condition.roots & (x.roots | y.roots) or source in others
    if not shared:  # links tell all that c and 1 - c have in common; a step's series ends early
        condition = condition.amended(function=None, transport=shape_of(condition))
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


def overwritten(call: Call, target: State, source: State, share: float) -> State:
    """Return a tensor of which a share, taken for random positions, is overwritten by elements of a source."""
    whole = make_state(target.shape, source.pooled_mean, source.pooled_var, roots=source.roots, tag=source.tag)
    return mixture(call, whole, target, min(share, 1.0))


def within(call: Call, x: State, kept: torch.Tensor, number: float, most: int = LARGEST_MASK) -> State | None:
    """Return x where the mask ``kept`` holds, else ``number``, by position; None for masks of more than ``most``
    elements, and for independent elements.
    """
    if kept.numel() > most or call.independent:
        return None
    inside = multiply(call, x, _by_position(kept))
    return inside if not number else combine(call, inside, linear(call, _by_position(~kept), number), 1.0, 1.0)


def _by_position(mask: torch.Tensor) -> State:
    """Return a known mask as a state of zeros and ones, by position."""
    array = array_of(mask).reshape([n for n in mask.shape if n > 1])
    whole = make_state(tuple(mask.shape), 0.0, 0.0)
    return whole.with_moments(mean=array, var=np.zeros((1,) * array.ndim), roots=0)


def function_within(call: Call, x: State, function: Pointwise) -> State | None:
    """Return f(x) of masked scores x: f of the scores inside the mask, and outside of it 0 for a function that vanishes
    far below 0 (exp), or masked scores again for one that stays far below (a clamp); None of other functions.
    """
    if x.masked is None or x.masked.scores is None or x.masked.scores.shape != x.shape:
        return None
    mask, scores = x.masked.mask, x.masked.scores
    far = function(np.array([*FAR_BELOW, outside(x)]))
    if np.isfinite(far[:2]).all() and np.abs(far[:2]).max() < VANISHED:
        # by position, what is shut out may be of another size: rates that grow in place of decays
        inside = within(call, scores, mask, 0.0, LARGEST_MASK_OF_DECAYS) if scores.mean.size > 1 else None
        if inside is not None and sign_of(inside) < 0:  # positions that are integrated together may differ a little
            function = function.clipped(-math.inf, 0.0)
        most = LARGEST_MASK if inside is None else LARGEST_MASK_OF_DECAYS
        return within(call, apply_pointwise(call, inside or scores, function), mask, 0.0, most)
    if far[2] <= MASKED:
        return shut_out(apply_pointwise(call, scores, function), mask, float(far[2]))
    return None


def dropped(call: Call, x: State, rate: float, shared: list[int]) -> State:
    """Multiply by a mask that is 0 with probability r and 1 / (1 - r) else, common to the axes ``shared``.

    Var = v / (1 - r) + m² r / (1 - r). AutoInit's eq. 12 leaves the second term out; ``state="independent"`` does too.
    """
    x = pooled(x)
    if rate >= 1.0:
        return x.with_moments(mean=np.zeros_like(x.mean), var=np.zeros_like(x.var), roots=0)
    keep = 1.0 - rate
    if call.independent:
        return x.with_moments(var=x.var / keep, roots=call.root())
    second = x.mean**2 + x.var
    var = second / keep - x.mean**2
    covariance = x.covariance()
    if shared:
        # elements under one mask also share its fluctuation
        dims = [i for axis in shared for i in x.axes[axis]]
        common = {i: (n if i in dims else 1) for i, n in enumerate(covariance.shape)}
        lengths = [
            max(covariance.shape[i], min(2, x.lengths[i]) if i in dims and x.mean.any() else 1)
            for i in range(covariance.ndim)
        ]
        covariance = kernels.promote(covariance, lengths)
        raw = covariance + kernels.autocorrelation(x.mean, lengths)
        inside = tuple(slice(None) if common[i] > 1 or i in dims else slice(0, 1) for i in range(covariance.ndim))
        kernel = covariance.copy()
        kernel[inside] = raw[inside] / keep - kernels.autocorrelation(x.mean, raw[inside].shape)
    else:
        kernel = kernels.with_diagonal(covariance.copy(), float(np.mean(var)))
    return x.with_moments(
        var=var,
        corr=kernels.correlation(kernel, var),
        gauss=False,
        links=(Link(x, Scaled(1.0)),) if x.roots else (),
        roots=x.roots | call.root(),
        scale_parameter=None,
    )


def zero_where_shut_out(call: Call, x: State, kept: torch.Tensor) -> State | None:
    """Return softmax weights x set to 0 where the mask ``kept`` does not hold, given that their logits were masked
    there before: only rows that see no key, whose weights are even, change. None for other tensors.
    """
    rows, softmax = share_of_rows_shown(x, kept), x.known_as(Softmax)
    if rows is None or softmax is None or softmax.atom is None:
        return None
    if rows in (0.0, 1.0):
        return linear(call, x, 0.0) if not rows else x
    # the weights of rows that see keys: those of the others are their mean
    x = x.with_moments(var=x.var / rows)
    axis = next(i for i, atoms in enumerate(x.axes) if softmax.atom in atoms)
    return linear(call, dropped(call, x, 1.0 - rows, [axis]), rows)
