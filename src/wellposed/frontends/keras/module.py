"""A Keras model as a module: its variables under their paths, its layers' names, its inputs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import keras
import torch
from keras.src.utils.naming import to_snake_case
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from wellposed.errors import InputError, UnsupportedError
from wellposed.frontends.base import BATCH, Frontend, is_array, unique
from wellposed.frontends.keras.variables import check_model, layers_of, made_again, named_variables, trained_in
from wellposed.frontends.keras.whole import whole_operators
from wellposed.graphs.modules import ModuleStack, running

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class KerasModule(Frontend):
    """A built Keras model as a module. It shares the memory of the model's variables, and changes nothing else of it.

    What a pass writes (moving averages, states of random generators) it keeps for itself, as a training needs it.

    Attributes:
        added: the losses that the layers added in the last pass that was not traced: penalties on weights and signals.

    Args:
        model: a `keras.Model`, or a layer; built, on the torch backend.

    Raises:
        InputError: no Keras model, or one that is not built.
        UnsupportedError: Keras runs on another backend; a layer is quantised, or runs another framework's code.
    """

    def __init__(self, model: Any) -> None:
        """Register the model's variables by path; those of recurrent cells are kept by plans."""
        super().__init__()
        _check_backend()
        check_model(model)
        self._model = (model,)  # in a tuple, or it would be registered: on this backend a layer is a module itself
        self._scopes = dict(scopes(model))
        self.added: list[Tensor] = []
        trained = trained_in(model)
        self._variables = named_variables(model)
        recurrent = _in_cells(model)
        for name, variable in self._variables.items():
            self.hold(name, variable.value, trained=id(variable) in trained)
            if id(variable) in recurrent & trained:
                self.kept_by_plans[name] = "recurrent weights keep their default scheme (Appendix A)"

    @property
    def model(self) -> Any:
        """The Keras model."""
        return self._model[0]

    @property
    def variables(self) -> dict[str, Any]:
        """The model's variables, by path."""
        return self._variables

    @staticmethod
    def title(model: Any) -> str:
        """Return the name that a model was given, or its class where Keras made the name of that."""
        kind, name = type(model).__name__, str(getattr(model, "name", ""))
        made = re.fullmatch(rf"{re.escape(to_snake_case(kind))}(_\d+)?", name)
        return kind if made or not name else name

    def forward(self, *inputs: Any) -> Any:
        """Call the model with the tensors that are registered now, in this module's mode."""
        (model,) = self._model
        stack = running()
        values = [(variable, self.held(name)) for name, variable in self._variables.items()]
        with (
            keras.StatelessScope(values, collect_losses=True) as scope,
            nullcontext() if stack is None else self._named(stack),
            nullcontext() if stack is None else whole_operators(),
        ):
            outputs = model(*inputs, training=self.training)
            self.added = model.losses if stack is None else []
        if stack is None:
            for name, before in self._buffers.items():
                after = scope.get_current_value(self._variables[name])
                if after is not before:
                    self._buffers[name] = after.detach()
        return outputs

    def example(self) -> tuple[Any, ...]:
        """Return normal numbers, or zeros for integers, of the shapes that the model was built for."""
        (model,) = self._model
        return (keras.tree.map_structure(_example, _specification(model)),)

    def input_names(self, args: tuple[Any, ...]) -> dict[str, str]:
        """Return the names of a graph's inputs by those of the model's, and by keys of dicts."""
        (model,) = self._model
        struct = getattr(getattr(model, "_functional", None) or model, "_inputs_struct", None)
        symbols = [] if struct is None or len(args) != 1 else keras.tree.flatten_with_path(struct)
        own = {symbol.name: ".".join(["0", *map(str, path)]) for path, symbol in symbols}
        return own | super().input_names(args)

    def converted(self, tree: Any) -> Any:
        """Return arguments with every array as a tensor."""
        return keras.tree.map_structure(_tensor, tree)

    def reset_parameters(self) -> None:
        """Write what Keras would hold into the memory that is registered now; asked of a copy, for models on meta."""
        (model,) = self._model
        names = {id(variable): name for name, variable in self._variables.items()}
        with keras.device("cpu"):
            for variable, again in made_again(model):
                self.held(names[id(variable)]).copy_(again.value)

    @contextmanager
    def _named(self, stack: ModuleStack) -> Iterator[None]:
        """Follow the model's layers, which call one another as modules do."""

        def starts(module: nn.Module, _args: Any) -> None:
            scope = self._scopes.get(id(module))
            if scope is not None:
                stack.enter(id(module), *scope)

        def ends(module: nn.Module, _args: Any, _output: Any) -> None:
            if id(module) in self._scopes:
                stack.leave(id(module))

        before = register_module_forward_pre_hook(starts)
        after = register_module_forward_hook(ends)
        try:
            yield
        finally:
            before.remove()
            after.remove()


def _check_backend() -> None:
    """Raise `UnsupportedError` unless Keras runs on torch in this process."""
    backend = keras.config.backend()
    if backend != "torch":
        raise UnsupportedError(
            f"Keras runs on {backend} in this process, and its models can be traced on torch only: set "
            "KERAS_BACKEND=torch before keras is imported (wk.plan, wk.check and the like ask a worker)"
        )


def scopes(model: Any) -> Iterator[tuple[int, tuple[str, str, bool]]]:
    """Yield, for every layer inside the model by id, its path, its class and whether no other layer runs inside it.

    A layer's path is that of its variables. One that has none stands under the layer that holds it, where its siblings
    do: layers that were called on symbolic inputs have paths of their own, in whichever model they are.
    """
    held: dict[int, tuple[Any, str]] = {}
    waiting: list[tuple[Any, str]] = [(model, model.path or "")]
    while waiting:
        holder, path = waiting.pop(0)
        own = holder is not model and not holder.path
        beside = any((child.path or "").startswith(f"{path}/") for child in holder._layers)
        prefix = f"{path}/" if own or beside else ""
        for child in holder._layers:
            if id(child) not in held:
                held[id(child)] = child, child.path or f"{prefix}{child.name}"
                waiting.append(held[id(child)])
    for (key, (layer, _)), path in zip(held.items(), unique(path for _, path in held.values()), strict=True):
        yield key, (path, type(layer).__name__, not layer._layers)


def _in_cells(model: Any) -> set[int]:
    """Return the ids of the variables in recurrent cells, which run once for every step."""
    recurrent = (layer for layer in layers_of(model) if isinstance(layer, keras.layers.RNN))
    return {id(variable) for layer in recurrent for variable in layer.cell.variables}


def _specification(model: Any) -> Any:
    """Return the shapes and dtypes of the model's inputs, in the structure that it is called with."""
    inner = getattr(model, "_functional", None) or model  # what a Sequential model runs
    symbolic = getattr(inner, "_inputs_struct", None)
    if symbolic is not None:
        return symbolic
    shape = (model.get_build_config() or {}).get("input_shape")
    sizes = isinstance(shape, (tuple, list)) and all(size is None or isinstance(size, int) for size in shape)
    arguments = inspect.signature(model.call).parameters.values()
    if not sizes or len([one for one in arguments if one.default is one.empty and one.kind in _POSITIONAL]) != 1:
        raise InputError(
            f"{type(model).__name__} {model.name!r} does not say what inputs it takes: pass an example "
            "(wk.plan(model, batch))"
        )
    return keras.KerasTensor(tuple(shape or ()), dtype=model.input_dtype)


def _example(symbol: Any) -> Tensor:
    """Return a tensor of a symbolic input's shape and dtype."""
    shape = (BATCH, *symbol.shape[1:])
    if None in shape:
        raise InputError(
            f"input {symbol.name!r} of shape {tuple(symbol.shape)} has axes of any length: pass an example "
            "(wk.plan(model, batch))"
        )
    dtype = getattr(torch, keras.backend.standardize_dtype(symbol.dtype))
    if dtype.is_floating_point:
        return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    return torch.zeros(shape, dtype=dtype)


def _tensor(value: Any) -> Any:
    """Return an array as a tensor; numbers, strings and None as they are."""
    return keras.ops.convert_to_tensor(value) if is_array(value) and not isinstance(value, Tensor) else value
