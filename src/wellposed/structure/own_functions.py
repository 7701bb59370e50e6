"""Functions of one number that are written as several operators: quotients by what is made of the value itself, sums
with such, and exponentials of imaginary numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from wellposed.graphs import Graph, Node, Ref
from wellposed.operators.arithmetic import factors_of
from wellposed.operators.facts import facts_of
from wellposed.operators.schema import ref_of

FAR, FARTHER = 1e3, 1e5
"""Arguments between which a function that has saturated grows no more. Chosen."""
_EXP = frozenset({torch.ops.aten.exp.default, torch.ops.aten.exp_.default})
_POLAR = torch.ops.aten.polar.default
_COMPLEX = torch.ops.aten.complex.default
_SHARES = frozenset({torch.ops.aten.softmax.int, torch.ops.aten._softmax.default})


def ends_in(graph: Graph, node: Node, value: int, root: int, factor: float) -> bool:
    """Whether a node that reads a value is the last operator of a function of it that is written as several operators,
    or a softmax.

    Args:
        graph: from `wellposed.trace`.
        node: a reader of ``value``.
        value: ``factor`` times ``root``.
        root: the result of a contraction.
        factor: a number.
    """
    if node.op is _POLAR:
        return bool(node.args[1] == Ref(value) and node.args[0] != Ref(value))
    return node.op in _SHARES or _saturates(graph, node, value, root, factor)


def is_periodic(graph: Graph, node: Node) -> bool:
    """Whether a function is periodic: a wave, or an exponential of complex numbers."""
    turns = node.op in _EXP and graph.values[node.outputs[0]].dtype.is_complex
    return turns or node.op is _POLAR or facts_of(node.op).periodic


def is_of_one(node: Node) -> bool:
    """Whether each element of a node's result depends on one element of one operand, and on numbers."""
    plain = all(isinstance(argument, Ref | int | float | None) for argument in (*node.args, *node.kwargs.values()))
    return plain and len(node.inputs) == 1 and (facts_of(node.op).function or facts_of(node.op).elementwise)


def chain_between(graph: Graph, value: int, starts: Sequence[int]) -> list[Node]:
    """Return, in order, the nodes that compute a value from one of ``starts`` alone; none where that is not so."""
    nodes = list[Node]()
    while value not in starts:
        index = graph.values[value].node
        if index is None or not is_of_one(graph.nodes[index]):
            return []
        nodes.append(graph.nodes[index])
        value = nodes[-1].inputs[0]
    return nodes[::-1]


def made_of(chain: Sequence[Node], numbers: torch.Tensor) -> torch.Tensor:
    """Return the result of nodes in a row for ``numbers``."""
    for one in chain:
        numbers = one.op(*(numbers if isinstance(argument, Ref) else argument for argument in one.args), **one.kwargs)
    return numbers


def becomes_complex(node: Node, value: int) -> bool:
    """Whether a node uses a value as the imaginary part of a complex number."""
    return node.op is _COMPLEX and bool(node.args[1] == Ref(value) and node.args[0] != Ref(value))


def adds_its_own(graph: Graph, node: Node, value: int, root: int) -> bool:
    """Whether a node adds to a value a nonlinear function of the value: the envelope in the exponent of a wavelet
    (WIRE, Saragadam et al. 2023, arXiv 2301.05187).
    """
    others = [other for other in node.inputs if other != value]
    if len(facts_of(node.op).terms) != 2 or len(others) != 1:
        return False
    chain = chain_between(graph, others[0], (value, root))
    return any((facts_of(one.op).function and facts_of(one.op).active) or facts_of(one.op).raises for one in chain)


def _saturates(graph: Graph, node: Node, value: int, root: int, factor: float) -> bool:
    """Whether a node multiplies a value by a function of the value, or divides by one, such that the result is bounded
    on both sides: y / (1 + |y|), y / sqrt(1 + y²).
    """
    factors = factors_of(node)
    mine = [power for one, power in factors if one == Ref(value)]
    others = [(other, power) for one, power in factors if (other := ref_of(one)) not in (None, value)]
    if len(factors) != 2 or mine != [1.0] or not others or graph.values[value].dtype.is_complex:
        return False
    (other, power), far = others[0], torch.tensor([FAR, FARTHER, -FAR, -FARTHER], dtype=torch.float64)
    chain = [] if other is None else chain_between(graph, other, (value, root))
    if not chain:
        return False
    start = far / factor if chain[0].inputs[0] == root and value != root else far
    made = far * made_of(chain, start).double() ** power
    low, high = made[::2].abs(), made[1::2].abs()
    return bool(torch.isfinite(made).all() and (high <= 1.1 * low).all())
