"""Images that are decoded when they are asked for: those of a data set that is too large to be held in memory."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

if TYPE_CHECKING:
    import datasets


class Pictures:
    """Encoded images of a table, taken as tensors are: by slices, by tensors of indices, in parts.

    Each is resized and cropped at its centre to a square, and standardised where it is told to be.
    """

    def __init__(self, table: datasets.Dataset, column: str, side: int) -> None:
        import datasets as library

        self._table = table.cast_column(column, library.Image(decode=False)).select_columns([column])
        self._column, self._side = column, side
        self._mean, self._std = torch.zeros(1, 3, 1, 1), torch.ones(1, 3, 1, 1)

    @property
    def shape(self) -> torch.Size:
        """``[count, 3, side, side]``."""
        return torch.Size((len(self._table), 3, self._side, self._side))

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, chosen: slice | Tensor) -> Tensor:
        """Return the images of a slice, or of a tensor of indices."""
        indices = list(range(len(self))[chosen]) if isinstance(chosen, slice) else chosen.tolist()
        encoded = self._table[indices][self._column]
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            decoded = list(threads.map(self._decoded, encoded))
        pixels = torch.from_numpy(np.stack(decoded)) if decoded else torch.empty(0, self._side, self._side, 3)
        return (pixels.permute(0, 3, 1, 2).float() - self._mean) / self._std

    def split(self, size: int) -> Iterator[Tensor]:
        """Yield the images in order, ``size`` at a time."""
        for start in range(0, len(self), size):
            yield self[start : start + size]

    def standardised(self, mean: Tensor, std: Tensor) -> Pictures:
        """Return the same images less a mean, over a standard deviation, each ``[1, 3, 1, 1]``."""
        made = Pictures(self._table, self._column, self._side)
        made._mean, made._std = mean, std
        return made

    def _decoded(self, encoded: dict[str, bytes | str | None]) -> NDArray[np.uint8]:
        held, path = encoded["bytes"], encoded["path"]
        assert held is not None or path is not None
        with Image.open(io.BytesIO(held) if isinstance(held, bytes) else str(path)) as picture:
            return np.asarray(ImageOps.fit(picture.convert("RGB"), (self._side, self._side)), dtype=np.uint8)
