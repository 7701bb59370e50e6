"""How the operators that are linear in a parameter hand its scale on: one reading for each, by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from wellposed.graphs import Ref
from wellposed.operators.arithmetic import terms_of
from wellposed.operators.facts import facts_of
from wellposed.operators.product import describe
from wellposed.operators.scale_reading import Reader, ScaleParameter
from wellposed.operators.schema import named_arguments, plain_name, ref_of

Reading = Callable[[Reader], "ScaleParameter | None"]


def reading_of(read: Reader) -> ScaleParameter | None:
    """Return the scale parameter of a node's first result; None where its operator hands none on."""
    reading = _READINGS.get(plain_name(read.node.op))
    return None if reading is None else reading(read)


def _alone(read: Reader) -> ScaleParameter | None:
    """Read one operand, taken linearly."""
    source = read.node.inputs[0]
    return read.followed(source) if source in read.found.scale_parameters else None


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


def _chosen(read: Reader) -> ScaleParameter | None:
    """Read a choice by a known condition."""
    return read.joint(read.node.args[1:3]) if read.is_constant(read.node.args[0]) else None


def _filled(read: Reader) -> ScaleParameter | None:
    """Read a known mask that puts zeros in."""
    _, mask, value = read.node.args[:3]
    return _alone(read) if read.is_constant(mask) and read.is_zero(value) else None


def _padded(read: Reader) -> ScaleParameter | None:
    """Read a border of zeros, or of elements."""
    named = named_arguments(read.node)
    return _alone(read) if named.get("mode", "constant") != "constant" or not named.get("value") else None


def _listed(read: Reader) -> ScaleParameter | None:
    """Read a concatenation: of parts of one parameter, or of several."""
    return _of_parts(read, "parts", read.node.args[0])


def _paired(read: Reader) -> ScaleParameter | None:
    """Read complex numbers of a real and an imaginary part."""
    return _of_parts(read, "sum", read.node.args[:2])


def _of_parts(read: Reader, kind: Literal["parts", "sum"], parts: Sequence[Any]) -> ScaleParameter | None:
    """Read what holds several values beside each other: of one parameter, or of several that each have a scale."""
    joint = read.joint(parts)
    if joint is not None or not read.found.joining or any(read.of(part) is None for part in parts):
        return joint
    return read.joined(kind, [(part, 1.0) for part in parts])


def _without_axes(reading: Reading) -> Reading:
    """Return a reading after which no axis of the result is one of the parameter's: every element is made of many."""

    def read_without(read: Reader) -> ScaleParameter | None:
        scaled = reading(read)
        return None if scaled is None else ScaleParameter(scaled.parameter, read.no_axes)

    return read_without


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


def _product(read: Reader, *factors: Any) -> ScaleParameter | None:
    """Read a product of values that have a scale each; its own scale is theirs together."""
    scaled = [one for one in map(read.of, factors) if one is not None]
    if not read.found.joining or len(scaled) < len(factors):
        return None
    leaves = [name for one in scaled for name in read.found.leaves(one.parameter)]
    if len(set(leaves)) < len(leaves):  # a square has a mean
        return None
    return read.joined("product", [(factor, 1.0) for factor in factors])


def _in_parts(read: Reader) -> ScaleParameter | None:
    """Read complex numbers as their parts, along a last axis, and the other way round."""
    scaled = read.of(Ref(read.node.inputs[0]))
    if scaled is None:
        return None
    return ScaleParameter(scaled.parameter, (*scaled.axes, None)[: len(read.shape(read.out))])


def _multiplied(read: Reader) -> ScaleParameter | None:
    """Read a matrix product: with a constant, or of two values that have a scale each."""
    product = describe(read.graph, read.node)
    if product is None or product.window is not None or product.bias is not None:
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


def _contracted(read: Reader) -> ScaleParameter | None:
    """Read an einsum, which may have more operands than two."""
    return _product(read, *read.node.args[1]) if describe(read.graph, read.node) is None else _multiplied(read)


def _made(read: Reader) -> ScaleParameter | None:
    """Read a layer that is applied to parameters or constants: its weight scales what it makes (hyper-networks)."""
    data, weight = read.node.args[:2]
    scaled = read.of(weight)
    if not read.found.joining or scaled is None or not read.is_kept(data, scaled.parameter):
        return None
    return read.joined("made", [(weight, 1.0)])


def _picked(read: Reader) -> ScaleParameter | None:
    """Read elements that are picked out of the first argument."""
    return read.followed(read.node.inputs[0]) if read.of(read.node.args[0]) is not None else None


_READINGS: Mapping[str, Reading] = {
    **dict.fromkeys(("add", "sub", "rsub"), _summed),
    **dict.fromkeys(("mul", "div"), _scaled),
    **dict.fromkeys(("dropout", "feature_dropout", "native_dropout"), _alone),
    **dict.fromkeys(("neg", "tril", "triu", "cumsum", "channel_shuffle"), _alone),
    **dict.fromkeys(("sum", "mean"), _reduced),
    **dict.fromkeys(("matmul", "mm", "bmm", "mv", "dot", "outer", "tensordot"), _multiplied),
    "einsum": _contracted,
    "linear": _made,
    "kron": lambda read: _product(read, *read.node.args[:2]),
    "complex": _paired,
    **dict.fromkeys(("real", "imag", "view_as_real", "view_as_complex", "conj", "_conj"), _in_parts),
    **dict.fromkeys(
        (f"fft_{kind}{n}" for kind in ("fft", "ifft", "rfft", "irfft") for n in ("", "2", "n")), _without_axes(_alone)
    ),
    "cat": _listed,
    "stack": _without_axes(_listed),
    **dict.fromkeys(("pad", "constant_pad_nd"), _padded),
    **dict.fromkeys(
        ("index", "gather", "take_along_dim", "take", "diagonal", "as_strided", "unfold"), _without_axes(_picked)
    ),
    "index_select": _picked,
    "masked_fill": _filled,
    "where": _chosen,
}
"""Readings of linear operators beside views, by plain name."""
