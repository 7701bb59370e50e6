"""Maps of correlations of one activation, and the transformations that bring them to what is wanted.

For z, z' ~ N(0, 1) with correlation c, an activation f with E f(z)² = 1 has the map C(c) = E f(z) f(z'). It holds
C'(1) = E f'(z)² and C''(1) = E f''(z)², and the map of second moments has the slope Q'(1) = E f(z) f'(z) z (Poole et
al. 2016, arXiv 1606.05340; Martens et al. 2021, arXiv 2110.01765).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from wellposed.errors import UnsupportedError

Function = Callable[[Tensor], Tensor]

_REACH = 10.0
"""Standard deviations over which a Gaussian is integrated: beyond lie 1e-23 of it. Chosen."""
_POINTS = 200
"""Points of each half of the quadrature. Chosen: 1e-9 for the activations of PyTorch."""
_EXACT = 1e-6
"""Residual up to which the conditions of a transformation hold. Chosen."""
_STEEPEST = 2.0
"""Product of the scales of input and output from which on a solution is not taken, as its second moments are unstable
(as the authors' code has it)."""


@dataclass(frozen=True, slots=True)
class Transformation:
    """f(x) becomes output_scale · (f(input_scale · x + input_shift) + output_shift).

    Attributes:
        input_scale: factor of the input.
        input_shift: what is added to it.
        output_scale: factor of the output.
        output_shift: what is added before that.
    """

    input_scale: float = 1.0
    input_shift: float = 0.0
    output_scale: float = 1.0
    output_shift: float = 0.0


def leaky(correlation: float, slope: float) -> float:
    """Return C(c) of a leaky ReLU of unit second moment (Zhang et al. 2022, arXiv 2203.08120, eq. 9)."""
    c = min(max(correlation, -1.0), 1.0)
    rectified = (math.sqrt(1.0 - c * c) + (math.pi - math.acos(c)) * c) / math.pi
    return ((1.0 - slope) ** 2 * rectified + 2.0 * slope * c) / (1.0 + slope * slope)


def smooth(function: Function, curvature: float) -> Transformation:
    """Return the transformation of a smooth activation with Q(1) = Q'(1) = C'(1) = 1 and C''(1) = ``curvature``.

    Args:
        function: an element-wise function that PyTorch can differentiate twice.
        curvature: of the local map at 1, > 0: 0 belongs to a linear function.

    Raises:
        UnsupportedError: none is found.

    Source: Zhang et al. 2022, arXiv 2203.08120, section 4.2 (TAT for smooth activations).
    """
    from scipy.optimize import root  # slow to import, and few need it

    def residual(parameters: np.ndarray) -> list[float]:
        _, (slope_of_q, slope, curve) = _conditions(function, *map(float, parameters))
        return [slope_of_q - 1.0, slope - 1.0, curve - curvature]

    for start in itertools.product((1.0, 0.1), (0.0, 1.0, -1.0), (0.0, 1.0, -1.0)):
        with np.errstate(all="ignore"):
            found = root(residual, np.array(start), method="hybr")
        if not found.success or not float(np.abs(found.fun).max()) <= _EXACT:
            continue
        scale, shift, added = map(float, found.x)
        output, _ = _conditions(function, scale, shift, added)
        if abs(scale * output) < _STEEPEST:
            return Transformation(scale, shift, output, added)
    raise UnsupportedError(
        f"{function!r} cannot be transformed to a curvature of {curvature:.3g}: no scales and shifts of its input and "
        "output are found under which its second moments stay as they are"
    )


def _conditions(function: Function, scale: float, shift: float, added: float) -> tuple[float, tuple[float, ...]]:
    """Return the output's scale under which E f² is 1, and Q'(1), C'(1) and C''(1) with it."""
    points, weights = _quadrature(-shift / scale if scale else 0.0)
    z = points.clone().requires_grad_()
    with torch.enable_grad():
        value = function(scale * z + shift) + added
        (slope,) = torch.autograd.grad(value.sum(), z, create_graph=True)
        if slope.requires_grad:
            (curve,) = torch.autograd.grad(slope.sum(), z, allow_unused=True, materialize_grads=True)
        else:
            curve = torch.zeros_like(z)
    value, slope = value.detach(), slope.detach()
    second = float(weights @ value.square())
    if not second > 0.0 or not math.isfinite(second):
        return math.nan, (math.nan, math.nan, math.nan)
    told = (weights @ (value * slope * points), weights @ slope.square(), weights @ curve.detach().square())
    return second**-0.5, tuple(float(one) / second for one in told)


def _quadrature(kink: float) -> tuple[Tensor, Tensor]:
    """Return points and weights of a standard normal, split where an activation may have a kink."""
    x, w = _legendre()
    middle = min(max(kink, -_REACH), _REACH)
    points, weights = [], []
    for low, high in ((-_REACH, middle), (middle, _REACH)):
        half = 0.5 * (high - low)
        at = half * x + 0.5 * (high + low)
        points.append(at)
        weights.append(half * w * torch.exp(-0.5 * at.square()) / math.sqrt(2.0 * math.pi))
    return torch.cat(points), torch.cat(weights)


@lru_cache(maxsize=1)
def _legendre() -> tuple[Tensor, Tensor]:
    x, w = np.polynomial.legendre.leggauss(_POINTS)
    return torch.from_numpy(x), torch.from_numpy(w)
