"""Masks whose example, one value throughout, shuts all signals out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from wellposed.graphs.graph import Graph, Node, Ref
from wellposed.graphs.numbers import FAR_BELOW, apart, name_of
from wellposed.graphs.operators import INTEGERS
from wellposed.graphs.run import call

_ATTENTION = "scaled_dot_product_attention"
_ADDED = frozenset({"add", "baddbmm", _ATTENTION})
"""Operators, by name, that add a mask to scores: as attention modules make one of a mask of padding."""


def with_open_masks(graph: Graph) -> Graph:
    """Return a graph in which masks of one value that leave nothing of what they meet have the other value.

    An example of zeros, or of ones, says nothing of a mask but its shape. Where it multiplies signals by 0, or writes
    over all of them, nothing could be said of what follows. A remark names the mask.
    """
    for value in graph.inputs:
        example = graph.example[value]
        if value not in graph.known or example.dtype not in INTEGERS or not _is_one_value(example):
            continue
        if _shuts(graph, value, graph.known):
            now = int(example.flatten()[0])
            known = _recomputed(graph, value, torch.full_like(graph.known[value], int(not now)))
            if known is not None and not _shuts(graph, value, known):
                name = graph.values[value].name
                remark = (
                    f"the example of input {name!r} is {now} throughout, and shuts out all signals that it meets: it "
                    f"counts as {int(not now)} throughout"
                )
                other = {value: torch.full_like(example, int(not now))}
                graph = replace(
                    graph, known=known, example={**graph.example, **other}, remarks=(*graph.remarks, remark)
                )
    return graph


def _is_one_value(example: torch.Tensor) -> bool:
    return example.numel() > 1 and bool((example == example.flatten()[0]).all())


def _shuts(graph: Graph, value: int, known: Mapping[int, torch.Tensor]) -> bool:
    """Whether what is known of an input leaves nothing of a signal that it meets."""
    own, behind = apart(graph), {value}
    for node in graph.nodes:
        met = behind.intersection(node.inputs)
        if not met:
            continue
        if all(out in known for out in node.outputs):
            behind.update(node.outputs)
        elif any(other not in known and other not in own for other in node.inputs):
            if any(at in known and _leaves_nothing(node, at, known[at], own) for at in met):
                return True
    return False


def _leaves_nothing(node: Node, at: int, values: torch.Tensor, own: set[int]) -> bool:
    """Whether a node multiplies a signal by zeros, writes numbers over all of it, or adds numbers to it that shut all
    scores out of a softmax, where ``values`` say so.
    """
    name = name_of(node)
    if name in _ADDED and values.is_floating_point():
        return bool((values <= FAR_BELOW).all())
    if name == "mul":
        return not bool(values.any())
    if name in ("masked_fill", "where"):
        return _writes_over(node, at, values, own)
    return name == _ATTENTION and values.dtype == torch.bool and not bool(values.any())


def _writes_over(node: Node, at: int, values: torch.Tensor, own: set[int]) -> bool:
    """Whether a node writes numbers over all of a signal, where ``values`` say so."""
    if name_of(node) == "masked_fill":
        return node.args[1] == Ref(at) and bool(values.all())
    if node.args[0] == Ref(at):
        left, right = (_is_number(arg, own) for arg in node.args[1:3])
        return (left and not right and bool(values.all())) or (right and not left and not bool(values.any()))
    return False


def _is_number(argument: Any, own: set[int]) -> bool:
    """Whether an argument is no signal: no input reaches it."""
    return not isinstance(argument, Ref) or argument.value in own


def _recomputed(graph: Graph, value: int, other: torch.Tensor) -> dict[int, torch.Tensor] | None:
    """Return what is known where an input holds another value; None where shapes depend on it."""
    known = {**graph.known, value: other}
    changed = {value}
    for node in graph.nodes:
        if changed.isdisjoint(node.inputs) or any(out not in known for out in node.outputs):
            continue
        try:
            made = call(node.op, _given(node.args, known), {k: _given(v, known) for k, v in node.kwargs.items()})
        except (KeyError, RuntimeError, IndexError, ValueError, TypeError):  # an operand that is not known any more
            return None
        if [tuple(each.shape) for each in made] != [graph.values[out].shape for out in node.outputs]:
            return None
        known.update(zip(node.outputs, made, strict=True))
        changed.update(node.outputs)
    return known


def _given(argument: Any, known: Mapping[int, torch.Tensor]) -> Any:
    """Return an argument with known values in the place of references."""
    if isinstance(argument, Ref):
        return known[argument.value]
    if isinstance(argument, list | tuple):
        return type(argument)([_given(item, known) for item in argument])
    return argument
