"""The two tables of rules, forward and backward, and the one class that both are made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

import torch

from wellposed.errors import OptionError, UnsupportedError
from wellposed.graphs import Graph, Node
from wellposed.graphs.operators import ALIASES
from wellposed.graphs.operators import overloads as overloads
from wellposed.signals.signal import Tag

Overload = torch._ops.OpOverload
Overloads = Overload | Iterable[Overload]
Function = TypeVar("Function", bound=Callable[..., Any])
TAGS = ("exact", "approximate", "sampled")


@dataclass(frozen=True, slots=True)
class Rule:
    """A registered rule, forward or backward.

    Attributes:
        op: the overload that it covers.
        function: the rule.
        tag: ``exact`` (in the limit of many channels, given Gaussian inputs), ``approximate`` or ``sampled``.
        family: the operator family, as tables show it; nothing depends on it.
        source: paper and equation, or ``"definition"``.
        blockwise: whether a concatenation's blocks may be treated one by one.
        elementwise: whether the operator applies one function of one number to every element of its first argument.
        tensors: whether the rule takes a known tensor as first argument as it is; others receive its state.
        conditions: whether the rule takes boolean tensors; others receive the state of a condition on signals.
        pairs: whether the rule takes correlations by pair of positions; others receive what all pairs have in common.
        additive: the arguments of which the result is a linear map (views, sums, the values of attention), the others
            being as they are; True for all.
        whole: of a backward rule: whether it takes the gradient as one term, in place of every independent term of it.
    """

    op: Overload
    function: Callable[..., Any]
    tag: Tag
    family: str
    source: str
    blockwise: bool = False
    elementwise: bool = False
    tensors: bool = False
    conditions: bool = False
    pairs: bool = False
    additive: bool | tuple[str, ...] = False
    whole: bool = False


class Registry(Mapping[Overload, Rule]):
    """Rules by overload; each overload has at most one.

    Args:
        what: what an entry is called in messages ("rule").
        decorator: the public decorator that registers one.
    """

    def __init__(self, what: str, decorator: str) -> None:
        self.what = what
        self.decorator = decorator
        self._rules: dict[Overload, Rule] = {}

    def __getitem__(self, op: Overload) -> Rule:
        return self._rules[op]

    def __iter__(self) -> Iterator[Overload]:
        return iter(self._rules)

    def __len__(self) -> int:
        return len(self._rules)

    def register(
        self, ops: Iterable[Overloads], *, family: str | None, tag: Tag, **fields: Any
    ) -> Callable[[Function], Function]:
        """Return a decorator that registers a function for some overloads, and hands it back.

        Nothing is registered where one of the overloads is refused.

        Raises:
            OptionError: an overload has an entry already, is no overload, or the tag is unknown.
        """
        if tag not in TAGS:
            raise OptionError(f"the tag of a {self.what} is 'exact', 'approximate' or 'sampled', not {tag!r}")

        def register(function: Function) -> Function:
            """Enter the function for every overload, or for none where one is refused."""
            group = family or _family_of(function.__module__)
            new: dict[Overload, Rule] = {}
            for op in _listed(ops, self.what):
                if op in self._rules or op in new:
                    other = (self._rules.get(op) or new[op]).function.__name__
                    raise OptionError(f"{op} has a {self.what} already ({other})")
                new[op] = Rule(op, function, tag, group, **fields)
            self._rules.update(new)
            return function

        return register

    def remove(self, op: Overload) -> Rule:
        """Remove and return an entry.

        Raises:
            OptionError: there is none.
        """
        if op not in self._rules:
            raise OptionError(f"{op} has no {self.what}")
        return self._rules.pop(op)

    def restore(self, entry: Rule) -> None:
        """Put an entry that `remove` gave in the place of the one that is there, if any."""
        self._rules[entry.op] = entry

    def require(self, graph: Graph, nodes: Iterable[Node]) -> None:
        """Raise `UnsupportedError` with the operators of ``nodes`` that have no entry, unless all have one."""
        without = [node for node in nodes if node.op not in self._rules]
        if not without:
            return
        where = {node.op_name: node.name for node in reversed(without)}
        counts = Counter(node.op_name for node in without)
        lines = [f"  {op} ({count} times, first at {where[op]})" for op, count in counts.most_common()]
        raise UnsupportedError(
            f"{len(counts)} operators of {graph.model} have no {self.what}:\n"
            + "\n".join(lines)
            + f"\nRegister a rule for each with {self.decorator}, or leave strict off to have them sampled."
        )

    def table(self) -> dict[Overload, Rule]:
        """Return all entries, ordered by family and name."""
        return dict(sorted(self._rules.items(), key=lambda item: (item[1].family, str(item[0]))))


def _family_of(module: str) -> str:
    """Return a module's own name, or its folder's where there is one file for each direction."""
    folder, _, name = module.rpartition(".")
    return folder.rpartition(".")[2] if name in ("forward", "backward") else name


def _listed(ops: Iterable[Overloads], what: str) -> Iterator[Overload]:
    """Yield overloads one by one; raises `OptionError` for other things, and for overloads that graphs never hold."""
    for item in ops:
        for op in (item,) if isinstance(item, (Overload, torch._ops.OpOverloadPacket)) else item:
            if not isinstance(op, Overload):
                raise OptionError(
                    f"a {what} is registered for an overload such as torch.ops.aten.relu.default, not {op!r}"
                )
            if op in ALIASES:
                raise OptionError(f"{op} is recorded as {ALIASES[op]}: register the {what} for that")
            yield op


RULES = Registry("rule", "wellposed.rule")
ADJOINTS = Registry("backward rule", "wellposed.extend.adjoint")


def rule(
    *ops: Overloads,
    tag: Tag = "exact",
    source: str,
    family: str | None = None,
    blockwise: bool = False,
    elementwise: bool = False,
    tensors: bool = False,
    conditions: bool = False,
    pairs: bool = False,
    additive: bool | tuple[str, ...] = False,
) -> Callable[[Function], Function]:
    """Register a rule for one or several operator overloads.

    ```python
    @wp.rule(torch.ops.aten.my_scale.default, source="definition")
    def my_scale(call, x, factor):
        return wellposed.extend.linear(call, x, factor)
    ```

    Args:
        ops: overloads, such as ``torch.ops.aten.relu.default``.
        tag: ``"exact"``, ``"approximate"`` or ``"sampled"``.
        source: paper and equation, or ``"definition"``.
        family: name shown in the table of operators; the defining module's or folder's name by default.
        blockwise: whether the rule may be applied to each block of a concatenation along channels.
        elementwise: whether the operator applies one function of one number to every element of its first argument.
        tensors: whether the rule takes a known tensor as first argument as it is; others receive its state.
        conditions: whether the rule takes boolean tensors; others receive the state of a condition on signals.
        pairs: whether the rule takes correlations by pair of positions (nodes of a graph); others receive what all
            pairs have in common.
        additive: the arguments, by name, of which the result is a linear map; True for all. Signals that a weight made
            at several times are then followed through the operator together.

    Raises:
        OptionError: an overload has a rule already, is no overload, or the tag is unknown.
    """
    return RULES.register(
        ops, family=family, tag=tag, source=source, blockwise=blockwise, elementwise=elementwise, tensors=tensors,
        conditions=conditions, pairs=pairs, additive=additive,
    )  # fmt: skip


def adjoint(
    *ops: Overloads, tag: Tag = "exact", source: str, family: str | None = None, whole: bool = False
) -> Callable[[Function], Function]:
    """Register a backward rule for one or several overloads.

    The rule is a function ``(call, gradients, *args, **kwargs)``: ``gradients`` holds a `Term` for each result of the
    operator (None where nothing depends on it), the arguments are the operator's with forward states in the place of
    tensors. It returns pairs of the id of a value that the operator read and the term that is added to its gradient,
    or None for a case that it does not cover; the operator is then differentiated on samples.

    Args:
        ops: overloads, such as ``torch.ops.aten.relu.default``.
        tag: ``exact`` (for infinitely many channels), or ``approximate`` for a rule that stays off however wide the
            net.
        source: paper and equation, or ``"definition"``.
        family: name shown in the table of operators; the defining module's or folder's name by default.
        whole: take the gradient as one term; otherwise the rule, being linear, is asked for every independent term.

    Raises:
        OptionError: an overload has a backward rule already, is no overload, or the tag is unknown.
    """
    return ADJOINTS.register(ops, family=family, tag=tag, source=source, whole=whole)


def adjoint_of_one(*ops: Overloads, **options: Any) -> Callable[[Function], Function]:
    """Register a backward rule of operators with one result, as `adjoint` with the same ``options``.

    The rule is a function ``(call, term, *args, **kwargs)`` of that result's term alone, which is never None.
    """

    def register(rule: Function) -> Function:
        @wraps(rule)
        def of_all(call: Any, gradients: Any, *args: Any, **kwargs: Any) -> Any:
            return None if gradients[0] is None else rule(call, gradients[0], *args, **kwargs)

        adjoint(*ops, **options)(of_all)
        return rule

    return register


def unregister(op: Overload) -> Rule:
    """Remove and return the rule of the overload ``op`` (to replace it by one's own).

    Raises:
        OptionError: it has none.
    """
    return RULES.remove(op)


def operators() -> Mapping[Overload, Rule]:
    """Return all rules, by overload, ordered by family and name."""
    return RULES.table()
