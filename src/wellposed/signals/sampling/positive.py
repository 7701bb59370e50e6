"""What is never negative, though its moments would suit a Gaussian: sums of exponentials, products of gates."""

from __future__ import annotations

import numpy as np

from wellposed.graphs import Graph
from wellposed.signals.distributions.marginals import marginal
from wellposed.signals.distributions.state import Marginal, State
from wellposed.signals.integration.transport import of_log_normal
from wellposed.structure.bounds import bounds

FOLLOWED_VARIANCES = (0.02, 1e4)
"""Var / E² between which the shape is followed. Chosen: below, a Gaussian does not reach 0 either."""


def as_positive(graph: Graph, value: int, x: State) -> State:
    """Return x, the state of a value, with a log-normal marginal of its moments where the graph's bounds make it
    positive and its marginal does not.
    """
    if x.blocks:
        return x
    with np.errstate(all="ignore"):
        relative = float(np.max(x.var / np.square(x.mean), initial=0.0))
    if not FOLLOWED_VARIANCES[0] < relative < FOLLOWED_VARIANCES[1] or not float(x.mean.min()) > 0.0:
        return x
    found = bounds(graph).get(value)
    if found is None or found.low < 0.0 or float(marginal(x).min()) >= 0.0:
        return x
    return x.amended(marginal=Marginal(transport=of_log_normal(float(f"{relative:.12g}"))))
