"""The memory of tensors, as numbers are put into it: of any dtype, layout and device."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch

from wellposed.plans.streams import BLOCK, Floats, room

_CHUNK = 1 << 14
"""Elements that PyTorch converts at a time on the CPU: so few it leaves to one thread; its own would get in the way."""

_local = threading.local()


class Memory:
    """A tensor that is written in parts of a matrix of all its elements, in row-major order, by several threads.

    The storage of a tensor that is handed to NumPy by ``numpy()`` can never be resized again, which FSDP does; so it is
    reached by its address.
    """

    def __init__(self, tensor: torch.Tensor, rows: int, columns: int) -> None:
        """View the tensor as a matrix, ``rows`` by ``columns``, of NumPy where it is float32 on the CPU."""
        self.tensor: torch.Tensor = tensor
        self._columns = columns
        self._matrix: torch.Tensor | None = tensor.view(rows, columns) if tensor.is_contiguous() else None
        on_cpu = tensor.device.type == "cpu" and type(tensor) in (torch.Tensor, torch.nn.Parameter)
        self._array: Floats | None = None
        if on_cpu and tensor.dtype == torch.float32 and self._matrix is not None and tensor.numel():
            self._array = np.asarray(_Address(tensor)).reshape(rows, columns)
        if self._array is not None and not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)  # autograd does not see what NumPy writes

    def part(self, row: int, rows: int, column: int, columns: int) -> Floats:
        """Return where the numbers of a part are to be written, for `done`: the memory itself, or a buffer."""
        if self._array is None:
            return _buffer(self.tensor.device)[: rows * columns].reshape(rows, columns)
        return self._array[row : row + rows, column : column + columns]

    def done(self, row: int, column: int, numbers: Floats) -> None:
        """Put the numbers in their places, from a row and a column on, unless they are there."""
        if self._array is not None:
            return
        rows, columns = numbers.shape
        most = _CHUNK if self.tensor.device.type == "cpu" else numbers.size
        high, wide = max(1, most // columns), min(columns, most)
        with torch.inference_mode(self.tensor.is_inference()), torch.no_grad():
            for down in range(0, rows, high):
                for along in range(0, columns, wide):
                    part = numbers[down : down + high, along : along + wide]
                    self._copy(row + down, column + along, torch.from_numpy(part))

    def _copy(self, row: int, column: int, values: torch.Tensor) -> None:
        """Write ``values``, (rows, columns), to a tensor that NumPy does not reach; one without a matrix view by
        indices.
        """
        rows, columns = values.shape
        if self._matrix is not None:
            self._matrix[row : row + rows, column : column + columns].copy_(values)
            return
        down, along = (torch.arange(a, a + n, device="cpu") for a, n in ((row, rows), (column, columns)))
        at = down[:, None] * self._columns + along
        places = torch.unravel_index(at, self.tensor.shape)
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
    if device.type != "cuda":
        return room("numbers", BLOCK)
    if not hasattr(_local, "pinned"):
        _local.pinned = torch.empty(BLOCK, dtype=torch.float32, device="cpu", pin_memory=True).numpy()
    numbers: Floats = _local.pinned
    return numbers
