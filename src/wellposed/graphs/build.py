"""The `Graph` out of what the recorder saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch

from wellposed.graphs.graph import Graph, Node, Parameter, Value
from wellposed.graphs.naming import node_names
from wellposed.graphs.recorder import RawValue, Recorder

_KNOWN_LIMIT = 2**22
"""Known floating point values of more elements are not kept in the graph."""


@dataclass(frozen=True, slots=True)
class Held:
    """One distinct parameter of the model; ``names`` grows while ties are met.

    ``values`` are what it holds, where that is known.
    """

    names: list[str]
    tensor: torch.Tensor
    module_class: str
    value: int
    values: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Facts:
    """What a tracing knows beside the recorder's nodes and values."""

    model: str
    training: bool
    engine: Literal["meta", "real"]
    parameters: Sequence[Held]
    buffers: Mapping[str, int]
    buffer_tensors: Mapping[str, torch.Tensor]
    inputs: Sequence[int]
    example: Mapping[int, torch.Tensor]
    outputs: Sequence[int]


def build_graph(recorder: Recorder, facts: Facts) -> Graph:
    """Name the nodes and values, and put the graph together."""
    names = node_names(recorder.nodes)
    nodes = tuple(
        [
            Node(
                index=i,
                name=names[i],
                op=raw.op,
                args=raw.args,
                kwargs=raw.kwargs,
                inputs=tuple(raw.inputs),
                outputs=tuple(raw.outputs),
                module=raw.call.path,
                module_class=raw.call.module_class,
                call=raw.call.index,
                source=raw.source,
            )
            for i, raw in enumerate(recorder.nodes)
        ]
    )
    values = tuple([_value(i, raw, names) for i, raw in enumerate(recorder.values)])
    uses: dict[int, list[int]] = {}
    for node in nodes:
        for value in dict.fromkeys(node.inputs):
            uses.setdefault(value, []).append(node.index)
    parameters: dict[str, Parameter] = {}
    for held in facts.parameters:
        used = tuple(uses.get(held.value, ()))
        name = held.names[0]
        parameters[name] = Parameter(
            name, tuple(held.names), held.value, held.tensor, held.module_class, used, held.values
        )
    return Graph(
        nodes=nodes,
        values=values,
        inputs=tuple(facts.inputs),
        outputs=tuple(facts.outputs),
        parameters=MappingProxyType(parameters),
        aliases=MappingProxyType({alias: p.name for p in parameters.values() for alias in p.names[1:]}),
        buffers=MappingProxyType(dict(facts.buffers)),
        buffer_tensors=MappingProxyType(dict(facts.buffer_tensors)),
        known=MappingProxyType(recorder.collect_known(_KNOWN_LIMIT)),
        example=MappingProxyType(dict(facts.example)),
        engine=facts.engine,
        training=facts.training,
        model=facts.model,
        unused_parameters=tuple(name for name, p in parameters.items() if not p.uses and p.value not in facts.outputs),
        dead_nodes=_dead(nodes, facts.outputs),
    )


def _value(identity: int, raw: RawValue, names: Sequence[str]) -> Value:
    """Return a value under its own name or that of its node."""
    name = raw.name
    if raw.node is not None:
        name = f"{names[raw.node]}[{raw.index}]" if raw.index else names[raw.node]
    return Value(identity, name, raw.kind, raw.shape, raw.dtype, raw.node, raw.index)


def _dead(nodes: Sequence[Node], outputs: Sequence[int]) -> tuple[int, ...]:
    """Return the indices of the nodes that no output depends on."""
    needed = set(outputs)
    dead: list[int] = []
    for node in reversed(nodes):
        if needed.isdisjoint(node.outputs):
            dead.append(node.index)
        else:
            needed.update(node.inputs)
    return tuple(reversed(dead))
