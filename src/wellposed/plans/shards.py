"""Which part of a parameter this process holds."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wellposed.plans.places import Box, whole
from wellposed.ranks import is_distributed


def whole_of(tensor: Tensor) -> Tensor:
    """Return the whole of a tensor; of a sharded one by messages."""
    sharded: Any = tensor
    whole_: Tensor = sharded.full_tensor() if is_distributed(tensor) else tensor
    return whole_


def local_parts(parameter: Tensor) -> list[tuple[Box, Tensor]]:
    """Return what this process holds of a parameter: for each part its place and its memory, which nothing tracks.

    A parameter that is not sharded is one part. Of a sharded one (DTensor) every placement is read off the positions
    that it leaves of each axis, without messages: rows, columns, uneven ones, several axes or one in strides.
    """
    if not is_distributed(parameter):
        return [(whole(parameter.shape), parameter.detach())]
    sharded: Any = parameter
    local: Tensor = sharded.to_local().detach()
    if not local.numel():
        return []
    parts: list[tuple[Box, Tensor]] = []
    for ranges in product(*(_ranges(sharded, axis) for axis in range(sharded.ndim))):
        box = tuple((first, first + length) for first, _, length in ranges)
        parts.append((box, local[tuple(slice(place, place + length) for _, place, length in ranges)]))
    return parts


def _ranges(sharded: Any, axis: int) -> list[tuple[int, int, int]]:
    """Return the ranges of neighbours that are held along an axis: position in the whole, place here, and length."""
    size = sharded.shape[axis]
    placements = [_along(placement, axis) for placement in sharded.placements]
    if all(placement.is_replicate() for placement in placements):
        return [(0, 0, size)]
    from torch.distributed.tensor import DTensor, Replicate

    mesh = sharded.device_mesh
    every = torch.arange(size, device=sharded.to_local().device)
    unsharded = DTensor.from_local(every, mesh, [Replicate()] * mesh.ndim, run_check=False)
    held = unsharded.redistribute(placements=placements).to_local().cpu().numpy()
    starts = np.flatnonzero(np.diff(held, prepend=-2) != 1).tolist()
    return [(int(held[first]), first, end - first) for first, end in zip(starts, [*starts[1:], len(held)], strict=True)]


def _along(placement: Any, axis: int) -> Any:
    """Return the placement of a vector along one axis of a tensor that has this placement."""
    from torch.distributed.tensor import Replicate, Shard

    if getattr(placement, "dim", None) != axis:
        return Replicate()
    strides = getattr(placement, "split_factor", None)
    return Shard(0) if strides is None else type(placement)(0, split_factor=strides)
