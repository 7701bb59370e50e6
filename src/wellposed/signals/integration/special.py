"""Special functions on arrays by PyTorch, which is loaded already: SciPy's take longer to import than most plans."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[np.float64]


def ndtr(x: npt.ArrayLike) -> Array:
    """Return the probability with which a standard normal number is at most x, an array of any shape."""
    return 0.5 * _applied(torch.erfc, np.asarray(x) * -(0.5**0.5))  # PyTorch's own cancels below -4


def ndtri(p: npt.ArrayLike) -> Array:
    """Return the number that a standard normal one is at most with probability p, an array of any shape."""
    return _applied(torch.special.ndtri, p)


def gamma_below(shape: float, x: float) -> float:
    """Return the probability with which a Gamma-distributed number of scale 1 is at most x."""
    return float(_applied(torch.special.gammainc, shape, x))


def gamma_above(shape: float, x: float) -> float:
    """Return the probability with which a Gamma-distributed number of scale 1 is more than x."""
    return float(_applied(torch.special.gammaincc, shape, x))


def _applied(function: Callable[..., torch.Tensor], *arguments: npt.ArrayLike) -> Array:
    result: Array = function(*[torch.from_numpy(np.array(one, dtype=np.float64)) for one in arguments]).numpy()
    return result
