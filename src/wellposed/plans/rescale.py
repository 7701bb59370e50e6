"""Bringing tensors to a root mean square, as a whole or by channel."""

from __future__ import annotations

import torch
from torch import Tensor

from wellposed.errors import PlanError
from wellposed.plans.prescription import Prescription


def rescaled(values: Tensor, said: Prescription) -> Tensor:
    """Return ``values`` scaled as ``said`` wants: unchanged, the same object, where it wants nothing or they fit.

    Values whose root mean square agrees with the one that is asked for, to the rounding of their dtype, are left as
    they are: applying a plan twice gives the same bits as applying it once.

    Raises:
        PlanError: all values (of a channel) are zero, and a positive root mean square is asked for.
    """
    if said.distribution != "rescale" and said.channel_std is None:
        return values
    wide = values.double()
    if said.channel_std is None:
        assert said.std is not None
        target = torch.tensor(said.std, dtype=torch.float64, device=values.device)
        now = wide.square().mean().sqrt()
    else:
        assert said.output_axis is not None
        others = [axis for axis in range(values.ndim) if axis != said.output_axis]
        now = wide.square().mean(others, keepdim=True).sqrt() if others else wide.abs()
        target = torch.tensor(said.channel_std, dtype=torch.float64, device=values.device).reshape(now.shape)
    if ((now == 0) & (target > 0)).any():
        raise PlanError(
            f"{said.name!r} is to be rescaled, but it is zero (in whole or in a channel), so that no factor does it; "
            "initialise the model first, or leave the parameter out with skip="
        )
    if ((now - target).abs() <= torch.finfo(values.dtype).eps * target).all():
        return values
    return (wide * torch.where(now > 0, target / now.clamp_min(torch.finfo(torch.float64).tiny), 0.0)).to(values.dtype)
