"""Batches that are drawn anew, by generators: noise, tokens, and what else models of other libraries take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Make = Callable[[torch.Generator], Any]
Entry = tuple[str, Callable[[], nn.Module], tuple[Make, ...] | dict[str, Make]]
"""A name, what makes the model, and how to draw what it is called with."""


def noise(*shape: int) -> Make:
    """White noise."""
    return lambda generator: torch.randn(shape, generator=generator)


def uniform(*shape: int) -> Make:
    """Numbers between 0 and 1."""
    return lambda generator: torch.rand(shape, generator=generator)


def integers(high: int, *shape: int) -> Make:
    """Integers, equally likely."""
    return lambda generator: torch.randint(high, shape, generator=generator)


def same(value: Any) -> Make:
    """The same in every batch."""
    return lambda generator: value


def side_by_side(*makers: Make) -> Make:
    """Columns put side by side, as floats."""
    return lambda generator: torch.cat([maker(generator).float() for maker in makers], dim=-1)


def batch_of(makers: tuple[Make, ...] | dict[str, Make], draw: int) -> Any:
    """Return the batch of a draw."""
    generator = torch.Generator().manual_seed(draw)
    if isinstance(makers, dict):
        return {name: maker(generator) for name, maker in makers.items()}
    return tuple(maker(generator) for maker in makers)
