"""Keras 3 models: planned, initialised, checked and reported on, as `wellposed` does it for PyTorch's.

>>> import keras, wellposed.keras as wk  # doctest: +SKIP
>>> plan = wk.initialize_(model)  # doctest: +SKIP
>>> wk.check(model, plan=plan)  # doctest: +SKIP

Keras runs on its torch backend (``KERAS_BACKEND=torch``, set before keras is imported). Parameters are named by the
paths of Keras' variables. Example inputs are what the model is called with, as arrays or tensors; where none are given,
they are made from the shapes that the model was built for. What a function takes beside them, and what it raises, is
what its namesake in `wellposed` takes and raises; and in all of them

* `InputError`: no Keras model, one that is not built, or one whose inputs are not known and no example is given;
* `UnsupportedError`: Keras runs on another backend; a layer is quantised, or runs another framework's code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wellposed import checks, graphs, reports
from wellposed.errors import UnsupportedError
from wellposed.frontends.base import planned
from wellposed.graphs import Graph
from wellposed.plans import Plan
from wellposed.zoo import import_library

try:
    import_library("keras", what="wellposed.keras", extra="keras")
except ModuleNotFoundError as error:
    raise UnsupportedError(
        f"Keras looks for a backend that is not installed ({error.name}): set KERAS_BACKEND=torch before keras is "
        "imported"
    ) from error

from wellposed.frontends.keras import KerasModule

__all__ = ["KerasModule", "apply_", "check", "explain", "initialize_", "measure", "plan", "report", "trace"]


def trace(model: Any, *args: Any, training: bool = True) -> Graph:
    """Run a model once without changing it, and return the operators that it ran; see `wellposed.trace`.

    Args:
        model: a built `keras.Model`.
        args: example inputs.
        training: what the model is called with as ``training``.

    Returns:
        The graph, for `wellposed.propagate` and the like.
    """
    module = KerasModule(model)
    return graphs.trace(module, *module.given(args), training=training)


def plan(
    model: Any,
    *args: Any,
    method: str = "autoinit",
    seed: int = 0,
    only: str | Sequence[str] | None = None,
    skip: str | Sequence[str] | None = None,
    frozen: bool = False,
    training: bool = True,
    **options: Any,
) -> Plan:
    """Work out how to draw every parameter of a model, which is only read; see `wellposed.plan`.

    Args:
        model: a built `keras.Model`.
        args: example inputs.
        method: how.
        seed: of the random streams, one for each variable.
        only: glob patterns of the paths of variables to plan.
        skip: those to keep.
        frozen: also plan variables that are not trainable.
        training: the mode to trace in.
        options: of the method.

    Returns:
        The plan. Kernels and biases of recurrent layers are kept as Keras draws them (AutoInit, Appendix A).
    """
    module = KerasModule(model)
    return planned(
        module, module.given(args), method=method, seed=seed, only=only, skip=skip, frozen=frozen, training=training,
        **options,
    )  # fmt: skip


def apply_(
    plan: Plan,
    model: Any,
    *,
    only: str | Sequence[str] | None = None,
    skip: str | Sequence[str] | None = None,
    frozen: bool = False,
) -> None:
    """Write a plan into the variables of a model; see `wellposed.Plan.apply_`.

    Args:
        plan: of this model, or of another with the same variables.
        model: a built `keras.Model`.
        only: glob patterns of the paths of variables to write.
        skip: those to leave alone.
        frozen: also write variables that are not trainable.

    Raises:
        PlanError: the plan does not fit the model, which is as it was.
    """
    KerasModule(model).apply_(plan, only=only, skip=skip, frozen=frozen)


def initialize_(model: Any, *args: Any, frozen: bool = False, **settings: Any) -> Plan:
    """Plan a model and write the plan into its variables; see `wellposed.initialize_`.

    Args:
        model: a built `keras.Model`.
        args: example inputs.
        frozen: also plan and write variables that are not trainable.
        settings: further ones of `plan`.

    Returns:
        The plan that was written.
    """
    made = plan(model, *args, frozen=frozen, **settings)
    apply_(made, model, frozen=frozen)
    return made


def check(model: Any, *args: Any, plan: Plan | None = None, inputs: Any = None, **settings: Any) -> checks.Verdict:
    """Hold the predicted second moment of every signal against the measured one; see `wellposed.check`.

    Args:
        model: a built `keras.Model`.
        args: example inputs.
        plan: how the weights are drawn, anew for every pass; None checks those that the model has.
        inputs: described, or batches, each what the model is called with.
        settings: further ones of `wellposed.check`.
    """
    module, given, inputs = _opened(model, args, inputs)
    return checks.check(module, *given, plan=plan, inputs=inputs, **settings)


def measure(model: Any, *args: Any, plan: Plan | None = None, inputs: Any = None, **settings: Any) -> Any:
    """Return the mean and variance of every signal, seen on real passes; see `wellposed.measure`.

    Args:
        model: a built `keras.Model`.
        args: example inputs.
        plan: how the weights are drawn, as for `check`.
        inputs: as for `check`.
        settings: further ones of `wellposed.measure`.
    """
    module, given, inputs = _opened(model, args, inputs)
    return checks.measure(module, *given, plan=plan, inputs=inputs, **settings)


def explain(
    model: Any, node: str | None = None, *args: Any, plan: Plan | None = None, inputs: Any = None, **settings: Any
) -> checks.Explanation:
    """Explain one node: what enters and leaves it, and where its error was made; see `wellposed.explain`.

    Args:
        model: a built `keras.Model`.
        node: its name, as `check` and reports show it; None takes the first that is off.
        args: example inputs.
        plan: how the weights are drawn, as for `check`.
        inputs: as for `check`.
        settings: further ones of `wellposed.explain`.
    """
    module, given, inputs = _opened(model, args, inputs)
    return checks.explain(module, node, *given, plan=plan, inputs=inputs, **settings)


def report(
    model: Any,
    *args: Any,
    plan: Plan | None = None,
    method: str = "autoinit",
    options: Mapping[str, Any] | None = None,
    inputs: Any = None,
    training: bool = True,
    seed: int = 0,
    **settings: Any,
) -> reports.Report:
    """Collect everything about a model before its first training step; see `wellposed.report`.

    Args:
        model: a built `keras.Model`.
        args: example inputs.
        plan: the plan that the model's own weights are compared with; None makes one by ``method``.
        method: as for `plan`.
        options: of the method, by name.
        inputs: as for `check`.
        training: the mode to trace in.
        seed: of the plan and of the real passes.
        settings: further ones of `wellposed.report`.
    """
    module, given, inputs = _opened(model, args, inputs)
    if plan is None:
        choices = {"only": None, "skip": None, **(options or {})}
        plan = planned(module, given, method=method, seed=seed, training=training, **choices)
        options = None
    settings.setdefault("command", f"wellposed.keras.report({model.name})")
    return reports.report(
        module, *given, plan=plan, method=method, options=options, inputs=inputs, training=training, seed=seed,
        **settings,
    )  # fmt: skip


def _opened(model: Any, args: tuple[Any, ...], inputs: Any) -> tuple[KerasModule, tuple[Any, ...], Any]:
    """Return a model's front end, its example arguments and the inputs of real passes, as `wellposed` takes them."""
    module = KerasModule(model)
    given = module.given(args)
    return module, given, module.batches(inputs, len(given))
