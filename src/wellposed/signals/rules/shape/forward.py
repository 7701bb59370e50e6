"""Views, copies and casts: the same elements in another order."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from wellposed.operators.steps import Cut, Expand, Permute, Regroup, Steps
from wellposed.operators.views import view_of, views
from wellposed.signals.algebra import operands
from wellposed.signals.algebra.cuts import cut
from wellposed.signals.algebra.linear_maps import from_sources, mapped, picked_links
from wellposed.signals.algebra.masked_scores import masked
from wellposed.signals.algebra.operands import as_state
from wellposed.signals.algebra.skewed_views import followed
from wellposed.signals.algebra.statistics import remember_parts
from wellposed.signals.context.arguments import known_state
from wellposed.signals.context.call import Call, Unknown
from wellposed.signals.distributions.blocks import MOST_PARTS, concatenate
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.state import State
from wellposed.signals.distributions.views import merge_atoms, permute, pooled, reshape
from wellposed.signals.integration import kernels
from wellposed.signals.integration.windows import Indices
from wellposed.signals.registry import overloads, rule
from wellposed.structure.patches import merged_positions

_SPECIAL = overloads("unfold.default")
"""Views in some cases alone, with rules of their own."""


@rule(
    [op for op in views() if op not in _SPECIAL],
    source="definition; AutoInit, Appendix A (crop, split)",
    tensors=True,
    pairs=True,
    additive=True,
)
def viewed(call: Call, x: Any, *rest: Any, **kwargs: Any) -> State | tuple[State, ...] | None:
    """The same elements under other indices, as the table of views has it."""
    steps = view_of(call.graph, call.node)
    if isinstance(x, torch.Tensor):
        x = known_state(x.to(torch.float64), call.root())
    elif isinstance(x, Unknown):
        x = x.state
    if steps is None or not isinstance(x, State):
        return None
    if len(steps) == 1:
        return _merged(call, seen_through(call, x, steps[0]))
    return tuple([through(call, x, chain) for chain in steps])


def seen_through(call: Call, x: State, steps: Steps) -> State:
    """Return the state after a view. Once axes have ended inside others, a slice is taken from the tensor with which
    the chain of views began.
    """
    chain = followed(call, x, steps)
    part = chain.result() if chain.crossed and any(isinstance(step, Cut) for step in steps) else None
    return part or through(call, x, steps, chain.result)


def _merged(call: Call, x: State) -> State:
    """Return x with the finite-width correlation that is left where features of several positions become the features
    of one.
    """
    count = merged_positions(call.graph).get(call.node.index, 1)
    return (
        x.amended(finite_width_correlation=x.finite_width_correlation.times(count**-0.5))
        if count > 1 and x.finite_width_correlation.amounts.size
        else x
    )


def through(call: Call, x: State, steps: Steps, across: Callable[[], State | None] | None = None) -> State:
    """Return the state after a chain of views; ``across`` gives it where axes end inside others."""
    for step in steps:
        if isinstance(step, Regroup):
            x = _regrouped(call, x, step, across if step is steps[-1] else None)
        elif isinstance(step, Permute):
            x = permute(x, step.order)
        elif isinstance(step, Expand):
            x = operands.broadcast(call, x, step.shape)
        elif isinstance(step, Cut):
            x = cut(call, x, step)
        else:
            x = reordered(x, step.axis, step.source)
    return x


def _regrouped(call: Call, x: State, step: Regroup, across: Callable[[], State | None] | None) -> State:
    """Return a tensor under other axes: asked for twice, it is one tensor."""
    key = (step, x.serial, x.axes, x.scale_parameter, x.tag)
    made = call.run.alive.get(key)
    if made is None:
        made = reshape(x, step.shape, across)
        if made.serial != x.serial and not (x.blocks or (x.masked and x.masked.scores)):
            call.run.alive[key] = made
    return made


@rule(overloads("broadcast_tensors.default"), source="definition", tensors=True, pairs=True)
def broadcast(call: Call, tensors: Any) -> tuple[State, ...]:
    """Every tensor expanded to their common shape."""
    return tuple(operands.broadcast(call, as_state(call, t), call.shape(i)) for i, t in enumerate(tensors))


@rule(
    overloads("cat.default"),
    additive=True,
    source="definition; AutoInit, Appendix A (concatenate)",
    tensors=True,
    pairs=True,
)
def cat(call: Call, tensors: Any, dim: int = 0) -> State:
    """Tensors one after another."""
    parts = [as_state(call, t) for t in tensors]
    rank = len(call.shape())
    parts = [p for p in parts if len(p.axes) == rank and p.shape[dim] > 0]
    whole = _merged(call, concatenate(parts, dim, between=call.covariance if len(parts) > MOST_PARTS else None))
    inside = [p if p.masked is None or p.masked.scores is None else p.masked.scores for p in parts]
    if all(map(operator.is_, inside, parts)):
        return remember_parts(call, whole)
    # scores that are shut out of a softmax stay so beside others
    masks = [torch.ones((), dtype=torch.bool) if p.masked is None else p.masked.mask for p in parts]
    mask = torch.cat([m.expand(p.shape) for m, p in zip(masks, parts, strict=True)], dim)
    scores = concatenate(inside, dim, apart=False)
    return masked(scores, mask, whole.pooled_mean - scores.pooled_mean, max(whole.pooled_var - scores.pooled_var, 0.0))


@rule(overloads("stack.default"), source="definition", tensors=True, pairs=True)
def stack(call: Call, tensors: Any, dim: int = 0) -> State:
    """Tensors along a new axis."""
    rank = len(call.shape())
    at = dim % rank
    parts = []
    for tensor in tensors:
        state = as_state(call, tensor)
        parts.append(reshape(state, (*state.shape[:at], 1, *state.shape[at:])))
    return concatenate(parts, at, between=call.covariance if len(parts) > MOST_PARTS else None)


def reordered(x: State, axis: int, source: Indices) -> State:
    """Return the state whose position p along an axis is position ``source[p]`` of x."""
    if (in_blocks := _reordered_blocks(x, axis, source)) is not None:
        return in_blocks
    x = merge_atoms(x, axis) if len(x.axes[axis]) > 1 else pooled(x)
    if not x.axes[axis]:
        return x
    i = x.axes[axis][0]
    corr = x.corr
    if kernels.positions(corr.shape[i]):
        return mapped(x, axis, np.eye(x.lengths[i])[source], pairs=True)
    if corr.shape[i] > 2 and (np.abs(np.diff(source)) != 1).any():
        corr = from_sources(corr, i, source)
    mean, var = (np.take(m, source, axis=i) if m.shape[i] > 1 else m for m in (x.mean, x.var))
    return x.changed(mean=mean, var=var, corr=corr, function=None, links=picked_links(x, i, source))


def _reordered_blocks(x: State, axis: int, source: Indices) -> State | None:
    """Return `reordered` of a concatenation block by block; None for other states, and where blocks are cut apart."""
    if x.blocks and axis != x.blocks.axis:
        return concatenate([reordered(part, axis, source) for part in x.blocks], x.blocks.axis)
    if x.blocks and len(x.blocks) == x.shape[axis] and len(source) <= MOST_PARTS and source.min() >= 0:
        return concatenate([x.blocks[at] for at in source], axis)
    return None


@rule(overloads("channel_shuffle.default"), source="definition: channels are alike", tensors=True)
def shuffle(call: Call, x: State, groups: int) -> State:
    """Channels in another order."""
    return x


def _blank(call: Call, *rest: Any, **kwargs: Any) -> State:
    """A tensor whose content does not depend on the input."""
    name = call.node.op._schema.name.removeprefix("aten::")
    value = 1.0 if "ones" in name else 0.0
    if "full" in name or name == "fill_":
        numbers = [r for r in rest if isinstance(r, (int, float))]
        value = float(numbers[-1]) if numbers else 0.0
        value = value if np.isfinite(value) else 0.0
    return make_state(call.shape(), value, 0.0)


rule(
    overloads(
        "zeros_like.default", "ones_like.default", "empty_like.default", "new_zeros.default", "new_ones.default",
        "new_empty.default", "zeros.default", "ones.default", "empty.memory_format", "new_full.default",
        "full_like.default", "full.default", "zero_.default", "fill_.Scalar", "scalar_tensor.default",
        "_efficientzerotensor.default",
    ),
    family="shape",
    source="definition", tensors=True
)(_blank)  # fmt: skip
