"""Fourier transforms and complex numbers: what operators do to them, no statistics.

The signal of a complex tensor is |z|: its second moment is E|z|², and real and imaginary part have half of it each.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from wellposed.graphs import Graph, Node
from wellposed.graphs.operators import traits
from wellposed.operators.facts import facts_of
from wellposed.operators.product import is_product
from wellposed.operators.schema import named_arguments, plain_name, ref_of
from wellposed.operators.views import view_of


def is_complex(graph: Graph, node: Node) -> bool:
    """Whether a node reads or makes complex numbers."""
    return any(graph.values[value].dtype.is_complex for value in (*node.inputs, *node.outputs))


def holds_for_complex(graph: Graph, node: Node) -> bool:
    """Whether the operator's rule holds for complex numbers as well: linear ones, and those made for them."""
    facts, effects = facts_of(node.op), traits(node.op)
    made = effects.fills or effects.factory
    known = facts.linear or facts.modulus or made or turns(graph, node)
    return bool(known) or is_product(node.op) or view_of(graph, node) is not None


def turns(graph: Graph, node: Node) -> bool:
    """Whether a node is exp(i θ) of a real θ."""
    return plain_name(node.op).rstrip("_") == "exp" and _is_imaginary(graph, node.inputs[0])


def imaginary_operand(graph: Graph, node: Node) -> int | None:
    """Return which operand of a sum is i y, beside a real x, for a real y; None of other sums."""
    operands, terms = node.inputs, facts_of(node.op).terms
    if len(operands) != 2:
        return None
    for at, others in ((1, ((1.0, 1.0), (1.0, -1.0))), (0, ((1.0, 1.0),))):
        real = not graph.values[operands[1 - at]].dtype.is_complex
        if terms in others and real and _is_imaginary(graph, operands[at]):
            return at
    return None


def _is_imaginary(graph: Graph, value: int) -> bool:
    """Whether a complex value is a real one times a number whose real part is 0, or a multiple or view of such."""
    index = graph.values[value].node
    if index is None or not graph.values[value].dtype.is_complex:
        return False
    node = graph.nodes[index]
    if not (facts_of(node.op).powers or facts_of(node.op).terms == (-1.0,) or view_of(graph, node) is not None):
        return False
    factors, others = _complex_operands(graph, node)
    if len(factors) + len(others) != 1:
        return False
    return _is_imaginary(graph, others[0]) if others else not bool(factors[0].real.any())


def _complex_operands(graph: Graph, node: Node) -> tuple[list[torch.Tensor], list[int]]:
    """Return a node's known complex operands, and the values of its other complex ones."""
    complexes = [v for v in node.inputs if graph.values[v].dtype.is_complex]
    numbers = [torch.as_tensor(argument) for argument in node.args if isinstance(argument, complex)]
    known = [graph.known[v] for v in complexes if v in graph.known]
    return numbers + known, [v for v in complexes if v not in graph.known]


_TRANSFORM = re.compile(r"fft_(i?)(r?)fft[2n]?")


@dataclass(frozen=True, slots=True)
class Transform:
    """A Fourier transform.

    Attributes:
        axes: that are transformed.
        lengths: of the whole spectrum along each.
        taken: length along each that the transform takes; what is longer is cut, what is shorter filled up with zeros.
        inverse: whether it leads back from a spectrum.
        real: whether the last of the axes holds the half of a spectrum that belongs to real numbers (that a forward
            transform makes, or an inverse one takes).
        scale: factor on the sum of exponentials.
    """

    axes: tuple[int, ...]
    lengths: tuple[int, ...]
    taken: tuple[int, ...]
    inverse: bool
    real: bool
    scale: float


def transform_of(graph: Graph, node: Node) -> Transform | None:
    """Describe a node that transforms axes; None of others."""
    kind = _TRANSFORM.fullmatch(plain_name(node.op))
    if kind is None:
        return None
    inverse, real = (bool(letter) for letter in kind.groups())
    source = ref_of(node.args[0])
    assert source is not None
    before, after = graph.values[source].shape, graph.values[node.outputs[0]].shape
    axes, asked = _transformed_axes(node, len(before))
    half = axes[-1] if real else -1
    whole = [after[a] if inverse and a == half else before[a] for a in axes]
    lengths = tuple(size if size > 0 else length for size, length in zip(asked, whole, strict=True))
    taken = tuple(n // 2 + 1 if inverse and a == half else n for a, n in zip(axes, lengths, strict=True))
    return Transform(axes, lengths, taken, inverse, real, math.prod(lengths) ** -_power(node, inverse))


def _power(node: Node, inverse: bool) -> float:
    """Return the power of the number of elements by which a transform divides."""
    of_forward = {"backward": 0.0, "ortho": 0.5, "forward": 1.0}[str(named_arguments(node).get("norm") or "backward")]
    return 1.0 - of_forward if inverse else of_forward


def _transformed_axes(node: Node, rank: int) -> tuple[tuple[int, ...], list[int]]:
    """Return the axes that a transform's arguments name, and the lengths asked for along each: -1 for its own."""
    named = named_arguments(node)
    sizes, dims = (_listed(argument) for argument in (named.get("s", named.get("n")), named.get("dim")))
    if dims is None:
        dims = list(range(-(rank if sizes is None else len(sizes)), 0))
    return tuple(d % rank for d in dims), [-1] * len(dims) if sizes is None else sizes


def _listed(argument: int | Sequence[int] | None) -> list[int] | None:
    """Return a number or a list as a list; None for none."""
    return None if argument is None else [argument] if isinstance(argument, int) else [int(size) for size in argument]


def belongs_to_real(graph: Graph, value: int) -> bool:
    """Whether a half spectrum is that of real numbers still: no complex number has multiplied it."""
    while graph.values[value].dtype.is_complex:
        index = graph.values[value].node
        if index is None:
            return False
        node = graph.nodes[index]
        transform = transform_of(graph, node)
        if transform is not None and transform.real:
            return True
        complexes = [v for v in node.inputs if graph.values[v].dtype.is_complex]
        if len(complexes) != 1 or not holds_for_complex(graph, node):
            return False
        value = complexes[0]
    return True


def inverse_after(graph: Graph, value: int, users: Mapping[int, Sequence[int]], most: int = 24) -> Node | None:
    """Return the inverse transform that a spectrum leads to, through nothing but views, sums and writes; else None."""
    found: set[int] = set()
    todo, seen = [value], {value}
    while todo:
        for index in users.get(todo.pop(), ()):
            node = graph.nodes[index]
            transform = transform_of(graph, node)
            if transform is not None and transform.inverse:
                found.add(index)
                continue
            if not _passes(graph, node):
                return None
            new = [v for v in node.outputs if v not in seen]
            seen.update(new)
            todo.extend(new)
            if len(seen) > most:
                return None
    return graph.nodes[found.pop()] if len(found) == 1 else None


def _passes(graph: Graph, node: Node) -> bool:
    """Whether a node moves elements, adds them to others or writes them among others."""
    facts = facts_of(node.op)
    moved = facts.replaces or facts.pads or facts.picks == "place" or view_of(graph, node) is not None
    return moved or facts.terms == (1.0, 1.0) or facts.merges in ("cat", "stack", "write", "scatter")
