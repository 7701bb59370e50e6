"""The dispatch mode that sees every operator of a forward pass and records it in single-assignment form."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, TypeAlias

import torch
from torch._compile import _disable_dynamo
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode

from wellposed.errors import UnsupportedError
from wellposed.graphs.aliasing import (
    Base,
    Record,
    ViewCall,
    compact,
    current,
    memory,
    new_alias,
    new_root,
    new_view,
    same_geometry,
    write,
)
from wellposed.graphs.einsum import SUMMING, factors_of_elements
from wellposed.graphs.execution import Execution, Operands, Operation, Outcome, is_known, meta_like
from wellposed.graphs.graph import Ref, ValueKind
from wellposed.graphs.modules import ModuleStack
from wellposed.graphs.operators import ALIASES, PRODUCTS, RUNNING, require_numbers, whole, without_axes
from wellposed.graphs.raw import RawNode, RawValue, is_fixed
from wellposed.graphs.reads import Leaving, PythonReads
from wellposed.graphs.source import user_line

_aten = torch.ops.aten
_EAGER = torch._C.DispatchKey.CompositeExplicitAutograd
_OF_MEMORY = frozenset({_aten.set_.source_Storage, _aten.set_.source_Storage_storage_offset})
"""Operators that lay a tensor over memory, as unpickling does; the memory says what it holds."""
_MADE_OTHERWISE = _OF_MEMORY | SUMMING
_ALIASES = frozenset(
    {_aten.detach.default, _aten.alias.default, _aten.lift_fresh.default, _aten.lift.default, _aten.detach_.default}
)
"""Operators that give their argument back under another name; no node is recorded for them."""

Fresh: TypeAlias = tuple[int, torch.Tensor, Record | None]
"""A new output: its position, the tensor, and the first record of the memory that it lies in."""


class Recorder(TorchDispatchMode):
    """Records operators into `nodes` and `values`; `Execution` runs them.

    Operators of higher order (``flex_attention``) are taken apart into those that their eager version runs.

    Attributes:
        left: where values that are not known beforehand were handed to Python (the method and ``file:line``).
        came_back: whether real numbers came in as a constant after that.
        unseen: where tensors were used that have no values and that nothing here has made (``file:line``).
    """

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep PyTorch from importing its compiler to wrap this mode; once loaded, `_never_compiled` does that."""
        return False

    def __init__(
        self,
        modules: ModuleStack,
        engine: Literal["meta", "real"],
        constant_name: Callable[[torch.Tensor], str],
        named: Callable[[torch.Tensor], bool],
        values_of: Callable[[torch.Tensor], torch.Tensor | None],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.modules = modules
        self.meta: bool = engine == "meta"
        self.execution: Execution = Execution(self.meta)
        self.left: list[tuple[str, str]] = []
        self.came_back: bool = False
        self.unseen: list[str] = []
        self.reads: AbstractContextManager[Any]
        self.reads = PythonReads(self.find) if self.meta else Leaving(self.find, self.left, self._keep)
        self.constant_name = constant_name
        self.named = named
        self.values_of = values_of
        self.nodes: list[RawNode] = []
        self.values: list[RawValue] = []
        self.known: dict[int, torch.Tensor] = {}
        self.records: dict[int, Record] = {}
        self.storages: dict[int, Record] = {}
        self.kept: list[torch.Tensor] = []
        self.overwritten: list[tuple[Base, torch.Tensor, torch.Tensor]] = []

    # ---------------------------------------------------------------------------------------------------- tensors

    def register(
        self, kind: ValueKind, name: str, tensor: torch.Tensor, twin: torch.Tensor, values: torch.Tensor | None
    ) -> Record:
        """Record a tensor that exists before any operator: input, parameter, buffer or constant.

        ``twin`` is the tensor that operators run on (``tensor`` itself in the real engine), ``values`` what the tensor
        holds, where that is known. Real values are copied only when an operator writes to them.
        """
        self.values.append(RawValue(kind, name, twin))
        real = None
        if values is not None and values.shape == tensor.shape:
            real = values.detach().cpu() if self.meta else twin
        record = new_root(twin, len(self.values) - 1, real)
        record.base.borrowed = True
        self.bind(twin, record)
        if tensor is not twin:
            self.bind(tensor, record)
        return record

    def bind(self, tensor: torch.Tensor, record: Record) -> None:
        """Let ``tensor`` stand for ``record``, and keep it alive so that its id is not used again."""
        self.records[id(tensor)] = record
        self.kept.append(tensor)
        self.storages.setdefault(record.storage if tensor is record.tensor else memory(tensor), record)

    def find(self, tensor: torch.Tensor) -> Record:
        """Return the record of a tensor that an operator receives."""
        record = self.records.get(id(tensor))
        if record is None or (record.tensor is tensor and record.storage != memory(tensor)):
            return self._adopt(tensor)
        return record

    def _adopt(self, tensor: torch.Tensor) -> Record:
        """Record a tensor object that no operator has shown: another view of known memory, or a constant."""
        first = self.storages.get(memory(tensor))
        if first is None:
            self.came_back |= bool(self.left) and tensor.is_floating_point()
            values = self.values_of(tensor) if tensor.numel() else tensor.new_empty(tensor.shape, device="cpu")
            twin = meta_like(tensor) if self.meta and tensor.device.type != "meta" else tensor
            if values is None and not self.named(tensor):
                self.unseen.append(user_line())
            record = self.register("constant", self.constant_name(tensor), tensor, twin, values)
            self.bind(tensor, record)
            return record
        foreign = self.meta and tensor.device.type != "meta"
        for other in first.base.records:
            if same_geometry(other.tensor, tensor):
                record = other if foreign else new_alias(other, tensor, other.real)
                self.bind(tensor, record)
                return record
        root = first.base.root
        where = (list(tensor.shape), list(tensor.stride()), tensor.storage_offset())
        twin = torch.as_strided(root.tensor, *where) if foreign else tensor
        source = current(root, self.emit)
        step = ViewCall(_aten.as_strided.default, (Ref(source), *where), {}, source)
        (value,) = self.emit(step.op, step.args, step.kwargs, [twin])
        real = None if root.real is None else torch.as_strided(root.real, *where)
        record = new_view(root, step, 0, twin, value, real)
        self.bind(tensor, record)
        self.bind(twin, record)
        return record

    def value_of(self, tensor: torch.Tensor) -> int:
        """Return the id of the value that ``tensor`` holds now."""
        return current(self.find(tensor), self.emit)

    # ---------------------------------------------------------------------------------------------------- nodes

    def emit(
        self,
        op: torch._ops.OpOverload,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        like: Sequence[torch.Tensor],
        minor: bool = True,
    ) -> list[int]:
        """Append a node whose outputs look like ``like``; return their value ids."""
        node = len(self.nodes)
        first = len(self.values)
        self.values.extend([RawValue("intermediate", "", t, node, i) for i, t in enumerate(like)])
        outputs = list(range(first, len(self.values)))
        call = self.modules.top
        if not minor:
            call.operators += 1
        self.nodes.append(RawNode(op, args, kwargs, outputs, call, user_line(2), minor))
        return outputs

    def unread(self) -> list[int]:
        """Return the values that a node made and that no node reads."""
        read = {value for node in self.nodes for value in node.inputs}
        return [value for node in self.nodes for value in node.outputs if value not in read]

    def _prepare_write(self, record: Record, known: bool) -> None:
        """Keep what a write is about to destroy: known values, and memory that belongs to the user.

        On meta a write of values that are not ``known`` leaves the real ones as they are.
        """
        base = record.base
        spared = self.meta and not known
        if base.known and not base.random:
            for other in base.records:
                if other.real is not None and other.version == base.version and other.value not in self.known:
                    self.known[other.value] = compact(other.real) if spared else other.real.clone()
        if spared:
            base.forget_real()
        elif base.borrowed and self.meta:
            base.own_real()
        else:
            self._keep(base)
        base.borrowed = False

    def _keep(self, base: Base) -> None:
        """Keep what memory of the user's holds (real engine), before it is written to."""
        if base.borrowed:
            memory = base.root.tensor.detach()
            self.overwritten.append((base, memory, memory.clone()))
            base.borrowed = False

    @contextmanager
    def putting_back(self) -> Iterator[None]:
        """Give the user's tensors that the block wrote to what they held before (real engine)."""
        try:
            yield
        finally:
            with torch.no_grad():
                for base, memory, before in self.overwritten:
                    for record in base.records:
                        record.real = None if record.real is None else record.real.clone()
                    memory.copy_(before)

    def release(self) -> None:
        """Let go of every tensor of the model's run at once, without waiting for Python's garbage collector."""
        for record in set(self.records.values()):
            record.base.records.clear()
            del record.base, record.parent, record.step  # the base holds its root
        self.records.clear()
        self.storages.clear()
        self.kept.clear()

    def collect_known(self, limit: int) -> dict[int, torch.Tensor]:
        """Return the known values; of more than ``limit`` floating point elements only those that no node computes."""
        for record in self.records.values():
            base = record.base
            if not base.known or base.random or record.real is None:
                continue
            if record.version == base.version:
                self.known.setdefault(record.value, record.real)
            elif record is base.root:
                self.known.setdefault(base.value, record.real)
        return {
            value: tensor
            for value, tensor in self.known.items()
            if tensor.numel() <= limit or not tensor.is_floating_point() or self.values[value].node is None
        }

    # ---------------------------------------------------------------------------------------------------- dispatch

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run and record one operator, out of the compiler's reach where that is loaded."""
        if "torch._dynamo" in sys.modules:
            return self._never_compiled(func, args, kwargs or {})
        return self._dispatched(func, args, kwargs or {})

    def _dispatched(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run and record one operator."""
        if isinstance(func, HigherOrderOperator):
            with self.reads, self:
                return func.py_kernels[_EAGER](*args, **kwargs)
        func, args = whole(ALIASES.get(func, func), args)
        if func in _MADE_OTHERWISE and (made := self._made(func, args)) is not None:
            return made
        args = without_axes(func, args)
        operands: Operands = []
        refs = tuple([self._ref(arg, operands) for arg in args])
        named_refs = {key: self._ref(arg, operands) for key, arg in kwargs.items()} if kwargs else {}
        if func in PRODUCTS:
            require_numbers(func, [tensor for tensor, _ in operands])
        if func in _ALIASES:
            return self._alias(func, args, kwargs, operands[0][1])
        operation = Operation(func, args, kwargs, operands)
        known = not operation.written or is_known(operation)
        for tensor in operation.written:
            self._prepare_write(self.find(tensor), known)
        if func in RUNNING and not self.meta:
            for _, record in operands:
                self._keep(record.base)
        outcome = self.execution.run(operation)
        self._record(operation, refs, named_refs, outcome)
        return outcome.result

    def _made(self, func: Any, args: tuple[Any, ...]) -> torch.Tensor | None:
        """Run an operator that is recorded in another way; None where it is recorded as it is."""
        return self._of_memory(func, *args) if func in _OF_MEMORY else self._of_elements(func, args)

    def _of_elements(self, func: Any, args: tuple[Any, ...]) -> torch.Tensor | None:
        """Run and record an operator that sums nothing of a signal and what is none as a product of elements."""
        operands = args if func is _aten.outer.default else args[1]
        if not any(is_fixed(self.values, self.nodes, self.find(operand).value) for operand in operands):
            return None  # rules for two signals know more of an outer product
        with self:
            factors = factors_of_elements(func, args)
            return None if factors is None else factors[0] * factors[1]

    _never_compiled = _disable_dynamo(_dispatched, recursive=True)  # a forward may compile what it calls

    def _ref(self, arg: Any, operands: Operands) -> Any:
        """Return ``arg`` with every tensor replaced by a reference to its value; list the tensors in ``operands``."""
        if isinstance(arg, torch.Tensor):
            record = self.find(arg)
            operands.append((arg, record))
            return Ref(record.value if record.version == record.base.version else current(record, self.emit))
        if type(arg) in (list, tuple):
            return type(arg)([self._ref(item, operands) for item in arg])
        return arg

    def _of_memory(self, func: Any, tensor: torch.Tensor, *where: Any) -> torch.Tensor:
        """Let a tensor stand for what its new memory holds: a constant, or a view of memory that is known."""
        laid = func(torch.empty(0, dtype=tensor.dtype, device=where[0].device), *where)
        held = (record := self.find(laid)).tensor
        tensor.set_(held.untyped_storage(), held.storage_offset(), held.shape, held.stride())
        self.bind(tensor, new_alias(record, tensor, record.real))
        return tensor

    def _alias(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], record: Record) -> torch.Tensor:
        """Run an operator that gives its argument back; its result stands for the same value."""
        result: torch.Tensor = func(record.tensor, *args[1:], **kwargs)
        if id(result) not in self.records:
            self.bind(result, new_alias(record, result, record.real))
        return result

    def _record(
        self, operation: Operation, refs: tuple[Any, ...], named_refs: dict[str, Any], outcome: Outcome
    ) -> None:
        """Append the node of an operator that has run, and bind its results to values."""
        outputs = outcome.tensors()
        self._refuse_nested(operation.op, outputs)
        targets = [self.find(tensor) for tensor in operation.written]
        fresh = self._fresh(outputs)
        if not fresh and not targets:
            return
        like = outputs + [record.tensor for record in targets if not any(output is record.tensor for output in outputs)]
        viewing = not targets and all(shared is not None for _, _, shared in fresh)
        minor = outcome.known or operation.traits.shape_only or viewing or _makes_integers(like)
        self.emit(operation.op, refs, named_refs, like, minor)
        node = self.nodes[-1]
        self._bind_fresh(node, operation, outcome, fresh)
        for record in targets:
            position = next(position for position, tensor in enumerate(like) if tensor is record.tensor)
            self._bind_written(record, node.outputs[position], outcome)

    def _bind_written(self, record: Record, value: int, outcome: Outcome) -> None:
        """Let a tensor that an operator wrote to hold ``value`` from now on."""
        record.base.known = record.base.known and outcome.known
        record.base.random = record.base.random or outcome.random
        write(record, value, self.emit)

    def _refuse_nested(self, op: torch._ops.OpOverload, outputs: list[torch.Tensor]) -> None:
        """Raise `UnsupportedError` where an operator made a nested tensor."""
        if any(output.is_nested for output in outputs):
            where = f"{self.modules.top.path or 'the model'!r} at {user_line(2)}"
            raise UnsupportedError(
                f"{op} in {where} makes a nested tensor, which has no single shape; use padded tensors and masks"
            )

    def _fresh(self, outputs: list[torch.Tensor]) -> list[Fresh]:
        """Return the outputs that no record stands for yet."""
        return [
            (position, output, self.storages.get(memory(output)))
            for position, output in enumerate(outputs)
            if id(output) not in self.records
        ]

    def _bind_fresh(self, node: RawNode, operation: Operation, outcome: Outcome, fresh: list[Fresh]) -> None:
        """Bind every new output to its value, as a view of an operand where they share memory."""
        reals = outcome.real_tensors()
        steps: dict[int, ViewCall] = {}
        for position, output, shared in fresh:
            value, real = node.outputs[position], reals[position] if reals else None
            parent = None
            if shared is not None:
                parent = next((record for _, record in operation.operands if record.base is shared.base), None)
            if parent is None:
                record = new_root(output, value, real)
                record.base.random = outcome.random
            else:
                step = steps.get(id(parent))
                if step is None:
                    step = steps[id(parent)] = ViewCall(node.op, node.args, node.kwargs, parent.value)
                record = new_view(parent, step, position, output, value, real)
            self.bind(output, record)


def _makes_integers(tensors: list[torch.Tensor]) -> bool:
    """Whether an operator makes integers or booleans alone.

    Such an operator (a counter of batches) leaves its module's name free, so that names do not depend on whether its
    values are known.
    """
    return bool(tensors) and not any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors)
