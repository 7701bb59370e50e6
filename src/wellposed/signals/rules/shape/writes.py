"""Writes: part of a tensor is replaced at places that are stretches of axes, masks or indices."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import torch

from wellposed.operators.writes import Box, Stretch, box_of
from wellposed.signals.algebra.elementwise_products import multiply
from wellposed.signals.algebra.mixtures import chosen, overwritten
from wellposed.signals.algebra.operands import as_state, filled
from wellposed.signals.algebra.sums import combine
from wellposed.signals.context.arguments import known_state
from wellposed.signals.context.call import Call, Unknown
from wellposed.signals.distributions.blocks import MOST_TIMES, concatenate, one_after_another
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.parts import select
from wellposed.signals.distributions.state import State
from wellposed.signals.distributions.views import expand, permute, reshape
from wellposed.signals.registry import overloads, rule
from wellposed.signals.rules.shape.forward import reordered
from wellposed.signals.rules.shape.index_sums import added
from wellposed.signals.rules.shape.picks import picked_along

MOST_BLOCKS = 8
"""Most parts of a written tensor that are kept apart; of more, positions differ by moments alone. Chosen for cost."""
MOST_PADDED = 4096
"""Most positions, of all samples, that are told apart where samples are padded by two indices. Chosen for cost."""
LONGEST_STEP = 64
"""Longest step of a stretch whose positions are told apart from those between them. Chosen for cost."""
overwriting = partial(rule, tag="approximate", family="shape", source="mixture of two signals", tensors=True)
"""Registers a rule of an operator that overwrites elements."""


@rule(
    overloads("slice_scatter.default", "select_scatter.default"),
    torch.ops.wellposed.view_write.default,
    tag="approximate",
    family="shape",
    source="definition: the parts of a tensor one after another",
    tensors=True,
)
def write(call: Call, x: Any, y: Any, *rest: Any, **kwargs: Any) -> State | None:
    """A box of a tensor is overwritten: what is before it, in it and behind it."""
    target, source = (as_state(call, value) for value in (x, y))
    box = box_of(call.graph, call.node)
    if box is None or box.longest_step > LONGEST_STEP:
        share = math.prod(source.shape) / max(math.prod(target.shape), 1)
        return overwritten(call, target, source, share)
    frequencies = call.graph.values[call.node.outputs[0]].dtype.is_complex
    source = permute(source, box.order) if source.axes else source
    parts = {} if frequencies or call.independent else _positions(call, target, source, box)
    axis = box.stretches[0].axis if parts else 0
    if parts and len(parts) == target.shape[axis] > 1:
        return concatenate([parts[at] for at in sorted(parts)], axis, apart=False, between=call.covariance)
    result = replaced(target, source, box, frequencies=frequencies)
    if parts:
        call.run.memo["positions", axis, result.serial] = parts
    return result


def _positions(call: Call, target: State, source: State, box: Box) -> dict[int, State]:
    """Return, by index, the states written so far to single positions of an axis (a loop over time), with this one.
    Takes the entry of the target out of the memo. Empty where a node writes anything else.
    """
    if len(box.stretches) != 1 or (at := box.stretches[0]).stop - at.start != 1 or target.shape[at.axis] > MOST_TIMES:
        return {}
    if at.dropped:
        source = reshape(source, (*source.shape[: at.axis], 1, *source.shape[at.axis :]))
    before = call.run.memo.pop(("positions", at.axis, target.serial), {})
    shape = (*target.shape[: at.axis], 1, *target.shape[at.axis + 1 :])
    return {**before, at.start: expand(source, shape)}


def replaced(target: State, source: State, box: Box, *, frequencies: bool = False) -> State:
    """Return a tensor with the elements of ``source`` in a box, whose axes are in order; for ``frequencies`` with
    moments by position.
    """
    stretches = box.stretches
    for stretch in stretches:
        if stretch.dropped:
            source = reshape(source, (*source.shape[: stretch.axis], 1, *source.shape[stretch.axis :]))
    return _replaced(target, source, stretches, apart=len(stretches) == 1, frequencies=frequencies)


def _replaced(target: State, source: State, stretches: tuple[Stretch, ...], *, apart: bool, frequencies: bool) -> State:
    """Return ``target`` with ``source`` in the box of these stretches. A few parts are kept ``apart`` as blocks, along
    one axis.
    """
    if not stretches:
        return expand(source, target.shape)
    axis, start, stop, step = stretches[0].axis, stretches[0].start, stretches[0].stop, stretches[0].step
    within = select(target, axis, start, stop, step, drop=False)
    inner = _replaced(within, source, stretches[1:], apart=apart, frequencies=frequencies)
    if step == 1:
        before, behind = (
            [select(target, axis, *ends, 1, drop=False)] if ends[0] < ends[1] else []
            for ends in ((0, start), (stop, target.shape[axis]))
        )
        parts = [*before, inner, *behind]
        if frequencies:
            return one_after_another(parts, axis)
        return concatenate(parts, axis, apart=apart and sum(len(part.blocks) or 1 for part in parts) <= MOST_BLOCKS)
    return _between_steps(target, inner, stretches[0])


def _between_steps(target: State, inner: State, stretch: Stretch) -> State:
    """Return ``target`` with ``inner`` at the positions of a stretch with steps."""
    axis, start, stop, step = stretch.axis, stretch.start, stretch.stop, stretch.step
    size = target.shape[axis]
    others = [range(first, size, step) for first in range(step) if first != start % step and first < size]
    ends = [range(first, min(first + step, size), step) for first in range(start % step, size, step)]
    others += [end for end in ends if end.start < start or end.start >= stop]
    parts = [inner, *(select(target, axis, at.start, at.stop, step, drop=False) for at in others)]
    whole = concatenate(parts, axis, apart=False)
    return reordered(whole, axis, np.argsort(np.concatenate([np.arange(start, stop, step), *others])))


@rule(overloads("copy_.default"), family="shape", source="definition", tensors=True)
def copy(call: Call, x: Any, y: Any, *rest: Any) -> State:
    """All of a tensor is overwritten."""
    return expand(filled(call, y), call.shape())


@overwriting(overloads("masked_fill.Tensor", "masked_scatter.default"))
def write_by_mask(call: Call, x: Any, mask: Any, y: Any) -> State:
    """The elements where a mask holds are overwritten."""
    target, source = (filled(call, value) for value in (x, y))
    by_condition = _where(call, mask, source, target)
    return overwritten(call, target, source, _share_of(mask)) if by_condition is None else by_condition


def _where(call: Call, mask: Any, source: State, target: State) -> State | None:
    """Return elements like those of ``source`` where a condition on signals holds; None for another mask."""
    shape = call.shape()
    if not isinstance(mask, Unknown) or mask.state is None or len(mask.shape) > len(shape):
        return None
    whole = make_state(shape, source.pooled_mean, source.pooled_var, roots=source.roots, tag=source.tag)
    return chosen(call, expand(mask.state, shape), whole, expand(target, shape))


def _share_of(mask: Any) -> float:
    """Share of a mask that holds; a half where its values are not known."""
    return float(mask.double().mean()) if isinstance(mask, torch.Tensor) and mask.numel() else 0.5


@overwriting(overloads("index_put_.default", "index_put.default"), pairs=True)
def index_put(call: Call, x: Any, indices: Any, y: Any, accumulate: bool = False) -> State | None:
    """Elements at some indices are overwritten."""
    target, source = (filled(call, value) for value in (x, y))
    if accumulate:
        axes = [axis for axis, item in enumerate(indices) if item is not None]
        index = indices[axes[0]] if len(axes) == 1 else None
        if index is None or index.dtype == torch.bool or len(index.shape) != 1:
            return None
        shape = (*target.shape[: axes[0]], index.shape[0], *target.shape[axes[0] + 1 :])
        return added(call, target, expand(source, shape), axes[0], index, "sum")
    by_position = _along_an_axis(call, target, indices, source)
    if by_position is not None:
        return by_position
    if len(indices) == 1 and tuple(indices[0].shape) == target.shape:
        by_condition = _where(call, indices[0], source, target)
        if by_condition is not None:
            return by_condition
    return overwritten(call, target, source, _indexed(indices, target.shape) / max(math.prod(target.shape), 1))


def _along_an_axis(call: Call, target: State, indices: Any, source: State) -> State | None:
    """Return a tensor overwritten by rows at known places of one axis, or of neighbouring axes with an index each
    (samples of unequal length, padded), with moments by position; None for other writes.
    """
    axes = [axis for axis, item in enumerate(indices) if item is not None]
    items = [indices[axis] for axis in axes]
    known = all(isinstance(item, torch.Tensor) and item.ndim == 1 for item in items)
    if call.independent or not known or not _are_neighbours(axes):
        return None
    sizes = target.shape[axes[0] : axes[-1] + 1]
    places, size = _flat(items, sizes), math.prod(sizes)
    most = MOST_BLOCKS * MOST_BLOCKS if len(axes) == 1 else MOST_PADDED
    if places is None or not 0 < len(places) == len(places.unique()) or size > most:
        return None
    written = torch.zeros(size, dtype=torch.float64).index_fill(0, places, 1.0)
    extent = [n if a in axes else 1 for a, n in enumerate(target.shape)]
    whole = reshape(_laid_out(target, source, places, axes), target.shape)
    inside = multiply(call, whole, _mask_of(call, written, extent))
    outside = multiply(call, target, _mask_of(call, 1.0 - written, extent))
    return combine(call, inside, outside, 1.0, 1.0)


def _are_neighbours(axes: list[int]) -> bool:
    """Whether axes are consecutive, and there is one at least."""
    return bool(axes) and axes[-1] - axes[0] == len(axes) - 1


def _laid_out(target: State, source: State, places: torch.Tensor, axes: list[int]) -> State:
    """Return rows of ``source`` at ``places`` of the flattened ``axes`` of the target, and row 0 at other places."""
    first, after = axes[0], target.shape[axes[-1] + 1 :]
    size = math.prod(target.shape[axes[0] : axes[-1] + 1])
    shape = (*target.shape[:first], size, *after)
    rows = expand(source, (*target.shape[:first], len(places), *after))
    which = torch.zeros(size, dtype=torch.long)
    which[places] = torch.arange(len(places))
    return picked_along(rows, first, (size,), shape, which, once=True) if rows.axes[first] else expand(rows, shape)


def _flat(items: list[torch.Tensor], sizes: tuple[int, ...]) -> torch.Tensor | None:
    """Return places in the flattened axes of ``sizes`` from an index of each axis; None for a mask among several."""
    if any(item.dtype == torch.bool for item in items):
        return items[0].nonzero().flatten() if len(items) == 1 else None
    places = torch.zeros((), dtype=torch.long)
    for item, size in zip(items, sizes, strict=True):
        places = places * size + item % size
    return places


def _mask_of(call: Call, written: torch.Tensor, extent: list[int]) -> State:
    return known_state(written.reshape(extent), call.root())


def _indexed(indices: Any, shape: tuple[int, ...]) -> float:
    """Return the number of elements that indices pick."""
    count = float(math.prod(shape))
    picked = [(axis, item) for axis, item in enumerate(indices) if item is not None]
    for axis, item in picked:
        sizes = shape[axis : axis + len(item.shape)] if item.dtype == torch.bool else (shape[axis],)
        count /= math.prod(sizes)
    masks = [_share_of(item) * math.prod(item.shape) for _, item in picked if item.dtype == torch.bool]
    places = [math.prod(item.shape) for _, item in picked if item.dtype != torch.bool]
    return count * max([*masks, *places], default=1)


@overwriting(overloads("scatter.src", "scatter_.src", "scatter.value", "scatter_.value"))
def scatter(call: Call, x: Any, dim: int, index: Any, y: Any) -> State:
    """Elements at some indices of an axis are overwritten."""
    target, source = (filled(call, value) for value in (x, y))
    if source.is_constant and source.pooled_mean == -math.inf:  # the others are what a softmax sees
        return target
    count = math.prod(index.shape)
    if isinstance(index, torch.Tensor):
        count = int(torch.zeros(target.shape).scatter_(dim, index, 1.0).sum())
    return overwritten(call, target, source, count / max(math.prod(target.shape), 1))


@overwriting(
    overloads("index_fill.int_Scalar", "index_fill_.int_Scalar", "index_copy.default", "index_copy_.default"),
    pairs=True,
)
def write_rows(call: Call, x: Any, dim: int, index: Any, y: Any) -> State:
    """Whole rows at some indices of an axis are overwritten."""
    target, source = (filled(call, value) for value in (x, y))
    if not isinstance(index, torch.Tensor):
        return overwritten(call, target, source, math.prod(index.shape) / max(target.shape[dim], 1))
    axis, size = dim % len(target.axes), target.shape[dim]
    if len(index.unique()) < index.numel():
        return overwritten(call, target, source, len(index.unique()) / max(size, 1))
    shape = (*target.shape[:axis], index.numel(), *target.shape[axis + 1 :])
    rows = make_state(shape, source.pooled_mean, 0.0) if source.is_constant else expand(source, shape)
    written = torch.zeros(size, dtype=torch.float64).index_fill(0, index, 1.0)
    left = (1.0 - written).reshape([size if a == axis else 1 for a in range(len(target.axes))])
    kept = multiply(call, target, known_state(left, call.root()))
    return added(call, kept, rows, axis, index, "sum")
