"""Rule ``paths``: the learning rate from the depth of every path.

Source: Chen, Wu, Wang & Hanin, *Principled Architecture-aware Scaling of Hyperparameters* (arXiv 2402.17440), eq. 8 and
eq. 9: η ∝ (Σ_p L_p³)^(-1/2) q⁻¹, with L_p the number of activations on path p and q the kernel size.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Literal, NamedTuple

from wellposed.errors import OptionError, RateError
from wellposed.graphs import Graph
from wellposed.options import check_choice, check_positive
from wellposed.rates.rate import RelativeRate
from wellposed.structure.branches import END, branches, kernel_sizes

MANY = 100
"""Paths above which the rule says little: it counts shared and weak ones in full."""

Kernel = Literal["side", "taps", "none"]
_START = -2


class Moments(NamedTuple):
    """Number of paths, and the sums over them of L, L² and L³."""

    paths: int
    depths: int
    squares: int
    cubes: int

    def __add__(self, other: object) -> Moments:
        """Return the moments of two sets of paths together."""
        if not isinstance(other, Moments):
            return NotImplemented
        return Moments(*(a + b for a, b in zip(self, other, strict=True)))

    def deeper(self, by: int) -> Moments:
        """Return the moments when every path is longer by ``by``: Σ (L + r)^k, by the binomial theorem."""
        if by == 0:
            return self
        n, a, b, c = self
        return Moments(n, a + by * n, b + by * (2 * a + by * n), c + by * (3 * b + by * (3 * a + by * n)))


NOTHING = Moments(0, 0, 0, 0)


def moments(edges: Iterable[tuple[Hashable, Hashable, int]], source: Hashable, sink: Hashable) -> Moments:
    """Return the moments of L over all paths from ``source`` to ``sink``, in exact integers.

    Four numbers travel along every edge, so that the cost is linear in the edges while the paths may be as many as 2
    to their number. Parallel edges are separate paths.

    Args:
        edges: (from, to, activations on the edge), in any order.
        source: where paths begin.
        sink: where they end.

    Raises:
        RateError: the edges contain a cycle.
    """
    entering: dict[Hashable, list[tuple[Hashable, int]]] = {}
    for a, b, activations in edges:
        entering.setdefault(b, []).append((a, activations))
    try:
        order = list(TopologicalSorter({b: [a for a, _ in sources] for b, sources in entering.items()}).static_order())
    except CycleError as error:
        raise RateError(f"the edges contain a cycle: {' -> '.join(map(str, error.args[1]))}") from error
    totals: dict[Hashable, Moments] = {source: Moments(1, 0, 0, 0)}
    for vertex in order:
        total = totals.get(vertex, NOTHING)
        for a, activations in entering.get(vertex, ()):
            total += totals[a].deeper(activations)
        totals[vertex] = total
    return totals.get(sink, NOTHING)


def path_factor(
    edges: Iterable[tuple[Hashable, Hashable, int]],
    source: Hashable,
    sink: Hashable,
    *,
    beside: int = 1,
    base: Sequence[int] = (1,),
    kernel: float = 1.0,
) -> float:
    """Return what the authors' code multiplies a base's learning rate by, for a graph or a cell given by its edges.

    The factor is (Σ_p L_p³ / Σ_b L_b³)^(-1/2) / q. For a cell of NAS-Bench-201 their L_p is 1 and the convolutions of
    the cell's path p, their base has one path of depth 1, and kernels do not count: the defaults. A cell of skips alone
    has L_p = 1. For their graphs of perceptrons and convolutions L_p is 3 and the weighted edges (``beside=3``,
    ``base=(3,)``), and q is a third of the kernel's side. `paths` counts the whole traced net instead.

    Args:
        edges: (from, to, weighted layers on the edge), in any order; those that the code calls "none" are left out.
        source: where paths begin.
        sink: where they end.
        beside: weighted layers that every path has beside those of its edges.
        base: L of every path of the base, whose rate is known.
        kernel: q.

    Raises:
        RateError: the edges contain a cycle, or lead from ``source`` to ``sink`` nowhere; a path has no layer.
        OptionError: a base without paths or with one that is not above 0, or a ``kernel`` that is no positive number.

    Source: arXiv 2402.17440, eq. 8 and 9, as in its published code.
    """
    check_positive(kernel=kernel)
    if not base or min(base) < 1:
        raise OptionError(f"base holds the depth of each path of the base net, 1 or more, received {tuple(base)}")
    total = moments(edges, source, sink).deeper(beside)
    if total.cubes == 0:
        raise RateError(
            f"no path with a layer leads from {source!r} to {sink!r}, so there is no rate: "
            + ("give beside=1, what every path has beside its edges" if total.paths else "the cell passes nothing on")
        )
    return math.sqrt(sum(depth**3 for depth in base) / total.cubes) / kernel


def paths(graph: Graph, *, exponent: float = 1.0, kernel: Kernel = "side") -> RelativeRate:
    """Return the relative rate (Σ_p L_p³)^(-1/2) q⁻¹ of a graph (eq. 8 and 9), to the power ``exponent``.

    Paths are counted as `wellposed.structure.branches` says: every way from an input to an output is one,
    identity edges included, dead ones and those times a constant 0 left out; L_p is the number of activations on it.

    Args:
        graph: from `wellposed.trace`.
        exponent: 1 for the paper's rule; measured rates followed weaker powers (about 1/2 of the criterion).
        kernel: what q is for a k × k convolution: ``"side"`` k, as in the authors' experiments; ``"taps"`` k², what
            their derivation gives in two dimensions; ``"none"`` 1 (eq. 8). Where kernels differ, their geometric mean.

    Returns:
        The rate with ``figures``: log10_paths, log10_sum_cubes, mean_depth, kernel, exponent.

    Raises:
        RateError: no path leads from an input to an output, or none of them has an activation.
        OptionError: an unknown ``kernel``, or an ``exponent`` that is no positive number.
    """
    check_choice("kernel", kernel, ("side", "taps", "none"))
    check_positive(exponent=exponent)
    structure = branches(graph)
    edges = [(edge.source, edge.target, edge.activations) for edge in structure.edges]
    edges += [(_START, start, 0) for start in structure.starts]
    total = moments(edges, _START, END)
    if total.paths == 0:
        raise RateError(
            f"{graph.model}: no path leads from an input to an output, so there is nothing that a learning rate could "
            "scale with; the outputs depend on no input, or only times 0"
        )
    if total.cubes == 0:
        raise RateError(
            f"{graph.model}: no path has an activation, and eq. 8 gives no rate for a linear model; use rule='kernel'"
        )
    q = 1.0 if kernel == "none" else _geometric_mean(kernel_sizes(structure, taps=kernel == "taps"))
    cubes = math.log10(total.cubes)
    log = -exponent * (0.5 * cubes + math.log10(q))
    if log < -300.0:
        raise RateError(
            f"{graph.model}: the sum over its paths is 10^{cubes:.0f}, and the rate 10^{log:.0f} is less than a number "
            "can hold; eq. 8 says nothing of so many paths: use rule='kernel'"
        )
    power = "" if exponent == 1.0 else f", all to the power {exponent:g}"
    return RelativeRate(
        value=10.0**log,
        rule="paths",
        reason=f"(Σ L³)^(-1/2) / q over {_count(total.paths)} with Σ L³ = {_number(total.cubes)}, q = {q:.4g}{power} "
        "(arXiv 2402.17440, eq. 8 and 9)",
        figures={
            "log10_paths": math.log10(total.paths),
            "log10_sum_cubes": cubes,
            "mean_depth": total.depths / total.paths,
            "kernel": q,
            "exponent": float(exponent),
        },
        warnings=_warnings(total),
    )


def _geometric_mean(sizes: tuple[float, ...]) -> float:
    return math.exp(sum(map(math.log, sizes)) / len(sizes)) if sizes else 1.0


def _number(n: int) -> str:
    return f"{n:,}" if n < 10**9 else f"10^{math.log10(n):.4g}"


def _count(n: int) -> str:
    return "1 path" if n == 1 else f"{_number(n)} paths"


def _warnings(total: Moments) -> tuple[str, ...]:
    """Return a warning where more than `MANY` paths are counted."""
    if total.paths <= MANY:
        return ()
    return (
        f"{_count(total.paths)}: eq. 8 counts every path in full, shared and weak ones too, and is far too steep above "
        f"about {MANY}; rule='kernel' needs no paths",
    )
