"""Between which numbers the elements of a tensor lie, whatever the signals are: sums of exponentials, norms, gates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from wellposed.graphs import Graph, Node, Ref
from wellposed.graphs.graph import once
from wellposed.graphs.operators import traits
from wellposed.graphs.run import call_apart, dense
from wellposed.operators.arithmetic import factors_of, scaled_by, terms_of
from wellposed.operators.facts import ANY, POSITIVE, Bounds, facts_of
from wellposed.operators.product import is_product
from wellposed.operators.schema import named_arguments, ref_of
from wellposed.operators.views import is_view
from wellposed.structure.positive_inputs import positive_inputs


@once
def bounds(graph: Graph) -> dict[int, Bounds]:
    """Return, by value id, the bounds of nodes' results, from the definitions of operators and the bounds of their
    operands; inputs that are read as positive (`positive_inputs`) count as such.
    """
    found = dict.fromkeys(positive_inputs(graph), POSITIVE)
    for node in graph.nodes:
        if node.outputs and graph.values[node.outputs[0]].is_signal:
            result = _bounds_of_results(graph, node, found)
            found.update((value, result) for value in node.outputs if graph.values[value].is_signal)  # no indices
    return found


def _bounds_of_results(graph: Graph, node: Node, found: dict[int, Bounds]) -> Bounds:
    """Return the bounds of a node's results, from the first fact about the operator that gives any."""
    facts = facts_of(node.op)
    if facts.range != ANY:
        return facts.range
    return _by_what_is_read(graph, node, found) if _tells(node.op) else ANY


def _by_what_is_read(graph: Graph, node: Node, found: dict[int, Bounds]) -> Bounds:
    """Return the bounds of a node's results that follow from those of its operands."""
    facts = facts_of(node.op)
    if is_product(node.op) and not (facts.powers or facts.terms or facts.merges or facts.monotone):
        return POSITIVE if all(_argument(graph, Ref(value), found).low >= 0.0 for value in node.inputs) else ANY
    read = [_argument(graph, a, found) for a in _flat(node.args) if _is_number(graph, a)]
    if not read:
        return ANY
    arithmetic = _arithmetic(graph, node, found)
    if arithmetic is not None:
        return arithmetic
    if facts.monotone:
        return _monotone(graph, node, found)
    return _of_elements(graph, node, found, read) or _of_sums(graph, node, found, read)


@cache
def _tells(op: torch._ops.OpOverload) -> bool:
    """Whether bounds of operands may give bounds of an operator's results."""
    facts = facts_of(op)
    arithmetic = facts.raises or facts.powers or facts.terms or facts.monotone or facts.coefficients
    elements = facts.replaces or facts.pads or facts.picks or facts.merges or is_view(op) or traits(op).shape_only
    return bool(arithmetic or elements or is_product(op) or facts.along == "product")


def _of_elements(graph: Graph, node: Node, found: dict[int, Bounds], read: Sequence[Bounds]) -> Bounds | None:
    """Return the bounds of results that consist of, or average, the operands' elements; None for other operators."""
    facts, first = facts_of(node.op), read[0]
    if facts.replaces:
        return read[1] if len(read) > 1 else ANY
    if is_view(node.op) or traits(node.op).shape_only or facts.coefficients == "mean":
        return first
    if facts.pads:
        return _either(first, Bounds(*[float(named_arguments(node).get("value") or 0.0)] * 2))
    gathers = facts.picks or (facts.merges and facts.merges != "sum" and not facts.adds)
    return _merged(graph, node, found) if gathers else None


def _merged(graph: Graph, node: Node, found: dict[int, Bounds]) -> Bounds | None:
    """Return the bounds of elements that a node takes from several tensors."""
    merged = [_argument(graph, argument, found) for argument in scaled_by(node) if _is_number(graph, argument)]
    least = _least(graph, node) if facts_of(node.op).merges == "choice" else None
    if least is not None:
        merged[0] = Bounds(max(merged[0].low, least), merged[0].high)
    return _either(*merged) if merged else None


def _either(*those: Bounds) -> Bounds:
    """Return the smallest bounds that hold all of some bounds."""
    return Bounds(min(b.low for b in those), max(b.high for b in those))


def _of_sums(graph: Graph, node: Node, found: dict[int, Bounds], read: Sequence[Bounds]) -> Bounds:
    """Return the bounds of sums with nonnegative coefficients, and of products of nonnegative factors."""
    facts, first = facts_of(node.op), read[0]
    if facts.coefficients == "positive":
        return Bounds(0.0 if first.low >= 0.0 else -math.inf, 0.0 if first.high <= 0.0 else math.inf)
    signals = [_argument(graph, Ref(value), found) for value in node.inputs]
    products = is_product(node.op) or facts.along == "product"
    return POSITIVE if products and all(b.low >= 0.0 for b in signals) else ANY


def _monotone(graph: Graph, node: Node, found: dict[int, Bounds]) -> Bounds:
    """Return the bounds of a function that never falls, or never rises: its own, or else by those of what it reads."""
    facts = facts_of(node.op)
    own = _between(node, lambda _: ANY)
    if facts.function and own != ANY and len(facts.scaled) < 2:
        return own
    return _between(node, lambda argument: _argument(graph, argument, found))


def _between(node: Node, bounds_of: Callable[[Ref], Bounds]) -> Bounds:
    """Return the values of a monotone function at the bounds of its arguments; `ANY` where it has none there."""
    domain, ends = facts_of(node.op).domain, []
    for end in (0, 1):
        at = [
            torch.tensor(min(max(bounds_of(a)[end], domain.low), domain.high), dtype=torch.float64)
            if isinstance(a, Ref)
            else a
            for a in node.args
        ]
        ends.append(float(call_apart(node.op, at, node.kwargs)[0]))
    return ANY if any(map(math.isnan, ends)) else Bounds(*sorted(ends))


def _least(graph: Graph, node: Node) -> float | None:
    """Return c for a ``where(x > c, x, ...)`` (a softplus that a model writes itself); None for others."""
    condition, chosen = (ref_of(argument) for argument in node.args[:2])
    at = None if condition is None else graph.values[condition].node
    if at is None or chosen is None:
        return None
    test = graph.nodes[at]
    same = facts_of(test.op).above and test.inputs == (chosen,) and len(test.args) == 2
    return float(test.args[1]) if same and isinstance(test.args[1], (int, float)) else None


def _arithmetic(graph: Graph, node: Node, found: dict[int, Bounds]) -> Bounds | None:
    """Return the bounds of a sum, a product, a quotient or a power of numbers; None of others."""
    factors = [(_argument(graph, argument, found), power) for argument, power in factors_of(node)]
    if len(factors) == 1:
        ((x, power),) = factors
        return POSITIVE if x.low >= 0.0 or power % 2 == 0 else ANY
    if factors:
        (x, _), (y, power) = factors
        if power > 0.0:
            return _times(x, y)
        return POSITIVE if x.low >= 0.0 and y.low >= 0.0 else ANY
    terms = [_times(_argument(graph, argument, found), Bounds(factor, factor)) for argument, factor in terms_of(node)]
    return Bounds(sum(b.low for b in terms), sum(b.high for b in terms)) if terms else None


def _times(x: Bounds, y: Bounds) -> Bounds:
    """Return the bounds of products."""
    ends = [a * b if a and b else 0.0 for a in x for b in y]
    return Bounds(min(ends), max(ends))


def _flat(args: Any) -> list[Any]:
    if isinstance(args, (list, tuple)):
        return [item for entry in args for item in _flat(entry)]
    return [args]


def _is_number(graph: Graph, argument: Any) -> bool:
    if isinstance(argument, Ref):
        return graph.values[argument.value].is_signal
    return isinstance(argument, float) or (isinstance(argument, int) and not isinstance(argument, bool))


def _argument(graph: Graph, argument: Any, found: dict[int, Bounds]) -> Bounds:
    """Return the bounds of a number, of a value that was met before, or of a known tensor; else no bounds."""
    if not isinstance(argument, Ref):
        return Bounds(float(argument), float(argument))
    value = argument.value
    known = graph.known.get(value)
    if known is None or not known.numel() or known.is_complex():
        return found.get(value, ANY)
    low, high = torch.aminmax(dense(known))
    return Bounds(float(low), float(high))
