"""Ranks of a distributed run that work together: each brings batches of its own, all arrive at the same answer."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from wellposed.errors import RankError

T = TypeVar("T")


def count() -> int:
    """Return the number of ranks in the default process group; 1 where there is none."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def index() -> int:
    """Return this process's rank; 0 where there is no process group."""
    return dist.get_rank() if count() > 1 else 0


def is_distributed(tensor: Tensor) -> bool:
    """Whether ``tensor`` is a DTensor (FSDP2, tensor parallelism), without importing what nobody has imported."""
    loaded = sys.modules.get("torch.distributed.tensor")
    return loaded is not None and isinstance(tensor, loaded.DTensor)


def ungrouped() -> bool:
    """Whether a launcher started several processes that have not been joined into a process group."""
    return count() == 1 and int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def failing_together() -> Iterator[None]:
    """Run a block without messages on every rank; where it raises on one, it raises on all, and none waits for ever.

    Raises:
        RankError: the block failed on another rank (names it, and what it said).
    """
    if count() == 1:
        yield
        return
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    said = gathered((index(), None if failure is None else f"{type(failure).__name__}: {failure}"))
    if failure is not None:
        raise failure
    for rank, words in said:
        if words is not None:
            raise RankError(f"rank {rank} failed: {words}")


def averaged_(tensors: Sequence[Tensor]) -> None:
    """Replace each tensor by its mean over the ranks, in place, by one message for each dtype."""
    if count() == 1:
        return
    for dtype in {tensor.dtype for tensor in tensors}:
        group = [tensor for tensor in tensors if tensor.dtype == dtype]
        flat = torch.cat([tensor.reshape(-1) for tensor in group])
        dist.all_reduce(flat)
        flat /= count()
        for tensor, part in zip(group, flat.split([tensor.numel() for tensor in group]), strict=True):
            tensor.copy_(part.view_as(tensor))


def summed_(tensors: Sequence[Tensor]) -> None:
    """Replace each tensor by its sum over the ranks, in place."""
    if count() > 1:
        for tensor in tensors:
            dist.all_reduce(tensor)


def first_(tensors: Sequence[Tensor]) -> None:
    """Replace each tensor by that of rank 0, in place."""
    if count() > 1:
        for tensor in tensors:
            dist.broadcast(tensor, src=0)


def gathered(value: T) -> list[T]:
    """Return every rank's ``value``, in the order of the ranks."""
    if count() == 1:
        return [value]
    values: list[T | None] = [None] * count()
    dist.all_gather_object(values, value)
    return [value for value in values if value is not None]


def agreed(value: bool) -> bool:
    """Whether ``value`` holds on every rank."""
    return all(gathered(value))


def shared(value: T) -> T:
    """Return rank 0's ``value``."""
    return gathered(value)[0]
