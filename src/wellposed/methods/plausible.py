"""Standard deviations that are far from any that a network is trained from, named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from torch import Tensor

from wellposed.errors import joined
from wellposed.graphs import Graph
from wellposed.methods.independence import is_filled, sample_of
from wellposed.plans import Drawn, Prescription

LEAST, MOST = 1e-4, 1e2
"""Standard deviations between which a plan says nothing, as multiples of 1/√fan-in. Chosen."""
_SHOWN = 16


def implausible(prescriptions: Mapping[str, Prescription]) -> Iterator[str]:
    """Yield one warning that names the weights whose standard deviation is out of bounds, of the first of them with
    what it rests on.

    Args:
        prescriptions: of all parameters.
    """
    told: list[str] = []
    for name, mine in prescriptions.items():
        usual = (mine.fan_in or 1) ** -0.5
        if isinstance(mine, Drawn) and mine.fan_in and mine.std and not LEAST <= mine.std / usual <= MOST:
            rests = "" if told else f" ({mine.reason})"
            told.append(f"{name!r} has {mine.std:.3g} at {mine.op}, where 1/√fan-in is {usual:.3g}{rests}")
    if told:
        listed = joined(told, _SHOWN, "; ", room=120 * _SHOWN)
        yield (
            f"standard deviations that are far from any usual one: {listed}. Look at "
            "wp.propagate(graph) for the node that makes signals so large or so small, and bring constants near 1"
        )


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
