"""Integers and booleans that a model computes with as numbers, as against indices, masks and lengths."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from wellposed.graphs.graph import Graph, Node
from wellposed.graphs.operators import INTEGERS

FAR_BELOW = -1e4
"""Numbers at or below this, beside nothing but zeros, shut scores out of a softmax. Chosen: as -inf in float16."""
_PLAIN = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _named(names: str) -> frozenset[str]:
    return frozenset(names.split())


_CARRY = _named(
    "to _to_copy clone contiguous mul div sub add rsub neg true_divide log1p log sqrt square pow exp sin cos abs cat "
    "stack concat pad constant_pad_nd clamp"
)
"""Operators, by name, that compute numbers of numbers, or carry them on."""
_TAKE = _named(
    "linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d matmul mm bmm addmm einsum "
    "batch_norm layer_norm group_norm instance_norm lstm gru rnn_tanh rnn_relu"
)
"""Operators, by name, whose first tensor is a signal, where the others are weights."""
_JOIN = _named("cat stack concat")


def is_additive_mask(tensor: torch.Tensor) -> bool:
    """Whether floating-point numbers say, added to scores, which of them count: some are minus infinity and none plus
    infinity or NaN, or there are zeros and numbers far below.
    """
    plain = type(tensor) is torch.Tensor and tensor.layout == torch.strided and tensor.dtype in _PLAIN
    if not plain or tensor.is_meta or not tensor.numel():
        return False
    low, high = (float(end) for end in torch.aminmax(tensor.detach()))
    if not low <= FAR_BELOW or not high < math.inf or low == high:
        return False
    return low == -math.inf or (high == 0.0 and bool(((tensor == 0.0) | (tensor <= FAR_BELOW)).all()))


def with_numbers(graph: Graph) -> Graph:
    """Return a graph in which integer inputs that weights or norms meet as numbers are signals.

    Such are pictures of uint8, whatever the example holds, and others whose example is one number throughout, which
    says nothing of them. Their values, and what is computed of them, are not known then, and count as float32.
    """
    found: set[int] = set()
    for value in graph.inputs:
        if graph.values[value].dtype in INTEGERS and _says_nothing(graph.example[value]):
            met = _met_as_numbers(graph, value)
            found |= set() if met is None else met
    if not found:
        return graph
    behind = set(found)
    for node in graph.nodes:
        if not behind.isdisjoint(node.inputs):
            behind.update(node.outputs)
    values = tuple(
        replace(each, dtype=torch.float32) if each.id in found and each.dtype in INTEGERS else each
        for each in graph.values
    )
    return replace(graph, values=values, known={v: known for v, known in graph.known.items() if v not in behind})


def _says_nothing(example: torch.Tensor) -> bool:
    """Whether the numbers of an integer example are no evidence: of pictures, on meta, or all the same."""
    if example.dtype == torch.uint8 or example.is_meta:
        return True
    return example.numel() > 1 and bool((example == example.flatten()[0]).all())


def _met_as_numbers(graph: Graph, value: int) -> set[int] | None:
    """Return an input and what is computed of it up to the weights and norms that it meets; None if anything else reads
    one of these, or nothing does.
    """
    own, todo, met = apart(graph), [value], False
    found = {value}
    while todo:
        at = todo.pop()
        if at in graph.outputs:
            return None
        for node in (graph.nodes[index] for index in graph.users().get(at, ())):
            name = name_of(node)
            beside = {*node.inputs} - found
            if name in _TAKE and node.inputs[0] == at and own.issuperset(beside):
                met = True
            elif node.op.is_view or (name in _CARRY and (name in _JOIN or own.issuperset(beside))):
                todo += [out for out in node.outputs if out not in found]
                found.update(node.outputs)
            else:
                return None
    return found if met else None


def apart(graph: Graph) -> set[int]:
    """Return the values that no input reaches."""
    reached = set(graph.inputs)
    for node in graph.nodes:
        if not reached.isdisjoint(node.inputs):
            reached.update(node.outputs)
    return {each.id for each in graph.values if each.id not in reached}


def name_of(node: Node) -> str:
    """Return the plain name of a node's operator."""
    return node.op._schema.name.rpartition("::")[2].rstrip("_")
