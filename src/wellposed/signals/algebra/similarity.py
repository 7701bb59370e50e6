"""How similar two samples' signals are: E x·x' / E x·x of one place in two samples of a batch."""

from __future__ import annotations

import math

from wellposed.signals.distributions.state import State
from wellposed.signals.integration import kernels
from wellposed.structure.samples import Samples


def similarity(state: State, samples: Samples | None) -> float:
    """Return E[x x'] / E[x²] for elements x, x' at one place of two samples, averaged over places and pairs of samples.

    It is the cosine of the map of correlations (Poole et al. 2016, arXiv 1606.05340, eq. 5; of their C map where means
    are 0), 0 for signals that have nothing in common and 1 where all samples give the same.

    Args:
        state: of a tensor.
        samples: where its samples lie.

    Returns:
        Between -1 and 1; NaN where no index tells samples apart, and of zeros.
    """
    second = state.second_moment
    atom = None if samples is None else samples.atom(state.axes, state.lengths)
    if atom is None or not 0.0 < second < math.inf:
        return math.nan
    mean = kernels.mean_over(state.mean, (atom,))
    kernel = kernels.off_diagonal_mean(state.covariance(), state.lengths, atom)
    shared = float(kernels.at_zero(kernel, range(kernel.ndim)).ravel()[0]) + kernels.average(mean * mean)
    return min(max(shared / second, -1.0), 1.0)
