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
    "to _to_copy clone contiguous mul div sub add rsub neg true_divide log1p log log2 log10 sqrt rsqrt reciprocal "
    "square pow exp expm1 sin cos tanh sigmoid abs cat stack concat pad constant_pad_nd clamp clamp_min clamp_max "
    "round floor dropout"
)
"""Operators, by name, that compute numbers of numbers, or carry them on."""
_MOVE = _named(
    "mean sum std var amax amin flip roll repeat tile pixel_shuffle pixel_unshuffle channel_shuffle im2col "
    "reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d avg_pool1d avg_pool2d avg_pool3d "
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d max_pool1d max_pool2d max_pool3d"
)
"""Operators, by name, that move numbers, or average them."""
_RESIZE = _named(
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d "
    "_upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d "
    "_upsample_bilinear2d_aa _upsample_bicubic2d_aa"
)
"""Operators, by name, that interpolate."""
_PICK = _named("index index_select gather take_along_dim masked_fill repeat_interleave grid_sampler type_as")
"""Operators, by name, that do so with their first tensor, at places and by types that the others tell."""
_TAKE = _named(
    "linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d matmul mm bmm addmm einsum "
    "batch_norm layer_norm group_norm instance_norm rms_norm lstm gru rnn_tanh rnn_relu"
)
"""Operators, by name, whose first tensor is a signal, where the others are weights."""
_JOIN = _named("cat stack concat view_write")
"""Operators, by name, that put several tensors into one."""


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
    own, met, found = apart(graph), False, {value}
    for node in graph.nodes:
        read = found.intersection(node.inputs)
        if not read:
            continue
        first, alone = node.inputs[0] in read, own.issuperset({*node.inputs} - found)
        name = name_of(node)
        if name in _TAKE and first and alone:
            met = True
        elif node.op.is_view or name in _JOIN or (alone and name in _CARRY | _MOVE | _RESIZE) or _is_copied(node, read):
            found.update(node.outputs)
        else:
            return None
    return found if met and found.isdisjoint(graph.outputs) else None


def _is_copied(node: Node, read: set[int]) -> bool:
    """Whether a node makes its result of elements of what it has ``read`` alone, which tell no place or type to it."""
    name = name_of(node)
    if name == "copy":  # over all that was there before
        return node.inputs[-1] in read
    return name in _PICK and node.inputs[0] in read and read.isdisjoint(node.inputs[1:])


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
