"""How much of the signals differs between inputs: nets in which all inputs become alike cannot tell them apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from wellposed.graphs import Graph, Node, run
from wellposed.reports.record import Differing
from wellposed.reports.spans import differing_by_name
from wellposed.signals import Signal
from wellposed.structure.roles import roles
from wellposed.structure.samples import Samples, similarity

_ALIKE = 1e-3
"""Share below which the inputs of a pass are alike themselves, and tell nothing of the net."""
_LEFT = 0.01
"""Share of a second moment that is left without biases, below which it is the biases' own."""
_LOST = 1e-4
"""Share from which on the biases are not asked about."""


def differing(
    graph: Graph,
    names: Collection[str],
    parameters: Mapping[str, Tensor],
    batch: Mapping[int, Tensor],
    seed: int,
) -> Differing | None:
    """Return the shares of second moments that differ between the inputs of one real pass.

    Of an output x of B inputs, E[x²] is the mean over all, and E[x·x'] that over pairs of different inputs; the share
    is 1 − E[x·x'] / E[x²]: 1 for inputs that have nothing in common, 0 where all give the same. A second pass, with all
    biases at zero, tells whether what they share is the biases'.

    Args:
        graph: from `wellposed.trace`.
        names: the outputs that are looked at.
        parameters: the weights of the pass, by name.
        batch: its inputs, by value id.
        seed: of its random operators.

    Returns:
        None where that cannot be seen: one input alone, or inputs that are alike themselves.
    """
    size = _unlike(graph, batch)
    if not size:
        return None
    shares: dict[str, float] = {}
    moments: dict[str, float] = {}

    def look(into: dict[str, float], of: Callable[[Tensor], float], wanted: Collection[str]) -> None:
        """Run a pass, and enter what ``of`` makes of each wanted output, by name."""

        def observe(node: Node, outputs: Sequence[Tensor]) -> None:
            for value, tensor in zip(node.outputs, outputs, strict=True):
                name = graph.values[value].name
                if name in wanted and tensor.ndim and tensor.shape[0] == size and tensor.is_floating_point():
                    into[name] = of(tensor)

        run(graph, parameters=weights, inputs=batch, observe=observe, seed=seed)

    weights = dict(parameters)
    look(shares, _share, names)
    if not shares:
        return None
    name = min(shares, key=lambda known: shares[known])
    biases = False
    if shares[name] < _LOST:
        look(moments, _second_moment, {name})
        before = moments[name]
        added = {known for known, role in roles(graph).items() if role in ("bias", "shift")}
        weights |= {known: torch.zeros_like(value) for known, value in parameters.items() if known in added}
        look(moments, _second_moment, {name})
        biases = bool(moments[name] < _LEFT * before)
    return Differing(shares, biases)


def foreseen(signals: Iterable[Signal], names: Collection[str]) -> Differing | None:
    """Return the same shares as predicted, before any pass; None where no similarity of samples is.

    What rests on approximations is left out: they tell no share of 10⁻⁴.
    """
    exact = (signal for signal in signals if signal.tag == "exact" and signal.name in names)
    shares = differing_by_name(exact)
    return Differing(shares, None) if shares else None


def _unlike(graph: Graph, batch: Mapping[int, Tensor]) -> int:
    """Return how many inputs a pass has along the first axis; 0 for one alone, or where they are alike themselves."""
    values = [batch[value] for value in graph.inputs if value in batch and batch[value].ndim]
    size = values[0].shape[0] if values else 0
    differ = size > 1 and any(_share(value) > _ALIKE for value in values if value.shape[0] == size)
    return size if differ else 0


def _share(tensor: Tensor) -> float:
    """Return the share of a second moment that differs along the first axis; 1 for zero, and for what is not finite."""
    if not tensor.is_floating_point():
        return float(bool((tensor != tensor[:1]).any()))
    common = similarity(tensor.double(), Samples(0, 1, tensor.shape[0], 1))
    return 1.0 if math.isnan(common) else max(0.0, 1.0 - common)


def _second_moment(tensor: Tensor) -> float:
    return float(tensor.double().square().mean())
