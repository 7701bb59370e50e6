"""Contractions: where a parameter meets a signal and axes are summed.

A contraction is described once. Fan-in, fan-out, the forward rule and the prescription all follow from the description;
no fan is ever read off a weight's number of dimensions or off a parameter's name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from wellposed.graphs import Graph
from wellposed.signals.levers import RESHAPES, SAME_AXES, Lever, levers, parameter_values
from wellposed.signals.product import GROUPED, argument_of, describe

aten = torch.ops.aten

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


_EMBEDDINGS = {aten.embedding.default, aten.embedding_bag.padding_idx, aten.embedding_bag.default}
_RECURRENT = {getattr(aten, name).input for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")} | {
    getattr(aten, name).data for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")
}
_CELLS = {aten.lstm_cell.default, aten.gru_cell.default, aten.rnn_tanh_cell.default, aten.rnn_relu_cell.default}


def contractions(
    graph: Graph, found: Mapping[int, Lever] | None = None, fixed: frozenset[int] | None = None
) -> tuple[Contraction, ...]:
    """Return every use of a parameter as a weight, in execution order.

    Linear layers, convolutions, matrix products and einsum with a parameter-derived operand, embeddings, and the
    weights of recurrent operators (one entry per parameter). ``found`` and ``fixed`` are what `levers` and
    `parameter_values` return, where they are at hand.
    """
    found = levers(graph) if found is None else found
    fixed = parameter_values(graph) if fixed is None else fixed
    users = graph.users()
    names = {parameter.value: name for name, parameter in graph.parameters.items()}
    result: list[Contraction] = []
    for node in graph.nodes:
        if node.op in _EMBEDDINGS:
            weight = node.args[0].value
            lever = found.get(weight)
            shape = graph.values[weight].shape
            result.append(
                Contraction(
                    node.index,
                    node.args[1].value,
                    weight,
                    lever.parameter if lever is not None else None,
                    None,
                    1,
                    shape[-1],
                    0,
                    1,
                    "embedding",
                )
            )
            continue
        if node.op in _RECURRENT or node.op in _CELLS:
            for value in node.inputs:
                if value in found and len(graph.values[value].shape) >= 2:
                    out, fan_in = graph.values[value].shape[:2]
                    name = found[value].parameter
                    result.append(
                        Contraction(node.index, node.inputs[0], value, name, None, fan_in, out, 0, 1, "recurrent")
                    )
            continue
        product = describe(graph, node)
        if product is None:
            continue
        if product.right in fixed and product.left not in fixed:
            weight, data, weight_axes, data_axes = product.right, product.left, product.right_axes, product.left_axes
        elif product.left in fixed and product.right not in fixed:
            weight, data, weight_axes, data_axes = product.left, product.right, product.left_axes, product.right_axes
        else:
            continue
        if weight in graph.known and weight not in found:
            continue
        sizes = dict(zip(weight_axes, graph.values[weight].shape, strict=True))
        lever = found.get(weight)
        own = [label for label in weight_axes if label in product.out_axes and label not in data_axes]
        window = product.window
        if window is not None:
            data_shape = graph.values[data].shape
            channels = data_shape[data_axes.index("c")] // product.groups
            outputs = graph.values[node.outputs[0]].shape[product.out_axes.index("o")] // product.groups
            strides = math.prod(window.stride)
            if product.transposed:
                fan_in, fan_out = max(1, round(channels * window.taps / strides)), outputs * window.taps
            else:
                fan_in, fan_out = channels * window.taps, max(1, round(outputs * window.taps / strides))
                fan_out = outputs * window.taps if strides == 1 else fan_out
            own = ["o"]
        else:
            fan_in = (
                math.prod(sizes[label] for label in product.summed if label in sizes)
                if node.op not in GROUPED
                else sizes["k"]
            )
            fan_out = math.prod(sizes[label] for label in own)
            if own:
                axis = product.out_axes.index(own[-1])
                fan_out //= _consumers(graph, node.outputs[0], axis, users)
        output_axis = 0
        if lever is not None and own:
            behind = lever.axes[weight_axes.index(own[-1])]
            output_axis = 0 if behind is None else behind
        bias = names.get(product.bias) if product.bias is not None else None
        kind: Kind = "matmul"
        if window is not None:
            kind = "conv_transpose" if product.transposed else "conv"
        elif node.op is aten.linear.default:
            kind = "linear"
        result.append(
            Contraction(
                node.index,
                data,
                weight,
                lever.parameter if lever is not None else None,
                bias,
                fan_in,
                max(1, fan_out),
                output_axis,
                product.groups,
                kind,
            )
        )
    return tuple(result)


_SPLITS = {
    aten.chunk.default,
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.tensor_split.sections,
    aten.unbind.int,
}


def _consumers(graph: Graph, value: int, axis: int, users: dict[int, list[int]]) -> int:
    """Into how many equal parts the output's channel axis is split before it is used (3 for a fused q/k/v)."""
    sizes: list[list[int]] = [[] for _ in graph.values[value].shape]
    total = graph.values[value].shape[axis]
    sizes[axis] = [total]
    return _split_parts(graph, value, sizes, total, users, 8)


def _split_parts(
    graph: Graph, value: int, parts: list[list[int]], total: int, users: dict[int, list[int]], depth: int
) -> int:
    # ``parts[axis]`` lists the factors of the channel axis that lie in this axis (the leading one is the candidate)
    readers = users.get(value, [])
    if depth == 0 or not readers:
        return 1
    node = graph.nodes[readers[0]]
    shape = graph.values[value].shape
    op = node.op
    rank = len(shape)
    selecting = op in (aten.select.int, aten.slice.Tensor)
    if op in _SPLITS or (selecting and len(readers) > 1):
        at = (
            int(argument_of(node, {aten.chunk.default: 2, aten.unbind.int: 1}.get(op, 1 if selecting else 2), "dim", 0))
            % rank
        )
        if not parts[at]:
            return 1
        after = [graph.values[out].shape for out in node.outputs]
        if op is aten.unbind.int or op is aten.select.int:
            return shape[at]
        widths = {s[at] for s in after}
        return shape[at] // max(widths.pop(), 1) if len(widths) == 1 else 1
    if len(node.outputs) != 1 or len(readers) > 1:
        return 1
    out = node.outputs[0]
    target = graph.values[out].shape
    if op in SAME_AXES:
        following = parts
    elif op in (aten.transpose.int, aten.swapaxes.default):
        i, j = (int(a) % rank for a in node.args[1:3])
        following = list(parts)
        following[i], following[j] = following[j], following[i]
    elif op is aten.permute.default:
        following = [parts[int(a) % rank] for a in node.args[1]]
    elif op is aten.unsqueeze.default:
        at = int(node.args[1]) % (rank + 1)
        following = [*parts[:at], [], *parts[at:]]
    elif op is aten.squeeze.dim:
        at = int(node.args[1]) % rank
        following = [*parts[:at], *parts[at + 1 :]] if shape[at] == 1 else parts
    elif op in RESHAPES:
        following = _split_axes(parts, shape, target)
    else:
        return 1
    return _split_parts(graph, out, following, total, users, depth - 1)


def _split_axes(parts: list[list[int]], before: tuple[int, ...], after: tuple[int, ...]) -> list[list[int]]:
    start, spans = 1, []
    for axis, size in enumerate(before):
        if parts[axis]:
            spans.append((start, start * size))
        start *= size
    result: list[list[int]] = []
    start = 1
    for size in after:
        inside = any(low <= start and start * size <= high for low, high in spans) and size > 1
        result.append([size] if inside else [])
        start *= size
    return result
