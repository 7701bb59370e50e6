"""Prescriptions of parameters that carry a constant factor in place of an operator in the model's forward pass."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from wellposed.arrays import only_number
from wellposed.errors import PlanError
from wellposed.graphs import Graph
from wellposed.plans import Centering, Constant, Drawn, Prescription, Rescaled
from wellposed.structure.carriers import offset_of


def times(graph: Graph, before: Prescription, factor: float, words: str) -> Prescription:
    """Return a prescription scaled by ``factor``, which multiplies the constant that its parameter carries.

    Raises:
        PlanError: the parameter is kept as the model makes it, and its values are not known.
    """
    said = {"absorbed": before.absorbed * factor, "reason": f"{before.reason}; {words}"}
    if isinstance(before, Centering):  # a multiple of its weight, which carries the factor
        return before.changed(**said)
    offset = offset_of(graph, before.name)
    if isinstance(before, Constant):
        return before.changed(constant=factor * (offset + before.constant) - offset, **said)
    if isinstance(before, Drawn | Rescaled) and not offset:
        sizes = {"std": before.std, "mean": before.mean or None}
        channels = before.channel_std
        return before.changed(
            **{field: size * factor for field, size in sizes.items() if size is not None},
            **({"channel_std": tuple(one * factor for one in channels)} if channels is not None else {}),
            **said,
        )
    return _kept_times(graph, before, factor, said)


def can_carry(graph: Graph, before: Prescription) -> bool:
    """Whether `times` can scale a prescription: values left alone must be known, and those beside an offset all one
    number.
    """
    values, offset = graph.parameters[before.name].values, offset_of(graph, before.name)
    if isinstance(before, Constant | Centering) or (before.action == "write" and not offset):
        return True
    return values is not None and (not offset or number_in(values) is not None)


def number_in(values: Tensor) -> float | None:
    """Return the number that all elements of a tensor equal; None where they differ, or are no real numbers."""
    number = only_number(values) if values.numel() else 0.0
    return float(number.real) if number is not None and number.imag == 0 else None


def _kept_times(graph: Graph, before: Prescription, factor: float, said: Mapping[str, Any]) -> Prescription:
    """Return a prescription that writes a kept parameter's own values times ``factor``; zeros stay."""
    values, offset = graph.parameters[before.name].values, offset_of(graph, before.name)
    if not can_carry(graph, before) or values is None:
        unknown = "its values are not known here; plan the model on a device that holds them"
        varying = f"is used as {offset:g} + its elements, which vary; set them to one number first"
        raise PlanError(
            f"{before.name!r} is kept as the model makes it, and must be multiplied by {factor:.4g}, but "
            f"{unknown if values is None else varying}"
        )
    number = number_in(values)
    if number == 0.0 and not offset:
        return before.changed(**said)
    fields = {
        "name": before.name, "shape": before.shape, "role": before.role, "op": before.op, "fan_in": before.fan_in,
        "fan_out": before.fan_out, "lr_multiplier": before.lr_multiplier, "width_in": before.width_in,
        "width_out": before.width_out, "base_in": before.base_in, "base_out": before.base_out, "depth": before.depth,
        "branch": before.branch, "repeats": before.repeats, **said,
    }  # fmt: skip
    if number is not None:
        return Constant(constant=factor * (offset + number) - offset, **fields)
    return Rescaled(std=math.sqrt(float(values.detach().double().square().mean())) * factor, **fields)
