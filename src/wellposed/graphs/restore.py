"""Leaving a model as it was: modules' attributes, hooks and flags."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from operator import is_
from typing import Any

from torch import nn

from wellposed.alone import alone

_CONTAINERS = (dict, list, set)


@contextmanager
def restored_attributes(model: nn.Module) -> Iterator[None]:
    """Put back every attribute of every module of ``model`` when the block ends, also on error.

    Attributes are held by identity; dicts, lists and sets among them (registries of parameters, buffers, modules and
    hooks, caches) have their items put back too. Tensors' contents are the caller's concern. Blocks of several threads
    run one after the other.
    """
    with alone():
        modules = list(model.modules())
        modes = [(module, module.training) for module in modules]
        owned = {id(p): p for module in modules for p in module._parameters.values() if p is not None}
        states = [(parameter, parameter.requires_grad, parameter.grad) for parameter in owned.values()]
        saved: list[tuple[dict[str, Any], dict[str, Any], list[tuple[Any, Any]]]] = []
        for module in modules:
            attributes = module.__dict__
            containers = [  # most registries of hooks are empty
                (value, value.copy() if value else ())
                for value in attributes.values()
                if isinstance(value, _CONTAINERS)
            ]
            saved.append((attributes, attributes.copy(), containers))
        try:
            yield
        finally:
            for attributes, before, containers in saved:
                for container, items in containers:
                    if container or items:
                        _put_back(container, items)
                if not _same(attributes, before):
                    attributes.clear()
                    attributes.update(before)
            for module, mode in modes:
                if module.training != mode:  # held outside Python by scripted modules
                    module.training = mode
            for parameter, requires_grad, grad in states:
                if parameter.requires_grad != requires_grad:
                    parameter.requires_grad_(requires_grad)
                if parameter.grad is not grad:
                    parameter.grad = grad


def _same(container: Any, items: Any) -> bool:
    """Whether a container still holds exactly these objects, in this order."""
    if len(container) != len(items):
        return False
    if isinstance(container, dict):
        return list(container) == list(items) and all(map(is_, container.values(), items.values()))
    return all(map(is_, container, items))


def _put_back(container: Any, items: Any) -> None:
    """Give a container its earlier items back."""
    if _same(container, items):
        return
    container.clear()
    if isinstance(container, list):
        container.extend(items)
    else:
        container.update(items)


@contextmanager
def paused_collection() -> Iterator[None]:
    """Keep Python's cyclic garbage collector from running: a pass makes many small objects and hardly a cycle."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
