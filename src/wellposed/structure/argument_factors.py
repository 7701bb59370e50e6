"""Constant factors between what a weight makes and the function that it enters, and functions that bend."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from wellposed.graphs import Graph, Node, Parameter, Ref
from wellposed.graphs.graph import once
from wellposed.graphs.operators import traits
from wellposed.operators.arithmetic import factors_of, times_number
from wellposed.operators.contraction import contractions
from wellposed.operators.facts import ANY, facts_of
from wellposed.operators.schema import ref_of
from wellposed.operators.views import is_view
from wellposed.structure.bounds import bounds
from wellposed.structure.branches import branches
from wellposed.structure.own_functions import adds_its_own, becomes_complex, ends_in, is_of_one, is_periodic, made_of

COORDINATES = 4
"""Inputs up to which a model is a function of coordinates. Chosen: space and time."""


def argument_factors(graph: Graph) -> Mapping[int, float]:
    """Return, by contraction result (value id), the constant factor between it and the function that it enters.

    For ``sin(30 * linear(x))`` it is 30, whether written as a number, a buffer or a parameter of its own. Several
    numbers count as their root mean square, and of several functions the largest factor counts. Results without such a
    factor are left out, those that anything but functions reads, `frequencies`, and bounds like ``30 * tanh(linear(x) /
    30)``, which leave small values as they are.
    """
    found: dict[int, float] = {}
    chosen = frequencies(graph)
    for use in contractions(graph):
        value = graph.nodes[use.node].outputs[0]
        if use.parameter is None or use.parameter in chosen or use.kind in ("recurrent", "embedding"):
            continue
        ends = list(_readers_behind(graph, value))  # anew each time, as numbers of parameters may change
        if ends and all(end is not None and not _is_undone(graph, end, by) for by, end in ends):
            factor = max(abs(by) for by, _ in ends)
            if factor not in (0.0, 1.0):
                found[value] = factor
    return found


@once
def bending_functions(graph: Graph) -> Mapping[int, bool]:
    """Return, by value id, the contraction results that only bending functions read, and whether one has a kink at 0.

    Functions without a kink are linear for small arguments alone: they saturate on both sides (tanh), or gate their own
    argument (GELU, SiLU). Those with a kink (ReLU) are homogeneous but for biases. Left out is what follows norms,
    where nothing bent before grows, and models of few coordinates, such as fields in space and time, which are to bend
    along each.
    """
    if _is_of_coordinates(graph):
        return {}
    steps = branches(graph).steps
    found = {}
    for use in contractions(graph):
        data = steps.get(use.data)
        if use.parameter is None or (data is not None and steps[data.base].kind == "normalisation"):
            continue
        value = graph.nodes[use.node].outputs[0]
        ends = entered(graph)[value]
        if ends and all(end is not None and _bends(graph, end) and not _is_undone(graph, end, by) for by, end in ends):
            found[value] = any(end is not None and _has_kink(end) for _, end in ends)
    return found


def _is_of_coordinates(graph: Graph) -> bool:
    """Whether no weight that meets the model's inputs sums more than a few of them."""
    steps = branches(graph).steps
    met = [(use.fan_in, steps[use.data]) for use in contractions(graph) if use.data in steps]
    entering = [fan_in for fan_in, step in met if steps[step.base].kind == "start"]
    return bool(entering) and max(entering) <= COORDINATES


def _bends(graph: Graph, function: Node) -> bool:
    """Whether a function has a kink at 0, saturates on both sides, or gates its argument."""
    facts = facts_of(function.op)
    low, high = bounds(graph).get(function.outputs[0], ANY)
    saturates = facts.monotone == 1 and -math.inf < low and high < math.inf
    gates = facts.monotone == 0 and high == math.inf and not (facts.periodic or facts.raises or facts.degree)
    return _has_kink(function) or (facts.function and low < 0.0 < high and (saturates or gates))


def _has_kink(function: Node) -> bool:
    """Whether f(c x) = c f(x) for c > 0, as for ReLU."""
    return facts_of(function.op).degree == 1.0


@once
def frequencies(graph: Graph) -> frozenset[str]:
    """Return the weights between inputs and functions alone, some of which are periodic, as in Fourier features.

    Their scale says how fast the model's function varies over its coordinates, which the author of a model chooses.
    """
    steps = branches(graph).steps
    found: dict[str, bool] = {}
    for use in contractions(graph):
        if use.parameter is not None:
            data = steps.get(use.data)
            ends = [end for _, end in entered(graph)[graph.nodes[use.node].outputs[0]]]
            functions = [end for end in ends if end is not None]
            periodic = len(functions) == len(ends) and any(is_periodic(graph, end) for end in functions)
            raw = data is not None and steps[data.base].kind == "start"
            found[use.parameter] = found.get(use.parameter, True) and periodic and raw
    return frozenset(name for name, holds in found.items() if holds)


@once
def entered(graph: Graph) -> Mapping[int, list[tuple[float, Node | None]]]:
    """Return the readers of each contraction's result (`_readers_behind`), by its value."""
    made = (graph.nodes[use.node].outputs[0] for use in contractions(graph))
    return {value: list(_readers_behind(graph, value)) for value in made}


def _readers_behind(graph: Graph, value: int) -> Iterator[tuple[float, Node | None]]:
    """Yield each reader of a value behind constant factors, phases and views, as the factor and the elementwise
    function; None in place of the function for any other reader.
    """
    pending = [(value, 1.0)]
    while pending:
        at, factor = pending.pop()
        if at in graph.outputs:
            yield factor, None
        for node, times in _readers(graph, at, value, factor):
            if times is not None:
                pending.append((node.outputs[0], factor * times))
            elif is_view(node.op) or becomes_complex(node, at) or _is_added_to(graph, node, at, value, factor):
                pending += [(out, factor) for out in node.outputs]
            else:
                facts = facts_of(node.op)
                ends = (facts.function and facts.active) or facts.raises or ends_in(graph, node, at, value, factor)
                yield factor, node if ends else None


def _readers(graph: Graph, value: int, root: int, factor: float) -> Iterator[tuple[Node, float | None]]:
    """Yield the nodes that read a value, ``factor`` times ``root``, each with the number that it multiplies by (None if
    it does not). Nodes that only compute a factor of the value from itself are left out.
    """
    users = [graph.nodes[index] for index in graph.users().get(value, ()) if index not in graph.dead_nodes]
    readers = [node for node in users if not traits(node.op).fills]
    ends = {node.index for node in readers if ends_in(graph, node, value, root, factor)}
    own, within = _own_factors(graph, [node for node in readers if node.index not in ends], value)
    for node in readers:
        if node.index not in within:
            times = None if node.index in ends else _times_constant(graph, node, value)
            yield node, own.get(node.index, times)


def _own_factors(graph: Graph, readers: Sequence[Node], value: int) -> tuple[dict[int, float], set[int]]:
    """Return, by node, the limit for small signals of factors that readers compute from the value itself, and the nodes
    that compute these factors.
    """
    chains = {node.index: _own_factor(graph, node, value) for node in readers}
    own = {index: number for index, chain in chains.items() if chain and (number := _at_zero(chain)) is not None}
    return own, {one.index for index in own for one in chains[index]}


def _times_constant(graph: Graph, node: Node, value: int) -> float | None:
    """Return the constant that a node multiplies a value by (root mean square of several); None for other nodes."""
    times = times_number(graph, node)
    if times is not None:
        return times[1] if times[0] == Ref(value) else None
    others = [(one, power) for one, power in factors_of(node) if one != Ref(value)]
    if len(others) != 1 or len(factors_of(node)) != 2:
        return None
    number, power = others[0]
    if isinstance(number, complex):
        return abs(number) ** power or None
    by = ref_of(number)
    numbers = None if by is None else _numbers(graph, by)
    if numbers is None or not _tell_a_size(numbers):
        return None
    size = float(numbers.detach().double().pow(2.0 * power).mean().sqrt())
    return size if 0.0 < size < math.inf else None


def _tell_a_size(numbers: Tensor) -> bool:
    """Whether numbers have known values and a root mean square."""
    return not numbers.is_meta and numbers.is_floating_point() and numbers.numel() > 0


def _is_added_to(graph: Graph, node: Node, value: int, root: int, factor: float) -> bool:
    """Whether a node adds a phase, or a function of the same, to a value that is ``factor`` times ``root``; false for
    factors of 1 and -1.
    """
    return abs(factor) != 1.0 and (_is_shift(graph, node, value) or adds_its_own(graph, node, value, root))


def _is_shift(graph: Graph, node: Node, value: int) -> bool:
    """Whether a node adds known numbers alone to a value, as the phase of a wave."""
    facts = facts_of(node.op)
    others = [other for other in node.inputs if other != value]
    added = facts.elementwise and len(facts.terms) == 2 and node.inputs.count(value) == 1
    return added and all(_numbers(graph, other) is not None for other in others)


def _own_factor(graph: Graph, node: Node, value: int) -> list[Node]:
    """Return, in order, the nodes that compute the factor of a product from its other factor alone, such as |z| + 1 in
    ``sin(30 * (|z| + 1) * z)`` (FINER, Liu et al. 2024, arXiv 2312.02434); none for other products.
    """
    factors = factors_of(node)
    others = [ref_of(one) for one, power in factors if one != Ref(value) and power == 1.0]
    at, nodes = others[0] if len(others) == 1 and len(factors) == 2 else None, list[Node]()
    while at is not None and at != value:
        index = graph.values[at].node
        if index is None or len(graph.users().get(at, ())) != 1 or not is_of_one(graph.nodes[index]):
            return []
        nodes.append(graph.nodes[index])
        at = nodes[-1].inputs[0]
    return [] if at is None else nodes[::-1]


def _at_zero(chain: Sequence[Node]) -> float | None:
    """Return the result of nodes in a row for an argument of 0; None if that is 0 or not finite."""
    number = float(made_of(chain, torch.zeros(())))
    return number if math.isfinite(number) and number else None


def _numbers(graph: Graph, value: int) -> Tensor | None:
    """Return the values of a constant, a buffer, or a parameter that is no weight, seen through views; else None."""
    while value not in graph.known and (index := graph.values[value].node) is not None:
        if not is_view(graph.nodes[index].op):
            break
        value = graph.nodes[index].inputs[0]
    info = graph.values[value]
    if value in graph.known:
        return graph.known[value]
    if info.kind == "buffer":
        return graph.buffer_tensors.get(info.name)
    parameter = _factors(graph).get(value)
    return None if parameter is None else parameter.values


@once
def _factors(graph: Graph) -> Mapping[int, Parameter]:
    """Return the parameters that no contraction takes for its weight, by value."""
    weights = {use.weight for use in contractions(graph)}
    return {one.value: one for one in graph.parameters.values() if one.value not in weights}


def _is_undone(graph: Graph, function: Node, factor: float) -> bool:
    """Whether the result of a function is multiplied by the inverse of the factor of its argument."""
    readers = [graph.nodes[index] for index in graph.users().get(function.outputs[0], ())]
    times = times_number(graph, readers[0]) if len(readers) == 1 else None
    return times is not None and factor != 1.0 and math.isclose(times[1] * factor, 1.0, rel_tol=1e-6)
