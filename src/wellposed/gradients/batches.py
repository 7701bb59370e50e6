"""Batches taken apart into samples and into sub-batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from wellposed.errors import GradientError, InputError
from wellposed.graphs.support import batch_fault


@dataclass(frozen=True, slots=True)
class Batch:
    """A user's batch, taken apart: which of its tensors have one row for each sample.

    Attributes:
        leaves: all leaves of the structure.
        split: the indices of the tensors whose first axis is that of the samples.
        size: the number of samples.
        spec: the structure.
    """

    leaves: tuple[Any, ...]
    split: tuple[int, ...]
    size: int
    spec: Any

    @classmethod
    def of(cls, batch: Any) -> Batch:
        """Take a batch apart: the samples are along the first axis of its first tensor with axes.

        Raises:
            InputError: the batch holds no tensor with axes, or one whose samples cannot be taken apart.
        """
        mapping = dict(batch) if isinstance(batch, Mapping) else batch  # transformers' collators give their own mapping
        leaves, spec = pytree.tree_flatten(mapping)
        for leaf in leaves:
            if isinstance(leaf, Tensor) and (why := _whole_only(leaf)):
                raise InputError(f"a tensor of the batch is {why}")
        first = next((leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.ndim), None)
        if first is None:
            raise InputError(
                f"a batch of type {type(batch).__name__} holds no tensor with a first axis of samples; give tensors, "
                "or tuples, lists or dicts of tensors"
            )
        size = first.shape[0]
        split = tuple(
            i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.ndim and leaf.shape[0] == size
        )
        return cls(tuple(leaves), split, size, spec)

    def rebuilt(self, leaves: Sequence[Any]) -> Any:
        """Return the user's structure with other leaves."""
        return pytree.tree_unflatten(list(leaves), self.spec)

    def rows(self, start: int, stop: int) -> Any:
        """Return the batch of the samples from ``start`` to ``stop``, in the user's structure."""
        chosen = set(self.split)
        return self.rebuilt([leaf[start:stop] if i in chosen else leaf for i, leaf in enumerate(self.leaves)])


def _whole_only(tensor: Tensor) -> str:
    """Return why a tensor's samples cannot be taken apart, and what to do; ``""`` where they can."""
    if fault := batch_fault(tensor):
        return fault
    if tensor.layout != torch.strided:
        return f"sparse ({str(tensor.layout).removeprefix('torch.')}); give it dense (Tensor.to_dense())"
    return ""


def of_single(
    loss: Callable[[Mapping[str, Tensor], Any], Tensor], batch: Batch
) -> Callable[[Mapping[str, Tensor], *tuple[Tensor, ...]], Tensor]:
    """Return the loss of one sample of ``batch`` as a function of the parameters and of its rows, for `vmap`.

    Args:
        loss: as `Problem.pure` gives it.
        batch: all samples; what is not split is taken from it.
    """
    split = set(batch.split)

    def of_one(parameters: Mapping[str, Tensor], *rows: Tensor) -> Tensor:
        given = iter(rows)
        leaves = [next(given).unsqueeze(0) if i in split else leaf for i, leaf in enumerate(batch.leaves)]
        return loss(parameters, batch.rebuilt(leaves))

    return of_one


def sub_batches(batch: Batch, count: int, overlap: float) -> list[Any]:
    """Split a batch into ``count`` sub-batches that share a part of their samples, in the user's structure.

    Each has N = B / (D − (D−1) r) samples, rounded up, and starts N (1 − r) after the one before it, so that the whole
    batch is used (NIO, eq. 7, whose N = B / (D − r) leaves samples over for D > 2).

    Args:
        batch: B samples.
        count: D, at least 2.
        overlap: r, the share of its samples that a sub-batch has in common with the next one, in [0, 1).

    Raises:
        GradientError: D < 2, r outside [0, 1), or fewer samples than sub-batches.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 2:
        raise GradientError(f"sub_batches must be an integer of at least 2, received {count!r}")
    if not 0.0 <= overlap < 1.0:
        raise GradientError(f"overlap must be at least 0 and below 1, received {overlap!r}")
    if batch.size < count:
        raise GradientError(
            f"a batch of {batch.size} sample(s) cannot be split into {count} sub-batches; give a larger batch, or "
            "lower sub_batches"
        )
    size = min(batch.size - count + 1, math.ceil(batch.size / (count - (count - 1) * overlap) - 1e-9))
    starts = [round(d * (batch.size - size) / (count - 1)) for d in range(count)]
    return [batch.rows(start, start + size) for start in starts]
