"""What each parameter is used as, and where norms take theirs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch

from wellposed.graphs import Graph, Ref
from wellposed.signals.operators.contraction import Contraction, contractions
from wellposed.signals.operators.levers import Lever, levers

aten = torch.ops.aten


Role = Literal["weight", "embedding", "bias", "gain", "shift", "recurrent", "weight_norm", "other"]


NORMS: Mapping[torch._ops.OpOverload, tuple[int, int | None]] = {
    aten.batch_norm.default: (1, 2),
    aten.instance_norm.default: (1, 2),
    aten.layer_norm.default: (2, 3),
    aten.group_norm.default: (2, 3),
    aten.rms_norm.default: (2, None),
    aten.native_batch_norm.default: (1, 2),
    aten.native_layer_norm.default: (2, 3),
}
"""Where norms take their gain and shift, by position."""


def roles(
    graph: Graph, known: tuple[Contraction, ...] | None = None, scaling: Mapping[int, Lever] | None = None
) -> dict[str, Role]:
    """Return what each parameter is used as; one with several uses gets the first of those in ``order``.

    ``known`` are the graph's contractions and ``scaling`` its levers, where they are at hand.
    """
    found: dict[str, Role] = {}
    order: list[Role] = ["weight", "recurrent", "weight_norm", "embedding", "gain", "shift", "bias", "other"]

    def offer(name: str | None, role: Role) -> None:
        if name is not None and (name not in found or order.index(role) < order.index(found[name])):
            found[name] = role

    behind = {value: lever.parameter for value, lever in (levers(graph) if scaling is None else scaling).items()}
    for contraction in contractions(graph) if known is None else known:
        offer(contraction.bias, "bias")
        role: Role = "weight"
        if contraction.kind in ("embedding", "recurrent"):
            role = contraction.kind
        offer(contraction.parameter, role)
    for node in graph.nodes:
        if node.op in NORMS:
            uses: tuple[Role, Role] = ("gain", "shift")
            for position, use in zip(NORMS[node.op], uses, strict=True):
                if position is not None and len(node.args) > position and isinstance(node.args[position], Ref):
                    offer(behind.get(node.args[position].value), use)
        elif node.op is aten._weight_norm.default:
            gain = behind.get(node.args[1].value)
            if gain is not None:
                found[gain] = "weight_norm"
            direction = behind.get(node.args[0].value)
            if direction is not None:
                found[direction] = "other"
    for name in graph.parameters:
        found.setdefault(name, "other")
    return found
