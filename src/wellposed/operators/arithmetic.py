"""What nodes do to the scale of what they read: sums with their factors, products with their powers, what keeps it."""

from __future__ import annotations

from typing import Any

from wellposed.graphs import Graph, Node, Ref
from wellposed.operators.facts import facts_of
from wellposed.operators.schema import named_arguments, number_of
from wellposed.operators.views import is_view


def terms_of(node: Node) -> tuple[tuple[Any, float], ...]:
    """Return the arguments that a node adds up, with the factors that it multiplies them by; none of others."""
    signs = facts_of(node.op).terms
    alpha = float(named_arguments(node).get("alpha", 1.0)) if signs else 1.0
    by_alpha = 0 if signs[:1] == (-1.0,) else 1  # a reversed difference multiplies its first operand
    factors = (sign * alpha if place == by_alpha else sign for place, sign in enumerate(signs))
    return tuple(zip(node.args, factors, strict=False))


def factors_of(node: Node) -> tuple[tuple[Any, float], ...]:
    """Return the arguments that a node multiplies element by element, with their powers; none of others."""
    facts = facts_of(node.op)
    if facts.raises:
        return ((node.args[0], float(node.args[1])),) if isinstance(node.args[1], int | float) else ()
    return tuple(zip(node.args, facts.powers, strict=False))


def times_number(graph: Graph, node: Node) -> tuple[Any, float] | None:
    """Return the operand that a node multiplies by a number other than 0, and that number; None of other nodes."""
    factors = factors_of(node)
    if len(factors) != 2:
        return None
    (first, _), (second, power) = factors
    number = number_of(graph, second)
    if number:
        return first, number if power > 0.0 else 1.0 / number
    number = number_of(graph, first) if power > 0.0 else None
    return (second, number) if number else None


def is_homogeneous(node: Node) -> bool:
    """Whether a node makes of c times its first argument, for c > 0, c times its result, all else being as it is.

    Sums, products and what is put side by side, whose other operands may follow as well, count as none.
    """
    if is_view(node.op):
        return True
    facts = facts_of(node.op)
    if facts.degree != 1.0 or facts.powers or facts.looks_up or facts.merges not in ("", "choice"):
        return False
    first, *others = scaled_by(node)
    return first is node.args[0] and isinstance(first, Ref) and not any(map(_is_there, others))


def scaled_by(node: Node) -> list[Any]:
    """Return the arguments with which a node's result scales together (`Facts.scaled`), those of lists one by one."""
    named = named_arguments(node)
    given = [named.get(name, node.args[0] if name == "self" else None) for name in facts_of(node.op).scaled]
    return [each for one in given for each in (one if isinstance(one, (list, tuple)) else [one])]


def _is_there(argument: Any) -> bool:
    """Whether an argument is given, and not the number 0."""
    return argument is not None and not (isinstance(argument, (int, float)) and argument == 0)
