"""Products of two tensors with axes summed, described once for each operator."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from wellposed.graphs import Graph, Node
from wellposed.graphs.einsum import axes_of
from wellposed.graphs.graph import once
from wellposed.graphs.operators import overloads
from wellposed.operators.schema import argument_of, ref_of

aten: torch._ops._OpNamespace = torch.ops.aten

GROUPED = overloads("_grouped_mm.default", optional=True)
"""Products of experts whose rows lie one after another: one operator, which older versions of torch lack."""


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

    def swapped(self) -> Product:
        """Return the same product with its operands in the other order."""
        return replace(self, left=self.right, right=self.left, left_axes=self.right_axes, right_axes=self.left_axes)


Describe = Callable[[Graph, Node], "Product | None"]
_DESCRIBERS: dict[Any, Describe] = {}


def _describes(*ops: Any) -> Callable[[Describe], Describe]:
    """Register a description for overloads."""

    def register(function: Describe) -> Describe:
        for op in ops:
            _DESCRIBERS[op] = function
        return function

    return register


def is_product(op: torch._ops.OpOverload) -> bool:
    """Whether an operator multiplies two tensors, and mostly sums over axes of them."""
    return op in _DESCRIBERS


def describe(graph: Graph, node: Node) -> Product | None:
    """Describe which axes ``node`` sums, or return None when it is no product of two tensors.

    The operands are in the operator's order: `Product.left` is the operator's first operand.
    """
    if node.index < len(graph.nodes) and graph.nodes[node.index] is node:
        return _products(graph).get(node.index)
    return _described(graph, node)


@once
def _products(graph: Graph) -> dict[int, Product]:
    """Return the products among the nodes of a graph, by index."""
    made = {node.index: _described(graph, node) for node in graph.nodes}
    return {index: product for index, product in made.items() if product is not None}


def _described(graph: Graph, node: Node) -> Product | None:
    function = _DESCRIBERS.get(node.op)
    return None if function is None else function(graph, node)


def _batch(count: int) -> tuple[str, ...]:
    return tuple(f"b{i}" for i in range(count))


@_describes(aten.linear.default)
def _linear(graph: Graph, node: Node) -> Product:
    """Describe data (..., i) times a weight (o, i) or a vector (i), plus a bias."""
    left, right = node.args[0].value, node.args[1].value
    free = _batch(len(graph.values[left].shape) - 1)
    bias = ref_of(argument_of(node, 2, "bias"))
    if len(graph.values[right].shape) == 1:  # a vector weight: one output, no axis for it
        return Product(left, right, (*free, "i"), ("i",), free, bias)
    return Product(left, right, (*free, "i"), ("o", "i"), (*free, "o"), bias)


@_describes(aten.matmul.default, aten.mm.default, aten.bmm.default, aten.mv.default, aten.dot.default)
def _matmul(graph: Graph, node: Node) -> Product:
    left, right = node.args[0].value, node.args[1].value
    return _matmul_axes(graph, left, right)


def _matmul_axes(graph: Graph, left: int, right: int) -> Product:
    """Return the product of (..., m, k) and (..., k, n), where a vector is (k); batch axes align on the right."""
    a, b = len(graph.values[left].shape), len(graph.values[right].shape)
    batch = _batch(max(a, b, 2) - 2)
    left_axes = ("k",) if a == 1 else (*batch[len(batch) - (a - 2) :], "m", "k")
    right_axes = ("k",) if b == 1 else (*batch[len(batch) - (b - 2) :], "k", "n")
    out = (*batch, *(("m",) if a > 1 else ()), *(("n",) if b > 1 else ()))
    return Product(left, right, left_axes, right_axes, out)


@_describes(aten.addmm.default, aten.baddbmm.default)
def _addmm(graph: Graph, node: Node) -> Product:
    """Describe ``beta * bias + alpha * left @ right``."""
    bias, left, right = (argument.value for argument in node.args[:3])
    inner = _matmul_axes(graph, left, right)
    beta, alpha = float(node.kwargs.get("beta", 1)), float(node.kwargs.get("alpha", 1))
    return Product(left, right, inner.left_axes, inner.right_axes, inner.out_axes, bias, alpha, beta)


@_describes(*GROUPED)
def _grouped_mm(graph: Graph, node: Node) -> Product | None:
    """Describe rows (m, k), sorted by expert, times matrices (e, k, n); None for operands of other ranks."""
    left, right = node.args[0].value, node.args[1].value
    if len(graph.values[left].shape) != 2 or len(graph.values[right].shape) != 3:
        return None
    # rows are sorted by expert: every row meets one expert's matrix, drawn like all the others
    return Product(left, right, ("m", "k"), ("e", "k", "n"), ("m", "n"))


@_describes(aten.outer.default)
def _outer(graph: Graph, node: Node) -> Product:
    return Product(node.args[0].value, node.args[1].value, ("m",), ("n",), ("m", "n"))


@_describes(aten.tensordot.default)
def _tensordot(graph: Graph, node: Node) -> Product:
    """Describe a product that sums given axes in pairs and keeps the others, those of the left operand first."""
    left, right = node.args[0].value, node.args[1].value
    ranks = len(graph.values[left].shape), len(graph.values[right].shape)
    summed = [[int(d) % rank for d in dims] for dims, rank in zip(node.args[2:4], ranks, strict=True)]
    left_axes, right_axes = ([f"{side}{i}" for i in range(rank)] for side, rank in zip("mn", ranks, strict=True))
    for place, (i, j) in enumerate(zip(*summed, strict=True)):
        left_axes[i] = right_axes[j] = f"k{place}"
    out = (*(a for a in left_axes if a[0] == "m"), *(a for a in right_axes if a[0] == "n"))
    return Product(left, right, tuple(left_axes), tuple(right_axes), out)


@_describes(aten.einsum.default)
def _einsum(graph: Graph, node: Node) -> Product | None:
    """Describe an einsum of two operands by its labels; None of other numbers, and where it takes a diagonal."""
    operands = [ref.value for ref in node.args[1]]
    if len(operands) != 2:
        return None
    axes = axes_of(str(node.args[0]), [len(graph.values[operand].shape) for operand in operands])
    if axes is None:
        return None  # a diagonal is taken: not a plain product
    (left, right), out = axes
    return Product(operands[0], operands[1], left, right, out)


def pair_of(value: Any, rank: int) -> tuple[int, ...]:
    """Return an ``int`` or a short list as one number per spatial axis."""
    numbers = tuple(int(v) for v in value) if isinstance(value, (list, tuple)) else (int(value),)
    return numbers * rank if len(numbers) == 1 else numbers


_CONVS = (aten.conv1d, aten.conv2d, aten.conv3d)


@_describes(*(conv.default for conv in _CONVS), *(conv.padding for conv in _CONVS))
def _conv(graph: Graph, node: Node) -> Product:
    """Describe the convolution of data (n, c, s0, ...), n being optional, with a kernel (o, c, k0, ...)."""
    left, right = node.args[0].value, node.args[1].value
    kernel = graph.values[right].shape[2:]
    rank = len(kernel)
    stride = pair_of(argument_of(node, 3, "stride", 1), rank)
    dilation = pair_of(argument_of(node, 5, "dilation", 1), rank)
    given = argument_of(node, 4, "padding", 0)
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
        ref_of(argument_of(node, 2, "bias")),
        window=Window(kernel, stride, padding, dilation),
        groups=int(argument_of(node, 6, "groups", 1)),
    )


@_describes(aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input)
def _conv_transpose(graph: Graph, node: Node) -> Product:
    """Describe the transposed convolution of data (n, c, s0, ...), n being optional, with a kernel (c, o, k0, ...)."""
    left, right = node.args[0].value, node.args[1].value
    kernel = graph.values[right].shape[2:]
    rank = len(kernel)
    space = tuple(f"s{i}" for i in range(rank))
    batch = ("n",) if len(graph.values[left].shape) == rank + 2 else ()
    padding = pair_of(argument_of(node, 4, "padding", 0), rank)
    return Product(
        left,
        right,
        (*batch, "c", *space),
        ("c", "o", *(f"k{i}" for i in range(rank))),
        (*batch, "o", *space),
        ref_of(argument_of(node, 2, "bias")),
        window=Window(
            kernel,
            pair_of(argument_of(node, 3, "stride", 1), rank),
            tuple((p, p) for p in padding),
            pair_of(argument_of(node, 7, "dilation", 1), rank),
        ),
        groups=int(argument_of(node, 6, "groups", 1)),
        transposed=True,
    )
