"""Activations of a Keras model, transformed so that the inputs of a deep net stay apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import keras
from torch import nn

from wellposed import nn as wn
from wellposed.errors import OptionError
from wellposed.frontends.keras.calls import run
from wellposed.frontends.keras.module import KerasModule, scopes
from wellposed.frontends.keras.variables import check_model, layers_of
from wellposed.graphs import Graph, trace
from wellposed.operators.schema import plain_name
from wellposed.options import check_positive, check_share
from wellposed.shaping.fitting import FUNCTIONAL, Shaping, fitted

_TORCH: dict[Any, Callable[[], nn.Module]] = {
    keras.activations.relu: nn.ReLU,
    keras.activations.leaky_relu: lambda: nn.LeakyReLU(0.2),
    keras.activations.gelu: nn.GELU,
    keras.activations.silu: nn.SiLU,
    keras.activations.tanh: nn.Tanh,
    keras.activations.softplus: nn.Softplus,
    keras.activations.elu: nn.ELU,
    keras.activations.celu: nn.CELU,
}
"""What Keras' activations are, with their defaults, in PyTorch."""
_NUMBERS = ("input_scale", "input_shift", "output_scale", "output_shift")


@keras.saving.register_keras_serializable(package="wellposed")
class Shaped:
    """An activation of a Keras layer whose input and output are scaled and shifted: ``a (f(b x + c) + d)``.

    `shape_` chooses the numbers, which stand in the layer's configuration: a model is saved and loaded with them.

    Args:
        f: an activation, or the name of Keras' own.
        negative_slope: of ``f``, where it takes one.
        input_scale: b.
        input_shift: c.
        output_scale: a.
        output_shift: d.
    """

    def __init__(
        self,
        f: Any,
        *,
        negative_slope: float | None = None,
        input_scale: float = 1.0,
        input_shift: float = 0.0,
        output_scale: float = 1.0,
        output_shift: float = 0.0,
    ) -> None:
        self.f = keras.activations.get(f)
        self.negative_slope = negative_slope
        self.input_scale, self.input_shift = float(input_scale), float(input_shift)
        self.output_scale, self.output_shift = float(output_scale), float(output_shift)
        self.__name__ = f"shaped_{getattr(self.f, '__name__', type(self.f).__name__)}"  # Keras names functions by it

    @classmethod
    def of(cls, shaped: wn.Shaped, f: Any) -> Self:
        """Return the counterpart of a shaped activation of PyTorch that stands for Keras' ``f``."""
        numbers = {name: getattr(shaped, name) for name in _NUMBERS}
        if isinstance(shaped.f, nn.LeakyReLU):
            return cls("leaky_relu", negative_slope=shaped.f.negative_slope, **numbers)
        return cls(f, **numbers)

    def __call__(self, x: Any) -> Any:
        """Return the activation of ``x``, of its shape."""
        slope = {} if self.negative_slope is None else {"negative_slope": self.negative_slope}
        return wn.transformed(self, partial(self.f, **slope), x)

    def __repr__(self) -> str:
        """Show what makes it again."""
        return f"Shaped({', '.join(f'{name}={value!r}' for name, value in self.get_config().items())})"

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that make it again."""
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        return {"f": keras.activations.serialize(self.f), "negative_slope": self.negative_slope, **numbers}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Make it again."""
        return cls(**config)


def shape_(model: Any, *args: Any, similarity: float = 0.9, curvature: float = 0.3, **settings: Any) -> Shaping:
    """Transform a model's activations so that the inputs of a deep net stay apart; see `wellposed.shape_`.

    What is shaped are the activations of layers that are among ReLU, leaky ReLU, GELU, SiLU, tanh, softplus, ELU and
    CELU with Keras' defaults, as ``Dense(64, activation="relu")`` or ``Activation("relu")`` has them. Those of
    recurrent layers stay. Initialise the model afterwards, and compile it again.

    Args:
        model: a built `keras.Model` that is not trained yet.
        args: example inputs.
        similarity: wanted of two orthogonal inputs at the end, between 0 and 1 (rectifiers).
        curvature: wanted of the map of the whole net, > 0 (smooth activations).
        settings: for a worker.

    Returns:
        What was put where, by the layers' paths, with each as `wellposed.nn.Shaped`. ``undo()`` puts everything back.

    Raises:
        OptionError: targets out of range, or a model that is shaped already.
    """
    check_share(similarity=similarity)
    check_positive(curvature=curvature)
    check_model(model)
    shaped = next((layer.name for layer in layers_of(model) if isinstance(_activation(layer), Shaped)), None)
    if shaped is not None:
        raise OptionError(f"{shaped!r} is shaped already; undo() what shape_ returned before you shape it anew")
    found: Shaping = run(model, _numbers, args, {"similarity": similarity, "curvature": curvature, **settings})
    places = [place for place in _places(model) if place.name in found.activations]
    for place in places:
        place.put_(found.activations[place.name])
    return replace(found, _places=tuple(places))


@dataclass(frozen=True)
class _Place:
    """The activation of a layer."""

    model: Any
    layer: Any
    name: str
    f: Any

    @property
    def before(self) -> nn.Module:
        """The activation in PyTorch."""
        return _TORCH[self.f]()

    def runs(self, module: str, _op: str) -> bool:
        """Whether an operator of this layer, by its path, belongs to the activation."""
        return module == self.name

    def put_(self, shaped: wn.Shaped | None) -> None:
        """Put a transformed activation into the layer, or back what was there; what was compiled of it is dropped."""
        self.layer.activation = self.f if shaped is None else Shaped.of(shaped, self.f)
        for name in ("train_function", "test_function", "predict_function"):
            if getattr(self.model, name, None) is not None:
                setattr(self.model, name, None)


def _numbers(module: KerasModule, *args: Any, similarity: float, curvature: float) -> Shaping:
    """Return what activations become, by the layers' paths; the model is as it was."""
    given = module.given(args)
    graph = trace(module, *given)
    places, left = _found(module.model, graph)
    try:
        shaping = fitted(graph, places, left, lambda: trace(module, *given), similarity, curvature)
    finally:
        for place in places:
            place.put_(None)
    return replace(shaping, _places=())


def _found(model: Any, graph: Graph) -> tuple[list[_Place], list[str]]:
    """Return the activations that can be replaced and that run, and the layers of others, in words."""
    acting: Mapping[str, str] = {
        node.module: plain_name(node.op) for node in reversed(graph.nodes) if plain_name(node.op) in FUNCTIONAL
    }
    places = [place for place in _places(model) if place.name in acting]
    recurrent = _recurrent(_by_path(model))
    there = {place.name for place in places}
    left = [
        f"{name} ({kind}) is no activation that can be replaced: write it as "
        'keras.layers.Activation("relu"), or as activation="relu" of a layer'
        for name, kind in reversed(list(acting.items()))
        if name not in there and not _within(name, recurrent)
    ]
    return places, left


def _places(model: Any) -> Iterator[_Place]:
    """Yield the activations of a model's layers that can be transformed; those of recurrent layers and cells stay."""
    layers = _by_path(model)
    recurrent = _recurrent(layers)
    for path, layer in layers:
        f = _activation(layer)
        if any(f is known for known in _TORCH) and not _within(path, recurrent):
            yield _Place(model, layer, path, f)


def _activation(layer: Any) -> Any:
    """Return a layer's activation, if it has one."""
    return getattr(layer, "activation", None)


def _by_path(model: Any) -> list[tuple[str, Any]]:
    """Return the layers inside a model with the paths that a graph has for them."""
    layers = {id(layer): layer for layer in layers_of(model)}
    return [(path, layers[key]) for key, (path, _, _) in scopes(model) if key in layers]


def _recurrent(layers: Iterable[tuple[str, Any]]) -> list[str]:
    """Return the paths of recurrent layers."""
    return [path for path, layer in layers if isinstance(layer, keras.layers.RNN)]


def _within(path: str, holders: Iterable[str]) -> bool:
    """Whether a layer is one of some layers, or inside of one."""
    return any(path == holder or path.startswith(f"{holder}/") for holder in holders)
