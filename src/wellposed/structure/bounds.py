"""Between which numbers the elements of a tensor lie, whatever the signals are: sums of exponentials, norms, gates."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from wellposed.graphs import Graph, Node, Ref
from wellposed.graphs.graph import once
from wellposed.operators.schema import plain_name
from wellposed.operators.views import is_view


class Bounds(NamedTuple):
    """The smallest and the largest number that an element may be."""

    low: float = -math.inf
    high: float = math.inf

    @property
    def sign(self) -> int:
        """1 of what is never negative, -1 of what is never positive, else 0."""
        return int(self.low >= 0.0) - int(self.high <= 0.0)


ANY = Bounds()
_POSITIVE = Bounds(0.0)
_RANGES = {
    "abs": _POSITIVE, "cosh": Bounds(1.0), "elu": Bounds(-1.0), "exp": _POSITIVE, "exp2": _POSITIVE,
    "hardsigmoid": Bounds(0.0, 1.0), "linalg_vector_norm": _POSITIVE, "relu": _POSITIVE, "relu6": Bounds(0.0, 6.0),
    "rsqrt": _POSITIVE, "sigmoid": Bounds(0.0, 1.0), "softmax": Bounds(0.0, 1.0), "softplus": _POSITIVE,
    "zeros": Bounds(0.0, 0.0), "zeros_like": Bounds(0.0, 0.0), "new_zeros": Bounds(0.0, 0.0),
    "sqrt": _POSITIVE, "square": _POSITIVE, "std": _POSITIVE, "tanh": Bounds(-1.0, 1.0), "var": _POSITIVE,
}  # fmt: skip
_SAME = frozenset({"clone", "_to_copy", "mean", "amax", "amin", "contiguous", "dropout", "alias", "detach"})
_TOTALS = frozenset({"sum", "cumsum"})
_PRODUCTS = frozenset({"matmul", "mm", "bmm", "mv", "dot", "einsum", "cumprod", "prod"})
_EITHER = frozenset({"cat", "stack", "where", "view_write", "masked_fill", "broadcast_tensors"})
_CUT = {"constant_pad_nd": 2, "pad": 3, "tril": None, "triu": None}
"""Operators whose results hold elements of their argument and another number: that at this place, or 0."""


@once
def bounds(graph: Graph) -> dict[int, Bounds]:
    """Return what every operator's definition says of its first result, given the bounds of what it reads."""
    found: dict[int, Bounds] = {}
    for node in graph.nodes:
        if node.outputs and graph.values[node.outputs[0]].is_signal:
            result = _of(graph, node, found)
            found.update(dict.fromkeys(node.outputs, result))
    return found


def _of(graph: Graph, node: Node, found: dict[int, Bounds]) -> Bounds:
    name = plain_name(node.op)
    if name in _RANGES:
        return _RANGES[name]
    read = [_argument(graph, a, found) for a in _flat(node.args) if _is_number(graph, a)]
    if not read:
        return ANY
    first, second = read[0], read[1] if len(read) > 1 else ANY
    if is_view(node.op) or name in _SAME:
        return first
    if name == "neg":
        return Bounds(-first.high, -first.low)
    if name == "copy":
        return second
    if name == "pow" and len(node.args) > 1 and isinstance(node.args[1], (int, float)):
        return _POSITIVE if first.low >= 0.0 or node.args[1] % 2 == 0 else ANY
    if name in ("add", "sub", "rsub", "mul", "div", "maximum", "minimum"):
        return _arithmetic(name, float(node.kwargs.get("alpha", 1)), first, second)
    if name in _CUT:
        at = _CUT[name]
        other = float(node.args[at] or 0.0) if at is not None and len(node.args) > at else 0.0
        return Bounds(min(first.low, other), max(first.high, other))
    if name in ("log", "log1p"):
        return _POSITIVE if first.low >= (name == "log") else ANY
    if name == "where" and (least := _least(graph, node)) is not None:
        return Bounds(min(max(first.low, least), second.low), max(first.high, second.high))
    if name in _EITHER:
        return Bounds(min(b.low for b in read), max(b.high for b in read))
    if name in _TOTALS:
        return Bounds(0.0 if first.low >= 0.0 else -math.inf, 0.0 if first.high <= 0.0 else math.inf)
    if name in ("clamp", "clamp_min"):
        return Bounds(max(first.low, second.low if math.isfinite(second.low) else -math.inf), first.high)
    signals = [_argument(graph, Ref(v), found) for v in node.inputs]
    return _POSITIVE if name in _PRODUCTS and all(b.low >= 0.0 for b in signals) else ANY


def _least(graph: Graph, node: Node) -> float | None:
    """Return the number c of a ``where`` that keeps what is larger than c (a softplus that a model writes itself)."""
    condition, chosen = (a.value if isinstance(a, Ref) else None for a in node.args[:2])
    at = None if condition is None else graph.values[condition].node
    if at is None or chosen is None:
        return None
    test = graph.nodes[at]
    same = plain_name(test.op) in ("gt", "ge") and test.inputs == (chosen,) and len(test.args) == 2
    return float(test.args[1]) if same and isinstance(test.args[1], (int, float)) else None


def _arithmetic(name: str, alpha: float, x: Bounds, y: Bounds) -> Bounds:
    if name in ("add", "sub", "rsub"):
        if name == "rsub":
            x, y = y, x
        y = _times(y, Bounds(*[alpha if name == "add" else -alpha] * 2))
        return Bounds(x.low + y.low, x.high + y.high)
    if name == "mul":
        return _times(x, y)
    if name == "div":
        return _POSITIVE if x.low >= 0.0 and y.low >= 0.0 else ANY
    better = max if name == "maximum" else min
    return Bounds(better(x.low, y.low), better(x.high, y.high))


def _times(x: Bounds, y: Bounds) -> Bounds:
    ends = [a * b if a and b else 0.0 for a in x for b in y]
    return Bounds(min(ends), max(ends))


def _flat(args: Any) -> list[Any]:
    if isinstance(args, (list, tuple)):
        return [item for entry in args for item in _flat(entry)]
    return [args]


def _is_number(graph: Graph, argument: Any) -> bool:
    if isinstance(argument, Ref):
        return graph.values[argument.value].is_signal
    return isinstance(argument, float) or (isinstance(argument, int) and not isinstance(argument, bool))


def _argument(graph: Graph, argument: Any, found: dict[int, Bounds]) -> Bounds:
    if not isinstance(argument, Ref):
        return Bounds(float(argument), float(argument))
    value = argument.value
    if value in found:
        return found[value]
    known = graph.known.get(value)
    if known is None or not known.numel() or known.is_complex():
        return ANY
    low, high = torch.aminmax(known)
    return Bounds(float(low), float(high))
