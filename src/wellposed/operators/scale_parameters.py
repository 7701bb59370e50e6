"""From parameters to effective weights: which parameter scales a value linearly.

A value follows a parameter through views, casts, picks, masks, factors, sums with itself and other linear maps whose
other operands do not change with that parameter's scale. What is no linear function of one parameter has no scale
parameter. A product or a sum of several is a `CompositeScale`, which has a scale of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from wellposed.graphs import Graph, Node, Ref
from wellposed.graphs.graph import once
from wellposed.operators.norms import WEIGHT_NORMS
from wellposed.operators.product import Product, describe
from wellposed.operators.schema import named_arguments, plain_name, ref_of
from wellposed.operators.views import Shape, carried, view_of

aten: torch._ops._OpNamespace = torch.ops.aten
ParameterAxes = tuple["int | None", ...]


@dataclass(frozen=True, slots=True)
class ScaleParameter:
    """The parameter whose scale is, linearly, that of a value; ``axes[i]`` is the parameter's axis in axis i."""

    parameter: str
    axes: ParameterAxes


@dataclass(frozen=True, slots=True)
class CompositeScale:
    """Where values that have scales meet, and become one with a scale of its own.

    Attributes:
        value: the result's id.
        kind: ``product`` (low-rank weights), ``sum`` (also with what has no scale to choose: mu + sigma eps), ``parts``
            of a concatenation, or ``made`` by a layer from parameters and constants (hyper-networks).
        members: what the operands are scaled by: parameters, or `key_of` another composite.
        operands: ids of the operands' values, in the members' order.
        rest: operands without a scale to choose, with the factors that they are summed with.
        factors: those of the operands.
    """

    value: int
    kind: Literal["product", "sum", "parts", "made"]
    members: tuple[str, ...]
    operands: tuple[int, ...]
    factors: tuple[float, ...]
    rest: tuple[tuple[int, float], ...] = ()


def key_of(value: int) -> str:
    """Return what stands for a composite's scale in the place of a parameter's name."""
    return f"@{value}"


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
    """Scale parameters of one node's outputs, given those of the values before it."""

    found: _Analysis
    node: Node

    @property
    def graph(self) -> Graph:
        return self.found.graph

    @property
    def scale_parameters(self) -> Mapping[int, ScaleParameter]:
        return self.found.scale_parameters

    def of(self, argument: Any) -> ScaleParameter | None:
        """Return the scale parameter of an argument."""
        value = ref_of(argument)
        return None if value is None else self.scale_parameters.get(value)

    def shape(self, value: int) -> Shape:
        return self.graph.values[value].shape

    def is_constant(self, argument: Any) -> bool:
        """Whether an argument is a number or a tensor whose values are known."""
        value = ref_of(argument)
        return isinstance(argument, (int, float)) if value is None else value in self.graph.known

    def is_free(self, argument: Any, scale_parameter: ScaleParameter) -> bool:
        """Whether an argument does not change with the scale of ``scale_parameter``: gates, masks of others."""
        value = ref_of(argument)
        if value is None:
            return isinstance(argument, (int, float))
        return value in self.graph.known or (
            value in self.found.fixed
            and value not in self.scale_parameters
            and self.found.leaves(scale_parameter.parameter).isdisjoint(self.found.sources[value])
        )

    def is_zero(self, argument: Any) -> bool:
        """Whether an argument is 0 everywhere."""
        value = ref_of(argument)
        if value is None:
            return isinstance(argument, (int, float)) and argument == 0
        known = self.graph.known.get(value)
        return known is not None and not bool(known.any())

    def is_gain(self, argument: Any, of: Ref) -> bool:
        """Whether an argument is a parameter with fewer elements than that of ``of``, and not 0."""
        gain, scale_parameter = self.of(argument), self.of(of)
        if gain is None or scale_parameter is None or gain.parameter == scale_parameter.parameter:
            return False
        if gain.parameter not in self.graph.parameters or scale_parameter.parameter not in self.graph.parameters:
            return False
        small, large = self.graph.parameters[gain.parameter], self.graph.parameters[scale_parameter.parameter]
        if math.prod(small.shape) >= math.prod(large.shape):
            return False
        return small.values is None or bool(small.values.detach().any())

    def is_kept(self, argument: Any, scale_parameter: ScaleParameter) -> bool:
        """Whether an argument has no scale that is chosen, and does not change with that of ``scale_parameter``."""
        value = ref_of(argument)
        if value is None or value not in self.scale_parameters:
            return self.is_free(argument, scale_parameter)
        return self.found.leaves(scale_parameter.parameter).isdisjoint(self.found.sources[value])

    def joined(
        self,
        kind: Literal["product", "sum", "parts", "made"],
        operands: Sequence[tuple[Any, float]],
        rest: tuple[tuple[int, float], ...] = (),
    ) -> ScaleParameter:
        """Return the composite scale of what ``operands`` make together."""
        out, values = self.node.outputs[0], [a.value for a, _ in operands]
        scale_parameters = [self.scale_parameters[value] for value in values]
        if not self.found.joining:
            return self.followed(values[0], out)
        members = tuple(scale_parameter.parameter for scale_parameter in scale_parameters)
        self.found.composites[key_of(out)] = CompositeScale(
            out, kind, members, tuple(values), tuple(f for _, f in operands), rest
        )
        return ScaleParameter(key_of(out), _no_axes(self))

    def followed(self, source: int, out: int, axes: ParameterAxes | None = None) -> ScaleParameter:
        """Return the scale parameter of ``source`` for an output of the same axes, as far as their lengths agree."""
        scale_parameter, before, after = self.scale_parameters[source], self.shape(source), self.shape(out)
        if axes is None:
            lead = len(after) - len(before)
            axes = tuple(
                scale_parameter.axes[i - lead] if 0 <= i - lead < len(before) and before[i - lead] == size else None
                for i, size in enumerate(after)
            )
        return ScaleParameter(scale_parameter.parameter, axes)

    def joint(self, operands: Iterable[Any]) -> ScaleParameter | None:
        """Return the scale parameter of a sum, choice or concatenation: of one parameter, all else being 0."""
        scaled: list[int] = []
        for operand in operands:
            if self.of(operand) is not None:
                scaled.append(operand.value)
            elif not self.is_zero(operand):
                return None
        if not scaled or len({self.scale_parameters[value].parameter for value in scaled}) > 1:
            return None
        out = self.node.outputs[0]
        candidates = [self.followed(value, out).axes for value in scaled]
        agreed = tuple(axes[0] if len(set(axes)) == 1 else None for axes in zip(*candidates, strict=True))
        return ScaleParameter(self.scale_parameters[scaled[0]].parameter, agreed)


def _alone(read: _Reader) -> ScaleParameter | None:
    """One operand, taken linearly."""
    source = read.node.inputs[0]
    return read.followed(source, read.node.outputs[0]) if source in read.scale_parameters else None


def _reduced(read: _Reader) -> ScaleParameter | None:
    """Sums and means: the axes that are summed are gone."""
    scale_parameter = read.of(read.node.args[0])
    if scale_parameter is None:
        return None
    named, rank = named_arguments(read.node), len(scale_parameter.axes)
    dim = named.get("dim")
    dims = list(dim) if isinstance(dim, (list, tuple)) else [] if dim is None else [dim]
    gone = {int(d) % rank for d in dims} if dims else set(range(rank))
    axes = [
        None if i in gone else axis
        for i, axis in enumerate(scale_parameter.axes)
        if named.get("keepdim") or i not in gone
    ]
    return ScaleParameter(scale_parameter.parameter, tuple(axes))


def _summed(read: _Reader) -> ScaleParameter | None:
    """A sum: of one parameter and nothing else, or of what has a scale and what has none."""
    joint = read.joint(read.node.args[:2])
    if joint is not None:
        return joint
    named, name = named_arguments(read.node), plain_name(read.node.op)
    alpha = float(named.get("alpha") or 1.0)
    operands = list(zip(read.node.args[:2], (alpha, 1.0) if name == "rsub" else (1.0, alpha), strict=True))
    open_ = [(a, factor) for a, factor in operands if read.of(a) is not None and not read.found.is_chosen(a.value)]
    # of what is added to a weight, noise is a choice: its size stays what it is
    open_ = [pair for pair in open_ if pair[0].value not in read.found.noisy] or open_
    scale_parameters = [read.scale_parameters[a.value] for a, _ in open_]
    rest = [(a, factor) for a, factor in operands if not any(a is other for other, _ in open_)]
    whole = math.prod(read.shape(read.node.outputs[0]))
    if not open_ or any(math.prod(read.shape(a.value)) < whole for a, _ in open_):
        return None
    for a, _ in rest:
        value = ref_of(a)
        if (
            value is None
            or value not in read.found.fixed
            or not all(read.is_kept(a, scale_parameter) for scale_parameter in scale_parameters)
        ):
            return None
    if len({scale_parameter.parameter for scale_parameter in scale_parameters}) < len(scale_parameters) or (
        len(scale_parameters) > 1 and not read.found.joining
    ):
        return None
    return read.joined("sum", open_, tuple((a.value, factor) for a, factor in rest))


def _chosen(read: _Reader) -> ScaleParameter | None:
    return read.joint(read.node.args[1:3]) if read.is_constant(read.node.args[0]) else None


def _filled(read: _Reader) -> ScaleParameter | None:
    _, mask, value = read.node.args[:3]
    return _alone(read) if read.is_constant(mask) and read.is_zero(value) else None


def _padded(read: _Reader) -> ScaleParameter | None:
    named = named_arguments(read.node)
    return _alone(read) if named.get("mode", "constant") != "constant" or not named.get("value") else None


def _listed(read: _Reader) -> ScaleParameter | None:
    """A concatenation: of parts of one parameter, or of several."""
    parts = read.node.args[0]
    joint = read.joint(parts)
    if joint is not None or not read.found.joining or any(read.of(part) is None for part in parts):
        return joint
    return read.joined("parts", [(part, 1.0) for part in parts])


def _stacked(read: _Reader) -> ScaleParameter | None:
    joint = _listed(read)
    return None if joint is None else ScaleParameter(joint.parameter, _no_axes(read))


def _scaled(read: _Reader) -> ScaleParameter | None:
    """A factor: a number or a constant; of two parameters, the larger one is scaled, and the other stays its gain."""
    left, right = read.node.args[:2]
    product = plain_name(read.node.op) == "mul"
    pairs = [(left, right), (right, left)] if product else [(left, right)]
    for scaled, factor in pairs:
        if read.of(scaled) is not None and (read.is_constant(factor) or read.is_gain(factor, scaled)):
            return read.followed(scaled.value, read.node.outputs[0])
    out = read.node.outputs[0]
    for scaled, factor in pairs:
        scale_parameter = read.of(scaled)
        if (
            scale_parameter is not None
            and read.is_free(factor, scale_parameter)
            and read.shape(scaled.value) == read.shape(out)
        ):
            return read.followed(scaled.value, out)
    return _product(read, left, right) if product else None


def _product(read: _Reader, *factors: Any) -> ScaleParameter | None:
    """A product of values that have a scale each; its own scale is theirs together."""
    scaling = [read.of(factor) for factor in factors]
    if not read.found.joining or any(scale_parameter is None for scale_parameter in scaling):
        return None
    leaves = [
        name
        for scale_parameter in scaling
        if scale_parameter is not None
        for name in read.found.leaves(scale_parameter.parameter)
    ]
    if len(set(leaves)) < len(leaves):  # a square has a mean
        return None
    return read.joined("product", [(factor, 1.0) for factor in factors])


def _paired(read: _Reader) -> ScaleParameter | None:
    """Complex numbers of a real and an imaginary part."""
    joint = read.joint(read.node.args[:2])
    if joint is not None or not read.found.joining or any(read.of(part) is None for part in read.node.args[:2]):
        return joint
    return read.joined("sum", [(part, 1.0) for part in read.node.args[:2]])


def _in_parts(read: _Reader) -> ScaleParameter | None:
    """Complex numbers as their parts, along a last axis, and the other way round."""
    source, out = read.node.inputs[0], read.node.outputs[0]
    if source not in read.scale_parameters:
        return None
    return ScaleParameter(
        read.scale_parameters[source].parameter, (*read.scale_parameters[source].axes, None)[: len(read.shape(out))]
    )


def _transformed(read: _Reader) -> ScaleParameter | None:
    """A Fourier transform: every element is made of all."""
    scale_parameter = _alone(read)
    return None if scale_parameter is None else ScaleParameter(scale_parameter.parameter, _no_axes(read))


def _kronecker(read: _Reader) -> ScaleParameter | None:
    return _product(read, *read.node.args[:2])


def _multiplied(read: _Reader) -> ScaleParameter | None:
    """A matrix product with a constant."""
    product = describe(read.graph, read.node)
    if product is None:
        return _product(read, *read.node.args[1]) if plain_name(read.node.op) == "einsum" else None
    if plain_name(read.node.op) == "linear":
        return _made(read, product)
    if product.window is not None or product.bias is not None:
        return None
    for mine, axes, other in (
        (product.left, product.left_axes, product.right),
        (product.right, product.right_axes, product.left),
    ):
        scale_parameter = read.scale_parameters.get(mine)
        if scale_parameter is not None and other in read.graph.known:
            by_label = dict(zip(axes, scale_parameter.axes, strict=True))
            return ScaleParameter(scale_parameter.parameter, tuple(by_label.get(label) for label in product.out_axes))
    return _product(read, Ref(product.left), Ref(product.right))


def _made(read: _Reader, product: Product) -> ScaleParameter | None:
    """A layer that is applied to parameters or constants: its weight scales what it makes (hyper-networks)."""
    scale_parameter = read.scale_parameters.get(product.right)
    if not read.found.joining or scale_parameter is None or not read.is_kept(Ref(product.left), scale_parameter):
        return None
    return read.joined("made", [(Ref(product.right), 1.0)])


def _picked(read: _Reader) -> ScaleParameter | None:
    source = read.node.inputs[0]
    return read.followed(source, read.node.outputs[0]) if ref_of(read.node.args[0]) in read.scale_parameters else None


def _scattered(read: _Reader) -> ScaleParameter | None:
    """Elements picked anyhow: no axis of the result is one of the parameter's."""
    first = ref_of(read.node.args[0])
    if first is None or first not in read.scale_parameters:
        return None
    return read.followed(first, read.node.outputs[0], _no_axes(read))


def _no_axes(read: _Reader) -> ParameterAxes:
    return (None,) * len(read.shape(read.node.outputs[0]))


def _weight_normed(read: _Reader) -> ScaleParameter | None:
    gain = read.of(read.node.args[1])
    return None if gain is None else ScaleParameter(gain.parameter, gain.axes)


_LINEAR: dict[str, Callable[[_Reader], ScaleParameter | None]] = {
    **dict.fromkeys(("add", "sub", "rsub"), _summed),
    **dict.fromkeys(("mul", "div"), _scaled),
    **dict.fromkeys(("dropout", "feature_dropout", "native_dropout"), _alone),
    **dict.fromkeys(("neg", "tril", "triu", "cumsum", "channel_shuffle"), _alone),
    **dict.fromkeys(("sum", "mean"), _reduced),
    **dict.fromkeys(("matmul", "mm", "bmm", "mv", "dot", "outer", "einsum", "tensordot", "linear"), _multiplied),
    "kron": _kronecker,
    "complex": _paired,
    **dict.fromkeys(("real", "imag", "view_as_real", "view_as_complex", "conj", "_conj"), _in_parts),
    **dict.fromkeys(
        (f"fft_{kind}{n}" for kind in ("fft", "ifft", "rfft", "irfft") for n in ("", "2", "n")), _transformed
    ),
    "cat": _listed,
    "stack": _stacked,
    **dict.fromkeys(("pad", "constant_pad_nd"), _padded),
    **dict.fromkeys(("index", "gather", "take_along_dim", "take", "diagonal", "as_strided", "unfold"), _scattered),
    "index_select": _picked,
    "masked_fill": _filled,
    "where": _chosen,
}
"""Linear operators beside views, by plain name."""


_SIZES = frozenset(("abs", "amax", "max", "norm", "linalg_vector_norm", "linalg_norm"))
"""Positive functions that grow with their argument: what a weight is divided by, and multiplied with again."""


@dataclass(slots=True)
class _Analysis:
    """What is known, in execution order, of the values that parameters and constants alone make.

    Attributes:
        graph: the graph.
        fixed: ids of these values.
        joining: whether products and sums of several parameters are composites; otherwise they have no scale
            parameter, and a sum of one with what has no scale has that one's.
        scale_parameters: by value id.
        sizes: of positive values that are no linear function of a parameter but proportional to it, the parameter.
        sources: the parameters whose scales change a value.
        composites: by key.
        noisy: values that random numbers enter.
        chosen: whether a parameter holds one number everywhere, by name.
    """

    graph: Graph
    fixed: frozenset[int]
    joining: bool
    scale_parameters: dict[int, ScaleParameter] = field(default_factory=dict)
    sizes: dict[int, str] = field(default_factory=dict)
    sources: dict[int, frozenset[str]] = field(default_factory=dict)
    composites: dict[str, CompositeScale] = field(default_factory=dict)
    noisy: set[int] = field(default_factory=set)
    chosen: dict[str, bool] = field(default_factory=dict)

    def run(self) -> _Analysis:
        """Go through the graph."""
        for name, parameter in self.graph.parameters.items():
            self.scale_parameters[parameter.value] = ScaleParameter(name, tuple(range(len(parameter.shape))))
            self.sources[parameter.value] = frozenset((name,))
        for node in self.graph.nodes:
            if not node.outputs or node.outputs[0] not in self.fixed:
                continue
            entering = frozenset[str]().union(*(self.sources.get(value, frozenset()) for value in node.inputs))
            self.sources.update(dict.fromkeys(node.outputs, entering))
            if is_random(node) or not self.noisy.isdisjoint(node.inputs):
                self.noisy.update(node.outputs)
            if not any(value in self.scale_parameters or value in self.sizes for value in node.inputs):
                continue
            self._size(node)
            for out, scale_parameter in zip(node.outputs, self._scale_parameters(node), strict=True):
                if scale_parameter is not None:
                    self.scale_parameters[out] = scale_parameter
        return self

    def leaves(self, key: str) -> frozenset[str]:
        """Return the parameters that a scale parameter's scale is made of."""
        composite = self.composites.get(key)
        return frozenset((key,)) if composite is None else frozenset[str]().union(*map(self.leaves, composite.members))

    def is_chosen(self, value: int) -> bool:
        """Whether a value's parameter holds one number everywhere, which its constructor chose (not 0)."""
        name = self.scale_parameters[value].parameter
        if name not in self.graph.parameters:
            return False
        if name not in self.chosen:
            held = self.graph.parameters[name].values
            plain = held is not None and held.numel() and not held.is_complex()
            low, high = map(float, torch.aminmax(held.detach())) if plain and held is not None else (0.0, 0.0)
            self.chosen[name] = low == high != 0.0
        return self.chosen[name]

    def _size(self, node: Node) -> None:
        """Follow what is proportional to a weight without being one: its largest element, and what that divides."""
        name, out, first = plain_name(node.op), node.outputs[0], ref_of(node.args[0]) if node.args else None
        own = None if first is None else self.sizes.get(first) or self._name(first)
        if name.endswith("_like"):  # of the shape of a weight, and nothing else of it
            self.sources[out] = frozenset()
        elif name == "sign" and own is not None:
            self.sources[out] -= self.leaves(own)
        elif name in _SIZES and own is not None:
            self.sizes.update(dict.fromkeys(node.outputs, own))
        elif name == "div" and own is not None and (other := ref_of(node.args[1])) is not None:
            if self.sizes.get(other) == own:
                self.sources[out] -= self.leaves(own)
        elif first in self.sizes and (
            view_of(self.graph, node) is not None
            or name in ("clamp", "clamp_min", "mean", "sum")
            or (name in ("mul", "div") and isinstance(node.args[1], (int, float)))
        ):
            self.sizes[out] = self.sizes[first]

    def _name(self, value: int) -> str | None:
        scale_parameter = self.scale_parameters.get(value)
        return None if scale_parameter is None else scale_parameter.parameter

    def _scale_parameters(self, node: Node) -> list[ScaleParameter | None]:
        """Return the scale parameters of a node's outputs, given those of the values before it."""
        read = _Reader(self, node)
        none: list[ScaleParameter | None] = [None] * len(node.outputs)
        if node.op in WEIGHT_NORMS:  # w = g v / |v|: g scales it, v does not
            return [_weight_normed(read), *none[1:]]
        steps = view_of(self.graph, node)
        if steps is not None:
            source = node.inputs[0]
            if source not in self.scale_parameters:
                return none
            scale_parameter, before = self.scale_parameters[source], self.graph.values[source].shape
            return [
                ScaleParameter(
                    scale_parameter.parameter, tuple(carried(chain, scale_parameter.axes, before, _ParameterAxes()))
                )
                for chain in steps
            ]
        if plain_name(node.op) == "mul" and (sized := _resized(read)) is not None:
            return [sized, *none[1:]]
        rule = _LINEAR.get(plain_name(node.op))
        return none if rule is None else [rule(read), *none[1:]]


def _resized(read: _Reader) -> ScaleParameter | None:
    """What was freed of a weight's size, times that size (quantised and binary weights)."""
    left, right = (ref_of(a) for a in read.node.args[:2])
    for shape, size in ((left, right), (right, left)):
        key = None if size is None else read.found.sizes.get(size)
        if key is not None and shape in read.found.fixed and shape not in read.scale_parameters and shape is not None:
            if read.found.leaves(key).isdisjoint(read.found.sources[shape]):
                return ScaleParameter(key, _no_axes(read))
    return None


def scale_parameters(graph: Graph) -> dict[int, ScaleParameter]:
    """Return, by value id, the parameter that scales each parameter-derived value linearly.

    Of a sum with what has no scale (mu + sigma eps), the parameter that scales its other part counts.
    """
    return _Analysis(graph, parameter_values(graph), joining=False).run().scale_parameters


def composite_scales(
    graph: Graph, fixed: frozenset[int]
) -> tuple[dict[int, ScaleParameter], dict[str, CompositeScale]]:
    """Return the scale parameters by value id, with those of composites (`key_of`), and the composites by key.

    Args:
        graph: from `wellposed.trace`.
        fixed: what `parameter_values` returns.
    """
    found = _Analysis(graph, fixed, joining=True).run()
    return found.scale_parameters, found.composites


@once
def parameter_values(graph: Graph) -> frozenset[int]:
    """Return the ids of the values that depend on parameters, buffers and constants alone (no input reaches them).

    Weights that are drawn or masked anew in every pass count too: random numbers that a parameter enters, and those
    that are added to a parameter or multiply it element by element.
    """
    made = {parameter.value for parameter in graph.parameters.values()}
    fixed = {value.id for value in graph.values if value.kind in ("parameter", "buffer", "constant")}
    noise: set[int] = set()
    for node in graph.nodes:
        trained = not made.isdisjoint(node.inputs)
        if all(value in fixed for value in node.inputs) and (trained or not is_random(node)):
            fixed.update(node.outputs)
            if trained:
                made.update(node.outputs)
        elif all(value in fixed or value in noise for value in node.inputs):
            if trained and _keeps_shape(graph, node, made):
                fixed.update(node.outputs)
                made.update(node.outputs)
            elif not trained:
                noise.update(node.outputs)
    return frozenset(fixed)


def _keeps_shape(graph: Graph, node: Node, made: set[int]) -> bool:
    """Whether a sum or product has the shape of an operand that parameters make: as many numbers, drawn anew."""
    shape = graph.values[node.outputs[0]].shape
    whole = any(graph.values[value].shape == shape for value in node.inputs if value in made)
    return whole and len(shape) > 1 and plain_name(node.op) in ("add", "sub", "mul")


def is_random(node: Node) -> bool:
    """Whether the operator draws random numbers."""
    return torch.Tag.nondeterministic_seeded in node.op.tags
