"""How the tracer runs one operator: on meta tensors, and on real twins where the values are known."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import torch

from wellposed.graphs.aliasing import Record, memory
from wellposed.graphs.operators import Traits
from wellposed.graphs.shapes import quick_result

_aten = torch.ops.aten
_META = torch.device("meta")
_CPU = torch.device("cpu")
_RANDOM_LIMIT = 2**16
"""Random draws of at most this many elements are made for real too, so that a branch on one can be taken."""
_FACTORY_LIMIT = 2**26
"""Constants of more elements than this are not made for real."""
_REHEARSAL_LIMIT = 2**26
"""An operator without a meta kernel is rehearsed on zeros of at most this many elements."""
_NORMS = frozenset({_aten.batch_norm.default, _aten.instance_norm.default})
"""Operators that write to their running statistics without saying so in their schema."""
_MASKED = frozenset({_aten.index.Tensor, _aten.masked_select.default})
"""Operators whose result's shape depends on values only where boolean masks are among their arguments."""
_MASKS = (torch.bool, torch.uint8)

Seen: TypeAlias = list[tuple[torch.Tensor, Record]]


class NeedsValuesError(RuntimeError):
    """An operator reads float values that the meta engine does not have."""


def meta_like(tensor: torch.Tensor) -> torch.Tensor:
    """Return an uninitialised meta tensor with the shape, strides and dtype of ``tensor``.

    It is an inference tensor exactly if ``tensor`` is one: PyTorch makes views of the two in different ways. Raises
    `NeedsValuesError` for sparse tensors.
    """
    if tensor.layout is not torch.strided:
        raise NeedsValuesError(f"a sparse tensor ({tensor.layout}) cannot be put on meta")
    with torch.inference_mode(tensor.is_inference()):
        return torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device=_META)


class Execution:
    """Runs operators for the recorder."""

    def __init__(self, meta: bool) -> None:
        self.meta = meta

    def run(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], seen: Seen, effects: Traits
    ) -> tuple[Any, Any, bool]:
        """Run ``func`` once.

        Returns the result for the model, the real results (None where unknown), and whether they are known. Raises
        `NeedsValuesError` when the operator must read values that are not known.
        """
        known = effects.fills or (all(record.base.known for _, record in seen) and func not in _NORMS)
        if known and effects.random:
            known = _elements(args, seen) <= _RANDOM_LIMIT
        if not self.meta:
            result = func(*args, **kwargs)
            return result, result if known else None, known
        if not known:
            if effects.reads_values and func not in _MASKED:
                raise NeedsValuesError(f"{func} reads values that depend on the model's parameters or float inputs")
            if func in _MASKED and any(tensor.dtype in _MASKS for tensor, _ in seen):
                return self._run_masked(func, args, kwargs, seen), None, False
            if func is _aten._pack_padded_sequence.default:
                data, sizes = self._run_masked(func, args, kwargs, seen)
                return (data, sizes), (None, sizes), False
            return self._run_meta(func, args, kwargs, seen, effects), None, False
        if effects.fills or not seen:
            planned = self._run_meta(func, args, kwargs, seen, effects)
            if isinstance(planned, torch.Tensor) and planned.numel() > _FACTORY_LIMIT:
                return planned, None, False
        reals = func(*[_real(arg, seen) for arg in args], **_real_kwargs(effects, kwargs, seen))
        if effects.empty:
            reals.zero_()
        return self._mirror(func, args, kwargs, seen, effects, reals), reals, True

    def _run_masked(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], seen: Seen) -> Any:
        """Run an operator whose result's shape depends on masks and lengths alone, which are known."""
        if not all(record.base.known for tensor, record in seen if not tensor.is_floating_point()):
            raise NeedsValuesError(f"{func} reads values that depend on the model's parameters or float inputs")
        result = _rehearse(func, args, kwargs, seen)
        if result is None:
            raise NeedsValuesError(f"{func} reads values and is too large to be rehearsed on zeros")
        return result

    def _run_meta(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], seen: Seen, effects: Traits) -> Any:
        """Run ``func`` on the meta tensors of its arguments."""
        meta_args = [_meta(arg, seen) for arg in args]
        meta_kwargs = {key: _meta(arg, seen) for key, arg in kwargs.items() if key != "generator"}
        if meta_kwargs.get("pin_memory"):
            meta_kwargs["pin_memory"] = False
        if effects.factory:
            meta_kwargs["device"] = _META
        quick = quick_result(func, meta_args, meta_kwargs)
        if quick is not None:
            return quick
        try:
            return func(*meta_args, **meta_kwargs)
        except (RuntimeError, NotImplementedError) as error:
            if effects.written:
                raise
            result = _in_bfloat16(func, meta_args, meta_kwargs)
            if result is None:
                result = _rehearse(func, args, kwargs, seen)
            if result is None:
                raise error
            return result

    def _mirror(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], seen: Seen, effects: Traits, reals: Any
    ) -> Any:
        """Return for real results the meta results that share memory with the arguments in the same way."""
        if not isinstance(reals, (torch.Tensor, list, tuple)):
            return reals
        storages = {memory(r.real) for _, r in seen if r.real is not None}
        outputs = [reals] if isinstance(reals, torch.Tensor) else list(reals)
        mirrored: list[Any] = []
        for real in outputs:
            if not isinstance(real, torch.Tensor):
                mirrored.append(real)
                continue
            same = next((record.tensor for _, record in seen if record.real is real), None)
            if same is not None:
                mirrored.append(same)
            elif memory(real) in storages:
                return self._run_meta(func, args, kwargs, seen, effects)
            else:
                mirrored.append(torch.empty_strided(tuple(real.shape), real.stride(), dtype=real.dtype, device=_META))
        return mirrored[0] if isinstance(reals, torch.Tensor) else type(reals)(mirrored)


def _record_of(tensor: torch.Tensor, seen: Seen) -> Record:
    return next(record for other, record in seen if other is tensor)


def _meta(arg: Any, seen: Seen) -> Any:
    """Return ``arg`` with every tensor and device replaced by its meta twin."""
    if isinstance(arg, torch.Tensor):
        return _record_of(arg, seen).tensor
    if type(arg) in (list, tuple):
        return type(arg)([_meta(item, seen) for item in arg])
    return _META if isinstance(arg, torch.device) else arg


def _real(arg: Any, seen: Seen) -> Any:
    """Return ``arg`` with every tensor replaced by its real twin (by itself where only its shape counts)."""
    if isinstance(arg, torch.Tensor):
        record = _record_of(arg, seen)
        return record.real if record.base.known else record.tensor
    if type(arg) in (list, tuple):
        return type(arg)([_real(item, seen) for item in arg])
    return _CPU if isinstance(arg, torch.device) else arg


def _real_kwargs(effects: Traits, kwargs: dict[str, Any], seen: Seen) -> dict[str, Any]:
    real = {key: _real(arg, seen) for key, arg in kwargs.items()}
    if effects.factory:
        real["device"] = _CPU
    if isinstance(real.get("generator"), torch.Generator):
        real["generator"] = real["generator"].clone_state()
    if real.get("pin_memory"):
        real["pin_memory"] = False
    return real


def _elements(args: tuple[Any, ...], seen: Seen) -> int:
    """Return how many elements a random operator draws at most."""
    if seen:
        return max(tensor.numel() for tensor, _ in seen)
    size = args[0] if args else 0
    return math.prod(size) if isinstance(size, (list, tuple)) else int(size)


def _in_bfloat16(func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Run a meta kernel that is stricter than the real ones in bfloat16; None where that fails too."""
    found: set[torch.dtype] = set()

    def cast(arg: Any) -> Any:
        if isinstance(arg, torch.Tensor) and arg.is_floating_point():
            found.add(arg.dtype)
            return arg.to(torch.bfloat16)
        return type(arg)([cast(item) for item in arg]) if type(arg) in (list, tuple) else arg

    try:
        result = func(*[cast(arg) for arg in args], **{key: cast(arg) for key, arg in kwargs.items()})
    except (RuntimeError, NotImplementedError):
        return None
    if len(found) != 1:
        return None
    (dtype,) = found
    if isinstance(result, torch.Tensor):
        return result.to(dtype) if result.dtype == torch.bfloat16 else result
    return type(result)(
        [t.to(dtype) if isinstance(t, torch.Tensor) and t.dtype == torch.bfloat16 else t for t in result]
    )


def _rehearse(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], seen: Seen) -> Any:
    """Run an operator without a meta kernel on CPU, for the shapes of its result; None where that fails too.

    Unknown values are taken as zeros, and then as ones: an operator whose shapes differ between the two reads values,
    which is an error. Of ``_pack_padded_sequence`` the lengths stay real tensors, as PyTorch requires.
    """
    if sum(tensor.numel() for tensor, _ in seen) > _REHEARSAL_LIMIT:
        return None

    def stand_in(arg: Any, fill: int) -> Any:
        if isinstance(arg, torch.Tensor):
            record = _record_of(arg, seen)
            if record.base.known and record.real is not None:
                return record.real.clone()
            return torch.full(record.tensor.shape, fill, dtype=record.tensor.dtype)
        if type(arg) in (list, tuple):
            return type(arg)([stand_in(item, fill) for item in arg])
        return _CPU if isinstance(arg, torch.device) else arg

    def attempt(fill: int) -> Any:
        try:
            return func(*[stand_in(arg, fill) for arg in args], **{k: stand_in(arg, fill) for k, arg in kwargs.items()})
        except (RuntimeError, NotImplementedError, IndexError):
            return None

    result, other = attempt(0), attempt(1)
    if result is None:
        return None
    readable = isinstance(result, (torch.Tensor, list, tuple))
    if not readable or (other is not None and _shapes(result) != _shapes(other)):
        raise NeedsValuesError(f"{func} reads values that depend on the model's parameters or float inputs")
    if isinstance(result, torch.Tensor):
        return meta_like(result)
    if func is _aten._pack_padded_sequence.default:
        return meta_like(result[0]), result[1]
    return type(result)([meta_like(t) if isinstance(t, torch.Tensor) else t for t in result])


def _shapes(result: Any) -> list[Any]:
    """Return the shapes of an operator's results."""
    items = list(result) if isinstance(result, (list, tuple)) else [result]
    return [tuple(item.shape) if isinstance(item, torch.Tensor) else item for item in items]
