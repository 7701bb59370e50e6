"""Networks that Keras 2 saved as JSON, built in Keras 3 by replaying the calls of their layers."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
from keras.src.saving.serialization_lib import SafeModeScope

from wellposed.errors import InputError, UnsupportedError
from wellposed.frontends.keras.sending import summary
from wellposed.frontends.keras.variables import long_paths

_MODELS = ("Functional", "Model", "Sequential")
_NEUTRAL: dict[str, tuple[Any, ...]] = {"groups": (1,), "implementation": (0, 1, 2)}
"""Arguments that Keras 3 lacks, with the values that change nothing, beside false and empty ones."""
_RENAMED = {("LeakyReLU", "alpha"): "negative_slope"}
_ACTIVATIONS = ("activation", "recurrent_activation")
_INNER = ("layer", "backward_layer", "cell")
_Functions = Mapping[str, Callable[..., Any]]


def hard_sigmoid(x: Any) -> Any:
    """Return what Keras 2 computes under this name: the slope of Keras 3 is 1/6, that of Keras 2 is 0.2."""
    return keras.ops.clip(0.2 * x + 0.5, 0.0, 1.0)


keras.saving.register_keras_serializable(package="wellposed")(hard_sigmoid)  # for workers, which load it by its name


def from_keras2(text: str, lambdas: _Functions | None = None) -> Any:
    """Return a network of Keras 2 as a model of Keras 3, with weights as Keras draws them.

    Its layers are made from their configurations, without arguments that Keras 3 has not and that say nothing, and
    called node by node as they were.

    Args:
        text: what ``model.to_json()`` of Keras 2 gave.
        lambdas: for each `Lambda` layer, by name, a function of what the layer is called with. Any other layer that
            has no counterpart in Keras 3 can be given one too. Bytecode in the text is never run.

    Raises:
        InputError: no JSON of a sequential or functional model of Keras 2, or one whose nodes refer to none.
        UnsupportedError: a Lambda without a function, a layer or an argument that Keras 3 does not have.
    """
    try:
        told = json.loads(text)
        kind, config = told["class_name"], told["config"]
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"this is no model that Keras 2 saved as JSON ({summary(error)}): pass what model.to_json() gave"
        ) from error
    if kind not in _MODELS:
        raise InputError(f"a {kind} is neither a functional nor a sequential model, whose layers and calls JSON holds")
    with SafeModeScope(True):  # whatever Keras is set to
        return _model(kind, config, lambdas or {})


def _model(kind: str, config: Any, lambdas: _Functions) -> Any:
    if kind == "Sequential":
        return _sequential(config, lambdas)
    return _Replay(config, lambdas).model()


def _sequential(config: Any, lambdas: _Functions) -> Any:
    """Return a Sequential model with the layers of a configuration."""
    named = config if isinstance(config, dict) else {"name": None, "layers": config}  # a list, before Keras 2.2
    model = keras.Sequential(name=named["name"])
    for place, told in enumerate(named["layers"]):
        shape = told["config"].get("batch_input_shape") if isinstance(told["config"], dict) else None
        if told["class_name"] == "InputLayer":
            model.add(_input(told["config"]))
            continue
        if place == 0 and shape is not None:
            model.add(keras.Input(batch_shape=shape, dtype=_dtype(told["config"].get("dtype"))))
        model.add(_layer(told, lambdas))
    return model


class _Replay:
    """The calls of a functional model, node by node."""

    def __init__(self, config: Mapping[str, Any], lambdas: _Functions) -> None:
        """Make the layers, and list the calls that wait for tensors of others."""
        self._config = config
        self._tensors: dict[tuple[str, int, int], Any] = {}
        self._waiting: list[tuple[str, int, Any]] = []
        self._layers: dict[str, Any] = {}
        first = self._first_nodes()
        for told in config["layers"]:
            name = told.get("name") or told["config"]["name"]
            if told["class_name"] == "InputLayer":
                self._tensors[name, 0, 0] = _input(told["config"])
                continue
            self._layers[name] = _layer(told, lambdas)
            start = first.get(name, 0) if told["class_name"] in _MODELS else 0
            self._waiting += [(name, start + number, node) for number, node in enumerate(told["inbound_nodes"])]

    def _first_nodes(self) -> dict[str, int]:
        """Return the lowest node of each layer that is referred to: calls of nested models are counted from 1."""
        first: dict[str, int] = {}
        nodes = [node for told in self._config["layers"] for node in told["inbound_nodes"]]
        for name, node, _ in _references([*nodes, self._config["output_layers"]]):
            first[name] = min(node, first.get(name, node))
        return first

    def model(self) -> Any:
        """Call every layer as often as it was called, and return the model of it all."""
        while self._waiting:
            left = []
            for name, number, node in self._waiting:
                if all(reference in self._tensors for reference in _references(node)):
                    self._call(name, number, node)
                else:
                    left.append((name, number, node))
            if len(left) == len(self._waiting):
                name, _, node = left[0]
                missing = [one for one in _references(node) if one not in self._tensors]
                raise InputError(f"layer {name!r} is called with {missing[0]}, which no layer of the model returns")
            self._waiting = left
        given, returned = (self._given(self._config[f"{end}_layers"]) for end in ("input", "output"))
        with long_paths(len(self._tensors)):
            return keras.Model(given, returned, name=self._config.get("name"))

    def _call(self, name: str, number: int, node: Any) -> None:
        """Call a layer as one of its nodes says, and keep the tensors that it gives."""
        if not isinstance(node, list) or not all(_is_entry(entry) for entry in node):
            raise UnsupportedError(f"layer {name!r} is called with a structure of tensors that is no list: {node!r}")
        tensors = [self._tensors[entry[0], entry[1], entry[2]] for entry in node]
        given = node[0][3] if len(node[0]) > 3 else {}
        further = {key: self._given(value) for key, value in given.items() if value is not None}
        try:
            made = self._layers[name](tensors[0] if len(tensors) == 1 else tensors, **further)
        except Exception as error:
            raise UnsupportedError(
                f"layer {name!r} ({type(self._layers[name]).__name__}) cannot be called as in Keras 2: {summary(error)}"
            ) from error
        for place, tensor in enumerate(keras.tree.flatten(made)):
            self._tensors[name, number, place] = tensor

    def _given(self, told: Any) -> Any:
        """Return a structure of references as one of tensors; one reference in a list as itself."""
        if _is_reference(told):
            return self._tensors[told[0], told[1], told[2]]
        if isinstance(told, dict):
            return {key: self._given(value) for key, value in told.items()}
        if isinstance(told, list) and told and all(_is_reference(one) for one in told):
            return [self._given(one) for one in told] if len(told) > 1 else self._given(told[0])
        return told


def _is_entry(told: Any) -> bool:
    return isinstance(told, list) and _is_reference(told[:3]) and len(told) <= 4


def _is_reference(told: Any) -> bool:
    return isinstance(told, list) and [type(part) for part in told] == [str, int, int]


def _references(told: Any) -> Iterator[tuple[str, int, int]]:
    """Yield layer, node and place of every tensor that a structure refers to."""
    if isinstance(told, list) and _is_reference(told[:3]):
        yield told[0], told[1], told[2]
        told = told[3:]
    parts = told.values() if isinstance(told, dict) else told if isinstance(told, list) else ()
    for part in parts:
        yield from _references(part)


# ---- layers ---------------------------------------------------------------------------------------------------------


def _input(config: Mapping[str, Any]) -> Any:
    return keras.Input(
        batch_shape=config["batch_input_shape"], dtype=_dtype(config.get("dtype")), name=_name(config.get("name"))
    )


def _name(name: str | None) -> str | None:
    return None if name is None else name.replace("/", "_")  # slashes separate the parts of paths in Keras 3


def _dtype(told: Any) -> Any:
    return told["config"]["name"] if isinstance(told, dict) else told  # a policy


def _layer(told: Mapping[str, Any], lambdas: _Functions) -> Any:
    """Make a layer; a nested model likewise."""
    kind, config = told["class_name"], told["config"]
    if kind in _MODELS:
        return _model(kind, config, lambdas)
    name = told.get("name") or config.get("name")
    if name in lambdas:
        return keras.layers.Lambda(lambdas[name], name=_name(name), arguments=config.get("arguments"))
    if kind == "Lambda":
        raise UnsupportedError(
            f"layer {name!r} is a Lambda, whose bytecode is never run: pass lambdas={{{name!r}: function}}"
        )
    made = _class_of(kind, name)
    try:
        return made.from_config(_arguments(made, kind, name, config, lambdas))
    except UnsupportedError:
        raise
    except Exception as error:
        raise UnsupportedError(
            f"layer {name!r} ({kind}) cannot be made from its configuration in Keras 2 ({summary(error)})"
        ) from error


def _class_of(kind: str, name: str) -> Any:
    """Return the class of Keras 3 of that name; raises `UnsupportedError` where there is none."""
    made = getattr(keras.layers, kind, None)
    if made is None:
        raise UnsupportedError(
            f"layer {name!r} is a {kind}, which Keras 3 does not have: pass lambdas={{{name!r}: function}}"
        )
    return made


def _arguments(made: Any, kind: str, name: str, config: Mapping[str, Any], lambdas: _Functions) -> dict[str, Any]:
    """Return the arguments of a layer for Keras 3, without those that Keras 3 lacks and that change nothing."""
    known = _known_to(made)
    arguments: dict[str, Any] = {}
    for given, value in config.items():
        key = _RENAMED.get((kind, given), given)
        if key == "batch_input_shape":
            continue
        if key in _INNER and isinstance(value, dict):
            arguments[key] = _inner(value, lambdas)
        elif key in _ACTIVATIONS and value == "hard_sigmoid":
            arguments[key] = keras.saving.serialize_keras_object(hard_sigmoid)
        elif key in known:
            arguments[key] = _dtype(value) if key == "dtype" else _name(value) if key == "name" else value
        elif value and value not in _NEUTRAL.get(key, ()):
            raise UnsupportedError(
                f"layer {name!r} ({kind}) has {key}={value!r}, an argument that Keras 3 does not have"
            )
    if kind == "BatchNormalization" and isinstance(arguments.get("axis"), list):
        (arguments["axis"],) = arguments["axis"]
    return arguments


def _known_to(layer_class: Any) -> set[str]:
    """Return the arguments that a class and its bases take."""
    classes = [one for one in layer_class.__mro__ if "__init__" in vars(one)]
    return {key for one in classes for key in inspect.signature(one.__init__).parameters}


def _inner(told: Mapping[str, Any], lambdas: _Functions) -> dict[str, Any]:
    """Return the configuration of a layer in a wrapper, as Keras 3 has it."""
    kind, config = told["class_name"], told["config"]
    made = _layer(told, lambdas) if kind in _MODELS or kind == "Lambda" else None
    if made is not None:
        serialised: dict[str, Any] = keras.saving.serialize_keras_object(made)
        return serialised
    name = config.get("name", kind)
    arguments = _arguments(_class_of(kind, name), kind, name, config, lambdas)
    return {"module": "keras.layers", "class_name": kind, "config": arguments, "registered_name": None}
