"""Leaving a model as it was: modules' attributes and what these hold, hooks and flags; and the process with it."""

from __future__ import annotations

import random
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from operator import is_
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from wellposed.alone import alone
from wellposed.graphs.tree import slots_of
from wellposed.surroundings import restored_settings

Container: TypeAlias = dict[Any, Any] | list[Any] | set[Any] | deque[Any] | bytearray

CONTAINERS = (dict, list, set, deque, bytearray)
_KINDS = (OrderedDict, *CONTAINERS)
_NOTES = (list, set, deque, tuple, bytearray)
_REGISTRIES = frozenset({"_parameters", "_buffers", "_modules"})
_PLAIN = frozenset(
    {int, float, bool, str, bytes, complex, type(None), type, range, slice, Tensor, nn.Parameter, torch.dtype,
     torch.device, torch.Size, types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType}
)  # fmt: skip
"""Types that hold nothing which could be put back."""
NOT_OF_MODELS = sys.stdlib_module_names | {"builtins", "torch", "numpy"}
"""Packages whose objects are left alone: locks, files, loggers, process groups."""
_OF_MODELS = (types.SimpleNamespace, torch.optim.Optimizer)
"""Their classes whose objects hold what a pass may change all the same."""
_MOST = 10_000
"""Objects beside modules that are looked into, the nearest first, and items of a container that is looked into."""
_LARGEST_ARRAY = 2**24
"""Bytes of an array of NumPy that is copied."""


class HeldAttributes:
    """The attributes of a model's modules, and the items of containers and objects among them, at one moment.

    Attributes are held by identity. Containers, arrays of NumPy, random generators, modules and objects of the model's
    own code among them, however deep, have their items, elements, states and attributes held too; after them what the
    methods of its classes read beside their arguments, in closures and globals (caches, graphs). Tensors' contents are
    the caller's concern.

    Attributes:
        modules: those of the model, and others that they hold outside their registries.
        containers: what is not empty among dicts, lists, deques and so on, attributes of objects included, with its
            items; no registries of the model's modules.
        attributes: those of the model's modules, with their items.
    """

    def __init__(self, model: nn.Module) -> None:
        """Hold the modules first, then what they hold, the nearest objects first, up to `_MOST` of them."""
        self.modules: list[nn.Module] = list(model.modules())
        self.containers: list[tuple[Container, Any]] = []
        self.attributes: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._registries: list[tuple[Container, Any]] = []
        self._states: list[Callable[[], object]] = []
        self._seen: set[int] = {id(module) for module in self.modules}
        self._waiting: deque[Any] = deque()
        for module in self.modules:
            attributes = module.__dict__
            self.attributes.append((attributes, attributes.copy()))
            for name, value in attributes.items():
                if type(value) in _PLAIN:
                    continue
                if not isinstance(value, CONTAINERS):
                    self._waiting.append(value)
                elif name in _REGISTRIES or (type(value) in _KINDS and not value):
                    self._registries.append((value, items_of(value)))
                elif id(value) not in self._seen:
                    self._seen.add(id(value))
                    self._hold(value)
        left = self._look(_MOST)
        for kind in {type(module) for module in self.modules}:
            self._waiting.extend(_beside(kind))
        self._look(left)

    def _look(self, most: int) -> int:
        """Hold what waits and what is in it, up to a number of objects; return how many more there may be."""
        while self._waiting and most:
            value = self._waiting.popleft()
            if id(value) not in self._seen:
                self._seen.add(id(value))
                most -= self._hold(value)
        self._waiting.clear()
        return most

    def _hold(self, value: Any) -> bool:
        """Hold one object, and let what is in it wait; False where there is nothing to hold."""
        if isinstance(value, tuple):
            self._look_into(value if type(value) is tuple else tuple(tuple.__iter__(value)))
        elif isinstance(value, CONTAINERS):
            items = items_of(value)
            self.containers.append((value, items))
            if not isinstance(value, bytearray):
                self._look_into(items.values() if isinstance(value, dict) else items)
        elif isinstance(value, np.ndarray):
            if value.flags.writeable and value.nbytes <= _LARGEST_ARRAY:
                before = value.copy()
                self._states.append(lambda: np.copyto(value, before))
        elif (put_state_back := _state(value)) is not None:
            self._states.append(put_state_back)
        elif isinstance(value, nn.Module):
            self.modules.append(value)
            self._hold(value.__dict__)
        elif isinstance(value, Tensor | type):
            return False
        elif isinstance(value, _OF_MODELS) or type(value).__module__.partition(".")[0] not in NOT_OF_MODELS:
            self._hold_object(value)
        else:
            return False
        return True

    def _hold_object(self, value: Any) -> None:
        """Hold the attributes of an object, those in slots too."""
        if (attributes := attributes_of(value)) is not None:
            self._hold(attributes)
        names = [name for kind in type(value).__mro__ for name in slots_of(kind) if hasattr(value, name)]
        if names:
            before = {name: getattr(value, name) for name in names}
            self._look_into(before.values())
            self._states.append(lambda: _set(value, before))

    def _look_into(self, items: Any) -> None:
        if len(items) <= _MOST:
            self._waiting.extend([item for item in items if type(item) not in _PLAIN])

    def put_back(self) -> None:
        """Give everything back what it held; modules keep the mode that they are in."""
        for container, items in chain(self._registries, self.containers):
            put_back(container, items)
        for attributes, before in self.attributes:
            if not same(attributes, before):
                mode = attributes.get("training", before.get("training"))
                attributes.clear()
                attributes.update(before)
                if "training" in before:
                    attributes["training"] = mode
        for put_state_back in self._states:
            put_state_back()


def _kind(container: Any) -> Any:
    """Return the type whose methods reach a container's items: subclasses may have other ideas of them, or refuse."""
    kind = type(container)
    return kind if kind in _KINDS else next(kind for kind in _KINDS if isinstance(container, kind))


def items_of(container: Container) -> Any:
    """Return a copy of a container's items."""
    kind = _kind(container)
    if isinstance(container, dict):
        return dict(kind.items(container))
    if isinstance(container, bytearray):
        return bytes(container)
    return (set if kind is set else list)(kind.__iter__(container))


def attributes_of(value: Any) -> Any:
    """Return the dict of an object's attributes, or None."""
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None


def _set(value: Any, attributes: dict[str, Any]) -> None:
    """Set attributes, of frozen objects too."""
    for name, held in attributes.items():
        object.__setattr__(value, name, held)


def _state(value: Any) -> Callable[[], object] | None:
    """Return what puts a random generator back into its present state; None for other objects."""
    if isinstance(value, torch.Generator):
        state = value.get_state()
        return lambda: value.set_state(state)
    if type(value) is random.Random:
        found = value.getstate()
        return lambda: value.setstate(found)
    if isinstance(value, np.random.Generator):
        generator = value.bit_generator
        drawn = generator.state
        return lambda: setattr(generator, "state", drawn)
    if isinstance(value, np.random.RandomState):
        earlier = value.get_state()
        return lambda: value.set_state(earlier)
    return None


@contextmanager
def restored_attributes(model: nn.Module) -> Iterator[None]:
    """Put back what modules of ``model`` hold when the block ends, also on error (`HeldAttributes`), and `settings`.

    Blocks of several threads run one after the other.
    """
    with alone(), restored_settings():
        held = HeldAttributes(model)
        modes = [(module, module.training) for module in held.modules if hasattr(module, "training")]
        parameters = chain.from_iterable(module._parameters.values() for module in held.modules)
        states = [(p, p.requires_grad, p.grad) for p in {id(p): p for p in parameters if p is not None}.values()]
        try:
            yield
        finally:
            held.put_back()
            for module, mode in modes:
                if module.training != mode:  # held outside Python by scripted modules
                    module.training = mode
            for parameter, requires_grad, grad in states:
                if parameter.requires_grad != requires_grad:
                    parameter.requires_grad_(requires_grad)
                if parameter.grad is not grad:
                    parameter.grad = grad


@contextmanager
def restored_values(model: nn.Module) -> Iterator[None]:
    """Put back what a model's parameters and buffers hold when the block ends, bit for bit; also where they were given
    other memory. They are copied meanwhile.
    """
    tensors = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}.values()
    held = [(tensor, tensor.data, _local(tensor.data).clone()) for tensor in tensors if _has_values(tensor)]
    try:
        yield
    finally:
        for tensor, memory, before in held:
            local = _local(memory)
            if _local(tensor.data).data_ptr() != local.data_ptr() or tensor.shape != memory.shape:
                tensor.data = memory
            if not torch.equal(local, before):
                with torch.inference_mode(local.is_inference()), torch.no_grad():
                    local.copy_(before)


def _has_values(tensor: Tensor) -> bool:
    """Whether a tensor holds numbers that can be compared with others."""
    return tensor.layout is torch.strided and not (tensor.is_meta or tensor.is_quantized or is_lazy(tensor))


def _local(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this rank holds."""
    local: Tensor = getattr(tensor, "_local_tensor", tensor)
    return local


def set_mode_(model: nn.Module, training: bool) -> None:
    """Put a model in training or evaluation mode; only for use under `restored_attributes`.

    Programs of ``torch.export`` have one mode alone, which they keep.
    """
    for module in model.modules():
        if getattr(module.__dict__.get("train"), "__module__", "").startswith("torch.export"):  # it raises
            module.__dict__["train"] = module.__dict__["eval"] = lambda mode=True, module=module: module
    model.train(training)


def _beside(kind: type) -> list[Any]:
    """Return objects and dicts that the methods of a class have in their closures, and among the globals that they
    name. Lists are left alone: they are how a user notes what a pass does.
    """
    own = (base for base in kind.__mro__ if base.__module__.partition(".")[0] not in NOT_OF_MODELS)
    found = []
    for method in (each for base in own for each in vars(base).values() if isinstance(each, types.FunctionType)):
        names, known = method.__code__.co_names, method.__globals__
        found += [known[name] for name in names if name in known]
        for cell in method.__closure__ or ():
            with suppress(ValueError):  # an empty cell
                found.append(cell.cell_contents)
    return [value for value in found if type(value) not in _PLAIN and not isinstance(value, _NOTES)]


def same(container: Any, items: Any) -> bool:
    """Whether a container still holds exactly these objects, in this order."""
    kind = _kind(container)
    count = kind.__len__(container)
    if count != len(items) or not items:  # most registries of hooks are empty
        return bool(count == len(items))
    if isinstance(container, bytearray):
        return bool(container == items)
    alike = all(map(is_, kind.__iter__(container), items))
    return alike and (not isinstance(container, dict) or all(map(is_, kind.values(container), items.values())))


def put_back(container: Any, items: Any) -> None:
    """Give a container its earlier items back."""
    if same(container, items):
        return
    kind = _kind(container)
    kind.clear(container)
    if isinstance(container, dict | set):
        kind.update(container, items)
    else:
        kind.extend(container, items)
