"""Moments of a tensor by position, and how its positions are correlated."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar

import numpy as np

from wellposed.signals.distributions.declared import EVERYTHING, KERNEL, NUMBER, POSITIONS, SOURCES, holds, told
from wellposed.signals.distributions.spread import NONE, Sources
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Mean and variance by position, and how positions are correlated.

    ``varies`` says, of moments that are not worked out yet, whether the variance is taken not to be 0.
    """

    varies: ClassVar[bool] = False
    mean: Array = field(metadata=holds("mean, over inputs and weight draws", POSITIONS, EVERYTHING))
    var: Array = field(metadata=holds("variance about that mean", POSITIONS, EVERYTHING))
    corr: Array = field(
        metadata=holds("correlation over weight draws: Cov(p, p + d) = s_p s_{p+d} corr(d)", KERNEL, EVERYTHING)
    )
    finite_width_correlation: Sources = told(
        "variance over weight draws of the correlation of two positions, relative to what not all positions have "
        "in common: 1 / n from each layer of n features",
        SOURCES,
        EVERYTHING,
        default=NONE,
    )
    equal_norm_inverse_dim: float = told(
        "1 / D for the D dimensions that features fill, 0 elsewhere",
        NUMBER,
        EVERYTHING,
        "a norm has given the features at all positions one length",
        default=0.0,
    )
    _second: float | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def second(self) -> float:
        """E x², pooled over positions: several rules that read a state ask for it."""
        if self._second is None:
            made = kernels.average(self.mean * self.mean) + kernels.average(self.var)
            object.__setattr__(self, "_second", made)
            return made
        return self._second


@lru_cache(maxsize=16)
def covariance(moments: Moments) -> Array:
    """Return the centred covariance kernel, averaged over positions: several rules that read a state ask for it."""
    made = np.asarray(moments.corr * kernels.autocorrelation(np.sqrt(moments.var), moments.corr.shape))
    made.setflags(write=False)
    return made
