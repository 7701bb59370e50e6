"""Contractions: where a parameter meets a signal and axes are summed.

A contraction is described once. Fan-in, fan-out, the forward rule and the prescription all follow from the description;
no fan is ever read off a weight's number of dimensions or off a parameter's name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from wellposed.graphs import Graph, Node, Ref

aten = torch.ops.aten
Kind = Literal["linear", "conv", "conv_transpose", "matmul", "embedding", "recurrent"]


@dataclass(frozen=True, slots=True)
class Window:
    """The sliding window of a convolution, per spatial axis."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]

    @property
    def taps(self) -> int:
        """Number of taps."""
        return math.prod(self.kernel)


@dataclass(frozen=True, slots=True)
class Product:
    """``out[o] = sum over labels not in o of left[l] * right[r] (+ bias)``, one label per axis.

    ``left`` is the data, ``right`` the weight (or the second signal); a label in all three is a batch axis. With a
    ``window`` the spatial labels ``s0, s1, ...`` slide, and ``groups`` splits the channels.
    """

    left: int
    right: int
    left_axes: tuple[str, ...]
    right_axes: tuple[str, ...]
    out_axes: tuple[str, ...]
    bias: int | None = None
    scale: float = 1.0
    bias_scale: float = 1.0
    window: Window | None = None
    groups: int = 1
    transposed: bool = False

    @property
    def summed(self) -> tuple[str, ...]:
        """Labels that are summed over."""
        return tuple(a for a in dict.fromkeys(self.left_axes + self.right_axes) if a not in self.out_axes)


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


# ---- the description of each operator -------------------------------------------------------------------------------

Describe = Callable[[Graph, Node], "Product | None"]
_DESCRIBERS: dict[Any, Describe] = {}


def _describes(*ops: Any) -> Callable[[Describe], Describe]:
    def register(function: Describe) -> Describe:
        for op in ops:
            _DESCRIBERS[op] = function
        return function

    return register


def describe(graph: Graph, node: Node) -> Product | None:
    """Describe which axes ``node`` sums, or return None when it is no product of two tensors.

    The operands are in the operator's order: `Product.left` is the operator's first operand.
    """
    function = _DESCRIBERS.get(node.op)
    return None if function is None else function(graph, node)


def _ref(value: Any) -> int | None:
    return value.value if isinstance(value, Ref) else None


def _argument(node: Node, position: int, name: str, default: Any = None) -> Any:
    if len(node.args) > position:
        return node.args[position]
    return node.kwargs.get(name, default)


def _batch(count: int) -> tuple[str, ...]:
    return tuple(f"b{i}" for i in range(count))


@_describes(aten.linear.default)
def _linear(graph: Graph, node: Node) -> Product:
    left, right = node.args[0].value, node.args[1].value
    free = _batch(len(graph.values[left].shape) - 1)
    bias = _ref(_argument(node, 2, "bias"))
    if len(graph.values[right].shape) == 1:  # a vector weight: one output, no axis for it
        return Product(left, right, (*free, "i"), ("i",), free, bias)
    return Product(left, right, (*free, "i"), ("o", "i"), (*free, "o"), bias)


@_describes(aten.matmul.default, aten.mm.default, aten.bmm.default, aten.mv.default, aten.dot.default)
def _matmul(graph: Graph, node: Node) -> Product:
    left, right = node.args[0].value, node.args[1].value
    return _matmul_axes(graph, left, right)


def _matmul_axes(graph: Graph, left: int, right: int) -> Product:
    a, b = len(graph.values[left].shape), len(graph.values[right].shape)
    batch = _batch(max(a, b, 2) - 2)
    left_axes = ("k",) if a == 1 else (*batch[len(batch) - (a - 2) :], "m", "k")
    right_axes = ("k",) if b == 1 else (*batch[len(batch) - (b - 2) :], "k", "n")
    out = (*batch, *(("m",) if a > 1 else ()), *(("n",) if b > 1 else ()))
    return Product(left, right, left_axes, right_axes, out)


@_describes(aten.addmm.default, aten.baddbmm.default)
def _addmm(graph: Graph, node: Node) -> Product:
    bias, left, right = (argument.value for argument in node.args[:3])
    inner = _matmul_axes(graph, left, right)
    beta, alpha = float(node.kwargs.get("beta", 1)), float(node.kwargs.get("alpha", 1))
    return Product(left, right, inner.left_axes, inner.right_axes, inner.out_axes, bias, alpha, beta)


@_describes(aten._grouped_mm.default)
def _grouped_mm(graph: Graph, node: Node) -> Product | None:
    left, right = node.args[0].value, node.args[1].value
    if len(graph.values[left].shape) != 2 or len(graph.values[right].shape) != 3:
        return None
    # rows are sorted by expert: every row meets one expert's matrix, drawn like all the others
    return Product(left, right, ("m", "k"), ("e", "k", "n"), ("m", "n"))


@_describes(aten.outer.default)
def _outer(graph: Graph, node: Node) -> Product:
    return Product(node.args[0].value, node.args[1].value, ("m",), ("n",), ("m", "n"))


@_describes(aten.einsum.default)
def _einsum(graph: Graph, node: Node) -> Product | None:
    operands = [ref.value for ref in node.args[1]]
    if len(operands) != 2:
        return None
    equation = str(node.args[0]).replace(" ", "")
    inputs, arrow, out = equation.partition("->")
    terms = inputs.split(",")
    expanded: list[tuple[str, ...]] = []
    ellipsis_axes: tuple[str, ...] = ()
    for term, operand in zip(terms, operands, strict=True):
        rank = len(graph.values[operand].shape)
        if "..." in term:
            before, _, after = term.partition("...")
            hidden = _batch(rank - len(before) - len(after))
            ellipsis_axes = hidden if len(hidden) > len(ellipsis_axes) else ellipsis_axes
            expanded.append((*before, *hidden, *after))
        else:
            expanded.append(tuple(term))
    if not arrow:
        letters = [letter for term in expanded for letter in term]
        out_axes = (*ellipsis_axes, *sorted({a for a in letters if letters.count(a) == 1 and len(a) == 1}))
    elif "..." in out:
        before, _, after = out.partition("...")
        out_axes = (*before, *ellipsis_axes, *after)
    else:
        out_axes = tuple(out)
    if any(len(set(axes)) < len(axes) for axes in (*expanded, out_axes)):
        return None  # a diagonal is taken: not a plain product
    return Product(operands[0], operands[1], expanded[0], expanded[1], out_axes)


def pair_of(value: Any, rank: int) -> tuple[int, ...]:
    """Return an ``int`` or a short list as one number per spatial axis."""
    numbers = tuple(int(v) for v in value) if isinstance(value, (list, tuple)) else (int(value),)
    return numbers * rank if len(numbers) == 1 else numbers


_CONVS = (aten.conv1d, aten.conv2d, aten.conv3d)


@_describes(*(conv.default for conv in _CONVS), *(conv.padding for conv in _CONVS))
def _conv(graph: Graph, node: Node) -> Product:
    left, right = node.args[0].value, node.args[1].value
    kernel = graph.values[right].shape[2:]
    rank = len(kernel)
    stride = pair_of(_argument(node, 3, "stride", 1), rank)
    dilation = pair_of(_argument(node, 5, "dilation", 1), rank)
    given = _argument(node, 4, "padding", 0)
    if given == "valid":
        padding = ((0, 0),) * rank
    elif given == "same":
        totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        padding = tuple((total // 2, total - total // 2) for total in totals)
    else:
        padding = tuple((p, p) for p in pair_of(given, rank))
    space = tuple(f"s{i}" for i in range(rank))
    batch = ("n",) if len(graph.values[left].shape) == rank + 2 else ()
    return Product(
        left,
        right,
        (*batch, "c", *space),
        ("o", "c", *(f"k{i}" for i in range(rank))),
        (*batch, "o", *space),
        _ref(_argument(node, 2, "bias")),
        window=Window(kernel, stride, padding, dilation),
        groups=int(_argument(node, 6, "groups", 1)),
    )


@_describes(aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input)
def _conv_transpose(graph: Graph, node: Node) -> Product:
    left, right = node.args[0].value, node.args[1].value
    kernel = graph.values[right].shape[2:]
    rank = len(kernel)
    space = tuple(f"s{i}" for i in range(rank))
    batch = ("n",) if len(graph.values[left].shape) == rank + 2 else ()
    padding = pair_of(_argument(node, 4, "padding", 0), rank)
    return Product(
        left,
        right,
        (*batch, "c", *space),
        ("c", "o", *(f"k{i}" for i in range(rank))),
        (*batch, "o", *space),
        _ref(_argument(node, 2, "bias")),
        window=Window(
            kernel,
            pair_of(_argument(node, 3, "stride", 1), rank),
            tuple((p, p) for p in padding),
            pair_of(_argument(node, 7, "dilation", 1), rank),
        ),
        groups=int(_argument(node, 6, "groups", 1)),
        transposed=True,
    )


# ---- from parameters to effective weights ---------------------------------------------------------------------------

_RESHAPES = {
    aten.view.default,
    aten.reshape.default,
    aten.flatten.using_ints,
    aten.unflatten.int,
    aten._unsafe_view.default,
}
_SAME_AXES = {
    aten.to.dtype,
    aten.to.device,
    aten.to.dtype_layout,
    aten._to_copy.default,
    aten.detach.default,
    aten.alias.default,
    aten.contiguous.default,
    aten.clone.default,
    aten.neg.default,
    aten.type_as.default,
    aten.slice.Tensor,
    aten.chunk.default,
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.narrow.default,
    aten.index_select.default,
}


@dataclass(frozen=True, slots=True)
class Lever:
    """The parameter whose scale is, linearly, that of a value; ``axes[i]`` is the parameter's axis behind axis i."""

    parameter: str
    axes: tuple[int | None, ...]


def _is_plain_scale(node: Node, position: int) -> bool:
    other = node.args[1 - position] if len(node.args) > 1 else None
    return isinstance(other, (int, float))


def lever_of(graph: Graph, node: Node, levers: dict[int, Lever]) -> list[Lever | None]:
    """Return the levers of a node's outputs, given those of the values before it."""
    first = _ref(node.args[0]) if node.args else None
    lever = levers.get(first) if first is not None else None
    shapes = [graph.values[out].shape for out in node.outputs]
    nothing: list[Lever | None] = [None] * len(shapes)
    op = node.op
    if op is aten._weight_norm.default:  # w = g v / |v|: g scales it, v does not
        gain = levers.get(node.args[1].value)
        return nothing if gain is None else [Lever(gain.parameter, gain.axes)]
    if op in (aten.mul.Tensor, aten.div.Tensor):
        if lever is not None and (_is_plain_scale(node, 0) or _is_constant(graph, node.args[1])):
            return [_aligned(lever, graph.values[first].shape, shapes[0])] if first is not None else nothing
        return nothing
    if lever is None or first is None:
        return nothing
    shape = graph.values[first].shape
    if op in _SAME_AXES:
        return [lever] * len(shapes)
    if op in (aten.t.default, aten.numpy_T.default, aten.mT.default):
        return [Lever(lever.parameter, lever.axes[::-1])]
    if op in (aten.transpose.int, aten.swapaxes.default):
        i, j = (int(a) % len(shape) for a in node.args[1:3])
        axes = list(lever.axes)
        axes[i], axes[j] = axes[j], axes[i]
        return [Lever(lever.parameter, tuple(axes))]
    if op is aten.permute.default:
        return [Lever(lever.parameter, tuple(lever.axes[int(a) % len(shape)] for a in node.args[1]))]
    if op is aten.unsqueeze.default:
        at = int(node.args[1]) % (len(shape) + 1)
        return [Lever(lever.parameter, (*lever.axes[:at], None, *lever.axes[at:]))]
    if op in (aten.select.int, aten.unbind.int, aten.squeeze.dim):
        at = int(_argument(node, 1, "dim", 0)) % len(shape)
        kept = lever.axes if op is aten.squeeze.dim and shape[at] != 1 else (*lever.axes[:at], *lever.axes[at + 1 :])
        return [Lever(lever.parameter, kept)] * len(shapes)
    if op is aten.expand.default:
        extra = len(shapes[0]) - len(shape)
        return [Lever(lever.parameter, ((None,) * extra) + lever.axes)]
    if op in _RESHAPES:
        return [_aligned(lever, shape, shapes[0])]
    if op in (aten.index.Tensor, aten.gather.default, aten.cat.default, aten.stack.default):
        return [Lever(lever.parameter, (None,) * len(out)) for out in shapes]
    return nothing


def _is_constant(graph: Graph, argument: Any) -> bool:
    value = _ref(argument)
    return value is not None and value in graph.known


def _aligned(lever: Lever, before: tuple[int, ...], after: tuple[int, ...]) -> Lever:
    """Follow axes through a reshape: an axis is kept where the products of the sizes before it and up to it match."""
    ends = {}
    product = 1
    for axis, size in enumerate(before):
        ends[(product, product * size)] = lever.axes[axis]
        product *= size
    axes, product = [], 1
    for size in after:
        axes.append(ends.get((product, product * size)) if size != 1 else None)
        product *= size
    return Lever(lever.parameter, tuple(axes))


def levers(graph: Graph) -> dict[int, Lever]:
    """Return, by value id, the parameter that scales each parameter-derived value linearly."""
    found: dict[int, Lever] = {
        parameter.value: Lever(name, tuple(range(len(parameter.shape)))) for name, parameter in graph.parameters.items()
    }
    for node in graph.nodes:
        if any(value in found for value in node.inputs):
            for out, lever in zip(node.outputs, lever_of(graph, node, found), strict=True):
                if lever is not None:
                    found[out] = lever
    return found


def parameter_values(graph: Graph) -> frozenset[int]:
    """Return the ids of the values that depend on parameters, buffers and constants alone (no input reaches them)."""
    fixed = {value.id for value in graph.values if value.kind in ("parameter", "buffer", "constant")}
    for node in graph.nodes:
        if all(value in fixed for value in node.inputs) and not is_random(node):
            fixed.update(node.outputs)
    return frozenset(fixed)


def is_random(node: Node) -> bool:
    """Whether the operator draws random numbers."""
    return torch.Tag.nondeterministic_seeded in node.op.tags


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
                if node.op is not aten._grouped_mm.default
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
            int(_argument(node, {aten.chunk.default: 2, aten.unbind.int: 1}.get(op, 1 if selecting else 2), "dim", 0))
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
    if op in _SAME_AXES:
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
    elif op in _RESHAPES:
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
