"""Covariances between states of one pass."""

from __future__ import annotations

import numpy as np

from wellposed.signals.distributions.state import Dims, Operate, State
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array


class Dependence:
    """Covariances between states of one pass, found by following links from the later state to the earlier one."""

    def __init__(self) -> None:
        self._memo: dict[tuple[int, int, Dims], Array | None] = {}
        self._next_root = 0

    def root(self) -> int:
        """Return a bit that no state has yet."""
        bit = 1 << self._next_root
        self._next_root += 1
        return bit

    def between(self, x: State, y: State, x_dims: Dims, y_dims: Dims) -> Array | None:
        """Return the covariance kernel of two states in common atoms, or None when they are independent.

        ``x_dims`` and ``y_dims`` give each common atom's place in the states (see `Aligned`).
        """
        if not (x.roots & y.roots):
            return None
        where: list[int | None] = [None] * len(y.sizes)
        for i, j in zip(x_dims, y_dims, strict=True):
            if j is not None:
                where[j] = i
        kernel = self._expand(x, y, tuple(where), 0)
        return None if kernel is None else _placed(kernel, x_dims)

    def _expand(self, x: State, y: State, where: Dims, depth: int) -> Array | None:
        # the kernel is in x's atoms; ``where`` says which of them each of y's atoms is
        if not (x.roots & y.roots) or depth > 200:
            return None
        if x.serial == y.serial:
            return x.covariance() if where == tuple(range(len(where))) else None
        key = (x.serial, y.serial, where)
        if key in self._memo:
            return self._memo[key]
        result: Array | None = None
        if y.serial > x.serial:
            for link in y.links:
                dims = link.dims if link.dims is not None else tuple(range(len(y.sizes)))
                places: list[int | None] = [None] * len(link.parent.sizes)
                for i, j in zip(where, dims, strict=True):
                    if j is not None:
                        places[j] = i
                part = self._expand(x, link.parent, tuple(places), depth + 1)
                if part is not None:
                    part = link.operate(part, tuple(places))
                    result = part if result is None else _add(result, part)
        else:
            for link in x.links:
                dims = link.dims if link.dims is not None else tuple(range(len(x.sizes)))
                inner = tuple(None if i is None else dims[i] for i in where)
                part = self._expand(link.parent, y, inner, depth + 1)
                if part is not None:
                    part = _placed(link.operate(part, tuple(range(len(link.parent.sizes)))), dims)
                    result = part if result is None else _add(result, part)
        self._memo[key] = result
        return result


def _placed(kernel: Array, dims: Dims) -> Array:
    """Reorder a kernel's dimensions; along an index that it lacks it is constant."""
    if dims == tuple(range(kernel.ndim)):
        return kernel
    used = [i for i in dims if i is not None]
    missing = [i for i in range(kernel.ndim) if i not in used]
    kernel = kernel[tuple(0 if i in missing else slice(None) for i in range(kernel.ndim))]
    kernel = kernel.transpose([sum(j not in missing for j in range(i)) for i in used])
    for at, i in enumerate(dims):
        if i is None:
            kernel = np.expand_dims(kernel, at)
            kernel = np.concatenate([kernel, kernel], axis=at)
    return np.asarray(kernel)


def _add(a: Array, b: Array) -> Array:
    lengths = [max(m, n) for m, n in zip(a.shape, b.shape, strict=True)]
    return kernels.promote(a, lengths) + kernels.promote(b, lengths)


def scaled_by(factor: float) -> Operate:
    """Return the link operator of a multiplication by a number."""
    return lambda kernel, _where: kernel * factor
