"""Which dimensions of a model are widths, and which are given by its data or its task.

A dimension is a set of axes of tensors that are one and the same index: the channels of a residual stream, of its norms
and of all weights that read or write it. It is a *width* where a weight makes it and a later product sums over it; the
input's channels, a vocabulary, the classes, token and pixel positions and kernel taps are not. That is what maximal
update parametrisation (Yang et al. 2022, arXiv 2203.03466, Table 3) has to know of each parameter, read here off one
graph, where its authors compare the shapes of three models.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from wellposed.graphs import Graph, Node
from wellposed.graphs.graph import once
from wellposed.operators.contraction import Contraction, contractions
from wellposed.operators.facts import facts_of
from wellposed.operators.indices import (
    Atom,
    Axes,
    Axis,
    Dimension,
    Indices,
    fresh,
    fresh_axes,
    is_made,
    mark,
    members,
    size_of,
    unite,
)
from wellposed.operators.norms import NORMS
from wellposed.operators.product import Product, describe
from wellposed.operators.scale_parameters import parameter_values
from wellposed.operators.steps import carried
from wellposed.operators.views import view_of
from wellposed.walks import reached

aten: torch._ops._OpNamespace = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Widths:
    """The widths among the fans of one parameter; None where that side is finite.

    Attributes:
        fan_in: channels that are summed into one output (without kernel taps and positions), for each group.
        fan_out: channels that the parameter makes (for each consumer of a fused projection), or has, if it is a
            vector: a bias, a gain, an embedding's row.
    """

    fan_in: int | None
    fan_out: int | None


def widths(graph: Graph, known: Sequence[Contraction] | None = None) -> dict[str, Widths]:
    """Return the widths of every parameter of ``graph``, by first name.

    Hidden weights have two, weights that meet the input and vectors have a fan-out only, readouts a fan-in only, and
    a readout's bias none. ``known`` are the graph's contractions, where they are at hand.
    """
    uses = contractions(graph) if known is None else known
    dimensions = _read(graph)
    fans: dict[str, Widths] = {}
    for use in uses:
        for name in dimensions.parameters_of(use.weight):
            mine = dimensions.of_use(use)
            size = math.prod(graph.values[use.weight].shape)
            # what is smaller than the weight only scales its rows: the gain of a weight normalisation
            if math.prod(graph.parameters[name].shape) >= size and use.kind != "embedding":
                before = fans.get(name)
                if before is None or before.fan_in is None:
                    fans[name] = mine
                if use.bias is not None and fans[name] is mine:
                    fans[use.bias] = Widths(None, mine.fan_out)
    for name, parameter in graph.parameters.items():
        fans.setdefault(name, Widths(None, dimensions.width_of_axes(dimensions.axes[parameter.value])))
    return fans


@once
def channels(graph: Graph) -> dict[int, tuple[bool, ...]]:
    """Return, by value id, for each axis whether it holds only indices that weights make, and none of an input."""

    def only_made(axis: Axis) -> bool:
        return bool(axis) and all(is_made(atom.dimension) and not atom.dimension.root().given for atom in axis)

    return {value: tuple(map(only_made, own)) for value, own in axes_of(graph).items()}


@once
def axes_of(graph: Graph) -> dict[int, Axes]:
    """Return, by value id, the indices that lie in each axis."""
    return _read(graph).axes


@once
def _read(graph: Graph) -> _Reader:
    return _Reader(graph, contractions(graph))


class _Reader:
    """One pass over a graph that finds which axes are one index, then which of these indices are widths."""

    def __init__(self, graph: Graph, uses: Sequence[Contraction]) -> None:
        self.graph = graph
        self.fixed = parameter_values(graph)
        self.axes: dict[int, Axes] = {}
        self.products: list[tuple[Axis, Axis]] = []
        self.concatenated: list[Dimension] = []
        self.joined: dict[Dimension, int] = {}
        self.weights = {use.weight for use in uses}
        self.names = {parameter.value: name for name, parameter in graph.parameters.items()}
        for value in graph.values:
            if value.node is None:
                self.axes[value.id] = fresh_axes(value.shape)
        for value_id in graph.inputs:
            for axis in self.axes[value_id]:
                for atom in axis:
                    atom.dimension.given = True
        for node in graph.nodes:
            self._follow(node)
        self._settle()

    # ---- results ----------------------------------------------------------------------------------------------------

    def parameters_of(self, value: int) -> Iterator[str]:
        """Yield the names of the parameters that ``value``, which depends on parameters alone, is made of."""

        def made_of(at: int) -> Sequence[int]:
            node = self.graph.values[at].node
            return () if node is None or at in self.names or at not in self.fixed else self.graph.nodes[node].inputs

        return (self.names[at] for at in reached([value], made_of) if at in self.names)

    def of_use(self, use: Contraction) -> Widths:
        """Return the widths of a weight at one use."""
        node = self.graph.nodes[use.node]
        if use.kind == "embedding":
            return Widths(None, self.width_of_axes(self.axes[use.weight][1:]))
        if use.kind == "recurrent":
            return self._of_recurrent(use)
        product = describe(self.graph, node)
        assert product is not None  # it was described when the use was found
        left = product.left == use.weight
        weight_labels = product.left_axes if left else product.right_axes
        data_labels = product.right_axes if left else product.left_axes
        data = dict(zip(data_labels, self.axes[use.data], strict=True))
        weight = dict(zip(weight_labels, self.axes[use.weight], strict=True))
        if product.window is not None:
            return self._of_window(product, data["c"], weight["o"])
        own = [weight[label] for label in weight_labels if label in product.out_axes and label not in data_labels]
        fan_out = self.width_of_axes(own)
        consumers = max(1, math.prod(map(size_of, own)) // max(1, use.fan_out))
        summed = [data[label] for label in data_labels if label in weight_labels and label not in product.out_axes]
        return Widths(self.width_of_axes(summed), fan_out and max(1, fan_out // consumers))

    def _of_window(self, product: Product, channels: Axis, outputs: Axis) -> Widths:
        """Return the widths of a convolution's kernel, for each group."""
        fan_in, fan_out = self.width_of_axes([channels]), self.width_of_axes([outputs])
        if size_of(channels) == product.groups:  # depthwise: each channel has a filter of its own, as it has a gain
            return Widths(None, fan_out)
        groups = 1 if product.transposed else product.groups  # a transposed weight holds one group's outputs
        return Widths(fan_in and fan_in // product.groups, fan_out and fan_out // groups)

    def width_of_axes(self, axes: Iterable[Axis]) -> int | None:
        """Return the product of the sizes that are widths, None where none is."""
        sizes = [size for axis in axes for atom in axis if (size := self._width(atom))]
        return math.prod(sizes) if sizes else None

    def _of_recurrent(self, use: Contraction) -> Widths:
        """Return the widths of a recurrent layer's matrix (stacked gates, features), one gate's as fan-out."""
        node = self.graph.nodes[use.node]
        matrices = [v for v in node.inputs if v in self.weights]
        hidden = self.axes[node.outputs[0]][-1]
        fan_out = self.width_of_axes([hidden]) and use.fan_out // facts_of(node.op).recurrent
        # the first matrix of the first layer (of both directions) meets what enters, all others a hidden state
        shape = self.graph.values[use.weight].shape
        first = matrices.index(use.weight) % 2 == 0 and shape[1] == size_of(self.axes[use.data][-1])
        if first and self.width_of_axes([self.axes[use.data][-1]]) is None:
            return Widths(None, fan_out)
        return Widths(use.fan_in, fan_out)

    # ---- which dimensions are widths --------------------------------------------------------------------------------

    def _width(self, atom: Atom) -> int:
        """Return how much of an index is a width: all, nothing, or the widths among the parts of a concatenation."""
        root = atom.dimension.root()
        if root.given:
            return 0
        if root.made or not root.parts:
            return atom.size if root.made and root.summed else 0
        if root not in self.joined:
            self.joined[root] = 0  # what is added to a part of itself
            sizes = [[self._width(part) for part in axis] for axis in root.parts]
            self.joined[root] = sum(math.prod(size for size in axis if size) for axis in sizes if any(axis))
        width = self.joined[root]
        return width if atom.size == sum(map(size_of, root.parts)) else atom.size * (width > 0)

    def _settle(self) -> None:
        """Pass what is known of concatenations to their parts, and settle products of two signals; in place."""
        for left, right in self.products:
            # queries and keys: a sum over an index that weights make on both sides
            if all(any(is_made(atom.dimension) for atom in axis) for axis in (left, right)):
                for atom in (*left, *right):
                    atom.dimension.root().summed = True
        for whole in reversed(self.concatenated):
            if whole.root().summed:
                for part in members(whole):
                    part.summed = True

    # ---- one operator -----------------------------------------------------------------------------------------------

    def _follow(self, node: Node) -> None:
        results = self._outputs(node)
        for out, axes in zip(node.outputs, results, strict=True):
            shape = self.graph.values[out].shape
            self.axes[out] = axes if tuple(map(size_of, axes)) == shape else fresh_axes(shape)

    def _outputs(self, node: Node) -> list[Axes]:
        """Return the axes of what a node makes: by its description, by its facts, or else by position."""
        shapes = [self.graph.values[out].shape for out in node.outputs]
        product, steps, facts = describe(self.graph, node), view_of(self.graph, node), facts_of(node.op)
        if product is not None:
            return [self._product(product, shapes[0])]
        if facts.looks_up:
            return self._rows(node, shapes)
        if not self.weights.isdisjoint(node.inputs) and not self.fixed.issuperset(node.inputs):
            return self._recurrent(node, shapes)
        if facts.attends:
            return self._attention(node)
        if steps is not None:
            source = node.inputs[0]
            before = self.graph.values[source].shape
            return [tuple(carried(chain, self.axes[source], before, Indices())) for chain in steps]
        if facts.joins:
            join = self._stack if facts.merges == "stack" else self._concatenation
            return [join(node, shapes[0])]
        if node.op is aten.view_as_complex.default:
            return [self.axes[node.inputs[0]][:-1]]
        if node.op is aten.view_as_real.default:
            return [(*self.axes[node.inputs[0]], fresh(2))]
        return [self._aligned(node, shape) for shape in shapes]

    def _rows(self, node: Node, shapes: Sequence[tuple[int, ...]]) -> list[Axes]:
        """Return the axes of rows that are looked up in a table."""
        row, indices = self.axes[node.args[0].value][-1], self.axes[node.args[1].value]
        mark(row, made=True)
        lead = indices if len(indices) == len(shapes[0]) - 1 else fresh_axes(shapes[0][:-1])
        return [(*lead, row), *map(fresh_axes, shapes[1:])]

    def _attention(self, node: Node) -> list[Axes]:
        """Return the axes of attention, which sums over those of queries and keys."""
        query, key, value = (self.axes[argument.value] for argument in node.args[:3])
        self.products.append((query[-1], key[-1]))
        unite(query[-1], key[-1])
        return [(*query[:-1], value[-1])]

    def _product(self, product: Product, shape: tuple[int, ...]) -> Axes:
        """Return the axes of a product, and record which indices it sums over and which its weight makes."""
        left = dict(zip(product.left_axes, self.axes[product.left], strict=True))
        right = dict(zip(product.right_axes, self.axes[product.right], strict=True))
        weighted = product.right in self.fixed or product.left in self.fixed
        # where both are made of parameters, layers name the right one
        of_left = (product.left in self.fixed) > (product.right in self.weights)
        operand = product.left if of_left else product.right
        weight, data = (left, right) if of_left else (right, left)
        trained = weighted and any(True for _ in self.parameters_of(operand))
        for label in set(left) & set(right):
            unite(data[label], weight[label])
            if label in product.out_axes:
                continue
            mark(data[label], summed=trained)
            if not weighted:
                self.products.append((left[label], right[label]))
        if product.window is not None:
            mark(data["c"], summed=trained)
            _join_channels(product, left, right)
        for label in weight.keys() - data.keys():
            mark(weight[label], made=trained and label in product.out_axes)
        out = [
            self._made(product, label, size, {**weight, **data}.get(label), trained)
            for label, size in zip(product.out_axes, shape, strict=True)
        ]
        if product.bias is not None:
            self._broadcast(product.bias, out if product.window is None else [out[product.out_axes.index("o")]])
        return tuple(out)

    def _made(self, product: Product, label: str, size: int, axis: Axis | None, trained: bool) -> Axis:
        """Return one axis of a product: that of an operand, or a new one where none has its length."""
        if product.window is not None and label == "o" and product.transposed and product.groups > 1:
            return fresh(size, Dimension(made=trained))
        return fresh(size) if axis is None or size_of(axis) != size else axis

    def _recurrent(self, node: Node, shapes: Sequence[tuple[int, ...]]) -> list[Axes]:
        """Return the axes of results, hidden units last, and split the weights' rows into gates and units."""
        mark(self.axes[node.inputs[0]][-1], summed=True)
        hidden = Dimension(made=True, summed=True)
        units = shapes[-1][-1]
        for value in node.inputs:
            if value in self.fixed:
                rows = self.graph.values[value].shape[0]
                if rows % units == 0:  # gates are stacked; their number is no width
                    self.axes[value] = ((*fresh(rows // units), *fresh(units, hidden)), *self.axes[value][1:])
        return [(*fresh_axes(shape[:-1]), fresh(shape[-1], hidden)) for shape in shapes]

    def _concatenation(self, node: Node, shape: tuple[int, ...]) -> Axes:
        """Return the axes of a concatenation: a new one of the operands' parts along ``dim``, and the others united."""
        joined = [ref.value for ref in node.args[0]]
        joined = [value for value in joined if len(self.graph.values[value].shape) == len(shape)]
        at = int(node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)) % max(1, len(shape))
        whole = Dimension()
        out = []
        for axis, size in enumerate(shape):
            if axis == at:
                whole.parts = [self.axes[value][axis] for value in joined]
                self.concatenated.append(whole)
                out.append(fresh(size, whole))
            else:
                for value in joined[1:]:
                    unite(self.axes[joined[0]][axis], self.axes[value][axis])
                out.append(self.axes[joined[0]][axis])
        return tuple(out)

    def _stack(self, node: Node, shape: tuple[int, ...]) -> Axes:
        """Return the axes of a stack: those of its operands, united, and a new one at ``dim``."""
        joined = [ref.value for ref in node.args[0]]
        for value in joined[1:]:
            self._broadcast(value, self.axes[joined[0]])
        at = int(node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)) % len(shape)
        kept = self.axes[joined[0]]
        return (*kept[:at], fresh(shape[at]), *kept[at:])

    def _broadcast(self, value: int, target: Sequence[Axis]) -> None:
        """Unite the axes of a value with those of what it is broadcast to, from the right."""
        for axis, other in zip(reversed(self.axes[value]), reversed(target), strict=False):
            unite(other, axis)

    def _sources(self, node: Node) -> list[int]:
        """Return the operands that share axes with a result. Indices and masks beside signals do not, and a norm's
        vectors only have the axes of its channels.
        """
        signals = [v for v in node.inputs if self.graph.values[v].is_signal]
        sources = [v for v in signals or node.inputs if self.graph.values[v].shape]
        channel = _CHANNELS.get(node.op)
        if channel is None:
            return sources
        whole = self.axes[node.inputs[0]]
        for value in node.inputs[1:]:
            self._broadcast(value, [whole[channel]])
        return sources[:1]

    def _aligned(self, node: Node, shape: tuple[int, ...]) -> Axes:
        """Return axes by position, for operators that keep indices in place; reduced and resized ones are fresh."""
        out: list[Axis | None] = [None] * len(shape)
        for value in self._sources(node):
            axes, reduced = self.axes[value], _reduced(node, len(self.axes[value]), len(shape))
            kept = [axis for i, axis in enumerate(axes) if i not in reduced]
            lead = len(shape) - len(kept)
            for at, axis in enumerate(kept, start=lead) if lead >= 0 else ():
                if axis and size_of(axis) == shape[at]:
                    out[at] = _aligned_with(out[at], axis)
        return tuple(fresh(size) if axis is None else axis for axis, size in zip(out, shape, strict=True))


def _aligned_with(mine: Axis | None, axis: Axis) -> Axis:
    """Unite two axes in one place (in place, by union-find) and return the one that holds more indices."""
    if mine is None:
        return axis
    unite(mine, axis)
    return axis if len(axis) > len(mine) else mine


def _reduced(node: Node, rank: int, after: int) -> tuple[int, ...]:
    """Return the axes that a reduction drops."""
    if after >= rank:
        return ()
    names = [argument.name for argument in node.op._schema.arguments]
    if "dim" not in names:
        return ()
    at = names.index("dim")
    dim: Any = node.args[at] if at < len(node.args) else node.kwargs.get("dim")
    dims = [dim] if isinstance(dim, int) else list(dim or range(rank))
    return tuple(d % rank for d in dims)


_CHANNELS = {op: 1 for op, norm in NORMS.items() if norm.by_channel} | {aten.prelu.default: 1}
"""Operators whose vectors belong to axis 1."""


def _join_channels(product: Product, image: Mapping[str, Axis], kernels: Mapping[str, Axis]) -> None:
    """Unite the channels that a convolution sums over, or those that it filters each for itself (depthwise)."""
    if product.groups == 1 or size_of(image["c"]) == product.groups == size_of(kernels["o"]):
        unite(image["c"], kernels["c" if product.groups == 1 else "o"])
