"""Where a forward pass writes: to copies of what modules hold as attributes, and not to parameters unseen."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from typing import Any, TypeAlias

from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode

from wellposed.graphs.restore import HeldAttributes

Copies: TypeAlias = dict[int, Tensor]
"""Copies of tensors by their identity."""
Overwritten: TypeAlias = dict[int, tuple[UntypedStorage, UntypedStorage]]
"""Memory by its address, with a copy of what it held."""


def copy_attributes_(held: HeldAttributes) -> None:
    """Put copies in the place of plain tensors that modules hold as attributes (counters, caches), or that are in what
    they hold; until ``held.put_back()``.
    """
    copies: Copies = {}
    for container, items in (*held.attributes, *held.containers):
        if isinstance(container, dict | list | deque):
            place: Any = container
            for key, value in items.items() if isinstance(items, dict) else enumerate(items):
                copied = _copied(value, copies)
                if copied is not value:
                    place[key] = copied


def _copied(value: Any, copies: Copies) -> Any:
    """Return a copy of a plain tensor, or a tuple with copies; anything else as it is."""
    # parameters and others that gradients pass through are no state of the pass
    if type(value) is Tensor and not value.requires_grad and not value.is_meta:
        return copies.setdefault(id(value), value.clone())
    if isinstance(value, tuple):
        parts = [_copied(part, copies) for part in value]
        if any(part is not own for part, own in zip(parts, value, strict=True)):
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


class WrittenTo(Exception):
    """A forward pass is about to write to a tensor that it must not change."""


class Guard(TorchDispatchMode):
    """Stops a pass before an operator writes to the memory of some tensors, and holds what else it overwrites.

    Attributes:
        overwritten: memory that was there before the pass (of a closure, of the model's own parameters that its
            optimizer holds) and that an operator wrote to, with what it held.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        """Guard these tensors."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._memories: Collection[int] = {_memory(tensor) for tensor in tensors} - {0}
        self._made: set[int] = {0}
        self.overwritten: Overwritten = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Run an operator, unless it writes to what is guarded.

        Raises:
            WrittenTo: it does.
        """
        given = kwargs or {}
        if func._schema.is_mutable:
            for argument, value in zip(func._schema.arguments, args, strict=False):
                self._check(argument, value)
            for argument in func._schema.arguments:
                self._check(argument, given.get(argument.name))
        result = func(*args, **given)
        if not func._schema.is_mutable:
            self._made.update(_memory(tensor) for tensor in _tensors(result))
        return result

    def _check(self, argument: Any, value: Any) -> None:
        """Raise `WrittenTo` where an operator writes to the memory of a parameter by this argument; hold what other
        memory from before the pass has in it.
        """
        if argument.alias_info is None or not argument.alias_info.is_write:
            return
        for tensor in _tensors(value):
            memory = _memory(tensor)
            if memory in self._memories:
                raise WrittenTo
            if memory not in self._made and memory not in self.overwritten:
                storage = tensor.untyped_storage()
                self.overwritten[memory] = (storage, storage.clone())


def put_back(overwritten: Overwritten) -> None:
    """Give memory what it held before a pass."""
    for storage, before in overwritten.values():
        storage.copy_(before)


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of an operator's argument or result."""
    for each in value if isinstance(value, list | tuple) else (value,):
        if isinstance(each, Tensor):
            yield each


def _memory(tensor: Tensor) -> int:
    """Return the address of a tensor's memory, 0 of one that has none or none of its own."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return 0
