"""The inputs of real passes: drawn from a descriptor, or taken from the user's batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from wellposed.errors import InputError
from wellposed.graphs import Graph
from wellposed.graphs.tree import input_tensors
from wellposed.signals import Input
from wellposed.signals.examples import Described, assumed, describe_inputs, unlike_example
from wellposed.signals.sampling.drawing import draw_inputs

if TYPE_CHECKING:
    from typing_extensions import TypeIs

Inputs: TypeAlias = Described | Iterable[Any] | Callable[[int], Any]
"""Inputs of a measurement: described, or given as batches (an iterable, or a function of the draw's index)."""


def stream(seed: int, draw: int, purpose: str) -> int:
    """Return the seed of one draw's weights, inputs or operators, independent of all others."""
    key = (seed, draw, *purpose.encode())
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(1))


def is_described(inputs: Inputs) -> TypeIs[Described]:
    """Whether ``inputs`` are described, rather than given as batches."""
    return inputs is None or isinstance(inputs, Input | Tensor | Mapping)


class Batches:
    """The tensors of a graph's inputs by value id, for any draw; see `wellposed.measure` for what inputs can be.

    Of an iterable no more is read than is asked for.

    Args:
        graph: the graph.
        inputs: described, or given as batches.
        seed: of what is drawn.

    Raises:
        InputError: a descriptor for no input of the graph; when a batch is asked for, no batch at all, or one that does
            not fit the graph.
    """

    def __init__(self, graph: Graph, inputs: Inputs, seed: int) -> None:
        """Sort the inputs into a descriptor, a function of the pass's number, or batches that are read one by one."""
        self._graph, self._inputs, self._seed = graph, inputs, seed
        self._descriptors: Mapping[int, Input] | None = None
        self._function: Callable[[int], Any] | None = None
        self._unread: Iterator[Any] = iter(())
        self._read: list[dict[int, Tensor]] = []
        self._count = 0
        if is_described(inputs):
            self._descriptors = describe_inputs(graph, inputs)
        elif callable(inputs):
            self._function = inputs
        else:
            self._unread = iter(inputs)

    @property
    def drawn(self) -> bool:
        """Whether batches are drawn from a description, the same for all."""
        return self._descriptors is not None

    def description(self, given: Sequence[Mapping[int, Tensor]]) -> Described:
        """Return what a prediction is told of these batches: what they are drawn from, or what is measured on them.

        Raises:
            InputError: a batch holds infinities or NaN.
        """
        return self._inputs if is_described(self._inputs) else described(self._graph, given)

    def remarks(self) -> tuple[str, ...]:
        """Return where the example is not what is assumed of it, as `wellposed.plan` warns."""
        return tuple(unlike_example(self._graph, self._inputs)) if is_described(self._inputs) else ()

    def take(self, draws: range) -> Iterator[dict[int, Tensor]]:
        """Yield the batch of each of these draws."""
        for draw in draws:
            if self._descriptors is not None:
                generator = torch.Generator().manual_seed(stream(self._seed, draw, "inputs"))
                yield draw_inputs(self._graph, self._descriptors, generator)
            elif self._function is not None:
                yield self._asked(self._function, draw)
            else:
                yield self._given(draw)

    def _asked(self, function: Callable[[int], Any], draw: int) -> dict[int, Tensor]:
        """Return a function's batch of a draw; after an IndexError, as of a list, draws count from the first batch
        again.
        """
        try:
            return bind(self._graph, function(draw % self._count if self._count else draw))
        except IndexError:
            if not draw or self._count:
                raise
            self._count = draw
            return bind(self._graph, function(0))

    def _given(self, draw: int) -> dict[int, Tensor]:
        """Return a batch of an iterable, which is repeated where it is shorter."""
        while len(self._read) <= draw and (batch := next(self._unread, None)) is not None:
            self._read.append(bind(self._graph, batch))
        if not self._read:
            raise InputError("inputs is an iterable without a single batch; give at least one")
        return self._read[draw % len(self._read)]


def described(graph: Graph, given: Sequence[Mapping[int, Tensor]]) -> dict[str, Input]:
    """Return the descriptor of every input, by name, measured on the batches of `batches`; masks and indices count as
    the example has them.

    Raises:
        InputError: a batch holds infinities or NaN.
    """
    return {
        graph.values[value].name: Input.from_batch(_as(graph, value, torch.cat([batch[value] for batch in given])))
        for value in graph.inputs
        if graph.values[value].shape and assumed(graph, value).kind != "given"
    }


def _as(graph: Graph, value: int, batch: Tensor) -> Tensor:
    return batch.float() if graph.values[value].is_signal else batch


def bind(graph: Graph, batch: Any) -> dict[int, Tensor]:
    """Return the tensors of a user's batch by value id of the graph's inputs.

    A dict holds keyword arguments, a tuple or list positional ones, and anything else is the only argument.

    Raises:
        InputError: other inputs than those of the graph, or other shapes.
    """
    args = () if isinstance(batch, dict) else tuple(batch) if isinstance(batch, list | tuple) else (batch,)
    tensors = dict(input_tensors(args, batch if isinstance(batch, dict) else {}))
    names = {graph.values[value].name: value for value in graph.inputs}
    if tensors.keys() != names.keys():
        raise InputError(
            f"a batch holds the tensors {_listed(tensors)}, but {graph.model} was traced with {_listed(names)}; "
            "give keyword arguments as a dict, and positional ones, which are called by position, as a tuple"
        )
    for name, value in names.items():
        shape = graph.values[value].shape
        if tuple(tensors[name].shape) != shape:
            raise InputError(
                f"input {name!r} of {graph.model} was traced with shape {shape}, but a batch has "
                f"{tuple(tensors[name].shape)}; give batches of the example's shape"
            )
    return {value: tensors[name] for name, value in names.items()}


def _listed(names: Iterable[str]) -> str:
    return "[" + ", ".join(repr(name) for name in names) + "]"
