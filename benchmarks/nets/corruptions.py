"""Ways to corrupt a parameter, in place, of which a check is to speak."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def permuted_(held: Tensor) -> None:
    """Put the elements into another order."""
    held.copy_(held.flatten()[torch.randperm(held.numel(), generator=_generator())].view_as(held))


CORRUPTIONS: dict[str, Callable[[Tensor], object]] = {
    "4 times as large": lambda held: held.mul_(4.0),
    "a quarter as large": lambda held: held.mul_(0.25),
    "zero": lambda held: held.zero_(),
    "constant": lambda held: held.fill_(0.3),
    "one element NaN": lambda held: held.view(-1)[:1].fill_(float("nan")),
    "one element infinite": lambda held: held.view(-1)[-1:].fill_(float("inf")),
    "drawn by another fan": lambda held: held.copy_(
        torch.randn(held.shape, generator=_generator()) * 3.0 / held.shape[0]
    ),
    "permuted": permuted_,
}
"""By what they do."""
