"""How far second moments drift apart in stacks of layers without norms.

At finite width the second moment q of one input differs by chance from the mean over all inputs. A layer maps q to
F(q), E f(√q z)² relative to that at q = 1, or E (f(√q z) - m)² where the incoming mean is cancelled (AutoInit++). The
power of q that F is near 1 decides whether differences die out, stay or grow. For functions that are linear for small
and for large arguments (GELU, SiLU) it ends at 1 on both sides, so that deviations grow stepwise: ln q is followed from
layer to layer as a Gaussian, with E q = 1.
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
    """How far second moments have drifted apart after some layers in a row."""

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
            made = _response(function, std, cancelled, use.parameter in centred)
            growth, by_steps = _power(made, 1.0), not cancelled and _power(made, FAR / LARGER) < ENDS
            variance = _variance_after(made, before.variance) if by_steps else growth**2 * before.variance
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


def _response(function: Pointwise, std: float, cancelled: bool, sums_of_zero: bool) -> Callable[[float], float]:
    """Return F, up to a factor, as a function of q."""
    planned, _ = gaussian_moments(function, 0.0, std)

    def made(q: float) -> float:
        mean, second = gaussian_moments(function, 0.0, std * math.sqrt(q))
        taken = 0.0 if not cancelled else mean if sums_of_zero else planned
        return second - 2.0 * taken * mean + taken**2

    return made


def _power(made: Callable[[float], float], q: float) -> float:
    """Return the exponent of F between q and `LARGER` times q; 0 where F is not defined."""
    one, other = made(q), made(LARGER * q)
    if not math.isfinite(one + other) or min(one, other) <= 0.0:
        return 0.0
    return math.log(other / one) / math.log(LARGER)


def _variance_after(made: Callable[[float], float], variance: float) -> float:
    """Return Var(ln F(q)) for Gaussian ln q of this ``variance`` with E q = 1; 0 where F is not defined."""
    values = np.array([made(math.exp(math.sqrt(variance) * z - variance / 2.0)) for z in _NODES])
    if not np.isfinite(values).all() or values.min() <= 0.0:
        return 0.0
    logs = np.log(values)
    return float(_WEIGHTS @ (logs - _WEIGHTS @ logs) ** 2)


def _before(graph: Graph, value: int, found: Mapping[int, _Stray]) -> _Stray | None:
    """Return the drift at the layer that makes a value through functions, views and dropout alone; None without one."""
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
