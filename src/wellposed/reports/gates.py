"""Scales of residual branches that start small on purpose: they close the branches for the first steps alone.

A scale is a parameter, whose gradient does not shrink with it: it grows as soon as a training needs the branch
(LayerScale, Touvron et al. 2021, arXiv 2103.17239). What reaches the output through such branches only learns then.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from wellposed.graphs import Graph
from wellposed.graphs.graph import once
from wellposed.structure.roles import roles
from wellposed.structure.streams import residual_streams

_SMALL = 0.1
"""Root mean square below which a scale closes its branch. Chosen: a branch then adds a hundredth of its power."""


@once
def _scales(graph: Graph) -> tuple[str, ...]:
    """Return the parameters that do nothing but scale what a residual branch adds."""
    ends = {name for stream in residual_streams(graph) for branch in stream.branches for name in branch.carriers}
    return tuple(name for name, role in roles(graph).items() if name in ends and role == "other")


def opened(graph: Graph, parameters: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """Return parameters with every small scale of a branch brought to a root mean square of 1; None without any.

    Args:
        graph: from `wellposed.trace`.
        parameters: by name.
    """
    sizes = {name: float(parameters[name].double().square().mean().sqrt()) for name in _scales(graph)}
    small = {name: parameters[name] / size for name, size in sizes.items() if 0.0 < size < _SMALL}
    return {**parameters, **small} if small else None
