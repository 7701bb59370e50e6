"""How the tracer runs one operator: on meta tensors, and on real twins where the values are known."""

from __future__ import annotations

import math
import mmap
from typing import Any, NamedTuple, TypeAlias

import torch

from wellposed.graphs.aliasing import Record, memory
from wellposed.graphs.operators import RUNNING, Traits, traits
from wellposed.graphs.shapes import quick_result

_aten = torch.ops.aten
_META = torch.device("meta")
_CPU = torch.device("cpu")
_RANDOM_LIMIT = 2**16
"""Random draws of at most this many elements are made for real too, so that a branch on one can be taken."""
_FACTORY_LIMIT = 2**26
"""Constants of more elements than this are not made for real."""
_LARGE = 2**20
"""Bytes from which on zeros that nobody has written take no memory."""
_REHEARSAL_LIMIT = 2**26
"""An operator without a meta kernel is rehearsed on zeros of at most this many elements."""
_MASKED = frozenset({_aten.index.Tensor, _aten.masked_select.default})
"""Operators whose result's shape depends on values only where boolean masks are among their arguments."""
_MASKS = (torch.bool, torch.uint8)
_SHAPED_LIKE = frozenset({_aten.expand_as.default, _aten.view_as.default, _aten.reshape_as.default})
"""Operators that read the shape alone of their second argument."""

Operands: TypeAlias = list[tuple[torch.Tensor, Record]]
"""The tensors among an operator's arguments, with what is recorded of each."""


class Operation:
    """One operator as the model called it.

    Attributes:
        op: the ATen overload.
        args: its arguments.
        kwargs: the same by name.
        operands: the tensors among them, with what is recorded of each.
        traits: the operator's effects.
        written: the tensors that it writes to.
    """

    __slots__ = ("args", "kwargs", "op", "operands", "traits", "written")

    def __init__(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], operands: Operands) -> None:
        """List the tensors that the operator writes to, those in lists of tensors as well."""
        self.op: torch._ops.OpOverload = op
        self.args: tuple[Any, ...] = args
        self.kwargs: dict[str, Any] = kwargs
        self.operands: Operands = operands
        self.traits: Traits = traits(op)
        self.written: list[torch.Tensor] = []
        for position, name in self.traits.written:
            target = args[position] if position is not None and position < len(args) else kwargs.get(name)
            if isinstance(target, torch.Tensor):
                self.written.append(target)
            elif isinstance(target, (list, tuple)):
                self.written.extend(target)


class Outcome(NamedTuple):
    """What an operator made.

    Attributes:
        result: for the model.
        reals: the real results; None where they are unknown.
        known: whether they are known.
        random: whether they are known and were drawn, or made from what was drawn.
    """

    result: Any
    reals: Any = None
    known: bool = False
    random: bool = False

    def tensors(self) -> list[torch.Tensor]:
        """Return the tensors of the result, in order."""
        return _tensors(self.result)

    def real_tensors(self) -> list[torch.Tensor | None]:
        """Return the real twins of the result's tensors, in order; nothing where none is known."""
        if self.reals is None:
            return []
        if isinstance(self.result, torch.Tensor):
            return [self.reals]
        pairs = zip(self.result, self.reals, strict=True)
        return [real for output, real in pairs if isinstance(output, torch.Tensor)]


def _tensors(result: Any) -> list[torch.Tensor]:
    """Return the tensors in an operator's result, in order."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, (list, tuple)):
        return [tensor for item in result for tensor in _tensors(item)]
    return []


class NeedsValuesError(RuntimeError):
    """An operator reads float values that the meta engine does not have."""


def meta_like(tensor: torch.Tensor) -> torch.Tensor:
    """Return an uninitialised meta tensor with the shape, strides and dtype of ``tensor``.

    It is an inference tensor exactly if ``tensor`` is one: PyTorch makes views of the two differently. Raises
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

    def run(self, operation: Operation) -> Outcome:
        """Run an operator once.

        Raises `NeedsValuesError` when it must read values that are not known.
        """
        known = is_known(operation)
        if not self.meta:
            result = operation.op(*operation.args, **operation.kwargs)
            if operation.traits.empty:  # what nobody has written is 0, not what the memory held before
                result.zero_()
            reals = result if known else None
            if operation.op is _aten._pack_padded_sequence.default and operation.operands[-1][1].base.known:
                reals = (None, result[1])  # how many sequences are left at each step follows from their lengths
            return Outcome(result, reals, known, known and _is_random(operation))
        return _run_known(operation) if known else _run_unknown(operation)


def is_known(operation: Operation) -> bool:
    """Whether an operator's results follow from known values, and are small enough where they are drawn."""
    effects = operation.traits
    read = operation.operands[:1] if operation.op in _SHAPED_LIKE else operation.operands
    known = effects.fills or (all(record.base.known for _, record in read) and operation.op not in RUNNING)
    return known and (not effects.random or _drawn_elements(operation) <= _RANDOM_LIMIT)


def _drawn_elements(operation: Operation) -> int:
    """Return how many elements a random operator draws at most."""
    if operation.operands:
        return max(tensor.numel() for tensor, _ in operation.operands)
    size = operation.args[0] if operation.args else 0
    return math.prod(size) if isinstance(size, (list, tuple)) else int(size)


def _is_random(operation: Operation) -> bool:
    """Whether an operator draws its results, or reads what was drawn."""
    return operation.traits.random or any(record.base.random for _, record in operation.operands)


def _run_unknown(operation: Operation) -> Outcome:
    """Run an operator on meta, where real values of its results are not known."""
    op = operation.op
    if op is _aten._pack_padded_sequence.default:
        data, sizes = _run_masked(operation)
        return Outcome((data, sizes), (None, sizes))
    if op in _MASKED:
        masked = any(tensor.dtype in _MASKS for tensor, _ in operation.operands)
        return Outcome(_run_masked(operation) if masked else _run_meta(operation))
    if operation.traits.reads_values:
        raise _needs_values(op)
    return Outcome(_run_meta(operation))


def _run_known(operation: Operation) -> Outcome:
    """Run an operator on known values, and make the meta twins of its results."""
    effects = operation.traits
    if effects.fills or not operation.operands:
        planned = _run_meta(operation)
        if isinstance(planned, torch.Tensor) and planned.numel() > _FACTORY_LIMIT:
            return Outcome(planned)
    if effects.empty:  # what nobody has written is 0
        planned = _run_meta(operation)
        return Outcome(planned, _zeros(planned), True)
    args = [_real(arg, operation.operands) for arg in operation.args]
    reals = operation.op(*args, **_real_kwargs(operation))
    return Outcome(_mirror(operation, reals), reals, True, _is_random(operation))


def _zeros(planned: torch.Tensor) -> torch.Tensor:
    """Return zeros with the shape, strides and dtype of a meta tensor.

    Large ones lie in memory that the system hands out where it is written to: most are given signals, never numbers.
    """
    shape, strides, size = tuple(planned.shape), planned.stride(), planned.untyped_storage().nbytes()
    if size < _LARGE or planned.is_quantized:
        return torch.empty_strided(shape, strides, dtype=planned.dtype).zero_()
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
    return torch.frombuffer(mmap.mmap(-1, size, **private), dtype=planned.dtype).as_strided(shape, strides)


def _needs_values(op: Any) -> NeedsValuesError:
    return NeedsValuesError(f"{op} reads values that depend on the model's parameters or float inputs")


def _run_masked(operation: Operation) -> Any:
    """Run an operator whose result's shape depends on masks and lengths alone, which are known."""
    if not all(record.base.known for tensor, record in operation.operands if not tensor.is_floating_point()):
        raise _needs_values(operation.op)
    result = _rehearse(operation)
    if result is None:
        raise NeedsValuesError(f"{operation.op} reads values and is too large to be rehearsed on zeros")
    return result


def _run_meta(operation: Operation) -> Any:
    """Run an operator on the meta tensors of its arguments."""
    op, operands = operation.op, operation.operands
    args = [_meta(arg, operands) for arg in operation.args]
    kwargs = {key: _meta(arg, operands) for key, arg in operation.kwargs.items() if key != "generator"}
    if kwargs.get("pin_memory"):
        kwargs["pin_memory"] = False
    if operation.traits.factory:
        kwargs["device"] = _META
    quick = quick_result(op, args, kwargs)
    if quick is not None:
        return quick
    try:
        return op(*args, **kwargs)
    except (RuntimeError, NotImplementedError) as error:
        if operation.traits.written:
            raise
        result = _in_bfloat16(op, args, kwargs)
        if result is None:
            result = _rehearse(operation)
        if result is None:
            raise error
        return result


def _mirror(operation: Operation, reals: Any) -> Any:
    """Return for real results the meta results that share memory with the arguments in the same way."""
    if not isinstance(reals, (torch.Tensor, list, tuple)):
        return reals
    operands = operation.operands
    storages = {memory(record.real) for _, record in operands if record.real is not None}
    mirrored: list[Any] = []
    for real in [reals] if isinstance(reals, torch.Tensor) else reals:
        if not isinstance(real, torch.Tensor):
            mirrored.append(real)
            continue
        same = next((record.tensor for _, record in operands if record.real is real), None)
        if same is not None:
            mirrored.append(same)
        elif memory(real) in storages:
            return _run_meta(operation)
        else:
            mirrored.append(torch.empty_strided(tuple(real.shape), real.stride(), dtype=real.dtype, device=_META))
    return mirrored[0] if isinstance(reals, torch.Tensor) else type(reals)(mirrored)


def _record_of(tensor: torch.Tensor, operands: Operands) -> Record:
    return next(record for other, record in operands if other is tensor)


def _meta(arg: Any, operands: Operands) -> Any:
    """Return ``arg`` with every tensor and device replaced by its meta twin."""
    if isinstance(arg, torch.Tensor):
        return _record_of(arg, operands).tensor
    if type(arg) in (list, tuple):
        return type(arg)([_meta(item, operands) for item in arg])
    return _META if isinstance(arg, torch.device) else arg


def _real(arg: Any, operands: Operands) -> Any:
    """Return ``arg`` with every tensor replaced by its real twin (by itself where only its shape counts)."""
    if isinstance(arg, torch.Tensor):
        record = _record_of(arg, operands)
        return record.real if record.base.known else record.tensor
    if type(arg) in (list, tuple):
        return type(arg)([_real(item, operands) for item in arg])
    return _CPU if isinstance(arg, torch.device) else arg


def _real_kwargs(operation: Operation) -> dict[str, Any]:
    """Return keyword arguments for a run on real twins: on the CPU, with a copy of the generator."""
    real = {key: _real(arg, operation.operands) for key, arg in operation.kwargs.items()}
    if operation.traits.factory:
        real["device"] = _CPU
    if isinstance(real.get("generator"), torch.Generator):
        real["generator"] = real["generator"].clone_state()
    if real.get("pin_memory"):
        real["pin_memory"] = False
    return real


def _in_bfloat16(func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Run a meta kernel that is stricter than the real ones in bfloat16; None where that fails too."""
    dtypes: set[torch.dtype] = set()

    def cast(arg: Any) -> Any:
        if isinstance(arg, torch.Tensor) and arg.is_floating_point():
            dtypes.add(arg.dtype)
            return arg.to(torch.bfloat16)
        return type(arg)([cast(item) for item in arg]) if type(arg) in (list, tuple) else arg

    try:
        result = func(*[cast(arg) for arg in args], **{key: cast(arg) for key, arg in kwargs.items()})
    except (RuntimeError, NotImplementedError):
        return None
    if len(dtypes) != 1:
        return None
    (dtype,) = dtypes
    if isinstance(result, torch.Tensor):
        return result.to(dtype) if result.dtype == torch.bfloat16 else result
    return type(result)(
        [t.to(dtype) if isinstance(t, torch.Tensor) and t.dtype == torch.bfloat16 else t for t in result]
    )


def _rehearse(operation: Operation) -> Any:
    """Run an operator without a meta kernel on CPU, for the shapes of its result; None where that fails too.

    Unknown values are taken as zeros, and then as ones: an operator whose shapes differ between the two reads values,
    which is an error. Of ``_pack_padded_sequence`` the lengths stay real tensors, as PyTorch requires.
    """
    if sum(tensor.numel() for tensor, _ in operation.operands) > _REHEARSAL_LIMIT:
        return None

    def attempt(fill: int) -> Any:
        """Return the operator's result where unknown values are ``fill``; None where it refuses them."""
        try:
            args = [_filled(arg, operation.operands, fill) for arg in operation.args]
            kwargs = {key: _filled(arg, operation.operands, fill) for key, arg in operation.kwargs.items()}
            return operation.op(*args, **kwargs)
        except (RuntimeError, NotImplementedError, IndexError):
            return None

    result, other = attempt(0), attempt(1)
    if result is None:
        return None
    readable = isinstance(result, (torch.Tensor, list, tuple))
    if not readable or (other is not None and _shapes(result) != _shapes(other)):
        raise _needs_values(operation.op)
    if isinstance(result, torch.Tensor):
        return meta_like(result)
    if operation.op is _aten._pack_padded_sequence.default:
        return meta_like(result[0]), result[1]
    return type(result)([meta_like(t) if isinstance(t, torch.Tensor) else t for t in result])


def _filled(arg: Any, operands: Operands, fill: int) -> Any:
    """Return ``arg`` with every tensor replaced by one on CPU: a copy of known values, else ``fill`` everywhere."""
    if isinstance(arg, torch.Tensor):
        record = _record_of(arg, operands)
        if record.base.known and record.real is not None:
            return record.real.clone()
        return torch.full(record.tensor.shape, fill, dtype=record.tensor.dtype)
    if type(arg) in (list, tuple):
        return type(arg)([_filled(item, operands, fill) for item in arg])
    return _CPU if isinstance(arg, torch.device) else arg


def _shapes(result: Any) -> list[Any]:
    """Return the shapes of an operator's results."""
    items = list(result) if isinstance(result, (list, tuple)) else [result]
    return [tuple(item.shape) if isinstance(item, torch.Tensor) else item for item in items]
