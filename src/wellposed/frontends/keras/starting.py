"""What `wellposed.keras` does for trainings: a rate that is searched, and a start that is prepared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wellposed.frontends.keras.calls import FOR_WORKER, run, write_
from wellposed.frontends.keras.preparing import KerasStart, course, prepared, searched, start_of, written
from wellposed.frontends.keras.training import compiling, steps_in, training_of
from wellposed.options import check_integer
from wellposed.plans import Plan
from wellposed.rates import Rate
from wellposed.rates.find import BUDGET, SHORT
from wellposed.rates.schedule import Schedule


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
        initialize: a plan, or a method of planning, that draws the weights of each seed; None for the model's own.
        steps: of each training.
        epochs: of the training to come, in the place of ``training_steps``.
        training_steps: as for `wellposed.rates.find_max_lr`.
        settings: further ones of it, and for a worker.

    Raises:
        OptionError: no loss, an unknown optimizer, or a model that trains by a ``train_step`` of its own.
        RateError, DivergedError: as for `wellposed.rates.find_max_lr`.
    """
    if epochs is not None:
        training_steps = steps_in(data, batch_size, epochs)
    setup = training_of(model, data, loss, loss_weights, optimizer, batch_size, steps)
    settings = {"seeds": 1, **settings} if initialize is None else settings
    named = {"initialize": initialize, "steps": steps, "training_steps": training_steps, "training": setup}
    found: Rate = run(model, searched, (setup.batches[0][0],), {**named, **settings})
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
        progress: show a progress bar, where standard error is a terminal.
        options: of the method, and for a worker.

    Returns:
        A `KerasStart`: ``print`` shows it on one page, with the reason of each part.

    Raises:
        OptionError: no loss, a value outside its range, a plan of several rates, or a model that trains by a
            ``train_step`` of its own.
        DivergedError, RateError: as for `wellposed.prepare`.
    """
    course(schedule, 1.0, 10)
    if epochs is not None:
        check_integer(epochs=epochs)
        steps = steps_in(data, batch_size, epochs)
    setup = training_of(model, data, loss, loss_weights, optimizer, batch_size, SHORT)
    if weight_decay is not None:
        setup = setup.with_decay(weight_decay)
    for_worker: dict[str, Any] = {name: options.pop(name) for name in FOR_WORKER if name in options}
    settings: dict[str, Any] = {
        "training": setup, "method": method, "seed": seed, "planning": {"only": only, "skip": skip, **options},
        "steps": steps, "schedule": schedule, "clip": clip, "budget": budget, "journal": journal, "progress": progress,
    }  # fmt: skip
    bare, recipe = run(model, prepared, (setup.batches[0][0],), {**settings, **for_worker})
    return start_of(bare, recipe, model, compiling(model, setup))


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
    start = written(prepare(model, data, loss, optimizer, **options))
    write_(start.plan, model)
    start.compile_(**metrics)
    return start
