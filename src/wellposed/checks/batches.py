"""The inputs of real passes: drawn from a descriptor, or taken from the user's batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from wellposed.errors import InputError
from wellposed.graphs import Graph
from wellposed.graphs.tree import input_tensors
from wellposed.signals import Input
from wellposed.signals.drawing import draw_inputs
from wellposed.signals.inputs import Described
from wellposed.signals.passes.forward import describe_inputs

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


def batches(graph: Graph, inputs: Inputs, draws: int, seed: int) -> Iterator[dict[int, Tensor]]:
    """Yield, for every draw, the tensors of the graph's inputs by value id.

    See `wellposed.measure` for what ``inputs`` can be.

    Raises:
        InputError: a descriptor for no input of the graph, no batch at all, or one that does not fit the graph.
    """
    if is_described(inputs):
        descriptors = describe_inputs(graph, inputs)
        for draw in range(draws):
            generator = torch.Generator().manual_seed(stream(seed, draw, "inputs"))
            yield draw_inputs(graph, descriptors, generator)
    elif callable(inputs):
        for draw in range(draws):
            yield bind(graph, inputs(draw))
    else:
        given = [bind(graph, batch) for batch in islice(inputs, draws)]
        if not given:
            raise InputError("inputs is an iterable without a single batch; give at least one")
        for draw in range(draws):
            yield given[draw % len(given)]


def described(graph: Graph, given: Sequence[Mapping[int, Tensor]]) -> dict[str, Input]:
    """Return the descriptor of every input, by name, measured on the batches of `batches`.

    Raises:
        InputError: a batch holds infinities or NaN.
    """
    return {
        graph.values[value].name: Input.from_batch(torch.cat([batch[value] for batch in given]))
        for value in graph.inputs
        if graph.values[value].shape
    }


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
