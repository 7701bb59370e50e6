"""Keras 3 models: planned, initialised, checked and reported on, as `wellposed` does it for PyTorch's.

>>> import keras, wellposed.keras as wk  # doctest: +SKIP
>>> plan = wk.initialize_(model)  # doctest: +SKIP
>>> wk.check(model, plan=plan)  # doctest: +SKIP

Where Keras runs on torch (``KERAS_BACKEND=torch``, set before keras is imported), this happens in the process itself;
where it runs on TensorFlow or JAX, in a worker, a process that has Keras on torch: the same plan and the same bits. The
first call starts it, and on Linux it answers all that follow. Two more settings are for it: ``time_limit``, the seconds
that a call may take (600), and ``custom_objects``, which stand for classes and functions of the model by name.

Parameters are named by the paths of Keras' variables. Example inputs are what the model is called with, as arrays or
tensors; where none are given, they are made from the shapes that the model was built for. ``inputs`` of real passes are
described (`wellposed.Input`, also by the names of the model's inputs), an array that is measured, or batches of any
size. What a function takes beside them, and what it raises, is what its namesake in `wellposed` takes and raises; and
in all of them

* `InputError`: no Keras model, one that is not built, or one whose inputs are not known and no example is given;
* `UnsupportedError`: Keras runs on a further backend; a layer is quantised, or runs another framework's code; a worker
  cannot build the model;
* `WorkerError`: a worker died or took too long. The model is as it was.
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
    keras: Any = import_library("keras", what="wellposed.keras", extra="keras")
except ModuleNotFoundError as error:
    raise UnsupportedError(
        f"Keras looks for a backend that is not installed ({error.name}): install it, or set KERAS_BACKEND=torch "
        "before keras is imported"
    ) from error

from wellposed.frontends.keras import KerasModule
from wellposed.frontends.keras.calls import run, write_
from wellposed.frontends.keras.gradients import gradcosine, nio
from wellposed.frontends.keras.keras2 import from_keras2
from wellposed.frontends.keras.preparing import KerasStart
from wellposed.frontends.keras.rates import param_groups
from wellposed.frontends.keras.shaping import Shaped, shape_
from wellposed.frontends.keras.starting import find_max_lr, prepare, prepare_
from wellposed.options import DEFAULT_METHOD

__all__ = [
    "KerasModule", "KerasStart", "Shaped", "apply_", "check", "explain", "find_max_lr", "from_keras2", "gradcosine",
    "initialize_", "measure", "nio", "param_groups", "plan", "prepare", "prepare_", "report", "shape_", "trace",
]  # fmt: skip


def trace(model: Any, *args: Any, training: bool = True) -> Graph:
    """Run a model once without changing it, and return the operators that it ran; see `wellposed.trace`.

    This needs Keras on torch: a graph holds functions, which no worker can send.

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
    method: str = DEFAULT_METHOD,
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
        options: of the method, and for a worker. ``base`` of ``complete_p`` is a `keras.Model`, or numbers are given.

    Returns:
        The plan. Kernels and biases of recurrent layers are kept as Keras draws them (AutoInit, Appendix A).
    """
    settings = {"method": method, "seed": seed, "only": only, "skip": skip, "frozen": frozen, "training": training}
    made: Plan = run(model, _plan, args, settings | options)
    return made


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
    write_(plan, model, only=only, skip=skip, frozen=frozen)


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
    verdict: checks.Verdict = run(model, _check, args, {"plan": plan, "inputs": inputs, **settings})
    return verdict


def measure(model: Any, *args: Any, plan: Plan | None = None, inputs: Any = None, **settings: Any) -> Any:
    """Return the mean and variance of every signal, seen on real passes; see `wellposed.measure`.

    Args:
        model: a built `keras.Model`.
        args: example inputs.
        plan: how the weights are drawn, as for `check`.
        inputs: as for `check`.
        settings: further ones of `wellposed.measure`.
    """
    return run(model, _measure, args, {"plan": plan, "inputs": inputs, **settings})


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
    explained: checks.Explanation = run(
        model, _explain, args, {"node": node, "plan": plan, "inputs": inputs, **settings}
    )
    return explained


def report(
    model: Any,
    *args: Any,
    plan: Plan | None = None,
    method: str = DEFAULT_METHOD,
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
    settings.setdefault("command", f"wellposed.keras.report({getattr(model, 'name', '')})")
    named = {
        "plan": plan, "method": method, "options": options, "inputs": inputs, "training": training, "seed": seed,
    }  # fmt: skip
    collected: reports.Report = run(model, _report, args, named | settings)
    return collected


# ---- what runs where Keras runs on torch: here, or in a worker -------------------------------------------------------


def _plan(module: KerasModule, *args: Any, **settings: Any) -> Plan:
    return planned(module, module.given(args), **settings)


def _check(module: KerasModule, *args: Any, inputs: Any, **settings: Any) -> checks.Verdict:
    given, inputs = module.opened(args, inputs)
    return checks.check(module, *given, inputs=inputs, **settings)


def _measure(module: KerasModule, *args: Any, inputs: Any, **settings: Any) -> Any:
    given, inputs = module.opened(args, inputs)
    return checks.measure(module, *given, inputs=inputs, **settings)


def _explain(module: KerasModule, *args: Any, node: str | None, inputs: Any, **settings: Any) -> checks.Explanation:
    given, inputs = module.opened(args, inputs)
    return checks.explain(module, node, *given, inputs=inputs, **settings)


def _report(
    module: KerasModule,
    *args: Any,
    plan: Plan | None,
    method: str,
    options: Mapping[str, Any] | None,
    inputs: Any,
    training: bool,
    seed: int,
    **settings: Any,
) -> reports.Report:
    """Return the report on a module; without a plan it is made by ``method``."""
    given, inputs = module.opened(args, inputs)
    made = plan is None
    if plan is None:
        plan = planned(module, given, method=method, seed=seed, training=training, **(options or {}))
        options = None
    found = reports.report(
        module, *given, plan=plan, method=method, options=options, inputs=inputs, training=training, seed=seed,
        **settings,
    )  # fmt: skip
    return found.through("wk", "wk.find_max_lr(model, loss, data)", given=not made)
