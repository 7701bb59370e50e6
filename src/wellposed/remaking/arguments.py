"""What a module keeps of its constructor's arguments, also under the names of the layer that it derives from."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Collection
from types import FunctionType
from typing import Any

from torch import nn


def body_of(function: FunctionType) -> list[ast.stmt] | None:
    """Return the statements of a function, None where its source is not at hand."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None
    definition = tree.body[0] if tree.body else None
    return definition.body if isinstance(definition, ast.FunctionDef) else None


def kept_arguments(module: nn.Module, base: type, constructor: FunctionType) -> dict[str, Any]:
    """Return the arguments that a module keeps: under their own names, or under those of a layer of PyTorch.

    ``super().__init__(i, o)`` of a class derived from `torch.nn.Linear` says that ``i`` is ``in_features``. Only
    numbers and words count, as layers make tuples of what they take in several forms.
    """
    names = inspect.signature(constructor).parameters
    kept = {name: vars(module)[name] for name in names if name in vars(module)}
    return handed_on(module, base, constructor) | kept


def handed_on(module: nn.Module, base: type, constructor: FunctionType) -> dict[str, Any]:
    """Return the arguments of a constructor that it hands on to that of a layer of PyTorch, which keeps them."""
    parent = _layer_above(type(module), base)
    if parent is None:
        return {}
    body = body_of(constructor) or []
    call = next((node for each in body for node in ast.walk(each) if _is_of_parent(node)), None)
    if not isinstance(call, ast.Call):
        return {}
    try:
        given = inspect.signature(vars(parent)["__init__"]).bind_partial(
            None, *call.args, **{each.arg: each.value for each in call.keywords if each.arg is not None}
        )
    except (TypeError, ValueError):
        return {}
    own = inspect.signature(constructor).parameters.keys() - _rebound(body)
    read = {node.id: _kept_by_layer(module, name) for name, node in given.arguments.items() if _names(node, own)}
    return {name: value for name, value in read.items() if isinstance(value, bool | int | float | str)}


def _names(node: ast.AST, some: Collection[str]) -> bool:
    """Whether a node is one of some names."""
    return isinstance(node, ast.Name) and node.id in some


def _kept_by_layer(module: nn.Module, name: str) -> Any:
    """Return what a layer keeps of its argument of this name; of a bias, whether there is one."""
    if name == "bias" and name in module._parameters:
        return module._parameters[name] is not None
    return vars(module).get(name)


def _layer_above(kind: type, base: type) -> type | None:
    """Return the class of PyTorch whose constructor that of a base of another class calls; None of others."""
    later = kind.__mro__[kind.__mro__.index(base) + 1 :] if base in kind.__mro__ else ()
    parent = next((each for each in later if "__init__" in vars(each)), None)
    return parent if parent is not None and parent.__module__.startswith("torch.nn.") else None


def _is_of_parent(node: ast.AST) -> bool:
    """Whether a node is ``super().__init__(...)``, without stars."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "__init__"):
        return False
    owner = node.func.value
    of_super = isinstance(owner, ast.Call) and isinstance(owner.func, ast.Name) and owner.func.id == "super"
    return of_super and not any(isinstance(each, ast.Starred) for each in node.args)


def _rebound(body: list[ast.stmt]) -> set[str]:
    """Return the names that statements bind."""
    nodes = (node for each in body for node in ast.walk(each))
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
