"""Inputs that a model reads as positive: what divides, and what logarithms and roots are taken of."""

from __future__ import annotations

import math

import torch

from wellposed.graphs import Graph, Node, Ref
from wellposed.graphs.graph import once
from wellposed.operators.facts import facts_of
from wellposed.operators.views import is_view


@once
def positive_inputs(graph: Graph) -> frozenset[int]:
    """Return the real inputs that the model reads as positive, at once or past sums, multiples and bounds: divisors,
    and arguments of functions that are undefined below 0 or infinite at 0.
    """
    real = (v for v in graph.inputs if graph.values[v].is_signal and not graph.values[v].dtype.is_complex)
    return frozenset(value for value in real if value not in graph.known and _is_read_as_positive(graph, value))


@once
def probabilities(graph: Graph) -> frozenset[int]:
    """Return the inputs that a cross entropy takes as targets, which fails at numbers outside of 0 to 1."""
    targets = {
        node.args[1].value for node in graph.nodes if node.op in _OF_PROBABILITIES and isinstance(node.args[1], Ref)
    }
    for node in reversed(graph.nodes):
        if is_view(node.op) and not targets.isdisjoint(node.outputs):
            targets.add(node.inputs[0])
    return frozenset(targets.intersection(graph.inputs))


_OF_PROBABILITIES = (torch.ops.aten.binary_cross_entropy.default,)


def _is_read_as_positive(graph: Graph, value: int) -> bool:
    """Whether an input is read as a positive one, at once or past views, sums, multiples and bounds."""
    users, todo = graph.users(), [value]
    while todo:
        at = todo.pop()
        for node in (graph.nodes[index] for index in users.get(at, ())):
            if is_view(node.op) or facts_of(node.op).along == "sum" or _keeps_positive(node):
                todo += node.outputs
            elif _divides(node, at) or (math.isfinite(facts_of(node.op).domain.low) and _needs_positive(node)):
                return True
    return False


def _keeps_positive(node: Node) -> bool:
    """Whether a node adds a nonnegative number, multiplies by one, or bounds its argument below by one."""
    facts, rest = facts_of(node.op), [n for n in (*node.args[1:], *node.kwargs.values()) if n is not None]
    steady = facts.terms == (1.0, 1.0) or facts.powers or node.op.name().startswith("aten::clamp")
    return bool(steady) and all(isinstance(n, int | float) and n >= 0 for n in rest)


def _divides(node: Node, value: int) -> bool:
    """Whether a node divides by a value."""
    return facts_of(node.op).powers == (1.0, -1.0) and node.args[1] == Ref(value)


def _needs_positive(node: Node) -> bool:
    """Whether an elementwise function is finite at positive arguments, but not at 0 or at some negative ones."""
    rest = node.args[1:]
    if (not facts_of(node.op).function and not facts_of(node.op).raises) or any(isinstance(r, Ref) for r in rest):
        return False
    below, above = (node.op(torch.tensor(points), *rest, **node.kwargs) for points in ([0.0, -1.5, -2.5], [0.5, 2.5]))
    return not below.isfinite().all() and bool(above.isfinite().all())
