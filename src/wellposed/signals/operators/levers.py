"""From parameters to effective weights: which parameter scales a value linearly.

A value follows a parameter through views, casts, picks, masks, factors, sums with itself and other linear maps
whose other operands are constants. What is no linear function of one parameter has no lever.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from wellposed.graphs import Graph, Node, Ref
from wellposed.graphs.graph import once
from wellposed.signals.operators.norms import WEIGHT_NORMS
from wellposed.signals.operators.product import describe
from wellposed.signals.operators.schema import named_arguments, plain_name, ref_of
from wellposed.signals.operators.views import Shape, carried, view_of

aten: torch._ops._OpNamespace = torch.ops.aten
ParameterAxes = tuple["int | None", ...]


@dataclass(frozen=True, slots=True)
class Lever:
    """The parameter whose scale is, linearly, that of a value; ``axes[i]`` is the parameter's axis in axis i."""

    parameter: str
    axes: ParameterAxes


class _ParameterAxes:
    """Carries the parameter's axes through views."""

    def fresh(self, size: int) -> int | None:
        return None

    def regrouped(self, known: Sequence[int | None], before: Shape, after: Shape) -> list[int | None]:
        """Keep an axis where the products of the sizes before it and up to it match."""
        ends = {}
        product = 1
        for axis, size in enumerate(before):
            ends[(product, product * size)] = known[axis]
            product *= size
        axes, product = [], 1
        for size in after:
            axes.append(ends.get((product, product * size)) if size != 1 else None)
            product *= size
        return axes

    def cut(self, known: int | None, before: int, after: int) -> int | None:
        return known


@dataclass(frozen=True, slots=True)
class _Reader:
    """Levers of one node's outputs, given those of the values before it."""

    graph: Graph
    node: Node
    levers: Mapping[int, Lever]

    def of(self, argument: Any) -> Lever | None:
        """Return the lever of an argument."""
        value = ref_of(argument)
        return None if value is None else self.levers.get(value)

    def shape(self, value: int) -> Shape:
        return self.graph.values[value].shape

    def is_constant(self, argument: Any) -> bool:
        """Whether an argument is a number or a tensor whose values are known."""
        value = ref_of(argument)
        return isinstance(argument, (int, float)) if value is None else value in self.graph.known

    def is_zero(self, argument: Any) -> bool:
        """Whether an argument is 0 everywhere."""
        value = ref_of(argument)
        if value is None:
            return isinstance(argument, (int, float)) and argument == 0
        known = self.graph.known.get(value)
        return known is not None and not bool(known.any())

    def is_gain(self, argument: Any, of: Ref) -> bool:
        """Whether an argument is a parameter with fewer elements than that of ``of``, and not 0."""
        gain, lever = self.of(argument), self.of(of)
        if gain is None or lever is None or gain.parameter == lever.parameter:
            return False
        small, large = self.graph.parameters[gain.parameter], self.graph.parameters[lever.parameter]
        if math.prod(small.shape) >= math.prod(large.shape):
            return False
        return small.values is None or bool(small.values.detach().any())

    def followed(self, source: int, out: int, axes: ParameterAxes | None = None) -> Lever:
        """Return the lever of ``source`` for an output of the same axes, as far as their lengths agree."""
        lever, before, after = self.levers[source], self.shape(source), self.shape(out)
        if axes is None:
            lead = len(after) - len(before)
            axes = tuple(
                lever.axes[i - lead] if 0 <= i - lead < len(before) and before[i - lead] == size else None
                for i, size in enumerate(after)
            )
        return Lever(lever.parameter, axes)

    def joint(self, operands: Iterable[Any]) -> Lever | None:
        """Return the lever of a sum, a choice or a concatenation: of one parameter, everything else being 0."""
        scaled: list[int] = []
        for operand in operands:
            if self.of(operand) is not None:
                scaled.append(operand.value)
            elif not self.is_zero(operand):
                return None
        if not scaled or len({self.levers[value].parameter for value in scaled}) > 1:
            return None
        out = self.node.outputs[0]
        candidates = [self.followed(value, out).axes for value in scaled]
        agreed = tuple(axes[0] if len(set(axes)) == 1 else None for axes in zip(*candidates, strict=True))
        return Lever(self.levers[scaled[0]].parameter, agreed)


def _alone(read: _Reader) -> Lever | None:
    """One operand, taken linearly."""
    source = read.node.inputs[0]
    return read.followed(source, read.node.outputs[0]) if source in read.levers else None


def _reduced(read: _Reader) -> Lever | None:
    """Sums and means: the axes that are summed are gone."""
    lever = read.of(read.node.args[0])
    if lever is None:
        return None
    named, rank = named_arguments(read.node), len(lever.axes)
    dim = named.get("dim")
    dims = list(dim) if isinstance(dim, (list, tuple)) else [] if dim is None else [dim]
    gone = {int(d) % rank for d in dims} if dims else set(range(rank))
    axes = [None if i in gone else axis for i, axis in enumerate(lever.axes) if named.get("keepdim") or i not in gone]
    return Lever(lever.parameter, tuple(axes))


def _summed(read: _Reader) -> Lever | None:
    return read.joint(read.node.args[:2])


def _chosen(read: _Reader) -> Lever | None:
    return read.joint(read.node.args[1:3]) if read.is_constant(read.node.args[0]) else None


def _filled(read: _Reader) -> Lever | None:
    _, mask, value = read.node.args[:3]
    return _alone(read) if read.is_constant(mask) and read.is_zero(value) else None


def _padded(read: _Reader) -> Lever | None:
    named = named_arguments(read.node)
    return _alone(read) if named.get("mode", "constant") != "constant" or not named.get("value") else None


def _listed(read: _Reader) -> Lever | None:
    return read.joint(read.node.args[0])


def _stacked(read: _Reader) -> Lever | None:
    joint = read.joint(read.node.args[0])
    return None if joint is None else Lever(joint.parameter, _no_axes(read))


def _scaled(read: _Reader) -> Lever | None:
    """A factor: a number or a constant; of two parameters, the larger one is scaled, and the other stays its gain."""
    left, right = read.node.args[:2]
    product = plain_name(read.node.op) == "mul"
    pairs = [(left, right), (right, left)] if product else [(left, right)]
    for scaled, factor in pairs:
        if read.of(scaled) is not None and (read.is_constant(factor) or read.is_gain(factor, scaled)):
            return read.followed(scaled.value, read.node.outputs[0])
    return None


def _multiplied(read: _Reader) -> Lever | None:
    """A matrix product with a constant."""
    product = describe(read.graph, read.node)
    if product is None or product.window is not None:
        return None
    for mine, axes, other in (
        (product.left, product.left_axes, product.right),
        (product.right, product.right_axes, product.left),
    ):
        lever = read.levers.get(mine)
        if lever is not None and other in read.graph.known and product.bias is None:
            by_label = dict(zip(axes, lever.axes, strict=True))
            return Lever(lever.parameter, tuple(by_label.get(label) for label in product.out_axes))
    return None


def _picked(read: _Reader) -> Lever | None:
    source = read.node.inputs[0]
    return read.followed(source, read.node.outputs[0]) if ref_of(read.node.args[0]) in read.levers else None


def _scattered(read: _Reader) -> Lever | None:
    """Elements picked anyhow: no axis of the result is one of the parameter's."""
    first = ref_of(read.node.args[0])
    if first is None or first not in read.levers:
        return None
    return read.followed(first, read.node.outputs[0], _no_axes(read))


def _no_axes(read: _Reader) -> ParameterAxes:
    return (None,) * len(read.shape(read.node.outputs[0]))


def _weight_normed(read: _Reader) -> Lever | None:
    gain = read.of(read.node.args[1])
    return None if gain is None else Lever(gain.parameter, gain.axes)


_LINEAR: dict[str, Callable[[_Reader], Lever | None]] = {
    **dict.fromkeys(("add", "sub", "rsub"), _summed),
    **dict.fromkeys(("mul", "div"), _scaled),
    **dict.fromkeys(("dropout", "feature_dropout", "native_dropout"), _alone),
    **dict.fromkeys(("neg", "tril", "triu", "cumsum", "channel_shuffle"), _alone),
    **dict.fromkeys(("sum", "mean"), _reduced),
    **dict.fromkeys(("matmul", "mm", "bmm", "mv", "dot", "einsum"), _multiplied),
    "cat": _listed,
    "stack": _stacked,
    **dict.fromkeys(("pad", "constant_pad_nd"), _padded),
    **dict.fromkeys(("index", "gather", "take_along_dim", "take", "diagonal", "as_strided", "unfold"), _scattered),
    "index_select": _picked,
    "masked_fill": _filled,
    "where": _chosen,
}
"""Linear operators beside views, by plain name."""


def lever_of(graph: Graph, node: Node, levers: Mapping[int, Lever]) -> list[Lever | None]:
    """Return the levers of a node's outputs, given those of the values before it."""
    read = _Reader(graph, node, levers)
    none: list[Lever | None] = [None] * len(node.outputs)
    if node.op in WEIGHT_NORMS:  # w = g v / |v|: g scales it, v does not
        return [_weight_normed(read), *none[1:]]
    steps = view_of(graph, node)
    if steps is not None:
        source = node.inputs[0]
        if source not in levers:
            return none
        lever, before = levers[source], graph.values[source].shape
        return [Lever(lever.parameter, tuple(carried(chain, lever.axes, before, _ParameterAxes()))) for chain in steps]
    rule = _LINEAR.get(plain_name(node.op))
    return none if rule is None else [rule(read), *none[1:]]


def levers(graph: Graph) -> dict[int, Lever]:
    """Return, by value id, the parameter that scales each parameter-derived value linearly."""
    scaling: dict[int, Lever] = {
        parameter.value: Lever(name, tuple(range(len(parameter.shape)))) for name, parameter in graph.parameters.items()
    }
    fixed = parameter_values(graph)
    for node in graph.nodes:
        if node.outputs and node.outputs[0] in fixed and any(value in scaling for value in node.inputs):
            for out, lever in zip(node.outputs, lever_of(graph, node, scaling), strict=True):
                if lever is not None:
                    scaling[out] = lever
    return scaling


@once
def parameter_values(graph: Graph) -> frozenset[int]:
    """Return the ids of the values that depend on parameters, buffers and constants alone (no input reaches them).

    Weights that are drawn or masked anew in every pass count too: random numbers that a parameter enters.
    """
    made = {parameter.value for parameter in graph.parameters.values()}
    fixed = {value.id for value in graph.values if value.kind in ("parameter", "buffer", "constant")}
    for node in graph.nodes:
        trained = not made.isdisjoint(node.inputs)
        if all(value in fixed for value in node.inputs) and (trained or not is_random(node)):
            fixed.update(node.outputs)
            if trained:
                made.update(node.outputs)
    return frozenset(fixed)


def is_random(node: Node) -> bool:
    """Whether the operator draws random numbers."""
    return torch.Tag.nondeterministic_seeded in node.op.tags
