"""Sums that the sum of their own weights divides: means, sum_n w_n v_n / sum_n w_n."""

from __future__ import annotations

import numpy as np

from wellposed.graphs import Graph
from wellposed.operators.facts import facts_of
from wellposed.operators.product import is_product
from wellposed.operators.views import is_copy
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.alignment import align
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.state import State, weakest
from wellposed.signals.integration import kernels
from wellposed.structure.bounds import bounds

CLIMBED = 8
"""Views and constants added that are climbed past to a sum. Chosen."""


def weighted_mean(call: Call, x: State, y: State) -> State | None:
    """Return x / y where x = sum_n w_n v_n, of mean 0, and y = sum_n w_n for weights w that are never negative; else
    None.

    Weights that are all larger make both larger alike, so that E x x' / E y y' stands for the second moments of the
    quotient: exact where the weights of one sum differ by a factor that all of them share.
    """
    if call.independent or kernels.nonzero(x.mean) or not _sums_with_weights(call.graph, *call.node.inputs[:2]):
        return None
    p, q, layout = align(x, y)
    level = float((q.mean**2 + q.var).mean())
    lengths = [max(n, m, min(2, size)) for n, m, size in zip(p.corr.shape, q.corr.shape, layout.lengths, strict=True)]
    of_x, of_y = kernels.promote(p.corr, lengths), kernels.promote(q.corr, lengths)
    of_y = of_y * kernels.autocorrelation(np.sqrt(q.var), lengths) + kernels.autocorrelation(q.mean, lengths)
    corr = np.clip(of_x * level / np.maximum(of_y, 1e-3 * level), -1.0, 1.0)
    made = make_state(
        call.shape(), 0.0, 1.0, gauss=True, tag=weakest(x.tag, y.tag, "approximate"), roots=x.roots | call.root()
    )
    if made.lengths != layout.lengths:
        return None
    var = p.var / np.maximum(q.mean**2 + q.var, 1e-300)
    return made.with_moments(var=var, corr=corr, finite_width_correlation=x.finite_width_correlation, spread=x.spread)


def _sums_with_weights(graph: Graph, total: int, weights: int) -> bool:
    """Whether the value ``total`` sums products with the nonnegative tensor whose plain sum is ``weights``."""
    top, below = (graph.values[_unshifted(graph, value)].node for value in (total, weights))
    if top is None or below is None or not is_product(graph.nodes[top].op) or len(graph.nodes[below].inputs) != 1:
        return False
    facts, summed = facts_of(graph.nodes[below].op), _unshifted(graph, graph.nodes[below].inputs[0])
    plain = facts.along == "sum" and facts.extent != "running"
    positive = (found := bounds(graph).get(summed)) is not None and found.low >= 0.0
    return plain and positive and summed in {_unshifted(graph, value) for value in graph.nodes[top].inputs}


def _unshifted(graph: Graph, value: int) -> int:
    """Return the value id behind views, copies and added numbers."""
    for _ in range(CLIMBED):
        at = graph.values[value].node
        if at is None:
            break
        node = graph.nodes[at]
        shifted = len(node.inputs) == 1 and facts_of(node.op).terms == (1.0, 1.0)
        if not (node.op.is_view or is_copy(node.op) or shifted):
            break
        value = node.inputs[0]
    return value
