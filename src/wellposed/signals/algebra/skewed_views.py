"""Views whose axes end inside those of the tensor that they were made of (rows pushed on by one each)."""

from __future__ import annotations

import itertools
import math
import operator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wellposed.operators.steps import Cut, Permute, Regroup, Shape, Step, Steps, shapes_along
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.layout import Layout
from wellposed.signals.distributions.state import State, weakest
from wellposed.signals.distributions.views import merge_atoms, pooled
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array

LARGEST_CROSSED = 1 << 22
"""Most elements of axes whose boundaries are crossed that are followed one by one. Chosen for cost."""
SAMPLED_PAIRS = 64
"""Pairs of positions by which the correlation at one displacement is averaged. Chosen for cost."""


Moving = Regroup | Permute | Cut
"""Steps by which an element is followed to its new position."""


@dataclass(slots=True)
class Chain:
    """Views one after another: the state that they began with, all steps from there, and whether axes ended inside
    others on the way.
    """

    base: State
    steps: Steps
    crossed: bool = False

    def result(self) -> State | None:
        """Return what the whole chain makes, axes of which end inside others; None where that is not known."""
        self.crossed = True
        return skewed(self.base, self.steps)


def followed(call: Call, x: State, steps: Steps) -> Chain:
    """Return the chain of views that a node ends; it is kept for the views behind it from the first regrouping on that
    neither splits nor merges axes.
    """
    chain = Chain(x, steps)
    if call.run.weights.repeated:  # rules are asked again, for other states than those that were met here
        return chain
    known: dict[int, Chain] = call.run.memo.setdefault("views", {})
    source = call.value_of(0)
    before = None if source is None else known.get(source)
    if before is not None:
        chain = Chain(before.base, (*before.steps, *steps), before.crossed)
    elif not any(map(_crosses, steps, shapes_along(steps, x.shape))):
        return chain
    if x.scale_parameter is None and all(isinstance(step, Moving) for step in steps):
        known[call.node.outputs[0]] = chain
        return chain
    return Chain(x, steps)


def _crosses(step: Step, before: Shape) -> bool:
    """Whether a step is a reshape in which axes of one side end inside those of the other, on both sides."""
    if not isinstance(step, Regroup):
        return False
    old, new = (set(itertools.accumulate(shape, operator.mul)) for shape in (before, step.shape))
    return not (old <= new or new <= old)


def skewed(x: State, steps: Steps) -> State | None:
    """Return what a chain of views makes of x where axes end inside others: every element is the one that it was, and
    two of them have the correlation that they had, averaged over the pairs at each displacement.

    Axes on the left that no step touches stay as they are. None where the others are too large, or a step repeats or
    reorders elements.
    """
    moving = [step for step in steps if isinstance(step, Moving)]
    if len(moving) < len(steps):
        return None
    lead = min(map(_leading_axes_kept, moving, shapes_along(steps, x.shape)), default=0)
    rest = math.prod(x.shape[lead:])
    x = _merged(pooled(x), lead)
    outer, inner = (list(itertools.chain.from_iterable(axes)) for axes in (x.axes[:lead], x.axes[lead:]))
    if x.masked is not None or not 1 < rest <= LARGEST_CROSSED:
        return None
    sizes = [x.lengths[atom] for atom in inner]
    mean, var, corr = (array.transpose([*outer, *inner]) for array in (x.mean, x.var, x.corr))
    places = np.arange(rest).reshape(x.shape[lead:])
    for step in moving:
        places = _after_step(places, step, lead)
    long = [n for n in places.shape if n > 1]
    flat = places.reshape(long)
    mean, var = (_picked(array, flat, len(outer), sizes) for array in (mean, var))
    corr = _by_displacement(corr, flat, len(outer), sizes)
    layout = _layout_after(x, lead, outer, places.shape)
    made = x.with_moments(layout=layout, mean=mean, var=var, corr=kernels.with_diagonal(corr))
    return made.amended(tag=weakest(x.tag, "approximate"))


def _merged(x: State, lead: int) -> State:
    """Return a state whose first ``lead`` axes have one atom each, or none."""
    for axis in range(lead):
        x = merge_atoms(x, axis) if len(x.axes[axis]) > 1 else x
    return x


def _layout_after(x: State, lead: int, outer: list[int], shape: Shape) -> Layout:
    """Return a layout of the first ``lead`` axes of x, the atoms ``outer`` in them, and of new axes of ``shape``."""
    new = itertools.count(len(outer))
    untouched = [tuple(outer.index(atom) for atom in axis) for axis in x.axes[:lead]]
    axes = (*untouched, *((next(new),) if n > 1 else () for n in shape))
    return Layout((*(x.lengths[atom] for atom in outer), *(n for n in shape if n > 1)), axes)


def _leading_axes_kept(step: Moving, before: Shape) -> int:
    """Return how many leading axes a step leaves as they are."""
    if isinstance(step, Cut):
        return step.axis
    after = step.shape if isinstance(step, Regroup) else step.order
    same = before if isinstance(step, Regroup) else range(len(before))
    return sum(itertools.takewhile(bool, map(operator.eq, after, same)))


def _after_step(places: NDArray[np.intp], step: Moving, lead: int = 0) -> NDArray[np.intp]:
    """Return an array of indices after ``step``; the array lacks the first ``lead`` axes of the tensor."""
    if isinstance(step, Regroup):
        return places.reshape(step.shape[lead:])
    if isinstance(step, Permute):
        return places.transpose([axis - lead for axis in step.order[lead:]])
    index: list[int | slice] = [slice(None)] * places.ndim
    index[step.axis - lead] = step.start if step.drop else slice(step.start, step.stop, step.step)
    cut: NDArray[np.intp] = places[tuple(index)]
    return cut


def _picked(array: Array, places: NDArray[np.int64], lead: int, sizes: list[int]) -> Array:
    """Return means or variances by new positions."""
    if all(n == 1 for n in array.shape[lead:]):
        return array.reshape(*array.shape[:lead], *(1,) * places.ndim)
    full = np.broadcast_to(array, (*array.shape[:lead], *sizes)).reshape(*array.shape[:lead], -1)
    return np.asarray(full[..., places])


def _by_displacement(corr: Array, places: NDArray[np.int64], lead: int, sizes: list[int]) -> Array:
    """Return the correlation by displacement of new positions, each of which is one of the old ones."""
    profiles = any(length > 2 for length in corr.shape[lead:])
    lags = [min(n, kernels.lag_cap(places.ndim) if profiles else 2) for n in places.shape]
    rows = np.indices(lags).reshape(len(lags), -1, 1)
    chance = np.random.default_rng(0).random((3, len(lags), rows.shape[1], SAMPLED_PAIRS))
    first, second = [], []
    for n, length, lag, (far, start, turn) in zip(places.shape, lags, rows, np.moveaxis(chance, 1, 0), strict=True):
        # the last entry stands for all larger displacements, each with as many pairs as it has
        beyond = np.cumsum(np.arange(n - length + 1, 0, -1))
        apart = np.where(lag == length - 1, length - 1 + np.searchsorted(beyond, far * beyond[-1], "right"), lag)
        low = (start * (n - apart)).astype(np.int64)
        first.append(np.where(turn < 0.5, low, low + apart))
        second.append(np.where(turn < 0.5, low + apart, low))
    one, other = (np.unravel_index(places[tuple(at)], sizes) for at in (first, second))
    index, same = [], np.ones((), dtype=np.bool_)
    for n, length, p, q in zip(sizes, corr.shape[lead:], one, other, strict=True):
        index.append(p * n + q if kernels.positions(length) else np.minimum(np.abs(p - q), length - 1))
        same = same & ((p == q) | (length > 1))
    found = np.where(same, corr[(..., *index)], 0.0).mean(axis=-1)
    return np.asarray(found.reshape(*corr.shape[:lead], *lags))
