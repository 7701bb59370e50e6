"""The one table of rules. A rule maps the states that enter an operator to those that leave it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch

from wellposed.errors import OptionError
from wellposed.signals.signal import Tag

if TYPE_CHECKING:
    from wellposed.signals.state import State

RuleFunction = Callable[..., "State | tuple[State | None, ...] | None"]
Function = TypeVar("Function", bound=RuleFunction)


@dataclass(frozen=True, slots=True)
class Rule:
    """A registered rule.

    Attributes:
        op: the overload that it covers.
        function: ``function(call, *args, **kwargs)`` with the operator's arguments, tensors replaced by states.
        tag: ``exact`` (in the limit of many channels, given Gaussian inputs), ``approximate`` or ``sampled``.
        family: the operator family.
        source: paper and equation.
        blockwise: whether a concatenation's blocks may be treated one by one.
    """

    op: torch._ops.OpOverload
    function: RuleFunction
    tag: Tag
    family: str
    source: str
    blockwise: bool = False


_RULES: dict[torch._ops.OpOverload, Rule] = {}


def rule(
    *ops: torch._ops.OpOverload | Iterable[torch._ops.OpOverload],
    tag: Tag = "exact",
    source: str,
    family: str | None = None,
    blockwise: bool = False,
) -> Callable[[Function], Function]:
    """Register a rule for one or several operator overloads.

    ```python
    @wp.rule(torch.ops.aten.my_scale.default, source="definition")
    def my_scale(call, x, factor):
        return linear(call, x, factor)  # from wellposed.signals.rules.merge
    ```

    Args:
        ops: overloads, such as ``torch.ops.aten.relu.default``.
        tag: ``"exact"``, ``"approximate"`` or ``"sampled"``.
        source: paper and equation, or ``"definition"``.
        family: name shown in the table of operators; the defining module's name by default.
        blockwise: whether the rule may be applied to each block of a concatenation along channels.

    Raises:
        OptionError: an overload has a rule already, is no overload, or the tag is unknown.
    """
    if tag not in ("exact", "approximate", "sampled"):
        raise OptionError(f"a rule's tag is 'exact', 'approximate' or 'sampled', not {tag!r}")

    def register(function: Function) -> Function:
        group = family or function.__module__.rpartition(".")[2]
        for item in ops:
            for op in (item,) if isinstance(item, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)) else item:
                if not isinstance(op, torch._ops.OpOverload):
                    raise OptionError(
                        f"a rule is registered for an overload such as torch.ops.aten.relu.default, not {op!r}"
                    )
                if op in _RULES:
                    raise OptionError(f"{op} has a rule already ({_RULES[op].function.__name__})")
                _RULES[op] = Rule(op, function, tag, group, source, blockwise)
        return function

    return register


def unregister(op: torch._ops.OpOverload) -> Rule:
    """Remove and return the rule of the overload ``op`` (to replace it by one's own).

    Raises:
        OptionError: it has none.
    """
    if op not in _RULES:
        raise OptionError(f"{op} has no rule")
    return _RULES.pop(op)


def find(op: torch._ops.OpOverload) -> Rule | None:
    """Return the rule of an overload."""
    return _RULES.get(op)


def operators() -> Mapping[torch._ops.OpOverload, Rule]:
    """Return all rules, by overload."""
    return dict(sorted(_RULES.items(), key=lambda item: (item[1].family, str(item[0]))))


def overloads(*names: str) -> list[torch._ops.OpOverload]:
    """Return ``torch.ops.aten`` overloads by name ("relu.default"), leaving out those that this torch lacks."""
    found = []
    for name in names:
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
        if op is not None:
            found.append(op)
    return found
