"""How far second moments stray in stacks of layers without norms.

Where layers have finite width, the second moment q of one input differs from the mean over all by chance. A layer makes
F(q) of it, F(q) being E f(√q z)² over the same at q = 1, or E (f(√q z) - m)² where the incoming mean is cancelled
(AutoInit++), and the power of q that this is decides whether the difference dies out, stays or grows. Of functions that
are straight for small and for large arguments (GELU, SiLU) it ends at 1 on both sides, so that deviations grow by
steps: ln q is followed from layer to layer as a Gaussian, q having mean 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from wellposed.graphs import Graph, Node
from wellposed.operators.contraction import Contraction
from wellposed.operators.facts import facts_of
from wellposed.operators.views import is_view
from wellposed.signals.distributions.functions import Pointwise
from wellposed.signals.integration.gaussian import gaussian_moments

STRAYED, STRAYED_BY_STEPS = 3.0, 5.0
"""Standard deviations of an input's second moment, in octaves, from which a plan warns: where deviations grow without
end, and where they grow by steps. Chosen: as between draws; and on trainings, where stacks of GELU and SiLU up to 4.7
learnt as well as such of ReLU, and those from 5.6 on learnt nothing."""
GROWS = 1.005
"""Power from which on deviations count as growing. Chosen: above the rounding of quadrature."""
LARGER, FAR = 4.0, 256.0
"""Second moments, relative to the one that is planned: up to which F is taken as a power, and at which that has ended.
Chosen."""
ENDS = 1.25
"""Power at `FAR` up to which deviations grow by steps; that of squares is 2. Chosen."""
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(9)
_WEIGHTS /= _WEIGHTS.sum()


class _Stray(NamedTuple):
    """How far second moments have strayed after some layers in a row."""

    variance: float
    layers: int
    growth: float
    bound: float


def straying(
    graph: Graph,
    uses: Collection[Contraction],
    functions: Mapping[int, tuple[Pointwise, float, bool]],
    centred: Collection[str],
    told: Collection[str],
) -> Iterator[str]:
    """Yield one warning that names the layer where second moments have strayed furthest, its depth and the growth.

    Args:
        graph: from `wellposed.trace`.
        uses: its contractions.
        functions: at nodes that functions of a Gaussian enter, the function, the standard deviation of that, and
            whether its mean is cancelled.
        centred: the weights whose sums are 0, which cancel any mean; the others cancel the one that is predicted.
        told: names of the signals that are said to vary between weight draws already.
    """
    found: dict[int, _Stray] = {}
    for use in uses:
        before = _before(graph, use.data, found)
        noise = 2.0 / max(use.fan_in, 1)
        if use.node in functions and before is not None:
            function, std, cancelled = functions[use.node]
            made = _made(function, std, cancelled, use.parameter in centred)
            growth, by_steps = _power(made, 1.0), not cancelled and _power(made, FAR / LARGER) < ENDS
            variance = _after(made, before.variance) if by_steps else growth**2 * before.variance
            bound = min(before.bound, STRAYED_BY_STEPS if by_steps else STRAYED)
            found[use.node] = _Stray(variance + noise, before.layers + 1, max(before.growth, growth), bound)
        else:
            found[use.node] = _Stray(noise, 1, 0.0, STRAYED_BY_STEPS)
    worst = max(found, key=lambda index: found[index].variance, default=None)
    if worst is None or graph.nodes[worst].name in told:
        return
    stray = found[worst]
    octaves = math.sqrt(stray.variance) / math.log(2.0)
    if octaves > stray.bound and stray.growth > GROWS:
        centring = " (center=True)" if functions[worst][2] else ""
        yield (
            f"{stray.layers} layers in a row each raise what second moments differ by chance to the power "
            f"{stray.growth:.3g}{centring}: at {graph.nodes[worst].name} those of single inputs vary by {octaves:.2g} "
            "octaves. Norms, residual branches, wider layers or bounded functions hold them"
        )


def _made(function: Pointwise, std: float, cancelled: bool, sums_of_zero: bool) -> Callable[[float], float]:
    """Return F(q), but for a factor, as a function of q."""
    planned, _ = gaussian_moments(function, 0.0, std)

    def made(q: float) -> float:
        mean, second = gaussian_moments(function, 0.0, std * math.sqrt(q))
        taken = 0.0 if not cancelled else mean if sums_of_zero else planned
        return second - 2.0 * taken * mean + taken**2

    return made


def _power(made: Callable[[float], float], q: float) -> float:
    """Return the power of q that F(q) is from there to `LARGER` times it; 0 for a function that is not defined here."""
    one, other = made(q), made(LARGER * q)
    if not math.isfinite(one + other) or min(one, other) <= 0.0:
        return 0.0
    return math.log(other / one) / math.log(LARGER)


def _after(made: Callable[[float], float], variance: float) -> float:
    """Return the variance of ln F(q) for ln q of some variance, q having mean 1; 0 where F is not defined."""
    values = np.array([made(math.exp(math.sqrt(variance) * z - variance / 2.0)) for z in _NODES])
    if not np.isfinite(values).all() or values.min() <= 0.0:
        return 0.0
    logs = np.log(values)
    return float(_WEIGHTS @ (logs - _WEIGHTS @ logs) ** 2)


def _before(graph: Graph, value: int, found: Mapping[int, _Stray]) -> _Stray | None:
    """Return how far the layer strayed that makes a value by functions, views and dropout alone; None without one."""
    while (index := graph.values[value].node) is not None:
        if index in found:
            return found[index]
        node = graph.nodes[index]
        if not _is_function(node) or len(set(node.inputs)) != 1:
            return None
        value = node.inputs[0]
    return None


def _is_function(node: Node) -> bool:
    facts = facts_of(node.op)
    return is_view(node.op) or facts.function or facts.elementwise
