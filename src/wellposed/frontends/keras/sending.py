"""Calls on a Keras model: here where Keras runs on torch, else in a worker process that has it on torch.

What is sent is the model as Keras serialises it, the values of its variables, and what it calls everything: a worker
that builds a model again may give variables and layers other names, and random streams are keyed by name.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import FunctionType
from typing import Any

import keras
from torch import Tensor

from wellposed.checks.check import AGAIN
from wellposed.errors import InputError, OptionError, UnsupportedError
from wellposed.extras import installing
from wellposed.frontends.base import is_array
from wellposed.frontends.keras import processes
from wellposed.frontends.keras.variables import check_model, layers_of, trained_in
from wellposed.measuring.batches import is_described

TIME_LIMIT = 600.0
"""Seconds that a worker may take, if nothing else is said."""

_SENT_FROM = ("tensorflow", "jax")
_LONG = 400
_NAMELESS = "<lambda>"
_COMPILED = "compile_config"
_GLOBAL = ("floatx", "epsilon", "image_data_format")


@dataclass(frozen=True)
class Sent:
    """A Keras model on its way to a worker.

    Attributes:
        name: the model's, for messages.
        config: what Keras serialises it to.
        custom_objects: classes and functions that the configuration refers to, by name.
        variables: of each variable in the model's order its path, its values, and whether it is trained: None for what
            is no parameter.
        layers: of each layer in the model's order its path, name and class, and whether it is trained.
        settings: what Keras is set to: types, layout of pictures.
        policy: the default one of types.
    """

    name: str
    config: Any
    custom_objects: Mapping[str, Any]
    variables: list[tuple[str, Any, bool | None]]
    layers: list[tuple[str | None, str, str, bool]]
    settings: Mapping[str, Any]
    policy: Any


@dataclass(frozen=True)
class Job:
    """A call of ``function(module, *args, **settings)`` on a model; the function is sent by its name."""

    model: Sent
    function: Callable[..., Any]
    args: tuple[Any, ...]
    settings: Mapping[str, Any]


def on_torch() -> bool:
    """Whether Keras runs on torch in this process.

    Raises:
        UnsupportedError: it runs on another backend than was asked for, or on one that no model is sent from.
    """
    backend, asked = keras.config.backend(), os.environ.get("KERAS_BACKEND", "")
    if asked and asked != backend:
        raise UnsupportedError(
            f"KERAS_BACKEND says {asked}, but Keras was loaded with {backend} before: set it before keras is imported"
        )
    if backend != "torch" and backend not in _SENT_FROM:
        raise UnsupportedError(
            f"Keras runs on {backend}, and wellposed.keras takes models on torch, {' and '.join(_SENT_FROM)}: set "
            "KERAS_BACKEND before keras is imported"
        )
    return bool(backend == "torch")


def in_worker(
    model: Any,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    settings: Mapping[str, Any],
    *,
    time_limit: float = TIME_LIMIT,
    custom_objects: Mapping[str, Any] | None = None,
) -> Any:
    """Return the result of a function of a `KerasModule`, called in a process where Keras runs on torch.

    The model is only read.

    Args:
        model: a built Keras model.
        function: of a module, called as ``function(module, *args, **settings)``.
        args: what the model is called with.
        settings: of the function; batches under ``inputs`` are read as far as ``draws`` may ask for them.
        time_limit: seconds that the worker may take.
        custom_objects: classes and functions that the model's configuration refers to, by name.

    Raises:
        InputError: no Keras model, or one that is not built.
        OptionError: a time limit that is no positive number.
        UnsupportedError: the model cannot be serialised or built again.
        WorkerError: the worker died, or took longer than the limit; the message has its last lines.
        WellposedError: whatever the function raises.
    """
    if not time_limit > 0:
        raise OptionError(f"time_limit is a number of seconds > 0, got {time_limit!r}")
    settings = dict(settings)
    if "inputs" in settings:
        settings["inputs"] = _batches(settings["inputs"], (1 + AGAIN) * int(settings.get("draws", 8)))
    sent = partial(_sent, custom_objects=dict(custom_objects or {}))
    settings = with_models(settings, keras.Model, sent)
    job = Job(sent(model), function, tuple(_plain(arg) for arg in args), settings)
    kind, result = processes.ask(_pickled(job), time_limit, function.__module__)
    if kind == "raised":
        raise result
    return result


def _pickled(job: Job) -> bytes:
    """Return a job as bytes; classes and functions that no worker can import are in it by value."""
    try:
        import cloudpickle
    except ModuleNotFoundError as error:
        raise OptionError(
            f"wellposed.keras needs cloudpickle where Keras does not run on torch: {installing('keras')}"
        ) from error
    try:
        written: bytes = cloudpickle.dumps(job)
    except Exception as error:
        raise UnsupportedError(
            f"the call cannot be sent to a worker ({summary(error)}): classes and functions of your own may refer to "
            "modules, numbers and arrays, not to what is open or running"
        ) from error
    return written


def with_models(settings: Mapping[str, Any], kind: type, converted: Callable[[Any], Any]) -> dict[str, Any]:
    """Return settings of a function in which the models among the options of a method are converted.

    Args:
        settings: of the function; options of a method stand among them, or under ``options``.
        kind: what models are.
        converted: what becomes of one.
    """
    changed = {name: converted(value) if isinstance(value, kind) else value for name, value in settings.items()}
    if isinstance(changed.get("options"), Mapping):
        changed["options"] = with_models(changed["options"], kind, converted)
    return changed


def summary(error: Exception) -> str:
    """Return an error in a line or two; Keras puts whole configurations into its own."""
    innermost = str(error).rpartition("Exception encountered: ")[2]
    return f"{type(error).__name__}: {innermost if len(innermost) <= _LONG else innermost[:_LONG] + ' ...'}"


# ---- the model ------------------------------------------------------------------------------------------------------


def _sent(model: Any, custom_objects: dict[str, Any]) -> Sent:
    """Return a model's configuration and variables as a worker takes them; raises `UnsupportedError` if it cannot."""
    check_model(model)
    called = f"{type(model).__name__} {model.name!r}"
    try:
        with warnings.catch_warnings(), _named_functions(model) as functions:
            warnings.simplefilter("ignore")  # about lambdas, which are not kept
            config = _without_compiling(keras.saving.serialize_keras_object(model))
    except Exception as error:
        raise UnsupportedError(
            f"{called} cannot be serialised for a worker ({summary(error)}): give its classes a "
            "get_config, or plan the model where Keras runs on torch (KERAS_BACKEND=torch, built by a function in a "
            "file), save the plan, and write it here with wk.apply_"
        ) from error
    for layer in _with_lambdas(config, model.name):
        raise UnsupportedError(
            f"layer {layer!r} of {called} holds a lambda where Keras keeps its bytecode alone: make it a function (def)"
        )
    trained = trained_in(model)
    return Sent(
        name=called,
        config=config,
        custom_objects=_found(model, config, functions, custom_objects),
        variables=[
            (v.path, keras.ops.convert_to_numpy(v.value), bool(v.trainable) if id(v) in trained else None)
            for v in model.variables
        ],
        layers=[(one.path, one.name, type(one).__name__, bool(one.trainable)) for one in layers_of(model)],
        settings={name: getattr(keras.config, name)() for name in _GLOBAL},
        policy=keras.saving.serialize_keras_object(keras.config.dtype_policy()),
    )


def _without_compiling(config: Any) -> Any:
    """Return a configuration without losses and optimizers, which need not be known where the model is planned."""
    if isinstance(config, dict):
        return {key: _without_compiling(value) for key, value in config.items() if key != _COMPILED}
    if isinstance(config, (list, tuple)):
        return type(config)(_without_compiling(value) for value in config)
    return config


def _with_lambdas(config: Any, layer: str) -> Iterator[str]:
    """Yield the names of the layers that hold a lambda, which Keras turns into bytecode without what it refers to."""
    if isinstance(config, dict):
        layer = config["name"] if isinstance(config.get("name"), str) else layer
        if config.get("class_name") == "__lambda__" or (set(config) == {"value"} and type(config["value"]) is tuple):
            yield layer
    parts = config.values() if isinstance(config, dict) else config if isinstance(config, (list, tuple)) else ()
    for part in parts:
        yield from _with_lambdas(part, layer)


@contextmanager
def _named_functions(model: Any) -> Iterator[dict[str, Any]]:
    """Yield the functions that layers were given by the name that configurations have for them.

    Inside the block lambdas have names too, so that a configuration refers to them instead of keeping their bytecode.
    """
    functions = [
        value
        for layer in layers_of(model)
        for value in vars(layer).values()
        if isinstance(value, FunctionType) and value.__module__.partition(".")[0] != "keras"
    ]
    nameless = {id(one): one for one in functions if one.__name__ == _NAMELESS}
    try:
        for place, one in enumerate(nameless.values()):
            one.__name__ = f"lambda_{place}"
        yield {keras.saving.get_registered_name(one): one for one in functions}
    finally:
        for one in nameless.values():
            one.__name__ = _NAMELESS


def _found(model: Any, config: Any, functions: Mapping[str, Any], custom_objects: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a configuration refers to from outside Keras, by name; raises `UnsupportedError` if it is unclear."""
    classes = _classes(model)
    known = {**{kind.__name__: kind for kind in classes}, **functions}
    names = Counter(kind.__name__ for kind in classes)
    found = dict(custom_objects)
    for name, registered, made in _own_objects(config, known):
        if name in custom_objects or registered in custom_objects:
            continue
        if made is None or names[name] > 1:
            why = "is not found in its module" if made is None else "is the name of two classes"
            raise UnsupportedError(
                f"{name!r}, which {type(model).__name__} {model.name!r} is made of, {why}: pass "
                f"custom_objects={{{name!r}: ...}}"
            )
        found[registered or name] = made
    return found


def _classes(model: Any) -> set[type]:
    """Return the classes of a model's layers, and of what layers hold."""
    return {type(part) for layer in layers_of(model) for part in (layer, *vars(layer).values())}


def _own_objects(config: Any, known: Mapping[str, Any]) -> Iterator[tuple[str, str | None, Any]]:
    """Yield a configuration's objects from outside Keras: name, registered name, and the object; None if not found."""
    if isinstance(config, dict):
        kind, module, registered = config.get("class_name"), config.get("module"), config.get("registered_name")
        if kind == "function":  # whose module is not said
            if config["config"] in known:
                yield config["config"], config["config"], known[config["config"]]
        elif (
            isinstance(kind, str) and "module" in config and str(module).partition(".")[0] not in ("keras", "builtins")
        ):
            made = known.get(kind)
            if made is None and module in sys.modules:
                made = vars(sys.modules[module]).get(kind)
            yield kind, registered, made
    parts = config.values() if isinstance(config, dict) else config if isinstance(config, (list, tuple)) else ()
    for part in parts:
        yield from _own_objects(part, known)


# ---- what it is called with -----------------------------------------------------------------------------------------


def _plain(tree: Any) -> Any:
    """Return a user's arguments with the backend's tensors as arrays of NumPy."""
    return keras.tree.map_structure(_array, tree)


def _array(value: Any) -> Any:
    return keras.ops.convert_to_numpy(value) if is_array(value) and not isinstance(value, Tensor) else value


def _batches(inputs: Any, count: int) -> Any:
    """Return inputs of real passes as a worker takes them: a description, or a list of at most ``count`` batches."""
    if is_array(inputs) or is_described(inputs):
        return _plain(inputs)
    given = _asked_for(inputs) if callable(inputs) else inputs
    batches = [_plain(batch) for batch in islice(given, count)]
    if not batches:
        raise InputError("inputs is an iterable without a single batch; give at least one")
    return batches


def _asked_for(function: Callable[[int], Any]) -> Iterator[Any]:
    """Yield the batches of a function of the draw's index, until it has no more."""
    draw = 0
    while True:
        try:
            batch = function(draw)
        except IndexError:
            if draw == 0:
                raise
            return
        yield batch
        draw += 1
