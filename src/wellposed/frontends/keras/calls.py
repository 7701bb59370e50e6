"""Calls on a Keras model, here where Keras runs on torch, or else in a worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from wellposed.frontends.keras import sending, variables
from wellposed.frontends.keras.module import KerasModule
from wellposed.plans import Plan

FOR_WORKER = ("time_limit", "custom_objects")
"""Settings of a call that a worker takes."""


def run(model: Any, function: Callable[..., Any], args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
    """Return the result of a function on a model's front end, here or in a worker, whose own settings are taken out.

    Args:
        model: a built Keras model, which is only read.
        function: called as ``function(module, *args, **settings)``.
        args: what the model is called with.
        settings: of the function, and for a worker. Models among them become front ends.
    """
    for_worker = {name: settings.pop(name) for name in FOR_WORKER if name in settings}
    if sending.on_torch():
        return function(KerasModule(model), *args, **sending.with_models(settings, keras.Model, KerasModule))
    return sending.in_worker(model, function, args, settings, **for_worker)


def write_(plan: Plan, model: Any, **settings: Any) -> None:
    """Write a plan into the variables of a model; ``settings`` and errors are those of `wellposed.Plan.apply_`."""
    if sending.on_torch():
        KerasModule(model).apply_(plan, **settings)
    else:
        variables.apply_(plan, model, **settings)
