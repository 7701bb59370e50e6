"""What the tracer and the interpreter need to know of an operator, read off its schema once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

_LIBRARY = torch.library.Library("wellposed", "DEF")
_LIBRARY.define(
    "view_write(Tensor base, Tensor written, SymInt[] base_stride, SymInt[] stride, SymInt offset) -> Tensor",
    tags=[torch.Tag.pt2_compliant_tag],
)


def _view_write(
    base: torch.Tensor, written: torch.Tensor, base_stride: list[int], stride: list[int], offset: int
) -> torch.Tensor:
    """Return ``base`` with the elements that a view of it covers replaced by ``written``.

    ``stride`` and ``offset`` place the view in memory laid out with ``base_stride``, in elements of ``written``'s
    dtype; the result has ``base``'s shape and dtype.
    """
    buffer = torch.empty_strided(base.shape, base_stride, dtype=base.dtype, device=base.device)
    buffer.copy_(base)
    memory = buffer
    if written.dtype != base.dtype:
        extent = 1 + sum((size - 1) * step for size, step in zip(base.shape, base_stride, strict=True))
        memory = buffer.as_strided((extent,), (1,)).view(written.dtype)
    memory.as_strided(written.shape, stride, offset).copy_(written)
    return buffer


_LIBRARY.impl("view_write", _view_write, "CompositeImplicitAutograd")
VIEW_WRITE: torch._ops.OpOverload = torch.ops.wellposed.view_write.default


@dataclass(frozen=True, slots=True)
class Traits:
    """An operator's effects.

    Attributes:
        written: positions and names of the arguments that the operator writes to; ``(position, name)``, the position
            None for keyword-only ones.
        random: whether it draws random numbers.
        reads_values: whether its result's shape or type depends on the values of its arguments.
        shape_only: whether it may give its argument back as a view (reshape, contiguous, slice ...).
        factory: whether it takes the device of its result as a keyword.
        fills: whether it takes at most shape and dtype from its tensors (``zeros_like``, ``new_full`` ...).
        empty: whether it leaves its result uninitialised.
    """

    written: tuple[tuple[int | None, str], ...]
    random: bool
    reads_values: bool
    shape_only: bool
    factory: bool
    fills: bool
    empty: bool


_FILLS = frozenset(
    {"zeros_like", "ones_like", "empty_like", "full_like", "new_zeros", "new_ones", "new_empty", "new_full"}
)
UNINITIALISED = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})
"""Operators whose outputs are memory as it was found: no signal until something is written there."""


def uninitialised(op: str) -> bool:
    """Whether the overload of this name (``"empty.memory_format"``) returns uninitialised memory."""
    return op.partition(".")[0] in UNINITIALISED


@cache
def traits(op: torch._ops.OpOverload) -> Traits:
    """Return the effects of ``op``."""
    written: list[tuple[int | None, str]] = []
    for position, argument in enumerate(op._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written.append((None if argument.kwarg_only else position, argument.name))
    tags = op.tags
    name = op._schema.name.removeprefix("aten::")
    returns = op._schema.returns
    takes_device = any(argument.name == "device" for argument in op._schema.arguments)
    takes_tensor = any("Tensor" in str(argument.type) for argument in op._schema.arguments)
    return Traits(
        written=tuple(written),
        random=torch.Tag.nondeterministic_seeded in tags,
        reads_values=torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags,
        shape_only=not written and any(value.alias_info is not None for value in returns),
        factory=takes_device and (not takes_tensor or name in _FILLS or name.endswith("_like")),
        fills=name in _FILLS,
        empty=name in UNINITIALISED,
    )
