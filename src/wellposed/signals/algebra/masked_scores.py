"""Scores that a mask shuts out of the softmax that follows."""

from __future__ import annotations

import math

import numpy as np
import torch

from wellposed.signals.distributions.attention import Softmax
from wellposed.signals.distributions.state import Masked, State
from wellposed.signals.distributions.views import pooled
from wellposed.signals.sampling.samples import outside

LARGEST_SINGLE = float(np.finfo(np.float32).max)
"""Largest number in single precision. Source: IEEE 754."""
LARGEST_SQUARABLE = 1e150
"""Largest magnitude that is squared. Chosen: its square is below the largest double, 1.8e308."""


def masked(x: State, mask: torch.Tensor, mean: float, var: float) -> State:
    """Return scores x plus the numbers of a mask, of this mean and variance, that shuts out where it does not hold.

    ``mask`` is broadcast to the shape of x. The result keeps the scores before, which count where the mask holds.
    """
    x = pooled(x)
    if x.masked is not None and x.masked.scores is not None:  # scores are let through where both masks hold
        scores, before, mask = x.masked.scores, x.masked.mask.broadcast_to(x.shape), mask.broadcast_to(x.shape)
        if torch.equal(before, mask):  # in the same places, the numbers of both masks add up
            var += 2.0 * math.sqrt(var * max(x.pooled_var - scores.pooled_var, 0.0))
        both = x.with_moments(mean=x.mean + mean, var=x.var + var, attention=Masked(before & mask, scores), gauss=False)
        if torch.equal(before, mask) and outside(both) < -1.01 * LARGEST_SINGLE:  # the sum is infinite
            return masked(scores, mask, 0.0, 0.0)
        return both
    return x.with_moments(mean=x.mean + mean, var=x.var + var, attention=Masked(mask, x), gauss=False)


def shut_out(x: State, kept: torch.Tensor, number: float) -> State:
    """Return scores x that are a large negative ``number`` where the mask ``kept`` does not hold.

    Scores that another mask shuts out already stay so. Where ``kept`` holds, they keep the number of that mask.
    """
    inner, shut = x, [(~kept, number)]
    if x.masked is not None and x.masked.scores is not None:
        kept, before = torch.broadcast_tensors(kept, x.masked.mask)
        inner, shut = x.masked.scores, [(~kept, number), (kept & ~before, outside(x))]
        kept = kept & before
    # the lowest number of double precision has no square: it counts as infinite
    apart = [(float(at.double().mean()), n - inner.pooled_mean) for at, n in shut if abs(n) < LARGEST_SQUARABLE]
    mean = sum(share * distance for share, distance in apart)
    square = sum(share * distance**2 for share, distance in apart)
    return masked(inner, kept, mean, square - mean**2)


def share_of_rows_shown(x: State, kept: torch.Tensor) -> float | None:
    """Return the share of rows (queries) of softmax weights x that see a key: rows that see none have even weights.
    None unless x are such weights and ``kept`` holds for every key that their mask lets through.
    """
    weights = x.known_as(Softmax)
    shown = None if weights is None else weights.shown
    if shown is None:
        return None
    rows = float(shown.any(dim=-1).double().mean())
    try:
        shown, kept = torch.broadcast_tensors(shown, kept.bool())
    except RuntimeError:  # of another shape: a view of the weights
        return None
    return None if bool((shown & ~kept).any()) else rows
