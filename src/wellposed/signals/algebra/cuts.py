"""Parts that are cut out of a tensor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wellposed.operators.steps import Cut
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.fluctuations import own_fluctuation
from wellposed.signals.distributions.parts import select
from wellposed.signals.distributions.repeats import REPEATED
from wellposed.signals.distributions.spread import Spread, source
from wellposed.signals.distributions.state import LinearMap, Link, State
from wellposed.signals.distributions.views import pooled
from wellposed.signals.integration import kernels

SMALL_SPREAD = 1e-6
"""Variance of ln(second moment) up to which a part gets no source of its own. Chosen."""


def cut(call: Call, x: State, step: Cut, *, follows: bool = True) -> State:
    """Return the state of a slice of x. It is cached in ``call.run.memo``, so that a slice that is cut out twice is one
    tensor. With ``follows`` it has links to the same slice of the parents of x.
    """
    key = (step, x.serial, x.axes, x.scale_parameter, x.tag)
    if key not in call.run.memo:
        links = _links_of_part(call, x, step) if follows else ()
        part = select(x, step.axis, step.start, step.stop, step.step, drop=step.drop)
        whole = call.run.memo.setdefault(("pooled", x.serial, x.axes), pooled(x))
        part = _with_less_averaged(call, x, part)
        if links and not part.links and part is not x:
            part = part.amended(links=links)
        call.run.memo[key] = _as_linear_map(whole, part, step)
    found: State = call.run.memo[key]
    return found


def _links_of_part(call: Call, whole: State, step: Cut) -> tuple[Link, ...]:
    """Return links from a slice of ``whole`` to the same slice of its parents, along an axis of uncorrelated elements
    (a norm's result follows the norm's argument). Empty for other slices, and for results of repeated weights, which
    `Dependence` follows.
    """
    if step.drop or whole.roots & REPEATED or _is_correlated(whole, step.axis):
        return ()
    links = ((link, _same_part(whole, link, step)) for link in whole.links if not link.over)
    return tuple(
        [
            replace(link, parent=cut(call, link.parent, part, follows=False), dims=link.dims if link.taps else None)
            for link, part in links
            if part is not None
        ]
    )


def _same_part(whole: State, link: Link, step: Cut) -> Cut | None:
    """Return the slice of a link's parent that a slice of ``whole`` depends on: through a link element by element, or
    one that combines positions of another axis alone (one time of a sequence); None for other links.
    """
    parent, dims = link.parent, link.places(len(whole.lengths))
    if not link.taps:
        straight = link.dims in (None, tuple(range(len(dims)))) and parent.layout == whole.layout
        return step if straight else None
    atoms = [dims[i] for i in whole.axes[step.axis]]
    axis = next((i for i, own in enumerate(parent.axes) if list(own) == atoms), None)
    combined = any(atom in atoms for atom, _ in link.taps)
    if axis is None or combined or parent.shape[axis] != whole.shape[step.axis] or _is_correlated(parent, axis):
        return None
    return replace(step, axis=axis)


def _is_correlated(whole: State, axis: int) -> bool:
    """Whether elements along an axis are correlated."""
    return any(whole.corr.shape[i] > 1 for i in whole.axes[axis])


def _as_linear_map(whole: State, part: State, step: Cut) -> State:
    """Return ``part``, a slice along an axis of correlated elements, with rows of the identity as its linear map of
    ``whole``: sums of two slices then know their covariance.
    """
    at = whole.axes[step.axis]
    if part.layout == whole.layout or len(at) != 1 or isinstance(part.origin, LinearMap) or not whole.roots:
        return part
    if whole.corr.shape[at[0]] == 1 or isinstance(whole.origin, LinearMap) or whole.lengths[at[0]] > kernels.MOST:
        return part
    rows = np.eye(whole.lengths[at[0]])[step.start : step.stop : step.step]
    return part.amended(origin=LinearMap(whole, at[0], rows)) if step.drop or len(rows) > 1 else part


def _with_less_averaged(call: Call, whole: State, part: State) -> State:
    """Return ``part`` with a larger own spread: it averages over fewer elements than ``whole``. The addition has a
    source of its own.
    """
    spread = part.spread
    if part is whole or part.blocks or not spread.own.amounts.size:
        return part
    key = ("own fluctuation", whole.serial, whole.finite_width_correlation.variance)
    if key not in call.run.memo:  # of many parts of one tensor, as the times of a scan are
        call.run.memo[key] = own_fluctuation(whole)
    before, after = call.run.memo[key], own_fluctuation(part)
    more = spread.own.variance * (after / before - 1.0) if before > 0.0 else 0.0
    if not more > SMALL_SPREAD:
        return part
    return part.amended(spread=Spread(spread.inherited, spread.own + source(call.source(), more)))
