"""Signals that meet products of themselves: what a value is a product of, past views, copies and known factors."""

from __future__ import annotations

from wellposed.graphs import Node
from wellposed.operators.facts import facts_of
from wellposed.operators.product import is_product
from wellposed.operators.views import is_copy
from wellposed.signals.context.call import Pass
from wellposed.signals.sampling.joint_sources import CLIMBED_FOR_SHAPE, is_constant, share_sources


def is_of_products(run: Pass, value: int) -> bool:
    """Whether a value is a product of two signals, seen through views, copies and known factors."""
    return len(_factors(run, value)) > 1


def _factors(run: Pass, value: int) -> list[int]:
    """Return the operands, without constants, of the product that a value is behind what `_unscaled` looks through;
    none for other values, and for results of weights.
    """
    at = run.graph.values[_unscaled(run, value)].node
    if at is None or at in run.weights.weight_at or not is_product(run.graph.nodes[at].op):
        return []
    return [v for v in run.graph.nodes[at].inputs if not is_constant(run, v)]


def _unscaled(run: Pass, value: int) -> int:
    """Return the value id behind views, copies and multiplications by known numbers."""
    for _ in range(CLIMBED_FOR_SHAPE):
        at = run.graph.values[value].node
        if at is None or at in run.weights.weight_at:
            break
        node = run.graph.nodes[at]
        signals = [v for v in node.inputs if not is_constant(run, v)]
        plain = node.op.is_view or is_copy(node.op) or facts_of(node.op).powers
        if is_product(node.op) or len(signals) != 1 or not plain:
            break
        value = signals[0]
    return value


def meets_its_sum(run: Pass, node: Node) -> bool:
    """Whether a node multiplies a signal by a weighted sum of the signal's own rows (keys by the mean of keys that a
    query read, x xᵀ x): each row is in the sum that it meets.
    """
    if not is_product(node.op) or len(node.inputs) != 2 or not share_sources(run, node.inputs):
        return False
    first, second = node.inputs
    pairs = ((first, second), (second, first))
    return any(_unscaled(run, own) in [_unscaled(run, v) for v in _factors(run, total)] for total, own in pairs)
