"""Biases that cancel a mean: minus a value times the sums of a weight over all that one output adds up."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wellposed.plans.filling import by_output, channels_of
from wellposed.plans.prescription import Centering, Constant, Drawn, Prescription

_TILE = 1 << 21
"""Elements of a weight that are held in float64 at a time."""

Sums = Callable[[int, int], npt.NDArray[np.float64]]
"""The sums of a weight for the outputs from a first one to before a last one."""


def centred(bias: Centering, sums: Sums, first: int, end: int) -> Tensor:
    """Return the elements of a bias, in float32, for the outputs from ``first`` to before ``end``."""
    return torch.from_numpy(-bias.value * sums(first, end)).float() if end > first else torch.empty(0, device="cpu")


def sums_of(weight: Tensor, prescription: Prescription) -> Sums:
    """Return the sums of a weight that is held whole."""
    assert prescription.output_axis is not None
    rows = by_output(weight.detach(), prescription.output_axis, prescription.groups)
    outputs = rows.shape[1]

    def sums(first: int, end: int) -> npt.NDArray[np.float64]:
        """Return the sums of output channels ``first`` to ``end``, (end - first,) in double precision."""
        found = []
        for group in range(first // outputs, -(-end // outputs)):
            low, high = max(first - group * outputs, 0), min(end - group * outputs, outputs)
            found += [_sums(tile) for tile in rows[group, low:high].split(_rows(rows.shape[2]))]
        return np.concatenate(found)

    return sums


def sums_drawn(prescription: Drawn | Constant, seed: int, dtype: torch.dtype) -> Sums:
    """Return the sums of a weight as it is written in this dtype: it is drawn again, some outputs at a time."""
    axis, groups, shape = prescription.output_axis, prescription.groups, prescription.shape
    assert axis is not None
    if axis != 0 and groups > 1:  # an output is a part of a channel
        return sums_of(channels_of(prescription, seed, axis, 0, shape[axis]).to(dtype), prescription)
    step = _rows(math.prod(shape) // max(shape[axis], 1))

    def sums(first: int, end: int) -> npt.NDArray[np.float64]:
        """Return the sums of output channels ``first`` to ``end``, (end - first,), drawn ``step`` at a time."""
        found = []
        for low in range(first, end, step):
            drawn = channels_of(prescription, seed, axis, low, min(low + step, end)).to(dtype)
            found.append(_sums(by_output(drawn, axis, 1)[0]))
        return np.concatenate(found)

    return sums


def _rows(length: int) -> int:
    return max(1, _TILE // max(length, 1))


def _sums(rows: Tensor) -> npt.NDArray[np.float64]:
    """Return the sum of each row: NumPy sums in one order, whatever the number of threads and of rows."""
    wide = rows.to("cpu", torch.float64, copy=True).contiguous()
    summed: npt.NDArray[np.float64] = wide.numpy().sum(axis=-1)
    return summed
