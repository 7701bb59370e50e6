"""Everything that the training of a Keras model needs: searched on torch, and made where the model is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import keras

from wellposed.errors import OptionError, PlanError
from wellposed.frontends.base import check_given, planned
from wellposed.frontends.keras.module import KerasModule
from wellposed.frontends.keras.training import Recipe, Training, divided
from wellposed.frontends.keras.variables import named_variables
from wellposed.plans import Plan
from wellposed.preparation import prepare
from wellposed.preparation.lines import TRAINED
from wellposed.preparation.start import Line, Prepared, warmup_of
from wellposed.rates import Rate, find_max_lr
from wellposed.rates.schedule import Schedule

_WRITTEN = "not written yet: wk.apply_(start.plan, model)"


@dataclass(frozen=True, slots=True, repr=False)
class KerasStart(Prepared):
    """Everything that the training of a Keras model needs before its first step; see `wellposed.keras.prepare`.

    Attributes:
        plan: how the weights are drawn.
        rate: the learning rate, with its interval and how it was found.
        optimizer: of Keras; its learning rate follows the schedule.
        steps: of the training.
        schedule: of the rate, by name.
        clip: the global norm to which the optimizer clips gradients; None for none of the search's.
        written: whether the weights are in the model, and the model is compiled.
        lines: all of it in words, each with its reason.
        warnings: where it means less than it seems.
        model: the model that was given.
        compiling: what it is compiled with beside the optimizer.
    """

    model: Any
    compiling: Mapping[str, Any]

    def compile_(self, **settings: Any) -> Any:
        """Compile the model with the optimizer and the loss that were searched, and return it.

        Args:
            settings: further ones of ``model.compile``, such as ``metrics``; those of a model that was compiled stay.
        """
        self.model.compile(optimizer=self.optimizer, **{**self.compiling, **settings})
        return self.model


def searched(
    module: KerasModule, *_args: Any, training: Training, initialize: Plan | str | None, **settings: Any
) -> Rate:
    """Return the rate of a training, by a search on torch; see `wellposed.keras.find_max_lr`."""
    batches = [module.converted(batch) for batch in training.batches]
    if isinstance(initialize, str):
        initialize = _planned(module, batches[0], method=initialize, seed=settings.get("seed", 0))
    return find_max_lr(
        module,
        training.scored(module),
        batches,
        optimizer=training.building(training.recipe),
        initialize=initialize,
        vectorize=False,
        **settings,
    )


def prepared(
    module: KerasModule,
    *_args: Any,
    training: Training,
    method: Plan | str | None,
    seed: int,
    planning: Mapping[str, Any],
    **settings: Any,
) -> tuple[Prepared, Recipe]:
    """Return what `wellposed.prepare` finds for a training, and the recipe of the optimizer that was searched."""
    check_given(method, planning)
    batches = [module.converted(batch) for batch in training.batches]
    plan = method if isinstance(method, Plan) else _planned(module, batches[0], method=method, seed=seed, **planning)
    recipe = divided(training.recipe, plan, module)
    found = prepare(
        module, training.scored(module), batches, training.building(recipe), method=plan, seed=seed, **settings
    )
    lines = {line.part: line for line in found.lines}
    keeps = lines["weights"].value.startswith("the model's own")
    if not keeps:
        lines["weights"] = replace(lines["weights"], value=f"{plan.method}, seed {plan.seed}; {_WRITTEN}")
    lines["optimizer"] = _groups(recipe, module)
    lines["schedule"] = replace(
        lines["schedule"],
        reason="the search ran through the same in its own steps, so that the rate holds with it; the optimizer's "
        "learning_rate follows it",
    )
    bare = Prepared(
        plan, found.rate, None, found.steps, found.schedule, found.clip, False, tuple(lines.values()), found.warnings
    )
    return bare, recipe


def _planned(module: KerasModule, batch: tuple[Any, ...], **settings: Any) -> Plan:
    """Return the plan of a model on the inputs of a batch; ``method`` may be ``"own"``, or None for the default."""
    if settings["method"] == "own":
        settings = {"seed": settings["seed"], "skip": "*"}
    settings = {name: value for name, value in settings.items() if value is not None}
    return planned(module, (batch[0],), **{"training": True, **settings})


def _groups(recipe: Recipe, module: KerasModule) -> Line:
    """Return the optimizer in words."""
    trained = sum(parameter.requires_grad for parameter in module.parameters())
    decay, apart = recipe.weight_decay, len(recipe.undecayed)
    if not decay:
        return Line("optimizer", f"{recipe.name}: {trained} variables", "nothing decays: weight_decay= sets it")
    return Line(
        "optimizer",
        f"{recipe.name}: {trained - apart} variables with decay {decay:g}, {apart} with decay 0",
        "weights and embeddings decay; biases, norms and other vectors do not (exclude_from_weight_decay, which is not "
        "saved with an optimizer)",
    )


def start_of(bare: Prepared, recipe: Recipe, model: Any, compiling: Mapping[str, Any]) -> KerasStart:
    """Return the start of a model from what a search found, with an optimizer of this process' Keras."""
    if bare.clip is not None:
        recipe = recipe.with_(global_clipnorm=bare.clip)
    optimizer = recipe.built(course(bare.schedule, bare.rate.value, bare.steps), named_variables(model))
    fields = {name: getattr(bare, name) for name in Prepared.__dataclass_fields__}
    return KerasStart(**{**fields, "optimizer": optimizer}, model=model, compiling=compiling)


def course(schedule: Schedule, rate: float, steps: int) -> Any:
    """Return a rate, or the schedule of Keras, of a training of some steps.

    Raises:
        OptionError: Keras has none of that name.
    """
    schedules, warmup = keras.optimizers.schedules, warmup_of(schedule, steps)
    if schedule == "constant":
        return rate
    if schedule == "cosine":
        return schedules.CosineDecay(rate, steps)
    if schedule == "linear":
        return schedules.PolynomialDecay(rate, steps, 0.0)
    if schedule == "warmup_cosine":
        if not warmup:
            return schedules.CosineDecay(rate, steps)
        return schedules.CosineDecay(0.0, steps - warmup, warmup_target=rate, warmup_steps=warmup)
    raise OptionError(
        f"Keras has no schedule like {schedule!r}: choose among 'constant', 'linear', 'cosine' and 'warmup_cosine'; "
        "wk.find_max_lr searches with any"
    )


def written(start: KerasStart) -> KerasStart:
    """Return the start with words for weights that are in the model.

    Raises:
        PlanError: the model looks trained.
    """
    for text in start.warnings:
        if text.startswith(TRAINED):
            raise PlanError(
                f"{text}; nothing was written: wk.prepare(...) and wk.apply_(start.plan, model) write all the same, "
                "and method='own' keeps the weights"
            )
    lines = tuple(replace(line, value=line.value.replace(_WRITTEN, "written")) for line in start.lines)
    return replace(start, written=True, lines=lines)
