"""Keras 3 models: planned, initialised, checked and reported on, as `wellposed` does it for PyTorch's.

>>> import keras, wellposed.keras as wk  # doctest: +SKIP
>>> plan = wk.initialize_(model)  # doctest: +SKIP
>>> wk.check(model, plan=plan)  # doctest: +SKIP

Where Keras runs on torch (``KERAS_BACKEND=torch``, set before keras is imported), this happens in the process itself;
where it runs on TensorFlow or JAX, in a worker, a process that has Keras on torch: the same plan and the same bits. A
worker is started for each call. Two more settings are for it: ``time_limit``, the seconds that it may take (600), and
``custom_objects``, classes and functions by name that the model's configuration refers to.

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

from collections.abc import Callable, Mapping, Sequence
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

from wellposed.frontends.keras import KerasModule, preparing, sending, training, variables
from wellposed.frontends.keras.keras2 import from_keras2
from wellposed.frontends.keras.preparing import KerasStart
from wellposed.options import DEFAULT_METHOD, check_integer
from wellposed.rates import Rate
from wellposed.rates.find import BUDGET, SHORT
from wellposed.rates.schedule import Schedule

__all__ = [
    "KerasModule", "KerasStart", "apply_", "check", "explain", "find_max_lr", "from_keras2", "initialize_", "measure",
    "plan", "prepare", "prepare_", "report", "trace",
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
    made: Plan = _run(model, _plan, args, settings | options)
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
    if sending.on_torch():
        KerasModule(model).apply_(plan, only=only, skip=skip, frozen=frozen)
    else:
        variables.apply_(plan, model, only=only, skip=skip, frozen=frozen)


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
    verdict: checks.Verdict = _run(model, _check, args, {"plan": plan, "inputs": inputs, **settings})
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
    return _run(model, _measure, args, {"plan": plan, "inputs": inputs, **settings})


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
    explained: checks.Explanation = _run(
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
    collected: reports.Report = _run(model, _report, args, named | settings)
    return collected


# ---- trainings -------------------------------------------------------------------------------------------------------


def find_max_lr(
    model: Any,
    loss: Any = None,
    data: Any = None,
    *,
    optimizer: Any = None,
    loss_weights: Any = None,
    batch_size: int = 32,
    initialize: Plan | str | None = None,
    steps: int = SHORT,
    epochs: int | None = None,
    training_steps: int | None = None,
    **settings: Any,
) -> Rate:
    """Search the learning rate of a model by short trainings from its weights; see `wellposed.rates.find_max_lr`.

    The trainings run on torch, here or in a worker, with Keras' own optimizer. The model is only read.

    Args:
        model: a built `keras.Model`.
        loss: as for ``compile``; None for the one that the model was compiled with.
        data: what ``fit`` takes: ``(x, y)`` or ``(x, y, sample_weight)``, of arrays; or batches of these: a list, a
            loader, a `keras.utils.PyDataset`, a ``tf.data.Dataset``. As many are read as there are steps.
        optimizer: name, class or instance, whose rate does not count; None for the model's own, else AdamW.
        loss_weights: as for ``compile``.
        batch_size: where the data is arrays.
        initialize: a plan, or a method of planning, that draws the weights anew for each seed; None for the model's own.
        steps: of each training.
        epochs: of the training to come, in the place of ``training_steps``.
        training_steps: as for `wellposed.rates.find_max_lr`.
        settings: further ones of it, and for a worker.

    Raises:
        OptionError: no loss, an unknown optimizer, or a model that trains by a ``train_step`` of its own.
        RateError, DivergedError: as for `wellposed.rates.find_max_lr`.
    """
    if epochs is not None:
        training_steps = training.steps_in(data, batch_size, epochs)
    setup = training.training_of(model, data, loss, loss_weights, optimizer, batch_size, steps)
    settings = {"seeds": 1, **settings} if initialize is None else settings
    named = {"initialize": initialize, "steps": steps, "training_steps": training_steps, "training": setup}
    found: Rate = _run(model, preparing.searched, (setup.batches[0][0],), {**named, **settings})
    return found


def prepare(
    model: Any,
    data: Any,
    loss: Any = None,
    optimizer: Any = None,
    *,
    steps: int | None = None,
    epochs: int | None = None,
    batch_size: int = 32,
    loss_weights: Any = None,
    method: Plan | str | None = None,
    weight_decay: float | None = None,
    schedule: Schedule = "warmup_cosine",
    clip: float | None = None,
    budget: int = BUDGET,
    seed: int = 0,
    only: str | Sequence[str] | None = None,
    skip: str | Sequence[str] | None = None,
    journal: str | None = None,
    progress: bool = True,
    **options: Any,
) -> KerasStart:
    """Work out everything that the training of a model needs before its first step; the model is only read.

    The rate is searched on torch, here or in a worker, with Keras' own optimizer: by trainings of 40 steps from the
    planned weights; see `wellposed.prepare`. `prepare_` also writes the weights and compiles the model.

    Args:
        model: a built `keras.Model`; frozen variables stay as they are.
        data: what ``fit`` takes, as for `find_max_lr`; the first 40 batches are used.
        loss: as for ``compile``; None for the one that the model was compiled with.
        optimizer: as for `find_max_lr`.
        steps: of the training; best rates fall with it. None, and no ``epochs``: 1,000 are assumed.
        epochs: of the training, in the place of ``steps``.
        batch_size: where the data is arrays.
        loss_weights: as for ``compile``.
        method: of planning, by name, or a plan; ``"own"`` keeps the weights. None: that of `plan`.
        weight_decay: of weights and embeddings; other variables have none. None: the optimizer's own.
        schedule: of the rate: ``"warmup_cosine"``, ``"cosine"``, ``"linear"`` or ``"constant"``.
        clip: the global norm to clip gradients to; None for what the optimizer does itself.
        budget: gradients that the search may take.
        seed: of the plan.
        only: glob patterns of the paths of variables to plan.
        skip: those to keep.
        journal: a file that notes finished runs; a search that was killed goes on from it.
        progress: show a progress bar, where Keras runs on torch.
        options: of the method, and for a worker.

    Returns:
        A `KerasStart`: ``print`` shows it on one page, with the reason of each part.

    Raises:
        OptionError: no loss, a value outside its range, a plan of several rates, or a model that trains by a
            ``train_step`` of its own.
        DivergedError, RateError: as for `wellposed.prepare`.
    """
    preparing.course(schedule, 1.0, 10)
    if epochs is not None:
        check_integer(epochs=epochs)
        steps = training.steps_in(data, batch_size, epochs)
    setup = training.training_of(model, data, loss, loss_weights, optimizer, batch_size, SHORT)
    if weight_decay is not None:
        setup = setup.with_decay(weight_decay)
    for_worker = {name: options.pop(name) for name in ("time_limit", "custom_objects") if name in options}
    settings = {
        "training": setup, "method": method, "seed": seed, "planning": {"only": only, "skip": skip, **options},
        "steps": steps, "schedule": schedule, "clip": clip, "budget": budget, "journal": journal, "progress": progress,
    }  # fmt: skip
    bare, recipe = _run(model, preparing.prepared, (setup.batches[0][0],), {**settings, **for_worker})
    return preparing.start_of(bare, recipe, model, training.compiling(model, setup))


def prepare_(model: Any, data: Any, loss: Any = None, optimizer: Any = None, **options: Any) -> KerasStart:
    """Work out everything that the training of a model needs, write the weights into it, and compile it.

    ```python
    start = wk.prepare_(model, (x, y), "sparse_categorical_crossentropy", epochs=10, metrics=["accuracy"])
    start.model.fit(x, y, epochs=10)
    ```

    Args:
        model: a built `keras.Model`, whose weights are written in place.
        data: as for `prepare`.
        loss: as for `prepare`.
        optimizer: as for `prepare`.
        options: as for `prepare`; and ``metrics``, as for ``compile``. A model that was compiled keeps its own.

    Returns:
        The `KerasStart`.

    Raises:
        PlanError: the model's own weights have a lower loss than any training of the search reached: it looks trained,
            and is left as it is.
        OptionError, DivergedError, RateError: as for `prepare`.
    """
    metrics = {"metrics": options.pop("metrics")} if "metrics" in options else {}
    start = preparing.written(prepare(model, data, loss, optimizer, **options))
    apply_(start.plan, model)
    start.compile_(**metrics)
    return start


# ---- what runs where Keras runs on torch: here, or in a worker -------------------------------------------------------


def _run(model: Any, function: Callable[..., Any], args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
    """Return the result of a function on a model's front end, here or in a worker, whose own settings are taken out."""
    for_worker = {name: settings.pop(name) for name in ("time_limit", "custom_objects") if name in settings}
    if sending.on_torch():
        return function(KerasModule(model), *args, **sending.with_models(settings, keras.Model, KerasModule))
    return sending.in_worker(model, function, args, settings, **for_worker)


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
    if plan is None:
        choices = {"only": None, "skip": None, **(options or {})}
        plan = planned(module, given, method=method, seed=seed, training=training, **choices)
        options = None
    return reports.report(
        module, *given, plan=plan, method=method, options=options, inputs=inputs, training=training, seed=seed,
        **settings,
    )  # fmt: skip
