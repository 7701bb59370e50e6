"""Networks as evolution leaves them, in the JSON of Keras 2: ``FAMILIES[name](calls, seed)`` returns one.

Drawn at random, in the forms of published searches: modules of layers with several paths that are repeated along a
blueprint (CoDeepNEAT, Miikkulainen et al. 2019), activations that are graphs of functions of one and two numbers
(PANGAEA, Bingham & Miikkulainen 2022), connections between any two layers (NEAT, Stanley & Miikkulainen 2002), and
memory cells that are trees of gates (Rawal & Miikkulainen 2018), unrolled: their layers are called once for every step.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import torch
from torch import Tensor

Functions = dict[str, Callable[..., Any]]
Shape = tuple[int, ...]

NAMED = (
    "relu",
    "elu",
    "selu",
    "tanh",
    "sigmoid",
    "swish",
    "gelu",
    "softplus",
    "softsign",
    "hard_sigmoid",
)
"""Activations that Keras 2 knows by name."""
ODD: dict[str, Callable[[Any], Any]] = {
    "sin": keras.ops.sin,
    "cos": keras.ops.cos,
    "abs": keras.ops.abs,
    "square": keras.ops.square,
    "arctan": keras.ops.arctan,
    "arcsinh": keras.ops.arcsinh,
    "erf": keras.ops.erf,
    "negative": keras.ops.negative,
    "log_sigmoid": keras.ops.log_sigmoid,
    "swish_squared": lambda x: keras.ops.square(keras.ops.silu(x)),
    "bump": lambda x: keras.ops.exp(-keras.ops.square(x)),
    "clipped": lambda x: keras.ops.clip(x, -1.0, 2.0),
}
"""Functions of one number that Keras 2 has as Lambdas only."""
_TWO: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Add": torch.add,
    "Multiply": torch.mul,
    "Subtract": torch.sub,
    "Maximum": torch.maximum,
    "Minimum": torch.minimum,
    "Average": lambda x, y: (x + y) / 2,
}
TAIL = 12.0
MERGES = ("Add", "Concatenate", "Multiply", "Average", "Maximum", "weighted")


@dataclass(frozen=True)
class Evolved:
    """A network as Keras 2 saved it, with the functions of its Lambdas."""

    text: str
    lambdas: Functions
    calls: int


@dataclass(frozen=True)
class Value:
    """What the call of a layer returned."""

    layer: str
    node: int
    shape: Shape


@dataclass(frozen=True)
class Graph:
    """An activation: a function of two numbers of two functions of one, and perhaps a function of that."""

    first: str
    second: str
    pair: str
    last: str | None


def tail(graph: Graph) -> float:
    """Return E[y⁴] / E[y²]² of what an activation makes of normal numbers: 3 for a linear one, 11.7 for a square."""
    x = torch.special.ndtri((torch.arange(10_000, dtype=torch.float64) + 0.5) / 10_000)
    y = _TWO[graph.pair](_value(graph.first, x), _value(graph.second, x))
    square = (y if graph.last is None else _value(graph.last, y)).square()
    return float(square.square().mean() / square.mean() ** 2) if square.any() else math.inf


def _value(name: str, x: Tensor) -> Tensor:
    made: Tensor = ODD[name](x) if name in ODD else keras.activations.get(name)(x)
    return made


class Writer:
    """Writes down a functional model, call by call."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.calls = 0
        self._layers: dict[str, dict[str, Any]] = {}
        self._lambdas: Functions = {}

    def given(self, *shape: int, dtype: str = "float32") -> Value:
        """An input."""
        config = {"batch_input_shape": [None, *shape], "dtype": dtype, "sparse": False, "ragged": False}
        return Value(self.layer("InputLayer", **config), 0, shape)

    def layer(self, kind: str, function: Callable[..., Any] | None = None, **config: Any) -> str:
        """Make a layer that is to be called, and return its name; a Lambda has a function."""
        name = f"{kind.lower()}_{len(self._layers)}"
        told = {"name": name, "trainable": True, "dtype": "float32", **config}
        self._layers[name] = {"class_name": kind, "name": name, "config": told, "inbound_nodes": []}
        if function is not None:
            self._lambdas[name] = function
        return name

    def call(self, layer: str, values: Sequence[Value], shape: Shape) -> Value:
        """Call a layer, once more if it was called before."""
        nodes = self._layers[layer]["inbound_nodes"]
        nodes.append([[value.layer, value.node, 0, {}] for value in values])
        self.calls += 1
        return Value(layer, len(nodes) - 1, shape)

    def ended(self, given: Value, last: Value) -> Evolved:
        """The network from an input to an output."""
        config = {
            "name": "evolved",
            "layers": list(self._layers.values()),
            "input_layers": [[given.layer, 0, 0]],
            "output_layers": [[last.layer, last.node, 0]],
        }
        text = {"class_name": "Functional", "config": config, "keras_version": "2.4.0", "backend": "tensorflow"}
        return Evolved(json.dumps(text), self._lambdas, self.calls)

    # ---- layers of any network ----

    def new(self, kind: str, *values: Value, shape: Shape | None = None, **config: Any) -> Value:
        """Call a layer of its own, by default one that keeps the shape."""
        return self.call(self.layer(kind, **config), values, values[0].shape if shape is None else shape)

    def function(self, function: Callable[..., Any], *values: Value, shape: Shape | None = None) -> Value:
        """Call a Lambda."""
        return self.new("Lambda", *values, shape=shape, function=function, arguments={}, function_type="lambda")

    def dense(self, x: Value, units: int, activation: str = "linear") -> Value:
        return self.new("Dense", x, shape=(*x.shape[:-1], units), **weighted("units", units, activation))

    def norm(self, x: Value) -> Value:
        return self.new(
            "BatchNormalization", x, axis=[len(x.shape)], momentum=0.99, epsilon=1e-3, center=True, scale=True
        )

    def one(self, x: Value, name: str | None = None) -> Value:
        """A function of one number, by default any."""
        name = self.random.choice((*NAMED, *ODD)) if name is None else name
        return self.function(ODD[name], x) if name in ODD else self.new("Activation", x, activation=name)

    def graph(self) -> Graph:
        """Draw an activation: two functions of one number, one of two, and perhaps another of one.

        One that makes tails of its own is dropped, as evolution drops what does not train.
        """
        while True:
            first, second, last = (self.random.choice((*NAMED, *ODD)) for _ in range(3))
            drawn = Graph(first, second, self.random.choice(tuple(_TWO)), last if self.random.random() < 0.5 else None)
            if tail(drawn) < TAIL:
                return drawn

    def activation(self, x: Value, graph: Graph) -> Value:
        """Apply an activation that was drawn."""
        joined = self.new(graph.pair, self.one(x, graph.first), self.one(x, graph.second))
        return joined if graph.last is None else self.one(joined, graph.last)

    def merge(self, values: Sequence[Value]) -> Value:
        """Bring together several values, which have the same shape for all but a concatenation."""
        if len(values) == 1:
            return values[0]
        kind = self.random.choice(MERGES)
        if kind == "Concatenate":
            *rest, _ = values[0].shape
            return self.new(kind, *values, shape=(*rest, sum(value.shape[-1] for value in values)), axis=-1)
        units = min(value.shape[-1] for value in values)
        values = [value if value.shape[-1] == units else self.projected(value, units) for value in values]
        if kind == "weighted":
            weights = [self.random.uniform(-1.5, 1.5) for _ in values]
            return self.function(partial(weighted_sum, weights), *values)
        return self.new(kind, *values)

    def projected(self, x: Value, units: int) -> Value:
        """Channels brought to a number, by a layer."""
        return self.dense(x, units) if len(x.shape) == 1 else self.convolution(x, units, 1)

    def convolution(self, x: Value, filters: int, size: int, stride: int = 1, activation: str = "linear") -> Value:
        rank = len(x.shape) - 1
        shape = (*(-(-length // stride) for length in x.shape[:-1]), filters)
        geometry = {"kernel_size": [size] * rank, "strides": [stride] * rank, "padding": "same", "groups": 1,
                    "dilation_rate": [1] * rank, "data_format": "channels_last"}  # fmt: skip
        return self.new(f"Conv{rank}D", x, shape=shape, **geometry, **weighted("filters", filters, activation))

    def pooled(self, x: Value, stride: int) -> Value:
        rank = len(x.shape) - 1
        kind = self.random.choice(("Max", "Average"))
        shape = (*(-(-length // stride) for length in x.shape[:-1]), x.shape[-1])
        return self.new(f"{kind}Pooling{rank}D", x, shape=shape, pool_size=[2] * rank, strides=[stride] * rank,
                        padding="same", data_format="channels_last")  # fmt: skip


def weighted_sum(weights: Sequence[float], values: Any) -> Any:
    """What a Lambda that weighs its inputs computes."""
    return sum(weight * value for weight, value in zip(weights, values, strict=True))


def step_of(step: int, x: Any) -> Any:
    """What a Lambda that takes one step of a sequence computes."""
    return x[:, step]


def weighted(key: str, units: int, activation: str) -> dict[str, Any]:
    """The configuration of a layer with a kernel and a bias."""
    scheme = {"class_name": "GlorotUniform", "config": {"seed": None}}
    return {
        key: units,
        "activation": activation,
        "use_bias": True,
        "kernel_initializer": scheme,
        "bias_initializer": {"class_name": "Zeros", "config": {}},
        "kernel_regularizer": {"class_name": "L2", "config": {"l2": 1e-4}},
        "activity_regularizer": None,
        "kernel_constraint": None,
    }


# ---- families -------------------------------------------------------------------------------------------------------


def pictures(calls: int, seed: int = 0) -> Evolved:
    """Modules of convolutions, norms, dropout and pooling with several paths, after CoDeepNEAT."""
    net = Writer(seed)
    given = x = net.given(16, 16, 3)
    x = net.convolution(x, 16, 3, activation="relu")
    halve = [calls // 3, 2 * calls // 3]
    while net.calls < calls - 3:
        if halve and net.calls >= halve[0]:
            x = net.pooled(x, 2)
            halve.pop(0)
        x = _module(net, x, _picture_layer, net.random.choice((8, 16, 24)))
    x = net.new("GlobalAveragePooling2D", x, shape=x.shape[-1:], data_format="channels_last")
    return net.ended(given, net.dense(x, 10, "softmax"))


def _module(net: Writer, x: Value, layer: Callable[[Writer, Value, int], Value], units: int) -> Value:
    """A graph of 3 to 8 layers, each of which takes one or two of those before; what nobody takes is merged."""
    values, taken = [x], {0}
    for _ in range(net.random.randint(3, 8)):
        places = sorted({net.random.randrange(len(values)) for _ in range(net.random.choice((1, 1, 2)))})
        taken.update(places)
        values.append(layer(net, net.merge([values[place] for place in places]), units))
    ends = [value for place, value in enumerate(values) if place not in taken]
    return net.projected(net.merge(ends), units)


def _picture_layer(net: Writer, x: Value, units: int) -> Value:
    return _regularised(net, net.convolution(x, units, net.random.choice((1, 3)), activation=net.random.choice(NAMED)))


def _regularised(net: Writer, x: Value) -> Value:
    """What a gene says of a layer beside its kernel: another function, pooling, a norm, dropout, each or none."""
    if net.random.random() < 0.3:
        x = net.one(x)
    if net.random.random() < 0.2:
        x = net.pooled(x, 1)
    if net.random.random() < 0.4:
        x = net.norm(x)
    if net.random.random() < 0.4:
        x = net.new("Dropout", x, rate=net.random.uniform(0.05, 0.5), noise_shape=None, seed=None)
    return x


def activations(calls: int, seed: int = 0) -> Evolved:
    """A residual network of convolutions, each place in whose blocks has its own small graph as activation, after
    PANGAEA."""
    net = Writer(seed)
    graphs = [net.graph() for _ in range(3)]
    given = x = net.given(32, 4)
    x = net.convolution(x, 16, 3)
    while net.calls < calls - 3:
        branch = x
        for graph in graphs[:2]:
            branch = net.convolution(net.activation(net.norm(branch), graph), 16, 3)
        x = net.new("Add", x, branch)
    x = net.activation(net.norm(x), graphs[2])
    x = net.new("GlobalAveragePooling1D", x, shape=x.shape[-1:], data_format="channels_last")
    return net.ended(given, net.dense(x, 10, "softmax"))


def connections(calls: int, seed: int = 0) -> Evolved:
    """Dense layers, any of which may take any of those before it, after NEAT."""
    net = Writer(seed)
    given = net.given(20)
    values = [given]
    while net.calls < calls - 2:
        recent = values[-12:]
        parents = net.random.sample(recent, min(len(recent), net.random.choice((1, 1, 2, 3))))
        if net.random.random() < 0.1:
            parents.append(net.random.choice(values))  # from far back
        x = net.merge(list({id(parent): parent for parent in parents}.values()))
        made = net.dense(x, net.random.choice((24, 32, 48)), net.random.choice(NAMED))
        values.append(net.one(made) if net.random.random() < 0.3 else made)
    return net.ended(given, net.dense(net.merge(values[-4:]), 3))


def sequences(calls: int, seed: int = 0) -> Evolved:
    """Convolutions over time and recurrent layers, in modules with several paths."""
    net = Writer(seed)
    given = x = net.given(24, 8)
    x = net.convolution(x, 16, 3)
    while net.calls < calls - 3:
        x = _module(net, x, _sequence_layer, net.random.choice((12, 16, 24)))
    x = net.new("GlobalMaxPooling1D", x, shape=x.shape[-1:], data_format="channels_last")
    return net.ended(given, net.dense(x, 5, "sigmoid"))


def _sequence_layer(net: Writer, x: Value, units: int) -> Value:
    if net.random.random() < 0.05:
        kind = net.random.choice(("LSTM", "GRU"))
        more = {"implementation": 2, "time_major": False, "unroll": False, "recurrent_activation": "sigmoid",
                "return_sequences": True, **({"reset_after": False} if kind == "GRU" else {})}  # fmt: skip
        config = {"units": units, "activation": "tanh", "use_bias": True, **more}
        return net.new(kind, x, shape=(x.shape[0], units), **config)
    if net.random.random() < 0.2:
        return _regularised(net, net.dense(x, units, net.random.choice(NAMED)))
    return _picture_layer(net, x, units)


def cells(calls: int, seed: int = 0, units: int = 24) -> Evolved:
    """Stacks of evolved memory cells, unrolled: every gate is a layer that is called once for every step."""
    net = Writer(seed)
    steps = max(4, min(32, calls // 60))
    given = net.given(steps, 8)
    line = [net.function(partial(step_of, step), given, shape=(8,)) for step in range(steps)]
    while True:
        tree = _Cell(net, units, depth=net.random.choice((2, 3)))
        line = tree.run(line)
        if net.calls + tree.calls * steps > calls:
            break
    return net.ended(given, net.dense(line[-1], 5, "softmax"))


class _Cell:
    """A tree of gates: products and sums of layers of the input and of the state, with a memory that is added to."""

    def __init__(self, net: Writer, units: int, depth: int) -> None:
        self._net, self._units = net, units
        self._tree = self._drawn(depth)
        self._memory = self._drawn(1)
        self.calls = 0

    def _drawn(self, depth: int) -> Any:
        choice = self._net.random.choice
        if depth == 0:
            layers = [self._net.layer("Dense", **weighted("units", self._units, "linear")) for _ in range(2)]
            return layers, self._net.layer("Add"), self._net.layer("Activation", activation=choice(NAMED))
        return self._net.layer(choice(("Add", "Multiply", "Average"))), self._drawn(depth - 1), self._drawn(depth - 1)

    def run(self, line: Sequence[Value]) -> list[Value]:
        """Return the state after every step."""
        net, before = self._net, self._net.calls
        add, squash = net.layer("Add"), net.layer("Activation", activation="tanh")
        memory: Value | None = None
        state: Value | None = None
        states = []
        for x in line:
            made = self._called(self._memory, x, state)
            memory = made if memory is None else net.call(add, [memory, made], made.shape)
            state = self._called(self._tree, x, state)
            state = net.call(squash, [net.new("Multiply", state, memory)], state.shape)
            states.append(state)
        self.calls = (net.calls - before) // len(line)
        return states

    def _called(self, tree: Any, x: Value, state: Value | None) -> Value:
        net = self._net
        if isinstance(tree[0], str):
            join, left, right = tree
            return net.call(join, [self._called(left, x, state), self._called(right, x, state)], (self._units,))
        (of_x, of_state), add, squash = tree
        made = net.call(of_x, [x], (self._units,))
        if state is not None:
            made = net.call(add, [made, net.call(of_state, [state], made.shape)], made.shape)
        return net.call(squash, [made], made.shape)


FAMILIES: dict[str, Callable[..., Evolved]] = {
    "pictures": pictures,
    "activations": activations,
    "connections": connections,
    "sequences": sequences,
    "cells": cells,
}
