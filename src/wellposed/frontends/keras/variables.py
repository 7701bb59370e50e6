"""What a Keras model holds, on any backend: its layers, and its variables under their paths, as tensors and back."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import torch
from torch import Tensor, nn

from wellposed.doors import door
from wellposed.errors import InputError, UnsupportedError
from wellposed.frontends.base import unique, written
from wellposed.plans import Plan

_FOREIGN = {
    "TorchModuleWrapper": "it wraps a torch module, whose weights Keras does not hand over",
    "TFSMLayer": "it holds a TensorFlow graph",
    "JaxLayer": "it holds a function of JAX",
    "FlaxLayer": "it holds a module of Flax",
}
"""Layers that run another framework's code, by class, with what keeps them from being traced."""


@contextmanager
def long_paths(calls: int) -> Iterator[None]:
    """Let Keras make a functional model of a number of calls inside the block: it walks each path by recursion."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + calls)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def check_model(model: Any) -> None:
    """Raise for what is no built Keras model, and for layers that cannot be traced, by name."""
    if not isinstance(model, keras.Layer):
        raise InputError(f"wellposed.keras takes a Keras model, got {type(model).__name__}{door(model)}")
    if not model.built or not (model.variables or all(layer.built for layer in layers_of(model))):
        raise InputError(
            f"{type(model).__name__} {model.name!r} is not built and has no weights yet: call it once on a batch, "
            "model(batch)"
        )
    for layer in layers_of(model):
        kind = type(layer).__name__
        if kind in _FOREIGN:
            raise UnsupportedError(
                f"layer {layer.name!r} ({kind}) of {model.name!r} cannot be traced: {_FOREIGN[kind]}"
            )
        if getattr(layer, "quantization_mode", None) is not None:
            raise UnsupportedError(
                f"layer {layer.name!r} ({kind}) of {model.name!r} is quantised ({layer.quantization_mode}); plan the "
                "model before model.quantize"
            )


def layers_of(model: Any) -> list[Any]:
    """Return the model and every layer in it, once each."""
    layers: list[Any] = model._flatten_layers()
    return layers


def named_variables(model: Any) -> dict[str, Any]:
    """Return the variables of a model under their paths, each under a name of its own."""
    variables = model.variables
    return dict(zip(unique([variable.path for variable in variables]), variables, strict=True))


def trained_in(model: Any) -> set[int]:
    """Return the ids of the variables that are parameters, frozen ones among them."""
    return {id(variable) for layer in layers_of(model) for variable in layer._trainable_variables}


def made_again(layer: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the variables inside a layer, each with one that holds what Keras drew for it, or draws again.

    Layers are made from their configurations, one by one: what cannot be, or comes out otherwise, is left out.
    """
    fresh = None if isinstance(layer, keras.Model) else _made_again(layer)
    if fresh is not None:
        yield from zip(layer.variables, fresh.variables, strict=True)
        return
    for child in layer._layers:
        yield from made_again(child)


def _made_again(layer: Any) -> Any:
    """Return a new layer of the same configuration with freshly drawn weights; None where it cannot be made."""
    try:
        fresh = type(layer).from_config(layer.get_config())
        fresh.build_from_config(layer.get_build_config())
    except Exception:  # a layer of the user's own may raise anything
        return None
    shapes, wanted = ([tuple(variable.shape) for variable in one.variables] for one in (fresh, layer))
    return fresh if shapes == wanted else None


def apply_(plan: Plan, model: Any, **settings: Any) -> None:
    """Write a plan into the variables of a model, on any backend; the torch backend has `KerasModule` for it.

    Args:
        plan: of this model, or of another with the same variables.
        model: a built Keras model.
        settings: of `wellposed.Plan.apply_`, whose errors these are; nothing is written where one is raised.
    """
    check_model(model)
    variables, trained = named_variables(model), trained_in(model)
    copies = type(type(model).__name__, (nn.Module,), {})()
    for name, variable in variables.items():
        if id(variable) in trained:
            tensor = tensor_of(keras.ops.convert_to_numpy(variable.value))
            copies._parameters[name] = nn.Parameter(tensor, variable.trainable and tensor.is_floating_point())
    for name, tensor in written(plan, copies, **settings).items():
        variables[name].assign((tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy())


def tensor_of(array: Any) -> Tensor:
    """Return an array of NumPy as a tensor with memory of its own."""
    if array.dtype.name == "bfloat16":  # which NumPy itself does not know
        return torch.tensor(array.astype(np.float32)).to(torch.bfloat16)
    return torch.tensor(array)
