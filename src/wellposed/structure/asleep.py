"""Weights at zero that no gradient ever reaches, as what is before or behind them is zero as well."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cache
from typing import Any

import torch

from wellposed.errors import listed
from wellposed.graphs import Graph, Node
from wellposed.operators.arithmetic import is_homogeneous, terms_of
from wellposed.operators.facts import facts_of
from wellposed.operators.norms import NORMS
from wellposed.operators.product import describe
from wellposed.operators.schema import number_of, ref_of
from wellposed.operators.views import view_of
from wellposed.structure.reach import stops

_SHOWN = 8


def words_on_asleep(graph: Graph, zeros: Collection[str]) -> str:
    """Return a warning of the parameters that stay at zero (`asleep`), ``""`` where there are none."""
    names = asleep(graph, zeros)
    if not names:
        return ""
    return (
        f"{len(names)} parameters stay at zero, as no gradient ever reaches them: {listed(names, _SHOWN)}. Weights at "
        "zero are before or behind each other (or before a function that is flat at zero), so that each waits for "
        "another: draw one of them, by zeros='write' or in the model"
    )


def asleep(graph: Graph, zeros: Collection[str]) -> tuple[str, ...]:
    """Return the parameters at zero whose gradient is zero in every step of a training.

    A weight learns if a signal enters it and a gradient comes back from its result. One weight at zero stops the signal
    after it and the gradient before it, but learns itself, and then lets others learn. Two in series wait for each
    other. So parameters at zero that learn are replaced by other numbers, until none is left or none learns. A node
    counts as passing signals and gradients unless it is known not to.

    Args:
        graph: from `wellposed.trace`.
        zeros: names of the parameters that hold zeros alone.
    """
    held = {graph.parameters[name].value: name for name in zeros if name in graph.parameters}
    if not _stops_any(graph, frozenset(held)):
        return ()
    possible = reached_by_gradients(graph, frozenset())
    zero = frozenset(value for value in held if value in possible)
    frozen = {value for value in zero if not graph.parameters[held[value]].tensor.requires_grad}
    while zero - frozen:
        reached = reached_by_gradients(graph, zero)
        learning = frozenset(value for value in zero - frozen if value in reached)
        if not learning:
            return tuple(name for value, name in held.items() if value in zero and value not in frozen)
        zero -= learning
    return ()


def _stops_any(graph: Graph, zero: frozenset[int]) -> bool:
    """Whether some node blocks a gradient where the parameters ``zero`` are 0; biases at zero block none."""
    silent = _silent(graph, zero)
    return any(_blocked(graph, node, silent) for node in graph.nodes if not silent.isdisjoint(node.inputs))


def _silent(graph: Graph, zero: frozenset[int]) -> set[int]:
    """Return the values that are 0 everywhere when the parameters ``zero`` (value ids) are."""
    silent = set(zero)
    for node in graph.nodes:
        if node.outputs and not silent.isdisjoint(node.inputs) and _is_silent(graph, node, silent):
            silent.update(node.outputs)
    return silent


def _is_silent(graph: Graph, node: Node, silent: set[int]) -> bool:
    """Whether a node's result is 0 everywhere, given the values before it that are."""
    norm, product, facts = NORMS.get(node.op), describe(graph, node), facts_of(node.op)
    if norm is not None:
        return not silent.isdisjoint({_first(node), norm.gain_of(node)}) and _adds_nothing(norm.shift_of(node), silent)
    if product is not None:
        return not silent.isdisjoint({product.left, product.right}) and _adds_nothing(product.bias, silent)
    if facts.multiplies:
        return any(ref_of(argument) in silent for argument in node.args)
    if terms := terms_of(node):
        return all(ref_of(argument) in silent or number_of(graph, argument) == 0.0 for argument, _ in terms)
    if facts.joins:
        return silent.issuperset(node.inputs)
    return _first(node) in silent and (_keeps_zeros(graph, node) or (facts.function and _at_zero(node)[0] == 0.0))


def _adds_nothing(shift: int | None, silent: set[int]) -> bool:
    return shift is None or shift in silent


def _keeps_zeros(graph: Graph, node: Node) -> bool:
    """Whether a node returns zeros for zeros in its first argument, whatever the others hold."""
    facts = facts_of(node.op)
    return view_of(graph, node) is not None or facts.drops or facts.looks_up or is_homogeneous(node)


def reached_by_gradients(graph: Graph, zero: frozenset[int]) -> set[int]:
    """Return the values that have a nonzero gradient where the parameters ``zero`` (value ids) are 0."""
    silent = _silent(graph, zero) if zero else set[int]()
    reached = {value for value in graph.outputs if graph.values[value].is_signal}
    for node in reversed(graph.nodes):
        if not reached.isdisjoint(node.outputs) and not stops(graph, node):
            reached.update(_passing(graph, node, silent))
    return reached


def _passing(graph: Graph, node: Node, silent: set[int]) -> Iterator[int]:
    """Yield the values that a node passes a gradient on to."""
    blocked = set[int | None]() if silent.isdisjoint(node.inputs) else _blocked(graph, node, silent)
    yield from (value for value in node.inputs if value not in blocked)


def _blocked(graph: Graph, node: Node, silent: set[int]) -> set[int | None]:
    """Return the operands of a node whose gradient is 0, given the values that are 0."""
    norm, product, facts = NORMS.get(node.op), describe(graph, node), facts_of(node.op)
    if norm is not None:
        return _without_gradient(_first(node), norm.gain_of(node), silent)
    if product is not None:
        return _without_gradient(product.left, product.right, silent)
    if facts.multiplies and len(node.inputs) == 2:
        return _without_gradient(*node.inputs, silent)
    return {_first(node)} if facts.function and _first(node) in silent and _at_zero(node)[1] == 0.0 else set()


def _without_gradient(one: int | None, other: int | None, silent: set[int]) -> set[int | None]:
    """Return the factors of a product whose partner is 0: they get no gradient. A square has none of these."""
    if one == other:
        return set()
    return {factor for factor, partner in ((one, other), (other, one)) if partner in silent}


def _first(node: Node) -> int | None:
    return ref_of(node.args[0]) if node.args else None


def _at_zero(node: Node) -> tuple[float, float]:
    """Return value and slope at 0 of the function of one number that a node applies to every element."""
    others = node.args[1:]
    if all(isinstance(argument, (int, float, str, type(None))) for argument in (*others, *node.kwargs.values())):
        return _value_and_slope(node.op, others, tuple(node.kwargs.items()))
    return 1.0, 1.0


@cache
def _value_and_slope(op: Any, others: tuple[Any, ...], named: tuple[tuple[str, Any], ...]) -> tuple[float, float]:
    """Return f(0) and f'(0) of an operator; (1, 1), by which gradients count as passing, where it does not evaluate."""
    with torch.inference_mode(False), torch.enable_grad():
        at = torch.zeros((), dtype=torch.float64, requires_grad=True)
        try:
            value = op(at * 1.0, *others, **dict(named))  # some write to their argument
            (slope,) = torch.autograd.grad(value, at)
        except (RuntimeError, TypeError, ValueError):
            return 1.0, 1.0
    return float(value.detach()), float(slope)
