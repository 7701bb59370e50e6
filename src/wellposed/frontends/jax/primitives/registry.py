"""What torch runs for each primitive of JAX.

A rule takes the operands, tensors or Python numbers, and by name what the primitive is bound with, and returns a tensor
or several. Keys of random generators are zeros of their shape: numbers come from torch's own generator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wellposed.errors import OptionError

Rule = Callable[..., Any]

RULES: dict[str, Rule] = {}
"""Rules by name of the primitive, or of the function of JAX that is one step (`program.NAMED`)."""

NUMBERS: set[str] = set()
"""Names of the rules that take Python numbers; others are given tensors."""


def rule(name: str, *, numbers: bool = False) -> Callable[[Rule], Rule]:
    """Register what torch runs for a primitive of JAX; a rule that was there is replaced.

    >>> @rule("my_primitive")  # doctest: +SKIP
    ... def _(x, *, factor):
    ...     return x * factor

    Args:
        name: of the primitive (``primitive.name``).
        numbers: whether the rule takes operands that are Python numbers; else they come as tensors.

    Returns:
        A decorator. The function takes the primitive's operands as tensors, and the parameters that it is bound with by
        name; it returns a tensor, or a sequence for a primitive of several results.

    Raises:
        OptionError: the name is no string.
    """
    if not isinstance(name, str):
        raise OptionError(f"a rule is registered by the name of a primitive, received {name!r}; pass primitive.name")

    def register(function: Rule) -> Rule:
        RULES[name] = function
        (NUMBERS.add if numbers else NUMBERS.discard)(name)
        return function

    return register
