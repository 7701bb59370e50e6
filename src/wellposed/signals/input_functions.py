"""Inputs that are increasing functions of Gaussians: of few values, or of positive numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from wellposed.arrays import distinct
from wellposed.signals.distributions.functions import Pointwise
from wellposed.signals.distributions.state import FunctionOf, Link, Marginal, Scaled, State
from wellposed.signals.integration import kernels
from wellposed.signals.integration.gaussian import NODES, hermite
from wellposed.signals.integration.kernels import Array
from wellposed.signals.integration.special import ndtri
from wellposed.signals.integration.transport import standardised

MOST_LEVELS, LOOKED_AT_FIRST = 8, 256
"""Most values that an input of few takes, and elements that are looked at before all are. Chosen."""


def levels_of(data: Array) -> tuple[tuple[float, float], ...] | None:
    """Return the distinct values of elements with their shares, if they are few among many elements; else None."""
    if len(distinct(data.ravel()[:LOOKED_AT_FIRST])) > MOST_LEVELS or data.size <= MOST_LEVELS * MOST_LEVELS:
        return None
    values, counts = np.unique(data, return_counts=True)
    if len(values) > MOST_LEVELS:
        return None
    return tuple(zip(values.tolist(), (counts / data.size).tolist(), strict=True))


def few_values(values: Sequence[tuple[float, float]]) -> Pointwise:
    """Return the step function of a Gaussian whose results have these values, in order, with these shares."""
    return _Levels(values).function


def log_normal(mean: float, var: float) -> Pointwise:
    """Return the exponential that makes positive elements of this mean and variance."""
    of_log = math.log1p(var / mean**2)
    std, centre = math.sqrt(of_log), math.log(mean) - 0.5 * of_log
    return Pointwise(("log-normal", centre, std), lambda z: torch.exp(centre + std * z))


def of_a_gaussian(made: State, function: Pointwise) -> State:
    """Return an input whose elements are an increasing function of a Gaussian."""
    coefficients, _ = hermite(function, 0.0, 1.0)
    base = made.with_moments(
        mean=np.zeros_like(made.mean),
        var=np.ones_like(made.var),
        corr=kernels.with_diagonal(latent(function, made.corr)),
    )
    return made.with_moments(
        marginal=Marginal(function=FunctionOf(base, function)), links=(Link(base, Scaled(float(coefficients[1]))),)
    )


def latent(function: Pointwise, corr: Array) -> Array:
    """Return the correlations that Gaussians must have for an increasing function of them to have ``corr``."""
    return standardised(function(NODES)).latent(corr)


class _Levels:
    """The step function that makes a variable of few values of a standard Gaussian."""

    def __init__(self, values: Sequence[tuple[float, float]]) -> None:
        self._levels = torch.tensor([value for value, _ in values], dtype=torch.float64)
        below = np.cumsum([share for _, share in values])[:-1]
        self._ends = torch.from_numpy(ndtri(below))
        self.function = Pointwise(("levels", *values), self)

    def __call__(self, z: torch.Tensor) -> torch.Tensor:
        """Return the values at an array of points."""
        return self._levels[torch.bucketize(z.double(), self._ends)].to(z.dtype)
