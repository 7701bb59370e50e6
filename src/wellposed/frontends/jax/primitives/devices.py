"""Collective operations on one device (`devices`): shapes change, numbers do not.

Over a positional axis, which is what `jax.vmap` makes of a named one, the same primitives are sums and maxima.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from wellposed.frontends.jax.primitives.registry import Rule, rule


def _over_places(function: Rule) -> Rule:
    """Return a rule that reduces over the positional axes among those that are named."""

    def call(*operands: Tensor, axes: Sequence[Any], **_params: Any) -> list[Tensor]:
        places = tuple(axis for axis in axes if isinstance(axis, int))
        return [function(x, places) if places else x for x in operands]

    return call


rule("psum")(_over_places(torch.sum))
rule("pmax")(_over_places(torch.amax))
rule("pmin")(_over_places(torch.amin))


@rule("all_gather")
def _all_gather(x: Tensor, *, all_gather_dimension: int, tiled: bool, **_params: Any) -> Tensor:
    return x if tiled else x.unsqueeze(all_gather_dimension)


@rule("reduce_scatter")
def _reduce_scatter(x: Tensor, *, scatter_dimension: int, tiled: bool, **_params: Any) -> Tensor:
    return x if tiled else x.squeeze(scatter_dimension)


@rule("axis_index")
def _axis_index(**_params: Any) -> Tensor:
    return torch.zeros((), dtype=torch.int32)
