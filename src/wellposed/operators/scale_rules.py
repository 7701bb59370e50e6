"""How the operators that are linear in a parameter hand its scale on: read off their facts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from wellposed.graphs import Ref
from wellposed.operators.arithmetic import terms_of
from wellposed.operators.facts import Facts, Group, facts_of
from wellposed.operators.product import describe, is_product
from wellposed.operators.scale_reading import ParameterAxes, Reader, ScaleParameter
from wellposed.operators.schema import named_arguments, ref_of
from wellposed.operators.views import is_view


def reading_of(read: Reader) -> ScaleParameter | None:
    """Return the scale parameter of a node's first result; None where its operator hands none on."""
    facts = facts_of(read.node.op)
    if is_product(read.node.op):
        return _multiplied(read) or _made(read)
    if is_view(read.node.op):  # whose steps are not known
        scaled = read.of(read.node.args[0])
        return None if scaled is None else ScaleParameter(scaled.parameter, read.no_axes)
    if len(facts.terms) > 1:
        return _summed(read)
    if facts.powers:
        return _scaled(read)
    if facts.along == "sum" and facts.extent == "axis":
        return _reduced(read)
    if facts.joins:
        return _beside(read, facts)
    if len(facts.linear) > 1:
        return None if facts.adds else _of_both(read, *read.node.args[:2])
    if facts.linear == PARTS:
        return _of_parts(read, "sum", read.node.args[:2])
    return _mapped(read, facts) if facts.linear and not facts.looks_up else None


PARTS: tuple[Group, ...] = (("real", "imag"),)
"""What complex numbers are linear in."""


def _beside(read: Reader, facts: Facts) -> ScaleParameter | None:
    """Read a concatenation or a stack: of parts of one parameter, or of several."""
    scaled = _of_parts(read, "parts", read.node.args[0])
    if scaled is None or facts.merges == "cat":
        return scaled
    return ScaleParameter(scaled.parameter, read.no_axes)


def _mapped(read: Reader, facts: Facts) -> ScaleParameter | None:
    """Read a map that is linear in some operands together: of one parameter, where the other operands are 0.

    What decides how it maps them (indices, conditions, grids) may not change with the parameter's scale.
    """
    (group,), named = facts.linear, named_arguments(read.node)
    if group == ("self",):
        group = (next(iter(named)),)
    operands = [value for name in group for value in _each(named.get(name)) if value is not None]
    joint = read.joint(operands)
    if joint is None:
        return None
    others = [value for name, argument in named.items() if name not in group for value in _each(argument)]
    if not all(ref_of(other) is None or read.is_kept(other, joint.parameter) for other in others):
        return None
    return ScaleParameter(joint.parameter, _axes_after(read, facts, joint.axes, operands))


def _each(argument: Any) -> Sequence[Any]:
    """Return the operands that an argument holds."""
    return argument if isinstance(argument, (list, tuple)) else (argument,)


def _axes_after(read: Reader, facts: Facts, kept: ParameterAxes, operands: Sequence[Any]) -> ParameterAxes:
    """Return the parameter's axes in a result: those along which no element is made of, or picked from, several."""
    before, after = read.shape(next(a.value for a in operands if read.of(a) is not None)), read.shape(read.out)
    if facts.elementwise or (facts.pads and len(before) == len(after)):
        return kept
    if before[:-1] == after or after[:-1] == before:  # complex numbers as two parts along a last axis, and back
        axes = next(one.axes for one in map(read.of, operands) if one is not None)
        return (*axes, None)[: len(after)]
    along = named_arguments(read.node).get("dim")
    if not isinstance(along, int) or len(before) != len(after):
        return read.no_axes
    return tuple(None if i == along % len(after) else axis for i, axis in enumerate(kept))


def _reduced(read: Reader) -> ScaleParameter | None:
    """Read sums and means: the axes that are summed are gone."""
    scaled = read.of(read.node.args[0])
    if scaled is None:
        return None
    named, rank = named_arguments(read.node), len(scaled.axes)
    dim = named.get("dim")
    dims = list(dim) if isinstance(dim, (list, tuple)) else [] if dim is None else [dim]
    gone = {int(d) % rank for d in dims} if dims else set(range(rank))
    kept = [i for i in range(rank) if named.get("keepdim") or i not in gone]
    return ScaleParameter(scaled.parameter, tuple(None if i in gone else scaled.axes[i] for i in kept))


def _summed(read: Reader) -> ScaleParameter | None:
    """Read a sum: of one parameter and nothing else, or of what has a scale and what has none."""
    joint = read.joint(read.node.args[:2])
    if joint is not None:
        return joint
    operands = [(argument, abs(factor)) for argument, factor in terms_of(read.node)]
    scaled = _to_scale(read, operands)
    rest = [(a, factor) for a, factor in operands if not any(a is other for other, _ in scaled)]
    whole = math.prod(read.shape(read.out))
    if not scaled or any(math.prod(read.shape(a.value)) < whole for a, _ in scaled):
        return None
    if not _are_apart(read, [a.value for a, _ in scaled], [a for a, _ in rest]):
        return None
    return read.joined("sum", scaled, tuple((a.value, factor) for a, factor in rest))


def _are_apart(read: Reader, scaled: Sequence[int], rest: Sequence[Any]) -> bool:
    """Whether the scales of some terms are different ones, which nothing else in the sum changes with."""
    keys = [read.found.scale_parameters[value].parameter for value in scaled]
    if len(set(keys)) < len(keys) or (len(keys) > 1 and not read.found.joining):
        return False
    return all(ref_of(other) in read.found.fixed and read.is_kept(other, key) for other in rest for key in keys)


def _to_scale(read: Reader, operands: list[tuple[Any, float]]) -> list[tuple[Any, float]]:
    """Return the terms of a sum whose scale is open: not chosen by a constructor, nor that of noise beside others."""
    open_ = [(a, factor) for a, factor in operands if read.of(a) is not None and not read.found.is_chosen(a.value)]
    # of what is added to a weight, noise is a choice: its size stays what it is
    return [(a, factor) for a, factor in open_ if a.value not in read.found.noisy] or open_


def _of_parts(read: Reader, kind: Literal["parts", "sum"], parts: Sequence[Any]) -> ScaleParameter | None:
    """Read what holds several values beside each other: of one parameter, or of several that each have a scale."""
    joint = read.joint(parts)
    if joint is not None or not read.found.joining or any(read.of(part) is None for part in parts):
        return joint
    return read.joined(kind, [(part, 1.0) for part in parts])


def _scaled(read: Reader) -> ScaleParameter | None:
    """Read a factor: a number or a constant; of two parameters, the larger one is scaled, the other stays its gain."""
    left, right = read.node.args[:2]
    product = facts_of(read.node.op).multiplies
    pairs = [(left, right), (right, left)] if product else [(left, right)]
    for scaled, factor in pairs:
        if read.of(scaled) is not None and (read.is_constant(factor) or read.is_gain(factor, scaled)):
            return read.followed(scaled.value)
    for scaled, factor in pairs:
        mine = read.of(scaled)
        if mine is not None and read.is_free(factor, mine.parameter):
            if read.shape(scaled.value) == read.shape(read.out):
                return read.followed(scaled.value)
    return _product(read, left, right) if product else None


def _of_both(read: Reader, left: Any, right: Any) -> ScaleParameter | None:
    """Read products of all elements of one operand with all of the other: one may be known."""
    for scaled, factor in ((left, right), (right, left)):
        mine = read.of(scaled)
        if mine is not None and read.is_constant(factor):
            return ScaleParameter(mine.parameter, read.no_axes)
    return _product(read, left, right)


def _product(read: Reader, *factors: Any) -> ScaleParameter | None:
    """Read a product of values that have a scale each; its own scale is theirs together."""
    scaled = [one for one in map(read.of, factors) if one is not None]
    if not read.found.joining or len(scaled) < len(factors):
        return None
    leaves = [name for one in scaled for name in read.found.leaves(one.parameter)]
    if len(set(leaves)) < len(leaves):  # a square has a mean
        return None
    return read.joined("product", [(factor, 1.0) for factor in factors])


def _multiplied(read: Reader) -> ScaleParameter | None:
    """Read a matrix product: with a constant, or of two values that have a scale each."""
    product = describe(read.graph, read.node)
    if product is None:  # an einsum may have more operands than two
        factors = named_arguments(read.node).get("tensors")
        return _product(read, *factors) if factors else None
    if product.window is not None or product.bias is not None:
        return None
    for mine, axes, other in (
        (product.left, product.left_axes, product.right),
        (product.right, product.right_axes, product.left),
    ):
        scaled = read.found.scale_parameters.get(mine)
        if scaled is not None and other in read.graph.known:
            by_label = dict(zip(axes, scaled.axes, strict=True))
            return ScaleParameter(scaled.parameter, tuple(by_label.get(label) for label in product.out_axes))
    return _product(read, Ref(product.left), Ref(product.right))


def _made(read: Reader) -> ScaleParameter | None:
    """Read a layer that is applied to parameters or constants: its weight scales what it makes (hyper-networks)."""
    data, weight = read.node.args[0], named_arguments(read.node).get("weight")
    scaled = read.of(weight)
    if not read.found.joining or scaled is None or not read.is_kept(data, scaled.parameter):
        return None
    return read.joined("made", [(weight, 1.0)])
