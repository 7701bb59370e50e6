"""Real passes through a part of a graph, differentiated with respect to the parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import EllipsisType
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from wellposed.errors import RateError, TraceError
from wellposed.graphs import Graph, Node, graph_of, run, trace
from wellposed.graphs.operators import traits
from wellposed.graphs.run import Interpreter
from wellposed.graphs.tree import input_tensors, with_twins
from wellposed.operators.contraction import Contraction, contractions
from wellposed.operators.norms import over_the_batch
from wellposed.operators.schema import position_of
from wellposed.random_states import seeded
from wellposed.signals import Input

aten: torch._ops._OpNamespace = torch.ops.aten
COUPLED = 8
"""Samples that run together where a batch norm makes each depend on the others."""


def small_graph(
    model: nn.Module | Graph, args: Sequence[Any], kwargs: Mapping[str, Any], training: bool, least: int = 1
) -> Graph:
    """Return the graph of a model for ``least`` samples, or for a few where batch norms couple the samples of a batch.

    The samples are counted along the first axis of the first input tensor, and every input tensor as long as that is
    cut. A graph is taken as it is, and so is a model that cannot be run on fewer samples, or whose inputs may point at
    samples that would be cut, as the edges of a graph network do.
    """
    graph = graph_of(model, args, kwargs, training)
    size = batch_size(graph)
    keep = COUPLED if any(over_the_batch(node) for node in graph.nodes) else least
    if isinstance(model, Graph) or size <= keep:
        return graph
    cut = _cut([tensor for _, tensor in input_tensors(tuple(args), kwargs)], size, keep)
    if cut is None:
        return graph
    fewer_args, fewer_kwargs = with_twins((tuple(args), dict(kwargs)), cut)
    try:
        return trace(model, *fewer_args, training=training, **fewer_kwargs)
    except TraceError:
        return graph


def _cut(tensors: Sequence[Tensor], size: int, keep: int) -> dict[int, Tensor] | None:
    """Return by id the first ``keep`` samples of the tensors that hold ``size`` of them; None if some may not be cut.

    Integers and booleans that are not cut may point at samples that are.
    """
    if any(tensor.layout != torch.strided for tensor in tensors):
        return None
    cut = {id(tensor): tensor[:keep] for tensor in tensors if tensor.ndim and tensor.shape[0] == size}
    if any(tensor.ndim and id(tensor) not in cut and not tensor.is_floating_point() for tensor in tensors):
        return None
    return cut


def batch_size(graph: Graph) -> int:
    """Return how many samples run together: the length of the first input's first axis."""
    shapes = (graph.values[value].shape for value in graph.inputs)
    return next((shape[0] for shape in shapes if shape), 1)


def without_noise(graph: Graph) -> Graph:
    """Return the graph with dropout switched off: nothing is dropped, and a random mask has its mean everywhere."""
    return replace(graph, nodes=tuple(_quiet(node) for node in graph.nodes))


_QUIET = (("dropout_p", 0.0), ("dropout", 0.0), ("train", False), ("training", False))
"""Arguments of operators that draw random numbers, and the values with which they draw none."""


def _quiet(node: Node) -> Node:
    """Return a node that draws no random numbers: it drops nothing, and fills a random mask with its mean."""
    for name, value in _QUIET if traits(node.op).random else ():
        position = position_of(node.op, name)
        if position is not None:
            return _with_argument(node, position, name, value)
    if node.op in (aten.bernoulli_.float, aten.bernoulli.p):
        probability = node.args[1] if len(node.args) > 1 else node.kwargs.get("p", 0.5)
        return replace(node, op=aten.full_like.default, args=(node.args[0], probability), kwargs={})
    return node


def _with_argument(node: Node, position: int, name: str, value: object) -> Node:
    if len(node.args) > position:
        return replace(node, args=(*node.args[:position], value, *node.args[position + 1 :]))
    return replace(node, kwargs={**node.kwargs, name: value}) if name in node.kwargs else node


# ---- what the readout receives --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Readout:
    """Where a network ends and its readout begins.

    Attributes:
        values: ids of the values that the readout receives.
        weights: ids of the values that it contracts them with; empty where the network has no readout.
    """

    values: tuple[int, ...]
    weights: tuple[int, ...]


def outputs_of(graph: Graph) -> tuple[int, ...]:
    """Return the floating-point outputs that depend on an input and from which no other output is made.

    Raises:
        RateError: there are none, or an input is empty.
    """
    if any(0 in graph.values[value].shape for value in graph.inputs):
        raise RateError(f"an input of {graph.model} is empty: there is no sample to follow; give an example with some")
    made_from = _reached_from(graph, graph.inputs)
    outputs = [value for value in dict.fromkeys(graph.outputs) if graph.values[value].is_signal and value in made_from]
    final = [value for value in outputs if _reached_from(graph, [value], own=False).isdisjoint(outputs)]
    if any(0 in graph.values[value].shape for value in final):
        raise RateError(
            f"an output of {graph.model} is empty: there is nothing to follow; give an example that fills it"
        )
    if not final:
        raise RateError(f"no floating-point output of {graph.model} depends on an input: there is no path to follow")
    return tuple(final)


def white_inputs(graph: Graph) -> dict[str, Input | Tensor]:
    """Return white noise of variance 1 for every floating-point input."""
    return {graph.values[v].name: Input.white() for v in graph.inputs if graph.values[v].is_signal}


def find_readout(graph: Graph) -> Readout:
    """Return what the readout receives: the data of the contractions after which there is no other.

    That holds where every path from an input to the output leads through them. Otherwise, as after a residual
    connection, the network has no readout and its output takes that place. Outputs from which another output is made
    (caches, hidden states) do not count.

    Raises:
        RateError: no floating-point output depends on an input.
    """
    final = outputs_of(graph)
    last, bypassed = _last_contractions(graph, final)
    nodes = {use.node for use in last}
    followed = any(_is_followed(graph, node, nodes) for node in nodes)
    if bypassed or followed or any(use.kind in ("embedding", "recurrent") for use in last):
        return Readout(tuple(final), ())
    return Readout(tuple(dict.fromkeys(use.data for use in last)), tuple(dict.fromkeys(use.weight for use in last)))


def _last_contractions(graph: Graph, outputs: Sequence[int]) -> tuple[list[Contraction], bool]:
    """Return the contractions met first on the way back from the outputs, and whether a path reaches an input
    without one.
    """
    made_from = _reached_from(graph, graph.inputs)
    uses = {use.node: use for use in contractions(graph)}
    last, seen, pending = [], set[int](), list(outputs)
    bypassed = False
    while pending:
        value = pending.pop()
        if value in seen or value not in made_from:
            continue
        seen.add(value)
        node = graph.values[value].node
        if node is None:
            bypassed = True
        elif node in uses and uses[node].data in made_from:
            last.append(uses[node])
        else:
            pending.extend(graph.nodes[node].inputs)
    return last, bypassed


def _is_followed(graph: Graph, node: int, others: set[int]) -> bool:
    """Whether one of ``others`` depends on what ``node`` makes."""
    reached = _reached_from(graph, graph.nodes[node].outputs)
    return any(value in reached for other in others - {node} for value in graph.nodes[other].inputs)


def _reached_from(graph: Graph, values: Sequence[int], *, own: bool = True) -> frozenset[int]:
    """Return the values that depend on one of some values, these included unless ``own`` is false."""
    reached = set(values)
    for node in graph.nodes:
        if not reached.isdisjoint(node.inputs):
            reached.update(node.outputs)
    return frozenset(reached if own else reached - set(values))


def before(graph: Graph, values: Sequence[int]) -> Graph:
    """Return the part of a graph that makes some values, which become its outputs."""
    nodes = [graph.values[value].node for value in values]
    last = max((node for node in nodes if node is not None), default=-1)
    return replace(graph, nodes=graph.nodes[: last + 1], outputs=tuple(values))


def features_axis(graph: Graph, value: int) -> int:
    """Return the axis of a value along which the readout contracts it: channels of maps, the last one of all others."""
    shape = graph.values[value].shape
    use = next((use for use in contractions(graph) if use.data == value), None)
    if use is not None and use.kind == "conv":
        maps = len(graph.values[use.weight].shape) - 2
        return max(0, len(shape) - maps - 1)
    return max(0, len(shape) - 1)


Rows: TypeAlias = slice | EllipsisType


def rows_of_samples(outputs: Sequence[Tensor], batch: int) -> Iterator[tuple[Rows, ...]]:
    """Yield the rows of each output that belong to one sample: equal parts of its first axis, or all of it."""
    lengths = [output.shape[0] if output.ndim else 1 for output in outputs]
    if batch == 1 or any(length % batch for length in lengths):
        yield (...,) * len(outputs)
        return
    for i in range(batch):
        yield tuple(slice(i * length // batch, (i + 1) * length // batch) for length in lengths)


# ---- weights --------------------------------------------------------------------------------------------------------


def trained(graph: Graph) -> tuple[str, ...]:
    """Return the parameters that require gradients and reach an output of the graph."""
    needed = set(graph.outputs)
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(node.outputs):
            needed.update(node.inputs)
    return tuple(
        name
        for name, parameter in graph.parameters.items()
        if parameter.tensor.requires_grad and parameter.value in needed and parameter.tensor.is_floating_point()
    )


def body(graph: Graph, readout: Readout) -> tuple[Graph, tuple[str, ...]]:
    """Return the part of a graph before its readout, without noise, and the parameters that are trained in it.

    Raises:
        RateError: there are none.
    """
    part = without_noise(before(graph, readout.values))
    names = trained(part)
    if not names:
        where = "before the readout" if readout.weights else "that reaches the output"
        raise RateError(
            f"{graph.model} has no parameter {where} that requires gradients: the rate would change nothing; "
            "unfreeze some, or look at the readout alone"
        )
    return part, names


def random_stream(seed: int, *path: int) -> int:
    """Return a seed that is independent of those of other paths."""
    return int(np.random.SeedSequence((seed, *path)).generate_state(1, np.uint64)[0] >> np.uint64(1))


# ---- derivatives ----------------------------------------------------------------------------------------------------

Mode = Literal["forward", "double backward"]


@dataclass(eq=False, slots=True)
class GraphRun:
    """One run of a graph on given weights and inputs, with its derivatives with respect to some of the parameters.

    The tensors given are only read.
    """

    graph: Graph
    parameters: Mapping[str, Tensor]
    names: Sequence[str]
    inputs: Mapping[int, Tensor]
    seed: int
    leaves: list[Tensor] = field(init=False)
    outputs: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.leaves = [self.parameters[name].detach().requires_grad_() for name in self.names]
        whole = {**self.parameters, **dict(zip(self.names, self.leaves, strict=True))}
        with self._conditions(), torch.enable_grad():
            self.outputs = Interpreter(self.graph, whole, {}, self.inputs, None).outputs()

    def gradient(self, cotangents: Sequence[Tensor]) -> list[Tensor]:
        """Return J^T v: the gradient of the sum of ``cotangents`` times the outputs, with respect to each parameter."""
        pairs = [(o, v) for o, v in zip(self.outputs, cotangents, strict=True) if o.requires_grad]
        try:
            with self._conditions():
                return list(
                    torch.autograd.grad(
                        [o for o, _ in pairs],
                        self.leaves,
                        [v for _, v in pairs],
                        retain_graph=True,
                        allow_unused=True,
                        materialize_grads=True,
                    )
                )
        except NotImplementedError as error:
            raise RateError(f"{self.graph.model} cannot be differentiated: {error}") from error

    def change(self, tangents: Sequence[Tensor], mode: Mode) -> list[Tensor]:
        """Return J t: how the outputs change to first order when the parameters move along ``tangents``."""
        with self._conditions():
            return self._forward(tangents) if mode == "forward" else self._double_backward(tangents)

    def _forward(self, tangents: Sequence[Tensor]) -> list[Tensor]:
        """Return the derivatives of the outputs along tangents of the parameters, each in its output's shape."""
        with forward_ad.dual_level():
            whole = dict(self.parameters)
            for name, tangent in zip(self.names, tangents, strict=True):
                whole[name] = forward_ad.make_dual(whole[name].detach(), tangent)
            outputs = run(self.graph, parameters=whole, inputs=self.inputs)
            changes = [forward_ad.unpack_dual(output).tangent for output in outputs]
            return [torch.zeros_like(o) if c is None else c for o, c in zip(self.outputs, changes, strict=True)]

    def _double_backward(self, tangents: Sequence[Tensor]) -> list[Tensor]:
        """J t as the derivative of <J^T v, t> with respect to v, for operators without forward derivatives."""
        active = [o for o in self.outputs if o.requires_grad]
        dummies = [torch.zeros_like(o, requires_grad=True) for o in active]
        with torch.enable_grad():
            pulled = torch.autograd.grad(active, self.leaves, dummies, create_graph=True, materialize_grads=True)
            changes = iter(torch.autograd.grad(pulled, dummies, list(tangents), materialize_grads=True))
        return [next(changes) if o.requires_grad else torch.zeros_like(o) for o in self.outputs]

    @contextmanager
    def _conditions(self) -> Iterator[None]:
        """Random operators draw the same numbers in every pass; attention runs on operators with all derivatives."""
        with seeded(self.seed, self.parameters.values()), sdpa_kernel(SDPBackend.MATH):
            yield
