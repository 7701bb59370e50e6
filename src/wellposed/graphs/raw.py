"""What the recorder writes down: operators and values, before they are named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from wellposed.graphs.graph import Ref, ValueKind
from wellposed.graphs.modules import Call


class RawNode:
    """A recorded operator, before it is named. ``minor`` operators (views, known values) leave a module's name free."""

    __slots__ = ("args", "call", "inputs", "kwargs", "minor", "op", "outputs", "source")

    def __init__(
        self,
        op: torch._ops.OpOverload,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        outputs: list[int],
        call: Call,
        source: str,
        minor: bool,
    ) -> None:
        self.op: torch._ops.OpOverload = op
        self.args: tuple[Any, ...] = args
        self.kwargs: Mapping[str, Any] = kwargs
        self.inputs: list[int] = []
        self.outputs: list[int] = outputs
        self.call: Call = call
        self.source: str = source
        self.minor: bool = minor
        _collect(args, self.inputs)
        _collect(kwargs.values(), self.inputs)


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
