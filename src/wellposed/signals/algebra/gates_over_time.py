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
    """Return Cov(x², y²) / (E x² E y²) of a gate, a function of what a weight made that other steps of a loop meet too,
    and of a state that such gates have made at earlier steps, without much of a mean; 0 of others.
    """
    if call.independent or not call.run.weights.repeated:
        return 0.0
    pairs = [(gate, state) for gate, state in ((x, y), (y, x)) if _may_be_gated(gate, state)]
    found = max((_behind(call, gate, state, 1.0, 0) for gate, state in pairs), key=abs, default=0.0)
    return min(max(found, -0.9), LARGEST_VARIANCE)


def _may_be_gated(gate: State, state: State) -> bool:
    """Whether a gate may have made a state before: means, which have no squares of their own, count elsewhere."""
    if gate.function is None or state.function is not None or not gate.roots & state.roots & ~REPEATED:
        return False
    return state.pooled_mean**2 <= LARGEST_MEAN * state.second_moment


def _behind(call: Call, gate: State, x: State, share: float, depth: int) -> float:
    """Return the relative covariance of the squares of a gate and of a state x that is made of other gates.

    The part that x has in the state that was asked for is ``share``; ``depth`` operators were followed.
    """
    if share < LEAST_SHARE or depth > DEEPEST or not gate.roots & x.roots & ~REPEATED:
        return 0.0
    if gate.serial == x.serial:
        return _of_itself(gate)
    if x.function is not None:
        return _of_functions(call, gate, x)
    factors = call.run.dependence.factors.get(x.serial)
    if factors is not None:
        one, other = (_behind(call, gate, factor, share, depth + 1) for factor in factors.states)
        return (1.0 + one) * (1.0 + other) - 1.0
    total, found = x.second_moment, 0.0
    for part, factor in _parts(call, x):
        own = min(factor * factor * part.second_moment / total, 1.0) if total > 0.0 else 0.0
        found += own * _behind(call, gate, part, share * own, depth + 1)
    return found


def _parts(call: Call, x: State) -> list[tuple[State, float]]:
    """Return the states that x is a sum of, each with its factor; none of what a weight made."""
    made = call.run.dependence.made.get(x.serial)
    if made is not None:
        return [] if any(made.raw) else [(part, 1.0) for part in made.operands]
    return [
        (link.parent, link.operate.factor)
        for link in x.links
        if isinstance(link.operate, Scaled) and not link.taps and not link.over
    ]


def _of_itself(gate: State) -> float:
    """Return Var(y²) / (E y²)²."""
    squares = marginal(gate) ** 2
    level = float(WEIGHTS @ squares)
    return float(WEIGHTS @ squares**2) / level**2 - 1.0 if level > 0.0 else 0.0


def _of_functions(call: Call, x: State, y: State) -> float:
    """Return the relative covariance of the squares of two functions of Gaussian tensors at one position."""
    key = ("squares", x.serial, y.serial)
    if key not in call.run.memo:
        call.run.memo[key] = _integrated(call, x, y)
    found: float = call.run.memo[key]
    return found


def _integrated(call: Call, x: State, y: State) -> float:
    """Return what `_of_functions` does, by quadrature over both Gaussians."""
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
    """Return the squares of a function of a Gaussian tensor at standardised points."""
    return np.asarray(function(float(base.pooled_mean) + math.sqrt(base.pooled_var) * z) ** 2)
