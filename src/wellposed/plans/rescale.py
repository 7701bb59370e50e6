"""Bringing tensors to a root mean square, as a whole or by channel."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from wellposed.errors import PlanError
from wellposed.plans.prescription import ByChannel, Rescaled

_PIECE = 1 << 20
"""Elements whose squares are summed at a time, in float64."""


def rescaled(values: Tensor, prescription: ByChannel) -> Tensor:
    """Return ``values`` at the scale that is prescribed: the same object where none is, or where they have it.

    Values (of a channel) whose root mean square agrees with the one that is asked for, to the rounding of their dtype,
    are left as they are: applying a plan twice gives the same bits as applying it once.

    Raises:
        PlanError: all values (of a channel) are zero, and a positive root mean square is asked for.
    """
    if prescription.channel_std is not None:
        assert prescription.output_axis is not None
        now = _of_rows(rows_along(values, prescription.output_axis))
        target = torch.tensor(prescription.channel_std, dtype=torch.float64, device="cpu")
        shape = [len(now) if axis == prescription.output_axis else 1 for axis in range(values.ndim)]
    elif isinstance(prescription, Rescaled):
        now, shape = _of_rows(values.reshape(1, -1)), []
        target = torch.tensor([prescription.std], dtype=torch.float64, device="cpu")
    else:
        return values
    if ((now == 0) & (target > 0)).any():
        raise PlanError(
            f"{prescription.name!r} is to be rescaled, but it is zero (in whole or in a channel), so that no factor "
            "can; initialise the model first, or leave the parameter out with skip="
        )
    agrees = (now - target).abs() <= torch.finfo(values.dtype).eps * target
    if agrees.all():
        return values
    factor = torch.where(now > 0, target / now.clamp_min(torch.finfo(torch.float64).tiny), 0.0)
    factor = torch.where(agrees, 1.0, factor).reshape(shape).to(values.device)
    return (values.double() * factor).to(values.dtype)


def rows_along(values: Tensor, axis: int) -> Tensor:
    """Return a matrix of one row for each index along an axis; of a vector, one of single elements."""
    return values.movedim(axis, 0).unsqueeze(1).flatten(1)


def _of_rows(rows: Tensor) -> Tensor:
    """Return the root mean square of each row, in float64 on the CPU.

    NumPy sums in one order, whatever the number of threads and of rows.
    """
    count, length = rows.shape
    roots = torch.empty(count, dtype=torch.float64, device="cpu")
    step = max(1, _PIECE // max(length, 1))
    for first in range(0, count, step):
        several = rows[first : first + step].detach()
        sums = [
            np.square(piece.to("cpu", torch.float64, copy=True).numpy()).sum(axis=-1)
            for piece in several.split(_PIECE, dim=1)
        ]
        means = torch.from_numpy(np.sum(sums, axis=0)) / max(length, 1)
        roots[first : first + step] = means.sqrt()
    return roots
