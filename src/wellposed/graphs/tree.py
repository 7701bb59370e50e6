"""Tensors inside the structures that models take and return."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch

_DEPTH = 8
"""How deep into unknown objects tensors are looked for."""


def walk(tree: Any, path: str = "", depth: int = _DEPTH) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the path and tensor of every tensor in ``tree``: mappings, sequences, dataclasses and plain objects."""
    if isinstance(tree, torch.Tensor):
        yield path, tree
    elif depth == 0 or isinstance(tree, (str, bytes, int, float, complex, type(None), torch.nn.Module, type)):
        return
    elif isinstance(tree, Mapping):
        for key, item in tree.items():
            yield from walk(item, f"{path}.{key}" if path else str(key), depth - 1)
    elif isinstance(tree, (list, tuple)):
        names = getattr(tree, "_fields", None)
        for i, item in enumerate(tree):
            name = names[i] if names else str(i)
            yield from walk(item, f"{path}.{name}" if path else name, depth - 1)
    elif dataclasses.is_dataclass(tree) or type(tree).__module__.split(".")[0] not in ("torch", "numpy", "builtins"):
        for key, item in attributes_of(tree).items():
            yield from walk(item, f"{path}.{key}" if path else key, depth - 1)


def attributes_of(tree: Any) -> dict[str, Any]:
    """Return the attributes of an object by name, those in slots first."""
    names = [name for kind in type(tree).__mro__ for name in slots_of(kind)]
    return {name: getattr(tree, name) for name in names if hasattr(tree, name)} | getattr(tree, "__dict__", {})


def slots_of(kind: type) -> tuple[str, ...]:
    """Return the names of the slots that a class itself adds to its objects."""
    stated = kind.__dict__.get("__slots__", ())
    names = (stated,) if isinstance(stated, str) else tuple(stated)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__") and not name.startswith("__"))


def input_tensors(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of example inputs; positional ones are called by position, keyword ones by name."""
    yield from walk(args)
    yield from walk(kwargs)


def example_of(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return what a model's forward takes of a batch: all of a dict, by keyword, or the first of several."""
    if isinstance(batch, dict):
        return (), batch
    if isinstance(batch, list | tuple):
        return tuple(batch[:1]), {}
    return (batch,), {}


def output_tensors(output: Any) -> list[torch.Tensor]:
    """Return the tensors of a model's output, in order."""
    return [tensor for _, tensor in walk(output)]


def apart(tree: Any, met: set[int]) -> Any:
    """Return arguments in which every tensor is an object of its own: one that is given twice stands for two signals.

    Lists, tuples and dicts are gone through; other objects are passed on as they are, with what they share.

    Args:
        tree: arguments.
        met: ids of the tensors that were met before; grows.
    """
    if isinstance(tree, torch.Tensor):
        if id(tree) not in met or isinstance(tree, torch.nn.Parameter):
            met.add(id(tree))
            return tree
        with torch.inference_mode(tree.is_inference()):
            return tree.detach().requires_grad_(tree.requires_grad)
    if type(tree) is dict:
        return {key: apart(item, met) for key, item in tree.items()}
    return type(tree)([apart(item, met) for item in tree]) if type(tree) in (list, tuple) else tree


def with_twins(tree: Any, twins: Mapping[int, torch.Tensor]) -> Any:
    """Return a copy of ``tree`` in which every tensor of ``twins`` (by id) is replaced by its twin.

    Objects of any class are copied, so that caches and the like which the model fills stay as the user passed them; of
    what cannot be copied whole, what holds tensors is copied; the rest is passed on as it is.
    """
    try:
        return copy.deepcopy(tree, dict(twins))
    except Exception:  # classes refuse to be copied by whatever class of error
        if isinstance(tree, torch.Tensor):
            return twins.get(id(tree), tree)
        if type(tree) is dict:
            return {key: with_twins(item, twins) for key, item in tree.items()}
        if type(tree) in (list, tuple):
            return type(tree)([with_twins(item, twins) for item in tree])
        return _shallow(tree, twins) if any(id(tensor) in twins for _, tensor in walk(tree)) else tree


def _shallow(tree: Any, twins: Mapping[int, torch.Tensor]) -> Any:
    """Return a shallow copy of an object with twins among its attributes; the object itself where it has no copy."""
    try:
        other = copy.copy(tree)
        if other is not tree:
            for name, item in attributes_of(tree).items():
                object.__setattr__(other, name, with_twins(item, twins))
        return other
    except Exception:  # as above
        return tree


def batch_copy(batch: Any) -> Any:
    """Return a batch whose tensors are copies, for a forward pass that may write to them; each is copied once."""
    return with_twins(batch, {id(tensor): _copy(tensor) for _, tensor in walk(batch)})


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_() if tensor.requires_grad else tensor.clone()


def describe(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Return names, shapes and dtypes of example inputs for a message."""
    parts = [
        f"{path}: {str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
        for path, tensor in input_tensors(args, kwargs)
    ]
    return ", ".join(parts) if parts else "no tensors; give example arguments (--shape 2,3,32,32 on the command line)"
