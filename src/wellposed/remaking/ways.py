"""How a module says again what its tensors hold: methods that initialise it, and its constructor."""

from __future__ import annotations

import copy
import inspect
import types
from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from wellposed.remaking.arguments import handed_on

_RESETS = (
    ("reset_parameters", "_reset_parameters"),
    ("reset_buffers", "init_non_persistent_buffers"),
    ("define_relative_position_bias_table",),
    ("define_relative_position_index",),
    ("init_weights",),
)
"""Names that modules give to methods without arguments that initialise them; of each group the first is called."""
_PLAIN = (type(None), bool, int, float, complex, str, bytes, Enum, torch.dtype, torch.Size, torch.memory_format)
_DEPTH = 8
_LATER = ("_is_", "_fsdp_", "_distribute_")
"""How names of attributes begin that wrappers and libraries set once a module is made."""
MAKERS: WeakKeyDictionary[nn.Module, Callable[[], nn.Module]] = WeakKeyDictionary()
"""How modules were made, where that was noted."""


def hook_of(module: nn.Module) -> Callable[[nn.Module], object] | None:
    """Return the method by which a model of transformers initialises any module inside it; None for other modules."""
    hook = getattr(module, "_init_weights", None)
    return hook if callable(hook) and hasattr(module, "config") else None


def resets(module: nn.Module, hook: Callable[[nn.Module], object] | None) -> list[Callable[[], object]]:
    """Return the calls by which a module initialises itself, in order: its own methods, then its library's hook.

    With a hook, ``init_weights`` is the hook for all modules below, and is left out.
    """
    calls: list[Callable[[], object]] = []
    for names in _RESETS[:-1] if hook is not None else _RESETS:
        for name in names:
            own = getattr(module, name, None)
            if callable(own) and _takes_nothing(own):
                calls.append(own)
                break
    return calls if hook is None else [*calls, partial(hook, module)]


def _takes_nothing(function: Callable[..., object]) -> bool:
    """Whether a function can be called without arguments."""
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):
        return False
    return True


def remember(module: nn.Module, make: Callable[[], nn.Module]) -> None:
    """Note how a module was made; forgotten with the module."""
    MAKERS[module] = make


def constructor(module: nn.Module) -> Callable[[], nn.Module] | None:
    """Return a call that makes the module again: one that was noted, or its class with the arguments that it keeps.

    Every argument of its constructor is looked for among the attributes under its own name, also with an underscore
    before it, or under that of a layer's constructor which it is handed on to. Only plain data counts (numbers, words,
    types, functions, and collections and objects of such), of which the call gets a copy.
    """
    if module in MAKERS:
        return MAKERS[module]
    kind = authored(type(module))
    if kind.__module__.startswith("torch.nn."):
        return None
    try:
        parameters = list(inspect.signature(kind.__init__).parameters.values())[1:]
    except (TypeError, ValueError):
        return None
    arguments: dict[str, Any] = {}
    given = _handed_on(module, kind)
    for parameter in parameters:
        if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD and parameter.kind is not parameter.KEYWORD_ONLY:
            return None
        if parameter.name in ("device", "dtype") and parameter.default is None:
            continue
        kept = _kept_arguments(module, parameter, given)
        if not kept or not is_plain(kept[0]):
            return None
        arguments[parameter.name] = kept[0]
    return lambda: kind(**copy.deepcopy(arguments))


def _handed_on(module: nn.Module, kind: type[nn.Module]) -> dict[str, Any]:
    """Return the arguments of a class's constructor that a layer keeps which it derives from."""
    base = next(each for each in kind.__mro__ if "__init__" in vars(each))
    own = vars(base)["__init__"]
    return handed_on(module, base, own) if isinstance(own, types.FunctionType) else {}


def authored(kind: type[nn.Module]) -> type[nn.Module]:
    """Return the class of a module as its author wrote it: FSDP2 derives a class of each that it wraps."""
    if any(base.__name__ == "FSDPModule" for base in kind.__mro__[1:]):
        return next(base for base in kind.__mro__[1:] if base.__name__ != "FSDPModule")
    return kind


def _kept_arguments(module: nn.Module, parameter: inspect.Parameter, given: dict[str, Any]) -> list[Any]:
    """Return what a module keeps under the name of its constructor's parameter, or else what is ``given`` for it: at
    most one thing, or nothing.
    """
    kept = [vars(module)[name] for name in (parameter.name, "_" + parameter.name) if name in vars(module)]
    if not kept and parameter.name in module._parameters and type(parameter.default) is bool:
        kept = [module._parameters[parameter.name] is not None]  # bias=True
    if not kept and parameter.name in given:
        kept = [given[parameter.name]]
    return kept[:1]


def is_plain(value: Any, depth: int = _DEPTH) -> bool:
    """Whether a value is data: no tensor, module or handle anywhere in it."""
    if isinstance(value, (*_PLAIN, type, types.FunctionType, types.BuiltinFunctionType)):
        return True
    if depth == 0 or isinstance(value, (torch.Tensor, nn.Module)):
        return False
    if isinstance(value, dict):
        return all(is_plain(key, depth - 1) and is_plain(item, depth - 1) for key, item in value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(is_plain(item, depth - 1) for item in value)
    if isinstance(value, partial):
        return is_plain((value.func, value.args, value.keywords), depth - 1)
    return type(value).__module__ != "builtins" and hasattr(value, "__dict__") and is_plain(vars(value), depth - 1)


def described(model: nn.Module) -> list[Any]:
    """Return what two makings of a model have alike: modules, tensors' shapes, numbers and words."""
    return [(path, *_named(authored(type(module))), _described(module)) for path, module in model.named_modules()]


def _named(kind: type) -> tuple[str, str]:
    """Return the names of a class: parametrised modules have one each, of the same name."""
    return kind.__module__, kind.__qualname__


def _described(module: nn.Module) -> tuple[Any, ...]:
    """Return a module's own tensors and plain attributes, comparable."""
    attributes = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, (bool, int, float, str)) and not _is_set_later(name)
    }
    return attributes, *(dict(shapes(held)) for held in (module._parameters, module._buffers))


def _is_set_later(name: str) -> bool:
    """Whether an attribute is one that users switch, or wrappers set, once a module is made."""
    return name == "training" or name.endswith("checkpointing") or name.startswith(_LATER)


def shapes(held: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...] | None]]:
    """Yield names and shapes of tensors."""
    for name, tensor in held.items():
        yield name, None if tensor is None else tuple(tensor.shape)
