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
from wellposed.signals.distributions.repeats import REPEATED
from wellposed.signals.distributions.state import Scaled, State
from wellposed.signals.integration.gaussian import WEIGHTS
from wellposed.signals.integration.kernels import Array

LEAST_SHARE = 0.05
"""Share of a state's second moment below which what made it is not followed back. Chosen for cost."""
LARGEST_MEAN = 0.1
"""Part of its second moment that the squared mean of a gated state has at most. Chosen."""
DEEPEST = 24
"""Most operators that are followed back. Chosen for cost: three or four for each step of a loop."""


_Z, _W = np.polynomial.hermite_e.hermegauss(15)
_W = _W / _W.sum()
"""Fifteen nodes: fourth powers of a sigmoid are integrated to 1e-6 at a standard deviation of 1, to 1e-3 at 2."""


def squares_in_common(call: Call, x: State, y: State) -> float:
    """Return κ = Cov(x², y²) / (E x² E y²) where one is a gate (a function of a weight that other steps of a loop meet
    too) and the other a state that such gates multiplied at earlier steps; 0 elsewhere. Bounded to [-0.9,
    `LARGEST_VARIANCE`].
    """
    if call.independent or not call.run.weights.repeated:
        return 0.0
    pairs = [(gate, state) for gate, state in ((x, y), (y, x)) if _may_be_gated(gate, state)]
    found = max((_common_to_squares(call, gate, state, 1.0, 0) for gate, state in pairs), key=abs, default=0.0)
    return min(max(found, -0.9), LARGEST_VARIANCE)


def _may_be_gated(gate: State, state: State) -> bool:
    """Whether ``gate`` may have multiplied ``state`` at an earlier step; False for signals with a large mean."""
    if gate.function is None or state.function is not None or not gate.roots & state.roots & ~REPEATED:
        return False
    return state.pooled_mean**2 <= LARGEST_MEAN * state.second_moment


def _common_to_squares(call: Call, gate: State, x: State, share: float, depth: int) -> float:
    """Return κ of ``gate`` and of the state x, followed back through products and sums to the gates that x is made of.

    ``share`` is the energy of x relative to that of the state first asked for, ``depth`` the number of operators
    followed.
    """
    if share < LEAST_SHARE or depth > DEEPEST or not gate.roots & x.roots & ~REPEATED:
        return 0.0
    if gate.serial == x.serial:
        return _variance_of_square(gate)
    if x.function is not None:
        return _of_functions(call, gate, x)
    factors = call.run.dependence.factors.get(x.serial)
    if factors is not None:
        one, other = (_common_to_squares(call, gate, factor, share, depth + 1) for factor in factors.states)
        return (1.0 + one) * (1.0 + other) - 1.0
    total, found = x.second_moment, 0.0
    for part, factor in _parts(call, x):
        own = min(factor * factor * part.second_moment / total, 1.0) if total > 0.0 else 0.0
        found += own * _common_to_squares(call, gate, part, share * own, depth + 1)
    return found


def _parts(call: Call, x: State) -> list[tuple[State, float]]:
    """Return the summands of x, each with its factor; none where a weight made x."""
    made = call.run.dependence.made.get(x.serial)
    if made is not None:
        return [] if any(made.raw) else [(part, 1.0) for part in made.operands]
    return [
        (link.parent, link.operate.factor)
        for link in x.links
        if isinstance(link.operate, Scaled) and not link.taps and not link.over
    ]


def _variance_of_square(gate: State) -> float:
    """Return Var(y²) / (E y²)²."""
    squares = marginal(gate) ** 2
    level = float(WEIGHTS @ squares)
    return float(WEIGHTS @ squares**2) / level**2 - 1.0 if level > 0.0 else 0.0


def _of_functions(call: Call, x: State, y: State) -> float:
    """Return κ of two functions of Gaussian tensors at one position."""
    key = ("squares", x.serial, y.serial)
    if key not in call.run.memo:
        call.run.memo[key] = _integrated(call, x, y)
    found: float = call.run.memo[key]
    return found


def _integrated(call: Call, x: State, y: State) -> float:
    """Return κ as `_of_functions` does, by quadrature over both Gaussians."""
    (first, f), (second, g) = x.gaussian_source(), y.gaussian_source()
    if f is None or g is None or first.lengths != second.lengths or not (first.gauss and second.gauss):
        return 0.0
    dims = tuple(range(len(first.lengths)))
    kernel = call.run.dependence.between(first, second, dims, dims)
    scale = math.sqrt(first.pooled_var * second.pooled_var)
    if kernel is None or not scale > 0.0:
        return 0.0
    r = min(max(float(kernel.ravel()[0]) / scale, -1.0), 1.0)
    of_x, of_y = _squares(first, f, _Z), _squares(second, g, r * _Z[:, None] + math.sqrt(1.0 - r * r) * _Z)
    alone = of_y @ _W
    both, one, other = (float(_W @ part) for part in (of_x * alone, of_x, alone))
    return both / (one * other) - 1.0 if one > 0.0 and other > 0.0 else 0.0


def _squares(base: State, function: Pointwise, z: Array) -> Array:
    """Return f(z)² for a function of the Gaussian tensor ``base`` at standardised points z."""
    return np.asarray(function(float(base.pooled_mean) + math.sqrt(base.pooled_var) * z) ** 2)
