"""What one optimizer does in a step: the size of each parameter's update, and the ratios between its groups' rates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from wellposed import ranks

Figures = dict[str, float]


class Updates:
    """The updates of an optimizer's parameters, by the names that the model gives them."""

    def __init__(self, optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> None:
        """Take the optimizer, and the parameters' names by their ids; those without a name are left out."""
        self._optimizer = optimizer
        self._names = names
        self._before: list[tuple[str, Tensor, Tensor]] = []

    def begin(self) -> None:
        """Copy the parameters before a step."""
        self._before = [
            (self._names[id(parameter)], parameter.detach(), parameter.detach().clone())
            for group in self._optimizer.param_groups
            for parameter in group["params"]
            if id(parameter) in self._names and parameter.requires_grad and parameter.numel()
        ]

    def end(self) -> Figures:
        """Return the sizes of the updates since `begin`, and forget the copies.

        Returns:
            ``updates/<parameter>``: ‖ΔW‖ / ‖W‖, W being the parameter before the step; left out where W is zero.
            ``update_rms/<parameter>``: root mean square of ΔW, in the parameter's units.
        """
        before, self._before = self._before, []
        if not before:
            return {}
        changes = _norms(now.float() - old.float() for _, now, old in before)
        sizes = _norms(old for _, _, old in before)
        figures: Figures = {}
        for (name, now, _), change, size in zip(before, changes, sizes, strict=True):
            if size != 0.0:
                figures[f"updates/{name}"] = change / size
            figures[f"update_rms/{name}"] = change / math.sqrt(now.numel())
        return figures


def _norms(tensors: Iterable[Tensor]) -> list[float]:
    """Return the Euclidean norms of whole tensors, also where ranks hold shards of them; one transfer for all.

    Each tensor is released before the next one is requested.
    """
    norms: list[Tensor] = []
    for tensor in tensors:
        norm: Any = torch.linalg.vector_norm(tensor.float())
        norms.append(norm.full_tensor() if ranks.is_distributed(norm) else norm)
    values: list[float] = torch.stack([norm.to(norms[0].device) for norm in norms]).tolist()
    return values


def rate_figures(groups: Sequence[Mapping[str, Any]]) -> Figures:
    """Return the ratios between the rates of parameter groups.

    Args:
        groups: ``optimizer.param_groups``.

    Returns:
        ``rates/<group>``: the rate over that of the first group of the same family; ``rates_over_plan/<group>``, for
        groups of `Plan.param_groups`: the same over what the plan asked for, 1 where it is kept. Groups are called by
        their ``name``, or else by their index. A single group, or a first rate of 0, has no ratios.
    """
    figures: Figures = {}
    first: dict[str, Mapping[str, Any]] = {}
    for index, group in enumerate(groups):
        base = first.setdefault(str(group.get("family", "")), group)
        if len(groups) < 2 or float(base["lr"]) == 0.0:
            continue
        name = group.get("name", index)
        ratio = figures[f"rates/{name}"] = float(group["lr"]) / float(base["lr"])
        asked, unit = (float(g.get("lr_multiplier", 0.0)) for g in (group, base))
        if asked and unit:
            figures[f"rates_over_plan/{name}"] = ratio * unit / asked
    return figures
