"""What is known of the scales of values that parameters and constants make, and one node read with it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from wellposed.graphs import Graph, Node, Ref
from wellposed.operators.schema import ref_of
from wellposed.operators.steps import Shape, Steps, carried

ParameterAxes = tuple["int | None", ...]
Kind = Literal["product", "sum", "parts", "made"]


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
    kind: Kind
    members: tuple[str, ...]
    operands: tuple[int, ...]
    factors: tuple[float, ...]
    rest: tuple[tuple[int, float], ...] = ()


def key_of(value: int) -> str:
    """Return what stands for a composite's scale in the place of a parameter's name."""
    return f"@{value}"


def leaves_of(key: str, composites: Mapping[str, CompositeScale]) -> frozenset[str]:
    """Return the parameters that a scale parameter's scale is made of: itself, or those behind a composite."""
    composite = composites.get(key)
    if composite is None:
        return frozenset((key,))
    return frozenset[str]().union(*(leaves_of(member, composites) for member in composite.members))


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


@dataclass(slots=True)
class Found:
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

    def name(self, value: int) -> str | None:
        """Return the name, or the key, of what scales a value linearly."""
        found = self.scale_parameters.get(value)
        return None if found is None else found.parameter

    def leaves(self, key: str) -> frozenset[str]:
        """Return the parameters that a scale parameter's scale is made of."""
        return leaves_of(key, self.composites)

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


@dataclass(frozen=True, slots=True)
class Reader:
    """One node, read with what is known of the values before it."""

    found: Found
    node: Node

    @property
    def graph(self) -> Graph:
        """The graph."""
        return self.found.graph

    @property
    def out(self) -> int:
        """The id of the node's first result."""
        return self.node.outputs[0]

    @property
    def no_axes(self) -> ParameterAxes:
        """The axes of a result none of which is one of a parameter's."""
        return (None,) * len(self.shape(self.out))

    def of(self, argument: Any) -> ScaleParameter | None:
        """Return the scale parameter of an argument."""
        value = ref_of(argument)
        return None if value is None else self.found.scale_parameters.get(value)

    def shape(self, value: int) -> Shape:
        """Return the shape of a value."""
        return self.graph.values[value].shape

    def is_constant(self, argument: Any) -> bool:
        """Whether an argument is a number or a tensor whose values are known."""
        value = ref_of(argument)
        return isinstance(argument, (int, float, complex)) if value is None else value in self.graph.known

    def is_zero(self, argument: Any) -> bool:
        """Whether an argument is 0 everywhere."""
        value = ref_of(argument)
        if value is None:
            return isinstance(argument, (int, float)) and argument == 0
        known = self.graph.known.get(value)
        return known is not None and not bool(known.any())

    def is_free(self, argument: Any, key: str) -> bool:
        """Whether an argument does not change with the scale of ``key``, and has none of its own: gates, masks."""
        value = ref_of(argument)
        if value is None:
            return isinstance(argument, (int, float, complex))
        unscaled = value in self.found.fixed and value not in self.found.scale_parameters
        return value in self.graph.known or (unscaled and self._is_apart(value, key))

    def is_kept(self, argument: Any, key: str) -> bool:
        """Whether an argument does not change with the scale of ``key``, be it with one of its own."""
        value = ref_of(argument)
        if value is None or value not in self.found.scale_parameters:
            return self.is_free(argument, key)
        return self._is_apart(value, key)

    def _is_apart(self, value: int, key: str) -> bool:
        """Whether no parameter that the scale of ``key`` is made of changes a value."""
        return self.found.leaves(key).isdisjoint(self.found.sources[value])

    def is_gain(self, argument: Any, of: Ref) -> bool:
        """Whether an argument is a parameter with fewer elements than that of ``of``, and not 0."""
        gain, scaled = self.of(argument), self.of(of)
        if gain is None or scaled is None or gain.parameter == scaled.parameter:
            return False
        parameters = self.graph.parameters
        if gain.parameter not in parameters or scaled.parameter not in parameters:
            return False
        small, large = parameters[gain.parameter], parameters[scaled.parameter]
        if math.prod(small.shape) >= math.prod(large.shape):
            return False
        return small.values is None or bool(small.values.detach().any())

    def joined(
        self, kind: Kind, operands: Sequence[tuple[Any, float]], rest: tuple[tuple[int, float], ...] = ()
    ) -> ScaleParameter:
        """Return the composite scale of what ``operands`` make together."""
        values = tuple(argument.value for argument, _ in operands)
        if not self.found.joining:
            return self.followed(values[0])
        members = tuple(self.found.scale_parameters[value].parameter for value in values)
        key, factors = key_of(self.out), tuple(factor for _, factor in operands)
        self.found.composites[key] = CompositeScale(self.out, kind, members, values, factors, rest)
        return ScaleParameter(key, self.no_axes)

    def viewed(self, steps: Sequence[Steps]) -> list[ScaleParameter | None]:
        """Return the scale parameters of a view's results."""
        source = self.node.inputs[0]
        scaled = self.found.scale_parameters.get(source)
        if scaled is None:
            return [None] * len(steps)
        before = self.shape(source)
        axes = [tuple(carried(chain, scaled.axes, before, _ParameterAxes())) for chain in steps]
        return [ScaleParameter(scaled.parameter, own) for own in axes]

    def followed(self, source: int) -> ScaleParameter:
        """Return the scale parameter of ``source`` for a result of the same axes, as far as their lengths agree."""
        scaled, before, after = self.found.scale_parameters[source], self.shape(source), self.shape(self.out)
        lead = len(after) - len(before)
        axes = tuple(
            scaled.axes[i - lead] if 0 <= i - lead < len(before) and before[i - lead] == size else None
            for i, size in enumerate(after)
        )
        return ScaleParameter(scaled.parameter, axes)

    def joint(self, operands: Iterable[Any]) -> ScaleParameter | None:
        """Return the scale parameter of a sum, choice or concatenation: of one parameter, all else being 0."""
        scaled: list[int] = []
        for operand in operands:
            if self.of(operand) is not None:
                scaled.append(operand.value)
            elif not self.is_zero(operand):
                return None
        if not scaled or len({self.found.name(value) for value in scaled}) > 1:
            return None
        candidates = [self.followed(value) for value in scaled]
        axes = zip(*(candidate.axes for candidate in candidates), strict=True)
        return ScaleParameter(candidates[0].parameter, tuple(own[0] if len(set(own)) == 1 else None for own in axes))
