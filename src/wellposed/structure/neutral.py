"""The value with which a parameter leaves a signal as it is: what is assumed of one whose values nobody knows."""

from __future__ import annotations

from collections.abc import Collection

from wellposed.graphs import Graph, Node, Parameter
from wellposed.operators.arithmetic import terms_of, times_number
from wellposed.operators.facts import facts_of
from wellposed.operators.schema import number_of, ref_of
from wellposed.operators.views import view_of


def neutral_value(graph: Graph, parameter: Parameter, fixed: Collection[int]) -> float | None:
    """Return the value of a parameter's elements with which it multiplies by 1, or adds 0, where it meets a signal.

    Sums and products with numbers on the way there are taken into account: of ``x * (1 + p)`` it is 0. A table that is
    added, varying along more than one axis, has none.

    Args:
        graph: from `wellposed.trace`.
        parameter: one of its parameters.
        fixed: ids of the values that no input reaches (`parameter_values`).

    Returns:
        The value for the first signal that is met; None where the parameter meets none in this way.
    """
    forms = {parameter.value: (1.0, 0.0)}  # slope and offset of what is an affine function of the parameter
    for node in graph.nodes:
        met = next((value for value in node.inputs if value in forms), None)
        if met is None:
            continue
        slope, offset = forms[met]
        if node.outputs and node.outputs[0] in fixed:
            form = _followed(graph, node, met, slope, offset)
            if form is not None and form[0] != 0.0:
                forms[node.outputs[0]] = form
            continue
        level = _level(node, met)
        if level == 0.0 and sum(size > 1 for size in parameter.shape) > 1:
            return None
        if level is not None:
            return (level - offset) / slope
    return None


def _followed(graph: Graph, node: Node, value: int, slope: float, offset: float) -> tuple[float, float] | None:
    """Return slope and offset of what a node makes of a value, where it is an affine function with one number each."""
    if view_of(graph, node) is not None:
        return slope, offset
    scaled, factor = times_number(graph, node) or (None, 1.0)
    if ref_of(scaled) == value:
        return slope * factor, offset * factor
    terms = terms_of(node)
    own = [factor for argument, factor in terms if ref_of(argument) == value]
    if len(own) != 1:
        return None
    slope, offset = own[0] * slope, own[0] * offset
    for argument, factor in terms:
        if ref_of(argument) != value:
            number = number_of(graph, argument)
            if number is None:
                return None
            offset += factor * number
    return slope, offset


def _level(node: Node, value: int) -> float | None:
    """Return the number with which a value has no effect on a signal at a node: 1 as factor, 0 as summand, or None."""
    facts = facts_of(node.op)
    if facts.multiplies or (facts.powers and ref_of(node.args[-1]) == value):
        return 1.0
    if len(facts.terms) > 1:
        return 0.0
    if facts.elementwise and facts.adds:
        return 0.0 if ref_of(node.args[0]) == value else 1.0
    return None
