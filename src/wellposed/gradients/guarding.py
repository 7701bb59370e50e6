"""Where a forward pass writes: to copies of what modules hold as attributes, and not to parameters unseen."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

Copies: TypeAlias = dict[int, Tensor]
"""Copies of tensors by their identity."""


def copy_attributes_(model: nn.Module) -> None:
    """Put copies in the place of plain tensors that modules hold as attributes (counters, caches), or in lists
    and dicts among these; only for use under `wellposed.graphs.restore.restored_attributes`.
    """
    copies: Copies = {}
    for module in model.modules():
        attributes = module.__dict__
        _copy_in(attributes, attributes.items(), copies)
        for name, value in attributes.items():
            if isinstance(value, dict) and name not in ("_parameters", "_buffers", "_modules"):
                _copy_in(value, value.items(), copies)
            elif isinstance(value, list):
                _copy_in(value, enumerate(value), copies)


def _copy_in(
    container: dict[Any, Any] | list[Any], items: Iterable[tuple[Any, Any]], copies: dict[int, Tensor]
) -> None:
    for key, value in list(items):
        # parameters and others that gradients pass through are no state of the pass
        if type(value) is Tensor and not value.requires_grad and not value.is_meta:
            container[key] = copies.setdefault(id(value), value.clone())


class WrittenTo(Exception):
    """A forward pass is about to write to a tensor that it is to leave alone."""


class Guard(TorchDispatchMode):
    """Stops a pass before an operator writes to the memory of some tensors."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        """Guard these tensors."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._memories: Collection[int] = {_memory(tensor) for tensor in tensors} - {0}

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
        return func(*args, **given)

    def _check(self, argument: Any, value: Any) -> None:
        if argument.alias_info is None or not argument.alias_info.is_write:
            return
        for tensor in value if isinstance(value, list | tuple) else (value,):
            if isinstance(tensor, Tensor) and _memory(tensor) in self._memories:
                raise WrittenTo


def _memory(tensor: Tensor) -> int:
    """Return the address of a tensor's memory, 0 of one that has none or none of its own."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return 0
