"""Scores that a mask shuts out of the softmax that follows."""

from __future__ import annotations

import math

import numpy as np
import torch

from wellposed.signals.distributions.state import State
from wellposed.signals.distributions.views import pooled
from wellposed.signals.sampling.samples import outside

SINGLE = float(np.finfo(np.float32).max)
"""Largest number in single precision."""


def masked(x: State, mask: torch.Tensor, mean: float, var: float) -> State:
    """Return scores to which a mask's numbers (of this mean and variance) are added, keeping what is let through."""
    x = pooled(x)
    if x.mask is not None and x.scores is not None:  # what either mask shuts out
        before, mask = x.mask.broadcast_to(x.shape), mask.broadcast_to(x.shape)
        if torch.equal(before, mask):  # the numbers of both add up, in the same places
            var += 2.0 * math.sqrt(var * max(x.pooled_var - x.scores.pooled_var, 0.0))
        both = x.with_moments(mean=x.mean + mean, var=x.var + var, mask=before & mask, scores=x.scores, gauss=False)
        if torch.equal(before, mask) and outside(both) < -1.01 * SINGLE:  # infinite: what is let through remains
            return masked(x.scores, mask, 0.0, 0.0)
        return both
    return x.with_moments(mean=x.mean + mean, var=x.var + var, mask=mask, scores=x, gauss=False)


_SQUARABLE = 1e150


def shut_out(x: State, kept: torch.Tensor, number: float) -> State:
    """Return scores that are a large negative number outside the mask ``kept``, keeping what they are inside.

    Scores that a mask shuts out already stay so; theirs is the number of that mask where ``kept`` lets them through.
    """
    inner, shut = x, [(~kept, number)]
    if x.mask is not None and x.scores is not None:
        kept, before = torch.broadcast_tensors(kept, x.mask)
        inner, shut = x.scores, [(~kept, number), (kept & ~before, outside(x))]
        kept = kept & before
    # the lowest number of double precision has no square: it counts as infinite
    apart = [(float(at.double().mean()), n - inner.pooled_mean) for at, n in shut if abs(n) < _SQUARABLE]
    mean = sum(share * distance for share, distance in apart)
    square = sum(share * distance**2 for share, distance in apart)
    return masked(inner, kept, mean, square - mean**2)


def is_shut_out(x: State, kept: torch.Tensor) -> bool:
    """Whether x is the weights of a softmax whose logits were shut out wherever ``kept`` does not hold: 0 there, but
    for rows of which nothing is let through.
    """
    shown = None if x.softmax is None else x.softmax.shown
    if shown is None or not bool(shown.any(dim=-1).all()):
        return False
    try:
        shown, kept = torch.broadcast_tensors(shown, kept.bool())
    except RuntimeError:  # of another shape: a view of the weights
        return False
    return not bool((shown & ~kept).any())
