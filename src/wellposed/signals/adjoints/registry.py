"""The one table of backward rules. A rule maps the gradients by an operator's results to those by its arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from wellposed.errors import OptionError
from wellposed.signals.gradients import Term
from wellposed.signals.signal import Tag

Sent = Sequence["tuple[int, Term]"]
"""What a rule returns: for ids of values that the operator read, what it adds to their gradients."""
AdjointFunction = Callable[..., "Sent | None"]
Function = TypeVar("Function", bound=AdjointFunction)


@dataclass(frozen=True, slots=True)
class AdjointRule:
    """A registered backward rule.

    Attributes:
        function: the rule.
        whole: whether it takes the gradient as one term; others are asked for every independent term of it.
        tag: ``exact`` (for infinitely many channels) or ``approximate``.
    """

    function: AdjointFunction
    whole: bool = False
    tag: Tag = "exact"


_ADJOINTS: dict[torch._ops.OpOverload, AdjointRule] = {}


def adjoint(
    *ops: torch._ops.OpOverload | Iterable[torch._ops.OpOverload], whole: bool = False, tag: Tag = "exact"
) -> Callable[[Function], Function]:
    """Register a backward rule for one or several overloads.

    The rule is a function ``(call, gradients, *args, **kwargs)``: ``gradients`` holds a `Term` for each result of the
    operator (None where nothing depends on it), the arguments are the operator's with forward states in the place of
    tensors. It returns None for a case that it does not cover; the operator is then differentiated on samples.

    Args:
        ops: overloads, such as ``torch.ops.aten.relu.default``.
        whole: take the gradient as one term; otherwise the rule, being linear, is asked for every independent term.
        tag: ``exact``, or ``approximate`` for a rule that stays off however wide the net.

    Raises:
        OptionError: an overload has a backward rule already.
    """

    def register(function: Function) -> Function:
        for item in ops:
            for op in (item,) if isinstance(item, torch._ops.OpOverload) else item:
                if op in _ADJOINTS:
                    raise OptionError(f"{op} has a backward rule already ({_ADJOINTS[op].function.__name__})")
                _ADJOINTS[op] = AdjointRule(function, whole, tag)
        return function

    return register


def find_adjoint(op: torch._ops.OpOverload) -> AdjointRule | None:
    """Return the backward rule of an overload."""
    return _ADJOINTS.get(op)
