"""The other side of `wellposed.frontends.keras.sending`: ``python -m wellposed.frontends.keras.worker JOB ANSWER``."""

from __future__ import annotations

import pickle
import sys
import traceback
import warnings
from itertools import zip_longest
from pathlib import Path
from typing import Any

import keras

from wellposed.errors import TraceError, UnsupportedError, WellposedError, WorkerError
from wellposed.frontends.keras.module import KerasModule
from wellposed.frontends.keras.sending import Job, Sent, summary, with_models
from wellposed.frontends.keras.variables import layers_of, long_paths

_ADVICE = (
    "its get_config must say all that it is made from, and what is not built by its configuration needs an example "
    "after the model"
)


def rebuilt(sent: Sent, args: tuple[Any, ...]) -> Any:
    """Return a model as it was sent: its layers, their paths and the values of its variables.

    Args:
        sent: the model.
        args: what it is called with, where it does not know its own shapes.

    Raises:
        UnsupportedError: it cannot be built from its configuration, or comes out otherwise; the message says where.
    """
    for name, value in sent.settings.items():
        getattr(keras.config, f"set_{name}")(value)
    keras.config.set_dtype_policy(keras.saving.deserialize_keras_object(sent.policy))
    try:
        with warnings.catch_warnings(), long_paths(_calls(sent.config)):
            warnings.simplefilter("ignore")  # the model is as it was made, and was warned of there
            model = keras.saving.deserialize_keras_object(sent.config, custom_objects=dict(sent.custom_objects))
            if args and len(model.variables) < len(sent.variables):
                model(*args)  # which builds what no configuration knows the shapes of
    except Exception as error:
        raise UnsupportedError(
            f"a worker cannot build {sent.name} again ({summary(error)}); classes of your own must be in modules "
            "that can be imported, or be passed as custom_objects={name: class}"
        ) from error
    _name_layers(model, sent)
    _fill(model, sent)
    return model


def _calls(config: Any) -> int:
    """Return how often layers are called in the functional models of a configuration."""
    parts = config.values() if isinstance(config, dict) else config if isinstance(config, (list, tuple)) else ()
    own = len(config.get("inbound_nodes") or ()) if isinstance(config, dict) else 0
    return own + sum(map(_calls, parts))


def _name_layers(model: Any, sent: Sent) -> None:
    """Call the layers what they are called where the model comes from, and freeze those that are frozen there."""
    layers = layers_of(model)
    kinds, wanted = [type(layer).__name__ for layer in layers], [kind for _, _, kind, _ in sent.layers]
    if kinds != wanted:
        built, meant = _first_difference(kinds, wanted)
        raise UnsupportedError(
            f"a worker builds {sent.name} with other layers than it has: {built} in the place of {meant} ({len(kinds)} "
            f"and {len(wanted)} layers); {_ADVICE}"
        )
    for layer, (path, name, _, trained) in zip(layers, sent.layers, strict=True):
        layer._path, layer.name = path, name
        layer.trainable = trained  # also of all inside it, which come after it


def _first_difference(own: list[Any], theirs: list[Any]) -> tuple[Any, Any]:
    """Return the first elements of two lists that differ; "none" where a list has ended."""
    return next(pair for pair in zip_longest(own, theirs, fillvalue="none") if pair[0] != pair[1])


def _fill(model: Any, sent: Sent) -> None:
    """Match variables by order and shape, and give them the paths and values that were sent."""
    own = [list(variable.shape) for variable in model.variables]
    theirs = [list(values.shape) for _, values, _ in sent.variables]
    if own != theirs:
        built, meant = _first_difference(own, theirs)
        path = next(
            (path for (path, _, _), one, other in zip(sent.variables, theirs, own, strict=False) if one != other),
            "the end",
        )
        raise UnsupportedError(
            f"a worker builds {sent.name} with other variables than it has: at {path} one of shape {built} in the "
            f"place of {meant} ({len(own)} and {len(theirs)} variables); {_ADVICE}"
        )
    for variable, (path, values, trained) in zip(model.variables, sent.variables, strict=True):
        variable._path = path
        if trained is not None:
            variable.trainable = trained
        variable.assign(values.astype("float32") if values.dtype.name == "bfloat16" else values)


def answer(job: Job) -> tuple[str, Any]:
    """Return ``returned`` and what the function of a job returned, or ``raised`` and its error."""
    try:
        if keras.config.backend() != "torch":
            raise UnsupportedError(
                f"Keras runs on {keras.config.backend()} in a worker that was asked for torch: something sets another "
                "backend at the start of Python (sitecustomize, a .pth file)"
            )
        model = rebuilt(job.model, job.args)
        settings = with_models(job.settings, Sent, lambda sent: KerasModule(rebuilt(sent, job.args)))
        return "returned", job.function(KerasModule(model), *job.args, **settings)
    except WellposedError as error:
        if isinstance(error, TraceError):
            error.partial = None
        return "raised", error
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        return "raised", WorkerError(f"the worker that has Keras on torch failed: {told}\n{traceback.format_exc()}")


def main(question: str, reply: str) -> None:
    """Answer the job in one file into another, which appears whole or not at all."""
    try:
        job = pickle.loads(Path(question).read_bytes())
    except Exception as error:
        result: tuple[str, Any] = (
            "raised",
            UnsupportedError(
                f"a worker cannot import what it was sent ({summary(error)}): custom_objects and "
                "options must come from modules on sys.path"
            ),
        )
    else:
        result = answer(job)
    try:
        written = pickle.dumps(result)
    except Exception as error:
        told = (
            f"the worker that has Keras on torch cannot send its answer ({type(result[1]).__name__}; {summary(error)})"
        )
        written = pickle.dumps(("raised", WorkerError(told)))
    part = Path(f"{reply}.part")
    part.write_bytes(written)
    part.rename(reply)


if __name__ == "__main__":
    main(*sys.argv[1:])
