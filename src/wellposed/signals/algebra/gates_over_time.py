"""Gates that are met again: a state that a loop multiplies at each step by what the same weights make is large where
its gates were large before (signals.md 5.4).
"""

from __future__ import annotations

import math

import numpy as np

from wellposed.signals.context.call import Call
from wellposed.signals.distributions.functions import Pointwise
from wellposed.signals.distributions.marginals import marginal
from wellposed.signals.distributions.mixtures import LARGEST_VARIANCE
from wellposed.signals.distributions.state import Scaled, State
from wellposed.signals.integration.gaussian import NODES, WEIGHTS
from wellposed.signals.integration.kernels import Array

LEAST_SHARE = 0.05
"""Share of a state's second moment below which what made it is not followed back. Chosen for cost."""
DEEPEST = 24
"""Most operators that are followed back. Chosen for cost: three or four for each step of a loop."""


def squares_in_common(call: Call, x: State, y: State) -> float:
    """Return Cov(x², y²) / (E x² E y²) of two factors one of which is a gate, and the other was made by such gates at
    earlier steps of a loop; 0 of others.
    """
    if call.independent or not (x.roots & y.roots) or not call.run.weights.repeated:
        return 0.0
    found = max((_behind(call, gate, other, 1.0, 0) for gate, other in ((x, y), (y, x))), key=abs)
    return min(max(found, -0.9), LARGEST_VARIANCE)


def _behind(call: Call, gate: State, x: State, share: float, depth: int) -> float:
    """Return the relative covariance of the squares of a gate and of a state x that is made of other gates.

    The part that x has in the state that was asked for is ``share``; ``depth`` operators were followed.
    """
    if share < LEAST_SHARE or depth > DEEPEST or not gate.roots & x.roots:
        return 0.0
    dependence = call.run.dependence
    if depth and gate.function is not None and x.function is not None:
        return _of_functions(call, gate, x)
    if gate.serial == x.serial:
        return _of_itself(gate) if depth else 0.0
    factors = dependence.factors.get(x.serial)
    if factors is not None:
        one, other = (_behind(call, gate, factor, share, depth + 1) for factor in factors.states)
        return (1.0 + one) * (1.0 + other) - 1.0
    parts = _parts(call, x)
    total = sum(part.second_moment for part in parts)
    if not total > 0.0:
        return 0.0
    shares = [part.second_moment / total for part in parts]
    return sum(s * _behind(call, gate, part, share * s, depth + 1) for s, part in zip(shares, parts, strict=True))


def _parts(call: Call, x: State) -> list[State]:
    """Return the states that x is a sum of, or a function; none of what a weight made."""
    if x.function is not None:
        return [x.function.base] if x.function.base.lengths == x.lengths else []
    made = call.run.dependence.made.get(x.serial)
    if made is not None:
        return [] if any(made.raw) else list(made.operands)
    plain = all(isinstance(link.operate, Scaled) and not link.taps and not link.over for link in x.links)
    return [link.parent for link in x.links] if plain else []


def _of_itself(gate: State) -> float:
    """Return Var(y²) / (E y²)²."""
    squares = marginal(gate) ** 2
    level = float(WEIGHTS @ squares)
    return float(WEIGHTS @ squares**2) / level**2 - 1.0 if level > 0.0 else 0.0


def _of_functions(call: Call, x: State, y: State) -> float:
    """Return the relative covariance of the squares of two functions of Gaussian tensors at one position."""
    (first, f), (second, g) = x.gaussian_source(), y.gaussian_source()
    if f is None or g is None or first.lengths != second.lengths or not (first.gauss and second.gauss):
        return 0.0
    dims = tuple(range(len(first.lengths)))
    kernel = call.run.dependence.between(first, second, dims, dims)
    scale = math.sqrt(first.pooled_var * second.pooled_var)
    if kernel is None or not scale > 0.0:
        return 0.0
    r = min(max(float(kernel.ravel()[0]) / scale, -1.0), 1.0)
    of_x, of_y = _squares(first, f, NODES), _squares(second, g, r * NODES[:, None] + math.sqrt(1.0 - r * r) * NODES)
    alone = of_y @ WEIGHTS
    both, one, other = (float(WEIGHTS @ part) for part in (of_x * alone, of_x, alone))
    return both / (one * other) - 1.0 if one > 0.0 and other > 0.0 else 0.0


def _squares(base: State, function: Pointwise, z: Array) -> Array:
    """Return the squares of a function of a Gaussian tensor at standardised points."""
    return np.asarray(function(float(base.pooled_mean) + math.sqrt(base.pooled_var) * z) ** 2)
