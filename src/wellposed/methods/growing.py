"""How far second moments stray in stacks of layers without norms.

Where layers have finite width, the second moment q of one input differs from the mean over all by chance. A layer makes
F(q) of it, F(q) being E f(√q z)² over the same at q = 1, or E (f(√q z) - m)² where the incoming mean is cancelled
(AutoInit++), and the power of q that this is decides whether the difference dies out, stays or grows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from wellposed.graphs import Graph, Node
from wellposed.operators.contraction import Contraction
from wellposed.operators.facts import facts_of
from wellposed.operators.views import is_view
from wellposed.signals.distributions.functions import Pointwise
from wellposed.signals.integration.gaussian import gaussian_moments

STRAYED = 3.0
"""Standard deviation of an input's second moment, in octaves, from which a plan warns. Chosen: as between draws."""
GROWS = 1.005
"""Power from which on deviations count as growing. Chosen: above the rounding of quadrature."""
LARGER = 4.0
"""Second moment, relative to the one that is planned, up to which F is taken as a power. Chosen."""


class _Stray(NamedTuple):
    """How far second moments have strayed after some layers in a row."""

    variance: float
    layers: int
    growth: float


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
            growth = _power(function, std, cancelled, use.parameter in centred)
            layers, largest = before.layers + 1, max(before.growth, growth)
            found[use.node] = _Stray(growth**2 * before.variance + noise, layers, largest)
        else:
            found[use.node] = _Stray(noise, 1, 0.0)
    worst = max(found, key=lambda index: found[index].variance, default=None)
    if worst is None or graph.nodes[worst].name in told:
        return
    stray = found[worst]
    octaves = math.sqrt(stray.variance) / math.log(2.0)
    if octaves > STRAYED and stray.growth > GROWS:
        centring = " (center=True)" if functions[worst][2] else ""
        yield (
            f"{stray.layers} layers in a row each raise what second moments differ by chance to the power "
            f"{stray.growth:.3g}{centring}: at {graph.nodes[worst].name} those of single inputs vary by {octaves:.2g} "
            "octaves. Norms, residual branches, wider layers or bounded functions hold them"
        )


def _power(function: Pointwise, std: float, cancelled: bool, sums_of_zero: bool) -> float:
    """Return the power of q that F(q) is between 1 and `LARGER`."""
    mean, second = gaussian_moments(function, 0.0, std)
    wide_mean, wide_second = gaussian_moments(function, 0.0, std * math.sqrt(LARGER))
    if not math.isfinite(second + wide_second):
        return 0.0  # a function that is not defined here
    if cancelled:
        taken = wide_mean if sums_of_zero else mean
        second, wide_second = second - mean**2, wide_second - 2.0 * taken * wide_mean + taken**2
    return math.log(wide_second / second) / math.log(LARGER) if second > 0.0 and wide_second > 0.0 else 0.0


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
