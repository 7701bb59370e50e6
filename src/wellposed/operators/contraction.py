"""Contractions: where a parameter meets a signal and axes are summed.

A contraction is described once. Fan-in, fan-out, the forward rule and the prescription all follow from the description;
no fan is ever read off a weight's number of dimensions or off a parameter's name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from wellposed.graphs import Graph, Node
from wellposed.operators.facts import facts_of
from wellposed.operators.product import GROUPED, Product, Window, describe
from wellposed.operators.scale_parameters import parameter_values, scale_parameters
from wellposed.operators.scale_reading import ScaleParameter
from wellposed.operators.steps import Cut, Shape, Steps, carried
from wellposed.operators.views import is_cut, view_of

aten: torch._ops._OpNamespace = torch.ops.aten

Kind = Literal["linear", "conv", "conv_transpose", "matmul", "embedding", "recurrent"]


@dataclass(frozen=True, slots=True)
class Contraction:
    """A use of a parameter as a weight.

    Attributes:
        node: index of the node.
        data: id of the value that is contracted with the weight (the indices, for an embedding).
        weight: id of the effective weight, as the operator receives it.
        parameter: name of the parameter that scales the weight linearly; None if none does (normalised away).
        bias: name of the parameter that is added to the result, if any.
        fan_in: number of products summed into one output element.
        fan_out: number of output elements of one consumer that one input element enters (a fused q/k/v projection
            has three consumers).
        output_axis: axis of *the parameter* that indexes outputs.
        groups: groups of a convolution.
        kind: what kind of operator it is.
    """

    node: int
    data: int
    weight: int
    parameter: str | None
    bias: str | None
    fan_in: int
    fan_out: int
    output_axis: int
    groups: int
    kind: Kind

    @property
    def sums(self) -> bool:
        """Whether it sums products of its data with a weight, and does nothing else."""
        return self.kind in ("linear", "conv", "conv_transpose", "matmul")

    def blocks(self, shape: tuple[int, ...]) -> int:
        """Return how many matrices the parameter holds: groups, stacked experts, or consumers of fused outputs.

        Args:
            shape: the parameter's shape.
        """
        if self.groups > 1:
            return self.groups
        outputs = shape[self.output_axis]
        if self.output_axis > 0 and self.kind == "matmul" and math.prod(shape) == self.fan_in * outputs * shape[0]:
            return shape[0]
        if self.output_axis == 0 and self.kind == "linear" and outputs % self.fan_out == 0:
            return outputs // self.fan_out
        return 1


def contractions(graph: Graph, found: Mapping[int, ScaleParameter] | None = None) -> tuple[Contraction, ...]:
    """Return every use of a parameter as a weight, in execution order.

    Linear layers, convolutions, matrix products and einsum with a parameter-derived operand, embeddings, and the
    weights of recurrent operators (one entry per parameter). Weights without elements are left out. ``found`` is what
    `scale_parameters` returns, where it is at hand.
    """
    scaling = scale_parameters(graph) if found is None else found
    known: _Known | None = graph.remembered.get(contractions)
    if known is None or known.scale_parameters != scaling:  # they depend on values too, and these may change
        read = _Uses(graph, scaling, parameter_values(graph), graph.users())
        every = [use for node in graph.nodes for use in read.of_node(node)]
        uses = tuple([use for use in every if 0 not in graph.values[use.weight].shape])
        known = graph.remembered[contractions] = _Known(dict(scaling), uses)
    return known.uses


class _Known(NamedTuple):
    """The uses of weights in a graph, and the scale parameters that they were found with."""

    scale_parameters: Mapping[int, ScaleParameter]
    uses: tuple[Contraction, ...]


@dataclass(frozen=True, slots=True)
class _Uses:
    """What one pass over a graph needs to find the uses of weights."""

    graph: Graph
    scale_parameters: Mapping[int, ScaleParameter]
    fixed: frozenset[int]
    users: Mapping[int, Sequence[int]]

    def of_node(self, node: Node) -> Iterator[Contraction]:
        """Yield the uses at one node."""
        facts = facts_of(node.op)
        if facts.looks_up:
            yield self._look_up(node)
        elif facts.recurrent:
            yield from self._recurrent(node)
        else:
            product = describe(self.graph, node)
            use = None if product is None else self._product(node, product)
            if use is not None:
                yield use

    def _name(self, value: int) -> str | None:
        scale_parameter = self.scale_parameters.get(value)
        return None if scale_parameter is None else scale_parameter.parameter

    def _bias(self, product: Product) -> str | None:
        """Return the parameter that a product adds, reshaped or not."""
        name = None if product.bias is None else self._name(product.bias)
        return name if name in self.graph.parameters else None

    def _look_up(self, node: Node) -> Contraction:
        weight, indices = node.args[0].value, node.args[1].value
        width = self.graph.values[weight].shape[-1]
        return Contraction(node.index, indices, weight, self._name(weight), None, 1, width, 0, 1, "embedding")

    def _recurrent(self, node: Node) -> Iterator[Contraction]:
        """Yield a use of each matrix (stacked gates, features) of a recurrent layer, with its columns as fan-in."""
        for value in node.inputs:
            shape = self.graph.values[value].shape
            if value in self.scale_parameters and len(shape) >= 2:
                name = self.scale_parameters[value].parameter
                yield Contraction(node.index, node.inputs[0], value, name, None, shape[1], shape[0], 0, 1, "recurrent")

    def _product(self, node: Node, product: Product) -> Contraction | None:
        """Return the use of the weight that is an operand of a product, with fans and output axis, or None."""
        sides = self._sides(node, product)
        if sides is None:
            return None
        weight, data, weight_axes, data_axes = sides
        scale_parameter = self.scale_parameters.get(weight)
        if weight in self.graph.known and scale_parameter is None:
            return None
        own = [label for label in weight_axes if label in product.out_axes and label not in data_axes]
        kind: Kind = "linear" if node.op is aten.linear.default else "matmul"
        if product.window is not None:
            own = ["o"]
            kind = "conv_transpose" if product.transposed else "conv"
            fan_in, fan_out = self._fans_of_window(
                node, product, product.window, self.graph.values[data].shape, data_axes
            )
        else:
            sizes = dict(zip(weight_axes, self.graph.values[weight].shape, strict=True))
            fan_in, fan_out = self._fans(node, product, sizes, own)
        output_axis = None
        if scale_parameter is not None and own and scale_parameter.axes:  # one number may scale the whole weight
            output_axis = scale_parameter.axes[weight_axes.index(own[-1])]
        return Contraction(
            node.index,
            data,
            weight,
            None if scale_parameter is None else scale_parameter.parameter,
            self._bias(product),
            fan_in,
            max(1, fan_out),
            output_axis or 0,
            product.groups,
            kind,
        )

    def _sides(self, node: Node, product: Product) -> tuple[int, int, tuple[str, ...], tuple[str, ...]] | None:
        """Return weight, data and their axes, or None.

        Where both operands depend on parameters alone (learned queries, tables of positions), the operators that name
        a weight tell which it is. A learned picture that a convolution with a signal's kernels reads is no weight.
        """
        left, right = product.left in self.fixed, product.right in self.fixed
        named = product.right in self.scale_parameters and (
            node.op is aten.linear.default or product.window is not None
        )
        if right and (named or not left):
            return product.right, product.left, product.right_axes, product.left_axes
        if left and not right and product.window is None:
            return product.left, product.right, product.left_axes, product.right_axes
        return None

    def _fans(self, node: Node, product: Product, sizes: Mapping[str, int], own: Sequence[str]) -> tuple[int, int]:
        """Return the terms of one output element, and the output elements of one consumer that an input enters."""
        # of rows that are sorted by expert each meets one expert's matrix
        summed = ("k",) if node.op in GROUPED else product.summed
        fan_out = math.prod(sizes[label] for label in own)
        if own:
            fan_out //= _consumers(self.graph, node.outputs[0], product.out_axes.index(own[-1]), self.users)
        return math.prod(sizes[label] for label in summed if label in sizes), fan_out

    def _fans_of_window(
        self, node: Node, product: Product, window: Window, data: Sequence[int], data_axes: Sequence[str]
    ) -> tuple[int, int]:
        """Return the same of a convolution; its stride spreads an input over fewer windows."""
        channels = data[data_axes.index("c")] // product.groups
        outputs = self.graph.values[node.outputs[0]].shape[product.out_axes.index("o")] // product.groups
        strides = math.prod(window.stride)
        wide, narrow = (outputs, channels) if product.transposed else (channels, outputs)
        dense, strided = wide * window.taps, narrow * window.taps
        strided = strided if strides == 1 else max(1, round(strided / strides))
        return (strided, dense) if product.transposed else (dense, strided)


class _Parts:
    """Carries the factors of a channel axis through views; the leading one may number the consumers."""

    def fresh(self, size: int) -> list[int]:
        return []

    def regrouped(self, known: Sequence[list[int]], before: Shape, after: Shape) -> list[list[int]]:
        """Return the factors by axis of ``after``: the size of an axis that lies inside one with factors, else none."""
        start, spans = 1, []
        for axis, size in enumerate(before):
            if known[axis]:
                spans.append((start, start * size))
            start *= size
        result: list[list[int]] = []
        start = 1
        for size in after:
            inside = any(low <= start and start * size <= high for low, high in spans) and size > 1
            result.append([size] if inside else [])
            start *= size
        return result

    def cut(self, known: list[int], before: int, after: int) -> list[int]:
        return known


_MOST_VIEWS = 8
"""Views in a row through which a channel axis is followed."""


def _consumers(graph: Graph, value: int, axis: int, users: Mapping[int, Sequence[int]]) -> int:
    """Into how many equal parts the output's channel axis is split before it is used (3 for a fused q/k/v)."""
    parts: list[list[int]] = [[] for _ in graph.values[value].shape]
    parts[axis] = [graph.values[value].shape[axis]]
    for _ in range(_MOST_VIEWS):
        readers = users.get(value, [])
        if not readers:
            return 1
        node = graph.nodes[readers[0]]
        steps = view_of(graph, node)
        if steps is None or node.inputs[0] != value:
            return 1
        shape = graph.values[value].shape
        if len(steps) > 1 or (len(readers) > 1 and is_cut(node.op)):
            return _number_of_parts(steps, shape, parts)
        if len(readers) > 1:
            return 1
        parts = carried(steps[0], parts, shape, _Parts())
        value = node.outputs[0]
    return 1


def _number_of_parts(steps: Sequence[Steps], shape: Shape, parts: Sequence[list[int]]) -> int:
    """Return how often one of these cuts fits into the channel axis, where they are equal; else 1."""
    cuts = [chain[-1] for chain in steps]
    widths = {len(range(cut.start, cut.stop, cut.step)) for cut in cuts if isinstance(cut, Cut)}
    axes = {cut.axis for cut in cuts if isinstance(cut, Cut)}
    if len(axes) != 1 or len(widths) != 1 or not parts[min(axes)]:
        return 1
    return shape[min(axes)] // max(min(widths), 1)
