"""Parameters whose scale norms take away: what they make is normalised before anything else sees it.

Scaling all of such a group leaves the function as it is. Its gradient is then orthogonal to it (Euler's identity), so
that every step makes it longer, and the next one smaller in proportion (van Laarhoven 2017, arXiv 1706.05350; Arora, Li
& Lyu 2019, arXiv 1812.03981): it finds a rate of its own, whatever the optimizer's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import torch

from wellposed.graphs import Graph, Node
from wellposed.graphs.graph import once
from wellposed.operators.arithmetic import factors_of, is_homogeneous, scaled_by
from wellposed.operators.facts import facts_of
from wellposed.operators.norms import NORMS, WEIGHT_NORMS, over_the_batch
from wellposed.operators.scale_parameters import parameter_values
from wellposed.operators.schema import ref_of
from wellposed.structure.branches import branches
from wellposed.structure.carriers import scaling_of
from wellposed.structure.residual_branches import other_use
from wellposed.walks import reached

_FARTHEST = 64
"""Weights that a factor is followed through at most."""
aten: torch._ops._OpNamespace = torch.ops.aten


@once
def scale_free(graph: Graph) -> tuple[frozenset[str], ...]:
    """Return groups of parameters whose common scale leaves all outputs as they are.

    What enters a norm is followed back to the parameters that multiply it: one weight with its bias; in a stream that
    is only read by norms all that adds to it; and, where only functions f(c x) = c f(x) lie in between, the weights
    before these, with the biases on the way. Each weight is in one group. Batch norms count in training mode. A
    parameter that is used elsewhere too, or a signal that the scale would reach otherwise, leaves the group out.
    """
    inside = absorbing(graph)
    fixed, dead = parameter_values(graph), frozenset(graph.dead_nodes)
    groups: list[frozenset[str]] = []
    weights: set[str] = set()
    scaled: set[int] = set()
    for value in _normalised(graph):
        if value in scaled:  # of a stream whose last norm has been met
            continue
        for through in range(_FARTHEST):
            found = scaling_of(graph, value, inside, through)
            names = frozenset(found.parameters)
            if found.reason or not names:
                break
            scaled |= found.values
            mine = {name for name in names if graph.parameters[name].tensor.ndim > 1}
            elsewhere = any(other_use(graph, name, found.uses, fixed, dead) is not None for name in names)
            if elsewhere or not mine.isdisjoint(weights) or names in groups:
                break
            groups.append(names)
            weights |= mine
    return tuple(dict.fromkeys((*groups, *_directions(graph))))


def _directions(graph: Graph) -> Iterator[frozenset[str]]:
    """Yield the parameters whose direction alone weight norms keep."""
    for node in graph.nodes:
        if node.op not in WEIGHT_NORMS:
            continue
        direction = ref_of(node.args[0])
        names = frozenset(name for name, parameter in graph.parameters.items() if parameter.value == direction)
        if names:
            yield names


def _normalised(graph: Graph) -> Iterator[int]:
    """Yield the values that enter norms, the last first; blocks of a concatenation one by one."""
    beside = _beside(graph)
    entering = [ref_of(node.args[0]) if _removes_scale(node) else _divided(graph, node) for node in graph.nodes]

    def parts(value: int) -> Iterable[int]:
        at = graph.values[value].node
        return _terms(graph.nodes[at]) if at in beside else ()

    walk = reached((value for value in entering if value is not None), parts)
    return (value for value in walk if graph.values[value].node not in beside)


def _beside(graph: Graph) -> frozenset[int]:
    """Return the concatenations of channels that only norms over the batch read: each part has a scale of its own."""
    found, users, dead = set[int](), graph.users(), set(graph.dead_nodes)
    for node in reversed(graph.nodes):
        if facts_of(node.op).merges != "cat" or not set(graph.outputs).isdisjoint(node.outputs):
            continue
        readers = [at for at in users.get(node.outputs[0], ()) if at not in dead]
        by_channel = dict(enumerate(node.args)).get(1, node.kwargs.get("dim", 0)) == 1
        if by_channel and readers and all(at in found or over_the_batch(graph.nodes[at]) for at in readers):
            found.add(node.index)
    return frozenset(found)


def _terms(node: Node) -> list[int]:
    """Return the operands in which, jointly, a node's result is homogeneous of degree 1."""
    return [value for argument in scaled_by(node) if (value := ref_of(argument)) is not None]


def _removes_scale(node: Node) -> bool:
    return over_the_batch(node) if node.op is aten.batch_norm.default else node.op in NORMS


def _divided(graph: Graph, node: Node) -> int | None:
    """Return the value that a node divides by its own norm: the end of a norm that is written out; else None.

    Where a gain or a mean lies between, it is the value whose size was taken.
    """
    steps = branches(graph).steps
    powers = facts_of(node.op).powers
    step = next((steps[out] for out in node.outputs if out in steps), None)
    if not powers or step is None or step.kind != "normalisation" or step.node != node.index:
        return None
    (above,) = step.operands
    by = [value for value in node.inputs if value != above]
    base = steps[above].base
    for value in dict.fromkeys((above, base, *steps[base].operands[:1])):
        degrees = _degrees(graph, value, node)
        if degrees.get(above) == 1.0 and [degrees.get(each) for each in by] == [-powers[-1]]:
            return value
    return None


def _degrees(graph: Graph, entering: int, last: Node) -> dict[int, float]:
    """Return the power of c by which each value before ``last`` grows with ``entering`` times c, where there is one."""
    first = graph.values[entering].node
    degrees = {entering: 1.0}
    for node in graph.nodes[0 if first is None else first + 1 : last.index]:
        degree = None if degrees.keys().isdisjoint(node.inputs) else _degree(graph, node, degrees)
        if degree is not None:
            degrees.update(dict.fromkeys(node.outputs, degree))
    return degrees


def _degree(graph: Graph, node: Node, degrees: Mapping[int, float]) -> float | None:
    """Return the degree of a node's result, given the degrees of its operands; clamps from below do not count."""
    found = [degrees[value] for value in node.inputs if value in degrees]
    facts = facts_of(node.op)
    factors = [(ref_of(argument), power) for argument, power in factors_of(node)]
    if factors:
        return sum([power * degrees[value] for value, power in factors if value is not None and value in degrees], 0.0)
    if len(facts.terms) > 1:
        return _degree_of_sum(graph, node, degrees, found)
    if len(found) > 1:
        return None
    if is_homogeneous(node):
        return found[0]
    if facts.degree is None or facts.merges or scaled_by(node)[0] is not node.args[0]:
        return None
    return found[0] * facts.degree


def _degree_of_sum(graph: Graph, node: Node, degrees: Collection[int], found: Sequence[float]) -> float | None:
    """Return the degree of a sum: that of all its terms, or of its one term beside known numbers such as eps."""
    if len(set(found)) != 1:
        return None
    beside_known = all(value in degrees or value in graph.known for value in node.inputs)
    return found[0] if len(found) > 1 or beside_known else None


@once
def absorbing(graph: Graph) -> frozenset[int]:
    """Return the nodes that may read a scaled value: norms, their inner nodes, and nodes that lead only to these."""
    absorbing = set(_beside(graph))
    for node in graph.nodes:
        if _removes_scale(node):
            absorbing.add(node.index)
        elif (entering := _divided(graph, node)) is not None:
            absorbing |= _written_out(graph, node, entering)
    for node in reversed(graph.nodes):
        if node.index not in absorbing and _leads_to(graph, node, absorbing):
            absorbing.add(node.index)
    return frozenset(absorbing)


def _leads_to(graph: Graph, node: Node, absorbing: Collection[int]) -> bool:
    """Whether a node passes a factor on, and only nodes in ``absorbing`` read its results."""
    steps, users, dead = branches(graph).steps, graph.users(), set(graph.dead_nodes)
    centred = any(out in steps and steps[out].kind == "normalisation" for out in node.outputs)
    passes = is_homogeneous(node) or (centred and len(facts_of(node.op).terms) > 1)
    if not passes or not set(graph.outputs).isdisjoint(node.outputs):
        return False
    readers = [reader for out in node.outputs for reader in users.get(out, ()) if reader not in dead]
    return bool(readers) and all(reader in absorbing for reader in readers)


def _written_out(graph: Graph, last: Node, entering: int) -> set[int]:
    """Return the inner nodes of a norm that is written out, between the value ``entering`` and the node ``last``."""
    degrees = _degrees(graph, entering, last)
    found, pending = {last.index}, [last]
    while pending:
        for value in pending.pop().inputs:
            index = graph.values[value].node
            if index is not None and index not in found and value != entering and value in degrees:
                found.add(index)
                pending.append(graph.nodes[index])
    return found
