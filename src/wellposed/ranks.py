"""Ranks of a distributed run that work together: each brings batches of its own, all arrive at the same answer."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from wellposed.errors import RankError, in_words

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
    return loaded is not None and issubclass(type(tensor), loaded.DTensor)  # `isinstance` asks the tensor too


def is_held(tensor: Tensor) -> bool:
    """Whether this process holds all numbers of ``tensor``: it is neither on meta nor sharded."""
    return not tensor.is_meta and not is_distributed(tensor)


def resharded_(model: nn.Module) -> None:
    """Free the whole parameters that FSDP2 may still hold of a pass, so that the shards are the model's again."""
    for module in model.modules():
        reshard = getattr(module, "reshard", None) if hasattr(type(module), "reshard") else None  # a class has it
        if callable(reshard) and any(base.__name__ == "FSDPModule" for base in type(module).__mro__):
            reshard()


def ungrouped() -> bool:
    """Whether a launcher started several processes that have not been joined into a process group."""
    return count() == 1 and int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def exchanging() -> Iterator[Callable[[T], list[T]]]:
    """Run a block that gathers values of all ranks on its way, by the function that it is given.

    Where the block raises on one rank, it raises on all, when they gather next or at the end; none waits for ever.

    Raises:
        RankError: the block failed on another rank (names it, with its message).
    """
    heard = False

    def gather(value: T) -> list[T]:
        """Return the values of all ranks in their order; raises `RankError` where one of them has failed."""
        nonlocal heard
        messages = gathered((index(), "", "", value))
        for rank, kind, words, _ in messages:
            if kind:
                heard = True
                raise RankError(f"rank {rank} failed: {kind}: {words}", kind)
        return [each for *_, each in messages]

    try:
        yield gather
    except Exception as error:  # of any class: the others wait for a message
        if not heard:
            gathered((index(), type(error).__name__, in_words(error), None))
        raise
    gather(None)


@contextmanager
def failing_together() -> Iterator[None]:
    """Run a block without messages on every rank; where it raises on one, it raises on all, and none waits for ever.

    Raises:
        RankError: the block failed on another rank (names it, with its message).
    """
    with exchanging():
        yield


def averaged_(tensors: Sequence[Tensor]) -> None:
    """Replace each tensor by its mean over the ranks, in place, by one message for each dtype."""
    if count() == 1:
        return
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):  # in one order on all ranks
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
    values: list[Any] = [None] * count()
    dist.all_gather_object(values, value)
    return values


def mean(value: float) -> float:
    """Return the mean of every rank's ``value``."""
    return math.fsum(gathered(value)) / count()


def agreed(value: bool) -> bool:
    """Whether ``value`` holds on every rank."""
    return all(gathered(value))


def shared(value: T) -> T:
    """Return rank 0's ``value``."""
    return gathered(value)[0]
