"""What the tracer and the interpreter need to know of an operator, read off its schema once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from wellposed.errors import OptionError, near_matches

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
"""Operators whose outputs are uninitialised memory: no signal until something is written there."""
RUNNING = frozenset({
    torch.ops.aten.batch_norm.default, torch.ops.aten.instance_norm.default, torch.ops.aten.native_batch_norm.default,
    torch.ops.aten.cudnn_batch_norm.default, torch.ops.aten.miopen_batch_norm.default,
})  # fmt: skip
"""Operators that write to their running statistics without saying so in their schema."""


def uninitialised(op: str) -> bool:
    """Whether the overload of this name (``"empty.memory_format"``) returns uninitialised memory."""
    return op.partition(".")[0] in UNINITIALISED


@cache
def without_out(op: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """Return the overload that makes the tensor which ``op`` writes to its argument ``out``; None where it has none."""
    arguments = [a for a in op._schema.arguments if not a.is_out]
    if len(op._schema.arguments) != len(arguments) + 1 or op._schema.arguments[-1].name != "out":
        return None
    wanted = [(a.name, str(a.type)) for a in arguments]
    packet = op.overloadpacket
    for name in packet.overloads():
        other: torch._ops.OpOverload = getattr(packet, name)
        if [(a.name, str(a.type)) for a in other._schema.arguments] == wanted:
            return other
    return None


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


_ALIASES = {
    "absolute": "abs", "adjoint": "mH", "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh",
    "arctan": "atan", "arctan2": "atan2", "arctanh": "atanh", "clip": "clamp", "concat": "cat", "concatenate": "cat",
    "divide": "div", "fix": "trunc", "ger": "outer", "greater": "gt", "greater_equal": "ge", "less": "lt",
    "less_equal": "le", "linalg_matmul": "matmul", "moveaxis": "movedim", "multiply": "mul", "negative": "neg",
    "not_equal": "ne", "row_stack": "vstack", "special_digamma": "digamma", "special_erf": "erf",
    "special_erfc": "erfc", "special_erfinv": "erfinv", "special_exp2": "exp2", "special_expit": "sigmoid",
    "special_expm1": "expm1", "special_gammaln": "lgamma", "special_log1p": "log1p", "special_logit": "logit",
    "special_logsumexp": "logsumexp", "special_psi": "digamma", "special_sinc": "sinc", "subtract": "sub",
    "swapaxes": "transpose", "swapdims": "transpose", "true_divide": "div", "__and__": "bitwise_and",
    "__or__": "bitwise_or", "__xor__": "bitwise_xor",
}  # fmt: skip
"""Second names of operators that the dispatcher shows whole."""
_RENAMED = {
    "max.other": "maximum.default",
    "min.other": "minimum.default",
    "special_log_softmax.default": "log_softmax.int",
    "special_round.default": "round.decimals",
    "special_softmax.default": "softmax.int",
    "swapaxes.default": "transpose.int",
    "swapdims.default": "transpose.int",
}
"""The same, where the overloads have other names."""


def _overload(name: str, overload: str) -> torch._ops.OpOverload | None:
    return getattr(getattr(torch.ops.aten, name, None), overload, None)


def _aliases() -> Iterator[tuple[torch._ops.OpOverload, torch._ops.OpOverload]]:
    """Yield each overload that goes by a second name, with the one that it is recorded under."""
    for pair in _RENAMED.items():
        alias, first = (_overload(*name.split(".")) for name in pair)
        if alias is not None and first is not None:
            yield alias, first
    for alias_name, name in _ALIASES.items():
        for suffix in ("", "_"):
            packet = getattr(torch.ops.aten, alias_name + suffix, None)
            for overload in [] if packet is None else packet.overloads():
                alias, first = (_overload(n + suffix, overload) for n in (alias_name, name))
                if alias is not None and first is not None and "out" not in overload:
                    yield alias, first


ALIASES: Mapping[torch._ops.OpOverload, torch._ops.OpOverload] = dict(_aliases())
"""By overload: the one under whose name it is run and recorded. Both take the same arguments by position."""


_CONVOLUTIONS = {
    (rank, transposed): getattr(
        getattr(torch.ops.aten, f"conv{'_transpose' * transposed}{rank}d"),
        "input" if transposed and rank > 1 else "default",
    )
    for rank in (1, 2, 3)
    for transposed in (False, True)
}
_PARTS = {
    torch.ops.aten._adaptive_avg_pool2d.default: torch.ops.aten.adaptive_avg_pool2d.default,
    torch.ops.aten._adaptive_avg_pool3d.default: torch.ops.aten.adaptive_avg_pool3d.default,
    torch.ops.aten._log_softmax.default: torch.ops.aten.log_softmax.int,
}


def whole(op: torch._ops.OpOverload, args: tuple[Any, ...]) -> tuple[torch._ops.OpOverload, tuple[Any, ...]]:
    """Return the operator that a model called, and its arguments, for one that autograd has put in its place.

    A forward that differentiates is seen below autograd, where operators made of others arrive in parts.
    """
    if op is torch.ops.aten.convolution.default:
        x, weight, bias, stride, padding, dilation, transposed, extra, groups = args
        last = (extra, groups, dilation) if transposed else (dilation, groups)
        return _CONVOLUTIONS[weight.ndim - 2, bool(transposed)], (x, weight, bias, stride, padding, *last)
    return (_PARTS[op], args[:2]) if op in _PARTS else (op, args)


@cache
def _lists_of_axes(op: torch._ops.OpOverload) -> tuple[int, ...]:
    """Return the positions of the arguments of ``op`` that list axes of its first one."""
    return tuple(
        position
        for position, argument in enumerate(op._schema.arguments)
        if argument.name in ("dim", "dims") and "List[int]" in str(argument.type)
    )


def without_axes(op: torch._ops.OpOverload, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments of an operator, of one on a scalar with no axes where it names some.

    PyTorch takes 0 and -1 for axes of a tensor that has none; no axis and all axes are the same there.
    """
    if not args or not isinstance(args[0], torch.Tensor) or args[0].ndim:
        return args
    emptied = [position for position in _lists_of_axes(op) if position < len(args) and args[position]]
    return tuple([[] if position in emptied else arg for position, arg in enumerate(args)]) if emptied else args


def overloads(*names: str, optional: bool = False) -> list[torch._ops.OpOverload]:
    """Return ``torch.ops.aten`` overloads by name ("relu.default").

    Args:
        names: operator and overload, separated by a dot; the overload is ``default`` where it is left out.
        optional: leave out those that this version of torch does not have, in place of raising.

    Raises:
        OptionError: there is no such overload.
    """
    ops = []
    for name in names:
        packet, _, overload = name.partition(".")
        known = getattr(torch.ops.aten, packet, None)
        op = getattr(known, overload or "default", None)
        if isinstance(op, torch._ops.OpOverload):
            ops.append(op)
        elif not optional:
            near = near_matches(overload, known.overloads()) if known is not None else ""
            raise OptionError(f"torch.ops.aten has no overload {name!r}{near}")
    return ops


INTEGERS = frozenset({torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool})
"""Types of whole numbers."""
PRODUCTS = frozenset(overloads("linear", "matmul", "mm", "bmm", "mv", "addmm", "baddbmm"))
"""Products that meta tensors pass through whatever their types, and real ones do not."""


def _autocast() -> bool:
    return any(torch.is_autocast_enabled(device) for device in ("cpu", "cuda"))


def require_numbers(op: torch._ops.OpOverload, operands: Sequence[torch.Tensor]) -> None:
    """Raise `RuntimeError`, as torch does, where a product is given numbers of several types.

    Under autocast, which leaves meta tensors alone, other floats than those of the weights are brought to one type.
    """
    kinds = {tensor.dtype in INTEGERS if _autocast() else tensor.dtype for tensor in operands}
    if len(kinds) > 1:
        given = ", ".join(f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in operands)
        raise RuntimeError(f"{op.overloadpacket.__name__} takes operands of one dtype, not {given}")
