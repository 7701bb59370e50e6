"""States of tensors that nothing else is known of than a few numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from wellposed.signals.distributions.layout import Layout
from wellposed.signals.distributions.moments import Moments
from wellposed.signals.distributions.spread import NONE, STEADY, Sources, Spread
from wellposed.signals.distributions.state import Ancestry, Marginal, State
from wellposed.signals.signal import Tag

_GAUSSIAN, _OTHER, _NEW = Marginal(gauss=True), Marginal(), Ancestry()


def make_state(
    shape: Sequence[int],
    mean: float = 0.0,
    var: float = 1.0,
    *,
    pairs: Sequence[float | None] | None = None,
    finite_width_correlation: Sources = NONE,
    tag: Tag = "exact",
    gauss: bool = False,
    roots: int = 0,
    scale_parameter: str | None = None,
    spread: Spread = STEADY,
) -> State:
    """Return a state with one fresh atom per axis longer than 1 and the same mean and variance everywhere.

    ``pairs`` gives for each axis the correlation of elements that differ along that axis only (None: uncorrelated);
    elements that differ along several axes get the product.
    """
    layout, long = _of_shape(tuple(shape))
    everywhere = (1,) * len(long)
    corr = np.ones(everywhere)
    for dim, other in enumerate(() if pairs is None else [pairs[axis] for axis in long]):
        if other is not None:
            corr = np.concatenate([corr, corr * other], axis=dim)
    return State(
        layout,
        Moments(
            np.array(mean, dtype=np.float64).reshape(everywhere),
            np.array(var, dtype=np.float64).reshape(everywhere),
            corr,
            finite_width_correlation,
        ),
        tag=tag,
        marginal=_GAUSSIAN if gauss else _OTHER,
        ancestry=Ancestry((), roots, scale_parameter) if roots or scale_parameter else _NEW,
        spread=spread,
    )


@lru_cache(maxsize=1024)
def _of_shape(shape: tuple[int, ...]) -> tuple[Layout, tuple[int, ...]]:
    """Return the layout of a tensor with an atom in each axis that is longer than 1, and these axes."""
    long = tuple([axis for axis, size in enumerate(shape) if size != 1])
    axes = tuple([(long.index(axis),) if size != 1 else () for axis, size in enumerate(shape)])
    return Layout(tuple([shape[axis] for axis in long]), axes), long


def exchangeable(shape: Sequence[int], mean: float, var: float, rho: float) -> State:
    """Return a state any two elements of which have the correlation ``rho``."""
    state = make_state(shape, mean, var)
    if rho == 0.0 or not state.lengths:
        return state
    corr = np.full((2,) * len(state.lengths), rho)
    corr[(0,) * corr.ndim] = 1.0
    return state.with_moments(corr=corr)


def rescaled(state: State, scale: float) -> State:
    """Return a weight's state at a chosen scale."""
    return state.changed(mean=state.mean * scale, var=state.var * scale * scale, scale_parameter=None)
