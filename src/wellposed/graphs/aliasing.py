"""Single assignment out of shared memory: which value a tensor stands for after writes through its aliases.

Tensors that share a storage belong to one `Base`. Each is recorded as the chain of view operators that leads from the
base's first tensor to it, with the version of the base at which its value was last brought up to date. A write makes a
new value of the base; a tensor read later than that has its view operators replayed on the new value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from wellposed.graphs.graph import Ref
from wellposed.graphs.operators import VIEW_WRITE

SMALL = 2**12
"""Tensors in at most this many bytes of memory are kept as they are."""
Emit: TypeAlias = Callable[[torch._ops.OpOverload, tuple[Any, ...], Mapping[str, Any], list[torch.Tensor]], list[int]]


@dataclass(eq=False, slots=True)
class Base:
    """One piece of memory: its current value and how its first tensor lies in it.

    ``known`` says whether real values are kept beside it, ``random`` whether these were drawn, ``borrowed`` whether
    the memory of the real values belongs to the user.
    """

    value: int
    version: int = 0
    known: bool = False
    random: bool = False
    borrowed: bool = False
    records: list[Record] = field(default_factory=list)
    root: Record = field(init=False)

    def own_real(self) -> None:
        """Move the real values to memory of our own, keeping the views of them."""
        if not self.known or self.root.real is None:
            return
        old = self.root.real
        copy = torch.empty_strided(old.shape, old.stride(), dtype=old.dtype).copy_(old)
        for record in self.records:
            if record.real is not None:
                offset = record.real.storage_offset() - old.storage_offset()
                record.real = copy.as_strided(record.real.shape, record.real.stride(), offset)

    def forget_real(self) -> None:
        """Let go of the real values: those that the memory holds from now on are not known."""
        self.known = False
        for record in self.records:
            record.real = None


@dataclass(eq=False, slots=True)
class ViewCall:
    """One view operator as it was called, and all the tensors that it gave."""

    op: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    read: int
    records: list[tuple[Record, int]] = field(default_factory=list)


class Record:
    """One tensor object of the running model.

    ``tensor`` is what operators are run on, ``storage`` identifies the memory that it had, ``real`` is its twin with
    real values where they are known.
    """

    __slots__ = ("base", "parent", "real", "step", "storage", "tensor", "value", "version")

    def __init__(self, tensor: torch.Tensor, base: Base, value: int, real: torch.Tensor | None) -> None:
        self.tensor: torch.Tensor = tensor
        self.storage: int = memory(tensor)
        self.base: Base = base
        self.value: int = value
        self.version: int = base.version
        self.real: torch.Tensor | None = real
        self.parent: Record | None = None
        self.step: ViewCall | None = None
        base.records.append(self)


def memory(tensor: torch.Tensor) -> int:
    """Return what identifies the memory of a tensor while it lives; a sparse one shares its memory with no other."""
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else -id(tensor)


def new_root(tensor: torch.Tensor, value: int, real: torch.Tensor | None) -> Record:
    """Return the record of the first tensor of a piece of memory."""
    base = Base(value)
    base.known = real is not None
    base.root = Record(tensor, base, value, real)
    return base.root


def new_alias(record: Record, tensor: torch.Tensor, real: torch.Tensor | None) -> Record:
    """Return the record of another tensor object with the same memory, shape and strides as ``record``'s."""
    alias = Record(tensor, record.base, record.value, real)
    alias.version = record.version
    alias.parent = record.parent
    alias.step = record.step
    if record.step is not None:
        position = next(position for other, position in record.step.records if other is record)
        record.step.records.append((alias, position))
    return alias


def new_view(
    parent: Record, step: ViewCall, position: int, tensor: torch.Tensor, value: int, real: torch.Tensor | None
) -> Record:
    """Return the record of output ``position`` of a view operator called on ``parent``'s tensor."""
    view = Record(tensor, parent.base, value, real)
    view.parent = parent
    view.step = step
    step.records.append((view, position))
    return view


def compact(real: torch.Tensor) -> torch.Tensor:
    """Return the same values in their own memory alone, or in that of one element where all are one number."""
    held = real.untyped_storage().nbytes()
    if held <= SMALL or not real.numel():
        return real
    first = real[(0,) * real.dim()]
    if torch.equal(real, first.expand(real.shape)):
        return first.clone().expand(real.shape)
    return real if real.numel() * real.element_size() >= held else real.clone()


def same_geometry(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one storage show the same elements in the same order."""
    return (
        a.shape == b.shape
        and a.stride() == b.stride()
        and a.storage_offset() == b.storage_offset()
        and a.dtype == b.dtype
    )


def current(record: Record, emit: Emit) -> int:
    """Return the id of the value that ``record``'s tensor holds now, replaying its views where memory was written."""
    base = record.base
    if record.version == base.version:
        return record.value
    if record.parent is None or record.step is None:
        record.value = base.value
        record.version = base.version
        return record.value
    step = record.step
    source = current(record.parent, emit)
    args = tuple(Ref(source) if isinstance(a, Ref) and a.value == step.read else a for a in step.args)
    siblings: dict[int, torch.Tensor] = {}
    for sibling, position in step.records:
        siblings.setdefault(position, sibling.tensor)
    count = max(siblings) + 1
    like = [siblings.get(position, record.tensor) for position in range(count)]
    values = emit(step.op, args, step.kwargs, like)
    for sibling, position in step.records:
        sibling.value = values[position]
        sibling.version = base.version
    return record.value


def write(record: Record, value: int, emit: Emit) -> None:
    """Make ``value`` what ``record``'s tensor holds from now on; every alias sees it when read next."""
    base = record.base
    root = base.root.tensor
    tensor = record.tensor
    if record.parent is None or same_geometry(tensor, root):
        base.value = value
    else:
        whole = current(base.root, emit)
        before = root.storage_offset() * root.element_size() // tensor.element_size()
        args = (Ref(whole), Ref(value), list(root.stride()), list(tensor.stride()), tensor.storage_offset() - before)
        (base.value,) = emit(VIEW_WRITE, args, {}, [root])
    base.version += 1
    record.value = value
    record.version = base.version
