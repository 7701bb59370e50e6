"""What the recorder writes down: operators and values, before they are named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from wellposed.graphs.graph import Ref, ValueKind
from wellposed.graphs.modules import Call
from wellposed.walks import reached


@dataclass(eq=False, slots=True)
class RawNode:
    """A recorded operator, before it is named. ``minor`` operators (views, known values) leave a module's name free."""

    op: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: list[int]
    call: Call
    source: str
    minor: bool
    inputs: list[int] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        _collect(self.args, self.inputs)
        _collect(self.kwargs.values(), self.inputs)


def _collect(items: Iterable[Any], into: list[int]) -> None:
    """Add the ids of the values that arguments refer to."""
    for item in items:
        if type(item) is Ref:
            into.append(item.value)
        elif type(item) in (list, tuple):
            _collect(item, into)


class RawValue:
    """A value, before it is named."""

    __slots__ = ("dtype", "index", "kind", "name", "node", "shape")

    def __init__(
        self, kind: ValueKind, name: str, tensor: torch.Tensor, node: int | None = None, index: int = 0
    ) -> None:
        self.kind = kind
        self.name: str = name
        self.shape: tuple[int, ...] = tuple(tensor.shape)
        self.dtype: torch.dtype = tensor.dtype
        self.node: int | None = node
        self.index: int = index


def is_fixed(values: Sequence[RawValue], nodes: Sequence[RawNode], value: int) -> bool:
    """Whether a value is made of parameters, buffers and constants alone."""

    def made_of(at: int) -> Sequence[int]:
        node = values[at].node
        return () if node is None else nodes[node].inputs

    return all(values[at].kind != "input" for at in reached([value], made_of))
