"""The `Graph` out of what the recorder saw."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

import torch

from wellposed.errors import joined, listed
from wellposed.graphs.compiled import takes_raw_tensors
from wellposed.graphs.graph import Graph, Node, Parameter, Value
from wellposed.graphs.naming import node_names
from wellposed.graphs.raw import RawValue
from wellposed.graphs.recorder import Recorder

_KNOWN_LIMIT = 2**22
"""Known floating point values of more elements are not kept in the graph."""


@dataclass(frozen=True, slots=True)
class HeldParameter:
    """One distinct parameter of the model; ``names`` grows while ties are met.

    ``values`` are what it holds, where that is known.
    """

    names: list[str]
    tensor: torch.Tensor
    module_class: str
    value: int
    values: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class TracedModel:
    """What a tracing knows beside the recorder's nodes and values; ``returned`` is the class of what forward returned,
    None where it failed, ``untold`` what is not known of a model on meta, and ``strangers`` where the forward uses
    trainable tensors that no module holds.
    """

    model: str
    training: bool
    engine: Literal["meta", "real"]
    parameters: Sequence[HeldParameter]
    buffers: Mapping[str, int]
    buffer_tensors: Mapping[str, torch.Tensor]
    inputs: Sequence[int]
    example: Mapping[int, torch.Tensor]
    outputs: Sequence[int]
    returned: str | None = None
    untold: tuple[str, ...] = ()
    strangers: tuple[str, ...] = ()
    kept: Mapping[str, str] = field(default_factory=dict)


def build_graph(recorder: Recorder, traced: TracedModel) -> Graph:
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
    for held in traced.parameters:
        used = tuple(uses.get(held.value, ()))
        name = held.names[0]
        parameters[name] = Parameter(
            name, tuple(held.names), held.value, held.tensor, held.module_class, used, held.values
        )
    dead = _dead(nodes, traced.outputs)
    return Graph(
        nodes=nodes,
        values=values,
        inputs=tuple(traced.inputs),
        outputs=tuple(traced.outputs),
        parameters=MappingProxyType(parameters),
        aliases=MappingProxyType({alias: p.name for p in parameters.values() for alias in p.names[1:]}),
        buffers=MappingProxyType(dict(traced.buffers)),
        buffer_tensors=MappingProxyType(dict(traced.buffer_tensors)),
        known=MappingProxyType({at: held.detach() for at, held in recorder.collect_known(_KNOWN_LIMIT).items()}),
        example=MappingProxyType(dict(traced.example)),
        engine=traced.engine,
        training=traced.training,
        model=traced.model,
        unused_parameters=tuple(name for name, p in parameters.items() if not p.uses and p.value not in traced.outputs),
        dead_nodes=dead,
        remarks=tuple(_remarks(recorder, traced, parameters.values(), frozenset(dead))),
        kept=MappingProxyType(dict(traced.kept)),
    )


def _remarks(
    recorder: Recorder, traced: TracedModel, parameters: Iterable[Parameter], dead: frozenset[int]
) -> Iterator[str]:
    """Yield what keeps the graph from showing the whole model."""
    yield from traced.untold
    yield from _of_strangers(traced)
    if traced.returned is None:
        return
    what = f"the forward of {traced.model} returned an object of class {traced.returned}"
    if traced.returned == "generator":
        yield (
            f"{what}: its body runs only as it is iterated, and nothing of it was seen; wrap the model in a module "
            "that returns what it yields"
        )
    elif not recorder.nodes:
        yield f"{what}, and ran no operation on tensors"
    elif not traced.outputs:
        yield f"{what}, which holds no tensor: what the loss receives is not known"
    if recorder.unseen:
        yield (
            f"a tensor that {recorder.unseen[0]} uses was made out of sight (in another thread, or before the pass): "
            "the graph lacks what made it, and the parameters in it, and no signal or gradient is followed through it"
        )
    severed = [p.name for p in parameters if p.uses and dead.issuperset(p.uses)] if traced.outputs else []
    if severed:
        yield (
            f"no output depends on {len(severed)} of the parameters that are used ({listed(severed)}): what is made of "
            "them is not among the tensors that forward returns"
            f"{', or a compiled function that is no operator of PyTorch took it out of sight' * takes_raw_tensors()}"
        )
    if recorder.left and (severed or recorder.came_back):
        name, source = recorder.left[0]
        yield (
            f"values leave PyTorch at {source} (Tensor.{name}): what comes back of them as a tensor counts as a "
            "constant of that one pass, and no signal or gradient is followed through it"
        )


def _of_strangers(traced: TracedModel) -> Iterator[str]:
    """Yield what is said of trainable tensors that no module holds."""
    if not traced.strangers:
        return
    places = joined(filter(None, dict.fromkeys(traced.strangers)), 3)
    yield (
        f"{len(traced.strangers)} trainable tensor(s) that the forward of {traced.model} uses"
        f"{f' ({places})' if places else ''} are no parameters of it: they count as constants. To train "
        "them, give them to the model (nn.ModuleList for a list, nn.ParameterList); else requires_grad_(False) tells so"
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
