"""Which axes are positions, and where these become features: merged patches, pixels moved into channels."""

from __future__ import annotations

import math

import torch

from wellposed.graphs import Graph, Node
from wellposed.graphs.graph import once
from wellposed.operators.facts import facts_of
from wellposed.operators.indices import Axes, Axis, Dimension, is_made
from wellposed.operators.views import is_cut, is_view
from wellposed.structure.widths import axes_of

aten: torch._ops._OpNamespace = torch.ops.aten


@once
def positions(graph: Graph) -> dict[int, tuple[bool, ...]]:
    """Return for each value which of its axes are positions alone: indices that no weight makes."""
    return {value: tuple(not _features(axis) for axis in own) for value, own in axes_of(graph).items()}


@once
def merged_positions(graph: Graph) -> dict[int, int]:
    """Return, by node index, how many neighbouring positions become one position's features at the node."""
    axes = axes_of(graph)
    stacked = {
        atom.dimension.root()
        for node in graph.nodes
        if (dim := _stacked(graph, node, axes)) is not None
        for atom in axes[node.outputs[0]][dim]
    }
    merged = {node.index: _merged(graph, node, axes, stacked) for node in graph.nodes}
    return {index: count for index, count in merged.items() if count > 1}


def _merged(graph: Graph, node: Node, axes: dict[int, Axes], stacked: set[Dimension]) -> int:
    """Return the number of neighbouring positions that a concatenation or a view merges into one; 1 for none."""
    if facts_of(node.op).merges == "cat":
        return _slices(graph, node)
    if not is_view(node.op) or len(node.outputs) != 1:
        return 1
    made = axes[node.outputs[0]]
    if not any(axis and not _features(axis) for axis in made[1:]):
        return 1
    return _within_features(made, stacked) // _within_features(axes[node.inputs[0]], stacked)


def _stacked(graph: Graph, node: Node, axes: dict[int, Axes]) -> int | None:
    """Return the axis of a result along which parts of one feature lie (real and imaginary parts, a stack); None for
    other nodes, and for stacks of neighbouring positions, cut from one tensor with as many features as each cut.
    """
    if node.op is aten.view_as_real.default:
        return -1
    if facts_of(node.op).merges != "stack":
        return None
    parts = [ref.value for ref in node.args[0]]
    sources = {_cut_from(graph, part) for part in parts}
    whole = sources.pop() if len(sources) == 1 else None
    return None if whole is not None and _made(axes[whole]) == _made(axes[parts[0]]) else _dim(node)


def _made(axes: Axes) -> int:
    """Return the number of features in axes made by weights."""
    return math.prod(atom.size for axis in axes for atom in axis if is_made(atom.dimension))


def _dim(node: Node) -> int:
    return int(node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0))


def unviewed(graph: Graph, value: int) -> int:
    """Return the value behind views that keep all elements, in another order or under other axes."""
    while (index := graph.values[value].node) is not None:
        node = graph.nodes[index]
        before = node.inputs[0] if is_view(node.op) and len(node.outputs) == 1 else None
        if before is None or math.prod(graph.values[before].shape) != math.prod(graph.values[value].shape):
            break
        value = before
    return value


def _features(axis: Axis) -> bool:
    return any(is_made(atom.dimension) for atom in axis)


def _within_features(axes: Axes, stacked: set[Dimension]) -> int:
    """Return the number of positions that lie in one axis with features made by weights; parts in ``stacked`` do not
    count.

    Heads beside the samples, in the first axis, are no features there.
    """
    atoms = [atom for axis in axes[1:] if _features(axis) for atom in axis if not is_made(atom.dimension)]
    return math.prod(atom.size for atom in atoms if atom.dimension.root() not in stacked)


def _slices(graph: Graph, node: Node) -> int:
    """Return the number of different cuts of one tensor, along other axes, that a concatenation puts together."""
    parts = [ref.value for ref in node.args[0]]
    dim = _dim(node)
    sources = {_cut_from(graph, part) for part in parts}
    if len(sources) != 1 or None in sources or len(set(parts)) < len(parts):
        return 1
    (source,) = sources
    shape = graph.values[source].shape if source is not None else ()
    last = graph.values[parts[0]].shape
    alike = len(shape) == len(last) and shape[dim] == last[dim]
    return len(parts) if alike and any(n > 1 for i, n in enumerate(last) if i not in (0, dim % len(last))) else 1


def _cut_from(graph: Graph, value: int) -> int | None:
    """Return the tensor that a value is a slice of; None for other values."""
    at, cut = value, False
    while (index := graph.values[at].node) is not None and is_cut(graph.nodes[index].op):
        at, cut = graph.nodes[index].inputs[0], True
    return at if cut else None
