"""Functions of one number, as operators compose them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from wellposed.signals.integration.kernels import Array


@dataclass(frozen=True, slots=True)
class Pointwise:
    """A function of one number, as operators compose it. Equal functions have equal ``key``; ``parts`` are the outer
    and the inner function of a composition.
    """

    key: tuple[object, ...]
    call: Callable[[torch.Tensor], torch.Tensor] = field(compare=False)
    parts: tuple[Pointwise, Pointwise] | None = field(default=None, compare=False, repr=False)

    def __call__(self, x: Array) -> Array:
        """Return the function's values at an array of points."""
        given = torch.from_numpy(np.ascontiguousarray(x))
        if torch.is_grad_enabled():
            with torch.no_grad():
                return np.asarray(self.call(given).numpy(), dtype=np.float64)
        return np.asarray(self.call(given).numpy(), dtype=np.float64)

    def then(self, outer: Pointwise) -> Pointwise:
        """Return the composition outer(self(x))."""
        inner_call, outer_call = self.call, outer.call
        return Pointwise((outer.key, self.key), lambda x: outer_call(inner_call(x)), (outer, self))

    def after(self, inner: Pointwise | None) -> Pointwise | None:
        """Return the function that makes this one of ``inner`` (the identity where there is none); None of others."""
        if inner is None:
            return self
        if self.key == inner.key:
            return IDENTITY
        return self.parts[0] if self.parts is not None and self.parts[1].key == inner.key else None

    def clipped(self, low: float, high: float) -> Pointwise:
        """Return the function of the number of [low, high] that is nearest to x."""
        call = self.call
        return Pointwise(("clipped", low, high, self.key), lambda x: call(x.clamp(low, high)))


IDENTITY = Pointwise(("identity",), lambda t: t)
"""The function that gives back its number."""
