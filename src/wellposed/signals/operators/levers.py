"""From parameters to effective weights: which parameter scales a value linearly, through views, casts and factors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from wellposed.graphs import Graph, Node
from wellposed.signals.operators.product import argument_of, ref_of

aten = torch.ops.aten

RESHAPES = {
    aten.view.default,
    aten.reshape.default,
    aten.flatten.using_ints,
    aten.unflatten.int,
    aten._unsafe_view.default,
}
SAME_AXES = {
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
    first = ref_of(node.args[0]) if node.args else None
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
    if op in SAME_AXES:
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
        at = int(argument_of(node, 1, "dim", 0)) % len(shape)
        kept = lever.axes if op is aten.squeeze.dim and shape[at] != 1 else (*lever.axes[:at], *lever.axes[at + 1 :])
        return [Lever(lever.parameter, kept)] * len(shapes)
    if op is aten.expand.default:
        extra = len(shapes[0]) - len(shape)
        return [Lever(lever.parameter, ((None,) * extra) + lever.axes)]
    if op in RESHAPES:
        return [_aligned(lever, shape, shapes[0])]
    if op in (aten.index.Tensor, aten.gather.default, aten.cat.default, aten.stack.default):
        return [Lever(lever.parameter, (None,) * len(out)) for out in shapes]
    return nothing


def _is_constant(graph: Graph, argument: Any) -> bool:
    value = ref_of(argument)
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
