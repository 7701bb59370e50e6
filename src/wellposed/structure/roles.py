"""What each parameter is used as, and where norms take theirs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch

from wellposed.graphs import Graph
from wellposed.operators.contraction import Contraction, contractions
from wellposed.operators.norms import NORMS, WEIGHT_NORMS
from wellposed.operators.scale_parameters import scale_parameters
from wellposed.operators.scale_reading import ScaleParameter

aten: torch._ops._OpNamespace = torch.ops.aten


Role = Literal["weight", "embedding", "bias", "gain", "shift", "recurrent", "weight_norm", "other"]


def roles(
    graph: Graph, known: tuple[Contraction, ...] | None = None, scaling: Mapping[int, ScaleParameter] | None = None
) -> dict[str, Role]:
    """Return what each parameter is used as; one with several uses gets the first of those in ``order``.

    ``known`` are the graph's contractions and ``scaling`` its scale parameters, where they are at hand.
    """
    by_name: dict[str, Role] = {}
    order: list[Role] = ["weight", "recurrent", "weight_norm", "embedding", "gain", "shift", "bias", "other"]

    def offer(name: str | None, role: Role) -> None:
        if name is not None and (name not in by_name or order.index(role) < order.index(by_name[name])):
            by_name[name] = role

    parameter_of = {
        value: found.parameter for value, found in (scale_parameters(graph) if scaling is None else scaling).items()
    }
    for contraction in contractions(graph) if known is None else known:
        offer(contraction.bias, "bias")
        role: Role = "weight"
        if contraction.kind in ("embedding", "recurrent"):
            role = contraction.kind
        offer(contraction.parameter, role)
    for node in graph.nodes:
        norm = NORMS.get(node.op)
        if norm is not None:
            places: tuple[tuple[int | None, Role], ...] = (
                (norm.gain_of(node), "gain"),
                (norm.shift_of(node), "shift"),
            )
            for value, use in places:
                if value is not None:
                    offer(parameter_of.get(value), use)
        elif node.op in WEIGHT_NORMS:
            gain = parameter_of.get(node.args[1].value)
            if gain is not None:
                by_name[gain] = "weight_norm"
            direction = parameter_of.get(node.args[0].value)
            if direction is not None:
                by_name[direction] = "other"
    for name in graph.parameters:
        by_name.setdefault(name, "other")
    return by_name
