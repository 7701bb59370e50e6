"""Standard deviations that are far from any that a network is trained from, named."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
from torch import Tensor

from wellposed.errors import joined
from wellposed.graphs import Graph
from wellposed.methods.independence import is_filled, sample_of
from wellposed.plans import Drawn, Prescription

LEAST, MOST = 1e-4, 1e2
"""Standard deviations between which a plan says nothing, as multiples of 1/√fan-in. Chosen."""
_ROOM = 60


def implausible(graph: Graph, prescriptions: Mapping[str, Prescription]) -> Iterator[str]:
    """Yield one warning that names the weights whose standard deviation is out of bounds, and what the first rests on.

    Those are left out whose size the model draws as far from 1/√fan-in, as it does where the forward multiplies weights
    by a constant (equalised learning rates).

    Args:
        graph: from `wellposed.trace`.
        prescriptions: of all parameters.
    """
    first, others = "", list[str]()
    for name, mine in prescriptions.items():
        usual = (mine.fan_in or 1) ** -0.5
        if not (isinstance(mine, Drawn) and mine.fan_in and mine.std) or LEAST <= mine.std / usual <= MOST:
            continue
        if not _is_as_far(graph.parameters[name].values, mine.std, usual):
            if first:
                others.append(repr(name))
            else:
                first = f"{name!r} has {mine.std:.3g} at {mine.op}, where 1/√fan-in is {usual:.3g} ({mine.reason})"
    if first:
        yield (
            f"standard deviations that are far from any usual one: {first}"
            f"{f', as have {joined(others, room=_ROOM)}' if others else ''}. Look at wp.propagate(graph) for what "
            "makes signals so large or small, and bring constants near 1"
        )


def _is_as_far(values: Tensor | None, std: float, usual: float) -> bool:
    """Whether a model draws a weight nearer to ``std`` than to the usual size."""
    if values is None or values.is_complex() or not values.numel():
        return False
    size = float(np.sqrt(np.square(sample_of(values)).mean()))
    return 0.0 < size < math.inf and abs(math.log(std / size)) < abs(math.log(usual / size))


def unfilled(graph: Graph, prescriptions: Mapping[str, Prescription]) -> Iterator[str]:
    """Yield one warning that names the parameters which keep what memory held when they were made.

    Args:
        graph: from `wellposed.trace`.
        prescriptions: of all parameters.
    """
    told = []
    for name, parameter in graph.parameters.items():
        values = parameter.values
        if prescriptions[name].action == "keep" and values is not None and _is_read(values):
            held = sample_of(values)
            if not is_filled(held[np.isfinite(held)]):
                told.append(f"{name!r} (up to {np.abs(held[np.isfinite(held)]).max():.2g})")
    if told:
        yield (
            f"parameters that are kept, and hold what no model gives them: {joined(told)}. Memory that nothing has "
            "filled looks so, as torch.empty leaves it: fill them where the model makes them"
        )


def _is_read(values: Tensor) -> bool:
    """Whether a process holds values that are real numbers."""
    return values.is_floating_point() and not values.is_meta
