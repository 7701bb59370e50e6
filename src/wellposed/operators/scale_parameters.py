"""From parameters to effective weights: which parameter scales a value linearly.

A value follows a parameter through views, casts, picks, masks, factors, sums with itself and other linear maps whose
other operands do not change with that parameter's scale. What is no linear function of one parameter has no scale
parameter. A product or a sum of several is a `CompositeScale`, which has a scale of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from wellposed.graphs import Graph, Node
from wellposed.graphs.graph import once
from wellposed.graphs.operators import traits
from wellposed.operators.arithmetic import factors_of
from wellposed.operators.facts import facts_of
from wellposed.operators.norms import WEIGHT_NORMS
from wellposed.operators.scale_reading import CompositeScale, Found, Reader, ScaleParameter
from wellposed.operators.scale_rules import reading_of
from wellposed.operators.schema import ref_of
from wellposed.operators.views import view_of


def scale_parameters(graph: Graph) -> dict[int, ScaleParameter]:
    """Return, by value id, the parameter that scales each parameter-derived value linearly.

    Of a sum with what has no scale (mu + sigma eps), the parameter that scales its other part counts.
    """
    kept = _UNCHANGING.get()
    if kept is None:
        return _analysed(Found(graph, parameter_values(graph), joining=False)).scale_parameters
    if kept.get("graph") is not graph:
        found = _analysed(Found(graph, parameter_values(graph), joining=False)).scale_parameters
        kept.update(graph=graph, found=found)
    return dict(kept["found"])


_UNCHANGING: ContextVar[dict[str, Any] | None] = ContextVar("unchanging", default=None)
"""The scale parameters of one graph, in a block in which no values change."""


@contextmanager
def unchanging() -> Iterator[None]:
    """Run a block in which no parameters, buffers and constants change, which scale parameters may depend on: those of
    one graph are found once.
    """
    token = _UNCHANGING.set({})
    try:
        yield
    finally:
        _UNCHANGING.reset(token)


def composite_scales(
    graph: Graph, fixed: frozenset[int]
) -> tuple[dict[int, ScaleParameter], dict[str, CompositeScale]]:
    """Return the scale parameters by value id, with those of composites (`key_of`), and the composites by key.

    Args:
        graph: from `wellposed.trace`.
        fixed: what `parameter_values` returns.
    """
    found = _analysed(Found(graph, fixed, joining=True))
    return found.scale_parameters, found.composites


def _analysed(found: Found) -> Found:
    """Go through the graph, and add what every node that depends on parameters and constants alone tells."""
    own = _own(found.graph)
    found.scale_parameters.update(own)
    found.sources.update({value: frozenset((scaled.parameter,)) for value, scaled in own.items()})
    for node in found.graph.nodes:
        if not node.outputs or node.outputs[0] not in found.fixed:
            continue
        entering = frozenset[str]().union(*(found.sources.get(value, frozenset()) for value in node.inputs))
        found.sources.update(dict.fromkeys(node.outputs, entering))
        if traits(node.op).random or not found.noisy.isdisjoint(node.inputs):
            found.noisy.update(node.outputs)
        if not any(value in found.scale_parameters or value in found.sizes for value in node.inputs):
            continue
        _note_size(found, node)
        for out, scaled in zip(node.outputs, _of_results(Reader(found, node)), strict=False):
            if scaled is not None:
                found.scale_parameters[out] = scaled
    return found


@once
def _own(graph: Graph) -> dict[int, ScaleParameter]:
    """Return of each parameter, by value id, that it scales itself."""
    return {
        parameter.value: ScaleParameter(name, tuple(range(len(parameter.shape))))
        for name, parameter in graph.parameters.items()
    }


def _note_size(found: Found, node: Node) -> None:
    """Follow what is proportional to a weight without being one: its largest element, and what that divides."""
    facts, out, first = facts_of(node.op), node.outputs[0], ref_of(node.args[0]) if node.args else None
    own = None if first is None else found.sizes.get(first) or found.name(first)
    alone = facts.scaled == ("self",) and not facts.linear
    if traits(node.op).factory:  # of the shape of a weight, and nothing else of it
        found.sources[out] = frozenset()
    elif own is None:
        return
    elif (alone and facts.degree == 0.0) or _is_divided(found, node, own):
        found.sources[out] -= found.leaves(own)
    elif (alone and facts.degree == 1.0) or (first in found.sizes and _keeps_size(found, node)):
        found.sizes.update(dict.fromkeys(node.outputs, own))


def _is_divided(found: Found, node: Node, own: str) -> bool:
    """Whether a node divides by the size of what scales its first operand."""
    divisors = [ref_of(argument) for argument, power in factors_of(node) if power < 0.0]
    return any(value is not None and found.sizes.get(value) == own for value in divisors)


def _keeps_size(found: Found, node: Node) -> bool:
    """Whether a node makes of a size another one: by a mean, a bound, a number, or under other axes."""
    facts, second = facts_of(node.op), node.args[1] if len(node.args) > 1 else None
    if facts.powers:
        return isinstance(second, (int, float))
    return (facts.degree == 1.0 and not facts.merges) or view_of(found.graph, node) is not None


def _of_results(read: Reader) -> list[ScaleParameter | None]:
    """Return the scale parameters of a node's results, those that it has none of left out at the end."""
    if read.node.op in WEIGHT_NORMS:  # w = g v / |v|: g scales it, v does not
        return [read.of(read.node.args[1])]
    steps = view_of(read.graph, read.node)
    return [_resized(read) or reading_of(read)] if steps is None else read.viewed(steps)


def _resized(read: Reader) -> ScaleParameter | None:
    """Return the scale of what was freed of a weight's size, times that size (quantised and binary weights)."""
    if not facts_of(read.node.op).multiplies:
        return None
    found = read.found
    left, right = (ref_of(a) for a in read.node.args[:2])
    for shape, size in ((left, right), (right, left)):
        key = None if size is None else found.sizes.get(size)
        if key is None or shape is None or shape not in found.fixed or shape in found.scale_parameters:
            continue
        if found.leaves(key).isdisjoint(found.sources[shape]):
            return ScaleParameter(key, read.no_axes)
    return None


@once
def parameter_values(graph: Graph) -> frozenset[int]:
    """Return the ids of the values that depend on parameters, buffers and constants alone (no input reaches them).

    Weights that are drawn or masked anew in every pass count too: random numbers that a parameter enters, and those
    that are added to a parameter or multiply it element by element.
    """
    made = {parameter.value for parameter in graph.parameters.values()}
    fixed = {value.id for value in graph.values if value.kind in ("parameter", "buffer", "constant")}
    noise: set[int] = set()
    for node in graph.nodes:
        trained = not made.isdisjoint(node.inputs)
        if fixed.issuperset(node.inputs):
            kept = trained or not traits(node.op).random
        elif all(value in fixed or value in noise for value in node.inputs):
            kept = trained and _keeps_shape(graph, node, made)
        else:
            continue
        if kept:
            fixed.update(node.outputs)
            made.update(node.outputs if trained else ())
        elif not trained:
            noise.update(node.outputs)
    return frozenset(fixed)


def _keeps_shape(graph: Graph, node: Node, made: set[int]) -> bool:
    """Whether a sum or product has the shape of an operand that parameters make: as many numbers, drawn anew."""
    shape = graph.values[node.outputs[0]].shape
    whole = any(graph.values[value].shape == shape for value in node.inputs if value in made)
    facts = facts_of(node.op)
    return whole and len(shape) > 1 and (bool(facts.terms) or facts.multiplies)
