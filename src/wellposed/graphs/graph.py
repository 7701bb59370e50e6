"""The graph: the operations that one forward pass runs, in order, as ATen operators.

A graph is in single-assignment form: every operator reads values and makes new ones. In-place operators and writes
through views are recorded as operators that return a new value (`trace` resolves the aliasing), so a pass over
``graph.nodes`` never has to think about memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, wraps
from typing import Any, Literal, TypeVar

import torch

from wellposed.errors import InputError, near_matches
from wellposed.showing import ROWS, Shown, Summary, by_size

Fact = TypeVar("Fact")
ValueKind = Literal["input", "parameter", "buffer", "constant", "intermediate"]


@dataclass(frozen=True, slots=True)
class Ref:
    """Stands for a value inside the arguments of a node."""

    value: int


@dataclass(frozen=True, slots=True)
class Value:
    """One tensor of the graph.

    Attributes:
        id: its index in ``graph.values``.
        name: the input's path (``"input_ids"``, ``"0"``), the parameter's or buffer's name, or the producing node's
            name (followed by ``[i]`` for the outputs after the first of a node with several).
        kind: ``input``, ``parameter``, ``buffer``, ``constant`` or ``intermediate``.
        shape: the global shape.
        dtype: the element type.
        node: index of the node that makes it; None where no node does.
        index: which of that node's outputs it is.
    """

    id: int
    name: str
    kind: ValueKind
    shape: tuple[int, ...]
    dtype: torch.dtype
    node: int | None = None
    index: int = 0

    @property
    def is_signal(self) -> bool:
        """Whether the value is real-valued data (floating point), as against indices and masks."""
        return self.dtype.is_floating_point

    @property
    def is_followed(self) -> bool:
        """Whether its numbers, real or complex, have a distribution that is followed."""
        return self.dtype.is_floating_point or self.dtype.is_complex


@dataclass(frozen=True, slots=True)
class Node:
    """One operator call.

    Attributes:
        index: its place in ``graph.nodes``.
        name: a stable name that a person recognises, such as ``"layer1.0.conv2"``.
        op: the ATen (or custom) overload.
        args: arguments of the operator, with every tensor replaced by a `Ref` (also inside lists and tuples).
        kwargs: keyword arguments, likewise.
        inputs: ids of the values read, in order of appearance.
        outputs: ids of the values made.
        module: path of the innermost module that was running (``""`` for the model itself).
        module_class: its class name.
        call: counts the calls of that module from 0.
        source: ``file:line`` of the user's statement.
    """

    index: int
    name: str
    op: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    module: str
    module_class: str
    call: int
    source: str

    @property
    def op_name(self) -> str:
        """The overload's name without its namespace for ATen operators: ``"conv2d.default"``."""
        return _name_of(self.op)


@cache
def _name_of(op: torch._ops.OpOverload) -> str:
    return str(op).removeprefix("aten.")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One distinct parameter tensor of the model.

    Attributes:
        name: its first name, as ``named_parameters()`` gives it.
        names: every name that reaches the tensor; those after the first are ties.
        value: id of its value.
        tensor: the model's own tensor (no copy; on meta if the model is).
        module_class: class name of the module that holds it.
        uses: indices of the nodes that read it directly.
        values: what it holds: ``tensor`` itself; for a tensor on meta what the model makes again (of a large one a
            sample of the elements, 1-D); for a sharded one the whole if that is small; None where that is unknown.
    """

    name: str
    names: tuple[str, ...]
    value: int
    tensor: torch.Tensor = field(repr=False, compare=False)
    module_class: str
    uses: tuple[int, ...]
    values: torch.Tensor | None = field(default=None, repr=False, compare=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """Global shape."""
        return tuple(self.tensor.shape)


@dataclass(frozen=True, slots=True, repr=False)
class Graph(Shown):
    """What one forward pass runs. Made by `wellposed.trace`; never changed.

    Attributes:
        nodes: the operators in execution order; ``nodes[i].index == i``.
        values: all values; ``values[i].id == i``.
        inputs: ids of the model's tensor inputs, with their paths as names.
        outputs: ids of the tensors in the model's output, in order.
        parameters: by first name; ``aliases`` maps every further name to it.
        buffers: by name; the value's id (kept in ``values``).
        buffer_tensors: the model's own buffers by name (no copies).
        known: real tensors, on CPU, for values that depend on integers, booleans and constants alone (token ids,
            masks, position ids, constant tensors, buffers; of a model on meta those that it can make again).
        example: the example inputs' tensors by value id (no copies).
        engine: ``"meta"`` where no real arithmetic was needed, ``"real"`` where float values had to be read.
        training: the mode that the model was traced in.
        model: the model's class name.
        unused_parameters: parameters that reach no operation of this pass.
        dead_nodes: nodes that reach no output.
        remarks: what keeps the graph from showing the whole model, in words: values that leave PyTorch, parameters that
            reach no output, an output without tensors.
        kept: why plans leave a parameter as it is, by name, where the model's front end says so.
        remembered: what follows from the structure alone, by the function that worked it out (`once`).
    """

    nodes: tuple[Node, ...]
    values: tuple[Value, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    parameters: Mapping[str, Parameter]
    aliases: Mapping[str, str]
    buffers: Mapping[str, int]
    buffer_tensors: Mapping[str, torch.Tensor] = field(repr=False, compare=False)
    known: Mapping[int, torch.Tensor] = field(repr=False, compare=False)
    example: Mapping[int, torch.Tensor] = field(repr=False, compare=False)
    engine: Literal["meta", "real"]
    training: bool
    model: str
    unused_parameters: tuple[str, ...]
    dead_nodes: tuple[int, ...]
    remarks: tuple[str, ...] = ()
    kept: Mapping[str, str] = field(default_factory=dict)
    remembered: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __getitem__(self, name: str) -> Node:
        """Return the node called ``name``; raises `InputError` with the nearest names."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise InputError(f"the graph of {self.model} has no node {name!r}{near_matches(name, [n.name for n in self])}")

    def _summary(self) -> Summary:
        """Return the first and the last operations."""
        mode = "training" if self.training else "evaluation"
        elements = sum(parameter.tensor.numel() for parameter in self.parameters.values())
        half = ROWS // 2
        shown = self.nodes if len(self) <= ROWS else (*self.nodes[:half], *self.nodes[-half:])
        return Summary(
            f"Graph of {self.model}: {len(self):,} operations, {len(self.parameters):,} parameters of {elements:,} "
            f"elements, {mode} mode" + "".join(f"; {remark}" for remark in self.remarks),
            ("node", "operation", "output", "source"),
            tuple((n.name, n.op_name, by_size(self.values[n.outputs[0]].shape), n.source) for n in shown),
            len(self) - len(shown),
            "the first and the last",
        )

    def users(self) -> Mapping[int, Sequence[int]]:
        """Return, for every value id that is read, the indices of the nodes that read it."""
        return _users(self)


def once(work: Callable[[Graph], Fact]) -> Callable[[Graph], Fact]:
    """Let a function of a graph's structure alone work once for each graph; what it returns must not be changed."""

    @wraps(work)
    def remembering(graph: Graph) -> Fact:
        if work not in graph.remembered:
            graph.remembered[work] = work(graph)
        fact: Fact = graph.remembered[work]
        return fact

    return remembering


@once
def _users(graph: Graph) -> Mapping[int, Sequence[int]]:
    """Return for each value the indices of the nodes that read it, in order and once each."""
    readers: dict[int, list[int]] = {}
    for node in graph.nodes:
        for value in dict.fromkeys(node.inputs):
            readers.setdefault(value, []).append(node.index)
    return readers
