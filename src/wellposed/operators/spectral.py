"""Fourier transforms and complex numbers: what operators do to them, no statistics.

The signal of a complex tensor is |z|: its second moment is E|z|², and real and imaginary part have half of it each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wellposed.graphs import Graph, Node
from wellposed.operators.schema import named_arguments, plain_name, ref_of
from wellposed.operators.views import view_of

LINEAR = frozenset((
    "add", "sub", "rsub", "mul", "div", "neg", "sum", "mean", "cat", "stack", "index", "index_select", "gather",
    "where", "masked_fill", "pad", "constant_pad_nd", "dropout", "slice_scatter", "select_scatter",
    "view_write", "copy", "index_put", "zeros", "zeros_like", "new_zeros", "full", "empty", "linear", "matmul",
    "mm", "bmm", "mv", "dot", "einsum", "baddbmm", "addmm", "conv1d", "conv2d", "conv3d", "roll", "flip",
    "tril", "triu", "detach", "clone", "view_as_real", "view_as_complex", "real", "imag", "complex", "conj",
    "_conj", "conj_physical", "_conj_physical", "tensordot", "abs",
))  # fmt: skip
"""Operators whose rules hold for complex numbers as well: linear ones, by plain name, and those made for them."""


def is_complex(graph: Graph, node: Node) -> bool:
    """Whether a node reads or makes complex numbers."""
    return any(graph.values[value].dtype.is_complex for value in (*node.inputs, *node.outputs))


def holds_for_complex(graph: Graph, node: Node) -> bool:
    """Whether the operator's rule holds for the numbers that it takes here."""
    name = plain_name(node.op)
    return name in LINEAR or name.startswith("fft_") or view_of(graph, node) is not None


@dataclass(frozen=True, slots=True)
class Transform:
    """A Fourier transform.

    Attributes:
        axes: that are transformed.
        lengths: of the whole spectrum along each.
        taken: length along each that the transform takes; what is longer is cut, what is shorter filled up with zeros.
        inverse: whether it leads back from a spectrum.
        real: whether the last of the axes holds the half of a spectrum that belongs to real numbers (that a forward
            transform makes, or an inverse one takes).
        scale: factor on the sum of exponentials.
    """

    axes: tuple[int, ...]
    lengths: tuple[int, ...]
    taken: tuple[int, ...]
    inverse: bool
    real: bool
    scale: float


def transform_of(graph: Graph, node: Node) -> Transform | None:
    """Describe a node that transforms axes; None of others."""
    name = plain_name(node.op).removeprefix("fft_")
    kind = name.rstrip("2n") if name not in ("fftn", "ifftn") else name[:-1]
    if kind not in ("fft", "ifft", "rfft", "irfft"):
        return None
    named = named_arguments(node)
    source = ref_of(node.args[0])
    assert source is not None
    before, after = graph.values[source].shape, graph.values[node.outputs[0]].shape
    given = named.get("s", named.get("n"))
    sizes = None if given is None else list(given) if isinstance(given, (list, tuple)) else [given]
    dim = named.get("dim")
    if dim is None:
        count = len(before) if sizes is None else len(sizes)
        dims = list(range(len(before) - count, len(before)))
    else:
        dims = list(dim) if isinstance(dim, (list, tuple)) else [dim]
    axes = tuple(d % len(before) for d in dims)
    inverse, real = kind.startswith("i"), kind.endswith("rfft")
    half = axes[-1] if real else -1
    asked = [-1] * len(axes) if sizes is None else [int(size) for size in sizes]
    whole = [after[a] if inverse and a == half else before[a] for a in axes]
    lengths = tuple(size if size > 0 else length for size, length in zip(asked, whole, strict=True))
    taken = tuple(n // 2 + 1 if inverse and a == half else n for a, n in zip(axes, lengths, strict=True))
    total = math.prod(lengths)
    power = {"backward": 1.0 if inverse else 0.0, "ortho": 0.5, "forward": 0.0 if inverse else 1.0}
    return Transform(axes, lengths, taken, inverse, real, total ** -power[str(named.get("norm") or "backward")])


def belongs_to_real(graph: Graph, value: int) -> bool:
    """Whether a half spectrum is that of real numbers still: no complex number has multiplied it."""
    while graph.values[value].dtype.is_complex:
        index = graph.values[value].node
        if index is None:
            return False
        node = graph.nodes[index]
        name = plain_name(node.op)
        if name.startswith("fft_r"):
            return True
        complexes = [v for v in node.inputs if graph.values[v].dtype.is_complex]
        if name not in LINEAR and view_of(graph, node) is None and not name.startswith("fft_"):
            return False
        if len(complexes) != 1 or name in ("complex", "view_as_complex"):
            return False
        value = complexes[0]
    return True


def inverse_after(graph: Graph, value: int, users: Mapping[int, Sequence[int]], most: int = 24) -> Node | None:
    """Return the inverse transform that a spectrum leads to, through nothing but views, sums and writes; else None."""
    found: set[int] = set()
    todo, seen = [value], {value}
    while todo:
        for index in users.get(todo.pop(), ()):
            node = graph.nodes[index]
            name = plain_name(node.op)
            if name.startswith("fft_i") and "shift" not in name:
                found.add(index)
                continue
            passes = name in ("add", "cat", "stack", "view_write", "slice_scatter", "select_scatter", "copy", "pad",
                              "constant_pad_nd", "index_put", "roll", "fft_fftshift", "fft_ifftshift")  # fmt: skip
            if not passes and view_of(graph, node) is None:
                return None
            new = [v for v in node.outputs if v not in seen]
            seen.update(new)
            todo.extend(new)
            if len(seen) > most:
                return None
    return graph.nodes[found.pop()] if len(found) == 1 else None
