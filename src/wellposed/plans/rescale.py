"""Bringing tensors to a root mean square, as a whole or by channel."""

from __future__ import annotations

import torch
from torch import Tensor

from wellposed.errors import PlanError
from wellposed.plans.prescription import ByChannel, Rescaled


def rescaled(values: Tensor, prescription: ByChannel) -> Tensor:
    """Return ``values`` at the scale that is prescribed: the same object where none is, or where they have it.

    Values whose root mean square agrees with the one that is asked for, to the rounding of their dtype, are left as
    they are: applying a plan twice gives the same bits as applying it once.

    Raises:
        PlanError: all values (of a channel) are zero, and a positive root mean square is asked for.
    """
    if prescription.channel_std is not None:
        wide = values.double()
        others = [axis for axis in range(values.ndim) if axis != prescription.output_axis]
        now = wide.square().mean(others, keepdim=True).sqrt() if others else wide.abs()
        target = torch.tensor(prescription.channel_std, dtype=torch.float64, device=values.device).reshape(now.shape)
    elif isinstance(prescription, Rescaled):
        wide = values.double()
        now = wide.square().mean().sqrt()
        target = torch.tensor(prescription.std, dtype=torch.float64, device=values.device)
    else:
        return values
    if ((now == 0) & (target > 0)).any():
        raise PlanError(
            f"{prescription.name!r} is to be rescaled, but it is zero (in whole or in a channel), so that no factor "
            "can; initialise the model first, or leave the parameter out with skip="
        )
    if ((now - target).abs() <= torch.finfo(values.dtype).eps * target).all():
        return values
    return (wide * torch.where(now > 0, target / now.clamp_min(torch.finfo(torch.float64).tiny), 0.0)).to(values.dtype)
