"""Elements in other places: views, slices, look-ups, writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from wellposed.errors import UnsupportedError
from wellposed.frontends.jax.dtypes import torch_dtype
from wellposed.frontends.jax.primitives.registry import Rule, rule


@rule("reshape")
def _reshape(x: Tensor, *, new_sizes: Sequence[int], **_params: Any) -> Tensor:
    return x.reshape(tuple(new_sizes))


@rule("squeeze")
def _squeeze(x: Tensor, *, dimensions: Sequence[int]) -> Tensor:
    return x.reshape([size for axis, size in enumerate(x.shape) if axis not in dimensions])


@rule("transpose")
def _transpose(x: Tensor, *, permutation: Sequence[int]) -> Tensor:
    return x.permute(tuple(permutation))


@rule("broadcast_in_dim")
def _broadcast(
    x: Tensor, *_sizes: Any, shape: Sequence[int], broadcast_dimensions: Sequence[int], **_params: Any
) -> Tensor:
    """Return x with its axes at ``broadcast_dimensions`` of ``shape``, the others repeated."""
    spread = [1] * len(shape)
    for axis, place in enumerate(broadcast_dimensions):
        spread[place] = x.shape[axis]
    spread_x = x if tuple(spread) == tuple(x.shape) else x.reshape(spread)
    return spread_x if tuple(spread) == tuple(shape) else spread_x.expand(tuple(shape))


@rule("slice")
def _slice(
    x: Tensor, *, start_indices: Sequence[int], limit_indices: Sequence[int], strides: Sequence[int] | None
) -> Tensor:
    """Return a part of x, its own axes in their order; axes that stay whole are not sliced."""
    steps = strides or [1] * x.ndim
    parts = [slice(*part) for part in zip(start_indices, limit_indices, steps, strict=True)]
    for axis, part in enumerate(parts):
        if part != slice(0, x.shape[axis], 1):
            x = x[(slice(None),) * axis + (part,)]
    return x


@rule("dynamic_slice")
def _dynamic_slice(x: Tensor, *starts: Tensor, slice_sizes: Sequence[int]) -> Tensor:
    for axis, (start, size) in enumerate(zip(starts, slice_sizes, strict=True)):
        if size != x.shape[axis]:
            x = x.narrow(axis, max(0, min(int(start), x.shape[axis] - size)), size)
    return x


@rule("dynamic_update_slice")
def _dynamic_update_slice(x: Tensor, update: Tensor, *starts: Tensor) -> Tensor:
    """Return x with ``update`` written at ``starts``, moved inwards where it would not fit."""
    written = x.clone()
    places = []
    for start, whole, size in zip(starts, x.shape, update.shape, strict=True):
        first = 0 if whole == size else max(0, min(int(start), whole - size))
        places.append(slice(first, first + size))
    written[tuple(places)] = update
    return written


@rule("concatenate")
def _concatenate(*parts: Tensor, dimension: int) -> Tensor:
    return torch.cat(parts, dimension)


@rule("stack")
def _stack(*parts: Tensor, axis: int) -> Tensor:
    return torch.stack(parts, axis)


@rule("unstack")
def _unstack(x: Tensor, *, axis: int) -> Sequence[Tensor]:
    return x.unbind(axis)


@rule("tile")
def _tile(x: Tensor, *, reps: Sequence[int]) -> Tensor:
    return x.repeat(tuple(reps))


@rule("split")
def _split(x: Tensor, *, sizes: Sequence[int], axis: int) -> Sequence[Tensor]:
    return torch.split(x, list(sizes), axis)


@rule("rev")
def _rev(x: Tensor, *, dimensions: Sequence[int]) -> Tensor:
    return x.flip(tuple(dimensions))


@rule("pad")
def _pad(x: Tensor, value: Tensor, *, padding_config: Sequence[tuple[int, int, int]]) -> Tensor:
    """Return x with a number between its elements and at its edges, or with edges cut off."""
    number = value.item()
    if isinstance(number, complex):
        if number.imag:
            raise UnsupportedError("padding by a number that is not real has no rule; give one (wj.rule('pad'))")
        number = number.real
    for axis, (_, _, interior) in enumerate(padding_config):
        if interior:
            apart = x.unsqueeze(axis + 1)
            apart = functional.pad(apart, _last_first([0] * (axis + 1) + [interior], apart.ndim), value=number)
            x = apart.flatten(axis, axis + 1).narrow(axis, 0, apart.shape[axis] * (interior + 1) - interior)
    edges: list[int] = []
    for low, high, _ in reversed(padding_config):
        edges += [low, high]
    return functional.pad(x, edges, value=number) if any(edges) else x


def _last_first(after: Sequence[int], rank: int) -> list[int]:
    """Return what `torch.nn.functional.pad` takes to add elements after each axis."""
    edges: list[int] = []
    for high in reversed([*after, *[0] * (rank - len(after))]):
        edges += [0, high]
    return edges


@rule("iota")
def _iota(*, dtype: Any, shape: Sequence[int], dimension: int, **_params: Any) -> Tensor:
    spread = [1] * len(shape)
    spread[dimension] = shape[dimension]
    return torch.arange(shape[dimension], dtype=torch_dtype(dtype)).reshape(spread).expand(tuple(shape))


# Places beyond the end count as the last one, where JAX takes NaN or drops what it writes.


@rule("gather")
def _gather(
    x: Tensor, indices: Tensor, *, dimension_numbers: Any, slice_sizes: Sequence[int], **_params: Any
) -> Tensor:
    """Return slices of x at ``indices``; rows along one axis by a look-up, others by positions."""
    numbers = dimension_numbers
    rank = indices.ndim - 1 + len(numbers.offset_dims)
    chosen = [axis for axis in numbers.start_index_map if slice_sizes[axis] < x.shape[axis]]  # others start at 0
    parts = [axis for axis, size in enumerate(slice_sizes) if size < x.shape[axis]]
    if len(chosen) == 1 and parts == chosen and slice_sizes[chosen[0]] == 1 and not numbers.operand_batching_dims:
        return _rows(x, indices, chosen[0], numbers, slice_sizes, rank)
    return x[_positions(x.shape, indices, numbers, tuple(numbers.offset_dims), tuple(slice_sizes), rank)]


def _rows(x: Tensor, indices: Tensor, axis: int, numbers: Any, slice_sizes: Sequence[int], rank: int) -> Tensor:
    """Return a gather of whole slices at places along one axis: a look-up."""
    place = tuple(numbers.start_index_map).index(axis)
    rows = indices.squeeze(-1) if indices.shape[-1] == 1 else indices.select(-1, place)
    rows = rows.clamp(0, x.shape[axis] - 1)
    table = x if axis == 0 else x.movedim(axis, 0)
    if x.ndim == 2:
        picked = functional.embedding(rows, table)
    else:
        picked = table.index_select(0, rows.flatten()).reshape([*rows.shape, *table.shape[1:]])
    window = [size for dim, size in enumerate(slice_sizes) if dim not in numbers.collapsed_slice_dims]
    if list(picked.shape) != [*rows.shape, *window]:
        picked = picked.reshape([*rows.shape, *window])
    offsets = list(numbers.offset_dims)
    batch = iter(range(rows.ndim))
    order = [rows.ndim + offsets.index(dim) if dim in offsets else next(batch) for dim in range(rank)]
    return picked if order == list(range(rank)) else picked.permute(order)


def _positions(
    shape: Sequence[int],
    indices: Tensor,
    numbers: Any,
    window_dims: tuple[int, ...],
    sizes: tuple[int, ...],
    rank: int,
) -> tuple[Tensor, ...]:
    """Return for each axis of an operand where the elements of slices lie: of a gather's result, a scatter's updates.

    Args:
        shape: the operand's.
        indices: where slices start; the last axis holds the axes that are indexed.
        numbers: the primitive's ``dimension_numbers``.
        window_dims: the axes of result or updates that run through a slice.
        sizes: of a slice, along every axis of the operand.
        rank: of result or updates.
    """
    gathers = hasattr(numbers, "start_index_map")
    mapped = tuple(numbers.start_index_map if gathers else numbers.scatter_dims_to_operand_dims)
    dropped = tuple(numbers.collapsed_slice_dims if gathers else numbers.inserted_window_dims)
    partners = tuple(numbers.start_indices_batching_dims if gathers else numbers.scatter_indices_batching_dims)
    batching = tuple(numbers.operand_batching_dims)
    batch_dims = [axis for axis in range(rank) if axis not in window_dims]

    def along(vector: Tensor, axes: Sequence[int]) -> Tensor:
        spread = [1] * rank
        for axis, size in zip(axes, vector.shape, strict=True):
            spread[axis] = size
        return vector.reshape(spread)

    windows = iter(window_dims)
    places: list[Tensor] = []
    for axis, size in enumerate(sizes):
        place = torch.zeros([1] * rank, dtype=torch.int64)
        if axis in mapped:
            start = indices[..., mapped.index(axis)].to(torch.int64).clamp(0, shape[axis] - size)
            place = place + along(start, batch_dims)
        if axis in batching:
            partner = partners[batching.index(axis)]
            place = place + along(torch.arange(shape[axis]), [batch_dims[partner]])
        elif axis not in dropped:
            place = place + along(torch.arange(size), [next(windows)])
        places.append(place)
    return tuple(places)


def _scatter(accumulates: bool = False, combine: tuple[Rule, str] | None = None) -> Rule:
    """Return a rule that writes updates to their places, adds them, or combines them with the elements there.

    Args:
        accumulates: adds.
        combine: how, of two tensors where no place is named twice, and what PyTorch calls the same where one may be.
    """

    def call(
        x: Tensor, indices: Tensor, updates: Tensor, *, dimension_numbers: Any, unique_indices: bool, **_params: Any
    ) -> Tensor:
        """Return x with updates written or combined at ``indices``."""
        numbers = dimension_numbers
        windows = iter(numbers.update_window_dims)
        dropped = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
        sizes = tuple(1 if axis in dropped else updates.shape[next(windows)] for axis in range(x.ndim))
        places = _positions(x.shape, indices, numbers, tuple(numbers.update_window_dims), sizes, updates.ndim)
        if combine is not None:
            of_two, of_many = combine
            if not unique_indices:
                return _reduced(x, places, updates, of_many)
            updates = of_two(x[places], updates)
        return x.index_put(tuple(torch.broadcast_tensors(*places)), updates, accumulate=accumulates)

    return call


def _reduced(x: Tensor, places: tuple[Tensor, ...], updates: Tensor, how: str) -> Tensor:
    """Return an operand with each element combined with all updates to its place."""
    at = torch.zeros((), dtype=torch.int64)
    for place, size in zip(places, x.shape, strict=True):
        at = at * size + place
    flat = x.flatten().scatter_reduce(0, at.expand(updates.shape).flatten(), updates.flatten(), how)
    return flat.reshape(x.shape)


_added = _scatter(accumulates=True)


def _subtracted(x: Tensor, indices: Tensor, updates: Tensor, **params: Any) -> Any:
    return _added(x, indices, -updates, **params)


rule("scatter")(_scatter())
rule("scatter-add")(_added)
rule("scatter-sub")(_subtracted)
rule("scatter-mul")(_scatter(combine=(torch.mul, "prod")))
rule("scatter-min")(_scatter(combine=(torch.minimum, "amin")))
rule("scatter-max")(_scatter(combine=(torch.maximum, "amax")))
