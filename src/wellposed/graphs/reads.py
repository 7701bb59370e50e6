"""How Python code reads or makes tensors without an operator that the dispatcher shows."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from wellposed.graphs.aliasing import Base, Record
from wellposed.graphs.execution import NeedsValuesError
from wellposed.graphs.source import user_line

_READERS: frozenset[Any] = frozenset({torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__})
_SHARERS: frozenset[Any] = _READERS | {torch.Tensor.__dlpack__}
_PLACES: dict[Any, Any] = {
    torch.Tensor.device.__get__: torch.device("cpu"),
    torch.Tensor.is_cpu.__get__: True,  # type: ignore[attr-defined]
    torch.Tensor.is_meta.__get__: False,  # type: ignore[attr-defined]
}
_INDEXERS: frozenset[Any] = frozenset({torch.Tensor.__getitem__, torch.Tensor.__setitem__})
_MAKERS: frozenset[Any] = frozenset({torch.tensor, torch.as_tensor, torch.asarray})


class PythonReads(TorchFunctionMode):
    """Gives ``tolist`` and ``numpy`` the known values of meta tensors, and keeps the values of new constants.

    Every tensor says that it is on CPU: models choose what to run by the device, and know none called meta.

    While it is active PyTorch also leaves its fused inference kernels for transformer layers aside, because these do
    not support overridden functions; so the layers' own operators are seen.
    """

    def __init__(self, find: Callable[[torch.Tensor], Record]) -> None:
        super().__init__()
        self.find = find

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Answer for the device and values of a tensor, and run all else with new constants on the CPU."""
        if func in _PLACES:
            return _PLACES[func]
        if _is_reader(func) and args[0].device.type == "meta":
            return self._read(func, args, kwargs or {})
        if func is torch.Tensor.to and not kwargs and _is_there(*args):
            return args[0]
        if func in _MAKERS and kwargs:
            kwargs = _on_cpu(args, kwargs)
        elif func is torch.Tensor.new_tensor and not isinstance(args[1], torch.Tensor):
            return _new_tensor(args, kwargs)
        elif func in _INDEXERS and type(args[1]) in (list, tuple, range, numpy.ndarray):
            args = (args[0], _with_tensors(args[1]), *args[2:])
        return func(*args, **kwargs) if kwargs else func(*args)

    def _read(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run a reader on the known values of a meta tensor.

        Raises `NeedsValuesError` where they are not known.
        """
        with _disable_current_modes():
            record = self.find(args[0])
            if not record.base.known or record.real is None:
                raise NeedsValuesError(f"Tensor.{func.__name__}() reads values that depend on parameters")
            if func is torch.Tensor.untyped_storage:
                return _storage(record.real, args[0])
            return func(record.real.clone(), *args[1:], **kwargs)


class Leaving(TorchFunctionMode):
    """Notes where real numbers that are not known beforehand are handed to NumPy, another library or a list.

    Memory of the user's is kept (``keep``) before it is shown to those: what they write to it no operator shows.
    """

    def __init__(
        self, find: Callable[[torch.Tensor], Record], left: list[tuple[str, str]], keep: Callable[[Base], None]
    ) -> None:
        super().__init__()
        self.find = find
        self.left = left
        self.keep = keep

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Note a read of values that are not known, keep memory that is shared, and run the function."""
        if func in _SHARERS:
            with _disable_current_modes():
                base = self.find(args[0]).base
                if args[0].is_floating_point() and not base.known:
                    self.left.append((func.__name__, user_line()))
                if func is not torch.Tensor.tolist:
                    self.keep(base)
        return func(*args, **kwargs) if kwargs else func(*args)


def _is_reader(func: Any) -> bool:
    """Whether a function asks for the values of a tensor: also for its memory, where it is pickled, of which PyTorch
    shows no other sign.
    """
    if func is not torch.Tensor.untyped_storage:
        return func in _READERS
    caller = sys._getframe(2).f_back
    return caller is not None and caller.f_code is torch.Tensor._reduce_ex_internal.__code__


def _storage(values: torch.Tensor, tensor: torch.Tensor) -> torch.UntypedStorage:
    """Return memory that holds known values as a meta tensor's memory would."""
    held = torch.zeros(tensor.untyped_storage().nbytes() // tensor.itemsize, dtype=tensor.dtype)
    places = torch.arange(held.numel()).as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
    held[places.reshape(-1)] = values.reshape(-1)
    return held.untyped_storage()


def _is_there(tensor: torch.Tensor, *wanted: Any) -> bool:
    """Whether ``tensor.to(wanted)`` would give the tensor back: one on meta counts as being on every device."""
    if len(wanted) != 1 or tensor.device.type != "meta":
        return False
    return isinstance(wanted[0], (str, torch.device)) or wanted[0] is tensor.dtype


def _new_tensor(args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> torch.Tensor:
    """Return the constant that ``new_tensor`` makes of numbers, on CPU, where its values are kept."""
    options = {"dtype": args[0].dtype, **(kwargs or {}), "device": "cpu"}
    return torch.tensor(*args[1:], **options)


def _on_cpu(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keyword arguments that make a constant of numbers on CPU, where its values are kept."""
    wanted = kwargs.get("device") is not None and not isinstance(args[0], torch.Tensor)
    return {**kwargs, "device": "cpu"} if wanted else kwargs


def _with_tensors(index: Any) -> Any:
    """Return an index in which lists and arrays of numbers are tensors: PyTorch would put them on meta, values lost."""
    if isinstance(index, tuple):
        return tuple(_with_tensors(item) for item in index)
    if isinstance(index, (list, range, numpy.ndarray)) and _numbers(index):
        return torch.tensor(list(index)) if isinstance(index, range) else torch.tensor(index)
    return index


def _numbers(item: Any) -> bool:
    """Whether ``item`` is a number, or a non-empty list of such."""
    if isinstance(item, (list, range)):
        return len(item) > 0 and all(_numbers(part) for part in item)
    return isinstance(item, (int, numpy.ndarray, numpy.integer))
