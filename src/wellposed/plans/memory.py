"""The memory of tensors, as numbers are put into it: of any dtype, layout and device."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch

from wellposed.plans.streams import BLOCK, Floats

_CHUNK = 1 << 14
"""Elements that PyTorch converts at a time: so few it leaves to one thread, and its own would only get in the way."""

_local = threading.local()


class Memory:
    """A tensor that is written in ranges of its elements, in row-major order, by several threads.

    The storage of a tensor that is handed to NumPy by ``numpy()`` can never be resized again, which FSDP does; so it is
    reached by its address.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor: torch.Tensor = tensor
        self._flat: torch.Tensor | None = tensor.view(-1) if tensor.is_contiguous() else None
        on_cpu = tensor.device.type == "cpu" and type(tensor) in (torch.Tensor, torch.nn.Parameter)
        self._array: Floats | None = None
        if on_cpu and tensor.dtype == torch.float32 and self._flat is not None and tensor.numel():
            self._array = np.asarray(_Address(tensor))
        if self._array is not None and not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)  # autograd does not see what NumPy writes

    def range(self, first: int, count: int) -> Floats:
        """Return where the numbers of a range are to be written, for `done`: the memory itself, or a buffer."""
        return _buffer(self.tensor.device)[:count] if self._array is None else self._array[first : first + count]

    def done(self, first: int, numbers: Floats) -> None:
        """Put the numbers in their places, unless they are there."""
        if self._array is not None:
            return
        with torch.inference_mode(self.tensor.is_inference()), torch.no_grad():
            for begin in range(0, numbers.size, _CHUNK):
                self._copy(first + begin, torch.from_numpy(numbers[begin : begin + _CHUNK]))

    def _copy(self, first: int, values: torch.Tensor) -> None:
        if self._flat is not None:
            self._flat[first : first + values.numel()].copy_(values)
            return
        places = torch.unravel_index(torch.arange(first, first + values.numel()), self.tensor.shape)
        self.tensor[tuple(place.to(self.tensor.device) for place in places)] = values.to(self.tensor)


class _Address:
    """A contiguous float32 tensor on the CPU, as NumPy's array interface describes it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.__array_interface__: dict[str, Any] = {
            "data": (tensor.data_ptr(), False),
            "shape": (tensor.numel(),),
            "typestr": np.dtype(np.float32).str,
            "version": 3,
        }


def _buffer(device: torch.device) -> Floats:
    """Return this thread's buffer of one block, whose pages the device can read by itself where that is a GPU."""
    kind = "pinned" if device.type == "cuda" else "plain"
    if not hasattr(_local, kind):
        buffer = torch.empty(BLOCK, dtype=torch.float32, device="cpu", pin_memory=kind == "pinned")
        setattr(_local, kind, buffer.numpy())
    numbers: Floats = getattr(_local, kind)
    return numbers
